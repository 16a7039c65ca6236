"""A target whose link is alive and that leaves a round unanswered; one that is only slow."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import grpc
import pytest

from outrider.costs import CostTable, Point
from target_service.servicer import _VerifyStream
from tests.support import pools
from tests.support.pools import LONG, target
from tests.support.services import (
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel

LENGTH = 60
PROMPT_COUNT = 11  # of a text whose first round is lost


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.peers.DESCRIBE_SECONDS", 0.1)
    monkeypatch.setattr("orchestrator.driver.LOOK_SECONDS", 0.1)
    monkeypatch.setattr("orchestrator.calls.LOOK_SECONDS", 0.1)


@contextlib.asynccontextmanager
async def over(
    count: int, **options: Any
) -> AsyncIterator[tuple[OrchestratorProcess, list[ModelProcess]]]:
    """Run an orchestrator over so many targets of a known speed."""
    async with pools.over(*[TARGET] * count, pace=0.002, **options) as (orchestrator, targets):
        for each in orchestrator.pool.targets:  # what a toy measures is noise
            each.costs.table = CostTable([Point(1, 0.002), Point(8, 0.004)])
        yield orchestrator, targets


@contextlib.contextmanager
def stuck_after(count: int, *processes: ModelProcess) -> Iterator[None]:
    """Hold up the engine that makes decode `count`, of all together, for as long as this lasts."""
    way, decodes, held_up = threading.Event(), itertools.count(1), set[int]()

    def hold_up(index: int, chunks: object) -> None:
        if next(decodes) == count:
            held_up.add(index)
        if index in held_up:
            assert way.wait(100.0)

    for index, each in enumerate(processes):
        each.model.before_decode = partial(hold_up, index)
    try:
        yield
    finally:
        way.set()


@pytest.mark.fault(
    "hang",
    "The engine of a target is stuck: it takes rounds and answers pings, and never answers a round",
    before="its texts waited for it until their deadline, of ten minutes",
    now="it is left once it has decoded nothing for `--target-timeout`, or several of its longest "
    "decodes: the text continues at another target, or ends with UNAVAILABLE and its name",
)
async def test_a_text_goes_on_at_another_target_when_its_own_is_stuck() -> None:
    async with over(2, target_seconds=1.0) as (orchestrator, targets):
        asked = request(token_limit=LENGTH)
        with stuck_after(20, *targets):
            completion = await generate(orchestrator, asked, timeout=LONG)
            states = [each.health.reason for each in orchestrator.pool.targets]
        assert completion.token_ids == written_alone(target(), asked)
        assert completion.statistics.target_fault_count >= 1
        assert sum("decoded nothing" in state for state in states) == 1


@pytest.mark.parametrize("count", [1, 2])
async def test_without_another_target_the_text_ends_and_names_the_stuck_one(count: int) -> None:
    async with over(count, target_seconds=0.5) as (orchestrator, targets):
        with contextlib.ExitStack() as stack:
            for each in targets:
                stack.enter_context(stuck_after(1, each))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await generate(orchestrator, request(), timeout=LONG)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        details = caught.value.details() or ""
        assert "is stuck" in details and any(each.address in details for each in targets)


async def test_a_target_that_reads_a_long_prompt_is_not_hurt() -> None:
    def slow() -> ToyModel:
        return toy(seed=1, context=2048, order=8, batch_rows=64, eos_bias=NEVER)

    async with over(1, make=slow, target_seconds=4.0) as (orchestrator, [only]):
        only.model.step_seconds = 0.16  # 4.8 s for the prompt, at least
        asked = request(prompt_tokens=[1 + i % 60 for i in range(1920)], token_limit=4)
        completion = await generate(orchestrator, asked, timeout=LONG)
        assert completion.statistics.target_fault_count == 0
        assert len(completion.token_ids) == 4


async def test_a_round_that_a_working_target_has_lost_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receive, lost, losing = _VerifyStream._receive, list[object](), list[str]()

    def lose_one(self: _VerifyStream, message: Any) -> None:
        if losing and self._opening.prompt_count == PROMPT_COUNT and not lost:
            lost.append(self)
        else:
            receive(self, message)

    monkeypatch.setattr(_VerifyStream, "_receive", lose_one)
    async with over(1, target_seconds=4.0) as (orchestrator, [only]):

        async def write_others() -> None:
            while True:
                await generate(orchestrator, request("others", token_limit=100), timeout=LONG)

        others = asyncio.create_task(write_others())
        try:
            await eventually(lambda: only.decode_count > 10)
            losing.append("from now on")
            asked = request(prompt_tokens=[5] * PROMPT_COUNT, token_limit=LENGTH)
            completion = await generate(orchestrator, asked, timeout=LONG)
        finally:
            others.cancel()
        assert lost
        assert not orchestrator.pool.targets[0].health.reason
        assert completion.token_ids == written_alone(target(), asked)
        assert completion.statistics.target_fault_count >= 1
