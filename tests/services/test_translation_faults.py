"""What a caller or a peer can do to a draft that translates, and to who asks it to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from draft_service.joining import _Membership
from draft_service.translations import VocabularyLesson
from orchestrator import joined_drafts, peers
from outrider.errors import EngineBusy, InvalidRequest
from outrider.handshake import digest
from outrider.text_encoder import TextEncoder
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_registry_service_pb2 as registry
from outrider.v1 import draft_service_pb2 as messages
from outrider.v1.draft_registry_service_pb2_grpc import DraftRegistryServiceStub
from outrider.vocabulary_pieces import PeerVocabulary, lesson, vocabulary_key
from tests.support.renamed import Renamed
from tests.support.services import (
    CONTEXT,
    DRAFT,
    PATIENCE,
    TARGET,
    JoiningDraft,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    running,
    toy,
)
from tests.support.streams import DraftStream, session
from tests.support.toy import NEVER, ToyModel

LETTERS = 32
MATCH = common.ACCEPTANCE_RULE_MATCH
REJECTION = common.ACCEPTANCE_RULE_REJECTION


def vocabulary(texts: Sequence[bytes], bos: int = -1) -> tuple[common.Vocabulary, PeerVocabulary]:
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
    return described, PeerVocabulary(list(texts), names, {}, 8)


async def teach(process: ModelProcess, texts: Sequence[bytes], bos: int = -1) -> bytes:
    """Send a draft a vocabulary; return its key."""
    described, its = vocabulary(texts, bos)
    key = vocabulary_key(described, its)
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


@pytest.mark.parametrize(
    "texts", [LETTER_TOKENS, [b"", *(b"x%c" % c for c in b"abcdefghijklmnopqrst")]]
)
async def test_a_second_session_takes_over_what_another_read_of_the_text(
    texts: list[bytes],
) -> None:
    async with running(ModelProcess(DRAFT, without_bos)) as process:
        key = await teach(process, texts)
        text, size = [1 + i % 20 for i in range(60)], len(texts)
        for number in (1, 2):
            its = {"session_id": session(number), "vocabulary_token_count": size}
            async with opened(process, key, **its) as stream:
                before = process.host.counters.tokens
                await stream.draft(1, 0, text, len(text) + 2)
                read = process.host.counters.tokens - before
        assert read < 20


async def test_a_rollback_by_the_targets_count_leaves_the_drafts_own_tokens() -> None:
    async with running(ModelProcess(DRAFT, draft)) as process:
        key = await teach(process, [b"", b"ab", b"cd"])
        async with opened(process, key, vocabulary_token_count=3) as stream:
            await stream.draft(1, 0, [1, 2, 1, 2], 4)  # twice as many to the draft
            for text in ([1, 2, 1, 2], [1, 2, 1, 2, 1]):
                await stream.draft(len(text), 0, text, len(text) + 1)
            cut = common.RollbackRequest(
                session_id=session(), token_count=4, attempt=1, round=2**31 - 1
            )
            assert (await process.stub.Rollback(cut)).held_token_count > 8


# Learning


def introduced(texts: Sequence[bytes], key: bytes = b"") -> list[messages.LearnVocabularyRequest]:
    """Return the messages of a lesson, under its own key or another one."""
    described, its = vocabulary(texts)
    return list(lesson(key or vocabulary_key(described, its), described, its))


@pytest.mark.fault(
    "others",
    "a vocabulary that a caller sends a draft under the key of another one",
    before="the draft took it for that one, and drafted junk for every session that named the key",
    now="it is refused: a key is made of all that it stands for",
)
async def test_no_one_can_teach_a_vocabulary_under_the_key_of_another() -> None:
    described, its = vocabulary([b"a", b"b"])
    for texts in ([b"b", b"a"], [b"a", b"c"]):
        async with running(ModelProcess(DRAFT, draft)) as process:
            wrong = introduced(texts, vocabulary_key(described, its))
            call = process.stub.LearnVocabulary(iter(wrong))
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert not process.servicer.description().known_vocabulary_keys


def test_vocabularies_of_the_same_names_and_other_texts_have_other_keys() -> None:
    described, its = vocabulary([b"a", b"b"])
    other = PeerVocabulary([b"a", b"c"], its.names, {}, 8)
    assert vocabulary_key(described, its) != vocabulary_key(described, other)


async def test_a_vocabulary_that_is_known_is_answered_when_it_is_introduced() -> None:
    async with running(ModelProcess(DRAFT, draft)) as process:
        await teach(process, LETTER_TOKENS)
        first, *_ = introduced(LETTER_TOKENS)
        again = await process.stub.LearnVocabulary(iter([first]), timeout=5)
        assert again.shared_token_count
        whole = await process.stub.LearnVocabulary(iter(introduced(LETTER_TOKENS)), timeout=5)
        assert whole == again


@pytest.mark.fault(
    "hang",
    "a vocabulary for a draft whose sequences idle sessions hold",
    before="nothing was measured until these expired: the draft stayed unused for minutes",
    now="they give way; where open ones leave no room, the level is chosen without measuring",
)
@pytest.mark.parametrize("is_open", [False, True])
async def test_a_draft_learns_whatever_other_sessions_hold(is_open: bool) -> None:
    def small() -> ToyModel:
        return toy(vocabulary_size=LETTERS, eos_bias=NEVER, sequence_count=1)

    async with running(ModelProcess(DRAFT, small)) as process:
        async with DraftStream(process) as stream:
            await stream.draft(1, 0, [0, 3, 4, 5], 6)
            if is_open:
                await teach(process, LETTER_TOKENS)
        if not is_open:
            await teach(process, LETTER_TOKENS)
        assert len(process.servicer.description().known_vocabulary_keys) == 1


async def test_vocabularies_of_open_sessions_are_not_forgotten() -> None:
    async with running(ModelProcess(DRAFT, draft)) as process:
        key = await teach(process, LETTER_TOKENS)
        async with opened(process, key, vocabulary_token_count=len(LETTER_TOKENS)) as stream:
            await stream.draft(1, 0, [1, 2], 4)
            for count in range(2, 8):
                await teach(process, LETTER_TOKENS[:count])
            known = process.servicer.description().known_vocabulary_keys
            assert key in known and len(known) == 4
    async with running(ModelProcess(DRAFT, draft)) as process, contextlib.AsyncExitStack() as open_:
        for count in range(2, 6):
            key = await teach(process, LETTER_TOKENS[:count])
            its = {"session_id": session(count), "vocabulary_token_count": count}
            stream = await open_.enter_async_context(opened(process, key, **its))
            await stream.draft(1, 0, [1], 2)
        call = process.stub.LearnVocabulary(iter(introduced(LETTER_TOKENS)))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_ids_that_were_dropped_are_of_the_targets_vocabulary() -> None:
    async with running(ModelProcess(DRAFT, draft)) as process:
        key = await teach(process, LETTER_TOKENS)
        dropped = common.TokenSpan(position=1, token_ids=[500])
        its = {"vocabulary_token_count": 1000, "dropped": dropped}
        async with opened(process, key, **its) as stream:
            await stream.send_order(1, 0, [1, 2], 4)
            assert await stream.end() is grpc.StatusCode.INVALID_ARGUMENT


# The orchestrator's side


def target() -> ToyModel:
    return toy(vocabulary_size=LETTERS, eos_bias=NEVER)


def renamed() -> Renamed:
    return Renamed(toy(seed=2, like=1, agreement=0.98, vocabulary_size=LETTERS, eos_bias=NEVER))


@pytest.mark.fault(
    "restart",
    "a vocabulary that a draft forgot because others sent it theirs",
    before="it was never sent again: the draft was shown as ready and refused every session",
    now="the draft's next description shows it, and it is sent again",
)
@pytest.mark.parametrize("joins", [False, True])
async def test_a_vocabulary_that_was_forgotten_is_sent_again(
    joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "DESCRIBE_SECONDS", 0.05)
    monkeypatch.setattr(joined_drafts, "DESCRIBE_SECONDS", 0.05)
    async with contextlib.AsyncExitStack() as stack:
        process = await stack.enter_async_context(running(ModelProcess(TARGET, target)))
        if joins:
            orchestrator = await stack.enter_async_context(
                running(OrchestratorProcess(process.address, accept_drafts=True))
            )
            its: Any = await stack.enter_async_context(
                running(JoiningDraft(orchestrator.address, renamed))
            )
        else:
            its = await stack.enter_async_context(running(ModelProcess(DRAFT, renamed)))
            orchestrator = await stack.enter_async_context(
                running(OrchestratorProcess(process.address, its.address))
            )
        await orchestrator.until_ready()
        await eventually(lambda: orchestrator.pool.drafts and is_taught(orchestrator))
        [paired] = orchestrator.pool.drafts
        rates = paired.rates
        servicer = its.servicer
        servicer._translations._known.clear()
        await eventually(lambda: paired.vocabulary_key in servicer._translations.keys)
        await eventually(lambda: is_taught(orchestrator))
        assert paired.rates is rates  # what is known of its speed stays


def is_taught(orchestrator: OrchestratorProcess) -> bool:
    return all(d.translation is not None and not d.obstacle() for d in orchestrator.pool.drafts)


@pytest.mark.fault(
    "hang",
    "a draft that joined and left while it was sent a vocabulary",
    before="the lesson went on for ever: with each such draft the orchestrator grew",
    now="it ends with the draft",
)
async def test_a_lesson_ends_with_the_draft() -> None:
    async with (
        running(ModelProcess(TARGET, target)) as process,
        running(OrchestratorProcess(process.address, accept_drafts=True)) as orchestrator,
    ):
        await orchestrator.until_ready()
        async with running(ModelProcess(DRAFT, renamed)) as other:
            described = other.servicer.description()
        call = DraftRegistryServiceStub(orchestrator.channel).Join(timeout=PATIENCE)
        await call.read()
        await call.write(registry.JoinRequest(model=described, process_id=bytes(16)))
        await eventually(lambda: len(orchestrator.pool.drafts) == 1)
        [paired] = orchestrator.pool.drafts
        task = paired._lesson._task
        assert task is not None and not task.done()
        call.cancel()
        await eventually(lambda: not orchestrator.pool.drafts)
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()


async def test_an_answer_to_a_lesson_that_comes_too_late_is_no_fault() -> None:
    async with (
        running(ModelProcess(TARGET, target)) as process,
        running(OrchestratorProcess(process.address, accept_drafts=True)) as orchestrator,
    ):
        await orchestrator.until_ready()
        async with running(ModelProcess(DRAFT, renamed)) as other:
            described = other.servicer.description()
        call = DraftRegistryServiceStub(orchestrator.channel).Join(timeout=PATIENCE)
        await call.read()
        await call.write(registry.JoinRequest(model=described, process_id=bytes(16)))
        await eventually(lambda: len(orchestrator.pool.drafts) == 1)
        learned = messages.LearnVocabularyResponse(level=messages.TRANSLATION_LEVEL_TOKENS)
        for _ in range(2):
            await call.write(registry.JoinRequest(learned=learned))
        await eventually(lambda: is_taught(orchestrator))
        await asyncio.sleep(0.1)
        assert len(orchestrator.pool.drafts) == 1


@pytest.mark.parametrize(
    ("refusal", "is_final"),
    [
        (InvalidRequest("vocabulary", "has a token too many"), True),
        (EngineBusy("open sessions use all vocabularies that are known", 10.0), False),
        (ValueError("a bug"), False),
    ],
    ids=["refused", "busy", "failed"],
)
async def test_why_a_draft_that_joined_does_not_learn_is_shown_at_once(
    refusal: Exception, is_final: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot is not asked again; another one is, and then learns."""
    fails = True
    finish = VocabularyLesson.finish

    async def refused(self: VocabularyLesson) -> messages.LearnVocabularyResponse:
        if fails:
            raise refusal
        return await finish(self)

    monkeypatch.setattr(VocabularyLesson, "finish", refused)
    async with (
        running(ModelProcess(TARGET, target)) as process,
        running(OrchestratorProcess(process.address, accept_drafts=True)) as orchestrator,
    ):
        await orchestrator.until_ready()
        async with running(JoiningDraft(orchestrator.address, renamed)):
            await eventually(lambda: len(orchestrator.pool.drafts) == 1)
            [paired] = orchestrator.pool.drafts
            await eventually(lambda: "does not learn" in paired.obstacle(), 10.0)
            expected = "internal error" if isinstance(refusal, ValueError) else str(refusal)
            assert expected in paired.obstacle()
            fails = False
            if is_final:
                await asyncio.sleep(1.5)
                assert "does not learn" in paired.obstacle()
            else:
                await eventually(lambda: is_taught(orchestrator))


async def test_a_piece_that_is_wrong_ends_a_lesson_once() -> None:
    """All that follows it is for nobody, until another lesson begins."""
    written: list[registry.JoinRequest] = []

    class Call:
        async def write(self, message: registry.JoinRequest) -> None:
            written.append(message)

    async with running(ModelProcess(DRAFT, renamed)) as process:
        unused: Any = None
        membership = _Membership(process.servicer, process.channel, unused, bytes(16))
        described, its = vocabulary([b"a", b"b"])
        introduction, tokens = list(lesson(vocabulary_key(described, its), described, its))
        more = messages.LearnVocabularyRequest(tokens=common.ListVocabularyResponse())
        more.tokens.token_texts.extend([b"a"] * 9)
        call: Any = Call()
        for message in (introduction, more, more, tokens):
            membership._learn(call, message)
        await eventually(lambda: bool(written))
        await asyncio.sleep(0.1)
        [answer] = written
        assert answer.WhichOneof("answer") == "not_learned"
        assert answer.not_learned.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        for message in (introduction, tokens):
            membership._learn(call, message)
        await eventually(lambda: len(written) == 2)
        assert written[1].WhichOneof("answer") == "learned"
