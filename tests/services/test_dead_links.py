"""A machine that is gone closes no connection: both ends notice it by pings that get no answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.rpc.channel import open_channel
from outrider.rpc.server import Server, ServerConfig
from tests.support.thorough import THOROUGH


class DeafLink:
    """Forwards bytes both ways until `freeze`; the connections stay open, as to a dead machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = asyncio.Event()
        self._open.set()
        self._pumps: set[asyncio.Task[None]] = set()

    def freeze(self) -> None:
        """Forward nothing any more."""
        self._open.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join one connection to the service."""
        reader_there, writer_there = await asyncio.open_connection("127.0.0.1", self._port)
        for source, sink in ((reader, writer_there), (reader_there, writer)):
            self._pumps.add(asyncio.create_task(self._pump(source, sink)))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.closing(sink), contextlib.suppress(OSError):
            while chunk := await source.read(65_536):
                await self._open.wait()
                sink.write(chunk)

    async def close(self) -> None:
        """Stop forwarding for good."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


class Waiter:
    """A method that never answers; `left` is set when its call has ended."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    def service(self, details: Any) -> Any:
        """Return the handler of every method, as a generic handler does."""
        return grpc.unary_stream_rpc_method_handler(self._wait)

    async def _wait(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            yield b""
            await asyncio.Event().wait()
        finally:
            self.left.set()


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Waiter, DeafLink, grpc.aio.Channel]]:
    """Serve a Waiter; give it, the link to it, and a channel over the link."""
    waiter, server = Waiter(), Server(ServerConfig(), "test")
    server.grpc.add_generic_rpc_handlers((waiter,))
    await server.start()
    link = DeafLink(int(server.address.rpartition(":")[2]))
    listener = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield waiter, link, channel
    listener.close()
    await link.close()
    await server.grpc.stop(None)


@pytest.mark.fault(
    "hang",
    "a target whose machine stops without a word",
    before="it was shown as ready for 60 seconds",
    now="its connection counts as lost 5 seconds after the last data",
)
async def test_a_client_notices_a_dead_service_within_seconds() -> None:
    async with served() as (_, link, channel):
        stream = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await stream.read()
        link.freeze()
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await asyncio.wait_for(stream.read(), 20)
        assert lost.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.skipif(not THOROUGH, reason="waits for 15 seconds")
async def test_a_service_drops_the_idle_stream_of_a_dead_client() -> None:
    async with served() as (waiter, link, channel):
        stream = channel.unary_stream("/test/Wait")(b"")
        await stream.read()
        link.freeze()
        await asyncio.wait_for(waiter.left.wait(), 30)
