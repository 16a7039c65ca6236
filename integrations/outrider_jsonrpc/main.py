"""Runs JSON-RPC in front of an orchestrator."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.config import HttpConfig
from gateway.serving import AppServer
from outrider import logs
from outrider.client import OutriderClient
from outrider.rpc.security import ANONYMOUS, ClientSecurity
from outrider.rpc.server import Server, ServerConfig
from outrider_jsonrpc.app import create_app
from outrider_jsonrpc.methods import LibraryRpc
from outrider_jsonrpc.pairs import Pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRpcConfig:
    """One such process. Raises InvalidConfig."""

    server: ServerConfig  # of which `http` has where it listens, and to whom
    http: HttpConfig
    orchestrator: str  # HOST:PORT
    shown: ClientSecurity = ANONYMOUS  # what that one is shown, where callers show nothing
    allow_init: bool = False  # whether callers may have any file here opened as a model


async def run(config: JsonRpcConfig) -> None:
    """Serve until SIGTERM; the orchestrator may come and go. Raises InvalidConfig."""
    security = config.server.security
    files = {"token-file": security.token_file, "tokens": security.tokens}
    pairs = Pairs(
        OutriderClient(config.orchestrator, config.shown),
        guards=[f"--{name}={path.resolve()}" for name, path in files.items() if path],
        shown=ClientSecurity(token_file=config.shown.token_file),
    )
    app = create_app(LibraryRpc(pairs, config.allow_init), config.http, config.allow_init)
    http = AppServer(config.http, app)
    # It listens nowhere itself: what it knows of signals, the parent and settings is used.
    process = Server(replace(config.server, listen=""), "outrider.jsonrpc")
    await process.start_service("jsonrpc")
    await http.start()
    print(f"outrider jsonrpc listening on {http.address}", flush=True)
    logs.event("outrider.jsonrpc", "serving", address=http.address, of=config.orchestrator)
    await process.run_until_stopped(pairs.close, http.stop)
