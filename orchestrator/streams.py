"""The streams of sessions, as the driver of a generation sees them; and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import grpc

from outrider import request_scope, tracing, wire
from outrider.errors import InvalidRequest, ModelChanged, OutriderError, ReaderStalled
from outrider.messages import SessionParameters
from outrider.rpc.statuses import describe_end, read_error_info
from outrider.tracing import NOTHING, TracedKind, TraceSpan
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_registry_service_pb2 as messages
from outrider.v1 import draft_service_pb2 as draft_messages

REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
}
"""What a call ends with that would end so again at the same peer."""

FAILURES = {
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""What a call ends with that went wrong at its peer, and need not do so again. So is a deadline
that only the peer has come to."""

_CODES = {int(code.value[0]): code for code in grpc.StatusCode}

DRAFT_BYTES = 4 << 20
"""Bytes of one message of a draft, at most; 64 rows of 4,096 entries are half of that."""

MOST_REASON = 1024
"""Characters of what a draft says of its failure."""

Requests = AsyncIterator[Any]
Write = Callable[[Any], Awaitable[None]]

_USERS_FIELDS = ("grammar", "sampling")
"""What may turn out on the way to be impossible, and is the user's own."""


class StreamLost(Exception):
    """A stream ended. `final` says that another try would end the same way.

    `refusal` is the error for the user, where that is known.
    """

    def __init__(self, code: grpc.StatusCode, detail: str, trailing: Any = None) -> None:
        super().__init__(describe_end(code, detail))
        self.code = code
        self.final = code in REFUSALS
        self.breaks_protocol = False
        self.failed = code in FAILURES
        """Whether something went wrong at the service that need not do so again."""
        field, _, message = detail.partition(": ")
        # It verifies chains alone, although it was taken to verify trees.
        self.refuses_trees = code is grpc.StatusCode.INVALID_ARGUMENT and field == "draft.parents"
        if is_too_large(code, detail):
            self.final = self.breaks_protocol = True
        its_user = code is grpc.StatusCode.INVALID_ARGUMENT and field in _USERS_FIELDS
        self.refusal: OutriderError | None = model_changed(trailing)
        if its_user:
            self.refusal = InvalidRequest(field, message)

    @classmethod
    def unreadable(cls) -> StreamLost:
        """Return the end of a stream whose peer sends bytes that are no message."""
        lost = cls(grpc.StatusCode.INTERNAL, "bytes that are no message")
        lost.final = lost.breaks_protocol = True
        return lost

    @classmethod
    def reported(cls, code: int, detail: str) -> StreamLost:
        """Return the end of a stream by the number of its status, as the peer reported it."""
        return cls(_CODES.get(code, grpc.StatusCode.UNKNOWN), detail)

    @classmethod
    def gone(cls, detail: str) -> StreamLost:
        """Return the end of a stream whose peer left."""
        return cls(grpc.StatusCode.UNAVAILABLE, detail)

    @classmethod
    def unread(cls, count: int) -> StreamLost:
        """Return the end of a stream whose peer does not read what it is sent."""
        return cls(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{count} messages are unread")


def is_too_large(code: grpc.StatusCode, detail: str) -> bool:
    """Return whether gRPC ended a call for a message that is larger than any may be."""
    return code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in detail


def model_changed(trailing: Any) -> ModelChanged | None:
    """Return the error if that is what a call ended with."""
    info = read_error_info(trailing)
    if info is None or info.reason != ModelChanged.reason:
        return None
    return ModelChanged(info.metadata["begunModel"], info.metadata["hostedModel"])


class SessionStream(Protocol):
    """One bidirectional stream of one session."""

    byte_count: int
    """Serialized bytes so far, both ways."""

    async def write(self, message: Any) -> None:
        """Send a message, the opening before the first. Raises StreamLost."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Yield messages until the stream is lost, then raise StreamLost."""

    def cancel(self) -> None:
        """End the stream; the service stops its work and keeps the cache as evictable."""


def begin_session(role: str, address: str, opening: SessionParameters) -> TraceSpan:
    """Return the span of a session's stream to a service, as this side sees it."""
    return tracing.begin(
        f"{role} session",
        TracedKind.CLIENT,
        address=address,
        session=opening.session_id.hex()[:8],
        attempt=opening.attempt,
    )


class Stream:
    """A session's stream to a service that was dialled."""

    def __init__(self, call: Any, opening: Any, span: TraceSpan = NOTHING) -> None:
        self._call = call
        self._opening = opening
        self._span = span
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
            if is_cancelled():
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
            if is_cancelled():
                raise
        raise await self._lost()

    async def _lost(self) -> StreamLost:
        call = self._call
        code = await call.code()
        self._span.end(error=code.name)
        return StreamLost(code, await call.details() or "", await call.trailing_metadata())

    def cancel(self) -> None:
        """End the stream; the service stops its work and keeps the cache as evictable."""
        self._span.end()
        self._call.cancel()


class JoinedStream:
    """A session's stream to a draft that joined: it is invited, and attends by a call of its own.

    The invitation carries the first order, so that drafting starts as soon as with a draft that
    was dialled.
    """

    def __init__(
        self,
        opening: SessionParameters,
        invite: Callable[[JoinedStream, messages.SessionInvitation], None],
        address: str = "",
    ) -> None:
        self.byte_count = 0
        self._span = begin_session("draft", address, opening)
        self._opening: common.OpenSession | None = wire.write_opening(opening)  # until it is sent
        self._invite = invite
        self._call: tuple[Requests, Write] | None = None  # once the draft attends
        self._lost: StreamLost | None = None  # how it ended
        self._attended, self._over = asyncio.Event(), asyncio.Event()  # set with those two

    # --- for the generation ---

    async def write(self, message: draft_messages.DraftRequest) -> None:
        """Send a message, the first one with the invitation. Raises StreamLost."""
        self.byte_count += message.ByteSize()
        if self._opening is not None:
            opening, self._opening = self._opening, None
            invitation = messages.SessionInvitation(
                open=opening,
                order=message.order,
                metadata=dict(request_scope.carried(self._span.trace_parent)),
            )
            self._invite(self, invitation)
            return
        _, write = await self._attending()
        try:
            await write(messages.AttendResponse(order=message.order))
        except ReaderStalled as stalled:
            raise self.lose(StreamLost.gone(str(stalled))) from None
        except grpc.aio.BaseError:
            raise self._left() from None

    async def __aiter__(self) -> AsyncIterator[draft_messages.DraftResponse]:
        """Yield messages until the stream is lost, then raise StreamLost."""
        requests, _ = await self._attending()
        try:
            async for request in requests:
                self.byte_count += request.ByteSize()
                yield self._response(request)
        except grpc.aio.BaseError:
            pass  # the call is over
        except InvalidRequest:  # the server's word for bytes that are no message
            self.lose(StreamLost.unreadable())
        raise self._left()

    def cancel(self) -> None:
        """End the stream; the draft stops its work and keeps the cache as evictable."""
        self.lose(StreamLost.gone("the session was closed"), is_wanted=True)

    async def _attending(self) -> tuple[Requests, Write]:
        """Return the call by which the draft attends, once it does. Raises StreamLost."""
        await self._attended.wait()
        if self._lost is not None or self._call is None:
            raise self._left()
        return self._call

    def _response(self, request: messages.AttendRequest) -> draft_messages.DraftResponse:
        """Return what a message answers. Raises StreamLost."""
        kind = request.WhichOneof("message")
        if kind == "failure":
            failure = request.failure
            raise self.lose(StreamLost.reported(failure.code, failure.message[:MOST_REASON]))
        if kind != "response" or request.ByteSize() > DRAFT_BYTES:
            raise self.lose(StreamLost.unreadable())
        return request.response

    # --- for the draft ---

    @property
    def is_over(self) -> bool:
        """Whether nothing is received or sent any more."""
        return self._lost is not None

    def _left(self) -> StreamLost:
        """Return how it ended: by the draft's leaving, unless that is known otherwise."""
        return self.lose(StreamLost.gone("the draft left the session"))

    def lose(self, lost: StreamLost, is_wanted: bool = False) -> StreamLost:
        """End the stream, if it is not over; return how it ended."""
        if self._lost is None:
            self._lost = lost
            self._span.end(error="" if is_wanted else lost.code.name)
            self._attended.set()
            self._over.set()
        return self._lost

    async def serve(self, requests: Requests, write: Write) -> None:
        """Let a call carry the messages until either side ends the session."""
        self._call = requests, write
        self._attended.set()
        try:
            await self._over.wait()
        finally:
            self._left()


class LostStream:
    """A stream to a service that is not used any more, which is lost before anything is sent."""

    byte_count = 0

    def __init__(self, detail: str) -> None:
        self._detail = detail

    async def write(self, message: Any) -> None:
        """Raise StreamLost."""
        raise StreamLost.gone(self._detail)

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Raise StreamLost."""
        raise StreamLost.gone(self._detail)
        yield

    def cancel(self) -> None:
        """Do nothing: there is no stream."""


def is_cancelled() -> bool:
    """Return whether this task is to end; a channel that closes raises CancelledError, too."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
