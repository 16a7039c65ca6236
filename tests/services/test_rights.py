"""Named tokens at a real orchestrator, over gRPC and HTTP: who may what, and how much of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from outrider.client import CallFailed, Finished, OutriderClient, Request, Started
from outrider.errors import InvalidConfig
from outrider.messages import PeerState
from outrider.rpc.authorization import right_for
from outrider.rpc.security import ClientSecurity, ServerSecurity
from outrider.v1 import (
    draft_registry_service_pb2,
    orchestrator_service_pb2,
    target_service_pb2,
)
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider_cli.options import ServerOptions
from outrider_cli.services.commands import shown as shown_to_peers
from tests.support.calls import call, calls_of
from tests.support.certificates import token_of, write_tokens
from tests.support.gateway import serving
from tests.support.services import (
    PATIENCE,
    TARGET,
    Gate,
    JoiningDraft,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    running,
    toy,
)
from tests.support.toy import NEVER, ToyModel

MAY = {"alice": "client", "bob": "client", "olga": "client", "laptop": "draft"}
WAIT = 60.0
BODY = {"prompt": [5, 6, 7], "n_predict": 4, "temperature": 0.0}


@dataclass(slots=True)
class Clock:
    """Stands still unless it is set, so that no test depends on how long it takes."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Guarded:
    """An orchestrator with named tokens, its gateway, and the model that it writes with."""

    orchestrator: OrchestratorProcess
    url: str
    folder: Path
    model: ToyModel
    clock: Clock

    def shown(self, name: str) -> ClientSecurity:
        """Return what a client with a token shows."""
        path = self.folder / f"{name}.token"
        path.write_text(token_of(name))
        return ClientSecurity(token_file=path)

    def client(self, name: str) -> OutriderClient:
        """Return a client with a token."""
        return OutriderClient(self.orchestrator.address, self.shown(name))

    def http(self, name: str = "") -> httpx.AsyncClient:
        """Return an HTTP client with a token."""
        headers = {"Authorization": f"Bearer {token_of(name)}"} if name else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE)


@asynccontextmanager
async def guarded(folder: Path, **limits: str) -> AsyncIterator[Guarded]:
    """Run an orchestrator whose tokens have limits; `olga` may everything but draft."""
    tokens = write_tokens(folder / "tokens.toml", **limits)
    model = toy(seed=1, eos_bias=NEVER, sequence_count=6)
    security = ServerSecurity(tokens=tokens)
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(running(ModelProcess(TARGET, lambda: model)))
        made = OrchestratorProcess(target.address, security=security, accept_drafts=True)
        one = await stack.enter_async_context(running(made))
        await one.until_ready()
        access, clock = one.orchestrator.access, Clock()
        access._clock = clock
        url = await stack.enter_async_context(serving(one.orchestrator, access, tokens=tokens))
        yield Guarded(one, url, folder, model, clock)


def metadata(name: str) -> Any:
    return (("authorization", f"Bearer {token_of(name)}"),)


# --- rights ---

METHODS = [
    *calls_of(orchestrator_service_pb2, "OrchestratorService"),
    *calls_of(draft_registry_service_pb2, "DraftRegistryService"),
]
GENERATE = ("/outrider.v1.OrchestratorService/Generate", False, True)
JOIN = ("/outrider.v1.DraftRegistryService/Join", True, True)
OTHERS = [
    ("/outrider.v1.TargetService/Verify", True, True),
    ("/no.such.Service/Call", False, False),
]


async def code_of(one: Guarded, method: tuple[str, bool, bool], name: str) -> str:
    """Return how a call of an empty message ends for the holder of a token, in a second."""
    error = await call(one.orchestrator.channel, method, metadata(name), 1.0)
    return error.code().name if error is not None else "OK"


async def test_a_token_calls_what_it_has_the_right_to_and_nothing_else(tmp_path: Path):
    async with guarded(tmp_path) as one:
        for method in METHODS:
            right = right_for(method[0])
            assert right is not None and right.value in ("client", "draft"), method
            for name, may in MAY.items():
                code = await code_of(one, method, name)
                # Who is let in may be kept waiting, and so may a refusal on a busy machine.
                while code == "DEADLINE_EXCEEDED" and may != right.value:
                    code = await code_of(one, method, name)
                assert (code == "PERMISSION_DENIED") is (may != right.value), (method, name)
        for method in OTHERS:
            assert right_for(method[0]) == "operator"
            assert await code_of(one, method, "alice") == "PERMISSION_DENIED"
        assert await code_of(one, METHODS[0], "nobody") == "UNAUTHENTICATED"


async def test_every_token_may_ask_for_the_health(tmp_path: Path):
    async with guarded(tmp_path, alice="requests_per_minute = 1") as one:
        stub = health_pb2_grpc.HealthStub(one.orchestrator.channel)
        for name in MAY:
            for _ in range(3):
                asked = health_pb2.HealthCheckRequest()
                await stub.Check(asked, metadata=metadata(name), timeout=PATIENCE)


async def test_a_client_has_texts_written_and_sees_nothing_of_others(tmp_path: Path):
    async with guarded(tmp_path) as one, one.client("alice") as alice, one.client("olga") as olga:
        for client in (alice, olga):
            events = [e async for e in client.generate(Request("ab", token_limit=4))]
            assert isinstance(events[-1], Finished)
        seen, all_of_it = await alice.status(), await olga.status()
        target, address = seen.peer("target"), one.orchestrator.pool.target.address
        assert target is not None and target.state == all_of_it.peers[0].state
        assert all_of_it.peers[0].address == address
        assert address not in str(seen)
        async with one.http("alice") as alices, one.http("olga") as olgas:
            assert address not in (await alices.get("/status")).text
            assert address in (await olgas.get("/status")).text
            for path in ("/metrics", "/slots"):
                assert (await alices.get(path)).status_code == 403
                assert (await olgas.get(path)).status_code in (200, 501)


async def test_an_error_names_the_target_to_operators_alone(tmp_path: Path):
    async with guarded(tmp_path) as one:
        peer = one.orchestrator.pool.target
        orchestrator = one.orchestrator.orchestrator
        orchestrator.reconfigure(replace(orchestrator.config, request_seconds=0.2))
        peer._set(PeerState.LOST, f"waiting for {peer.named}")
        for name, sees_it in (("alice", False), ("olga", True)):
            async with one.client(name) as client, one.http(name) as http:
                with pytest.raises(CallFailed, match="waiting for the target") as failed:
                    await client.submit(Request("ab"))
                texts = [str(failed.value), str(await client.status())]
                for path in ("/completion", "/v1/completions"):
                    answer = await http.post(path, json=BODY | {"prompt": "a"})
                    assert answer.status_code == 503
                    texts.append(answer.text)
            assert [peer.address in text for text in texts] == [sees_it] * 4, texts


async def test_a_draft_joins_with_its_right_alone(tmp_path: Path):
    async with guarded(tmp_path) as one:
        make = partial(toy, seed=2, like=1, agreement=0.9, eos_bias=NEVER)
        async with running(JoiningDraft(one.orchestrator.address, make, one.shown("alice"))) as it:
            with pytest.raises(InvalidConfig, match="gives this token no right to that"):
                await it.task
            assert not one.orchestrator.pool.drafts
        async with running(JoiningDraft(one.orchestrator.address, make, one.shown("laptop"))):
            await eventually(lambda: bool(one.orchestrator.pool.drafts), WAIT)


async def test_a_model_service_is_for_operators(tmp_path: Path):
    tokens = write_tokens(tmp_path / "tokens.toml")
    security = ServerSecurity(tokens=tokens)
    async with running(ModelProcess(TARGET, toy, security=security)) as target:
        for method in calls_of(target_service_pb2, "TargetService"):
            for name in MAY:
                error = await call(target.channel, method, metadata(name), 1.0)
                while name != "olga" and error_name(error) == "DEADLINE_EXCEEDED":
                    error = await call(target.channel, method, metadata(name), 1.0)
                assert (error_name(error) == "PERMISSION_DENIED") is (name != "olga"), method


def error_name(error: grpc.aio.AioRpcError | None) -> str:
    return "" if error is None else error.code().name


async def test_peers_are_shown_a_token_of_their_own(tmp_path: Path):
    peers, own = tmp_path / "peers.token", tmp_path / "own.token"
    peers.write_text(token_of("olga"))
    own.write_text("the-token-that-may-everything")
    demanded = ServerSecurity(tokens=write_tokens(tmp_path / "tokens.toml"))
    shown = shown_to_peers(ServerOptions(token_file=own), None, peers)
    security = ServerSecurity(token_file=own)
    async with (
        running(ModelProcess(TARGET, toy, security=demanded)) as target,
        running(
            OrchestratorProcess(target.address, security=security, peer_security=shown)
        ) as orchestrator,
    ):
        await eventually(lambda: orchestrator.pool.target.ready, WAIT)
        error = await call(orchestrator.channel, GENERATE, metadata("olga"), WAIT)
        assert error_name(error) == "UNAUTHENTICATED"
        peer = orchestrator.pool.target
        peers.write_text(token_of("alice"))
        await eventually(lambda: token_of("alice") in str(peer.metadata), WAIT)
        await target.restart()
        refusal = "gives this token no right to that"
        await eventually(lambda: refusal in peer.detail, WAIT)
    assert shown_to_peers(ServerOptions(token_file=own), None).token_file == own


async def test_a_job_is_there_for_its_own_token_and_for_operators(tmp_path: Path):
    async with guarded(tmp_path) as one, one.client("alice") as alice, one.client("bob") as bob:
        job, _ = await alice.submit(Request("ab", token_limit=4))
        for use in (bob.poll, bob.cancel):
            with pytest.raises(CallFailed) as refused:
                await use(job)
            assert refused.value.reason == "NOT_FOUND"
        async with one.client("olga") as olga:
            await olga.poll(job, 0, 1.0)
        await eventually(lambda: alice_is_done(alice, job), WAIT)


async def alice_is_done(alice: OutriderClient, job: str) -> bool:
    return (await alice.poll(job)).finished


# --- limits ---


@asynccontextmanager
async def a_stream(one: Guarded, client: OutriderClient) -> AsyncIterator[None]:
    """Have a text written that is in flight while the model's gate is shut."""
    gate = Gate(one.model)
    events = client.generate(Request("ab", token_limit=8))
    first = asyncio.ensure_future(anext(events))
    await gate.reached()
    try:
        yield
    finally:
        await gate.open()
        await first
        async for _ in events:
            pass


async def test_a_generation_counts_once_whichever_way_it_came(tmp_path: Path):
    async with (
        guarded(tmp_path, alice="generations = 1") as one,
        one.client("alice") as alice,
        one.http("alice") as http,
    ):
        async with a_stream(one, alice):
            with pytest.raises(CallFailed) as refused:
                await anext(alice.generate(Request("ab")))
            assert refused.value.reason == "LIMIT_REACHED"
            with pytest.raises(CallFailed) as refused:
                await alice.submit(Request("ab"))
            assert refused.value.reason == "LIMIT_REACHED"
            answer = await http.post("/completion", json=BODY)
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
            answer = await http.post("/completion", json=BODY | {"stream": True})
            assert answer.status_code == 429
        # And none of them counts any more.
        for _ in range(3):
            assert (await http.post("/completion", json=BODY)).status_code == 200
            async for _ in alice.generate(Request("ab", token_limit=2)):
                pass


async def test_a_job_counts_until_it_is_over_and_as_many_as_its_completions(tmp_path: Path):
    async with (
        guarded(tmp_path, alice="generations = 2") as one,
        one.client("alice") as alice,
        one.http("alice") as http,
    ):
        with pytest.raises(CallFailed) as refused:
            await alice.submit(Request("ab", completion_count=3, token_limit=2))
        assert refused.value.reason == "INVALID_REQUEST", "which no waiting mends"
        job, _ = await alice.submit(Request("ab", completion_count=2, token_limit=150))
        answer = await http.post("/completion", json=BODY)
        is_over = (await alice.poll(job)).finished
        assert answer.status_code == 429 or is_over
        await alice.cancel(job)
        assert (await http.post("/completion", json=BODY)).status_code == 200


async def test_tokens_of_one_surface_are_used_at_the_other(tmp_path: Path):
    async with (
        guarded(tmp_path, alice="tokens_per_minute = 6") as one,
        one.client("alice") as alice,
        one.http("alice") as http,
    ):
        options = Request([5, 6], token_limit=40)
        events = [event async for event in alice.generate(options)]
        assert isinstance(events[0], Started) and isinstance(events[-1], Finished)
        used = len(events[0].prompt_token_ids) + 40
        wait = 10 * (used - 5)  # six a minute drain
        answer = await http.post("/v1/completions", json={"prompt": "ab", "max_tokens": 1})
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, str(wait))
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert (await http.post("/v1/embeddings", json={"input": "ab"})).status_code == 429
        one.clock.now += wait
        answer = await http.post("/v1/completions", json={"prompt": "ab", "max_tokens": 1})
        assert answer.status_code == 200


@pytest.mark.fault(
    "others",
    "a page that is left open, under `requests_per_minute`",
    before="it asked for the status every 2 s, and each counted: its user could not generate",
    now="what no model computes for does not count",
)
async def test_what_no_model_computes_for_is_not_counted(tmp_path: Path):
    async with (
        guarded(tmp_path, alice="requests_per_minute = 1") as one,
        one.client("alice") as alice,
        one.http("alice") as http,
    ):
        for _ in range(3):
            await alice.status()
            await alice.tokenize("ab")
            for path in ("/status", "/props", "/v1/models", "/api/tags", "/api/ps", "/api/version"):
                assert (await http.get(path)).status_code == 200
            assert (await http.post("/tokenize", json={"content": "ab"})).status_code == 200
        assert (await http.post("/completion", json=BODY)).status_code == 200
        assert (await http.post("/completion", json=BODY)).status_code == 429


async def test_requests_of_both_surfaces_share_a_limit(tmp_path: Path):
    async with (
        guarded(tmp_path, alice="requests_per_minute = 2") as one,
        one.client("alice") as alice,
        one.http("alice") as http,
    ):
        assert (await http.post("/completion", json=BODY)).status_code == 200
        [_ async for _ in alice.generate(Request("ab", token_limit=1))]
        code, details = await refused_call(one, "alice")
        assert (code, details.retry_delay.ToSeconds()) == ("RESOURCE_EXHAUSTED", 30)
        for path, body in REFUSED_SHAPES.items():
            answer = await http.post(path, json={})
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "30")
            assert body in answer.text, path


REFUSED_SHAPES = {
    "/v1/chat/completions": '"type":"rate_limit_error","param":null,"code":"limit_reached"',
    "/v1/messages": '{"type":"error","error":{"type":"rate_limit_error"',
    "/completion": '{"error":{"code":429,"message":',
    "/api/chat": '{"error":"',
}


async def refused_call(one: Guarded, name: str) -> tuple[str, Any]:
    """Ask for a job; return the code, and what it says of trying again."""
    retry = error_details_pb2.RetryInfo()
    try:
        asked = messages.PollGenerationRequest(job_id="none")
        stub = one.orchestrator.stub
        await stub.PollGeneration(asked, metadata=metadata(name), timeout=PATIENCE)
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)
        assert status is not None and any(each.Unpack(retry) for each in status.details)
        return error.code().name, retry
    raise AssertionError("it was not refused")


async def test_a_token_without_limits_has_none(tmp_path: Path):
    async with guarded(tmp_path) as one, one.http("bob") as http:
        for _ in range(80):
            assert (await http.get("/v1/models")).status_code == 200


async def test_prefixes_of_two_tokens_are_apart(tmp_path: Path):
    async with guarded(tmp_path) as one, one.http("alice") as alice, one.http("bob") as bob:
        body = BODY | {"prompt": [*range(3, 43)], "cache_prompt": True}
        for client, least in ((alice, 0), (bob, 0), (alice, 16), (bob, 16)):
            cached = (await client.post("/completion", json=body)).json()["timings"]["cache_n"]
            assert cached >= least and (least or cached == 0)


# --- what is said of it ---


async def test_a_refusal_is_a_line_with_a_name_and_never_a_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with guarded(tmp_path, alice="generations = 1") as one:
        caplog.clear()
        async with one.client("alice") as alice, a_stream(one, alice):
            with pytest.raises(CallFailed):
                await anext(alice.generate(Request("ab")))
        await code_of(one, JOIN, "bob")
        await code_of(one, GENERATE, "a stranger to us")
        async with one.http("alice") as http, one.http("stranger") as stranger:
            await http.get("/metrics")
            await stranger.get("/v1/models/a secret?of=theirs")
    fields = [record.fields for record in caplog.records if record.name == "outrider.audit"]
    told = [(each["who"], each["what"], each["why"]) for each in fields]
    assert told == [
        ("alice", "a generation", "LIMIT_REACHED"),
        ("bob", JOIN[0], "PERMISSION_DENIED"),
        ("nobody known", GENERATE[0], "UNAUTHENTICATED"),
        ("alice", "GET /metrics", "PERMISSION_DENIED"),
        ("nobody known", "GET another path", "UNAUTHENTICATED"),
    ]
    assert all(each["peer"].startswith("127.0.0.1:") for each in fields)
    everything = json.dumps([vars(each) for each in caplog.records], default=str)
    assert "the-token-of" not in everything and "a secret" not in everything


async def test_many_refusals_are_few_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    async with guarded(tmp_path) as one, one.http("stranger") as stranger:
        for _ in range(200):
            assert (await stranger.get("/v1/models")).status_code == 401

        def counted() -> int:
            lines = [each for each in caplog.records if each.name == "outrider.audit"]
            written = sum(each.getMessage() == "refused" for each in lines)
            return written + sum(each.fields.get("left_out", 0) for each in lines)

        await eventually(lambda: counted() == 200, WAIT)
    lines = [each for each in caplog.records if each.name == "outrider.audit"]
    assert len(lines) < 100
