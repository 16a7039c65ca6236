"""Drafts that dialled in: announced, invited to sessions, used like a draft that was dialled.

A draft is a stranger: everything that it sends has a bound, and comes only when it was asked for.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from orchestrator.chat.sandbox import MAX_SOURCE
from orchestrator.paired_drafts import DraftRecord, PairedDraft
from orchestrator.peers import (
    CALL_SECONDS,
    DESCRIBE_SECONDS,
    VOCABULARY_BYTES,
    VOCABULARY_SECONDS,
    Hosted,
    Peer,
    check_description,
    is_refusal,
    rollback_request,
)
from orchestrator.pool import Pool
from orchestrator.refused_drafts import Refusal, RefusedDrafts
from orchestrator.streams import MOST_REASON, JoinedStream, Requests, StreamLost, Write
from outrider import handshake, logs, wire
from outrider.backoff import LONGEST_PAUSE
from outrider.errors import (
    DeadlinePassed,
    Draining,
    EngineBusy,
    InvalidRequest,
    NotFound,
    OutriderError,
    PeerUnavailable,
    SessionTaken,
    VocabularyMismatch,
)
from outrider.messages import PeerState, SessionParameters
from outrider.tasks import first_of
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_registry_service_pb2 as messages
from outrider.v1 import draft_service_pb2 as draft_messages
from outrider.vocabulary_pieces import PeerVocabulary, VocabularyReader, lesson

MOST_JOINED = 64
"""Drafts that joined, or are about to; more get RESOURCE_EXHAUSTED."""

_DESCRIPTION_BYTES = 64 << 10  # all that joined are in one answer of GetStatus
_MOST_WAITING = 256  # messages to one draft; one that reads none is invited no more

_NO_REFUSALS = (Draining, PeerUnavailable, SessionTaken)
"""The orchestrator stops, its target is away, the same draft joined once more."""


class JoinedPeer(Peer):
    """A draft that joins, or has joined, for as long as its Join call lasts."""

    has_joined = True

    def __init__(self, address: str, tickets: Tickets) -> None:
        super().__init__("draft", address, PeerState.CONNECTING, "the draft joins")
        self.process_id = b""  # the same whenever this process joins
        self._chat_template = ""
        self._tickets = tickets
        self._asked = 0.0  # when the description was asked for that did not come yet; 0: none is
        self._outbox: asyncio.Queue[messages.JoinResponse] = asyncio.Queue(_MOST_WAITING)
        self._sessions: set[JoinedStream] = set()  # invited, and not over as far as is known
        self._learned: asyncio.Future[draft_messages.LearnVocabularyResponse] | None = None
        # Set once it was dismissed, with the reason.
        self._dismissed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_described: Callable[[], None] = lambda: None
        """Called when it describes itself otherwise than before."""

    @property
    def chat_template(self) -> str:
        """The model's own, which is not kept with its description."""
        return self._chat_template

    @property
    def is_welcome(self) -> bool:
        """Whether it was not dismissed."""
        return not self._dismissed.done()

    def open(self, opening: SessionParameters) -> JoinedStream:
        """Return a new stream of a session; it is lost at once if the draft left."""
        stream = JoinedStream(opening, self._invite, self.address)
        if not self.ready:
            stream.lose(StreamLost.gone(self.detail))
        return stream

    def _invite(self, stream: JoinedStream, invitation: messages.SessionInvitation) -> None:
        if self._outbox.full() or not self.ready:
            stream.lose(StreamLost.unread(self._outbox.qsize()))
            return
        self._sessions = {each for each in self._sessions if not each.is_over} | {stream}
        invitation.ticket = self._tickets.issue(stream)
        self._outbox.put_nowait(messages.JoinResponse(invitation=invitation))

    async def roll_back(self, opening: SessionParameters, token_count: int, round_: int) -> None:
        """Truncate a session; nothing rests on it, so one that reads nothing is sent nothing."""
        request = rollback_request(opening, token_count, round_)
        if not self._outbox.full():
            self._outbox.put_nowait(messages.JoinResponse(rollback=request))

    async def teach(self, key: bytes, target: Hosted) -> draft_messages.LearnVocabularyResponse:
        """Send it a target's vocabulary.

        Raises InvalidRequest where it refuses that, DeadlinePassed, else PeerUnavailable.
        """
        if not self.ready:
            raise PeerUnavailable(self.detail)
        learned: asyncio.Future[draft_messages.LearnVocabularyResponse]
        self._learned = learned = asyncio.get_running_loop().create_future()
        async with _limit(VOCABULARY_SECONDS, "the draft did not learn the vocabulary in time"):
            for each in lesson(key, target.model.vocabulary, target.vocabulary):
                await self._outbox.put(messages.JoinResponse(learn_vocabulary=each))
            return await learned

    def dismiss(self, reason: OutriderError) -> None:
        """End its Join call with this reason."""
        if not self._dismissed.done():
            self._dismissed.set_exception(reason)
            self._dismissed.exception()  # the call may be over

    async def announce(self, requests: Requests, write: Write, target: Hosted) -> None:
        """Have it describe itself. Raises VocabularyMismatch, InvalidRequest, DeadlinePassed."""
        async with _limit(VOCABULARY_SECONDS, "the draft did not describe itself in time"):
            begin = time.perf_counter()
            await write(_GET_MODEL)
            answer = await _read_answer(requests, "model")
            self.round_trip = time.perf_counter() - begin
            self.process_id = wire.read_session_id(answer.process_id)
            self.hosted = Hosted(self._read_description(answer.model), target.vocabulary)
            if _needs_names(target.model, self.hosted.model):
                await write(messages.JoinResponse(list_vocabulary=common.ListVocabularyRequest()))
                count = self.hosted.model.vocabulary.token_count
                vocabulary = await _read_vocabulary(requests, count)
                self.hosted = Hosted(self.hosted.model, vocabulary)
        self.state, self.detail = PeerState.READY, ""

    def _read_description(self, model: common.GetModelResponse) -> common.GetModelResponse:
        """Return the model without its chat template, which is not used if it is too long."""
        check_description("draft", model)
        template = model.chat_template
        self._chat_template = template if len(template) <= MAX_SOURCE else ""
        model.ClearField("chat_template")
        if model.ByteSize() > _DESCRIPTION_BYTES:
            raise InvalidRequest("model", f"{model.ByteSize()} bytes, at most {_DESCRIPTION_BYTES}")
        return model

    async def serve(self, requests: Requests, write: Write) -> None:
        """Talk to the draft until it leaves, is dismissed or breaks the protocol."""
        try:
            if self.is_welcome:
                await write(messages.JoinResponse(joined=messages.DraftJoined()))
            await first_of(
                self._until_dismissed(),
                self._receive(requests),
                self._send(write),
                self._ask_again(),
            )
        finally:
            self._leave()

    async def _until_dismissed(self) -> None:
        await asyncio.shield(self._dismissed)

    async def _receive(self, requests: Requests) -> None:
        async for request in requests:
            kind = request.WhichOneof("answer")
            if kind in ("learned", "not_learned") and self._learned is not None:
                if not self._learned.done():  # else it comes too late
                    _resolve(self._learned, request)
                continue
            if kind != "model" or not self._asked:
                raise InvalidRequest("answer", "nobody asked for it")
            self.round_trip = time.perf_counter() - self._asked
            self._asked = 0.0
            if self.refresh(self._read_description(request.model)):
                self.on_described()

    async def _send(self, write: Write) -> None:
        while True:
            await write(await self._outbox.get())

    async def _ask_again(self) -> None:
        while True:
            await asyncio.sleep(DESCRIBE_SECONDS)
            if not self._asked and not self._outbox.full():
                self._asked = time.perf_counter()
                self._outbox.put_nowait(_GET_MODEL)

    def _leave(self) -> None:
        self.state = PeerState.LOST
        self.detail = f"the draft from {self.address} left"
        for stream in self._sessions:
            stream.lose(StreamLost.gone(self.detail))
        self._sessions.clear()
        if self._learned is not None and not self._learned.done():
            self._learned.set_exception(PeerUnavailable(self.detail))
            self._learned.exception()  # the one that waited may have been cancelled


def _resolve(
    learned: asyncio.Future[draft_messages.LearnVocabularyResponse], answer: messages.JoinRequest
) -> None:
    """Hand what a draft answers to a lesson to who waits for it."""
    if answer.WhichOneof("answer") == "learned":
        learned.set_result(answer.learned)
        return
    failure = answer.not_learned
    why = failure.message[:MOST_REASON]
    error = InvalidRequest("vocabulary", why) if is_refusal(failure.code) else PeerUnavailable(why)
    learned.set_exception(error)
    learned.exception()  # the one that waited may have been cancelled


_GET_MODEL = messages.JoinResponse(get_model=common.GetModelRequest())


class Tickets:
    """Which session each ticket is good for: once, and not for long."""

    def __init__(self) -> None:
        self._streams: dict[bytes, JoinedStream] = {}  # of invitations that wait to be followed

    def issue(self, stream: JoinedStream) -> bytes:
        """Return a new ticket; a stream whose ticket nobody shows in time is lost."""
        ticket = secrets.token_bytes(wire.SESSION_ID_BYTES)
        self._streams[ticket] = stream
        asyncio.get_running_loop().call_later(CALL_SECONDS, self._expire, ticket)
        return ticket

    def redeem(self, ticket: bytes) -> JoinedStream:
        """Return the stream. Raises NotFound for one that nobody waits for."""
        stream = self._streams.pop(ticket, None)
        if stream is None or stream.is_over:
            raise NotFound("ticket", "nobody waits for the session any more")
        return stream

    def _expire(self, ticket: bytes) -> None:
        stream = self._streams.pop(ticket, None)
        if stream is not None:
            stream.lose(StreamLost.gone("the draft did not attend the session"))


class DraftRegistry:
    """The drafts that joined an orchestrator, and the calls by which they do."""

    def __init__(self, pool: Pool, trusts_drafts: bool, target_seconds: float) -> None:
        self._pool = pool  # whose targets they draft for
        self._trusts_drafts = trusts_drafts
        self._target_seconds = target_seconds  # that a draft waits for a target to compare with
        self._tickets = Tickets()
        self._present: set[JoinedPeer] = set()  # joined, or about to; at most MOST_JOINED
        self._records: dict[bytes, DraftRecord] = {}  # by process id, the latest that joined last
        self._refused = RefusedDrafts()
        pool.accepts_drafts = True

    def refused(self) -> list[Refusal]:
        """Return the drafts that were sent away lately, the latest first."""
        return list(self._refused.latest(time.monotonic()))

    def dismiss(self, reason: OutriderError) -> None:
        """Dismiss every draft."""
        for draft in self._present:
            draft.dismiss(reason)

    async def join(self, requests: Requests, write: Write, address: str) -> None:
        """Serve a Join call: until the draft leaves, or is refused or dismissed with a reason."""
        draft = JoinedPeer(address, self._tickets)
        try:
            with self._place(draft):
                target = await self._pool.wait_for_model(self._target_seconds)
                await draft.announce(requests, write, target)
                with self._joined(draft):
                    await draft.serve(requests, write)
        except OutriderError as error:
            logs.warning(
                "outrider.orchestrator", "draft sent away", address=address, detail=str(error)
            )
            if not isinstance(error, _NO_REFUSALS):
                name = draft.model.model_name if draft.model is not None else ""
                self._refused.note(address, name, str(error), time.monotonic())
            raise

    async def attend(self, requests: Requests, write: Write) -> None:
        """Serve an Attend call."""
        async with _limit(CALL_SECONDS, "the ticket did not come in time"):
            first = await anext(requests, None)
        if first is None or first.WhichOneof("message") != "ticket":
            raise InvalidRequest("message", "the first one must name the ticket")
        await self._tickets.redeem(first.ticket).serve(requests, write)

    @contextmanager
    def _place(self, draft: JoinedPeer) -> Iterator[None]:
        if len(self._present) >= MOST_JOINED:
            raise EngineBusy(f"{MOST_JOINED} drafts joined already", LONGEST_PAUSE)
        self._present.add(draft)
        try:
            yield
        finally:
            self._present.discard(draft)

    @contextmanager
    def _joined(self, draft: JoinedPeer) -> Iterator[None]:
        assert draft.model is not None
        fields = {"address": draft.address, "model": draft.model.model_name}
        logs.event("outrider.orchestrator", "draft joined", **fields)
        record, insists = self._record(draft), self._pool.same_vocabulary
        paired = PairedDraft(draft, self._trusts_drafts, draft.dismiss, record, insists)
        draft.on_described = partial(self._pool.check_draft, paired)
        self._pool.add(paired)
        if draft.is_welcome:
            self._refused.forget(draft.address)
        try:
            yield
        finally:
            self._pool.remove(paired)
            logs.event("outrider.orchestrator", "draft left", **fields)

    def _record(self, draft: JoinedPeer) -> DraftRecord:
        """Return what was learned of a process that joined before, and end what it left open."""
        for other in self._present:
            if other is not draft and other.process_id == draft.process_id:
                other.dismiss(SessionTaken("the draft joined again"))
        record = self._records.pop(draft.process_id, None) or DraftRecord()
        self._records[draft.process_id] = record
        if len(self._records) > 2 * MOST_JOINED:
            del self._records[next(iter(self._records))]
        return record


@asynccontextmanager
async def _limit(seconds: float, message: str) -> AsyncIterator[None]:
    """Raise DeadlinePassed when the time is over."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise DeadlinePassed(message) from None


def _needs_names(target: common.GetModelResponse, draft: common.GetModelResponse) -> bool:
    """Return whether the tokens must be compared. Raises VocabularyMismatch."""
    try:
        return handshake.check_vocabularies(target.vocabulary, draft.vocabulary)
    except VocabularyMismatch:
        if not draft.translates:
            raise
        return False  # it differs already: the draft compares them, which translates


async def _read_vocabulary(requests: Requests, count: int) -> PeerVocabulary:
    reader = VocabularyReader(count, VOCABULARY_BYTES)
    while not reader.is_complete:
        piece = (await _read_answer(requests, "vocabulary")).vocabulary
        if not piece.token_names:
            raise InvalidRequest("vocabulary", "a piece without tokens")
        reader.add(piece)
    return reader.finish()


async def _read_answer(requests: Requests, kind: str) -> messages.JoinRequest:
    request: messages.JoinRequest | None = await anext(requests, None)
    if request is None or request.WhichOneof("answer") != kind:
        raise InvalidRequest("answer", f"must be a {kind}")
    return request
