"""Drafts from the text itself, before a model and without one: the text stays, tokens stand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from orchestrator.peers import check_description
from outrider.descriptions import check_model
from outrider.errors import InvalidRequest
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as draft_messages
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.services import (
    DRAFT,
    DRAFT_WITH_SUFFIXES,
    PATIENCE,
    TARGET,
    Completion,
    Gate,
    Interruption,
    LookupProcess,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.streams import DraftStream, RawStream, opening, session
from tests.support.toy import NEVER, ToyModel

DRAFTED = messages.TOKEN_ORIGIN_DRAFTED
LENGTH = 120
RULES = (
    common.ACCEPTANCE_RULE_MATCH,
    common.ACCEPTANCE_RULE_SHARED_NOISE,
    common.ACCEPTANCE_RULE_REJECTION,
)


def target() -> ToyModel:
    """Return a target whose greedy text comes to repeat itself: two tokens make the next."""
    return toy(seed=1, order=2, vocabulary_size=24, eos_bias=NEVER)


def poor_draft() -> ToyModel:
    """Return a draft that is seldom right."""
    return toy(seed=2, order=2, vocabulary_size=24, like=1, agreement=0.5, eos_bias=NEVER)


def asked_for(**options: Any) -> messages.GenerateRequest:
    return request(**{"prompt": "abc", "temperature": 0.0, "token_limit": LENGTH, **options})


def assert_right(completion: Completion, asked: messages.GenerateRequest) -> None:
    assert completion.token_ids == written_alone(target(), asked)


@contextlib.asynccontextmanager
async def over(draft: Any, **options: Any) -> AsyncIterator[OrchestratorProcess]:
    """Start a target and an orchestrator beside a draft that runs."""
    async with (
        running(ModelProcess(TARGET, target)) as process,
        running(OrchestratorProcess(process.address, draft.address, **options)) as orchestrator,
    ):
        await orchestrator.until_ready()
        yield orchestrator


# --- before the model ---


async def test_local_sources_save_the_model_decodes_and_leave_the_text() -> None:
    asked = asked_for()
    drafted, decodes = {}, {}
    for role in (DRAFT, DRAFT_WITH_SUFFIXES):
        async with running(ModelProcess(role, poor_draft)) as draft, over(draft) as orchestrator:
            completion = await generate(orchestrator, asked)
            assert_right(completion, asked)
            drafted[role.make_servicer] = completion.origin_count(DRAFTED)
            decodes[role.make_servicer] = draft.decode_count
    (before, after), (alone, beside) = drafted.values(), decodes.values()
    assert after > before + 20
    assert beside < alone / 2


async def test_under_every_rule_local_sources_leave_the_text() -> None:
    """Under rejection that is the text of the model's own drafts: it drafts alone."""
    warm = [asked_for(temperature=0.3, token_limit=40, acceptance=rule) for rule in RULES]
    texts = []
    for role in (DRAFT, DRAFT_WITH_SUFFIXES):
        async with running(ModelProcess(role, poor_draft)) as draft, over(draft) as orchestrator:
            texts.append([(await generate(orchestrator, asked)).token_ids for asked in warm])
    assert texts[0] == texts[1]
    assert texts[0][:2] == 2 * [written_alone(target(), warm[0])]


async def test_a_draft_with_local_sources_that_is_restarted_goes_on() -> None:
    asked = asked_for()
    async with (
        running(ModelProcess(DRAFT_WITH_SUFFIXES, poor_draft)) as draft,
        over(draft) as orchestrator,
    ):
        completion = await generate(orchestrator, asked, [Interruption(40, draft.restart)])
        assert_right(completion, asked)


async def test_what_a_model_reads_after_it_answered_is_cut_without_a_word() -> None:
    async with running(ModelProcess(DRAFT_WITH_SUFFIXES, target)) as draft:
        gate = Gate(draft.model)
        text = [0, *range(4, 24)] * 9  # read in two decodes
        async with DraftStream(draft) as stream:
            frame = await stream.draft(1, 0, text, len(text) + 6)
            assert list(frame.token_ids) == text[:6]
            await gate.reached()  # the model has begun to read, behind what it answered
            cut = common.RollbackRequest(
                session_id=session(), attempt=1, round=1, token_count=len(text)
            )
            call = asyncio.ensure_future(draft.stub.Rollback(cut, timeout=PATIENCE))
            await eventually(lambda: not draft.host._inbox.empty())
            await gate.open()
            await call
            frame = await stream.draft(2, len(text), text[:2], len(text) + 10)
            assert list(frame.token_ids) == text[6:10], "and no Busy before it"


# --- without a model ---


async def test_a_draft_without_a_model_drafts_for_the_target_it_is_paired_with() -> None:
    asked = asked_for()
    async with running(LookupProcess()) as draft, over(draft) as orchestrator:
        completion = await generate(orchestrator, asked)
        assert_right(completion, asked)
        assert completion.origin_count(DRAFTED) > LENGTH / 4
        peers = (await orchestrator.status()).peers
        assert [peer.model.model_name for peer in peers] == ["toy-1", "lookup"]


async def test_a_draft_without_a_model_can_join() -> None:
    asked = asked_for()
    async with (
        running(ModelProcess(TARGET, target)) as process,
        running(OrchestratorProcess(process.address, accept_drafts=True)) as orchestrator,
    ):
        await orchestrator.until_ready()
        async with running(LookupProcess(join=orchestrator.address)):
            await eventually(lambda: len(orchestrator.pool.drafts) == 1)
            completion = await generate(orchestrator, asked)
            assert_right(completion, asked)
            assert completion.origin_count(DRAFTED) > LENGTH / 4
        await eventually(lambda: not orchestrator.pool.drafts)


async def test_a_draft_with_a_model_goes_before_one_without() -> None:
    asked = asked_for(token_limit=40)
    async with (
        running(ModelProcess(DRAFT, target)) as draft,
        over(draft, accept_drafts=True) as orchestrator,
        running(LookupProcess(join=orchestrator.address)),
    ):
        await eventually(lambda: len(orchestrator.pool.drafts) == 2)
        for _ in range(2):
            before = draft.decode_count
            assert_right(await generate(orchestrator, asked), asked)
            assert draft.decode_count > before
        await draft.kill()
        completion = await generate(orchestrator, asked_for())
        assert_right(completion, asked_for())
        assert completion.origin_count(DRAFTED) > 0, "the other one took over"


async def test_rollback_calls_and_reported_candidates_go_without_a_model() -> None:
    asked = asked_for(rollback=messages.ROLLBACK_MODE_RPC)
    asked.round_detail = messages.ROUND_DETAIL_CANDIDATES
    async with running(LookupProcess()) as draft, over(draft) as orchestrator:
        completion = await generate(orchestrator, asked)
        assert_right(completion, asked)
        assert completion.statistics.draft_fault_count == 0
        assert completion.origin_count(DRAFTED) > 0


async def test_a_draft_without_a_model_answers_what_it_cannot_carry_out() -> None:
    async with running(LookupProcess()) as draft, RawStream(draft.stub.Draft()) as stream:
        await stream.send(draft_messages.DraftRequest(open=opening()))

        async def answer(position: int, ids: list[int], number: int) -> Any:
            span = common.TokenSpan(position=position, token_ids=ids)
            order = draft_messages.DraftOrder(order=number, committed=span, draft_until=8)
            await stream.send(draft_messages.DraftRequest(order=order))
            return await stream.receive()

        assert (await answer(5, [9], 1)).missing.held_token_count == 0
        assert list((await answer(0, [4, 5, 6, 4, 5], 2)).frame.token_ids) == [6, 4, 5]
        await stream.send(draft_messages.DraftRequest(open=opening()))  # once more: nothing new
        assert (await answer(9, [9], 3)).missing.held_token_count == 8
        await stream.send(draft_messages.DraftRequest(open=opening(attempt=2)))
        assert await stream.end() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_newer_attempt_takes_a_session_without_a_model() -> None:
    async with running(LookupProcess()) as draft:
        async with RawStream(draft.stub.Draft()) as old, RawStream(draft.stub.Draft()) as new:
            await old.send(draft_messages.DraftRequest(open=opening()))
            await eventually(lambda: len(draft.servicer._owners) == 1)
            await new.send(draft_messages.DraftRequest(open=opening(attempt=2)))
            assert await old.end() is grpc.StatusCode.ABORTED
        await eventually(lambda: len(draft.servicer._owners) == 0)


async def test_sessions_without_a_model_work_side_by_side() -> None:
    asked = [asked_for(seed=seed, temperature=0.5, token_limit=60) for seed in range(3)]
    async with running(LookupProcess()) as draft, over(draft) as orchestrator:
        completions = await asyncio.gather(*(generate(orchestrator, each) for each in asked))
        for completion, each in zip(completions, asked, strict=True):
            assert_right(completion, each)


# --- the vocabulary ---


async def test_an_older_orchestrator_refuses_it_by_name() -> None:
    """It does not know `fits_any`, and sees a vocabulary without tokens."""
    async with running(LookupProcess()) as draft:
        model = draft.servicer.description()
        check_model(model)
        model.vocabulary.ClearField("fits_any")
        with pytest.raises(InvalidRequest, match=r"vocabulary\.token_count: 0 is not in"):
            check_model(model)


async def test_only_a_draft_fits_any_vocabulary_and_says_nothing_else_then() -> None:
    async with running(LookupProcess()) as draft:
        model = draft.servicer.description()
        check_description("draft", model)
        with pytest.raises(InvalidRequest, match="a target needs one of its own"):
            check_description("target", model)
        model.vocabulary.token_count = 64
        with pytest.raises(InvalidRequest, match="fits_any"):
            check_description("draft", model)


async def test_another_model_than_the_one_that_is_meant_is_refused() -> None:
    async with running(LookupProcess()) as draft:
        right = draft.servicer.description().identity
        for identity, code in ((right, grpc.StatusCode.OK), (bytes(32), None)):
            meant = common.ListVocabularyRequest(
                model=common.ModelReference(identity=identity, name="it")
            )
            call = draft.stub.ListVocabulary(meant, timeout=PATIENCE)
            if code is None:
                with pytest.raises(grpc.aio.AioRpcError, match="it"):
                    await call.read()
            else:
                assert await call.read() is grpc.aio.EOF
