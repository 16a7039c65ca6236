"""Connections without end: a service has a bound of them, gets idle ones back, and serves on."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.errors import OutriderError
from outrider.rpc import server as rpc
from outrider.rpc.channel import SERVER_OPTIONS, most_connections, open_channel
from outrider.rpc.health_check import check
from outrider.rpc.security import ClientSecurity
from outrider.rpc.server import LIVENESS, Server, ServerConfig
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from tests.support.processes import ServiceProcess, free_port
from tests.support.services import (
    PATIENCE,
    TARGET,
    Completion,
    ModelProcess,
    eventually,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel

BOUND = "grpc.max_allowed_incoming_connections"
SILENT = 60  # connections; enough for every file that is left
WAIT = 60.0


@contextmanager
def silent_connections(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Yield connections on which nothing is ever said; the system takes them, whoever listens."""
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        made = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in made:
            each.setblocking(False)
            each.connect_ex((host, int(port)))
        yield made


def is_closed(connection: socket.socket) -> bool:
    try:
        while data := connection.recv(4096):
            assert data
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


async def serves(address: str, seconds: float = 5.0) -> bool:
    try:
        return await check(address, timeout=seconds, service=LIVENESS) == "serving"
    except OutriderError:
        return False


# --- the bound, and what gives connections back ---


@pytest.mark.parametrize(
    ("files", "most"), [(-1, 65536), (10**6, 65536), (4096, 3456), (1024, 384), (256, 64), (1, 1)]
)
def test_a_server_takes_as_many_connections_as_leave_files_for_the_rest(
    files: int, most: int
) -> None:
    assert most_connections(files) == most


@contextmanager
def options_changed(patch: pytest.MonkeyPatch, **milliseconds: int) -> Iterator[None]:
    known = dict(SERVER_OPTIONS)
    changes = {f"grpc.{name}": value for name, value in milliseconds.items()}
    assert changes.keys() <= known.keys()
    patch.setattr(rpc, "SERVER_OPTIONS", list((known | changes).items()))
    yield
    patch.undo()


@pytest.mark.fault(
    "hang",
    "connections to a service of which nothing is ever said, or no more calls made",
    before="there was no bound to them, and those without a call were kept for ever",
    now="as many as the process has files for; silent ones end within 20 s, idle ones after 300",
)
async def test_silent_connections_fill_no_more_than_their_bound_and_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc, "most_connections", lambda files: 4)
    with options_changed(monkeypatch, server_handshake_timeout_ms=3000):
        server = Server(ServerConfig(), "test.Service")
    await server.start()
    try:
        with silent_connections(server.address, 12) as made:
            await eventually(lambda: sum(map(is_closed, made)) >= 8, WAIT)
            await eventually(lambda: all(map(is_closed, made)), WAIT)
        await eventually(lambda: serves(server.address), WAIT)
    finally:
        await server.grpc.stop(0)


async def test_an_idle_connection_ends_and_a_silent_stream_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with options_changed(monkeypatch, max_connection_idle_ms=500):
        server = Server(ServerConfig(), "test.Service")
    await server.start()
    asked = health_pb2.HealthCheckRequest(service=LIVENESS)
    try:
        async with (
            open_channel(server.address) as busy,
            open_channel(server.address, ClientSecurity(no_pings=True)) as idle,  # one of its own
        ):
            watch: Any = health_pb2_grpc.HealthStub(busy).Watch(asked)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            stub: Any = health_pb2_grpc.HealthStub(idle)
            for _ in range(2):
                await stub.Check(asked, timeout=PATIENCE)  # the second time on a new connection
                await eventually(lambda: idle.get_state() is grpc.ChannelConnectivity.IDLE, WAIT)
            await asyncio.sleep(1.0)
            assert not watch.done() and busy.get_state() is grpc.ChannelConnectivity.READY
            watch.cancel()
    finally:
        await server.grpc.stop(0)


# --- no file is left ---


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
async def test_a_service_that_has_no_file_left_serves_again_once_there_are_some() -> None:
    async with running(ModelProcess(TARGET, target)) as served:
        http = f"127.0.0.1:{free_port()}"
        process = ServiceProcess(
            "orchestrator", "--target", served.address, "--no-draft", "--http", http
        )
        process.start()
        try:
            await process.wait_until_serving()
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
            few = open_files(process.pid) + 8
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (few, hard))
            with (
                silent_connections(process.address, SILENT),
                silent_connections(http, SILENT),
            ):
                await eventually(lambda: open_files(process.pid) >= few, WAIT)
                await eventually(lambda: is_refused(process.address), WAIT)
            await eventually(lambda: serves(process.address), WAIT)
            await eventually(lambda: answers(http), WAIT)
            async with open_channel(process.address) as channel:
                stub: Any = OrchestratorServiceStub(channel)
                asked, completion = request(token_limit=20), Completion()
                async for response in stub.Generate(asked, timeout=PATIENCE):
                    completion.add(response)
                assert completion.token_ids == written_alone(target(), asked)
        finally:
            process.stop()


async def is_refused(address: str) -> bool:
    return not await serves(address, 1.0)  # it burns a core meanwhile


async def answers(address: str) -> bool:
    try:
        async with httpx.AsyncClient(timeout=5.0) as client:
            return (await client.get(f"http://{address}/health")).status_code == 200
    except httpx.TransportError:
        return False
