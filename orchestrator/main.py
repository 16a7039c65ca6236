"""Starts an orchestrator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol

from orchestrator import reloading
from orchestrator.config import OrchestratorConfig
from orchestrator.names import Name
from orchestrator.peers import DialledPeer
from orchestrator.pool import Pool
from orchestrator.service import Orchestrator
from orchestrator.servicer import register
from outrider import logs
from outrider.rpc.security import make_access
from outrider.rpc.server import Server


class HttpGateway(Protocol):
    """Serves HTTP in front of an orchestrator, in its event loop."""

    address: str

    def take(self, config: Any, names: Collection[str]) -> Collection[str]:
        """Take what it can of its settings, as they are now; return the names of those."""

    async def stop(self, seconds: float) -> None:
        """Listen no more, and let what is in flight finish for so long."""


StartGateway = Callable[[Orchestrator], Awaitable[HttpGateway]]


async def run(config: OrchestratorConfig, start_gateway: StartGateway | None = None) -> None:
    """Serve until SIGTERM; peers may come and go.

    Raises InvalidConfig, and NotFound for a lookup cache.
    """
    pool = make_pool(config)
    access = make_access(config.server.security)
    server = Server(config.server, "outrider.v1.OrchestratorService", access)
    orchestrator = Orchestrator(config, pool, access)
    register(orchestrator, server.grpc)
    gateways: list[HttpGateway] = []
    # Before anything listens: who has had an answer may send a signal.
    server.watch_for_stop(partial(_take, orchestrator, gateways))
    await server.start()
    gateway = await start_gateway(orchestrator) if start_gateway else None
    gateways += [gateway] if gateway is not None else []
    logs.starting("outrider.orchestrator")
    print(f"outrider orchestrator listening on {server.address}", flush=True)
    if gateway is not None:
        print(f"outrider http listening on {gateway.address}", flush=True)
    pool.start()
    orchestrator.texts.start()
    orchestrator.start_jobs()
    following = asyncio.create_task(follow_readiness(orchestrator, server))
    logs.event("outrider.orchestrator", "serving", address=server.address)
    for peer in pool.dialled:
        logs.event("outrider.orchestrator", peer.detail)

    async def drain(seconds: float) -> None:
        end = time.monotonic() + seconds
        await orchestrator.drain(seconds)
        if gateway is not None:
            await gateway.stop(max(0.0, end - time.monotonic()))

    async def stop() -> None:
        following.cancel()
        await orchestrator.close()
        await pool.stop()
        await orchestrator.texts.stop()

    await server.run_until_stopped(stop, drain)


def _take(
    orchestrator: Orchestrator,
    gateways: Sequence[HttpGateway],
    config: OrchestratorConfig,
    names: Collection[str],
) -> Collection[str]:
    """Take what can be of settings that were read again; return the names of those."""
    taken = set(reloading.take(orchestrator, config, names))
    return taken.union(*(gateway.take(config.gateway, names) for gateway in gateways))


async def follow_readiness(orchestrator: Orchestrator, server: Server) -> None:
    """Let health say whether the orchestrator is ready, for as long as this runs."""
    while True:
        orchestrator.readiness_changed.clear()
        await server.set_serving(orchestrator.ready)
        try:
            await orchestrator.note_chat_format()
        except Exception as error:  # a model may bring any template; health still follows
            logs.internal_error("outrider.orchestrator", error)
        await orchestrator.readiness_changed.wait()


def make_pool(config: OrchestratorConfig) -> Pool:
    """Return the configured peers, not watched yet. Raises InvalidConfig."""
    security = config.peer_security
    targets = [DialledPeer("target", address, security) for address in config.targets]
    drafts = [DialledPeer("draft", address, security) for address in config.drafts]
    pool = Pool(targets, drafts, config.same_vocabulary)
    pool.names = [Name(peer, security) for peer in pool.dialled]
    return pool
