"""A raw bidirectional echo over gRPC: what a round trip costs before Outrider does anything."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

_METHOD = "/bench.Echo/Echo"


async def serve() -> None:
    """Echo bytes until standard input ends, on a port and on Unix sockets given as `unix:PATH`."""

    async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)

    handlers: dict[str, Any] = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    for address in sys.argv[1:]:
        if address.startswith("unix:"):
            server.add_insecure_port(address)
    await server.start()
    print(f"outrider echo listening on 127.0.0.1:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(None)


class EchoClient:
    """One open echo stream."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._call: Any = self._channel.stream_stream(_METHOD)()

    async def round_trip(self, size: int) -> float:
        """Return the seconds of one echo of `size` bytes."""
        message = bytes(size)
        begin = time.perf_counter()
        await self._call.write(message)
        await self._call.read()
        return time.perf_counter() - begin

    async def close(self) -> None:
        """End the stream."""
        self._call.cancel()
        await self._channel.close()


if __name__ == "__main__":
    asyncio.run(serve())
