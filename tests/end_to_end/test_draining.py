"""A service that is asked to stop finishes what is in flight, and takes nothing new."""

from __future__ import annotations

import os
import signal

import grpc

from tests.support.processes import ServiceProcess, Services, running_services

PROMPT = "def read_config(path):"
LIMIT = 128
STOPPED_AT = 16
"""Tokens after which the signal comes; some hundred milliseconds of work are left."""


async def test_a_stopped_service_finishes_the_generations_under_way() -> None:
    grace = ("--grace", "60")
    # A draft that is late on a busy machine would count as a fault of its own.
    patient = (*grace, "--draft-timeout", "30")
    async with running_services(
        target_options=grace, draft_options=grace, orchestrator_options=patient
    ) as services:
        alone = await services.generate(PROMPT, length=None, limit=LIMIT, temperature=0.0)
        for name in ("draft", "target", "orchestrator"):
            process: ServiceProcess = getattr(services, name)
            await stop_midway(services, process, alone.token_ids)
            assert process.wait(30) == 0
            if name != "orchestrator":
                process.start()
                await process.wait_until_serving()
                await services.wait_until_speculating()


async def stop_midway(services: Services, process: ServiceProcess, wanted: list[int]) -> None:
    """Ask a process to stop in the middle of a generation, and see that it ends whole."""
    stopped = False
    async for completion in services.stream(PROMPT, length=4, limit=LIMIT, temperature=0.0):
        if len(completion.token_ids) >= STOPPED_AT and not stopped:
            stopped = True
            os.kill(process.pid, signal.SIGTERM)
    assert stopped and completion.token_ids == wanted
    statistics = completion.statistics
    assert statistics.target_fault_count == statistics.draft_fault_count == 0


async def test_a_draining_orchestrator_refuses_new_generations() -> None:
    async with running_services(orchestrator_options=("--grace", "60")) as services:
        asked, refused = False, False
        async for completion in services.stream(PROMPT, length=4, limit=LIMIT, temperature=0.0):
            if len(completion.token_ids) < STOPPED_AT or asked:
                continue
            asked = True
            os.kill(services.orchestrator.pid, signal.SIGTERM)
            while not refused:
                try:
                    await services.generate(PROMPT, length=4, limit=1, temperature=0.0)
                except grpc.aio.AioRpcError as error:
                    # gRPC cancels what arrives while it begins to stop, and refuses it later.
                    stopping = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
                    assert error.code() in stopping
                    refused = True
        assert refused and LIMIT <= len(completion.token_ids) <= LIMIT + 3
        assert services.orchestrator.wait(30) == 0


async def test_an_idle_service_stops_at_once() -> None:
    async with running_services() as services:
        for process, number in (
            (services.orchestrator, signal.SIGTERM),
            (services.draft, signal.SIGINT),
            (services.target, signal.SIGTERM),
        ):
            os.kill(process.pid, number)
            assert process.wait(4) == 0
