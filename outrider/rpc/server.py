"""Starts a gRPC server with health and reflection, and drains it on SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from outrider.errors import InvalidConfig
from outrider.rpc.channel import SERVER_OPTIONS
from outrider.rpc.errors import ErrorInterceptor

LAST_PORT = 65535

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where to listen and how to stop."""

    listen: str = "127.0.0.1:0"
    reflection: bool = False
    grace_seconds: float = 5.0  # open streams get this long after SIGTERM
    stop_on_stdin_end: bool = False  # so that no child outlives the command that started it


class Server:
    """One service on one port. Health says NOT_SERVING until `set_serving`."""

    def __init__(self, config: ServerConfig, service_name: str) -> None:
        self._config = config
        self._names = ("", service_name)
        self._health = health.aio.HealthServicer()
        self.grpc = grpc.aio.server(interceptors=[ErrorInterceptor()], options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        if config.reflection:
            names = (service_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self.grpc)
        self.address = ""
        self.stop_requested = asyncio.Event()

    async def start(self) -> None:
        """Listen. Raises InvalidConfig when the address cannot be taken."""
        host, separator, port = self._config.listen.rpartition(":")
        if not separator or not port.isdigit() or int(port) > LAST_PORT:
            raise InvalidConfig("listen", f"must be HOST:PORT, not {self._config.listen!r}")
        if host not in ("127.0.0.1", "localhost", "[::1]"):
            raise InvalidConfig("listen", f"services bind loopback addresses only, not {host}")
        await self.set_serving(False)
        try:
            bound = self.grpc.add_insecure_port(self._config.listen)
        except RuntimeError:
            message = f"cannot listen on {self._config.listen}: in use, or not an address here"
            raise InvalidConfig("listen", message) from None
        await self.grpc.start()
        self.address = f"{host}:{bound}"

    async def set_serving(self, serving: bool) -> None:
        """Set the health of the service."""
        for name in self._names:
            await self._health.set(name, _SERVING if serving else _NOT_SERVING)

    def watch_for_stop(self) -> None:
        """Let SIGTERM, SIGINT and, if configured, the end of stdin stop this process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop_requested.set)
        if self._config.stop_on_stdin_end:
            loop.add_reader(sys.stdin.fileno(), _stop_at_end, self.stop_requested)

    async def run_until_stopped(self, stop: Callable[[], Awaitable[None]]) -> None:
        """Wait for `stop_requested`; then say NOT_SERVING, call `stop` and drain."""
        await self.stop_requested.wait()
        await self.set_serving(False)
        await stop()
        await self.grpc.stop(self._config.grace_seconds)


def _stop_at_end(stopped: asyncio.Event) -> None:
    """Stop when standard input ends, as it does when the parent is gone."""
    if not os.read(sys.stdin.fileno(), 1024):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stopped.set()
