"""JSON-RPC in front of an orchestrator, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.config import HttpConfig
from gateway.serving import AppServer
from outrider.client import OutriderClient
from outrider.rpc.security import ANONYMOUS, ClientSecurity
from outrider_jsonrpc.app import create_app
from outrider_jsonrpc.methods import LibraryRpc
from outrider_jsonrpc.pairs import Pairs


@asynccontextmanager
async def json_rpc(
    orchestrator: str, shown: ClientSecurity = ANONYMOUS, **options: Any
) -> AsyncIterator[str]:
    """Yield the URL under which /rpc is; `options` are those of HttpConfig."""
    pairs = Pairs(OutriderClient(orchestrator, shown))
    config = HttpConfig(listen="127.0.0.1:0", **options)
    server = AppServer(config, create_app(LibraryRpc(pairs), config))
    await server.start()
    try:
        yield f"http://{server.address}"
    finally:
        await server.stop()
        await pairs.close()
