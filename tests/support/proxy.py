"""A link that misbehaves: stands before a service and meddles with every message."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from enum import Enum
from functools import partial
from typing import Any, Protocol

import grpc

from outrider.rpc.channel import SERVER_OPTIONS, open_channel


class Way(Enum):
    """Where a message goes."""

    UP = "to the service"
    DOWN = "from the service"


class Cut(Exception):
    """Raised by a meddler: the stream breaks here."""


class Meddler(Protocol):
    """Sees every message of one stream and gives what is passed on instead of it.

    It may keep messages back, give some twice, sleep, or raise Cut.
    """

    def __call__(self, way: Way, message: bytes) -> AsyncIterator[bytes]: ...


class Proxy:
    """Forwards every call to a service; `meddler` is asked for one per stream of `method`."""

    def __init__(self, upstream: str, method: str, meddler: Callable[[], Meddler]) -> None:
        self._channel = open_channel(upstream)
        self._method = method
        self._meddler = meddler
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def start(self) -> None:
        """Listen."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((_AnyMethod(self._forward),))
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        self._server = server

    async def close(self) -> None:
        """Stop for good."""
        server, self._server = self._server, None
        assert server is not None
        await server.stop(None)
        await self._channel.close()

    async def _forward(self, method: str, requests: Any, context: Any) -> None:
        meddle = self.meddler_of(method)
        call = self._channel.stream_stream(method)(timeout=context.time_remaining())
        up = asyncio.create_task(_pump_up(requests, call, meddle))
        try:
            await self._pump_down(call, context, meddle, up)
        finally:
            up.cancel()
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError, Cut, Exception):
                await up

    def meddler_of(self, method: str) -> Meddler:
        """Return what every message of a call goes through."""
        return self._meddler() if method.endswith(f"/{self._method}") else _pass_on

    async def _pump_down(
        self, call: Any, context: Any, meddle: Meddler, up: asyncio.Task[None]
    ) -> None:
        down = asyncio.create_task(_write_down(call, context, meddle))
        try:
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            if up.done() and up.exception() is None:
                await asyncio.wait([down])
            for task in (up, down):
                if task.done():
                    task.result()
        except Cut:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the link was cut")
        except asyncio.InvalidStateError:
            return  # the service ended the stream while we wrote
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        finally:
            down.cancel()


async def _pump_up(requests: Any, call: Any, meddle: Meddler) -> None:
    async for request in requests:
        async for message in meddle(Way.UP, request):
            await call.write(message)
    await call.done_writing()


async def _write_down(call: Any, context: Any, meddle: Meddler) -> None:
    async for response in call:
        async for message in meddle(Way.DOWN, response):
            await context.write(message)


async def _pass_on(way: Way, message: bytes) -> AsyncIterator[bytes]:
    yield message


class _AnyMethod(grpc.GenericRpcHandler):
    """Handles every method as a stream of bytes both ways, which a unary call is too."""

    def __init__(self, forward: Callable[[str, Any, Any], Any]) -> None:
        self._forward = forward

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        method = handler_call_details.method
        handler: grpc.RpcMethodHandler = grpc.stream_stream_rpc_method_handler(
            partial(_call, self._forward, method)
        )
        return handler


async def _call(forward: Any, method: str, requests: Any, context: Any) -> None:
    await forward(method, requests, context)
