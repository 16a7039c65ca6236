"""Starts a gRPC server with health and reflection, and drains it on SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from outrider import logs
from outrider.access import Access
from outrider.errors import InvalidConfig
from outrider.rpc.authorization import AccessInterceptor
from outrider.rpc.call_scopes import RequestInterceptor
from outrider.rpc.certificates import own_validity
from outrider.rpc.channel import SERVER_OPTIONS, check_reach, most_connections, read_listen
from outrider.rpc.security import OPEN, ServerSecurity, make_access, server_credentials
from outrider.rpc.stall import StallInterceptor
from outrider.rpc.statuses import ErrorInterceptor
from outrider.settings_reload import Settings, Take
from outrider.tracing import check_endpoint

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

LIVENESS = "liveness"
"""The name under which health says SERVING as long as the process listens, ready or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where to listen, to whom, and how to stop. Raises InvalidConfig."""

    listen: str = "127.0.0.1:0"  # empty: nowhere, for a service that dials its caller
    security: ServerSecurity = OPEN
    reflection: bool = False
    traces: str = ""  # the URL of a collector of traces; empty: nothing is traced
    grace_seconds: float = 5.0  # open streams get this long after SIGTERM
    stall_seconds: float = 30.0  # a stream of which nothing is read for so long ends
    log_level: str = "info"
    settings: Settings | None = field(default=None, compare=False)  # read again on SIGHUP
    stop_on_stdin_end: bool = False  # so that no child outlives the command that started it

    def __post_init__(self) -> None:
        if not 0.0 < self.stall_seconds <= 1e6:
            wrong = f"must be in (0, 1000000] seconds, not {self.stall_seconds:g}"
            raise InvalidConfig("stall-timeout", wrong)
        if self.traces:
            check_endpoint(self.traces)
        if self.log_level not in logs.LEVELS:
            wrong = f"{self.log_level!r} is none of {', '.join(logs.LEVELS)}"
            raise InvalidConfig("log_level", wrong)


class Server:
    """One service on one port. Health says NOT_SERVING until `set_serving`, except for LIVENESS.

    `access` says whom it lets in, where the process has other ports too. Raises InvalidConfig for a
    token or certificate that cannot be used.
    """

    def __init__(
        self, config: ServerConfig, service_name: str, access: Access | None = None
    ) -> None:
        self._config = config
        access = access or make_access(config.security)
        self._credentials = server_credentials(config.security)
        self._names = ("", service_name)  # that the health service answers for
        self._health = health.aio.HealthServicer()
        interceptors: list[grpc.aio.ServerInterceptor] = [
            StallInterceptor(config.stall_seconds),
            ErrorInterceptor(),
        ]
        if access.is_guarded:
            interceptors.insert(0, AccessInterceptor(access))
        interceptors.insert(0, RequestInterceptor())
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = ("grpc.max_allowed_incoming_connections", most_connections(files))
        self.grpc = grpc.aio.server(interceptors=interceptors, options=[*SERVER_OPTIONS, most])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        if config.reflection:
            names = (service_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self.grpc)
        self.address = ""  # HOST:PORT as bound; empty before
        self.stop_requested = asyncio.Event()  # set by SIGTERM or SIGINT

    async def start(self) -> None:
        """Listen. Raises InvalidConfig when the address may not or cannot be taken."""
        if self._config.listen:
            await self._listen()

    def _look_at_certificate(self, role: str) -> None:
        """Log that nobody will trust the certificate, which the clients else say one by one."""
        security = self._config.security
        if security.tls_cert is None or security.tls_key is None:
            return
        if fault := own_validity(security.tls_cert, security.tls_key).fault:
            logs.warning(
                f"outrider.{role}", f"the certificate {fault}", file=str(security.tls_cert)
            )

    async def start_service(self, role: str) -> None:
        """Start, print where for the process that started this one, and let signals stop it."""
        try:
            await self.start()
            self._look_at_certificate(role)
            self.watch_for_stop()
            if self.address:
                print(f"outrider {role} listening on {self.address}", flush=True)
        except BaseException:
            await self.grpc.stop(None)
            raise

    async def _listen(self) -> None:
        address = read_listen(self._config.listen)
        security = self._config.security
        guard = "" if security.wants_token else "--token-file"
        check_reach("listen", address, security.allow_remote, guard)
        await self.set_serving(False)
        try:
            bound = self._bind()
        except RuntimeError:
            message = f"cannot listen on {self._config.listen}: in use, or not an address here"
            raise InvalidConfig("listen", message) from None
        await self._health.set(LIVENESS, _SERVING)
        await self.grpc.start()
        self.address = f"{address.host}:{bound}"
        if not address.loopback and self._credentials is None:
            message = "no TLS: the token and all text travel in the clear"
            logs.warning("outrider.rpc", message, address=self.address)

    def _bind(self) -> int:
        if self._credentials is None:
            return self.grpc.add_insecure_port(self._config.listen)
        return self.grpc.add_secure_port(self._config.listen, self._credentials)

    async def set_serving(self, serving: bool) -> None:
        """Set the health of the service; one that is to stop serves no more."""
        serves = serving and not self.stop_requested.is_set()
        for name in self._names:
            await self._health.set(name, _SERVING if serves else _NOT_SERVING)

    def watch_for_stop(self, take: Take | None = None) -> None:
        """Let SIGTERM, SIGINT and, if configured, the end of stdin stop this process.

        SIGHUP does not: a service outlives the terminal that it was started from. Its settings are
        read again, and what can be of them is taken, by `take` and here.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop_requested.set)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up, take)
        if self._config.stop_on_stdin_end:
            loop.add_reader(sys.stdin.fileno(), _stop_at_end, self.stop_requested)

    def _hang_up(self, take: Take | None) -> None:
        if self._config.settings is None:
            logs.warning("outrider.rpc", "SIGHUP: there are no settings to read again")
        else:
            self._config.settings.reload(take)

    async def run_until_stopped(
        self,
        stop: Callable[[], Awaitable[None]] | None = None,
        drain: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        """Wait for `stop_requested`; then let what is in flight finish, and call `stop`.

        From then on health says NOT_SERVING. `drain` is given the grace and the calls
        continue meanwhile: it has to refuse new work by itself. What it leaves of the grace is
        for the calls that are left; new ones are refused.
        """
        keep_collections_short()
        await self.stop_requested.wait()
        await self.set_serving(False)
        grace = self._config.grace_seconds
        end = time.monotonic() + grace
        logs.event("outrider.rpc", "draining", seconds=grace)
        if drain is not None:
            await drain(grace)
        await self.grpc.stop(max(0.0, end - time.monotonic()))
        if stop is not None:
            await stop()
        logs.event("outrider.rpc", "stopped")


def keep_collections_short() -> None:
    """Spare the garbage collector what is alive by now, and let it look at the rest often.

    A collection holds every thread. Of an orchestrator's 86,000 objects it took 70 ms, and .34 s
    where garbage of 175,000 more had come together, in the middle of a text.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # the oldest generation is collected when it grew by a quarter: now of nothing
    youngest, middle, _ = gc.get_threshold()
    gc.set_threshold(youngest, middle, 1)


def _stop_at_end(stopped: asyncio.Event) -> None:
    """Stop when standard input ends, as it does when the parent is gone."""
    if not os.read(sys.stdin.fileno(), 1024):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stopped.set()
