"""What a server demands of its callers and what a client presents: a shared token, TLS, or both."""

from __future__ import annotations

import hmac
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import grpc
from grpc_status import rpc_status

from outrider.errors import InvalidConfig, Unauthenticated
from outrider.rpc.errors import to_status

LEAST_TOKEN = 16
MOST_TOKEN = 4096  # gRPC takes 16 KiB of metadata

_HEADER = "authorization"

Metadata = tuple[tuple[str, str], ...]
"""What goes with every call of a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSecurity:
    """What a server demands."""

    allow_remote: bool = False  # listen on other addresses than loopback
    token_file: Path | None = None
    tls_cert: Path | None = None  # with its chain, if there is one
    tls_key: Path | None = None
    tls_client_ca: Path | None = None  # demand certificates of clients, signed by this

    def __post_init__(self) -> None:
        _check_together(self.tls_cert, self.tls_key)
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidConfig("--tls-client-ca", "needs --tls-cert and --tls-key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """What a client presents."""

    token_file: Path | None = None
    tls_ca: Path | None = None  # whom to trust; turns TLS on
    tls_cert: Path | None = None  # its own, for servers that demand one
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        _check_together(self.tls_cert, self.tls_key)
        if self.tls_cert is not None and self.tls_ca is None:
            raise InvalidConfig("--tls-cert", "needs --tls-ca, which turns TLS on")


def _check_together(cert: Path | None, key: Path | None) -> None:
    if cert is not None and key is None:
        raise InvalidConfig("--tls-cert", "needs --tls-key")
    if key is not None and cert is None:
        raise InvalidConfig("--tls-key", "needs --tls-cert")


OPEN = ServerSecurity()
"""Demands nothing, and so stays on loopback."""

ANONYMOUS = ClientSecurity()
"""Presents nothing."""


# --- the token ---


def call_metadata(security: ClientSecurity) -> Metadata:
    """Return what every call must carry. Raises InvalidConfig."""
    if security.token_file is None:
        return ()
    return ((_HEADER, _bearer(security.token_file)),)


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls with the token through and refuses all others, before anything is read.

    A method that does not exist is refused like one that does.
    """

    def __init__(self, token_file: Path) -> None:
        self._expected = _bearer(token_file).encode()
        # A stream that is never read stands for every kind of call.
        self._refusal: Any = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        metadata = handler_call_details.invocation_metadata
        given = [value for key, value in metadata if key == _HEADER]
        if len(given) == 1 and hmac.compare_digest(_encode(given[0]), self._expected):
            return await continuation(handler_call_details)
        return self._refusal


async def _refuse(requests: AsyncIterator[Any], context: Any) -> None:
    error = Unauthenticated("every call must carry the token of this service (--token-file)")
    await context.abort_with_status(rpc_status.to_status(to_status(error)))


def _bearer(token_file: Path) -> str:
    return f"Bearer {read_token(token_file)}"


def read_token(path: Path, option: str = "--token-file") -> str:
    """Return the token in a file that an option names. Raises InvalidConfig."""
    try:
        with path.open("rb") as file:
            token = file.read(2 * MOST_TOKEN).strip().decode("ascii", "replace")
    except OSError as error:
        _refuse_file(option, path, error)
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN:
        message = f"a token has {LEAST_TOKEN} to {MOST_TOKEN} characters; not so in {path}"
        raise InvalidConfig(option, message)
    if not (token.isascii() and token.isprintable()):
        raise InvalidConfig(option, f"a token is one line of printable ASCII; not so {path}")
    return token


def _encode(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


# --- TLS ---


def server_credentials(security: ServerSecurity) -> grpc.ServerCredentials | None:
    """Return what turns TLS on, or None. Raises InvalidConfig for files that gRPC would refuse."""
    if security.tls_cert is None or security.tls_key is None:
        return None
    chain, key = _read_pair(security.tls_cert, security.tls_key)
    client_ca = security.tls_client_ca
    return grpc.ssl_server_credentials(
        [(key, chain)],
        root_certificates=_read_certificates("--tls-client-ca", client_ca) if client_ca else None,
        require_client_auth=client_ca is not None,
    )


def channel_credentials(security: ClientSecurity) -> grpc.ChannelCredentials | None:
    """Return what turns TLS on, or None. Raises InvalidConfig for files that gRPC would refuse."""
    if security.tls_ca is None:
        return None
    chain = key = None
    roots = _read_certificates("--tls-ca", security.tls_ca)
    if security.tls_cert is not None and security.tls_key is not None:
        chain, key = _read_pair(security.tls_cert, security.tls_key)
    return grpc.ssl_channel_credentials(roots, key, chain)


def _read_pair(cert: Path, key: Path) -> tuple[bytes, bytes]:
    """Return a certificate with its chain, and its key, in PEM."""
    chain, secret = _read_certificates("--tls-cert", cert), _read("--tls-key", key)

    def refuse_encrypted() -> NoReturn:
        raise InvalidConfig("--tls-key", f"the key in {key} is encrypted; give a plain one")

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key, password=refuse_encrypted)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if reason.endswith("_MISMATCH"):
            message = f"the key in {key} does not belong to the certificate in {cert}"
            raise InvalidConfig("--tls-key", message) from None
        if reason.endswith(("_TOO_SMALL", "_TOO_WEAK")):
            words = reason.lower().replace("_", " ")
            raise InvalidConfig("--tls-cert", f"{cert} is too weak ({words})") from None
        raise InvalidConfig("--tls-key", f"there is no PEM key in {key}") from None
    return chain, secret


def _read_certificates(option: str, path: Path) -> bytes:
    data = _read(option, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        raise InvalidConfig(option, f"there is no PEM certificate in {path}") from None
    return data


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        _refuse_file(option, path, error)


def _refuse_file(option: str, path: Path, error: OSError) -> NoReturn:
    raise InvalidConfig(option, f"cannot read {path}: {error.strerror}") from None
