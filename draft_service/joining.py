"""Joins an orchestrator from wherever this draft is: one outbound connection, sessions over it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Protocol

import grpc

from draft_service.servicer import Write
from draft_service.translations import VocabularyLesson
from outrider import logs, request_scope, tracing, wire
from outrider.backoff import LONGEST_PAUSE, Backoff
from outrider.errors import InvalidConfig, OutriderError, Unauthenticated
from outrider.rpc.channel import explain_refusal, open_channel, speaks_http_1, why_unreachable
from outrider.rpc.security import ClientSecurity, Metadata, credentials_of, metadata_of
from outrider.rpc.statuses import describe, to_status
from outrider.tracing import NOTHING
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_registry_service_pb2 as messages
from outrider.v1 import draft_service_pb2 as draft
from outrider.v1.draft_registry_service_pb2_grpc import DraftRegistryServiceStub

_LASTING = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
}
"""With these the next attempt ends in the same way, until someone acts."""
_MOST_TASKS = 256
"""Sessions and rollbacks at the same time; what comes beyond is left alone, as a lost message."""


class Joiner(Protocol):
    """A draft service that can join."""

    def description(self) -> common.GetModelResponse:
        """Return what GetModel answers now."""

    def vocabulary_pieces(self) -> Iterator[common.ListVocabularyResponse]:
        """Yield what ListVocabulary streams."""

    async def roll_back(self, request: common.RollbackRequest) -> common.RollbackResponse:
        """Truncate a session, unless a later round of it began."""

    def lesson(self) -> VocabularyLesson:
        """Return what takes in the messages of a vocabulary."""

    async def serve(self, requests: AsyncIterator[draft.DraftRequest], write: Write) -> None:
        """Serve one session, whichever side opened the stream. Ends when `requests` do."""


class Joining:
    """Keeps a draft joined. Raises InvalidConfig for an address or files that cannot be used."""

    def __init__(self, address: str, security: ClientSecurity) -> None:
        self._address = address
        self._security = security
        self._metadata = metadata_of(security)
        self._credentials = credentials_of(security)
        self._process_id = secrets.token_bytes(wire.SESSION_ID_BYTES)
        self._dialled_with = self._credentials()
        self._has_joined = False
        self._channel = open_channel(address, security)

    async def stay(self, servicer: Joiner) -> None:
        """Join, and join again after any break, until this is cancelled.

        The pauses grow until it joined. Raises InvalidConfig for a refusal that will
        not go away. One that joined before tries again even then: secrets may be changing.
        """
        logs.event("outrider.draft", "joining", address=self._address)
        backoff, before = Backoff(), ""
        try:
            while True:
                await self._dial_by_new_files()
                metadata = self._metadata()
                membership = _Membership(servicer, self._channel, metadata, self._process_id)
                why, lasts = await self._end_of(membership)
                self._has_joined |= membership.joined
                if lasts and not self._has_joined:
                    raise InvalidConfig("join", why)
                if membership.joined or why != before:
                    detail = f"{why}; connecting again within {LONGEST_PAUSE:.0f} s"
                    logs.warning("outrider.draft", "not joined", detail=detail)
                before = why
                if membership.joined:
                    backoff.reset()
                await asyncio.sleep(backoff.next())
        finally:
            await self._channel.close()

    async def _dial_by_new_files(self) -> None:
        """Open another channel if the certificates have changed since this one was opened."""
        credentials = self._credentials()
        if credentials is not self._dialled_with:
            self._dialled_with, before = credentials, self._channel
            with suppress(InvalidConfig):  # they change again right now
                self._channel = open_channel(self._address, self._security)
                await before.close()

    async def _end_of(self, membership: _Membership) -> tuple[str, bool]:
        """Return why a membership ended, and whether the next one will end so, too."""
        try:
            await membership.run()
        except grpc.aio.AioRpcError as error:
            refusal = explain_refusal(error, "orchestrator", self._address, self._security)
            is_sure = isinstance(refusal, Unauthenticated) or speaks_http_1(error)
            why = _explain(error, refusal, self._address)
            return why, is_sure or error.code() in _LASTING
        return f"the orchestrator at {self._address} ended it", False


def _explain(error: grpc.aio.AioRpcError, refusal: OutriderError | None, address: str) -> str:
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        other = "or is not an orchestrator"
        return f"what answers at {address} accepts no drafts (--accept-drafts) {other}"
    if refusal is None and error.code() in _LASTING:
        return f"the orchestrator at {address} refuses this draft: {error.details()}"
    if why := why_unreachable(error, address):
        return f"no orchestrator answers at {address}: {why}"
    return str(refusal or f"lost the orchestrator at {address}: {describe(error)}")


class _Membership:
    """One Join call, and the sessions that it invited to."""

    def __init__(
        self,
        servicer: Joiner,
        channel: grpc.aio.Channel,
        metadata: Metadata,
        process_id: bytes,
    ) -> None:
        self.joined = False
        """Whether the orchestrator took it in."""
        self._servicer = servicer
        self._metadata = metadata
        self._process_id = process_id
        self._stub: Any = DraftRegistryServiceStub(channel)
        self._tasks: set[asyncio.Task[None]] = set()  # of sessions and rollbacks
        self._lesson: VocabularyLesson | None = None  # of a vocabulary that comes in pieces
        self._is_answered = False  # or about to be: the rest of its pieces are for nobody
        self._writing = asyncio.Lock()  # one message at a time, from any task

    async def run(self) -> None:
        """Answer the orchestrator until it ends the call. Raises AioRpcError."""
        call = self._stub.Join(metadata=self._metadata)
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                await self._answer(call, message)
        finally:
            call.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, call: Any, message: messages.JoinResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "get_model":
            model = self._servicer.description()
            await self._write(call, messages.JoinRequest(model=model, process_id=self._process_id))
        elif kind == "list_vocabulary":
            for piece in self._servicer.vocabulary_pieces():
                await self._write(call, messages.JoinRequest(vocabulary=piece))
        elif kind == "learn_vocabulary":
            self._learn(call, message.learn_vocabulary)
        elif kind == "joined":
            self.joined = True
            logs.event("outrider.draft", "joined")
        elif kind == "invitation":
            self._start(self._attend(message.invitation))
        elif kind == "rollback":
            self._start(self._roll_back(message.rollback))

    async def _write(self, call: Any, message: messages.JoinRequest) -> None:
        async with self._writing:
            await call.write(message)

    def _learn(self, call: Any, message: draft.LearnVocabularyRequest) -> None:
        """Take in a piece of a vocabulary; at one that is wrong the lesson is over."""
        if message.WhichOneof("message") == "introduction":
            self._lesson, self._is_answered = None, False
        if self._is_answered:
            return
        try:
            self._lesson = self._lesson or self._servicer.lesson()
            self._lesson.add(message)
        except OutriderError as error:
            self._is_answered = True
            self._start(self._refuse(call, error))
        else:
            if self._lesson.is_complete:
                self._is_answered = True
                self._start(self._finish(call, self._lesson))

    async def _finish(self, call: Any, lesson: VocabularyLesson) -> None:
        """Learn a vocabulary while other messages are answered, and say so."""
        try:
            learned = await lesson.finish()
        except Exception as error:  # the sender of it waits for an answer
            await self._refuse(call, error)
        else:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._write(call, messages.JoinRequest(learned=learned))

    async def _refuse(self, call: Any, error: Exception) -> None:
        """Say why a vocabulary is not learned, unless the orchestrator ended the call."""
        logs.warning("outrider.draft", "vocabulary not learned", detail=str(error))
        status = to_status(error)
        failure = messages.LessonFailure(code=status.code, message=status.message)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._write(call, messages.JoinRequest(not_learned=failure))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._tasks) >= _MOST_TASKS:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _roll_back(self, request: common.RollbackRequest) -> None:
        try:
            await self._servicer.roll_back(request)
        except OutriderError as error:
            logs.warning("outrider.draft", "rollback failed", detail=str(error))

    async def _attend(self, invitation: messages.SessionInvitation) -> None:
        """Serve a session as `Draft` does, with client and server exchanged."""
        scope = request_scope.read_scope(invitation.metadata)
        with request_scope.entered(scope):
            span = NOTHING
            if scope.trace_parent:
                span = tracing.begin("Attend", request_id=scope.id)
            carried = request_scope.carried(span.trace_parent)
            scope.trace_parent = span.trace_parent or scope.trace_parent
            try:
                await self._serve(invitation, self._metadata + carried)
            finally:
                span.end()

    async def _serve(self, invitation: messages.SessionInvitation, metadata: Metadata) -> None:
        call = self._stub.Attend(metadata=metadata)

        async def write(response: draft.DraftResponse) -> None:
            await call.write(messages.AttendRequest(response=response))

        try:
            await call.write(messages.AttendRequest(ticket=invitation.ticket))
            await self._servicer.serve(_requests(invitation, call), write)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the orchestrator ended the session
        except Exception as error:
            await _report(call, error)
        finally:
            call.cancel()


async def _requests(
    invitation: messages.SessionInvitation, call: Any
) -> AsyncIterator[draft.DraftRequest]:
    """Yield what `Draft` would be sent."""
    yield draft.DraftRequest(open=invitation.open)
    yield draft.DraftRequest(order=invitation.order)
    while (message := await call.read()) is not grpc.aio.EOF:
        yield draft.DraftRequest(order=message.order)


async def _report(call: Any, error: Exception) -> None:
    """Say why a session ends, and wait until that was read."""
    status = to_status(error)
    failure = messages.AttendFailure(code=status.code, message=status.message)
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(messages.AttendRequest(failure=failure))
        await call.done_writing()
        await call.code()
