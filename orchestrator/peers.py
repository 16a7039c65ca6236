"""The model services: what all have in common, and those that are dialled and watched."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import outrider
from orchestrator.streams import (
    DRAFT_BYTES,
    REFUSALS,
    LostStream,
    SessionStream,
    Stream,
    begin_session,
    is_cancelled,
)
from outrider import logs, request_scope, wire
from outrider.backoff import Backoff
from outrider.core.health import Silence
from outrider.descriptions import check_model
from outrider.errors import (
    InvalidConfig,
    InvalidRequest,
    PeerUnavailable,
    Unauthenticated,
    VocabularyMismatch,
)
from outrider.messages import ModelReference, PeerState, SessionParameters
from outrider.rpc.channel import (
    MESSAGE_BYTES,
    PLAIN,
    explain_refusal,
    open_channel,
    why_unreachable,
)
from outrider.rpc.security import (
    ANONYMOUS,
    ClientSecurity,
    Metadata,
    credentials_of,
    metadata_of,
)
from outrider.rpc.statuses import describe
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2, target_service_pb2
from outrider.v1.draft_service_pb2_grpc import DraftServiceStub
from outrider.v1.target_service_pb2_grpc import TargetServiceStub
from outrider.vocabulary_pieces import PeerVocabulary, VocabularyReader, lesson

CALL_SECONDS = 5.0
"""Seconds in which a peer answers what needs no engine: as soon as pings notice a dead one."""

DESCRIBE_SECONDS = 5.0
"""Seconds between two looks at what a peer does and costs, and how far away it is, and at the
records of a name: a quarter of the timeout of an engine that decodes nothing."""

VOCABULARY_SECONDS = 60.0
"""Seconds in which a vocabulary is listed, or learned: 15 MB at 2 Mbit/s."""

_LONGEST_PAUSE = 0.5
"""Seconds between two tries to connect: texts may wait for a target."""

VOCABULARY_BYTES = 32 << 20
"""Bytes of a vocabulary that is listed: 262,144 texts and names of 16 bytes each are 9 MB."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """The model that a peer hosts, with the vocabulary of that very model.

    One value, so that no holder reads one model's ids with another's vocabulary.
    """

    model: common.GetModelResponse
    vocabulary: PeerVocabulary

    @property
    def reference(self) -> ModelReference:
        """What calls and sessions that belong to it name."""
        return wire.hosted_model(self.model)


def check_description(role: str, model: common.GetModelResponse) -> None:
    """Raise VocabularyMismatch or InvalidRequest for a model that cannot be used at all."""
    if model.protocol_version != outrider.PROTOCOL_VERSION:
        raise VocabularyMismatch(
            f"protocol version differs: {role} {model.protocol_version}, "
            f"orchestrator {outrider.PROTOCOL_VERSION}"
        )
    check_model(model)
    if model.vocabulary.fits_any and role != "draft":
        raise InvalidRequest("vocabulary.fits_any", f"a {role} needs one of its own")


class Peer(ABC):
    """A draft or a target, whichever side dialled."""

    has_joined = False
    """Whether it dialled this process."""

    def __init__(self, role: str, address: str, state: PeerState, detail: str = "") -> None:
        self.role = role
        self.address = address
        """Where it is, for people."""
        self.state = state
        self.detail = detail
        """Why it is not ready, in one line; empty when it is."""
        self.hosted: Hosted | None = None
        """What it described last."""
        self.round_trip = 0.0
        """Seconds of the newest small call; 0 before the first."""

    @property
    def model(self) -> common.GetModelResponse | None:
        """The description, once it is known."""
        return self.hosted.model if self.hosted else None

    @property
    def named(self) -> str:
        """What it is and where, for people."""
        return f"the {self.role} at {self.address.removeprefix(PLAIN)}"

    @property
    def chat_template(self) -> str:
        """The model's own chat template; empty where it has none, or is not known."""
        return self.hosted.model.chat_template if self.hosted else ""

    @property
    def ready(self) -> bool:
        """Whether generations may use it."""
        return self.state is PeerState.READY

    def refresh(self, new: common.GetModelResponse) -> bool:
        """Take in what it says of itself meanwhile; return whether more than its activity changed.

        That may be its costs or the draft in its process, and of a draft the vocabularies that it
        knows. Raises InvalidRequest for another model.
        """
        assert self.hosted is not None
        known = self.hosted.model
        if (known.identity, known.vocabulary) != (new.identity, new.vocabulary):
            raise InvalidRequest("model", "is another one than before")
        same_keys = set(known.known_vocabulary_keys) == set(new.known_vocabulary_keys)
        is_same = same_keys and known.decode_costs == new.decode_costs
        is_same &= known.own_draft == new.own_draft
        known.CopyFrom(new)
        return not is_same

    @abstractmethod
    def open(self, opening: SessionParameters) -> SessionStream:
        """Return a new stream of a session; it fails at its first use if the peer is away."""

    @abstractmethod
    async def roll_back(self, opening: SessionParameters, token_count: int, round_: int) -> None:
        """Truncate a session; a peer that is away has nothing to cut."""

    @abstractmethod
    async def teach(self, key: bytes, target: Hosted) -> draft_service_pb2.LearnVocabularyResponse:
        """Send a draft a target's vocabulary.

        Raises InvalidRequest where it refuses that, or has no such call, else PeerUnavailable.
        """


def rollback_request(
    opening: SessionParameters, token_count: int, round_: int
) -> common.RollbackRequest:
    """Return the call that truncates a session."""
    return common.RollbackRequest(
        session_id=opening.session_id,
        token_count=token_count,
        attempt=opening.attempt,
        round=round_,
    )


class DialledPeer(Peer):
    """A service at a known address. `watch` keeps its state true for the life of the process.

    `name` is whom its certificate is for, where that is not the host of the address. Raises
    InvalidConfig for an address, a token or a certificate that cannot be used.
    """

    def __init__(
        self, role: str, address: str, security: ClientSecurity = ANONYMOUS, name: str = ""
    ) -> None:
        super().__init__(role, address, PeerState.CONNECTING)
        self.detail = f"waiting for {self.named}"
        self.idle = Silence(DESCRIBE_SECONDS)
        """For how long its engine was not seen to decode anything, since it was connected to."""
        self._counts = (-1, -1)  # of its decodes and tokens, at the newest look
        self._security = security
        self._name = name
        self._shown = metadata_of(security)
        self._credentials = credentials_of(security)
        self._dial()
        self.on_change: Callable[[], None] = _ignore
        """Called whenever the state may be another."""
        self.closed = False  # never false again; every wait for it ends

    def _dial(self) -> None:
        """Open a channel. Raises InvalidConfig."""
        self._dialled_with = self._credentials()
        limit = DRAFT_BYTES if self.role == "draft" else MESSAGE_BYTES
        self._channel = open_channel(self.address, self._security, limit, self._name)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        stub = DraftServiceStub if self.role == "draft" else TargetServiceStub
        self.stub: Any = stub(self._channel)

    async def _dial_by_new_files(self) -> None:
        """Open another channel if the certificates have changed since this one was opened."""
        if self._credentials() is not self._dialled_with:
            before = self._channel
            with suppress(InvalidConfig):  # they change again right now
                self._dial()
                await before.close()

    @property
    def metadata(self) -> Metadata:
        """What goes with a call that is made now: what it wants to be shown, and for whom it is."""
        return self._shown() + request_scope.carried()

    async def watch(self, note_described: Callable[[], None]) -> None:
        """Connect and describe; then watch the health, and start again when it ends."""
        backoff = Backoff(_LONGEST_PAUSE)
        while True:
            try:
                await self._dial_by_new_files()
                await self._describe()
                note_described()
                self._set(PeerState.READY, "")
                backoff.reset()
                await self._until_unhealthy(note_described)
                self._set(PeerState.LOST, f"{self.named} stopped serving")
            except VocabularyMismatch as error:
                self._set(PeerState.REFUSED, str(error))
            except InvalidRequest as error:
                wrong = f"{self.named} describes itself wrongly"
                self._set(PeerState.REFUSED, f"{wrong}: {error}")
            except PeerUnavailable as error:
                self._set(PeerState.LOADING, str(error))
                backoff.reset()
            except grpc.aio.AioRpcError as error:
                self._note_failure(error)
            except Exception as error:  # a peer may send anything; the watch continues
                logs.internal_error("outrider.orchestrator", error)
                unreadable = f"{self.named} sends what cannot be read"
                self._set(PeerState.REFUSED, f"{unreadable} ({type(error).__name__})")
            await asyncio.sleep(backoff.next())

    def _note_failure(self, error: grpc.aio.AioRpcError) -> None:
        """Say what failed."""
        refusal = explain_refusal(error, self.role, self.address, self._security)
        if isinstance(refusal, Unauthenticated):
            self._set(PeerState.REFUSED, str(refusal))
            return
        known = self.state in (PeerState.READY, PeerState.LOST)
        state = PeerState.LOST if known else PeerState.CONNECTING
        why = why_unreachable(error, self.address) or describe(error)
        waiting = f"waiting for {self.named} ({why})"
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            waiting = f"what answers at {self.address} is not a {self.role}"
        self._set(state, str(refusal or waiting))

    def _set(self, state: PeerState, detail: str) -> None:
        if (state, detail) != (self.state, self.detail):
            as_wanted = state in (PeerState.READY, PeerState.LOADING)
            log = logs.event if as_wanted else logs.warning
            log("outrider.orchestrator", f"{self.role} {state.value}", detail=detail)
        self.state, self.detail = state, detail
        self.on_change()

    async def _describe(self) -> None:
        """Ask for the model and, if it is another one than before, its vocabulary."""
        health = await self._health.Check(
            health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS, metadata=self.metadata
        )
        if health.status != health_pb2.HealthCheckResponse.SERVING:
            raise PeerUnavailable(f"{self.named} is loading its model")
        model = await self._get_model()
        check_description(self.role, model)
        if self.model is not None and self.model.identity == model.identity:
            assert self.hosted is not None
            self.hosted = Hosted(model, self.hosted.vocabulary)
        else:
            self.hosted = Hosted(model, await self._list_vocabulary(model))

    async def _get_model(self) -> common.GetModelResponse:
        """Return how it describes itself now, and take note of how far away it is."""
        begin = time.perf_counter()
        model: common.GetModelResponse = await self.stub.GetModel(
            common.GetModelRequest(), timeout=CALL_SECONDS, metadata=self.metadata
        )
        self.round_trip = time.perf_counter() - begin
        return model

    async def _list_vocabulary(self, model: common.GetModelResponse) -> PeerVocabulary:
        """Return the vocabulary of the model that was described, and of no other.

        Raises InvalidRequest unless it has as many tokens as were announced.
        """
        reference = wire.write_reference(wire.hosted_model(model))
        request = common.ListVocabularyRequest(model=reference)
        reader = VocabularyReader(model.vocabulary.token_count, VOCABULARY_BYTES)
        call = self.stub.ListVocabulary(request, timeout=VOCABULARY_SECONDS, metadata=self.metadata)
        try:
            async for piece in call:
                reader.add(piece)
        finally:
            call.cancel()
        return reader.finish()

    async def _until_unhealthy(self, note_described: Callable[[], None]) -> None:
        """Return when the peer says that it stops; raise when it is gone."""
        self.idle = Silence(DESCRIBE_SECONDS)
        request = health_pb2.HealthCheckRequest()
        call = self._health.Watch(request, metadata=self.metadata)
        looking = asyncio.create_task(self._look_at_activity(note_described))
        try:
            async for response in call:
                if response.status != health_pb2.HealthCheckResponse.SERVING:
                    return
        finally:
            looking.cancel()
            # An open stream would hold up a peer that drains.
            call.cancel()

    async def _look_at_activity(self, note_described: Callable[[], None]) -> None:
        """Keep its activity and costs, and the round trip to it, a few seconds old at most.

        Costs are measured once nobody waits. What else it says is the watch's to find out.
        """
        while self.hosted is not None:
            await asyncio.sleep(DESCRIBE_SECONDS)
            try:
                model = await self._get_model()
            except grpc.aio.AioRpcError as error:
                # One that does not even say what it does, though there is a link, does nothing.
                is_silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                note = self.idle.note_look if is_silent else self.idle.note_unknown
                note(time.monotonic())
                continue
            self._note_activity(model.activity)
            with suppress(InvalidRequest, VocabularyMismatch):
                check_description(self.role, model)
                if self.refresh(model):
                    note_described()

    def _note_activity(self, activity: common.EngineActivity) -> None:
        """Take note of whether its engine has done anything since the look before."""
        counts = activity.decode_count, activity.token_count
        self.idle.note_look(time.monotonic())
        if counts != self._counts:
            self.idle.note_word()
        self._counts = counts

    async def roll_back(self, opening: SessionParameters, token_count: int, round_: int) -> None:
        request = rollback_request(opening, token_count, round_)
        try:
            await self.stub.Rollback(request, timeout=CALL_SECONDS, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            logs.warning("outrider.orchestrator", "rollback failed", detail=describe(error))
        except grpc.aio.UsageError:
            return  # the channel was closed
        except asyncio.CancelledError:
            if is_cancelled():
                raise

    async def teach(self, key: bytes, target: Hosted) -> draft_service_pb2.LearnVocabularyResponse:
        its = target.model.vocabulary, target.vocabulary
        try:
            answer: draft_service_pb2.LearnVocabularyResponse = await self.stub.LearnVocabulary(
                lesson(key, *its), timeout=VOCABULARY_SECONDS, metadata=self.metadata
            )
        except grpc.aio.AioRpcError as error:
            if error.code() in REFUSALS:
                raise InvalidRequest("vocabulary", describe(error)) from None
            raise PeerUnavailable(describe(error)) from None
        return answer

    def open(self, opening: SessionParameters) -> SessionStream:
        if self.closed:
            return LostStream(self.detail)
        span = begin_session(self.role, self.address, opening)
        metadata = self._shown() + request_scope.carried(span.trace_parent)
        if self.role == "draft":
            request = draft_service_pb2.DraftRequest(open=wire.write_opening(opening))
            return Stream(self.stub.Draft(metadata=metadata), request, span)
        return Stream(
            self.stub.Verify(metadata=metadata),
            target_service_pb2.VerifyRequest(open=wire.write_opening(opening)),
            span,
        )

    async def close(self) -> None:
        """Close the channel; every wait for the peer, or for its answer, ends at once."""
        self.closed = True
        self.state = PeerState.LOST
        self.detail = f"{self.named} is no longer used"
        await self._channel.close()


def _ignore() -> None:
    return None


def is_refusal(code: int) -> bool:
    """Return whether a call that ends with this status ends so again, by its number."""
    return code in [each.value[0] for each in REFUSALS]
