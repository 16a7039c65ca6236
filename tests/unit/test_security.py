"""What a server may demand and a client may present: every mistake is one line, before gRPC."""

from __future__ import annotations

import hmac
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from grpc.aio import AioRpcError, Metadata

from orchestrator.config import OrchestratorConfig
from outrider.errors import InvalidConfig, PeerUnavailable, Unauthenticated
from outrider.grants import digest_of
from outrider.rpc.authorization import AccessInterceptor
from outrider.rpc.channel import Address, explain_refusal, open_channel, read_address, read_listen
from outrider.rpc.security import (
    ClientSecurity,
    ServerSecurity,
    call_metadata,
    channel_credentials,
    make_access,
    server_credentials,
)
from outrider.rpc.server import Server, ServerConfig
from tests.support.certificates import write_tokens

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"  {TOKEN}\n")
    return path


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two certificates and their keys, and files that are neither."""
    folder = tmp_path_factory.mktemp("pems")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("one", "two"):
        leaf = ca.issue_cert("localhost")
        leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        leaf.private_key_pem.write_to_path(folder / f"{name}.key")
    key = serialization.load_pem_private_key((folder / "one.key").read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"password")
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "secret.key").write_bytes(key.private_bytes(encoding, form, secret))
    (folder / "empty.pem").touch()
    (folder / "junk.pem").write_bytes(bytes(range(256)))
    return folder


# --- the token ---


def test_the_token_of_a_file_goes_with_every_call(token_file: Path):
    expected = (("authorization", f"Bearer {TOKEN}"),)
    assert call_metadata(ClientSecurity(token_file=token_file)) == expected
    assert call_metadata(ClientSecurity()) == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "a token has 16 to 4096 characters"),
        (b" \n\t \n", "a token has 16 to 4096 characters"),
        (b"15 characters..\n", "a token has 16 to 4096 characters"),
        (b"x" * 4097, "a token has 16 to 4096 characters"),
        (b"x" * 100_000, "a token has 16 to 4096 characters"),
        (b"sixteen-and-more\nand another line", "one line of printable ASCII"),
        ("schlüsselschlüssel".encode(), "one line of printable ASCII"),
        (b"sixteen-and-more\x00\x01", "one line of printable ASCII"),
        (b"\xff\xfe" * 20, "one line of printable ASCII"),
    ],
)
def test_what_cannot_be_a_token_is_refused_without_a_word_of_it(
    tmp_path: Path, content: bytes, words: str
):
    path = tmp_path / "token"
    path.write_bytes(content)
    for read in (
        lambda: call_metadata(ClientSecurity(token_file=path)),
        lambda: door(path),
    ):
        with pytest.raises(InvalidConfig) as caught:
            read()
        message = str(caught.value)
        assert message.startswith("--token-file: ") and words in message and str(path) in message
        assert "\n" not in message and "sixteen" not in message


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path):
    for path, words in (
        (tmp_path / "none", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(InvalidConfig) as caught:
            call_metadata(ClientSecurity(token_file=path))
        assert str(caught.value) == f"--token-file: cannot read {path}: {words}"


def door(token_file: Path) -> AccessInterceptor:
    return AccessInterceptor(make_access(ServerSecurity(token_file=token_file)))


async def let_through(interceptor: AccessInterceptor, *metadata: tuple[str, Any]) -> bool:
    """Return whether a call with this metadata reaches its method."""
    inside = object()

    async def continuation(details: Any) -> Any:
        return inside

    details: Any = SimpleNamespace(method="/a/B", invocation_metadata=metadata)
    return await interceptor.intercept_service(continuation, details) is inside


async def test_only_the_token_itself_once_opens_the_door(token_file: Path):
    guard, right = door(token_file), ("authorization", f"Bearer {TOKEN}")
    assert await let_through(guard, ("user-agent", "x"), right)
    for wrong in (
        "",
        TOKEN,
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer ",
        f"Basic {TOKEN}",
    ):
        assert not await let_through(guard, ("authorization", wrong))
    assert not await let_through(guard)
    assert not await let_through(guard, ("token", f"Bearer {TOKEN}"))
    assert not await let_through(guard, right, right)
    assert not await let_through(guard, ("authorization", "Bearer schlüssel"))
    assert not await let_through(guard, ("authorization", b"\xff\x00"))


async def test_tokens_are_compared_in_constant_time(
    token_file: Path, monkeypatch: pytest.MonkeyPatch
):
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return True

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert await let_through(door(token_file), ("authorization", "Bearer guess"))
    assert compared == [(digest_of(b"guess"), digest_of(TOKEN.encode()))]


# --- TLS ---


def test_options_that_need_each_other_say_so(tmp_path: Path):
    one = tmp_path / "x.pem"
    for make, message in (
        (lambda: ServerSecurity(tls_cert=one), "--tls-cert: needs --tls-key"),
        (lambda: ServerSecurity(tls_key=one), "--tls-key: needs --tls-cert"),
        (lambda: ServerSecurity(tls_client_ca=one), "--tls-client-ca: needs --tls-cert and"),
        (lambda: ClientSecurity(tls_ca=one, tls_cert=one), "--tls-cert: needs --tls-key"),
        (lambda: ClientSecurity(tls_ca=one, tls_key=one), "--tls-key: needs --tls-cert"),
        (lambda: ClientSecurity(tls_cert=one, tls_key=one), "--tls-cert: needs --tls-ca"),
    ):
        with pytest.raises(InvalidConfig) as caught:
            make()
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("files", "option", "message"),
    [
        ({"tls_cert": "none.pem"}, "--tls-cert", "cannot read {none.pem}: No such file"),
        ({"tls_key": "none.key"}, "--tls-key", "cannot read {none.key}: No such file"),
        ({"tls_cert": "empty.pem"}, "--tls-cert", "there is no PEM certificate in {empty.pem}"),
        ({"tls_cert": "junk.pem"}, "--tls-cert", "there is no PEM certificate in {junk.pem}"),
        ({"tls_cert": "one.key"}, "--tls-cert", "there is no PEM certificate in {one.key}"),
        ({"tls_key": "empty.pem"}, "--tls-key", "there is no PEM key in {empty.pem}"),
        ({"tls_key": "junk.pem"}, "--tls-key", "there is no PEM key in {junk.pem}"),
        ({"tls_key": "one.pem"}, "--tls-key", "there is no PEM key in {one.pem}"),
        ({"tls_key": "secret.key"}, "--tls-key", "the key in {secret.key} is encrypted"),
        ({"tls_key": "two.key"}, "--tls-key", "the key in {two.key} does not belong to the"),
    ],
)
def test_a_certificate_or_key_that_cannot_be_used_is_named(
    pems: Path, files: dict[str, str], option: str, message: str
):
    paths = {name: pems / file for name, file in {**GOOD, **files}.items()}
    expected = f"{option}: {message.replace('{', str(pems) + '/').replace('}', '')}"
    with pytest.raises(InvalidConfig) as of_server:
        server_credentials(ServerSecurity(**paths))
    with pytest.raises(InvalidConfig) as of_client:
        channel_credentials(ClientSecurity(tls_ca=pems / "ca.pem", **paths))
    for caught in (of_server, of_client):
        assert str(caught.value).startswith(expected)
        assert "\n" not in str(caught.value)


GOOD = {"tls_cert": "one.pem", "tls_key": "one.key"}


def test_a_ca_that_cannot_be_used_is_named(pems: Path):
    good = {name: pems / file for name, file in GOOD.items()}
    for name in ("none.pem", "junk.pem", "one.key"):
        with pytest.raises(InvalidConfig, match=f"^--tls-client-ca: .*{pems / name}"):
            server_credentials(ServerSecurity(**good, tls_client_ca=pems / name))
        with pytest.raises(InvalidConfig, match=f"^--tls-ca: .*{pems / name}"):
            channel_credentials(ClientSecurity(tls_ca=pems / name))


def test_good_files_make_credentials_and_none_make_none(pems: Path):
    good = {name: pems / file for name, file in GOOD.items()}
    assert server_credentials(ServerSecurity(**good, tls_client_ca=pems / "ca.pem")) is not None
    assert channel_credentials(ClientSecurity(tls_ca=pems / "ca.pem", **good)) is not None
    assert server_credentials(ServerSecurity()) is None
    assert channel_credentials(ClientSecurity()) is None


async def test_a_server_refuses_its_files_before_it_listens(pems: Path):
    for security, option in (
        (ServerSecurity(token_file=pems / "empty.pem"), "--token-file"),
        (ServerSecurity(tls_cert=pems / "one.pem", tls_key=pems / "two.key"), "--tls-key"),
    ):
        with pytest.raises(InvalidConfig, match=f"^{option}: "):
            Server(ServerConfig(security=security), "outrider.v1.TargetService")


# --- addresses ---


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:50061", Address("127.0.0.1", 50061)),
        ("laptop.example:1", Address("laptop.example", 1)),
        ("laptop.example.:1", Address("laptop.example.", 1)),
        ("bücher.example:1", Address("bücher.example", 1)),
        ("[::1]:50061", Address("[::1]", 50061)),
        ("plain://laptop:50061", Address("laptop", 50061, plain=True)),
        ("plain://[fe80::1]:65535", Address("[fe80::1]", 65535, plain=True)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: Address):
    assert read_address("target", text) == address
    assert str(address) == text.removeprefix("plain://")


NO_ADDRESS = (
    *("", "nowhere", ":1", "host:", "host:0", "host:65536", "host:-1", "host:1x", "host:²"),
    *("host:" + "1" * 5000, "::1:5", "[::1:5", "[host]:5", "[127.0.0.1]:5", "unix:/tmp/x:1"),
    *("dns:///host:1", "tls://host:1", "plain://", "plain://host", "plain://plain://host:1"),
    *("a host:1", "a\tb:1", "a\0b:1", "PLAIN://host:1", "host:1/x"),
    *("a..b:1", ".host:1", "a" * 64 + ".example:1", "a\udcff:1"),
)


@pytest.mark.parametrize("text", NO_ADDRESS)
def test_what_is_no_address_is_refused_wherever_one_is_read(text: str):
    refusal = "must be HOST:PORT, not "
    with pytest.raises(InvalidConfig, match=f"^draft: {refusal}"):
        read_address("draft", text)
    with pytest.raises(InvalidConfig, match=f"^address: {refusal}"):
        open_channel(text)
    if text:
        with pytest.raises(InvalidConfig, match=f"^draft: {refusal}"):
            OrchestratorConfig(server=ServerConfig(), targets=["127.0.0.1:1"], drafts=[text])
    if text != "host:0":
        with pytest.raises(InvalidConfig, match=f"^listen: {refusal}"):
            read_listen(text)


def test_listening_takes_port_zero_and_no_prefix():
    assert read_listen("127.0.0.1:0") == Address("127.0.0.1", 0)
    with pytest.raises(InvalidConfig):
        read_listen("plain://127.0.0.1:0")
    with pytest.raises(InvalidConfig, match=r"^http: must be HOST:PORT"):
        read_listen("8080", "http")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost", "[::1]"])
def test_loopback_hosts_are_known(host: str):
    assert read_listen(f"{host}:0").loopback


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "[::]", "192.168.0.1", "[fe80::1]", "laptop", "localhost.example", "127.1"]
)
async def test_what_others_may_reach_must_be_meant_and_guarded(host: str, token_file: Path):
    assert not read_listen(f"{host}:0").loopback
    named = write_tokens(token_file.with_name("tokens.toml"))
    for security, missing in (
        (ServerSecurity(tokens=named), "--allow-remote"),
        (ServerSecurity(), "--allow-remote and --token-file"),
        (ServerSecurity(allow_remote=True), "--token-file"),
        (ServerSecurity(token_file=token_file), "--allow-remote"),
    ):
        server = Server(ServerConfig(listen=f"{host}:0", security=security), "x")
        with pytest.raises(InvalidConfig) as caught:
            await server.start()
        message = f"listen: {host} is not a loopback address: it needs {missing}"
        assert str(caught.value) == message


# --- what went wrong ---

PLAINLY, BY_TLS = ClientSecurity(), ClientSecurity(tls_ca=Path("ca.pem"))
WITH_TOKEN = ClientSecurity(token_file=Path("token"))
NEVER_IN = "failed to connect to all addresses; last error: "


def explained(code: str, details: str, security: ClientSecurity, address: str = "h:1") -> Any:
    error = AioRpcError(grpc.StatusCode[code], Metadata(), Metadata(), details)
    return explain_refusal(error, "target", address, security)


@pytest.mark.parametrize(
    ("security", "words"),
    [(PLAINLY, "wants a token (--token-file)"), (WITH_TOKEN, "does not accept this token")],
)
def test_a_refused_token_is_told_from_a_missing_one(security: ClientSecurity, words: str):
    refusal = explained("UNAUTHENTICATED", "whatever it says", security)
    assert isinstance(refusal, Unauthenticated)
    assert str(refusal).startswith(f"the target at h:1 {words}")


def test_a_server_that_hangs_up_may_want_what_was_not_shown():
    for security, address, wish in (
        (PLAINLY, "h:1", "TLS (--tls-ca)"),
        (BY_TLS, "plain://h:1", "TLS (--tls-ca)"),
        (BY_TLS, "h:1", "a client certificate that it accepts (--tls-cert, --tls-key)"),
    ):
        refusal = explained("UNAVAILABLE", f"{NEVER_IN}h:1: Socket closed", security, address)
        assert isinstance(refusal, PeerUnavailable)
        assert str(refusal) == f"the target at {address} hangs up; it may want {wish}"


def test_a_port_that_speaks_http_is_called_so():
    details = f"{NEVER_IN}UNIMPLEMENTED: ipv4:h:1: Trying to connect an http1.x server (HTTP 404)"
    refusal = explained("UNAVAILABLE", details, PLAINLY)
    assert isinstance(refusal, PeerUnavailable)
    assert str(refusal) == (
        "the target at h:1 answers in HTTP/1, not in gRPC: give the port of --listen, not of --http"
    )


@pytest.mark.parametrize(
    ("code", "details"),
    [
        ("UNAVAILABLE", f"{NEVER_IN}Failed to connect to remote host: Connection refused"),
        ("UNAVAILABLE", "Socket closed"),  # in the middle of a call
        ("UNAVAILABLE", "the model is loading"),
        ("DEADLINE_EXCEEDED", f"{NEVER_IN}Socket closed"),
        ("INTERNAL", "CERTIFICATE_VERIFY_FAILED"),
        ("UNAVAILABLE", ""),
    ],
)
def test_other_failures_are_not_explained_by_security(code: str, details: str):
    assert explained(code, details, PLAINLY) is None
    assert explained(code, details, BY_TLS) is None


def test_an_unknown_failure_of_the_handshake_is_still_one():
    refusal = explained("UNAVAILABLE", f"{NEVER_IN}Tls handshake failed (X): NEW_REASON", BY_TLS)
    assert str(refusal) == "the target at h:1 cannot be trusted: the TLS handshake failed"
