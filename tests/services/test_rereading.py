"""Tokens and certificates that change while services run: no restart, and no way in for the old."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from gateway.config import HttpConfig
from gateway.http_server import HttpServer
from outrider.client import CallFailed, OutriderClient
from outrider.errors import OutriderError
from outrider.messages import PeerState
from outrider.rpc.health_check import check
from outrider.rpc.security import ClientSecurity, ServerSecurity
from outrider.rpc.server import Server, ServerConfig
from tests.support.certificates import token_of, write_tokens
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.gateway import serving
from tests.support.services import (
    TARGET,
    JoiningDraft,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    running,
    toy,
)

WAIT = 60.0
SECONDS = 20.0


def write_pair(folder: Path, name: str, ca: trustme.CA) -> None:
    leaf = ca.issue_cert("127.0.0.1", "localhost")
    leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    leaf.private_key_pem.write_to_path(folder / f"{name}.key")


def authorities(folder: Path) -> tuple[trustme.CA, trustme.CA]:
    one, two = trustme.CA(), trustme.CA()
    one.cert_pem.write_to_path(folder / "one.pem")
    two.cert_pem.write_to_path(folder / "two.pem")
    one.cert_pem.write_to_path(folder / "clients.pem")
    for name in ("server", "client"):
        write_pair(folder, name, one)
    return one, two


def presented(address: str) -> bytes:
    """Return the certificate that a server shows to a new connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return shown


async def holds(condition: Callable[[], Any]) -> None:
    await eventually(condition, WAIT, 0.1)


async def is_shown(address: str, path: Path) -> bool:
    try:
        shown = await asyncio.to_thread(presented, address)
    except OSError:
        return False
    return shown == der_of(path)


def der_of(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


async def is_let_in(address: str, shown: ClientSecurity) -> bool:
    try:
        return await check(address, shown, SECONDS) == "not serving"
    except OutriderError:
        return False


async def test_a_service_shows_its_new_certificate_and_keeps_it_when_a_broken_one_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    folder = tmp_path
    one, _ = authorities(folder)
    security = ServerSecurity(tls_cert=folder / "server.pem", tls_key=folder / "server.key")
    http = HttpConfig(listen="127.0.0.1:0", tls_cert=security.tls_cert, tls_key=security.tls_key)
    server = Server(ServerConfig(security=security), "outrider.v1.TargetService")
    gateway = HttpServer(http, FakeOrchestrator())  # type: ignore[arg-type]
    await server.start()
    await gateway.start()
    try:
        addresses = (server.address, gateway.address)
        assert await all_show(addresses, folder / "server.pem")
        write_pair(folder, "server", one)
        await holds(lambda: all_show(addresses, folder / "server.pem"))
        before = complaints(caplog)  # of a certificate that came before its key, perhaps
        shutil.copy(folder / "server.pem", folder / "kept.pem")
        (folder / "server.pem").write_text("no certificate")

        async def have_noticed() -> bool:
            assert await all_show(addresses, folder / "kept.pem")
            return complaints(caplog) == before + len(addresses)

        await holds(have_noticed)
        await asyncio.sleep(1.5)  # they look again, and say nothing more
        assert await have_noticed()
        write_pair(folder, "server", one)
        await holds(lambda: all_show(addresses, folder / "server.pem"))
    finally:
        await gateway.stop()
        await server.grpc.stop(None)


async def all_show(addresses: tuple[str, ...], path: Path) -> bool:
    return all([await is_shown(address, path) for address in addresses])


def complaints(caplog: pytest.LogCaptureFixture) -> int:
    return sum("cannot be used" in each.getMessage() for each in caplog.records)


async def test_clients_of_an_authority_that_is_trusted_no_more_are_not_let_in(tmp_path: Path):
    folder = tmp_path
    _, two = authorities(folder)
    write_pair(folder, "newcomer", two)
    demanded = ServerSecurity(
        tls_cert=folder / "server.pem",
        tls_key=folder / "server.key",
        tls_client_ca=folder / "clients.pem",
    )
    server = Server(ServerConfig(security=demanded), "outrider.v1.TargetService")
    await server.start()
    try:
        old, new = (
            ClientSecurity(
                tls_ca=folder / "one.pem",
                tls_cert=folder / f"{name}.pem",
                tls_key=folder / f"{name}.key",
            )
            for name in ("client", "newcomer")
        )
        assert await is_let_in(server.address, old)
        assert not await is_let_in(server.address, new)
        shutil.copy(folder / "two.pem", folder / "clients.pem")
        await holds(lambda: is_let_in(server.address, new))
        assert not await is_let_in(server.address, old)
    finally:
        await server.grpc.stop(None)


async def test_https_demands_certificates_of_the_newest_authority(tmp_path: Path):
    folder = tmp_path
    _, two = authorities(folder)
    write_pair(folder, "newcomer", two)
    options: dict[str, Any] = {
        "tls_cert": folder / "server.pem",
        "tls_key": folder / "server.key",
        "tls_client_ca": folder / "clients.pem",
    }
    async with serving(**options) as url:
        secure = url.replace("http:", "https:")

        async def is_answered(name: str) -> bool:
            context = ssl.create_default_context(cafile=str(folder / "one.pem"))
            context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
            async with httpx.AsyncClient(verify=context, timeout=SECONDS) as client:
                try:
                    return (await client.get(f"{secure}/livez")).status_code == 200
                except httpx.TransportError:
                    return False

        assert await is_answered("client") and not await is_answered("newcomer")
        shutil.copy(folder / "two.pem", folder / "clients.pem")
        await holds(lambda: is_answered("newcomer"))
        assert not await is_answered("client")


async def test_a_token_that_is_taken_out_is_refused_and_a_new_one_let_in(tmp_path: Path):
    tokens, path = write_tokens(tmp_path / "tokens.toml"), tmp_path / "token"
    path.write_text(token_of("alice"))
    shown = ClientSecurity(token_file=path)
    server = Server(ServerConfig(security=ServerSecurity(tokens=tokens)), "outrider.v1.X")
    await server.start()
    try:
        assert await is_let_in(server.address, shown)
        tokens.write_text(tokens.read_text().replace(token_of("alice"), "another-token-for-alice"))
        await holds(lambda: is_refused(server.address, shown))
        path.write_text("another-token-for-alice")
        assert await is_let_in(server.address, shown)
        tokens.write_text("[tokens")
        await asyncio.sleep(1.5)  # it would be looked at by then; at any time it is let in
        assert await is_let_in(server.address, shown)
    finally:
        await server.grpc.stop(None)


@asynccontextmanager
async def joined_by_the_laptop(folder: Path) -> AsyncIterator[tuple[Path, OrchestratorProcess]]:
    """Yield the file of tokens and an orchestrator that a draft has joined with its own."""
    tokens, path = write_tokens(folder / "tokens.toml"), folder / "token"
    path.write_text(token_of("laptop"))
    security = ServerSecurity(tokens=tokens)
    async with (
        running(ModelProcess(TARGET, toy)) as target,
        running(
            OrchestratorProcess(target.address, security=security, accept_drafts=True)
        ) as orchestrator,
        running(JoiningDraft(orchestrator.address, toy, ClientSecurity(token_file=path))),
    ):
        await holds(lambda: bool(orchestrator.pool.drafts))
        yield tokens, orchestrator


@pytest.mark.fault(
    "hang",
    "The token of a draft that has joined, or of an orchestrator at its target, is taken out",
    before="its open stream stayed: `outrider status` and the page said ready for as long as both "
    "ran, while all that was new was refused",
    now="such a stream ends within two seconds; what is written is finished",
)
async def test_a_draft_whose_token_is_taken_out_is_there_no_more(tmp_path: Path):
    async with joined_by_the_laptop(tmp_path) as (tokens, orchestrator):
        before = tokens.read_text()
        tokens.write_text(before.replace(token_of("laptop"), "another-token-for-the-laptop"))
        await holds(lambda: not orchestrator.pool.drafts)
        tokens.write_text(before)
        await holds(lambda: bool(orchestrator.pool.drafts))


async def test_a_target_that_lets_its_orchestrator_in_no_more_is_shown_as_refusing(
    tmp_path: Path,
):
    tokens, path = write_tokens(tmp_path / "tokens.toml"), tmp_path / "token"
    path.write_text(token_of("olga"))
    async with (
        running(ModelProcess(TARGET, toy, security=ServerSecurity(tokens=tokens))) as target,
        running(
            OrchestratorProcess(target.address, peer_security=ClientSecurity(token_file=path))
        ) as orchestrator,
    ):
        peer = orchestrator.pool.target
        await holds(lambda: peer.ready)
        before = tokens.read_text()
        tokens.write_text(before.replace(token_of("olga"), "another-token-for-olga"))
        await holds(lambda: peer.state is PeerState.REFUSED)
        assert "does not accept this token" in peer.detail
        tokens.write_text(before)
        await holds(lambda: peer.ready)


async def test_a_stream_ends_with_the_right_to_it(tmp_path: Path):
    async with joined_by_the_laptop(tmp_path) as (tokens, orchestrator):
        tokens.write_text(tokens.read_text().replace('"draft"', '"client"'))
        await holds(lambda: not orchestrator.pool.drafts)


async def is_refused(address: str, shown: ClientSecurity) -> bool:
    return not await is_let_in(address, shown)


async def test_http_keys_are_read_again(tmp_path: Path):
    path = tmp_path / "key"
    path.write_text("the-first-key-of-all")
    async with serving(key_file=path) as url, httpx.AsyncClient(timeout=SECONDS) as client:

        async def status(key: str) -> int:
            answer = await client.get(
                f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}
            )
            return answer.status_code

        assert await status("the-first-key-of-all") == 200
        path.write_text("the-second-key-of-all")

        async def is_taken() -> bool:
            return await status("the-second-key-of-all") == 200

        await holds(is_taken)
        assert await status("the-first-key-of-all") == 401


async def test_those_who_dial_show_their_new_token(tmp_path: Path):
    """An orchestrator to its target, a draft to its orchestrator, a client's object."""
    tokens, path = write_tokens(tmp_path / "tokens.toml"), tmp_path / "token"
    path.write_text(token_of("laptop"))
    security = ServerSecurity(tokens=tokens)
    shown = ClientSecurity(token_file=path)
    async with (
        running(ModelProcess(TARGET, toy)) as target,
        running(
            OrchestratorProcess(target.address, security=security, accept_drafts=True)
        ) as orchestrator,
        OutriderClient(orchestrator.address, shown) as client,
        running(JoiningDraft(orchestrator.address, toy, shown)),
    ):
        await holds(lambda: bool(orchestrator.pool.drafts))
        with pytest.raises(CallFailed) as refused:
            await client.status()
        assert refused.value.status == "PERMISSION_DENIED"
        new = "another-token-for-the-laptop"
        tokens.write_text(tokens.read_text().replace(token_of("laptop"), new))
        await holds(lambda: not orchestrator.pool.drafts)
        path.write_text(new)
        await holds(lambda: bool(orchestrator.pool.drafts))
        path.write_text(token_of("bob"))

        async def is_asked_with_it() -> bool:
            with suppress(CallFailed):
                await client.status()
                return True
            return False

        await holds(is_asked_with_it)


async def test_an_orchestrator_dials_again_with_its_new_certificate(tmp_path: Path):
    folder = tmp_path
    one, two = authorities(folder)
    write_pair(folder, "client", two)  # the wrong one, at first
    demanded = ServerSecurity(
        tls_cert=folder / "server.pem",
        tls_key=folder / "server.key",
        tls_client_ca=folder / "one.pem",
    )
    shown = ClientSecurity(
        tls_ca=folder / "one.pem", tls_cert=folder / "client.pem", tls_key=folder / "client.key"
    )
    async with (
        running(ModelProcess(TARGET, toy, security=demanded)) as target,
        running(OrchestratorProcess(target.address, peer_security=shown)) as orchestrator,
    ):
        peer = orchestrator.pool.target
        await holds(lambda: "hangs up" in peer.detail)
        write_pair(folder, "client", one)
        await holds(lambda: peer.ready)
