"""Jobs: what was submitted is polled without loss or repetition, cancelled, kept and forgotten."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc
import pytest
import pytest_asyncio

from orchestrator.jobs import Jobs, job_log
from outrider.errors import DecodeFailed, KeyReused
from outrider.messages import FinishReason, Origin, Rule
from outrider.request import Request
from outrider.response import Delta, Event, Finished, Started, Statistics, TextPiece
from outrider.rpc.statuses import read_error_info
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.wire_responses import PAGE_BYTES
from tests.support.services import (
    PATIENCE,
    Completion,
    Trio,
    all_idle,
    eventually,
    generate,
    request,
    three_services,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel


def one_at_a_time() -> int:
    return 1


CANCELLED = messages.FINISH_REASON_CANCELLED


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER, sequence_count=8)


def drafter() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.9, eos_bias=NEVER, sequence_count=8)


@pytest_asyncio.fixture(loop_scope="session")
async def trio() -> AsyncIterator[Trio]:
    async with three_services(target, drafter) as services:
        yield services


async def submit(trio: Trio, asked: messages.GenerateRequest) -> messages.SubmitGenerationResponse:
    submission = messages.SubmitGenerationRequest(request=asked)
    response: messages.SubmitGenerationResponse = await trio.orchestrator.stub.SubmitGeneration(
        submission, timeout=PATIENCE
    )
    return response


async def poll(
    trio: Trio, job_id: str, cursor: int = 0, wait: float = 0.0
) -> messages.PollGenerationResponse:
    asked = messages.PollGenerationRequest(job_id=job_id, cursor=cursor)
    asked.wait_duration.FromMilliseconds(int(1e3 * wait))
    response: messages.PollGenerationResponse = await trio.orchestrator.stub.PollGeneration(
        asked, timeout=PATIENCE
    )
    return response


async def cancel(trio: Trio, job_id: str) -> None:
    asked = messages.CancelGenerationRequest(job_id=job_id)
    await trio.orchestrator.stub.CancelGeneration(asked, timeout=PATIENCE)


class Client:
    """Polls one job; keeps what came, and fails where anything comes twice or after the end."""

    def __init__(self, trio: Trio, job_id: str) -> None:
        self.completion = Completion()
        self.cursor = 0
        self.finished = False
        self._trio = trio
        self._job_id = job_id

    async def poll(self, wait: float = 0.0) -> None:
        assert not self.finished
        response = await poll(self._trio, self._job_id, self.cursor, wait)
        assert response.next_cursor == self.cursor + len(response.responses)
        self.cursor, self.finished = response.next_cursor, response.finished
        for each in response.responses:
            assert self.completion.finished is None, "something came behind the end"
            self.completion.add(each)
        assert self.finished == (self.completion.finished is not None)

    async def to_the_end(self) -> Completion:
        while not self.finished:
            await self.poll(wait=5.0)
        return self.completion


async def test_32_jobs_polled_in_random_order_and_one_in_four_cancelled(trio: Trio) -> None:
    order = random.Random(7)
    asked = [request(seed=seed, token_limit=40) for seed in range(32)]
    submitted = await asyncio.gather(*(submit(trio, each) for each in asked))
    assert len({each.job_id for each in submitted}) == 32
    clients = [Client(trio, each.job_id) for each in submitted]
    doomed = set(order.sample(range(32), 8))
    while waiting := [i for i in range(32) if not clients[i].finished]:
        i = order.choice(waiting)
        if i in doomed and order.random() < 0.3:
            await cancel(trio, submitted[i].job_id)
        await clients[i].poll(wait=order.choice([0.0, 0.02]))
    cancelled = 0
    for i, client in enumerate(clients):
        expected = written_alone(target(), asked[i])
        completion = client.completion
        assert completion.finished is not None
        if completion.finished.reason == CANCELLED:
            cancelled += 1
            assert i in doomed
            assert completion.token_ids == expected[: len(completion.token_ids)]
        else:
            assert completion.token_ids == expected
    assert cancelled > 0
    await eventually(partial(all_idle, trio.target, trio.draft))
    assert (await trio.orchestrator.status()).active_generation_count == 0


async def test_a_job_is_told_at_once_and_brings_the_same_text_as_a_stream(trio: Trio) -> None:
    asked = request("a prompt that is worth to be copied", seed=3, token_limit=30)
    for cached in (0, 16):
        submitted = await submit(trio, asked)
        assert list(submitted.started.prompt_token_ids)
        assert submitted.started.context_token_count == 256
        assert submitted.started.token_limit == 30
        assert submitted.started.cached_token_count >= cached
        assert bool(submitted.started.cached_token_count) == bool(cached)
        completion = await Client(trio, submitted.job_id).to_the_end()
        assert completion.token_ids == written_alone(target(), asked)


async def test_the_same_cursor_brings_the_same_again(trio: Trio) -> None:
    submitted = await submit(trio, request(seed=4, token_limit=20))
    client = Client(trio, submitted.job_id)
    await client.to_the_end()
    first = await poll(trio, submitted.job_id, client.cursor)
    again = await poll(trio, submitted.job_id, client.cursor)
    assert first == again
    assert first.finished and not first.responses
    # What came before the cursor was taken, and is forgotten.
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await poll(trio, submitted.job_id, 1)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_cancelled_job_ends_with_one_last_message_and_frees_both_services(
    trio: Trio,
) -> None:
    submitted = await submit(trio, request(token_limit=-1))
    client = Client(trio, submitted.job_id)
    await client.poll(wait=5.0)
    for _ in range(2):
        await cancel(trio, submitted.job_id)
    completion = await client.to_the_end()
    assert completion.finished is not None
    assert completion.finished.reason == CANCELLED
    await eventually(partial(all_idle, trio.target, trio.draft))


@pytest.mark.parametrize("error", [DecodeFailed("on purpose"), ValueError("a prompt")])
async def test_a_failed_job_says_why_and_no_more(error: Exception) -> None:
    async def failing() -> AsyncIterator[Event]:
        yield Started((), 0, Rule.MATCH)
        yield Delta((1,), (Origin.PLAIN,), ())
        raise error

    jobs = Jobs(lambda *_: failing(), one_at_a_time, job_log(1, 60.0))  # type: ignore[arg-type,return-value]
    job_id, _ = await jobs.submit(Request("x"))
    polled = messages.PollGenerationResponse()
    while not polled.finished:
        polled = await jobs.poll(messages.PollGenerationRequest(job_id=job_id))
        await asyncio.sleep(0)
    assert [each.WhichOneof("event") for each in polled.responses] == ["delta"]
    assert polled.error.reason == "DECODE_FAILED"
    assert "prompt" not in polled.error.message


@pytest.mark.parametrize("method", ["PollGeneration", "CancelGeneration"])
async def test_an_unknown_job_is_not_found(trio: Trio, method: str) -> None:
    asked = {
        "PollGeneration": messages.PollGenerationRequest(job_id="nobody"),
        "CancelGeneration": messages.CancelGenerationRequest(job_id="nobody"),
    }[method]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await getattr(trio.orchestrator.stub, method)(asked, timeout=PATIENCE)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_bad_request_is_refused_when_it_is_submitted(trio: Trio) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await submit(trio, request(temperature=-1.0))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await trio.orchestrator.status()).job_count == 0


async def responses(count: int, pause: float = 0.0) -> AsyncIterator[Event]:
    yield Started((), 1, Rule.MATCH)
    for _ in range(count):
        await asyncio.sleep(pause)
        yield Delta((1,), (Origin.PLAIN,), ())
    yield Finished(FinishReason.UNSPECIFIED, Statistics())


async def test_results_are_kept_for_a_time_and_only_so_many() -> None:
    jobs = Jobs(lambda *_: responses(1), one_at_a_time, job_log(2, 0.05))  # type: ignore[arg-type,return-value]
    ids = [(await jobs.submit(Request("x"), who))[0] for who in "ab"]
    await asyncio.sleep(0.01)
    # The third takes the place of the one that nobody looked at for longest.
    third, _ = await jobs.submit(Request("x"), "c")
    assert len(jobs) == 2
    assert (await jobs.poll(messages.PollGenerationRequest(job_id=ids[1]))).finished
    await asyncio.sleep(0.1)
    assert len(jobs) == 0
    for job_id in (*ids, third):
        with pytest.raises(Exception, match="no job"):
            await jobs.poll(messages.PollGenerationRequest(job_id=job_id))


async def test_running_jobs_are_never_dropped_for_others() -> None:
    jobs = Jobs(lambda *_: responses(1, pause=9.0), one_at_a_time, job_log(1, 60.0))  # type: ignore[arg-type,return-value]
    await jobs.submit(Request("x"))
    with pytest.raises(Exception, match="in flight"):
        await jobs.submit(Request("x"), "another")
    await jobs.close()


async def test_a_job_cancelled_before_it_began_is_over_too() -> None:
    jobs = Jobs(lambda *_: responses(1, pause=9.0), one_at_a_time, job_log(1, 60.0))  # type: ignore[arg-type,return-value]
    job_id, _ = await jobs.submit(Request("x"))
    await jobs.cancel(job_id)
    polled = await jobs.poll(messages.PollGenerationRequest(job_id=job_id))
    assert polled.finished
    assert polled.responses[-1].finished.reason == CANCELLED


# other callers, and large results


@pytest.mark.fault(
    "crash",
    "a job whose results are larger than a gRPC message",
    before="no poll could ever bring them, from 16 MB on",
    now="a poll brings a page of 2 MiB",
)
async def test_a_result_beyond_a_message_is_polled_in_pages() -> None:
    piece = Delta((), (), (TextPiece("x" * 2**20, Origin.PLAIN),))

    async def large() -> AsyncIterator[Event]:
        yield Started((), 0, Rule.MATCH)
        for _ in range(20):
            yield piece

    jobs = Jobs(lambda *_: large(), one_at_a_time, job_log(1, 60.0))  # type: ignore[arg-type,return-value]
    job_id, _ = await jobs.submit(Request("x"))
    cursor, count, finished = 0, 0, False
    while not finished:
        polled = await jobs.poll(messages.PollGenerationRequest(job_id=job_id, cursor=cursor))
        assert len(polled.responses) > 0 and polled.ByteSize() < PAGE_BYTES + 1000
        count += len(polled.responses)
        cursor, finished = polled.next_cursor, polled.finished
    assert count == 20


async def test_results_that_nobody_takes_are_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.jobs.MAX_WAITING_BYTES", 100)

    async def many() -> AsyncIterator[Event]:
        yield Started((), 0, Rule.MATCH)
        for _ in range(1000):
            yield Delta((1,), (Origin.PLAIN,), ())

    jobs = Jobs(lambda *_: many(), one_at_a_time, job_log(1, 60.0))  # type: ignore[arg-type,return-value]
    job_id, _ = await jobs.submit(Request("x"))
    polled = await jobs.poll(messages.PollGenerationRequest(job_id=job_id))
    assert polled.finished and polled.error.reason == "ENGINE_BUSY"
    assert len(polled.responses) < 100


@pytest.mark.fault(
    "others",
    "many jobs of one caller, and somebody who waits for an answer",
    before="64 jobs shut everybody out until they were over",
    now="jobs leave a quarter of the sessions free, and the callers of jobs take turns",
)
async def test_many_jobs_of_one_caller_leave_room_for_everybody_else() -> None:
    async with three_services(target, drafter, generations=16) as trio:
        endless = request(token_limit=-1)
        endless.overflow.shift = True
        for _ in range(40):
            await submit(trio, endless)
        completion = await generate(trio.orchestrator, request(token_limit=8))
        assert len(completion.token_ids) == 8
        assert (await trio.orchestrator.status()).active_generation_count == 6
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            for _ in range(40):
                await submit(trio, endless)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_job_that_waits_is_cancelled_and_the_next_gets_its_turn() -> None:
    async with three_services(target, drafter, jobs=256) as trio:
        endless = request(token_limit=-1)
        endless.overflow.shift = True
        running = [await submit(trio, endless) for _ in range(6)]
        waiting = [await submit(trio, request(token_limit=5)) for _ in range(2)]
        await cancel(trio, waiting[0].job_id)
        polled = await poll(trio, waiting[0].job_id)
        assert polled.finished
        assert not (await poll(trio, waiting[1].job_id)).responses
        await cancel(trio, running[0].job_id)
        completion = await Client(trio, waiting[1].job_id).to_the_end()
        assert len(completion.token_ids) == 5


# --- submitted again with the same key ---


def keyed(asked: messages.GenerateRequest, key: str) -> messages.SubmitGenerationRequest:
    return messages.SubmitGenerationRequest(request=asked, idempotency_key=key)


async def test_a_job_submitted_again_with_its_key_is_the_same_job(trio: Trio) -> None:
    stub, asked = trio.orchestrator.stub, request(token_limit=12)
    first = await stub.SubmitGeneration(keyed(asked, "same"), timeout=PATIENCE)
    again = await stub.SubmitGeneration(keyed(asked, "same"), timeout=PATIENCE)
    others = [
        await stub.SubmitGeneration(keyed(asked, "another"), timeout=PATIENCE),
        await submit(trio, asked),
        await submit(trio, asked),
    ]
    assert again == first
    assert len({each.job_id for each in (first, *others)}) == 4
    for each in (first, *others):
        await cancel(trio, each.job_id)


async def test_calls_with_one_key_at_once_start_one_job(trio: Trio) -> None:
    stub, asked = trio.orchestrator.stub, request(token_limit=12)
    calls = [stub.SubmitGeneration(keyed(asked, "at once"), timeout=PATIENCE) for _ in range(8)]
    answers = await asyncio.gather(*calls)
    assert len({each.job_id for each in answers}) == 1
    await cancel(trio, answers[0].job_id)


async def test_a_key_with_another_request_is_refused_by_name(trio: Trio) -> None:
    stub = trio.orchestrator.stub
    first = await stub.SubmitGeneration(keyed(request(seed=1), "once"), timeout=PATIENCE)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.SubmitGeneration(keyed(request(seed=2), "once"), timeout=PATIENCE)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    info = read_error_info(caught.value.trailing_metadata())
    assert info is not None and info.reason == "IDEMPOTENCY_KEY_REUSED"
    assert info.metadata["field"] == "idempotency_key"
    await cancel(trio, first.job_id)


@pytest.mark.parametrize("key", ["x" * 256, "a\tb"])
async def test_what_is_no_key_is_refused(trio: Trio, key: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await trio.orchestrator.stub.SubmitGeneration(keyed(request(), key), timeout=PATIENCE)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "idempotency_key" in (caught.value.details() or "")


@pytest.mark.fault(
    "restart",
    "The answer to SubmitGeneration is lost, and the client submits again",
    before="the text was written twice, and the first job nobody polls filled a place",
    now="with an `idempotency_key` it is the same job, also where the call was cut off meanwhile",
)
async def test_a_submission_that_was_cut_off_is_the_job_of_the_next_one() -> None:
    async with three_services(target, drafter) as its:
        orchestrator = its.orchestrator.orchestrator
        begun, may_go_on = asyncio.Event(), asyncio.Event()
        generate_really = orchestrator._jobs._generate

        async def held_up(*arguments: Any) -> AsyncIterator[Event]:
            begun.set()
            await may_go_on.wait()
            async with aclosing(generate_really(*arguments)) as stream:
                async for response in stream:
                    yield response

        orchestrator._jobs._generate = held_up  # type: ignore[assignment]
        asked = keyed(request(token_limit=12), "cut off")
        call = asyncio.ensure_future(
            its.orchestrator.stub.SubmitGeneration(asked, timeout=PATIENCE)
        )
        await begun.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        may_go_on.set()
        again = await its.orchestrator.stub.SubmitGeneration(asked, timeout=PATIENCE)
        assert (await its.orchestrator.status()).job_count == 1
        await cancel(its, again.job_id)


async def test_a_start_that_failed_leaves_its_key_new() -> None:
    tries = 0

    async def starting(*_: Any) -> AsyncIterator[Event]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise DecodeFailed("once")
        async for each in responses(1):
            yield each

    jobs = Jobs(starting, one_at_a_time, job_log(2, 60.0))  # type: ignore[arg-type]
    asked, other = Request("x"), Request("x", seed=2)
    failed = await asyncio.gather(
        *(jobs.submit(asked, key=b"key") for _ in range(2)), return_exceptions=True
    )
    assert [type(each) for each in failed] == [DecodeFailed] * 2
    assert tries == 1 and len(jobs) == 0
    second, _ = await jobs.submit(asked, key=b"key")
    assert (await jobs.submit(asked, key=b"key"))[0] == second
    with pytest.raises(KeyReused):
        await jobs.submit(other, key=b"key")
    await jobs.cancel(second)
    for caller in "ab":  # they take its place, and with it goes its key
        await jobs.submit(asked, caller)
    assert second not in jobs
    assert (await jobs.submit(other, key=b"key"))[0] != second
