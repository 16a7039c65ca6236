"""Starts a draft service over a llama-server, and stops using that while it is away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from draft_service.joining import Joining
from outrider import logs
from outrider.errors import InvalidConfig
from outrider.file_values import Reread
from outrider.rpc.server import Server
from outrider.tasks import first_of
from outrider.v1.draft_service_pb2_grpc import add_DraftServiceServicer_to_server
from outrider_llama_server.config import LlamaServerConfig
from outrider_llama_server.http import HttpServer
from outrider_llama_server.servicer import LlamaServerServicer
from outrider_llama_server.upstream import Upstream

_LONGEST_KEY = 4096


async def run(config: LlamaServerConfig) -> None:
    """Serve until SIGTERM: health says SERVING while the llama-server is there."""
    os.nice(config.nice)
    upstream = Upstream(HttpServer(config.url, key_of(config.key_file)))
    servicer = LlamaServerServicer(upstream, config.alias)
    server = Server(config.server, "outrider.v1.DraftService")
    add_DraftServiceServicer_to_server(servicer, server.grpc)
    await server.start_service("draft")
    logs.event("outrider.draft", "serving", address=server.address, upstream=config.url)
    parts = [server.run_until_stopped(), serve_while_up(server, upstream)]
    if config.join:
        parts.append(_stay_joined(config, upstream, servicer))
    await first_of(*parts)


def key_of(path: Path | None) -> Callable[[], str]:
    """Return what returns the key in a file, as it is then; nothing without a file.

    Raises InvalidConfig.
    """
    if path is None:
        return lambda: ""
    return Reread([path], lambda: _read_key(path))


def _read_key(path: Path) -> str:
    """Return the key in a file. Raises InvalidConfig."""
    try:
        key = path.read_bytes()[: _LONGEST_KEY + 1].strip().decode("ascii", "replace")
    except OSError as error:
        raise InvalidConfig("key-file", f"{path}: {error.strerror}") from None
    if not 0 < len(key) <= _LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise InvalidConfig("key-file", f"{path} is no line of printable ASCII")
    return key


async def serve_while_up(server: Server, upstream: Upstream) -> None:
    """Look at the llama-server, and let health say whether it can draft."""
    changes = asyncio.Event()

    async def follow() -> None:
        while True:
            await changes.wait()
            changes.clear()
            await server.set_serving(upstream.is_up)

    await first_of(upstream.watch(changes.set), follow())


async def _stay_joined(
    config: LlamaServerConfig, upstream: Upstream, servicer: LlamaServerServicer
) -> None:
    """Be joined while the llama-server is there; another model joins anew."""
    while True:
        await upstream.until(lambda: upstream.is_up)
        joining = Joining(config.join, config.join_security)
        staying = asyncio.create_task(joining.stay(servicer))
        leaves = asyncio.create_task(_until_other(upstream))
        try:
            await asyncio.wait([staying, leaves], return_when=asyncio.FIRST_COMPLETED)
            if staying.done():
                staying.result()
        finally:
            for task in (staying, leaves):
                task.cancel()
            await asyncio.wait([staying, leaves])


async def _until_other(upstream: Upstream) -> None:
    """Wait until the llama-server is away, or serves another model."""
    served = upstream.served
    await upstream.until(lambda: not upstream.is_up or upstream.served != served)
