"""A prompt of the draft's own in place of a text's: what the draft then reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draft_service.own_prompt_reader import OwnPromptReader, own_prompt_ids
from orchestrator.own_prompts import DraftTemplates
from orchestrator.paired_drafts import PairedDraft
from outrider.translation import TokenTable, Translation
from outrider.v1 import common_pb2 as common
from tests.support.toy import BOS, ToyModel

OWN = [40, 41]
PROMPT = [1, 2, 3]


def test_what_follows_the_prompt_follows_the_drafts_own() -> None:
    reader = OwnPromptReader(OWN, len(PROMPT))
    assert reader.read(PROMPT, 3) == OWN
    assert reader.read([*PROMPT, 7, 8], 4) == [*OWN, 7, 8]
    assert reader.read([9, 9, 9, 7], 3) == [*OWN, 7]
    assert reader.read([1], 1) == OWN


@pytest.mark.parametrize("head", [False, True])
async def test_a_head_reads_the_target_s_prompt(head: bool) -> None:
    """The hidden rows that it is sent are of that."""
    model = common.GetModelResponse(chat_template="{{ messages[0].content }}!")
    peer: Any = SimpleNamespace(
        model=model, chat_template=model.chat_template, address="d:1", role="draft"
    )
    draft = PairedDraft(peer, is_trusted=True)
    draft.rates.source = "mtp" if head else "model"
    chat = [{"role": "user", "content": "tea"}]
    asked: Any = SimpleNamespace(
        chat=chat, tools=None, add_generation_prompt=True, variables={}, continuation=""
    )
    assert await DraftTemplates().render(asked, draft) == ("" if head else "tea!")


def test_a_line_that_grows_is_read_as_a_whole_would_be() -> None:
    reader, line = OwnPromptReader(OWN, len(PROMPT)), list(PROMPT)
    for token_id in range(20):
        line.append(token_id)
        assert reader.read(line, 3) == OwnPromptReader(OWN, len(PROMPT)).read(list(line), 3)
    assert reader.read([*PROMPT, 5], 4) == [*OWN, 5]


def test_a_translated_text_has_the_drafts_own_prompt_and_no_second_beginning() -> None:
    draft = TokenTable(texts=[b"a", b"b", b"c"], names=[b"a", b"b", b"c"], type=2)
    target = TokenTable(texts=[b"c", b"b", b"a"], names=[b"c", b"b", b"a"], type=2)
    its, text = Translation(draft, target), [0, 1, 2, 0]
    own = its.reader(2, own_prompt=[1, 1, 1])
    assert own.read(text, 4) == [1, 1, 1, 0, 2]
    for end in (2, 3, 4, 1, 4):
        again = its.reader(2, own_prompt=[1, 1, 1]).read(text[:end], end)
        assert own.read(text[:end], end) == again


def test_a_draft_that_begins_with_bos_begins_its_own_prompt_alone_with_it() -> None:
    draft = TokenTable(texts=[b"", b"a", b"b"], names=[b"<s>", b"a", b"b"], type=2, bos=0)
    target = TokenTable(texts=[b"b", b"a"], names=[b"b", b"a"], type=2)
    its = Translation(draft, target)
    assert its.reader(1, own_prompt=[0, 1]).read([0, 0, 1], 3) == [0, 1, 2, 1]


def test_a_prompt_has_bos_once_and_its_control_tokens_are_read() -> None:
    model = ToyModel()
    [end] = model.tokenize(b"</s>", False, True)
    letters = model.tokenize(b"go", False, False)
    for text in ("go</s>", "<s>go</s>"):
        assert own_prompt_ids(model, text, 1000) == [BOS, *letters, end]
    assert own_prompt_ids(ToyModel(adds_bos=False), "go", 1000) == letters


def test_a_prompt_that_does_not_fit_is_none() -> None:
    model = ToyModel(context=16)
    assert own_prompt_ids(model, "", 1000) == []
    assert own_prompt_ids(model, "go " * 20, 1000) == []
    assert own_prompt_ids(model, "go", 1) == []
