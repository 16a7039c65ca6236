"""An orchestrator that waits, is ready, drains: HTTP, gRPC and the command say the same of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest

from outrider.rpc.channel import open_channel
from outrider.rpc.health_check import check
from outrider.rpc.probe import main as probe
from outrider.rpc.server import LIVENESS
from outrider.rpc.statuses import read_error_info
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from outrider_cli import run as run_command
from tests.support.processes import ServiceProcess, free_port
from tests.support.services import (
    PATIENCE,
    TARGET,
    Gate,
    ModelProcess,
    eventually,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel

SERVICE = "outrider.v1.OrchestratorService"


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


@dataclass
class Front:
    """An orchestrator in a process of its own, and clients of its two ports."""

    process: ServiceProcess
    http: httpx.AsyncClient
    stub: Any

    async def get(self, path: str) -> tuple[int, Any]:
        """Return the status and the body that a path answers with."""
        answer = await self.http.get(path)
        return answer.status_code, answer.json()

    async def status(self) -> messages.GetStatusResponse:
        """Return the orchestrator's own view."""
        response: messages.GetStatusResponse = await self.stub.GetStatus(
            messages.GetStatusRequest(), timeout=PATIENCE
        )
        return response

    async def health(self, service: str = "") -> str:
        """Return what gRPC health says."""
        return await check(self.process.address, timeout=PATIENCE, service=service)

    async def said(self) -> tuple[str, str, int]:
        """Return whether it is ready, as both names in gRPC and HTTP say."""
        status, _ = await self.get("/health")
        return await self.health(), await self.health(SERVICE), status


@asynccontextmanager
async def orchestrator(target_address: str) -> AsyncIterator[Front]:
    http = f"127.0.0.1:{free_port()}"
    options = ("--target", target_address, "--http", http, "--grace", "60")
    process = ServiceProcess("orchestrator", *options)
    process.start()
    try:
        async with (
            httpx.AsyncClient(base_url=f"http://{http}", timeout=PATIENCE) as client,
            open_channel(process.address) as channel,
        ):
            front = Front(process, client, OrchestratorServiceStub(channel))

            async def answers() -> bool:
                try:
                    return await front.get("/livez") == (200, {"status": "ok"})
                except httpx.ConnectError:
                    return False

            await eventually(answers, pause=0.05)
            yield front
    finally:
        process.stop()


READY = ("serving", "serving", 200)
WAITING = ("not serving", "not serving", 503)


@pytest.mark.fault(
    "restart",
    "An orchestrator without a target was asked for its health",
    before="gRPC health said SERVING and HTTP 503, and nothing distinguished alive from ready.",
    now="Both say that it is not ready, and both have a name for alive.",
)
async def test_alive_and_ready_are_two_things(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(ModelProcess(TARGET, target)) as service:
        await service.kill()
        async with orchestrator(service.address) as front:

            async def says(wanted: tuple[str, str, int]) -> bool:
                assert await front.health(LIVENESS) == "serving"
                assert (await front.get("/livez"))[0] == 200
                return await front.said() == wanted

            await eventually(lambda: says(WAITING))
            command = ("health", front.process.address)
            assert await asyncio.to_thread(run_command, command) == 1
            assert await asyncio.to_thread(run_command, (*command, "--live")) == 0
            assert await asyncio.to_thread(probe, front.process.address) == 1
            assert await asyncio.to_thread(probe, front.process.address, "--live") == 0
            await service.start()
            await eventually(lambda: says(READY))
            assert await asyncio.to_thread(run_command, command) == 0
            await service.kill()
            await eventually(lambda: says(WAITING))
    assert capsys.readouterr().out == "not serving\nserving\nnot serving\nserving\nserving\n"


@pytest.mark.fault(
    "restart",
    "An orchestrator was stopped while it wrote",
    before="While gRPC drained, HTTP said that it was healthy and took new work.",
    now="Both refuse new work at once, and what is in flight finishes, jobs included.",
)
async def test_http_grpc_and_jobs_drain_together() -> None:
    body = {"prompt": [5, 6, 7], "n_predict": 20, "temperature": 0, "return_tokens": True}
    job_request = request(prompt_tokens=[5, 6, 8], token_limit=20)
    async with (
        running(ModelProcess(TARGET, target)) as service,
        orchestrator(service.address) as front,
    ):

        async def is_ready() -> bool:
            return await front.said() == READY

        await eventually(is_ready)
        gate = Gate(service.model, passes=1)  # a job is submitted once its prompt is read
        submission = messages.SubmitGenerationRequest(request=job_request)
        job = await front.stub.SubmitGeneration(submission, timeout=PATIENCE)
        await gate.reached()
        in_flight = asyncio.create_task(front.http.post("/completion", json=body))

        async def both_are_in_flight() -> bool:
            return (await front.status()).active_generation_count == 2

        await eventually(both_are_in_flight)
        os.kill(front.process.pid, signal.SIGTERM)

        async def drains() -> bool:
            return await front.said() == WAITING

        await eventually(drains)
        health = await front.http.get("/health")
        assert "stopping" in health.json()["error"]["message"]
        refused = await front.http.post("/completion", json=body)
        for answer in (health, refused):
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await front.stub.SubmitGeneration(submission, timeout=PATIENCE)
        info = read_error_info(caught.value.trailing_metadata())
        assert info is not None and info.reason == "DRAINING"
        assert await front.get("/livez") == (200, {"status": "ok"})
        status = await front.status()
        assert status.draining and status.active_generation_count == 2

        await gate.open()
        asked = request(prompt_tokens=[5, 6, 7], token_limit=20, temperature=0.0)
        assert (await in_flight).json()["tokens"] == written_alone(target(), asked)
        assert await job_tokens(front, job.job_id) == written_alone(target(), job_request)
        assert await asyncio.to_thread(front.process.wait, 20) == 0


async def job_tokens(front: Front, job_id: str) -> list[int]:
    """Poll a job to its end; return what it wrote."""
    poll = messages.PollGenerationRequest(job_id=job_id)
    tokens: list[int] = []
    while True:
        poll.wait_duration.FromSeconds(5)
        polled = await front.stub.PollGeneration(poll, timeout=PATIENCE)
        for response in polled.responses:
            tokens += response.delta.token_ids
        poll.cursor = polled.next_cursor
        if polled.finished:
            return tokens


@pytest.mark.fault(
    "restart",
    "The terminal of a service went away",
    before="SIGHUP ended the service.",
    now="Its settings are read again, and the service continues.",
)
async def test_a_service_outlives_its_terminal() -> None:
    async with orchestrator("127.0.0.1:1") as front:
        os.kill(front.process.pid, signal.SIGHUP)
        for _ in range(3):  # the first answer may be older than the signal
            assert await front.health(LIVENESS) == "serving"
        os.kill(front.process.pid, signal.SIGTERM)
        assert await asyncio.to_thread(front.process.wait, 20) == 0
