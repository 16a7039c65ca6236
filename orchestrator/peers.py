"""The model services as seen from here: connected to, described, paired, watched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import outrider
from orchestrator.core.estimates import Mean, PairEstimates
from outrider import handshake, logs, wire
from outrider.costs import CostTable
from outrider.errors import (
    InvalidRequest,
    ModelChanged,
    OutriderError,
    PeerUnavailable,
    Unauthenticated,
    VocabularyMismatch,
)
from outrider.messages import ModelReference, PeerState, SessionParameters
from outrider.rpc.channel import MESSAGE_BYTES, explain_refusal, open_channel
from outrider.rpc.errors import describe, read_error_info
from outrider.rpc.security import ANONYMOUS, ClientSecurity, call_metadata
from outrider.texts import longest_token
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2, target_service_pb2
from outrider.v1.draft_service_pb2_grpc import DraftServiceStub
from outrider.v1.target_service_pb2_grpc import TargetServiceStub

_CALL_SECONDS = 5.0
_RETRY_SECONDS = (0.05, 0.1, 0.1, 0.2, 0.2, 0.5)
_DRAFT_BYTES = 4 << 20  # of one message; 64 rows of 4,096 entries are half of that
_VOCABULARY_BYTES = 256 << 20
_LONGEST_PAUSE = 60.0  # of a draft that breaks the protocol
_FORGIVING_SECONDS = 600.0  # without a fault, and the next pause is a short one again


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A peer's token table: what each id adds to a text, and what it is named."""

    texts: list[bytes]
    names: list[bytes]
    control_ids: Mapping[str, int]
    """Of the tokens that add nothing, by name."""
    longest: int
    """The most bytes of a text that one token can stand for."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """The model that a peer hosts, with the vocabulary of that very model.

    One value, so that no holder reads one model's ids with another's vocabulary.
    """

    model: common.GetModelResponse
    vocabulary: Vocabulary

    @property
    def reference(self) -> ModelReference:
        """What calls and sessions that belong to it name."""
        return wire.hosted_model(self.model)


class Peer:
    """One model service. `watch` keeps its state true for the life of the process.

    `metadata` goes with every call. Raises InvalidConfig for an address, a
    token or a certificate that cannot be used.
    """

    def __init__(self, role: str, address: str, security: ClientSecurity = ANONYMOUS) -> None:
        self.role = role
        self.address = address
        self.state = PeerState.CONNECTING
        self.detail = f"waiting for the {role} at {address}"
        self.hosted: Hosted | None = None
        """What it described last."""
        self.round_trip = 0.0  # of the newest GetModel; 0 before the first
        self._security = security
        self.metadata = call_metadata(security)
        limit = _DRAFT_BYTES if role == "draft" else MESSAGE_BYTES
        self._channel = open_channel(address, security, limit)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        stub = DraftServiceStub if role == "draft" else TargetServiceStub
        self.stub: Any = stub(self._channel)
        self._changed = asyncio.Event()  # set whenever the state may be another
        self.on_change: Callable[[], None] = _ignore
        """Called whenever the state may be another."""
        self.closed = False  # never false again; every wait for it ends

    @property
    def model(self) -> common.GetModelResponse | None:
        """The description, once it is known."""
        return self.hosted.model if self.hosted else None

    @property
    def ready(self) -> bool:
        """Whether generations may use it."""
        return self.state is PeerState.READY

    async def wait_for_model(self, seconds: float) -> Hosted:
        """Return what it hosts once it is ready. Raises PeerUnavailable."""
        if not await self.wait_until_ready(seconds):
            raise PeerUnavailable(self.detail)
        assert self.hosted is not None
        return self.hosted

    async def wait_until_ready(self, seconds: float) -> bool:
        """Return whether the peer was ready within the time."""
        deadline = time.monotonic() + seconds
        while not self.ready:
            left = deadline - time.monotonic()
            if left <= 0 or self.closed:
                return False
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return False
        return True

    async def watch(self, note_described: Callable[[], None]) -> None:
        """Connect and describe; then watch the health, and start again when it ends."""
        tries = 0
        while True:
            try:
                await self._describe()
                note_described()
                self._set(PeerState.READY, "")
                tries = 0
                await self._until_unhealthy()
                self._set(PeerState.LOST, f"the {self.role} at {self.address} stopped serving")
            except VocabularyMismatch as error:
                self._set(PeerState.REFUSED, str(error))
            except InvalidRequest as error:
                wrong = f"the {self.role} at {self.address} describes itself wrongly"
                self._set(PeerState.REFUSED, f"{wrong}: {error}")
            except PeerUnavailable as error:
                self._set(PeerState.LOADING, str(error))
                tries = 0
            except grpc.aio.AioRpcError as error:
                if self._note_failure(error):
                    tries = len(_RETRY_SECONDS)  # only an operator can mend it
            except Exception as error:  # whatever a peer sends, the watch continues
                logs.internal_error("outrider.orchestrator", error)
                unreadable = f"the {self.role} at {self.address} sends what cannot be read"
                self._set(PeerState.REFUSED, f"{unreadable} ({type(error).__name__})")
                tries = len(_RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
            tries += 1

    def _note_failure(self, error: grpc.aio.AioRpcError) -> bool:
        """Say what failed; return whether the same will happen until someone acts."""
        refusal = explain_refusal(error, self.role, self.address, self._security)
        if isinstance(refusal, Unauthenticated):
            self._set(PeerState.REFUSED, str(refusal))
            return True
        known = self.state in (PeerState.READY, PeerState.LOST)
        state = PeerState.LOST if known else PeerState.CONNECTING
        waiting = f"waiting for the {self.role} at {self.address} ({error.code().name})"
        self._set(state, str(refusal or waiting))
        return False

    def _set(self, state: PeerState, detail: str) -> None:
        if (state, detail) != (self.state, self.detail):
            log = logs.event if state is PeerState.READY else logs.warning
            log("outrider.orchestrator", f"{self.role} {state.value}", detail=detail)
        self.state, self.detail = state, detail
        self._changed.set()
        self.on_change()

    async def _describe(self) -> None:
        """Ask for the model and, if it is another one than before, its vocabulary."""
        health = await self._health.Check(
            health_pb2.HealthCheckRequest(), timeout=_CALL_SECONDS, metadata=self.metadata
        )
        if health.status != health_pb2.HealthCheckResponse.SERVING:
            raise PeerUnavailable(f"the {self.role} at {self.address} is loading its model")
        begin = time.perf_counter()
        model = await self.stub.GetModel(
            common.GetModelRequest(), timeout=_CALL_SECONDS, metadata=self.metadata
        )
        self.round_trip = time.perf_counter() - begin
        if model.protocol_version != outrider.PROTOCOL_VERSION:
            raise VocabularyMismatch(
                f"protocol version differs: {self.role} {model.protocol_version}, "
                f"orchestrator {outrider.PROTOCOL_VERSION}"
            )
        wire.check_model(model)
        if self.model is not None and self.model.identity == model.identity:
            assert self.hosted is not None
            self.hosted = Hosted(model, self.hosted.vocabulary)
        else:
            self.hosted = Hosted(model, await self._list_vocabulary(model))

    async def _list_vocabulary(self, model: common.GetModelResponse) -> Vocabulary:
        """Return the vocabulary of the model that was described, and of no other.

        Raises InvalidRequest unless it has as many tokens as were announced.
        """
        reference = wire.write_reference(wire.hosted_model(model))
        request = common.ListVocabularyRequest(model=reference)
        count, left = model.vocabulary.token_count, _VOCABULARY_BYTES
        texts: list[bytes] = []
        names: list[bytes] = []
        call = self.stub.ListVocabulary(request, timeout=60.0, metadata=self.metadata)
        try:
            async for part in call:
                left -= part.ByteSize()
                texts += part.token_texts
                names += part.token_names
                if left < 0 or max(len(texts), len(names)) > count:
                    raise InvalidRequest("vocabulary", f"more than {count} tokens of usual length")
        finally:
            call.cancel()
        if not len(texts) == len(names) == count:
            wrong = f"{len(texts)} texts and {len(names)} names of {count} tokens"
            raise InvalidRequest("vocabulary", wrong)
        silent = [(name, i) for i, name in enumerate(names) if not texts[i]]
        control_ids = {name.decode("utf-8", "replace"): i for name, i in silent}
        return Vocabulary(texts, names, control_ids, longest_token(texts, names))

    async def _until_unhealthy(self) -> None:
        """Return when the peer says that it stops; raise when it is gone."""
        request = health_pb2.HealthCheckRequest()
        call = self._health.Watch(request, metadata=self.metadata)
        try:
            async for response in call:
                if response.status != health_pb2.HealthCheckResponse.SERVING:
                    return
        finally:
            # An open stream would hold up a peer that drains.
            call.cancel()

    async def roll_back(self, opening: SessionParameters, token_count: int, round_: int) -> None:
        """Call Rollback; a peer that is away has nothing to cut."""
        request = common.RollbackRequest(
            session_id=opening.session_id,
            token_count=token_count,
            attempt=opening.attempt,
            round=round_,
        )
        try:
            await self.stub.Rollback(request, timeout=_CALL_SECONDS, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            logs.warning("outrider.orchestrator", "rollback failed", detail=describe(error))
        except grpc.aio.UsageError:
            return  # the channel was closed
        except asyncio.CancelledError:
            if _is_cancelled():
                raise

    async def call(self, method: str, request: Any, deadline: float) -> Any:
        """Make an idempotent call by `deadline`, again when the peer restarts meanwhile.

        Raises InvalidRequest for what the peer refuses, ModelChanged when it hosts
        another model than `request` names, else PeerUnavailable.
        """
        make = getattr(self.stub, method)
        while True:
            if self.closed:
                raise PeerUnavailable(self.detail)
            try:
                return await make(request, timeout=_left(deadline), metadata=self.metadata)
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise  # else the channel was closed under the call
            except grpc.aio.AioRpcError as error:
                await self._recover(method, error, deadline)

    async def stream(self, method: str, request: Any, deadline: float) -> AsyncGenerator[Any]:
        """Yield what an idempotent call streams; else like `call`.

        When the peer restarts meanwhile, it continues after what was yielded:
        a repeated call has to stream the same.
        """
        make = getattr(self.stub, method)
        count = 0
        while True:
            if self.closed:
                raise PeerUnavailable(self.detail)
            call = make(request, timeout=_left(deadline), metadata=self.metadata)
            known, arrived = count, 0
            try:
                async for part in call:
                    arrived += 1
                    if arrived > known:
                        count = arrived
                        yield part
                return
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
            except grpc.aio.AioRpcError as error:
                await self._recover(method, error, deadline)
            finally:
                call.cancel()

    async def _recover(self, method: str, error: grpc.aio.AioRpcError, deadline: float) -> None:
        """Return when a call that failed may be made again; else raise what it failed with."""
        if changed := _model_changed(error.trailing_metadata()):
            raise changed from None
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            field, _, message = (error.details() or "").partition(": ")
            raise InvalidRequest(field, message or "refused") from None
        lost = PeerUnavailable(f"the {self.role} cannot {method}: {describe(error)}")
        if error.code() not in _PASSING:
            raise lost from None
        # Its state is seen a moment late: without the pause this would not wait at all.
        await asyncio.sleep(_RETRY_SECONDS[0])
        if not await self.wait_until_ready(deadline - time.monotonic()) and not self.closed:
            raise lost

    def open(self, opening: SessionParameters) -> Stream:
        """Return a new stream of a session; it fails at its first use if the peer is away."""
        if self.role == "draft":
            request = draft_service_pb2.DraftRequest(open=wire.write_opening(opening))
            return Stream(self.stub.Draft(metadata=self.metadata), request)
        return Stream(
            self.stub.Verify(metadata=self.metadata),
            target_service_pb2.VerifyRequest(open=wire.write_opening(opening)),
        )

    async def close(self) -> None:
        """Close the channel; every wait for the peer, or for its answer, ends at once."""
        self.closed = True
        self.state = PeerState.LOST
        self.detail = f"the {self.role} at {self.address} is no longer used"
        self._changed.set()
        await self._channel.close()


def _ignore() -> None:
    return None


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""What a call ends with when its service restarts."""


_FINAL = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
}


_USERS_FIELDS = ("grammar", "sampling")
"""What may turn out on the way to be impossible, and is the user's own."""


class StreamLost(Exception):
    """A stream ended. `final` says that another try would end the same way.

    `refusal` is the error for the user, where that is known.
    """

    def __init__(self, code: grpc.StatusCode, detail: str, trailing: Any = None) -> None:
        super().__init__(f"{code.name}: {detail}")
        self.final = code in _FINAL
        self.breaks_protocol = False
        field, _, message = detail.partition(": ")
        its_user = code is grpc.StatusCode.INVALID_ARGUMENT and field in _USERS_FIELDS
        self.refusal: OutriderError | None = _model_changed(trailing)
        if its_user:
            self.refusal = InvalidRequest(field, message)

    @classmethod
    def unreadable(cls) -> StreamLost:
        """Return the end of a stream whose peer sends bytes that are no message."""
        lost = cls(grpc.StatusCode.INTERNAL, "bytes that are no message")
        lost.final = lost.breaks_protocol = True
        return lost

    @classmethod
    def unread(cls, count: int) -> StreamLost:
        """Return the end of a stream whose peer does not read what it is sent."""
        return cls(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{count} messages are unread")


def _model_changed(trailing: Any) -> ModelChanged | None:
    """Return the error if that is what a call ended with."""
    info = read_error_info(trailing)
    if info is None or info.reason != ModelChanged.reason:
        return None
    return ModelChanged(info.metadata["begunModel"], info.metadata["hostedModel"])


class Stream:
    """One bidirectional stream of one session."""

    def __init__(self, call: Any, opening: Any) -> None:
        self._call = call
        self._opening = opening
        self.byte_count = 0

    async def write(self, message: Any) -> None:
        """Send a message, the opening before the first. Raises StreamLost."""
        try:
            if self._opening is not None:
                opening, self._opening = self._opening, None
                await self._call.write(opening)
            self.byte_count += message.ByteSize()
            await self._call.write(message)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise await self._lost() from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._lost() from error

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield messages until the stream is lost, then raise StreamLost."""
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                if message is None:  # gRPC's word for bytes that cannot be parsed
                    raise StreamLost.unreadable()
                self.byte_count += message.ByteSize()
                yield message
        except grpc.aio.AioRpcError:
            pass
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
        raise await self._lost()

    async def _lost(self) -> StreamLost:
        call = self._call
        return StreamLost(
            await call.code(), await call.details() or "", await call.trailing_metadata()
        )

    def cancel(self) -> None:
        """End the stream; the service stops its work and keeps the cache as evictable."""
        self._call.cancel()


def _is_cancelled() -> bool:
    """Return whether this task is to end; a channel that closes raises CancelledError, too."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _process(model: common.GetModelResponse) -> bytes:
    """Return what stays the same while the same process hosts the same model."""
    described = common.GetModelResponse()
    described.CopyFrom(model)
    described.ClearField("activity")
    return described.SerializeToString(deterministic=True)


def _estimates(target: Peer, draft: Peer | None) -> PairEstimates:
    """Return what is known before the first round: what the services measured at load."""
    estimates = PairEstimates()
    if target.model is not None:
        if costs := _costs(target.model):
            estimates.costs = CostTable(costs)
        estimates.overhead = Mean(target.round_trip)
    if draft is not None and draft.model is not None:
        if costs := _costs(draft.model):
            estimates.token_time = Mean(costs[0][1])
            estimates.loaded_token_time = costs[0][1]
            estimates.read_time = costs[-1][1] / costs[-1][0]
        estimates.latency = Mean(draft.round_trip)
    if target.model is not None and draft is not None and draft.model is not None:
        here = target.model.machine_digest
        estimates.same_host = bool(here) and here == draft.model.machine_digest
        estimates.takes_turns = _take_turns(target.model, draft.model)
    return estimates


def _take_turns(target: common.GetModelResponse, draft: common.GetModelResponse) -> bool:
    """Return whether the two never decode at the same time."""
    together = target.cores_digest and target.cores_digest == draft.cores_digest
    return bool(together) and target.thread_count + draft.thread_count > target.core_count


def _costs(model: common.GetModelResponse) -> list[tuple[int, float]]:
    return [(cost.row_count, cost.milliseconds / 1e3) for cost in model.decode_costs]


class Pair:
    """The target, and the draft if there is one, and whether they fit."""

    def __init__(self, target: Peer, draft: Peer | None) -> None:
        self.target = target
        self.draft = draft
        # Why this draft cannot draft for this target.
        self.mismatch: VocabularyMismatch | None = None
        # Of these two models; started again when either is another.
        self.estimates = PairEstimates()
        self._draft_fault = ""  # why the draft is left alone until `_paused_until`
        self._paused_until = 0.0  # of the monotonic clock
        self._draft_faults = 0  # in a row, each soon after the pause of the one before
        self._models: tuple[bytes, ...] = ()  # whose estimates these are, by identity
        self._tasks: list[asyncio.Task[None]] = []  # one for each peer, from `start` to `stop`

    @property
    def peers(self) -> list[Peer]:
        """The configured peers, the target first."""
        return [self.target] if self.draft is None else [self.target, self.draft]

    def start(self) -> None:
        """Start to watch the peers."""
        self._tasks = [asyncio.create_task(peer.watch(self._check)) for peer in self.peers]

    async def stop(self) -> None:
        """Stop watching and close the channels; what is in flight ends with PeerUnavailable."""
        for task in self._tasks:
            task.cancel()
        for peer in self.peers:
            await peer.close()

    def _check(self) -> None:
        """Compare the vocabularies; called whenever a peer has described itself."""
        target, draft = self.target, self.draft
        self._begin_experience()
        if draft is None or target.hosted is None or draft.hosted is None:
            return
        before, self.mismatch = self.mismatch, None
        try:
            mine, its = target.hosted, draft.hosted
            if handshake.check_vocabularies(mine.model.vocabulary, its.model.vocabulary):
                handshake.check_names(mine.vocabulary.names, its.vocabulary.names)
        except VocabularyMismatch as error:
            self.mismatch = error
            if str(before) != str(error):
                logs.warning("outrider.orchestrator", "pair refused", detail=str(error))

    def _begin_experience(self) -> None:
        """Forget what was learned when another model, or another process, came in its place."""
        models = tuple(_process(peer.model) for peer in self.peers if peer.model is not None)
        if models != self._models:
            self._models = models
            in_flight = self.estimates.generation_count
            self.estimates = _estimates(self.target, self.draft)
            self.estimates.generation_count = in_flight

    def pause_draft(self, fault: str) -> None:
        """Leave a draft that breaks the protocol alone, twice as long as the last time."""
        now = time.monotonic()
        if now > self._paused_until + _FORGIVING_SECONDS:
            self._draft_faults = 0
        pause = min(_LONGEST_PAUSE, 2.0**self._draft_faults)
        self._draft_faults += 1
        self._draft_fault, self._paused_until = fault, now + pause
        logs.warning("outrider.orchestrator", "draft left alone", seconds=pause, detail=fault)

    @property
    def draft_usable(self) -> bool:
        """Whether generations may draft."""
        return not self.obstacle()

    def obstacle(self) -> str:
        """Return why drafts are not used, in one line; empty when they are."""
        if self.draft is None:
            return "no draft is configured"
        waiting = [peer.detail for peer in self.peers if not peer.ready]
        if not waiting and self.mismatch is not None:
            waiting = [str(self.mismatch)]
        if not waiting and time.monotonic() < self._paused_until:
            waiting = [f"the draft breaks the protocol and is left alone: {self._draft_fault}"]
        return "; ".join(waiting)
