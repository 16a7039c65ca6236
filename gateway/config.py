"""The settings of the HTTP gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from outrider.access import Grants
from outrider.errors import InvalidConfig
from outrider.grants import grant_of
from outrider.rpc.channel import check_reach, read_listen
from outrider.rpc.security import ServerSecurity, let_in

METRICS_NAMES = ("vllm", "llamacpp")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Where the gateway listens, and to whom. Raises InvalidConfig."""

    PREFIX: ClassVar[str] = "http_"
    """Of what its fields are called among all settings of a process."""

    listen: str
    api_key: str = ""  # what every request must carry, where no file has it; empty: nothing
    key_file: Path | None = None  # has the key, which may everything
    key_option: str = "--http-key-file"  # names that file
    tokens: Path | None = None  # of named tokens, which are keys too
    allow_remote: bool = False  # listen on other addresses than loopback
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None  # demand certificates of clients, signed by this
    cors_origins: tuple[str, ...] = ()  # web pages from there may call; none by default
    allowed_hosts: tuple[str, ...] = ()  # names in URLs that may lead here; see `hosts`
    slots: bool = False  # whether /slots lists what is in flight
    body_bytes: int = 4 * 1024 * 1024  # of a request, at most
    body_seconds: float = 60.0  # for all of a body to come; 4 MiB need 0.6 Mbit/s
    stall_seconds: float = 30.0  # a client that takes nothing for so long is cut off
    idle_seconds: int = 75  # between two requests of a connection; balancers keep them for 60
    ping_seconds: float = 10.0  # seconds; an idle stream gets a comment so often
    state: Path | None = None  # a folder; answers of requests with a key are kept there
    metrics_names: tuple[str, ...] = ()  # of other servers, beside our own

    @property
    def hosts(self) -> frozenset[str] | None:
        """The names that a request may give for this machine beside loopback's; None: any.

        Without a key a web page could otherwise have its own name resolved to
        this address, and read here as if it came from here.
        """
        if self.wants_key and not self.allowed_hosts:
            return None
        return frozenset([read_listen(self.listen, "http").host.strip("[]"), *self.allowed_hosts])

    @property
    def wants_key(self) -> bool:
        """Whether every request must carry a key."""
        return bool(self.api_key) or self.key_file is not None or self.tokens is not None

    @property
    def tls(self) -> ServerSecurity:
        """The files of TLS; none without it. Raises InvalidConfig."""
        return ServerSecurity(
            tls_cert=self.tls_cert, tls_key=self.tls_key, tls_client_ca=self.tls_client_ca
        )

    def let_in(self) -> Grants | None:
        """Return whose requests are answered; None: all are. Raises InvalidConfig."""
        if not self.api_key:
            return let_in(self.key_file, self.tokens, self.key_option)
        grants = (grant_of(self.api_key, self.key_option),)
        return lambda: grants

    def __post_init__(self) -> None:
        guard = "" if self.wants_key else "--http-key-file"
        check_reach("http", read_listen(self.listen, "http"), self.allow_remote, guard)
        if self.idle_seconds < 1:
            raise InvalidConfig("http_keep_alive", f"must be at least 1, not {self.idle_seconds}")
        if self.body_bytes < 1:
            raise InvalidConfig("http_body_limit", f"must be at least 1, not {self.body_bytes}")
        for name in self.metrics_names:
            if name not in METRICS_NAMES:
                raise InvalidConfig(
                    "metrics_names", f"{name!r} is none of {', '.join(METRICS_NAMES)}"
                )
