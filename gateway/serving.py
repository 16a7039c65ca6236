"""Serves an ASGI application with uvicorn, in the event loop that gRPC runs in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from gateway.config import HttpConfig
from gateway.connections import MAX_HEAD_BYTES, Connection
from outrider import logs
from outrider.errors import InvalidConfig
from outrider.rpc.channel import read_listen
from outrider.rpc.security import server_context

_BACKLOG = 2048  # connections that wait to be accepted, uvicorn's own number
_SEND_BYTES = 128 * 1024  # bytes of a socket's send buffer


class AppServer:
    """An application on its port. `address` is known once it is started. Raises InvalidConfig."""

    def __init__(self, config: HttpConfig, app: Any) -> None:
        self._config = config
        context = server_context(config.tls)
        options = uvicorn.Config(
            app,
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

    async def stop(self, seconds: float = 0.0) -> None:
        """Listen no more, and let what is in flight finish for so long."""
        if self._serving is not None:
            self._server.config.timeout_graceful_shutdown = max(1, round(seconds))
            self._server.should_exit = True
            await self._serving
            await asyncio.gather(*self._server.server_state.tasks, return_exceptions=True)


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
