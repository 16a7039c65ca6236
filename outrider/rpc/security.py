"""What a server demands of its callers and what a client presents: tokens, TLS, or both."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import grpc

from outrider.access import THE_TOKEN, Access, Grants
from outrider.errors import InvalidConfig, InvalidRequest
from outrider.file_values import Reread
from outrider.grants import MOST_BYTES, MOST_TOKEN, Grant, check_token, grant_of, read_grants

HEADER = "authorization"
BEARER = "Bearer "

Metadata = tuple[tuple[str, str], ...]
"""What goes with every call of a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSecurity:
    """What a server demands."""

    allow_remote: bool = False  # listen on other addresses than loopback
    token_file: Path | None = None  # of the token that may everything
    tokens: Path | None = None  # of named tokens with rights and limits
    tls_cert: Path | None = None  # with its chain, if there is one
    tls_key: Path | None = None
    tls_client_ca: Path | None = None  # demand certificates of clients, signed by this

    def __post_init__(self) -> None:
        _check_together(self.tls_cert, self.tls_key)
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidConfig("--tls-client-ca", "needs --tls-cert and --tls-key")

    @property
    def wants_token(self) -> bool:
        """Whether every call must carry a token."""
        return self.token_file is not None or self.tokens is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """What a client presents."""

    token_file: Path | None = None
    tls_ca: Path | None = None  # whom to trust; turns TLS on
    tls_cert: Path | None = None  # its own, for servers that demand one
    tls_key: Path | None = None
    no_pings: bool = False  # they notice a dead link; some servers and proxies hang up on them

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
    return ((HEADER, BEARER + read_token(security.token_file)),)


def metadata_of(security: ClientSecurity) -> Callable[[], Metadata]:
    """Return what returns `call_metadata`, of the file as it is then. Raises InvalidConfig."""
    files = [path for path in (security.token_file,) if path is not None]
    return Reread(files, lambda: call_metadata(security))


def read_token(path: Path, option: str = "--token-file") -> str:
    """Return the token in a file that an option names. Raises InvalidConfig."""
    token = _read_start(option, path, 2 * MOST_TOKEN).strip().decode("ascii", "replace")
    try:
        return check_token(option, token)
    except InvalidRequest as refusal:
        message = str(refusal).removeprefix(f"{option}: ")
        raise InvalidConfig(option, f"{message}; not so in {path}") from None


def make_access(security: ServerSecurity) -> Access:
    """Return whom a process lets in. Raises InvalidConfig for files that cannot be used."""
    return Access(let_in(security.token_file, security.tokens))


def let_in(token_file: Path | None, tokens: Path | None, option: str = THE_TOKEN) -> Grants | None:
    """Return who has the token in a file, or one of those in the other; None without both files.

    `option` names the first file. Both are read again when they change. Raises InvalidConfig.
    """
    sources: list[Grants] = []
    if token_file is not None:
        path = token_file
        sources.append(Reread([path], lambda: (grant_of(read_token(path, option), option),)))
    if tokens is not None:
        named = tokens
        sources.append(Reread([named], lambda: read_tokens(named)))
    if not sources:
        return None
    return lambda: [grant for source in sources for grant in source()]


def read_tokens(path: Path) -> tuple[Grant, ...]:
    """Return the grants in a file. Raises InvalidConfig."""
    data = _read_start("--tokens", path, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InvalidConfig("--tokens", f"{path} is longer than {MOST_BYTES} bytes")
    try:
        return read_grants(data.decode())
    except UnicodeDecodeError:
        raise InvalidConfig("--tokens", f"{path} is not UTF-8") from None
    except InvalidRequest as refusal:
        raise InvalidConfig("--tokens", f"{path}: {refusal}") from None


def _read_start(option: str, path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        _refuse_file(option, path, error)


# --- TLS ---


def server_credentials(security: ServerSecurity) -> grpc.ServerCredentials | None:
    """Return what turns TLS on, or None. Raises InvalidConfig for files that gRPC would refuse.

    Connections that are made after the files have changed see the new ones.
    """
    if security.tls_cert is None:
        return None
    configuration: Reread[Any] = Reread(_server_files(security), lambda: _configuration(security))
    known = first = configuration()

    def changed() -> Any:
        nonlocal known
        before, known = known, configuration()
        return None if known is before else known

    demanded = security.tls_client_ca is not None
    return grpc.dynamic_ssl_server_credentials(first, changed, demanded)


def _server_files(security: ServerSecurity) -> list[Path]:
    files = (security.tls_cert, security.tls_key, security.tls_client_ca)
    return [path for path in files if path is not None]


def _configuration(security: ServerSecurity) -> Any:
    assert security.tls_cert is not None and security.tls_key is not None
    chain, key = _read_pair(security.tls_cert, security.tls_key)
    ca = security.tls_client_ca
    roots = _read_certificates("--tls-client-ca", ca) if ca is not None else None
    return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=roots)


def server_context(security: ServerSecurity) -> ssl.SSLContext | None:
    """Return what turns TLS on in a server of Python's own, or None. Raises InvalidConfig.

    Connections that are made after the files have changed see the new ones.
    """
    if security.tls_cert is None:
        return None
    read = Reread(_server_files(security), lambda: _context(security))
    first = read()

    def use_newest(connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        newest = read()
        if newest is not connection.context:
            connection.context = newest

    # Called for each connection, of clients that name no server too.
    first.sni_callback = use_newest
    return first


def _context(security: ServerSecurity) -> ssl.SSLContext:
    assert security.tls_cert is not None and security.tls_key is not None
    _read_pair(security.tls_cert, security.tls_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(security.tls_cert, security.tls_key)
    if security.tls_client_ca is not None:
        _read_certificates("--tls-client-ca", security.tls_client_ca)
        context.load_verify_locations(security.tls_client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def credentials_of(security: ClientSecurity) -> Callable[[], grpc.ChannelCredentials | None]:
    """Return what returns `channel_credentials`: another value once the files have changed.

    Raises InvalidConfig.
    """
    files = [p for p in (security.tls_ca, security.tls_cert, security.tls_key) if p is not None]
    return Reread(files, lambda: channel_credentials(security))


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
