"""Whole services in this process, on real ports: to start, kill, start again, and talk to."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draft_service.joining import Joining
from draft_service.lookup import LookupServicer
from draft_service.servicer import DraftServicer
from orchestrator.config import OrchestratorConfig
from orchestrator.main import make_pool
from orchestrator.peers import Peer
from orchestrator.service import Orchestrator
from orchestrator.servicer import register
from outrider.access import Access
from outrider.engine.host import EngineHost
from outrider.engine.hosting import HostOptions
from outrider.engine.model import Chunk, Model, Numerics
from outrider.engine.model_draft import ModelDraft
from outrider.engine.own_draft import OwnDraft
from outrider.model_service.servicer import ModelService
from outrider.rpc.channel import open_channel
from outrider.rpc.security import ANONYMOUS, OPEN, ClientSecurity, ServerSecurity, make_access
from outrider.rpc.server import Server, ServerConfig
from outrider.speculation import MODELS, Policy, Speculation
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.draft_service_pb2_grpc import (
    DraftServiceStub,
    add_DraftServiceServicer_to_server,
)
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from outrider.v1.target_service_pb2_grpc import (
    TargetServiceStub,
    add_TargetServiceServicer_to_server,
)
from outrider.wire import read_sampling
from target_service.servicer import TargetServicer
from tests.support.toy import ToyModel, generate_alone

Result = TypeVar("Result")

PATIENCE = 20.0
"""Nothing in these tests takes as long, unless it hangs."""

CONTEXT = 256
OPTIONS = HostOptions(numerics=Numerics.EXACT)


@dataclass(frozen=True, slots=True)
class Role:
    """What differs between the two model services."""

    name: str
    make_servicer: Callable[[EngineHost], ModelService]
    register: Callable[..., None]
    stub: Callable[[grpc.aio.Channel], Any]


DRAFT = Role(
    "Draft",
    partial(DraftServicer, alias="", support=64, tail=0.0),
    add_DraftServiceServicer_to_server,
    DraftServiceStub,
)
DRAFT_WITH_SUFFIXES = Role(
    "Draft",
    partial(DraftServicer, alias="", support=64, tail=0.0, drafters=("suffix",)),
    add_DraftServiceServicer_to_server,
    DraftServiceStub,
)
TARGET = Role(
    "Target",
    partial(TargetServicer, alias=""),
    add_TargetServiceServicer_to_server,
    TargetServiceStub,
)


def toy(**options: Any) -> ToyModel:
    """Return a toy in which every held token counts, so that one wrong cell shows."""
    return ToyModel(**{"context": CONTEXT, "order": CONTEXT, "batch_rows": 128, **options})


class ModelProcess:
    """A model service that keeps its port over restarts and nothing else, like a process."""

    def __init__(
        self,
        role: Role,
        make_model: Callable[[], Any],
        options: HostOptions = OPTIONS,
        pace: float = 0.0,  # seconds of every decode once the model is loaded
        own_draft: Callable[[], Any] | None = None,  # what drafts in the engine's own thread
        load_draft: Callable[[Model], OwnDraft | None] | None = None,  # the same, by the target
        security: ServerSecurity = OPEN,  # what it demands of its callers
    ) -> None:
        self._security = security
        self._role = role
        self._pace = pace
        self._load_draft = load_draft
        if own_draft is not None:
            self._load_draft = lambda model: ModelDraft(own_draft(), target=model)
        self._make_model = make_model
        self._options = options
        self._channel: grpc.aio.Channel | None = None
        self._server: Server | None = None
        self._loaded_decodes = 0
        self.address = "127.0.0.1:0"

    async def start(self) -> None:
        """Listen, load and serve."""
        self.model = self._make_model()
        await self.listen(lambda: self.model)
        await self.load()

    async def listen(self, make_model: Callable[[], Any]) -> None:
        """Listen without a model, as while it loads."""
        self.host = EngineHost(make_model, self._options, load_draft=self._load_draft)
        self.servicer = self._role.make_servicer(self.host)
        name = f"outrider.v1.{self._role.name}Service"
        self._server = await _listen(
            ServerConfig(listen=self.address, security=self._security),
            name,
            lambda server: self._role.register(self.servicer, server),
        )
        self.address = self._server.address

    async def load(self) -> None:
        """Load the model and say SERVING."""
        assert self._server is not None
        self.servicer.set_loaded(await asyncio.wrap_future(self.host.start()))
        if self._pace:
            self.model.step_seconds = max(self._pace, self.model.step_seconds)
        await self._server.set_serving(True)
        self._loaded_decodes = self.host.counters.decodes

    async def kill(self) -> None:
        """Cut every stream and forget everything, without a word to anyone."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.grpc.stop(None)
            await asyncio.to_thread(self.host.stop)

    async def restart(self, make_model: Callable[[], Any] | None = None) -> None:
        """Kill, and start anew on the same port; with another model if one is given."""
        self._make_model = make_model or self._make_model
        await self.kill()
        await self.start()

    async def close(self) -> None:
        """Stop for good."""
        await self.kill()
        if self._channel is not None:
            await self._channel.close()

    @property
    def stub(self) -> Any:
        """A client of the service."""
        return self._role.stub(self.channel)

    @property
    def channel(self) -> grpc.aio.Channel:
        """One channel to the service, whatever becomes of it."""
        if self._channel is None:
            self._channel = open_channel(self.address)
        return self._channel

    @property
    def decode_count(self) -> int:
        """The decodes since the model was loaded and checked."""
        return self.host.counters.decodes - self._loaded_decodes

    async def activity(self) -> common.EngineActivity:
        """Return what the service says of its engine."""
        # After a restart the channel needs a moment.
        response = await self.stub.GetModel(
            common.GetModelRequest(), timeout=PATIENCE, wait_for_ready=True
        )
        activity: common.EngineActivity = response.activity
        return activity

    async def close_sessions(self) -> None:
        """Drop every session from the side, as an eviction would, streams open or not."""
        # The engine's thread owns the cache; no call lists the sessions of others.
        cache = self.host._runner.cache
        for session_id in list(cache._sessions):
            request = common.CloseSessionRequest(session_id=session_id)
            await self.stub.CloseSession(request, timeout=PATIENCE, wait_for_ready=True)

    async def health(self) -> health_pb2.HealthCheckResponse.ServingStatus:
        """Return the service's health."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        return response.status


SERIAL = Speculation(n_max=4, policy=Policy.FIXED, run_ahead=False)


class OrchestratorProcess:
    """An orchestrator over a target, or several, and no or several drafts; it keeps its port.

    An empty draft is none. `security` is what it demands of those who call it.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        draft: str | Sequence[str] = (),
        security: ServerSecurity = OPEN,
        **options: Any,
    ) -> None:
        self._config = OrchestratorConfig(
            server=ServerConfig(security=security),
            targets=[target] if isinstance(target, str) else target,
            drafts=[each for each in ([draft] if isinstance(draft, str) else draft) if each],
            **{"draft_seconds": 10.0, "speculation": SERIAL, **options},
        )
        self._server: Server | None = None
        self.address = "127.0.0.1:0"

    async def start(self) -> None:
        """Listen and watch the peers."""
        config = self._config
        self.pool = make_pool(config)
        access = make_access(config.server.security)
        self.orchestrator = Orchestrator(config, self.pool, access)
        self._server = await _listen(
            replace(config.server, listen=self.address),
            "outrider.v1.OrchestratorService",
            lambda server: register(self.orchestrator, server),
            access,
        )
        self.address = self._server.address
        self.pool.start()
        self.orchestrator.texts.start()
        self.orchestrator.start_jobs()
        self.channel = open_channel(self._server.address)
        self.stub: Any = OrchestratorServiceStub(self.channel)

    async def close(self) -> None:
        """Stop for good."""
        await self.channel.close()
        server, self._server = self._server, None
        assert server is not None
        await server.grpc.stop(None)
        await self.orchestrator.close()
        await self.pool.stop()
        await self.orchestrator.texts.stop()

    async def status(self) -> messages.GetStatusResponse:
        """Return the orchestrator's own view."""
        response: messages.GetStatusResponse = await self.stub.GetStatus(
            messages.GetStatusRequest(), timeout=PATIENCE
        )
        return response

    async def until_ready(self) -> None:
        """Wait until the target, and the draft if there is one, can be used."""
        for peer in self.pool.dialled:
            await eventually(partial(_is_ready, peer))


class JoiningDraft:
    """A draft that listens to nobody and dials an orchestrator."""

    def __init__(
        self, address: str, make_model: Callable[[], Any], shown: ClientSecurity = ANONYMOUS
    ) -> None:
        self._address = address
        self._make_model = make_model
        self._shown = shown

    async def start(self) -> None:
        """Load the model and begin to join."""
        self.model = self._make_model()
        self._host = EngineHost(lambda: self.model, OPTIONS)
        self.servicer = servicer = DraftServicer(self._host, alias="", support=64, tail=0.0)
        servicer.set_loaded(await asyncio.wrap_future(self._host.start()))
        joining = Joining(self._address, self._shown)
        self.task = asyncio.create_task(joining.stay(servicer))

    async def close(self) -> None:
        """Cut the connection without a word."""
        self.task.cancel()
        await asyncio.wait([self.task])
        await asyncio.to_thread(self._host.stop)


class LookupProcess:
    """A draft service without a model. Given an orchestrator it dials that, else it listens."""

    def __init__(self, join: str = "") -> None:
        self._join = join
        self._channel: grpc.aio.Channel | None = None
        self.address = "127.0.0.1:0"

    async def start(self) -> None:
        """Serve, or begin to join."""
        self.servicer = LookupServicer("", ("suffix",))
        if self._join:
            joining = Joining(self._join, ANONYMOUS)
            self._task = asyncio.create_task(joining.stay(self.servicer))
            return
        self._server = await _listen(
            ServerConfig(listen=self.address),
            "outrider.v1.DraftService",
            lambda server: add_DraftServiceServicer_to_server(self.servicer, server),
        )
        self.address = self._server.address
        await self._server.set_serving(True)

    @property
    def stub(self) -> Any:
        """A client of the service."""
        if self._channel is None:
            self._channel = open_channel(self.address)
        return DraftServiceStub(self._channel)

    async def close(self) -> None:
        """Stop without a word."""
        if self._join:
            self._task.cancel()
            await asyncio.wait([self._task])
            return
        await self._server.grpc.stop(None)
        if self._channel is not None:
            await self._channel.close()


def _is_ready(peer: Peer) -> bool:
    return peer.ready


async def _listen(
    config: ServerConfig,
    service_name: str,
    register: Callable[[grpc.aio.Server], None],
    access: Access | None = None,
) -> Server:
    server = Server(config, service_name, access)
    register(server.grpc)
    await server.start()
    return server


# --- starting ---


@contextlib.asynccontextmanager
async def running(process: Result) -> AsyncIterator[Result]:
    """Start anything that has `start` and `close`, and close it at the end."""
    something: Any = process
    await something.start()
    try:
        yield process
    finally:
        await something.close()


@dataclass(frozen=True, slots=True)
class Trio:
    """A target, a draft and the orchestrator over them."""

    target: ModelProcess
    draft: ModelProcess
    orchestrator: OrchestratorProcess


@contextlib.asynccontextmanager
async def three_services(
    make_target: Callable[[], ToyModel],
    make_draft: Callable[[], ToyModel],
    host: HostOptions = OPTIONS,
    pace: float = 0.0,
    **options: Any,
) -> AsyncIterator[Trio]:
    """Start all three and wait until they know each other."""
    async with (
        running(ModelProcess(TARGET, make_target, host, pace)) as target,
        running(ModelProcess(DRAFT, make_draft, host)) as draft,
        running(OrchestratorProcess(target.address, draft.address, **options)) as orchestrator,
    ):
        await orchestrator.until_ready()
        yield Trio(target, draft, orchestrator)


class Gate:
    """Holds up a model's decodes while it is shut, after the first `passes` of them."""

    def __init__(self, model: ToyModel, shut: bool = True, passes: int = 0) -> None:
        self._passes = passes
        self._way = threading.Event()
        self._held_up = threading.Event()
        if not shut:
            self._way.set()
        model.before_decode = self._pass

    def _pass(self, chunks: Sequence[Chunk]) -> None:
        if self._passes > 0:
            self._passes -= 1
            return
        self._held_up.set()
        assert self._way.wait(PATIENCE), "nobody opened the gate"

    async def reached(self) -> None:
        """Wait until a decode is held up."""
        await eventually(self._held_up.is_set)

    async def shut(self) -> None:
        """Hold up every decode from now on."""
        self._way.clear()

    async def open(self) -> None:
        """Let everything through."""
        self._way.set()


# --- talking ---


@dataclass(slots=True)
class Completion:
    """What came of one generation, so far."""

    prompt: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    token_texts: list[bytes] = field(default_factory=list)
    logprobs: list[tuple[float, list[tuple[int, float]]]] = field(default_factory=list)
    reports: list[messages.RoundReport] = field(default_factory=list)
    finished: messages.GenerationFinished | None = None
    is_of_older: bool = False  # of an orchestrator whose protocol has no texts of tokens

    @property
    def text(self) -> str:
        """The text that was shown."""
        return "".join(self.pieces)

    @property
    def statistics(self) -> messages.GenerationStatistics:
        """The final statistics."""
        assert self.finished is not None
        return self.finished.statistics

    def origin_count(self, origin: int) -> int:
        """Return how many tokens came from there."""
        return self.origins.count(origin)

    def add(self, response: messages.GenerateResponse) -> None:
        """Take in one message."""
        event = response.WhichOneof("event")
        if event == "started":
            self.prompt = list(response.started.prompt_token_ids)
        elif event == "delta":
            self.token_ids += response.delta.token_ids
            self.origins += response.delta.origins
            self.token_texts += response.delta.token_texts
            self.pieces += [piece.text for piece in response.delta.pieces if not piece.control]
            self.logprobs += map(_read_logprob, response.delta.logprobs)
            if response.delta.HasField("report"):
                self.reports.append(response.delta.report)
        else:
            assert self.finished is None
            self.finished = response.finished
            if not self.is_of_older:
                self.check_token_texts()

    def check_token_texts(self) -> None:
        """Check of a whole text that it is made of the texts of its tokens."""
        assert len(self.token_texts) == len(self.token_ids)
        joined = b"".join(self.token_texts).decode("utf-8", "replace")
        assert self.finished is not None
        if self.finished.reason == messages.FINISH_REASON_STOP_SEQUENCE:
            assert joined.startswith(self.text)
        elif self.finished.reason == messages.FINISH_REASON_CANCELLED:
            # It may end amid a character, which is then not shown.
            assert joined.removesuffix("\ufffd") == self.text.removesuffix("\ufffd")
        else:
            assert joined == self.text


def _read_logprob(message: messages.TokenLogprob) -> tuple[float, list[tuple[int, float]]]:
    alternatives = message.alternatives
    return message.log_probability, [(a.token.token_id, a.log_probability) for a in alternatives]


@dataclass(frozen=True, slots=True)
class Interruption:
    """Something to do once a generation has come to `count` tokens."""

    count: int
    act: Callable[[], Awaitable[Any]]


async def generate(
    orchestrator: OrchestratorProcess,
    request: messages.GenerateRequest,
    interruptions: Sequence[Interruption] = (),
    into: Completion | None = None,
    timeout: float = PATIENCE,
) -> Completion:
    """Run one generation to its end; `into` keeps what came before an error."""
    completion = Completion() if into is None else into
    waiting = list(interruptions)
    async for response in orchestrator.stub.Generate(request, timeout=timeout):
        completion.add(response)
        while waiting and len(completion.token_ids) >= waiting[0].count:
            await waiting.pop(0).act()
    assert not waiting, "the generation ended before it was interrupted"
    return completion


async def eventually(
    condition: Callable[[], Any], seconds: float = PATIENCE, pause: float = 0.01
) -> None:
    """Wait until a condition, plain or awaitable, holds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        answer = condition()
        if answer is True or (asyncio.iscoroutine(answer) and await answer):
            return
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(pause)


async def all_idle(*processes: ModelProcess) -> bool:
    """Return whether no service has an open session or more sessions than sequences."""
    for process in processes:
        activity = await process.activity()
        room = process.model.describe().sequence_count
        if activity.open_session_count or activity.session_count > room:
            return False
    return True


# --- what has to come out ---


def request(
    prompt: str = "the rain in spain",
    *,
    seed: int = 7,
    token_limit: int = 48,
    temperature: float = 0.8,
    stop_sequences: Sequence[str] = (),
    prompt_tokens: Sequence[int] = (),
    **speculative: Any,
) -> messages.GenerateRequest:
    """Return a request; what is not named here says how to speculate: with models alone."""
    speculative.setdefault("drafters", MODELS)
    asked = messages.GenerateRequest(
        sampling=common.SamplingParameters(temperature=temperature),
        seed=seed,
        token_limit=token_limit,
        stop_sequences=stop_sequences,
        speculative=messages.SpeculativeOptions(**speculative),
    )
    if prompt_tokens:
        asked.prompt_tokens.token_ids.extend(prompt_tokens)
    else:
        asked.prompt_text = prompt
    return asked


def written_alone(model: ToyModel, asked: messages.GenerateRequest) -> list[int]:
    """Return what a target like `model` writes without a draft."""
    prompt = list(asked.prompt_tokens.token_ids)
    if not prompt:
        prompt = model.tokenize(asked.prompt_text.encode(), add_special=True, parse_special=False)
    return generate_alone(
        model, prompt, asked.token_limit, read_sampling(asked.sampling), asked.seed
    )
