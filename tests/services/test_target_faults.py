"""The target may forget, restart and go away: the text continues, or ends with a clear error."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import pytest

from orchestrator.sent_rounds import SentRound, SentRounds
from orchestrator.timings import Timings
from outrider.errors import InvalidRequest
from outrider.messages import Form, PeerState, Round, Rows, Span
from outrider.rpc.statuses import read_error_info
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1 import target_service_pb2 as target_messages
from target_service.servicer import TargetServicer
from tests.support.proxy import Proxy, Way
from tests.support.services import (
    DRAFT,
    TARGET,
    Completion,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    Role,
    Trio,
    all_idle,
    eventually,
    generate,
    request,
    running,
    three_services,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel

LENGTH = 150
PACE = 0.002  # of the target's decodes: leaves time to break things
READY, CONNECTING = messages.PEER_STATE_READY, messages.PEER_STATE_CONNECTING


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def good_draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.98, eos_bias=NEVER)


def assert_right(completion: Completion, asked: messages.GenerateRequest) -> None:
    assert completion.token_ids == written_alone(target(), asked)


@pytest.mark.parametrize("draft_length", [0, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_history_is_sent_again_when_the_target_forgets(
    draft_length: int, temperature: float
) -> None:
    async with three_services(target, good_draft, pace=PACE) as trio:
        asked = request(token_limit=LENGTH, n_max=draft_length, temperature=temperature)
        forgets = [Interruption(count, trio.target.close_sessions) for count in (10, 30, 90)]
        completion = await generate(trio.orchestrator, asked, forgets)
    assert_right(completion, asked)
    assert completion.statistics.target_fault_count >= 1


@pytest.mark.parametrize("draft_length", [0, 4])
async def test_the_text_goes_on_after_a_restart_of_the_target(draft_length: int) -> None:
    async with three_services(target, good_draft, pace=PACE) as trio:
        asked = request(token_limit=LENGTH, n_max=draft_length)
        restarts = [Interruption(count, trio.target.restart) for count in (10, 60)]
        completion = await generate(trio.orchestrator, asked, restarts)
    assert_right(completion, asked)
    assert completion.statistics.target_fault_count >= 1


async def test_the_text_goes_on_after_both_restarted_at_once() -> None:
    async with three_services(target, good_draft, pace=PACE) as trio:

        async def restart_both() -> None:
            await asyncio.gather(trio.target.restart(), trio.draft.restart())

        asked = request(token_limit=LENGTH)
        completion = await generate(trio.orchestrator, asked, [Interruption(40, restart_both)])
    assert_right(completion, asked)


@pytest.mark.parametrize("form", ["distributions", "logits"])
async def test_rejection_goes_on_after_a_restart_of_the_target(form: str) -> None:
    options = {"logits": {"row_form": 3, "rollback": 2}}.get(form, {})
    async with three_services(target, good_draft, pace=PACE) as trio:
        asked = request(token_limit=LENGTH, acceptance=3, **options)
        restarts = [Interruption(30, trio.target.restart), Interruption(60, trio.draft.restart)]
        completion = await generate(trio.orchestrator, asked, restarts)
    assert len(completion.token_ids) == LENGTH


async def test_the_orchestrator_says_what_it_waits_for_and_then_works() -> None:
    async with running(ModelProcess(TARGET, target)) as service:
        await service.kill()
        async with running(OrchestratorProcess(service.address)) as orchestrator:
            [peer] = (await orchestrator.status()).peers
            assert (peer.role, peer.address) == ("target", service.address)
            assert peer.state == CONNECTING
            assert service.address in peer.detail
            waiting = asyncio.create_task(generate(orchestrator, request()))
            await asyncio.sleep(0.2)
            await service.start()
            assert_right(await waiting, request())
            [peer] = (await orchestrator.status()).peers
            assert (peer.state, peer.detail) == (READY, "")


async def test_a_prompt_is_tokenized_after_a_restart_that_was_not_seen_yet() -> None:
    async with (
        running(ModelProcess(TARGET, target)) as service,
        running(OrchestratorProcess(service.address)) as orchestrator,
    ):
        await orchestrator.until_ready()
        asked = messages.GenerateRequest()
        asked.CopyFrom(request())
        asked.prompt_text = "abc"
        before = await generate(orchestrator, asked)
        await service.kill()
        await service.listen(target)
        # As in the moment between the restart and the watch's word of it.
        orchestrator.pool.target.state = PeerState.READY
        waiting = asyncio.create_task(generate(orchestrator, asked))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await service.load()
        assert (await waiting).token_ids == before.token_ids


async def test_a_loading_target_is_named_as_loading() -> None:
    service = ModelProcess(TARGET, target)
    await service.listen(target)
    service.model = target()
    async with running(OrchestratorProcess(service.address)) as orchestrator:

        async def says_loading() -> bool:
            [peer] = (await orchestrator.status()).peers
            return peer.state == messages.PEER_STATE_LOADING and "loading" in peer.detail

        await eventually(says_loading)
        service.host.start()
        await eventually(service.host.loaded.done)
    await service.close()


async def test_a_target_away_past_the_deadline_keeps_what_was_streamed() -> None:
    async with three_services(target, good_draft, pace=PACE) as trio:
        asked, got = request(token_limit=LENGTH), Completion()
        begin = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            killed = [Interruption(40, trio.target.kill)]
            await generate(trio.orchestrator, asked, killed, into=got, timeout=2.0)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "target" in (caught.value.details() or "")
    assert time.monotonic() - begin < 5
    assert len(got.token_ids) >= 40
    assert got.token_ids == written_alone(target(), asked)[: len(got.token_ids)]


async def test_a_target_that_never_comes_is_unavailable_at_the_deadline() -> None:
    async with running(OrchestratorProcess("127.0.0.1:1")) as orchestrator:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(orchestrator, request(), timeout=0.5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


# --- repeating ---


async def say_twice(way: Way, message: bytes) -> AsyncIterator[bytes]:
    """Pass on every message two times."""
    yield message
    yield message


@pytest.mark.fault(
    "crash",
    "What lies between repeats the message that opens a stream to a target or a draft",
    before="the target refused it as a mistake: the text ended with an internal error",
    now="the same message once more says nothing new, as a round never did; one that opens the "
    "stream otherwise is refused with its place in it",
)
@pytest.mark.parametrize("draft_length", [0, 4])
async def test_a_link_that_says_everything_twice_changes_nothing(draft_length: int) -> None:
    async with (
        running(ModelProcess(TARGET, target)) as verifier,
        running(ModelProcess(DRAFT, good_draft)) as drafter,
        running(Proxy(verifier.address, "Verify", lambda: say_twice)) as up,
        running(Proxy(drafter.address, "Draft", lambda: say_twice)) as down,
        running(OrchestratorProcess(up.address, down.address)) as orchestrator,
    ):
        await orchestrator.until_ready()
        asked = request(token_limit=60, n_max=draft_length)
        completion = await generate(orchestrator, asked)
        assert_right(completion, asked)
        assert completion.statistics.target_fault_count == 0


# --- cancelling ---


async def start_and_cancel(trio: Trio, asked: messages.GenerateRequest, after: int) -> Completion:
    """Cancel a generation once it has come to some tokens."""
    completion = Completion()
    call = trio.orchestrator.stub.Generate(asked, timeout=20)
    async for response in call:
        completion.add(response)
        if len(completion.token_ids) >= after:
            break
    call.cancel()
    return completion


@pytest.mark.parametrize("draft_length", [0, 8])
async def test_cancelling_stops_both_services_within_one_decode(draft_length: int) -> None:
    def slow() -> ToyModel:
        return toy(seed=1, eos_bias=NEVER, context=1024)

    def slow_draft() -> ToyModel:
        return toy(seed=2, eos_bias=NEVER, context=1024)

    async with three_services(slow, slow_draft, pace=0.02) as trio:
        trio.draft.model.step_seconds = 0.02
        asked = request(token_limit=900, n_max=draft_length)
        await start_and_cancel(trio, asked, after=5)
        before = trio.target.decode_count, trio.draft.decode_count
        await eventually(partial(all_idle, trio.target, trio.draft))
        await asyncio.sleep(0.2)
        # One in flight when the call was cancelled, one that was merged already.
        assert trio.target.decode_count <= before[0] + 2
        assert trio.draft.decode_count <= before[1] + 2
        assert (await trio.orchestrator.status()).active_generation_count == 0


async def test_cancelling_a_long_prompt_stops_between_its_chunks() -> None:
    def slow() -> ToyModel:
        # 2000 tokens in chunks of 64 take more than half a second.
        return toy(seed=1, context=2048, order=8, batch_rows=64)

    async with running(ModelProcess(TARGET, slow)) as service:
        service.model.step_seconds = 0.02
        async with running(OrchestratorProcess(service.address)) as orchestrator:
            asked = request(prompt_tokens=[5] * 2000)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await generate(orchestrator, asked, timeout=0.3)
            await eventually(partial(all_idle, service))
            done = service.decode_count
            await asyncio.sleep(0.1)
            # One was in flight when the call was cancelled.
            assert service.decode_count <= done + 1 < 30


async def test_cancelled_generations_leave_room_for_others() -> None:
    """More are cancelled, at all kinds of moments, than there are sequences."""
    async with three_services(target, good_draft, pace=PACE) as trio:
        for i in range(24):
            await start_and_cancel(trio, request(seed=i, token_limit=LENGTH), after=i % 8)
        await eventually(partial(all_idle, trio.target, trio.draft))
        assert (await trio.orchestrator.status()).active_generation_count == 0
        asked = [request(seed=seed, token_limit=20) for seed in range(4)]
        completions = await asyncio.gather(*(generate(trio.orchestrator, a) for a in asked))
        for one, completion in zip(asked, completions, strict=True):
            assert_right(completion, one)


async def test_a_client_that_does_not_read_can_be_cancelled() -> None:
    async with three_services(target, good_draft) as trio:
        calls = [trio.orchestrator.stub.Generate(request(token_limit=LENGTH)) for _ in range(4)]
        await asyncio.sleep(0.1)
        for call in calls:
            call.cancel()
        await eventually(partial(all_idle, trio.target, trio.draft))

        async def none_active() -> bool:
            return (await trio.orchestrator.status()).active_generation_count == 0

        await eventually(none_active)


async def test_finished_generations_leave_no_open_sessions() -> None:
    async with three_services(target, good_draft) as trio:
        for start in range(0, 40, 8):
            asked = [request(seed=start + i, token_limit=10) for i in range(8)]
            await asyncio.gather(*(generate(trio.orchestrator, a) for a in asked))
        await eventually(partial(all_idle, trio.target, trio.draft))


async def test_generations_over_the_limit_are_refused_at_once() -> None:
    async with three_services(target, good_draft, pace=PACE, generations=1) as trio:
        first = asyncio.create_task(generate(trio.orchestrator, request(token_limit=LENGTH)))
        await asyncio.sleep(0.1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(trio.orchestrator, request())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert_right(await first, request(token_limit=LENGTH))


async def test_a_failing_decode_is_not_the_end() -> None:
    """llama_decode fails once: the round is asked again."""
    from outrider.errors import DecodeFailed

    failures = [True]

    def fail_once(chunks: object) -> None:
        if failures:
            failures.clear()
            raise DecodeFailed("once")

    async with three_services(target, good_draft, pace=PACE) as trio:

        async def break_decode() -> None:
            trio.target.model.before_decode = fail_once

        asked = request(token_limit=LENGTH)
        completion = await generate(trio.orchestrator, asked, [Interruption(20, break_decode)])
    assert not failures
    assert_right(completion, asked)


async def test_a_service_stops_at_once_while_idle() -> None:
    async with running(ModelProcess(DRAFT, good_draft)) as service:
        for _ in range(10):
            begin = time.monotonic()
            await service.kill()
            assert time.monotonic() - begin < 5
            await service.start()


def test_a_round_that_gave_no_survivals_is_answered_whole_or_not_at_all() -> None:
    pinned = SentRound(Round(1, Span(0, [5]), [6, 7], Form.SAMPLED), 0.0)
    cut = target_messages.Rows(token_ids=[6, 7], answered_row_count=2)
    with pytest.raises(InvalidRequest):
        pinned.take(cut, 100)
    free = SentRound(Round(1, Span(0, [5]), [6, 7], Form.SAMPLED, survivals=b"\x80\x40"), 0.0)
    assert free.take(cut, 100) == Rows([6, 7], [], [], [], [], [])


def test_rows_to_judge_by_end_where_nothing_may_follow_and_are_of_the_whole_draft() -> None:
    sent = SentRounds(100, Timings(0.0), lambda count: 1.0 / count)
    sent.note_sent(Round(1, Span(0, [5]), [6, 7, 8], Form.DISTRIBUTIONS), 0.0)
    rows = target_messages.Rows(distributions=[_ROW] * 2, answered_row_count=2)
    answer = sent.read_rows(says(rows), 1.0, length=1)
    assert answer is not None
    assert (len(answer.rows), answer.drafted, answer.decode_count) == (2, 3, 1)


def says(rows: target_messages.Rows, **fields: Any) -> target_messages.VerifyResponse:
    return target_messages.VerifyResponse(round=1, rows=rows, **fields)


def weighing(*weights: tuple[int, float]) -> target_messages.Rows:
    row = target_messages.RowDistribution(
        token_ids=[each for each, _ in weights], weights=[each for _, each in weights]
    )
    return target_messages.Rows(distributions=[row])


_IDS = target_messages.Rows(token_ids=[5])
_ROW = target_messages.RowDistribution(token_ids=[5], weights=[1.0])
_ROWS = target_messages.Rows(distributions=[_ROW])
REJECTION = {"acceptance": common.ACCEPTANCE_RULE_REJECTION}


@pytest.mark.fault(
    "crash",
    "A target answers a round without rows, or with rows, ids, times or counts that cannot be",
    before="the generation ended with an internal error, or waited for its deadline",
    now="it continues at another target, or a few times at this one; then it ends with "
    "DECODE_FAILED, which says what the target sent that cannot be",
)
@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (says(target_messages.Rows(), position=4), {}),
        (says(target_messages.Rows()), {}),
        (says(_ROWS), {}),
        (says(_ROWS, position=4), {}),
        (says(_IDS), REJECTION),
        (says(_IDS, position=4), REJECTION),
        (says(target_messages.Rows(), position=4), REJECTION),
        (says(target_messages.Rows(token_ids=[5, 6]), position=4), REJECTION),
        (says(target_messages.Rows(token_ids=[-1])), {}),
        (says(target_messages.Rows(token_ids=[64])), {}),
        (says(target_messages.Rows(token_ids=[2**31 - 1]), position=4), {}),
        (says(weighing((64, 1.0))), REJECTION),
        (says(weighing((5, math.nan))), REJECTION),
        (says(weighing((5, -1.0), (6, 2.0))), REJECTION),
        (says(_IDS, service_time=common.ServiceTime(decode_us=-1)), {}),
        (says(_IDS, service_time=common.ServiceTime(step_count=-1)), {}),
        (says(_IDS, service_time=common.ServiceTime(step_count=2**31 - 1)), {}),
        (says(_IDS, service_time=common.ServiceTime(attended_token_count=-1)), {}),
        (says(_IDS, cached_token_count=-1), {}),
        (says(_IDS, cached_token_count=5), {}),
        (says(_IDS, position=-1), {}),
    ],
)
async def test_a_target_that_sends_other_rows_ends_the_generation_by_name(
    answer: target_messages.VerifyResponse, rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.05)

    class SendsOthers(TargetServicer):
        async def Verify(self, request_iterator: Any, context: Any) -> None:
            async for each in request_iterator:
                if each.WhichOneof("request") == "round":
                    reply = target_messages.VerifyResponse()
                    reply.CopyFrom(answer)
                    reply.round = each.round.round
                    await context.write(reply)

    role = Role("Target", partial(SendsOthers, alias=""), TARGET.register, TARGET.stub)
    asked = request(prompt_tokens=[0, 12, 40, 7], token_limit=8, **rule)
    async with (
        running(ModelProcess(role, target)) as process,
        running(OrchestratorProcess(process.address)) as orchestrator,
    ):
        await orchestrator.until_ready()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await generate(orchestrator, asked, timeout=60.0)
    info = read_error_info(failure.value.trailing_metadata())
    assert info is not None and info.reason == "DECODE_FAILED"
    assert "the target sent what cannot be" in (failure.value.details() or "")
