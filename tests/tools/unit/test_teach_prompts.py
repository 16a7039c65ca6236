"""What a target is asked: many distinct prompts that follow from their numbers, and the split."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from outrider.errors import InvalidConfig
from outrider_teach import snippets
from outrider_teach.prompts import (
    GROUPS,
    OWN,
    Prompt,
    bundled,
    draw,
    is_held_out,
    own,
    passages,
    read_texts,
)

COUNT = 1500


@pytest.fixture(scope="module")
def drawn() -> list[Prompt]:
    return [bundled(1)(number) for number in range(COUNT)]


def test_a_prompt_follows_from_its_number_and_the_seed(drawn: list[Prompt]) -> None:
    assert [bundled(1)(number) for number in (1400, 7, 0)] == [drawn[1400], drawn[7], drawn[0]]
    assert [bundled(2)(number) for number in range(30)] != drawn[:30]


def test_the_groups_have_the_same_share_and_nearly_all_texts_are_distinct(
    drawn: list[Prompt],
) -> None:
    assert Counter(prompt.group for prompt in drawn) == dict.fromkeys(GROUPS, COUNT // 3)
    assert len({prompt.text for prompt in drawn}) > 0.93 * COUNT


def test_there_are_a_few_hundred_kinds_and_no_slot_is_left_open() -> None:
    folder = Path(snippets.__file__).parent / "kinds"
    kinds = [
        (group, line)
        for group in GROUPS
        for line in (folder / f"{group}.txt").read_text(encoding="utf-8").splitlines()
    ]
    assert len(kinds) > 300 and len(set(kinds)) == len(kinds)
    for group, kind in kinds:
        prompt = draw(group, kind, random.Random(kind))
        assert prompt.messages[-1]["role"] == "user" and " || " not in prompt.text
        assert "\\n" not in kind or "\n" in prompt.text


def test_one_name_in_a_kind_is_one_word_and_two_names_are_two() -> None:
    for seed in range(50):
        text = draw("chat", "{day}-{day}-{day2}", random.Random(seed)).text
        first, same, other = text.split("-")
        assert first == same != other


def test_a_system_message_stands_before_the_question() -> None:
    prompt = draw("chat", "You are brief. || What is {topic}?", random.Random(1))
    assert [message["role"] for message in prompt.messages] == ["system", "user"]
    assert prompt.messages[0]["content"] == "You are brief."
    assert prompt.text.startswith("You are brief.\nWhat is ")


def test_one_prompt_in_twenty_is_held_out_by_its_text_alone(drawn: list[Prompt]) -> None:
    share = sum(is_held_out(prompt.text) for prompt in drawn) / COUNT
    assert 0.03 < share < 0.07
    assert is_held_out("\ud800") in (True, False)


def test_functions_are_shown_whole_and_a_fault_is_one(drawn: list[Prompt]) -> None:
    functions = snippets.functions()
    assert len(functions) > 2000 and len(snippets.documentations()) > 500
    for source in functions[::100]:
        compile(source, "shown", "exec")
        assert all(fault != source for fault in snippets.faults(source)[:1]) or "==" not in source
    assert snippets.faults("x") == ["x"]


def test_a_text_is_cut_at_line_ends_and_nothing_but_a_short_rest_is_lost() -> None:
    lines = [f"{number} " + "x" * (number % 90) + "\n" for number in range(300)]
    pieces = list(passages("".join(lines)))
    assert all(200 <= len(piece) <= 1200 and piece.endswith("\n") for piece in pieces)
    whole = "".join(lines)
    assert whole.startswith("".join(pieces)) and len(whole) - sum(map(len, pieces)) < 200
    assert list(map(len, passages("y" * 3000))) == [1200, 1200, 600]
    assert list(passages("too short\n")) == []


def test_files_of_prompts_are_taken_as_they_are_and_others_are_cut(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hello"}]
    lines = [json.dumps({"messages": chat}), "", json.dumps({"prompt": "Once"})]
    (tmp_path / "asked.jsonl").write_text("\n".join(lines))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "code.py").write_text("def f():\n    pass\n" * 40)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden.py").write_text("x = 1\n" * 100)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0" * 100)
    found = read_texts([tmp_path])
    assert found[:2] == [Prompt(OWN, tuple(chat)), Prompt(OWN, passage="Once")]
    assert [prompt.text for prompt in found[2:]] == ["def f():\n    pass\n" * 40]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"messages": []}', 'line 1: has neither "messages" nor "prompt"'),
        ("a.jsonl", '\n{"prompt": "x"}\n{', "line 3: is not JSON"),
        ("a.jsonl", "", "no prompt in"),
        ("a.txt", "\x00", "no prompt in"),
    ],
)
def test_what_is_no_prompt_is_refused_in_one_line(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidConfig, match=r"^texts: ") as refused:
        read_texts([tmp_path / name])
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        read_texts([tmp_path / "none.txt"])
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n" * 100)
    with pytest.raises(InvalidConfig, match="is not UTF-8 text"):
        read_texts([tmp_path / "latin.txt"])


def test_own_prompts_come_once_in_each_round_in_another_order() -> None:
    prompts = [Prompt(OWN, passage=str(number)) for number in range(40)]
    at = own(prompts, 1)
    rounds = [[at(40 * turn + i).text for i in range(40)] for turn in range(2)]
    assert all(sorted(each) == sorted(map(str, range(40))) for each in rounds)
    assert rounds[0] != rounds[1]
