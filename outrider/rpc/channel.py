"""Channels: one per peer for the life of a process, with bounds and keepalive."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass

import grpc

from outrider.errors import InvalidConfig, OutriderError, PeerUnavailable, Unauthenticated
from outrider.rpc.security import ANONYMOUS, ClientSecurity, channel_credentials

MESSAGE_BYTES = 16 * 1024 * 1024
"""Messages up to this size are accepted; longer ones get RESOURCE_EXHAUSTED."""

LAST_PORT = 65535
PLAIN = "plain://"
"""Before an address: never TLS, even if the other addresses of this process need it."""

_LIMITS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
]

_PING_SECONDS, _PONG_SECONDS = 10, 5
_IDLE_SECONDS, _HANDSHAKE_SECONDS = 300, 20
_MOST_CONNECTIONS = 1 << 16
_OTHER_FILES = 640
"""Of a process that its gRPC connections leave: 512 for HTTP's, and what it has open itself."""

SERVER_OPTIONS = [
    *_LIMITS,
    # A machine that is gone closes nothing: its streams end within 15 s, idle ones too.
    ("grpc.keepalive_time_ms", 1000 * _PING_SECONDS),
    ("grpc.keepalive_timeout_ms", 1000 * _PONG_SECONDS),
    ("grpc.http2.ping_timeout_ms", 1000 * _PONG_SECONDS),
    ("grpc.http2.max_pings_without_data", 0),
    # One that says nothing, or has called nothing for long, gives back its file. Calls in flight
    # are never cut: there is no oldest age, and a client that is sent away dials anew.
    ("grpc.server_handshake_timeout_ms", 1000 * _HANDSHAKE_SECONDS),
    ("grpc.max_connection_idle_ms", 1000 * _IDLE_SECONDS),
    # Two servers on one port would share its calls silently.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
]

_PINGS = [
    # Without pings a link that goes down is never noticed.
    ("grpc.keepalive_time_ms", 3000),
    ("grpc.keepalive_timeout_ms", 2000),
    # A ping that follows data has a limit of its own, of a minute.
    ("grpc.http2.ping_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_CLIENT_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # A restarted peer is dialled again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # In spite of its name, how long one attempt may take: with TLS, three round trips.
    ("grpc.min_reconnect_backoff_ms", 3000),
]


def most_connections(files: int) -> int:
    """Return how many connections a server takes in a process that may have so many files open.

    A negative number of files is no limit.
    """
    if files < 0:
        return _MOST_CONNECTIONS
    return max(1, min(_MOST_CONNECTIONS, max(files // 4, files - _OTHER_FILES)))


# --- addresses ---


@dataclass(frozen=True, slots=True)
class Address:
    """A host, in brackets if it is IPv6, and a port; `plain` ones never get TLS."""

    host: str
    port: int
    plain: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether it leads to this machine only."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"


def read_address(name: str, text: str) -> Address:
    """Return the address of a service: HOST:PORT or plain://HOST:PORT. Raises InvalidConfig."""
    address = _split(text.removeprefix(PLAIN), text.startswith(PLAIN))
    if address is None or address.port == 0:
        raise InvalidConfig(name, f"must be HOST:PORT, not {text!r}")
    return address


def read_listen(text: str, option: str = "listen") -> Address:
    """Return where to listen: HOST:PORT, with port 0 for any. Raises InvalidConfig."""
    address = _split(text, False)
    if address is None:
        raise InvalidConfig(option, f"must be HOST:PORT, not {text!r}")
    return address


def check_reach(option: str, address: Address, allow_remote: bool, key_option: str) -> None:
    """Raise InvalidConfig unless an address that others can reach was meant, and is guarded.

    `key_option` would guard it; empty where something does.
    """
    missing = [] if allow_remote else ["--allow-remote"]
    missing += [key_option] if key_option else []
    if missing and not address.loopback:
        needs = " and ".join(missing)
        raise InvalidConfig(option, f"{address.host} is not a loopback address: it needs {needs}")


def _split(text: str, plain: bool) -> Address | None:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= LAST_PORT):
        return None
    return Address(host, int(port), plain) if _is_host(host) else None


def _is_host(text: str) -> bool:
    """Whether this is a name, an IPv4 address, or an IPv6 address in brackets."""
    if text.startswith("[") and text.endswith("]"):
        try:
            return ipaddress.ip_address(text[1:-1]).version == 6
        except ValueError:
            return False
    try:
        text.encode("idna")  # as Python's resolver does, which raises no OSError for it
    except UnicodeError:
        return False
    return bool(text) and not any(char in ":/[] " or not char.isprintable() for char in text)


# --- channels ---


def open_channel(
    address: str,
    security: ClientSecurity = ANONYMOUS,
    most_bytes: int = MESSAGE_BYTES,
    name: str = "",
) -> grpc.aio.Channel:
    """Return a channel to an address; it connects by itself, again and again.

    Messages of more than `most_bytes` are not received. Calls need `call_metadata(security)`
    too. `name` is the host that a certificate must be for, where it is not the address's. Raises
    InvalidConfig.
    """
    to = read_address("address", address)
    credentials = None if to.plain else channel_credentials(security)
    options: list[tuple[str, int | str]]
    options = [*_CLIENT_OPTIONS, ("grpc.max_receive_message_length", most_bytes)]
    options += () if security.no_pings else _PINGS
    if to.loopback:  # it is this machine, which no proxy leads to
        options.append(("grpc.enable_http_proxy", 0))
    if credentials is None:
        return grpc.aio.insecure_channel(str(to), options=options)
    if name:
        options.append(("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(str(to), credentials, options=options)


# --- what keeps a channel shut ---

_HANDSHAKE_FAILURES = (  # what gRPC 1.80 writes, and what it means; the first that fits
    ("certificate has expired", "its certificate has expired"),
    ("certificate is not yet valid", "its certificate is not valid yet"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by the one in --tls-ca"),
    ("Hostname Verification Check failed", "its certificate is for another host name"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS (leave out --tls-ca, or write plain://)"),
    ("handshake failed", "the TLS handshake failed"),
)
_HTTP_1 = "Trying to connect an http1.x server"
_HANGING_UP = ("Socket closed", "Connection reset", "Broken pipe")


def explain_refusal(
    error: grpc.aio.AioRpcError, role: str, address: str, security: ClientSecurity
) -> OutriderError | None:
    """Return why the service did not let us in, or why we did not trust it; None otherwise.

    Unauthenticated when that is sure. A server that hangs up may only be
    stopping, and then PeerUnavailable says what else it could be.
    """
    service, details = f"the {role} at {address}", error.details() or ""
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        if security.token_file is None:
            return Unauthenticated(f"{service} wants a token (--token-file)")
        return Unauthenticated(f"{service} does not accept this token (--token-file)")
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return Unauthenticated(f"{service} gives this token no right to that (--token-file)")
    if error.code() is not grpc.StatusCode.UNAVAILABLE or "failed to connect" not in details:
        return None
    for words, meaning in _HANDSHAKE_FAILURES:
        if words in details:
            return Unauthenticated(f"{service} cannot be trusted: {meaning}")
    if speaks_http_1(error):
        where = "give the port of --listen, not of --http"
        return PeerUnavailable(f"{service} answers in HTTP/1, not in gRPC: {where}")
    if not any(words in details for words in _HANGING_UP):
        return None
    missing = "TLS (--tls-ca)"
    if security.tls_ca is not None and not address.startswith(PLAIN):
        missing = "a client certificate that it accepts (--tls-cert, --tls-key)"
    return PeerUnavailable(f"{service} hangs up; it may want {missing}")


UNREACHABLE = (  # what gRPC writes, and what it means; the first that fits
    ("Connection refused", "the connection is refused"),
    ("errors resolving", "its name cannot be resolved"),
    ("DNS resolution failed", "its name cannot be resolved"),
    ("No route to host", "there is no route to it"),
    ("Network is unreachable", "the network is unreachable"),
    ("timed out", "the connection timed out"),
)


_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables that gRPC takes a proxy from, the first that is set."""

_SPARED = ("no_grpc_proxy", "no_proxy")
"""Variables with what it asks no proxy for, the first that is set."""


def why_unreachable(error: grpc.aio.AioRpcError, address: str) -> str:
    """Return why nobody was reached, as far as gRPC says it; empty where it does not.

    A proxy that the environment puts before the address is named.
    """
    details = error.details() or ""
    why = next((meaning for words, meaning in UNREACHABLE if words in details), "")
    proxy = _proxy_before(read_address("address", address))
    if not proxy:
        return why
    why = why or ("the proxy refuses" if "HTTP proxy returned" in details else "")
    return f"{why}, by way of the proxy in {proxy}".removeprefix(", ")


def _proxy_before(to: Address) -> str:
    """Return the variable whose proxy gRPC asks for this address; empty where it asks none."""
    name = next((name for name in _PROXIES if os.environ.get(name)), "")
    spared = next((os.environ[name] for name in _SPARED if os.environ.get(name)), "")
    direct = any(_is_spared(to.host, entry.strip()) for entry in spared.split(","))
    return "" if to.loopback or direct else name


def _is_spared(host: str, entry: str) -> bool:
    """Whether an entry of no_proxy, a name's end or a block of addresses, covers a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return bool(entry) and host.endswith(entry)


def speaks_http_1(error: grpc.aio.AioRpcError) -> bool:
    """Whether a call failed since an HTTP/1 server answered, which will not change by itself."""
    return _HTTP_1 in (error.details() or "")
