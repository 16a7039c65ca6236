"""Serves the gateway with uvicorn, in the event loop that gRPC runs in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection, Iterator

import uvicorn

from gateway.app import create_app
from gateway.config import HttpConfig
from gateway.connections import MAX_HEAD_BYTES, Connection
from gateway.jsonrpc.methods import LegacyRpc
from orchestrator.init_models import Launcher
from orchestrator.service import Orchestrator
from outrider import logs
from outrider.access import Access
from outrider.errors import InvalidConfig
from outrider.rpc.channel import read_listen
from outrider.rpc.security import server_context

_BACKLOG = 2048
_SEND_BYTES = 128 * 1024


class HttpServer:
    """The gateway on its port. `address` is known once it is started.

    With a `launcher`, `init` may change the pair. `access` counts what callers use, also at
    other ports of this process; whom this one lets in, `config` says. Raises InvalidConfig.
    """

    def __init__(
        self,
        config: HttpConfig,
        orchestrator: Orchestrator,
        launcher: Launcher | None = None,
        access: Access | None = None,
    ) -> None:
        self._config = config
        library = LegacyRpc(orchestrator, launcher)
        own_access = (access or Access()).with_grants(config.let_in())
        context = server_context(config.tls)
        self._app = create_app(orchestrator, config, library, own_access)
        options = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,  # paths and queries may hold text of users
            lifespan="off",
            timeout_keep_alive=config.idle_seconds,
            ws="none",
            server_header=False,
            http=type("Connection", (Connection,), {"stall_seconds": config.stall_seconds}),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            ssl_certfile=config.tls_cert,
            ssl_keyfile=config.tls_key,
        )
        options.load()
        options.ssl = context
        self._server = _Server(options)
        self._serving: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Listen and serve. Raises InvalidConfig when the address cannot be taken."""
        address = read_listen(self._config.listen, "http")
        listener = _listen(address.host.strip("[]"), address.port)
        self.address = f"{address.host}:{listener.getsockname()[1]}"
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        if not address.loopback and self._config.tls_cert is None:
            message = "no TLS: the key and all text travel in the clear"
            logs.warning("outrider.http", message, address=self.address)

    def take(self, config: HttpConfig | None, names: Collection[str]) -> Collection[str]:
        """Go by other limits of bodies from now on; return the names of settings that were taken.

        `config` is None where no gateway is configured any more, which takes a restart.
        """
        taken = set(names) & {"http_body_bytes"} if config is not None else set[str]()
        if config is not None and taken:
            self._app.state.bounds.most = config.body_bytes
        return taken

    async def stop(self, seconds: float = 0.0) -> None:
        """Listen no more, and let what is in flight finish for so long."""
        if self._serving is not None:
            self._server.config.timeout_graceful_shutdown = max(1, round(seconds))
            self._server.should_exit = True
            await self._serving
            await asyncio.gather(*self._server.server_state.tasks, return_exceptions=True)
        await self._app.state.answers.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the process."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises InvalidConfig."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Where asyncio knows that it is TCP, it lets every event go out at once; else each waits.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise InvalidConfig("http", f"cannot listen on {host}: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Every connection inherits it: a client that stops reading is noticed after so many bytes.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        listener.bind(place)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        message = f"cannot listen on {host}:{port}: in use, or not an address here"
        raise InvalidConfig("http", message) from None
    return listener
