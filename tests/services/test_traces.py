"""Traces of generations, as a collector receives them by OTLP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest

from outrider import tracing
from outrider.errors import InvalidConfig
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.collector import Collector, Seen, collecting, explained
from tests.support.gateway import serving
from tests.support.services import (
    TARGET,
    Gate,
    JoiningDraft,
    ModelProcess,
    OrchestratorProcess,
    Trio,
    eventually,
    generate,
    request,
    running,
    three_services,
    toy,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
OFF = f"00-{TRACE}-b7ad6b7169203331-00"
SERVER, CLIENT = 2, 3


@dataclass(frozen=True, slots=True)
class Traced:
    """Services whose spans come to a collector once `sent`."""

    trio: Trio
    collector: Collector

    def sent(self) -> Collector:
        """Send what is over; nothing is traced after it."""
        tracing.stop(30.0)
        return self.collector


@asynccontextmanager
async def traced(scheme: str = "grpc", pace: float = 0.0, **options: Any) -> AsyncIterator[Traced]:
    with collecting(scheme) as collector:
        tracing.start(collector.endpoint, "outrider-test")
        try:
            drafts = lambda: toy(seed=9, agreement=0.7)  # noqa: E731
            async with three_services(toy, drafts, pace=pace, **options) as trio:
                yield Traced(trio, collector)
        finally:
            tracing.stop()


async def until_idle(trio: Trio) -> None:
    """Wait until no stream is open, so that all that will ever be is over."""

    async def is_idle() -> bool:
        counts = [(await each.activity()).open_session_count for each in (trio.target, trio.draft)]
        return not any(counts)

    await eventually(is_idle, 60.0)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
async def test_a_generation_is_one_trace_from_its_caller_to_the_models(scheme: str) -> None:
    async with traced(scheme) as its:
        metadata = (("traceparent", PARENT), ("tracestate", "v=1"), ("x-request-id", "mine"))
        call = its.trio.orchestrator.stub.Generate(request(token_limit=64), metadata=metadata)
        given = dict(await call.initial_metadata())["traceresponse"]
        count = 0
        async for response in call:
            count += len(response.delta.token_ids)
        await until_idle(its.trio)
        collector = its.sent()
    assert {span.trace_id for span in collector.spans} == {TRACE}
    assert {span.state for span in collector.spans} == {"v=1"}
    [root] = collector.named("outrider.v1.OrchestratorService/Generate")
    assert (root.parent_id, root.kind) == (PARENT.split("-")[2], SERVER)
    assert given == f"00-{TRACE}-{root.span_id}-01"
    assert root.attributes["outrider.request_id"] == "mine"
    [generation] = collector.below(root)
    assert generation.name == "generation"
    [completion] = [each for each in collector.below(generation) if each.name == "completion"]
    assert completion.attributes["outrider.tokens"] == count
    parts = {each.name for each in collector.below(completion)}
    assert {"prompt", "round", "target session", "draft session"} <= parts
    for role, method, step in (("target", "Verify", "verify"), ("draft", "Draft", "draft")):
        [session] = collector.named(f"{role} session")
        assert session.kind == CLIENT
        [served] = collector.below(session)
        assert served.name == f"outrider.v1.{role.capitalize()}Service/{method}"
        assert step in {each.name for each in collector.below(served)}
    verify = collector.named("verify")[0]
    assert verify.attributes["outrider.decodes"] >= 1
    assert verify.attributes["outrider.decode_seconds"] > 0


async def test_http_hands_a_trace_in_and_out() -> None:
    async with (
        traced() as its,
        serving(its.trio.orchestrator.orchestrator) as url,
        httpx.AsyncClient(timeout=60) as client,
    ):
        body = {"prompt": [5, 6, 7], "n_predict": 8}
        headers = {"traceparent": PARENT}
        answer = await client.post(f"{url}/completion", json=body, headers=headers)
        alone = await client.post(f"{url}/completion", json=body)
        await client.get(f"{url}/metrics")
        await until_idle(its.trio)
        collector = its.sent()
    mine, other = collector.named("POST /completion")
    assert mine.parent_id == PARENT.split("-")[2]
    assert answer.headers["traceresponse"] == f"00-{TRACE}-{mine.span_id}-01"
    assert other.trace_id != TRACE and not other.parent_id
    assert other.trace_id in alone.headers["traceresponse"]
    assert mine.attributes["http.route"] == "/completion"
    assert mine.attributes["http.response.status_code"] == 200
    assert [each.name for each in collector.below(mine)] == ["generation"]
    assert not collector.named("GET /metrics")


async def test_a_caller_who_samples_nothing_gets_no_spans() -> None:
    async with traced() as its:
        call = its.trio.orchestrator.stub.Generate(request(), metadata=(("traceparent", OFF),))
        async for _ in call:
            pass
        await until_idle(its.trio)
        collector = its.sent()
    assert not collector.spans


async def test_a_draft_that_joined_is_part_of_the_trace() -> None:
    draft = JoiningDraft("", lambda: toy(seed=9, agreement=0.7))
    with collecting("grpc") as collector:
        async with (
            running(ModelProcess(TARGET, toy)) as target,
            running(OrchestratorProcess(target.address, accept_drafts=True)) as orchestrator,
        ):
            draft._address = orchestrator.address
            async with running(draft):
                await orchestrator.until_ready()

                def above(span: Seen, name: str) -> list[Seen]:
                    return [s for s in collector.named(name) if s.span_id == span.parent_id]

                def is_whole(order: Seen) -> bool:
                    attended = above(order, "Attend")
                    return any(above(each, "draft session") for each in attended)

                def is_idle() -> bool:
                    return not draft.servicer.description().activity.open_session_count

                async def drafted() -> bool:
                    tracing.start(collector.endpoint, "outrider-test")
                    await generate(orchestrator, request(token_limit=32))
                    await eventually(is_idle)
                    tracing.stop(30.0)
                    return any(map(is_whole, collector.named("draft")))

                await eventually(drafted, 60.0)


async def test_a_lost_target_is_seen_in_the_trace() -> None:
    async with traced(pace=0.002) as its:
        trio = its.trio
        gate = Gate(trio.target.model, passes=4)

        async def lose() -> None:
            await gate.open()
            await trio.target.restart()

        writing = asyncio.create_task(generate(trio.orchestrator, request(), timeout=60.0))
        await gate.reached()
        await lose()
        await writing
        await until_idle(trio)
        collector = its.sent()
    sessions = collector.named("target session")
    assert len(sessions) >= 2
    assert sessions[0].is_error and not sessions[-1].is_error
    assert len({span.trace_id for span in sessions}) == 1


async def test_what_is_refused_is_an_error() -> None:
    async with traced() as its:
        wrong = messages.GenerateRequest(token_limit=-5, prompt_text="a")
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(its.trio.orchestrator, wrong)
        await until_idle(its.trio)
        collector = its.sent()
    [root] = collector.spans
    assert root.is_error
    assert root.attributes["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]


async def test_a_trace_explains_nearly_all_of_a_generations_time() -> None:
    shares: list[float] = []
    async with traced(pace=0.01) as its:

        async def is_explained() -> bool:
            # On a machine that does something else meanwhile, one text shows nothing.
            tracing.start(its.collector.endpoint, "outrider-test")
            its.collector.spans.clear()
            await generate(its.trio.orchestrator, request(token_limit=96), timeout=60.0)
            await until_idle(its.trio)
            [generation] = its.sent().named("generation")
            shares.append(explained(its.collector, generation))
            return shares[-1] >= 0.95

        await eventually(is_explained, 90.0)
    assert all(share < 1.05 for share in shares)


async def test_a_long_text_has_few_spans_and_none_of_its_rounds_is_left_out() -> None:
    asked = request(token_limit=200, enabled=False, run_ahead=False)
    async with traced() as its:
        done = await generate(its.trio.orchestrator, asked)
        await until_idle(its.trio)
        collector = its.sent()
    blocks = [each for name in ("prompt", "round", "rounds") for each in collector.named(name)]
    decodes = sum(each.attributes["outrider.decodes"] for each in blocks)
    assert decodes == done.statistics.round_count
    assert len(collector.spans) < 80
    for block in collector.named("rounds"):
        [slowest] = collector.below(block)
        assert slowest.name == "slowest round"
        assert block.begin <= slowest.begin + 1e-6 and slowest.end <= block.end + 1e-6


# --- off ---


def test_nothing_of_opentelemetry_is_imported_where_it_is_off() -> None:
    code = """
import sys
import draft_service.main, gateway.http_server, orchestrator.main
import outrider_cli.app, target_service.main
# FastAPI takes in the API by itself where it finds that.
heavy = ("opentelemetry.sdk", "opentelemetry.exporter", "outrider.otlp")
assert not [name for name in sys.modules if name.startswith(heavy)]
from outrider import tracing
assert tracing.begin("anything", round=1) is tracing.NOTHING
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "endpoint", ["", "collector:4317", "ftp://a:1", "http://", "grpc://a:0", "grpc://a:99999999"]
)
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidConfig, match="traces"):
        tracing.check_endpoint(endpoint)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: Any) -> None:
    for name in ("outrider.otlp", "opentelemetry", "opentelemetry.sdk", "opentelemetry.trace"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "outrider.otlp")
    with pytest.raises(InvalidConfig, match=r"pip install 'outrider\[traces\]'"):
        tracing.start("grpc://127.0.0.1:4317", "outrider-test")


async def test_a_collector_that_is_away_holds_nobody_up() -> None:
    tracing.start("grpc://127.0.0.1:9", "outrider-test")
    try:
        async with three_services(toy, lambda: toy(seed=9, agreement=0.7)) as trio:
            done = await generate(trio.orchestrator, request())
        assert done.finished is not None
    finally:
        tracing.stop(0.1)
