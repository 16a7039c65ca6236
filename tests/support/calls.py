"""Calls of any method of a service, with one empty message each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc


def calls_of(file: Any, service: str) -> list[tuple[str, bool, bool]]:
    """Return the path of every call, and whether requests and responses are streams."""
    described = file.DESCRIPTOR.services_by_name[service]
    return [
        (f"/{described.full_name}/{call.name}", call.client_streaming, call.server_streaming)
        for call in described.methods
    ]


async def call(
    channel: grpc.aio.Channel, kind: tuple[str, bool, bool], metadata: Any, seconds: float = 2.0
) -> grpc.aio.AioRpcError | None:
    """Make a call with one empty message and return how it failed, if it did within `seconds`."""
    while True:
        error = await call_once(channel, kind, metadata, seconds)
        # A refusal that overtakes the message breaks the writing of it, and grpc tells of that
        # instead if it comes first.
        if error is None or "execute_batch" not in (error.debug_error_string() or ""):
            return error


async def call_once(
    channel: grpc.aio.Channel, kind: tuple[str, bool, bool], metadata: Any, seconds: float
) -> grpc.aio.AioRpcError | None:
    """Make such a call once."""
    path, streams_in, streams_out = kind

    async def messages() -> AsyncIterator[bytes]:
        yield b""

    ways: dict[tuple[bool, bool], Callable[..., Any]] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    made = ways[bool(streams_in), bool(streams_out)](path)(
        messages() if streams_in else b"", metadata=metadata, timeout=seconds
    )
    try:
        if streams_out:
            await made.read()  # Health.Watch answers once and continues
        else:
            await made
    except grpc.aio.AioRpcError as error:
        return error
    finally:
        made.cancel()
    return None
