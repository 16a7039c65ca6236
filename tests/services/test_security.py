"""Guarded services on real ports: who is let in, what the others are told, and what comes out."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from google.rpc import error_details_pb2
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status

from orchestrator.config import OrchestratorConfig
from orchestrator.main import make_pool
from orchestrator.peers import DialledPeer
from orchestrator.pool import Pool
from orchestrator.service import Orchestrator
from orchestrator.servicer import OrchestratorServicer
from outrider.backoff import FIRST_PAUSE
from outrider.client import (
    CallFailed,
    Delta,
    OutriderClient,
    PeerState,
    Request,
    RollbackMode,
)
from outrider.core.health import doubled
from outrider.engine.host import EngineHost
from outrider.errors import DeadlinePassed, InvalidConfig, PeerUnavailable, Unauthenticated
from outrider.rpc.authorization import AccessInterceptor
from outrider.rpc.channel import open_channel
from outrider.rpc.health_check import check
from outrider.rpc.security import ClientSecurity, ServerSecurity, call_metadata
from outrider.rpc.server import Server, ServerConfig
from outrider.sampling import SamplingParameters
from outrider.speculation import Policy
from outrider.v1 import draft_service_pb2, orchestrator_service_pb2, target_service_pb2
from outrider.v1.orchestrator_service_pb2_grpc import add_OrchestratorServiceServicer_to_server
from outrider_cli import run as run_command
from tests.support.calls import call, calls_of
from tests.support.processes import free_port
from tests.support.services import (
    DRAFT,
    OPTIONS,
    TARGET,
    Role,
    eventually,
    generate,
    request,
    three_services,
    toy,
    written_alone,
)
from tests.support.toy import ToyModel

PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class Files:
    """Tokens and certificates. `client` and `server` are signed by `ca`, `foreign` by another."""

    folder: Path

    def __getattr__(self, name: str) -> Path:
        return self.folder / name.replace("_", ".")

    def server(self, cert: str = "server", **more: Any) -> ServerSecurity:
        """Return what a server with TLS demands."""
        return ServerSecurity(
            tls_cert=self.folder / f"{cert}.pem", tls_key=self.folder / f"{cert}.key", **more
        )

    def client(self, cert: str, **more: Any) -> ClientSecurity:
        """Return what a client with a certificate of its own presents."""
        return ClientSecurity(
            tls_ca=self.folder / "ca.pem",
            tls_cert=self.folder / f"{cert}.pem",
            tls_key=self.folder / f"{cert}.key",
            **more,
        )


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("security")
    ca, other = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other.pem")
    past = {"not_before": datetime(2020, 1, 1), "not_after": datetime(2020, 2, 1)}
    for name, leaf in (
        ("server", ca.issue_cert("127.0.0.1", "localhost")),
        ("elsewhere", ca.issue_cert("elsewhere.example")),
        ("expired", ca.issue_cert("127.0.0.1", **past)),
        ("client", ca.issue_cert("client.example")),
        ("foreign", other.issue_cert("client.example")),
    ):
        leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        leaf.private_key_pem.write_to_path(folder / f"{name}.key")
    for name in ("right", "wrong"):
        (folder / f"{name}.token").write_text(secrets.token_urlsafe(32) + "\n")
    return Files(folder)


# --- guarded services ---


@contextlib.asynccontextmanager
async def model_service(
    role: Role, model: ToyModel, security: ServerSecurity, listen: str = "127.0.0.1:0"
) -> AsyncIterator[Server]:
    host = EngineHost(lambda: model, OPTIONS)
    servicer = role.make_servicer(host)
    config = ServerConfig(listen=listen, reflection=True, security=security)
    server = Server(config, f"outrider.v1.{role.name}Service")
    role.register(servicer, server.grpc)
    await server.start()
    servicer.set_loaded(await asyncio.wrap_future(host.start()))
    await server.set_serving(True)
    try:
        yield server
    finally:
        await server.grpc.stop(None)
        await asyncio.to_thread(host.stop)


@dataclass(frozen=True, slots=True)
class Joined:
    """An orchestrator and what it knows of its peers."""

    server: Server
    pool: Pool


@contextlib.asynccontextmanager
async def orchestrator(
    target: str, draft: str, security: ServerSecurity, peer_security: ClientSecurity
) -> AsyncIterator[Joined]:
    config = OrchestratorConfig(
        server=ServerConfig(security=security),
        targets=[target],
        drafts=[draft] if draft else [],
        peer_security=peer_security,
        draft_seconds=10.0,
    )
    pool = make_pool(config)
    server = Server(config.server, "outrider.v1.OrchestratorService")
    add_OrchestratorServiceServicer_to_server(
        OrchestratorServicer(Orchestrator(config, pool)), server.grpc
    )
    await server.start()
    pool.start()
    await server.set_serving(True)
    try:
        yield Joined(server, pool)
    finally:
        await server.grpc.stop(None)
        await pool.stop()


def big() -> ToyModel:
    return toy(seed=1)


def small() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.95)


@contextlib.asynccontextmanager
async def all_three(security: ServerSecurity, shown: ClientSecurity) -> AsyncIterator[Joined]:
    """Start three services that demand the same, over peers that are shown the same."""
    async with (
        model_service(TARGET, big(), security) as target,
        model_service(DRAFT, small(), security) as draft,
        orchestrator(target.address, draft.address, security, shown) as joined,
    ):
        await eventually(lambda: not joined.pool.obstacle())
        yield joined


@contextlib.asynccontextmanager
async def health_server(
    security: ServerSecurity, listen: str = "127.0.0.1:0"
) -> AsyncIterator[Server]:
    """Start a server with nothing but its health."""
    server = Server(ServerConfig(listen=listen, security=security), "outrider.v1.TargetService")
    await server.start()
    try:
        yield server
    finally:
        await server.grpc.stop(None)


# --- what comes out ---


async def write(address: str, shown: ClientSecurity, temperature: float) -> list[int]:
    """Return what an orchestrator writes for a client, using every call that it makes."""
    options = Request(
        "the rain in spain",
        token_limit=48,
        seed=7,
        sampling=SamplingParameters(temperature=temperature),
        rollback=RollbackMode.RPC,
        policy=Policy.FIXED,  # so that there are rejections, whatever pays
        n_max=4,
    )
    ids: list[int] = []
    async with OutriderClient(address, shown) as client:
        async for event in client.generate(options, PATIENCE):
            if isinstance(event, Delta):
                ids += event.token_ids
        status = await client.status()
    assert status.speculating and [peer.state for peer in status.peers] == [PeerState.READY] * 2
    return ids


@pytest.mark.parametrize("way", ["nothing", "token", "tls", "token and tls", "everything"])
async def test_what_is_written_is_the_same_however_it_is_guarded(
    files: Files, way: str, caplog: pytest.LogCaptureFixture
):
    token: dict[str, Any] = {"token_file": files.right_token} if "token" in way else {}
    server, client = ServerSecurity(**token), ClientSecurity(**token)
    if "tls" in way:
        server, client = files.server(**token), ClientSecurity(tls_ca=files.ca_pem, **token)
    if way == "everything":
        server = files.server(tls_client_ca=files.ca_pem, token_file=files.right_token)
        client = files.client("client", token_file=files.right_token)
    async with all_three(server, client) as joined:
        for temperature in (0.0, 0.8):
            ids = await write(joined.server.address, client, temperature)
            assert ids == written_alone(big(), request(temperature=temperature))
    assert "rollback failed" not in caplog.text


EVERY_CALL = {
    *("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"),
    *(f"/outrider.v1.OrchestratorService/{name}" for name in ("Generate", "GetStatus")),
    *(f"/outrider.v1.TargetService/{name}" for name in ("Tokenize", "Verify")),
    "/outrider.v1.DraftService/Draft",
    *(
        f"/outrider.v1.{role}Service/{name}"
        for role in ("Draft", "Target")
        for name in ("GetModel", "ListVocabulary", "Rollback")
    ),
}


async def test_no_call_forgets_the_token(files: Files, monkeypatch: pytest.MonkeyPatch):
    let_in, refused = set(), set()
    intercept = AccessInterceptor.intercept_service

    async def note(self: Any, continuation: Any, details: Any) -> Any:
        inside = False

        async def enter(details: Any) -> Any:
            nonlocal inside
            inside = True
            return await continuation(details)

        handler = await intercept(self, enter, details)
        (let_in if inside else refused).add(details.method)
        return handler

    monkeypatch.setattr(AccessInterceptor, "intercept_service", note)
    security = ServerSecurity(token_file=files.right_token)
    shown = ClientSecurity(token_file=files.right_token)
    async with all_three(security, shown) as joined:
        await eventually(lambda: not joined.pool.obstacle())
        await write(joined.server.address, shown, 0.8)
        await eventually(lambda: let_in == EVERY_CALL)
    assert refused == set()


async def test_one_peer_may_have_tls_and_the_other_none(files: Files):
    shown = ClientSecurity(tls_ca=files.ca_pem)
    async with (
        model_service(TARGET, big(), files.server()) as target,
        model_service(DRAFT, small(), ServerSecurity()) as draft,
        orchestrator(target.address, f"plain://{draft.address}", ServerSecurity(), shown) as joined,
    ):
        await eventually(lambda: not joined.pool.obstacle())
        ids = await write(f"plain://{joined.server.address}", shown, 0.8)
        assert ids == written_alone(big(), request())


# --- every call of every service ---


COMMON = [
    *calls_of(health_pb2, "Health"),
    *calls_of(reflection_pb2, "ServerReflection"),
    *((f"/outrider.v1.TargetService/Nothing{a:d}{b:d}", a, b) for a in (0, 1) for b in (0, 1)),
    ("/no.such.Service/Call", False, False),
]
CALLS = {
    "Draft": calls_of(draft_service_pb2, "DraftService"),
    "Target": calls_of(target_service_pb2, "TargetService"),
    "Orchestrator": calls_of(orchestrator_service_pb2, "OrchestratorService"),
}


@contextlib.asynccontextmanager
async def one_of(name: str, security: ServerSecurity) -> AsyncIterator[Server]:
    """Start one service of a kind."""
    if name == "Orchestrator":
        nowhere = "127.0.0.1:1"
        async with orchestrator(nowhere, nowhere, security, ClientSecurity()) as joined:
            yield joined.server
    else:
        role = TARGET if name == "Target" else DRAFT
        async with model_service(role, big(), security) as server:
            yield server


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_wants_the_token(files: Files, name: str, caplog: Any):
    caplog.set_level(logging.DEBUG)
    right = call_metadata(ClientSecurity(token_file=files.right_token))
    wrong = call_metadata(ClientSecurity(token_file=files.wrong_token))
    refusals = set()
    async with (
        one_of(name, ServerSecurity(token_file=files.right_token)) as server,
        open_channel(server.address) as channel,
    ):
        for kind in (*CALLS[name], *COMMON):
            for metadata in ((), wrong, (("authorization", "Bearer"),), (*right, *right)):
                error = await call(channel, kind, metadata)
                assert error is not None, kind
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED, kind
                refusals.add((error.details(), reason_of(error)))
            error = await call(channel, kind, right, 0.3)  # who is let in may be kept waiting
            assert error is None or error.code() is not grpc.StatusCode.UNAUTHENTICATED, kind
    text = "every call must carry the token of this service (--token-file)"
    assert refusals == {(text, "UNAUTHENTICATED")}
    assert_not_told(files, caplog)


def reason_of(error: grpc.aio.AioRpcError) -> str:
    status, info = rpc_status.from_call(error), error_details_pb2.ErrorInfo()
    assert status is not None and status.details[0].Unpack(info)
    assert info.domain == "outrider" and set(info.metadata) <= {"requestId"}
    return str(info.reason)


def assert_not_told(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    """Check that no log record, fields and all, holds a token."""
    told = "\n".join(str(vars(record)) for record in caplog.records)
    for path in (files.right_token, files.wrong_token):
        assert path.read_text().strip() not in told


async def test_a_request_is_not_read_before_the_token_is(files: Files):
    """A refusal comes while the request is still on its way."""
    async with (
        health_server(ServerSecurity(token_file=files.right_token)) as server,
        open_channel(server.address) as channel,
    ):
        endless = channel.stream_stream("/outrider.v1.TargetService/Verify")(timeout=PATIENCE)
        assert await endless.code() is grpc.StatusCode.UNAUTHENTICATED


# --- what a client is told ---


@contextlib.asynccontextmanager
async def hanging_up() -> AsyncIterator[str]:
    """Listen, and close every connection at once."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def failures(files: Files) -> Iterator[tuple[ServerSecurity, ClientSecurity, str, str]]:
    """Yield what a server demands, what a client shows, the code, and the words after the name."""
    token = ServerSecurity(token_file=files.right_token)
    demanding = files.server(tls_client_ca=files.ca_pem)
    trusting = ClientSecurity(tls_ca=files.ca_pem)
    unauthenticated, unavailable = "UNAUTHENTICATED", "UNAVAILABLE"
    yield token, ClientSecurity(), unauthenticated, "wants a token (--token-file)"
    yield (
        token,
        ClientSecurity(token_file=files.wrong_token),
        unauthenticated,
        "does not accept this token (--token-file)",
    )
    yield (
        files.server(token_file=files.right_token),
        trusting,
        unauthenticated,
        "wants a token (--token-file)",
    )
    yield (
        files.server(),
        ClientSecurity(tls_ca=files.other_pem),
        unavailable,
        "cannot be trusted: its certificate is not signed by the one in --tls-ca",
    )
    yield (
        files.server("elsewhere"),
        trusting,
        unavailable,
        "cannot be trusted: its certificate is for another host name",
    )
    yield (
        files.server("expired"),
        trusting,
        unavailable,
        "cannot be trusted: its certificate has expired",
    )
    yield (
        ServerSecurity(),
        trusting,
        unavailable,
        "cannot be trusted: it does not speak TLS (leave out --tls-ca, or write plain://)",
    )
    yield (
        files.server(),
        ClientSecurity(),
        unavailable,
        "hangs up; it may want TLS (--tls-ca)",
    )
    wish = "hangs up; it may want a client certificate that it accepts (--tls-cert, --tls-key)"
    yield demanding, trusting, unavailable, wish
    yield demanding, files.client("foreign"), unavailable, wish


async def test_a_client_is_told_in_one_line_why_it_was_not_let_in(files: Files):
    for demanded, shown, status, words in failures(files):
        async with orchestrator("127.0.0.1:1", "", demanded, ClientSecurity()) as joined:
            address = joined.server.address
            for use in (OutriderClient.status, first_event):
                async with OutriderClient(address, shown) as client:
                    with pytest.raises(CallFailed) as caught:
                        await use(client)
                assert str(caught.value) == f"the orchestrator at {address} {words}"
                assert caught.value.status == caught.value.reason == status
            kind = PeerUnavailable if words.startswith("hangs up") else Unauthenticated
            with pytest.raises(kind) as asked:
                await check(address, shown, PATIENCE)
            assert str(asked.value) == f"the service at {address} {words}"


async def first_event(client: OutriderClient) -> Any:
    events = client.generate(Request("x"))
    try:
        return await anext(events)
    finally:
        await events.aclose()


# --- what an orchestrator is told by its peers ---


@pytest.mark.parametrize(("cert", "said"), [("expired", True), ("server", False)])
async def test_a_service_with_an_expired_certificate_says_so_when_it_starts(
    files: Files, cert: str, said: bool, caplog: pytest.LogCaptureFixture
):
    config = ServerConfig(listen="127.0.0.1:0", security=files.server(cert))
    server = Server(config, "outrider.v1.OrchestratorService")
    await server.start_service("orchestrator")
    await server.grpc.stop(None)
    assert ("the certificate has expired" in caplog.messages) is said


async def test_a_peer_that_refuses_says_why_and_is_taken_back_once_it_is_mended(
    files: Files, caplog: pytest.LogCaptureFixture
):
    demanded = ServerSecurity(token_file=files.right_token)
    shown = ClientSecurity(token_file=files.wrong_token)
    async with (
        model_service(TARGET, big(), demanded) as target,
        orchestrator(target.address, "", ServerSecurity(), shown) as joined,
    ):
        peer, address = joined.pool.target, target.address
        await eventually(lambda: peer.state is PeerState.REFUSED)
        refusal = f"the target at {address} does not accept this token (--token-file)"
        assert peer.detail == refusal
        async with OutriderClient(joined.server.address) as client:
            status = await client.status()
        told = [(each.state, each.detail) for each in status.peers]
        assert told == [(PeerState.REFUSED, refusal)]
        await target.grpc.stop(None)
        mended = ServerSecurity(token_file=files.wrong_token)
        async with model_service(TARGET, big(), mended, address):
            await eventually(lambda: peer.ready)
    assert [record.message for record in caplog.records].count("target refused") == 1
    assert_not_told(files, caplog)


async def test_every_failure_of_a_peer_is_seen_in_its_state(files: Files):
    for demanded, shown, _, words in failures(files):
        async with (
            health_server(demanded) as server,
            orchestrator(server.address, "", ServerSecurity(), shown) as joined,
        ):
            peer = joined.pool.target
            expected = f"the target at {server.address} {words}"
            await eventually(lambda peer=peer, expected=expected: peer.detail == expected)
            sure = not words.startswith("hangs up")
            assert peer.state is (PeerState.REFUSED if sure else PeerState.CONNECTING)


async def test_a_peer_that_refuses_is_not_asked_all_the_time(
    files: Files, monkeypatch: pytest.MonkeyPatch
):
    asked: list[float] = []  # when
    compare = hmac.compare_digest

    def count(one: bytes, other: bytes) -> bool:
        asked.append(time.monotonic())
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", count)
    shown = ClientSecurity(token_file=files.wrong_token)
    async with (
        health_server(ServerSecurity(token_file=files.right_token)) as server,
        orchestrator(server.address, "", ServerSecurity(), shown) as joined,
    ):
        await eventually(lambda: joined.pool.target.state is PeerState.REFUSED)
        await eventually(lambda: len(asked) >= 5)
    pauses = [then - now for now, then in pairwise(asked)]
    shortest = [0.5 * doubled(FIRST_PAUSE, tries, 0.5) for tries in range(len(pauses))]
    assert all(pause > 0.9 * least for pause, least in zip(pauses, shortest, strict=True))


async def test_an_orchestrator_refuses_its_files_at_once(files: Files):
    shown = ClientSecurity(tls_ca=files.right_token)
    config = OrchestratorConfig(server=ServerConfig(), targets=["h:1"], peer_security=shown)
    with pytest.raises(InvalidConfig, match=f"^--tls-ca: .*{files.right_token}"):
        make_pool(config)


# --- health ---


async def test_health_is_one_word(files: Files):
    demanded = files.server(token_file=files.right_token, tls_client_ca=files.ca_pem)
    shown = files.client("client", token_file=files.right_token)
    async with health_server(demanded) as server:
        assert await check(server.address, shown, PATIENCE) == "not serving"
        await server.set_serving(True)
        assert await check(server.address, shown, PATIENCE) == "serving"


async def test_a_service_without_an_answer_has_no_health():
    with pytest.raises(PeerUnavailable, match=r"^no service answers at 127.0.0.1:1$"):
        await check("127.0.0.1:1", ClientSecurity(), PATIENCE)
    for timeout in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidConfig, match=r"^timeout: must be in "):
            await check("127.0.0.1:1", ClientSecurity(), timeout)
    bare = grpc.aio.server()
    port = bare.add_insecure_port("127.0.0.1:0")
    await bare.start()
    with pytest.raises(PeerUnavailable, match=r"has no health: it does not know this call$"):
        await check(f"127.0.0.1:{port}", ClientSecurity(), PATIENCE)
    await bare.stop(None)
    async with hanging_up() as address:
        with pytest.raises(PeerUnavailable, match="hangs up; it may want TLS"):
            await check(address, ClientSecurity(), PATIENCE)


async def test_the_address_of_another_service_is_named_for_what_it_is():
    async with health_server(ServerSecurity()) as server:
        await server.set_serving(True)
        peer = DialledPeer("target", server.address)
        pool = Pool([peer])
        pool.start()
        try:
            wrong = f"what answers at {server.address} is not a target"
            await eventually(lambda: peer.detail == wrong)
        finally:
            await pool.stop()


async def test_a_service_that_is_too_slow_has_no_health(monkeypatch: pytest.MonkeyPatch):
    async def never(self: Any, request: Any, context: Any) -> None:
        await asyncio.sleep(PATIENCE)

    monkeypatch.setattr(health.aio.HealthServicer, "Check", never)
    async with health_server(ServerSecurity()) as server:
        with pytest.raises(DeadlinePassed, match=r"did not answer in time$"):
            await check(server.address, ClientSecurity(), 0.2)


async def test_the_health_command_prints_one_line_and_fails_unless_serving(
    capsys: pytest.CaptureFixture[str],
):
    async with health_server(ServerSecurity()) as server:
        ask = ("health", server.address, "--timeout", str(PATIENCE))
        assert await asyncio.to_thread(run_command, ask) == 1
        await server.set_serving(True)
        assert await asyncio.to_thread(run_command, ask) == 0
    assert capsys.readouterr().out == "not serving\nserving\n"


# --- the network ---


async def test_only_what_travels_in_the_clear_is_warned_about(
    files: Files, caplog: pytest.LogCaptureFixture
):
    remote: dict[str, Any] = {"allow_remote": True, "token_file": files.right_token}
    words = "no TLS: the token and all text travel in the clear"
    for security, listen, warned in (
        (ServerSecurity(**remote), "127.0.0.1:0", False),
        (files.server(**remote), "0.0.0.0:0", False),
        (ServerSecurity(**remote), "0.0.0.0:0", True),
    ):
        caplog.clear()
        async with health_server(security, listen):
            told = [record.message for record in caplog.records if record.levelname == "WARNING"]
            assert told == [words] * warned
    assert_not_told(files, caplog)


@contextlib.asynccontextmanager
async def slow_link(port: int, delay: float) -> AsyncIterator[str]:
    """Pass bytes on to a port of this machine, each `delay` seconds late, both ways."""
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                loop.call_later(delay, writer.write, data)
        loop.call_later(delay, writer.close)

    def spawn(work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        spawn(carry(reader, far_writer))
        spawn(carry(far_reader, writer))

    server = await asyncio.start_server(join, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.sleep(2 * delay)
    for task in tasks:
        task.cancel()


async def test_a_handshake_over_a_slow_link_is_waited_for(files: Files):
    async with health_server(files.server()) as server:
        port = int(server.address.rpartition(":")[2])
        await server.set_serving(True)
        async with slow_link(port, 0.1) as address:
            shown = ClientSecurity(tls_ca=files.ca_pem)
            assert await check(address, shown, PATIENCE) == "serving"


@pytest.mark.fault(
    "others",
    "`http_proxy` in the environment",
    before="services on loopback were looked for behind the proxy: no orchestrator answers",
    now="what leads to this machine goes through no proxy",
)
async def test_loopback_goes_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.setenv(name, "localhost")
    async with three_services(toy, toy) as trio:
        assert (await generate(trio.orchestrator, request(token_limit=4))).token_ids


@pytest.mark.fault(
    "others",
    "a proxy in the environment that does not lead to a service elsewhere",
    before="the service was said to refuse the connection",
    now="the variable that names the proxy is told",
)
@pytest.mark.parametrize("name", ["grpc_proxy", "https_proxy", "http_proxy"])
async def test_a_proxy_that_leads_nowhere_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, f"http://user:secret@127.0.0.1:{free_port()}")
    assert await unreached("192.0.2.1:50060") == (
        "no orchestrator answers at 192.0.2.1:50060: the connection is refused, "
        f"by way of the proxy in {name}"
    )
    for spared in ("192.0.2.0/24", "other, 192.0.2.1"):
        monkeypatch.setenv("no_proxy", spared)
        assert "proxy" not in await unreached("192.0.2.1:50060", seconds=0.2)


async def unreached(address: str, seconds: float = 10.0) -> str:
    """Return why a client does not reach an orchestrator."""
    async with OutriderClient(address) as client:
        with pytest.raises(CallFailed) as failure:
            async for _ in client.generate(Request("a"), timeout_seconds=seconds):
                pass
    return str(failure.value)
