"""Servers that hang up on clients that ping them, as gRPC's own do unless set otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from outrider.rpc import channel
from outrider.rpc.security import ClientSecurity

PATIENCE = 60.0
SILENT = "/test.Silent/Wait"


async def test_a_channel_without_pings_outlasts_a_silence_that_ends_one_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    often = [
        (name, 100 if name == "grpc.keepalive_time_ms" else value) for name, value in channel._PINGS
    ]
    monkeypatch.setattr(channel, "_PINGS", often)
    may_answer = asyncio.Event()

    async def wait(_: bytes, context: Any) -> bytes:
        await may_answer.wait()
        return b"at last"

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(wait)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Silent", {"Wait": handler}),)
    )
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with (
            channel.open_channel(address, ClientSecurity(no_pings=True)) as quiet,
            channel.open_channel(address) as pinging,
        ):
            silent = quiet.unary_unary(SILENT)(b"", timeout=PATIENCE)
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await pinging.unary_unary(SILENT)(b"", timeout=PATIENCE)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            may_answer.set()
            assert await silent == b"at last"
    finally:
        await server.stop(None)
