"""Real service processes on real ports, to be killed and restarted where they were."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub

MODELS = Path(__file__).resolve().parent.parent.parent / "models"
TARGET = MODELS / "stdlib-target-q8_0.gguf"
DRAFT = MODELS / "stdlib-draft-q8_0.gguf"

EXACT = {"OUTRIDER_NUMERICS": "exact", "OUTRIDER_DRAFT_NUMERICS": "exact"}
"""Texts are compared, and what the default chooses depends on the machine. A draft is measured when
it starts for the first time; by default it looks for up to three seconds each time, until the
machine is quiet."""


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class ServiceProcess:
    """One service; `kill` and `start` again keep its address."""

    def __init__(self, role: str, *options: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._command = [sys.executable, "-m", "outrider_cli", role, *options]
        self._command += ["--listen", self.address]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run the process; `wait_until_serving` says when it can be used."""
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **EXACT},
        )

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, SIGKILL unless told otherwise, and wait for a fatal one."""
        assert self._process is not None
        os.kill(self._process.pid, number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait(20)

    def wait(self, seconds: float) -> int:
        """Wait for the process to end by itself and return its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def stop(self) -> None:
        """Kill the process if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    async def wait_until_serving(self, seconds: float = 60.0) -> None:
        """Return once health says SERVING; raise TimeoutError."""
        async with asyncio.timeout(seconds), grpc.aio.insecure_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                try:
                    answer = await stub.Check(health_pb2.HealthCheckRequest())
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                except grpc.aio.AioRpcError:
                    pass
                await asyncio.sleep(0.05)


@dataclass(slots=True)
class Completion:
    """What one Generate call returned."""

    token_ids: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    text: str = ""
    prompt_token_ids: list[int] = field(default_factory=list)
    finished: messages.GenerationFinished = field(default_factory=messages.GenerationFinished)

    @property
    def statistics(self) -> messages.GenerationStatistics:
        """The final statistics."""
        return self.finished.statistics


MEASURED = -1


@dataclass(slots=True)
class Services:
    """The three processes and a stub to the orchestrator."""

    target: ServiceProcess
    draft: ServiceProcess
    orchestrator: ServiceProcess
    stub: OrchestratorServiceStub

    async def wait_until_speculating(self, seconds: float = 30.0) -> None:
        """Return once the orchestrator uses the draft."""
        deadline = time.monotonic() + seconds
        while not (await self.stub.GetStatus(messages.GetStatusRequest())).speculating:
            assert time.monotonic() < deadline, "the orchestrator does not use the draft"
            await asyncio.sleep(0.05)

    async def stream(
        self,
        prompt: str,
        *,
        length: int | None,
        limit: int,
        temperature: float,
        seed: int = 0,
        run_ahead: bool | None = None,
    ) -> AsyncIterator[Completion]:
        """Generate; yield the completion so far after every message.

        `length` None is no draft, MEASURED what pays, and every other pinned.
        """
        speculative = messages.SpeculativeOptions(enabled=length is not None)
        if length == MEASURED:
            speculative.policy = messages.DRAFT_POLICY_MEASURED
        elif length is not None:
            speculative.policy, speculative.n_max = messages.DRAFT_POLICY_FIXED, length
        if run_ahead is not None:
            speculative.run_ahead = run_ahead
        request = messages.GenerateRequest(
            prompt_text=prompt,
            sampling=common.SamplingParameters(temperature=temperature),
            seed=seed,
            token_limit=limit,
            speculative=speculative,
        )
        so_far = Completion()
        async for response in self.stub.Generate(request):
            event = response.WhichOneof("event")
            if event == "started":
                so_far.prompt_token_ids += response.started.prompt_token_ids
            elif event == "delta":
                so_far.token_ids += response.delta.token_ids
                so_far.origins += response.delta.origins
                so_far.text += "".join(piece.text for piece in response.delta.pieces)
            else:
                so_far.finished = response.finished
            yield so_far

    async def generate(
        self,
        prompt: str,
        *,
        length: int | None,
        limit: int,
        temperature: float,
        seed: int = 0,
        run_ahead: bool | None = None,
    ) -> Completion:
        """Generate to the end."""
        stream = self.stream(
            prompt,
            length=length,
            limit=limit,
            temperature=temperature,
            seed=seed,
            run_ahead=run_ahead,
        )
        return [completion async for completion in stream][-1]


@asynccontextmanager
async def running_services(
    target: Path = TARGET,
    draft: Path = DRAFT,
    target_options: Sequence[str] = (),
    draft_options: Sequence[str] = (),
    orchestrator_options: Sequence[str] = (),
) -> AsyncIterator[Services]:
    """Run target, draft and orchestrator; everything is killed at the end."""
    # One thread: two would wait for each other whenever the machine is busy.
    one = ("--threads", "1")
    async with AsyncExitStack() as stack:
        processes = [
            ServiceProcess("target", "--model", str(target), *one, *target_options),
            ServiceProcess("draft", "--model", str(draft), *one, "--nice", "19", *draft_options),
        ]
        processes.append(
            ServiceProcess(
                "orchestrator",
                *("--target", processes[0].address, "--draft", processes[1].address),
                *orchestrator_options,
            )
        )
        for process in processes:
            stack.callback(process.stop)
            process.start()
        for process in processes:
            await process.wait_until_serving()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(processes[2].address))
        services = Services(*processes, OrchestratorServiceStub(channel))
        await services.wait_until_speculating()
        yield services
