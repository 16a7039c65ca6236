"""Ends streams whose readers take nothing any more, so that what works for them is free again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import grpc

from outrider.errors import ReaderStalled
from outrider.rpc.interceptor import Interceptor, served, serving

_ABORT_SECONDS = 1.0


class StallInterceptor(Interceptor):
    """Gives every message of a stream so many seconds until its reader has made room for it.

    gRPC itself waits as long as the call lasts. It stands outside the interceptor of errors, which
    then answers a stream of messages both ways.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wrap(self, handler: Any, method: str) -> Any:
        if not handler.response_streaming:
            return handler
        bound = self._stream_stream if handler.request_streaming else self._unary_stream
        return serving(handler, bound(served(handler)))

    def _unary_stream(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(request: Any, context: Any) -> None:
            bounded = _Bounded(context, self._seconds)
            try:
                async with aclosing(method(request, context)) as responses:
                    async for response in responses:
                        await bounded.write(response)
            except ReaderStalled as stalled:
                await _give_up(context, stalled)

        return call

    def _stream_stream(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(requests: Any, context: Any) -> None:
            await method(requests, _Bounded(context, self._seconds))

        return call


class _Bounded:
    """A context whose `write` raises ReaderStalled after so many seconds."""

    def __init__(self, context: Any, seconds: float) -> None:
        self._context = context
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: Any) -> None:
        """Write a message."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._context.write(message)
        except TimeoutError:
            raise ReaderStalled(self._seconds) from None


async def _give_up(context: Any, stalled: ReaderStalled) -> None:
    """End the call; who does not read may not even take its status."""
    code = getattr(grpc.StatusCode, stalled.status)
    async with asyncio.timeout(_ABORT_SECONDS):
        await context.abort(code, str(stalled))
