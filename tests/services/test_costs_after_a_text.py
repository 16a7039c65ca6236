"""What a decode costs after a text, from the target's measurement to the controller's estimate."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from outrider.costs import Point
from outrider.engine.hosting import HostOptions
from outrider.engine.model import Chunk, Numerics
from outrider.engine.preparation import Prepared
from outrider.engine.profile import PlainCosts
from outrider.messages import ServiceTime
from outrider.v1 import common_pb2 as common
from outrider.v1.target_service_pb2_grpc import (
    TargetServiceStub,
    add_TargetServiceServicer_to_server,
)
from outrider.wire import write_time
from target_service.servicer import TargetServicer
from tests.support.services import (
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    Role,
    eventually,
    generate,
    request,
    running,
    three_services,
    toy,
    written_alone,
)
from tests.support.toy import ToyModel

SLOPE = 5e-6  # seconds for every token that a row attends to


def attentive() -> ToyModel:
    """Return a toy whose decodes take longer the more their rows attend to."""

    def take_time(chunks: Sequence[Chunk]) -> None:
        time.sleep(0.001 + SLOPE * sum(len(each.token_ids) * each.position for each in chunks))

    return toy(before_decode=take_time)


class Older(TargetServicer):
    """A target from before slopes were measured."""

    async def GetModel(self, request: Any, context: Any) -> Any:
        response = await super().GetModel(request, context)
        for cost in response.decode_costs:
            cost.microseconds_per_token = 0.0
        return response


OLDER = Role(
    "Target", partial(Older, alias=""), add_TargetServiceServicer_to_server, TargetServiceStub
)


@asynccontextmanager
async def alone(role: Role) -> AsyncIterator[tuple[ModelProcess, OrchestratorProcess]]:
    host = HostOptions(numerics=Numerics.NATIVE)
    async with (
        running(ModelProcess(role, attentive, host)) as process,
        running(OrchestratorProcess(process.address)) as orchestrator,
    ):
        await orchestrator.until_ready()
        yield process, orchestrator


async def test_a_target_reports_what_a_token_before_a_decode_costs_it() -> None:
    async with alone(TARGET) as (process, orchestrator):
        slopes = {
            cost.row_count: cost.microseconds_per_token / 1e6
            for cost in process.servicer.description().decode_costs
        }
        assert slopes[16] == pytest.approx(16 * SLOPE, rel=0.5)
        assert slopes[1] < slopes[4] < slopes[16] < slopes[32]
        known = orchestrator.pool.pair.costs.table.points
        assert {each.rows: each.slope for each in known} == pytest.approx(slopes)
        completion = await generate(orchestrator, request(token_limit=40))
        view = completion.statistics.controller
        after = len(completion.token_ids)
        [four] = [cost.milliseconds for cost in view.decode_costs if cost.row_count == 4]
        assert four > 1e3 * 4 * SLOPE * after / 2, "what the controller goes by is after the text"


async def test_an_older_target_has_no_slopes_and_writes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_attended(spent: ServiceTime) -> common.ServiceTime:
        return write_time(replace(spent, attended=0))

    monkeypatch.setattr("outrider.wire_rounds.write_time", without_attended)
    async with alone(OLDER) as (_, orchestrator):
        assert {each.slope for each in orchestrator.pool.pair.costs.table.points} == {0.0}
        asked = request(token_limit=40)
        completion = await generate(orchestrator, asked)
        assert completion.token_ids == written_alone(attentive(), asked)


async def test_an_answer_counts_what_its_rows_attended_to(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[ServiceTime]()

    def noted(spent: ServiceTime) -> common.ServiceTime:
        seen.append(spent)
        return write_time(spent)

    monkeypatch.setattr("outrider.wire_rounds.write_time", noted)
    async with alone(TARGET) as (_, orchestrator):
        completion = await generate(orchestrator, request(token_limit=12))
    prompt = completion.statistics.prompt_token_count
    # The prompt attends to nothing before it, every row after it to one token more.
    count = sum(each.rows for each in seen) - prompt
    assert count >= 11
    assert sum(each.attended for each in seen) == sum(range(prompt, prompt + count))
    # It was alone in each decode after the prompt's.
    assert sum(each.sessions for each in seen) == count


async def test_what_a_target_measures_after_its_load_replaces_what_was_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.peers.DESCRIBE_SECONDS", 0.02)
    async with three_services(toy, toy) as trio:
        measured = Prepared(
            Numerics.NATIVE, [Point(1, 0.25)], PlainCosts(0.25, 0.25, None), "streams", False, "now"
        )
        trio.target.servicer.set_prepared(measured)

        async def is_known() -> bool:
            return trio.orchestrator.pool.pair.costs.table.seconds(1) == 0.25

        await eventually(is_known)
        status = await trio.orchestrator.status()
        assert status.peers[0].model.plain_costs.alone_milliseconds == 250.0
