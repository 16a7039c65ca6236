"""What a caller or a peer can do to a draft that translates, and to who asks it to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outrider.handshake import digest
from outrider.text_encoder import TextEncoder
from outrider.v1 import common_pb2 as common
from outrider.vocabulary_pieces import Vocabulary, lesson, vocabulary_key
from tests.support.services import CONTEXT, DRAFT, ModelProcess, running, toy
from tests.support.streams import DraftStream, session
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


LETTER_TOKENS = [b"", *(b"%c" % c for c in b"abcdefghijklmnopqrst")]


@pytest.mark.fault(
    "hang",
    "an order of a million tokens to a draft that translates",
    before="all of it was encoded in the engine's thread, and each further one was kept as well",
    now="what the context cannot hold is refused; a whole text is encoded beside that thread",
)
async def test_a_text_that_cannot_be_held_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode = TextEncoder.encode

    def counted(self: TextEncoder, text: bytes) -> list[int]:
        encoded.append(len(text))
        return encode(self, text)

    async with running(ModelProcess(DRAFT, draft)) as process:
        key = await teach(process, LETTER_TOKENS, bos=0)
        monkeypatch.setattr(TextEncoder, "encode", counted)
        size = len(LETTER_TOKENS)
        async with opened(process, key, vocabulary_token_count=size) as stream:
            for number, count in ((1, 200_000), (2, 8 * CONTEXT)):
                answer = await stream.draft(number, 0, [1] * count, count + 4)
                assert answer.WhichOneof("outcome") == "context_full"
            assert sum(encoded) < 4 * CONTEXT
            assert (await stream.draft(3, 0, [1, 2, 3], 6)).base == 3
            answer = await stream.draft(4, 3, [1] * 1025, 1030)
            assert answer.missing.held_token_count == 0
            assert (await stream.draft(5, 0, [1, 2, 3, 4], 6)).base == 4


async def test_a_second_session_takes_over_what_another_read_of_the_text() -> None:
    async with running(ModelProcess(DRAFT, draft)) as process:
        key = await teach(process, LETTER_TOKENS, bos=0)
        text, size = [0, *(1 + i % 20 for i in range(100))], len(LETTER_TOKENS)
        for number in (1, 2):
            its = {"session_id": session(number), "vocabulary_token_count": size}
            async with opened(process, key, **its) as stream:
                before = process.host.counters.tokens
                await stream.draft(1, 0, text, len(text) + 2)
                read = process.host.counters.tokens - before
        assert read < 20
