"""What a caller or a peer can do to a draft that translates, and to who asks it to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outrider.handshake import digest
from outrider.v1 import common_pb2 as common
from outrider.vocabulary_pieces import Vocabulary, lesson, vocabulary_key
from tests.support.services import DRAFT, ModelProcess, running, toy
from tests.support.streams import DraftStream
from tests.support.toy import NEVER, ToyModel

LETTERS = 32
MATCH = common.ACCEPTANCE_RULE_MATCH
REJECTION = common.ACCEPTANCE_RULE_REJECTION


def vocabulary(texts: Sequence[bytes], bos: int = -1) -> tuple[common.Vocabulary, Vocabulary]:
    """Return a target's vocabulary of these texts, in both of its forms."""
    names = [text or b"<%d>" % i for i, text in enumerate(texts)]
    described = common.Vocabulary(
        type=2,
        token_count=len(texts),
        bos_token_id=bos,
        eos_token_id=-1,
        eot_token_id=-1,
        digest=digest(names),
    )
    return described, Vocabulary(list(texts), names, {}, 8)


async def teach(process: ModelProcess, texts: Sequence[bytes], bos: int = -1) -> bytes:
    """Send a draft a vocabulary; return its key."""
    described, its = vocabulary(texts, bos)
    key = vocabulary_key(described)
    await process.stub.LearnVocabulary(lesson(key, described, its))
    return key


def draft() -> ToyModel:
    return toy(vocabulary_size=LETTERS, eos_bias=NEVER)


def without_bos() -> ToyModel:
    return toy(vocabulary_size=LETTERS, eos_bias=NEVER, adds_bos=False)


def opened(process: ModelProcess, key: bytes, rule: int = MATCH, **more: Any) -> DraftStream:
    """Return a session of a target with another vocabulary."""
    changes = {"vocabulary_key": key, "prompt_token_count": 1, "acceptance_rule": rule}
    return DraftStream(process, **changes, **more)


@pytest.mark.fault(
    "crash",
    "`rejection` with a draft that shares no token with the target",
    before="a long text was decoded in the target's ids: an assertion ended the draft's engine",
    now="the draft proposes nothing",
)
async def test_a_draft_that_shares_nothing_drafts_nothing_under_rejection() -> None:
    async with running(ModelProcess(DRAFT, draft)) as process:
        key = await teach(process, [b"%d" % i for i in range(400)])
        async with opened(process, key, REJECTION, vocabulary_token_count=400) as stream:
            for number, text in ((1, [399]), (2, [*range(200, 300)])):
                frame = await stream.draft(number, 0, text, len(text) + 4)
                assert not frame.token_ids
        assert not process.host.died.done()


@pytest.mark.fault(
    "crash",
    "a prompt of BOS alone, for a draft that has none and another vocabulary",
    before="the draft cut its session to -1 tokens: an assertion ended its engine",
    now="the draft proposes nothing until there is a text",
)
async def test_a_prompt_that_is_nothing_to_the_draft_is_no_fault() -> None:
    async with running(ModelProcess(DRAFT, without_bos)) as process:
        letters = [b"", *(b"%c" % c for c in b"abcdefghij")]
        key = await teach(process, letters, bos=0)
        async with opened(process, key, vocabulary_token_count=len(letters)) as stream:
            for number, until in ((1, 5), (2, 1)):
                assert not (await stream.draft(number, 0, [0], until)).token_ids
        assert not process.host.died.done()
