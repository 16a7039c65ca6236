"""Prompts that ask for the middle of a text: what comes where, and what is cut."""

from __future__ import annotations

import pytest

from orchestrator.infill import LOCAL_TOKENS, File, Infill, arrange, room_for
from outrider.errors import InvalidRequest
from outrider.v1 import common_pb2 as common

PRE, SUF, MID, REP, FILE, BOS = 1001, 1002, 1003, 1004, 1005, 1006
MARKS = {PRE: "<PRE>", SUF: "<SUF>", MID: "<MID>", REP: "<REP>", FILE: "<FILE>", BOS: "<BOS>"}
PLENTY = 1 << 20  # tokens


def vocabulary(*, names_files: bool = True, adds_bos: bool = False) -> common.Vocabulary:
    fim = common.FimTokens(
        prefix_token_id=PRE,
        suffix_token_id=SUF,
        middle_token_id=MID,
        repository_token_id=REP if names_files else -1,
        file_token_id=FILE if names_files else -1,
    )
    return common.Vocabulary(token_count=2000, bos_token_id=BOS, adds_bos=adds_bos, fim_tokens=fim)


def arranged(infill: Infill, its: common.Vocabulary, room: int = PLENTY) -> str:
    """Return the prompt as text, of a vocabulary with a token for every character."""
    ids = {text: [ord(letter) for letter in text] for text in infill.texts()}
    prompt = arrange(infill, its, ids, room)
    assert len(prompt) <= room
    return "".join(MARKS.get(each) or chr(each) for each in prompt)


def test_the_prompt_stands_before_the_gap():
    text = Infill("int main() {\n", "}\n", "    int n = ")
    assert arranged(text, vocabulary(names_files=False)) == (
        "<PRE>int main() {\n    int n = <SUF>}\n<MID>"
    )


def test_files_come_first_each_with_its_name():
    text = Infill("a", "b", files=[File("one\n", "1.c"), File("two\n")])
    assert arranged(text, vocabulary()) == (
        "<REP>myproject\n<FILE>1.c\none\n<FILE>tmp\ntwo\n<FILE>filename\n<PRE>a<SUF>b<MID>"
    )


def test_where_no_token_stands_for_a_file_a_line_does():
    text = Infill("a", "b", files=[File("one\n", "1.c")])
    assert arranged(text, vocabulary(names_files=False)) == (
        "\n\n--- snippet ---\n\none\n<PRE>a<SUF>b<MID>"
    )


def test_bos_comes_before_all():
    text = Infill("a", "b", files=[File("one\n", "1.c")])
    assert arranged(text, vocabulary(adds_bos=True)).startswith("<BOS><REP>")


def test_a_long_text_is_cut_far_from_the_gap():
    text = Infill("x" * 5000 + "before", "after" + "y" * 5000, "p")
    prompt = arranged(text, vocabulary(names_files=False))
    before, after = prompt.removeprefix("<PRE>").removesuffix("<MID>").split("<SUF>")
    assert len(before) == 3 * LOCAL_TOKENS // 4 + len("p") and before.endswith("beforep")
    assert len(after) == LOCAL_TOKENS // 4 - 3 and after.startswith("after")


def test_a_small_context_cuts_more():
    text = Infill("x" * 200, "y" * 200, files=[File("z" * 60)])
    prompt = arranged(text, vocabulary(names_files=False), room=100)
    assert prompt == f"<PRE>{'x' * 72}<SUF>{'y' * 22}<MID>"


def test_the_files_that_came_last_are_kept():
    text = Infill("a", "b", files=[File(letter * 40, letter) for letter in "123"])
    prompt = arranged(text, vocabulary(), room=130)
    assert "111" not in prompt
    assert prompt.index("222") < prompt.index("333") < prompt.index("<PRE>")


def test_the_prompt_is_never_cut():
    text = Infill("x" * 50, "y" * 50, "p" * 50)
    ids = {each: [ord(letter) for letter in each] for each in text.texts()}
    assert arrange(text, vocabulary(names_files=False), ids, 10) == [
        *(PRE, *map(ord, "x" * 6), *map(ord, "p" * 50), SUF, MID)
    ]


def test_what_is_written_has_room():
    assert room_for(1000, 100) == 900
    assert room_for(1000, 900) == room_for(1000, -1) == 750


def test_a_model_without_the_tokens_is_named():
    with pytest.raises(InvalidRequest, match="suffix: this model has no tokens by which"):
        arranged(Infill("a", "b"), common.Vocabulary(token_count=2000))
