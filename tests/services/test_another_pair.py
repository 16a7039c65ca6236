"""An orchestrator gets another pair: what waits and what runs on the old one is told at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from orchestrator import init_models
from orchestrator.completions import Responses
from orchestrator.core.round_times import RoundTimes
from orchestrator.init_models import Launcher, WantedPair
from orchestrator.peers import DialledPeer
from orchestrator.pool import Pool
from outrider.errors import DeadlinePassed, PeerUnavailable
from outrider.messages import PeerState
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider_cli import COMMAND
from tests.support.services import (
    PATIENCE,
    TARGET,
    Completion,
    Gate,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    running,
    three_services,
    toy,
    written_alone,
)
from tests.support.tiny_gguf import Shape, write_model
from tests.support.toy import NEVER, ToyModel

LENGTH = 60


def old() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def new() -> ToyModel:
    return toy(seed=9, eos_bias=NEVER)


def endless(**speculative: Any) -> messages.GenerateRequest:
    """Return the request of a text that only the target's end ends."""
    asked = request(token_limit=-1, **speculative)
    asked.overflow.shift = True
    return asked


Switch = Callable[[OrchestratorProcess], Awaitable[None]]


@pytest_asyncio.fixture(loop_scope="session")
async def switch() -> AsyncIterator[Switch]:
    """A second target; puts it in the place of an orchestrator's pair."""
    async with running(ModelProcess(TARGET, new)) as target, watched(target) as pair:

        async def use(process: OrchestratorProcess) -> None:
            await process.orchestrator.use(pair)

        yield use


@asynccontextmanager
async def watched(target: ModelProcess) -> AsyncIterator[Pool]:
    pair = Pool([DialledPeer("target", target.address)])
    pair.start()
    assert await pair.target.wait_until_ready(PATIENCE)
    yield pair
    await pair.stop()


async def assert_new(process: OrchestratorProcess) -> None:
    asked = request(token_limit=LENGTH)
    assert (await generate(process, asked)).token_ids == written_alone(new(), asked)


def assert_unused(error: grpc.aio.AioRpcError) -> None:
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert (error.details() or "").endswith("is no longer used")


@pytest.mark.parametrize("rollback", [messages.ROLLBACK_MODE_SPAN, messages.ROLLBACK_MODE_RPC])
async def test_a_generation_ends_where_it_is(
    switch: Switch, rollback: messages.RollbackMode
) -> None:
    async with three_services(old, partial(toy, seed=2, like=1, eos_bias=NEVER)) as trio:
        asked, got = endless(rollback=rollback), Completion()
        replaced = Interruption(20, partial(switch, trio.orchestrator))
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generate(trio.orchestrator, asked, [replaced], into=got)
        assert_unused(refusal.value)
        first = written_alone(old(), request(token_limit=LENGTH))
        assert got.token_ids[:LENGTH] == first[: len(got.token_ids)]
        await assert_new(trio.orchestrator)


async def test_who_watches_sees_the_rounds_of_the_new_pair_too(switch: Switch) -> None:
    class Watcher:
        rounds = 0

        def watch(self, responses: Responses, completion_count: int, /) -> Responses:
            return responses

        def note_rounds(self, times: RoundTimes, /) -> None:
            self.rounds += sum(times.decode.counts)

    async with three_services(old, old) as trio:
        watcher = Watcher()
        trio.orchestrator.orchestrator.observe(watcher)
        await switch(trio.orchestrator)
        completion = await generate(trio.orchestrator, request(token_limit=8))
        assert watcher.rounds == completion.statistics.round_count > 0


@pytest.mark.parametrize("beam_count", [1, 2])
async def test_a_round_that_is_decoded_is_not_waited_for(switch: Switch, beam_count: int) -> None:
    async with three_services(old, old) as trio:
        gate = Gate(trio.target.model)
        wanted = request(temperature=0.0)
        wanted.beam_count = beam_count
        asked = asyncio.create_task(generate(trio.orchestrator, wanted))
        await gate.reached()
        await switch(trio.orchestrator)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await asked
        assert_unused(refusal.value)
        await assert_new(trio.orchestrator)
        await gate.open()


async def test_a_call_that_is_answered_late_is_not_waited_for(switch: Switch) -> None:
    async with three_services(old, old) as trio:
        gate = Gate(trio.target.model)
        asked = request()
        asked.logprobs.SetInParent()
        asked.prompt_logprobs = True  # the target scores the prompt before it generates
        scored = asyncio.create_task(generate(trio.orchestrator, asked))
        await gate.reached()
        await switch(trio.orchestrator)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await scored
        assert_unused(refusal.value)
        await gate.open()


async def test_jobs_end_as_cancelled_ones(switch: Switch) -> None:
    async with three_services(old, old) as trio:
        orchestrator = trio.orchestrator.orchestrator
        submission = messages.SubmitGenerationRequest(request=endless())
        job_id = (await orchestrator.submit(submission)).job_id
        await switch(trio.orchestrator)
        polled = await orchestrator.poll(messages.PollGenerationRequest(job_id=job_id))
        assert polled.finished and not polled.HasField("error")
        last = polled.responses[-1].finished
        assert last.reason == messages.FINISH_REASON_CANCELLED
        await assert_new(trio.orchestrator)


async def test_who_waits_for_a_target_that_is_not_there_is_told(switch: Switch) -> None:
    async with running(OrchestratorProcess("127.0.0.1:9")) as process:
        tokenizing = asyncio.create_task(
            process.orchestrator.tokenize(messages.TokenizeTextRequest(text="x"))
        )
        generating = asyncio.create_task(generate(process, request()))
        await eventually(lambda: process.orchestrator.status().active_generation_count == 1)
        await switch(process)
        with pytest.raises(PeerUnavailable, match="no longer used"):
            await tokenizing
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generating
        assert_unused(refusal.value)
        await assert_new(process)


async def test_a_generation_that_has_lost_its_target_is_told(switch: Switch) -> None:
    async with three_services(old, old) as trio:
        got = Completion()

        async def lose_and_switch() -> None:
            await trio.target.kill()
            await eventually(lambda: not trio.orchestrator.pool.target.ready)
            await switch(trio.orchestrator)

        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generate(
                trio.orchestrator,
                endless(),
                [Interruption(20, lose_and_switch)],
                into=got,
            )
        assert_unused(refusal.value)


# init


async def test_an_init_that_comes_to_nothing_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init_models, "_RETURN_SECONDS", 0.1)
    path = write_model(tmp_path / "tiny.gguf", shape=Shape(layers=1))
    async with (
        running(ModelProcess(TARGET, old)) as target,
        running(OrchestratorProcess(target.address)) as process,
    ):
        await process.until_ready()
        orchestrator, configured = process.orchestrator, process.pool.target.model
        assert configured is not None
        launcher = Launcher(
            orchestrator, lambda: Pool([DialledPeer("target", "127.0.0.1:9")]), COMMAND
        )
        loading = launcher.begin(WantedPair(model=str(path), options=("--threads=1",)))
        assert loading is not None and await loading is None
        in_use = orchestrator.pool

        returning = launcher.begin(WantedPair(model=configured.model_name))
        assert returning is not None
        assert isinstance(await returning, PeerUnavailable)
        assert isinstance(launcher.failure, PeerUnavailable)
        assert orchestrator.pool is in_use and in_use.target.ready
        await launcher.close()
        await in_use.stop()


async def test_models_that_take_too_long_are_given_up(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", shape=Shape(layers=1))
    async with running(OrchestratorProcess("127.0.0.1:9", request_seconds=0.05)) as process:
        launcher = Launcher(process.orchestrator, lambda: process.pool, COMMAND)
        loading = launcher.begin(WantedPair(model=str(path)))
        assert loading is not None and isinstance(await loading, DeadlinePassed)
        assert not launcher.is_loading and process.orchestrator.pool is process.pool
        await launcher.close()


async def test_nothing_is_loaded_while_the_configured_services_load() -> None:
    target = ModelProcess(TARGET, old)
    model = old()
    await target.listen(lambda: model)
    target.model = model
    async with running(OrchestratorProcess(target.address)) as process:
        await eventually(lambda: process.pool.target.state is PeerState.LOADING)
        launcher = Launcher(process.orchestrator, lambda: process.pool, COMMAND)
        with pytest.raises(PeerUnavailable, match="is loading its model"):
            launcher.begin(WantedPair(model="x.gguf"))
        await target.load()
        await process.until_ready()
        assert process.pool.target.model is not None
        assert launcher.begin(WantedPair(model=process.pool.target.model.model_name)) is None
    await target.close()
