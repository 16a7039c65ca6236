"""Starts an orchestrator."""

from __future__ import annotations

from orchestrator.config import OrchestratorConfig
from orchestrator.peers import Pair, Peer
from orchestrator.servicer import OrchestratorServicer
from outrider import logs
from outrider.rpc.server import Server
from outrider.v1.orchestrator_service_pb2_grpc import add_OrchestratorServiceServicer_to_server


async def run(config: OrchestratorConfig) -> None:
    """Serve until SIGTERM; peers may come and go."""
    pair = make_pair(config)
    server = Server(config.server, "outrider.v1.OrchestratorService")
    add_OrchestratorServiceServicer_to_server(OrchestratorServicer(config, pair), server.grpc)
    await server.start()
    logs.starting("outrider.orchestrator")
    server.watch_for_stop()
    print(f"outrider orchestrator listening on {server.address}", flush=True)
    pair.start()
    await server.set_serving(True)
    logs.event("outrider.orchestrator", "serving", address=server.address)
    for peer in pair.peers:
        logs.event("outrider.orchestrator", peer.detail)
    await server.run_until_stopped(pair.stop)


def make_pair(config: OrchestratorConfig) -> Pair:
    """Return the configured peers, not watched yet. Raises InvalidConfig."""
    target = Peer("target", config.target, config.peer_security)
    if not config.draft:
        return Pair(target, None)
    return Pair(target, Peer("draft", config.draft, config.peer_security))
