"""Answers a request that is sent again with the same key as it was answered first. Plain ASGI.

The work belongs to the key, not to a connection: who sends the request, first or again, follows
one answer from its beginning, and it continues for a while when nobody does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import errors
from gateway.answers_kept import KeptAnswers
from gateway.errors import Failure
from gateway.idempotency import (
    HEADER,
    MOST_ANSWER_BYTES,
    KnownKeys,
    fingerprint,
    read_key,
)
from gateway.streams import ANSWER
from outrider.errors import InvalidRequest, KeyReused
from outrider.idempotency import name_of

ABANDONED_SECONDS = 30.0
"""So long the work continues when nobody listens: a client that lost its connection comes back."""

_REPLAYED = (b"idempotent-replayed", b"true")

Refusal = Callable[[str, Failure], Response]


class RecordedAnswer:
    """What an application sends, for any number of listeners. `fail` says that it is not kept."""

    def __init__(self, messages: list[Message] | None = None) -> None:
        self.task: asyncio.Task[None] | None = None  # that sends it
        self.is_over = messages is not None
        self.is_failed = False
        self.byte_count = 0
        self.abandoned = asyncio.Event()  # nobody listened for long
        self._messages: list[Message] = messages or []
        self._first = 0  # the number of the first message that is still here
        self._places: dict[object, int] = {}  # of listeners: how many messages each has taken
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def can_be_followed(self) -> bool:
        """Whether its beginning is still here."""
        return self._first == 0

    @property
    def messages(self) -> list[Message]:
        """All of it, where it can be followed."""
        return list(self._messages)

    def fail(self) -> None:
        """What follows says that it failed, though it began well."""
        self.is_failed = True

    async def add(self, message: Message) -> None:
        """Take a message; where they are too many to be kept, wait for those who listen."""
        if message["type"] == "http.response.start" and message["status"] != 200:
            self.is_failed = True
        self._messages.append(dict(message))
        self.byte_count += len(message.get("body", b""))
        self._wake()
        while self.byte_count > MOST_ANSWER_BYTES and not self.abandoned.is_set():
            if not self._places:
                self.abandoned.set()  # it could not be followed from its beginning
                return
            self._drop_taken()
            if not self._messages:
                return
            await self._news.wait()

    def finish(self) -> None:
        """Nothing follows."""
        self.is_over = True
        self._wake()

    async def follow(self, send: Send, is_repeat: bool) -> None:
        """Send all of it to one listener, from the beginning."""
        listener = object()
        self._places[listener] = 0
        self._keep_on()
        try:
            while True:
                place = self._places[listener]
                if place < self._first + len(self._messages):
                    message = self._messages[place - self._first]
                    if is_repeat and message["type"] == "http.response.start":
                        headers = [*message.get("headers", ()), _REPLAYED]
                        message = {**message, "headers": headers}
                    await send(message)
                    self._places[listener] = place + 1
                    self._wake()
                elif self.is_over:
                    return
                else:
                    await self._news.wait()
        finally:
            del self._places[listener]
            self._wake()
            if not (self._places or self.is_over):
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(ABANDONED_SECONDS, self.abandoned.set)

    def _keep_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop_taken(self) -> None:
        taken = min(self._places.values()) - self._first
        del self._messages[:taken]
        self._first += taken

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Repeats:
    """Gives requests with an `Idempotency-Key` that is known the answer that it had."""

    def __init__(self, app: ASGIApp, refusal: Refusal, kept: KeptAnswers | None = None) -> None:
        """`kept` are the answers of a process before this one."""
        self._app = app
        self._refusal = refusal
        self._kept = kept
        self._known: KnownKeys[RecordedAnswer] = KnownKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            values = [value for name, value in scope["headers"] if name == HEADER.lower().encode()]
            key = read_key(values)
            if key is None:
                await self._app(scope, receive, send)
                return
            await self._serve(key, scope, receive, send)
        except InvalidRequest as error:
            failure = errors.failure_of(error)
            if isinstance(error, KeyReused):
                failure = Failure(422, str(error), HEADER, error.reason, error.metadata)
            await self._refusal(scope["path"], failure)(scope, receive, send)
        except HTTPException as error:  # the body is too long, or does not come
            failure = Failure(error.status_code, str(error.detail))
            await self._refusal(scope["path"], failure)(scope, receive, send)

    async def _serve(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            return
        shown = [v for name, v in scope["headers"] if name in (b"authorization", b"x-api-key")]
        name = name_of(key, shown)
        request = fingerprint(scope["method"], scope["path"], scope["query_string"], body)
        answer = self._known.find(name, request, time.monotonic())
        is_repeat = answer is not None
        if answer is None and self._kept is not None:
            messages = await self._kept.find(name, request)
            answer = self._known.find(name, request, time.monotonic())  # begun meanwhile
            is_repeat = answer is not None or messages is not None
            if answer is None and messages is not None:
                answer = RecordedAnswer(messages)
        if answer is None or not answer.can_be_followed:
            answer = RecordedAnswer()
            self._known.begin(name, request, answer)
            work = self._answer(name, request, answer, scope, body)
            answer.task = asyncio.create_task(work)
            answer.task.add_done_callback(_note_end)
            is_repeat = False
        await self._follow(answer, is_repeat, receive, send)

    async def _answer(
        self, name: bytes, request: bytes, answer: RecordedAnswer, scope: Scope, body: bytes
    ) -> None:
        """Have the application answer, even if nobody listens."""
        is_read = False

        async def receive() -> Message:
            nonlocal is_read
            if not is_read:
                is_read = True
                return {"type": "http.request", "body": body, "more_body": False}
            await answer.abandoned.wait()
            return {"type": "http.disconnect"}

        try:
            await self._app({**scope, ANSWER: answer}, receive, answer.add)
        except BaseException:
            answer.fail()
            raise
        finally:
            lasts = answer.can_be_followed and not answer.is_failed and answer.messages
            if lasts and not answer.abandoned.is_set() and answer.byte_count <= MOST_ANSWER_BYTES:
                self._known.end(name, answer.byte_count, time.monotonic())
                if self._kept is not None:
                    self._kept.add(name, request, answer.messages)
            else:
                self._known.drop(name)
            answer.finish()

    async def _follow(
        self, answer: RecordedAnswer, is_repeat: bool, receive: Receive, send: Send
    ) -> None:
        """Send an answer to one client, until it hangs up."""
        following = asyncio.ensure_future(answer.follow(send, is_repeat))
        gone = asyncio.ensure_future(_hang_up(receive))
        try:
            await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The server stops. What is written ends with words that say so.
            if answer.task is not None:
                answer.task.cancel()
            await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            following.cancel()
            gone.cancel()
            await asyncio.gather(following, gone, return_exceptions=True)
        if answer.task is not None and answer.task.done():
            await asyncio.gather(answer.task)  # raises what it failed of


def _note_end(task: asyncio.Task[None]) -> None:
    """Its listeners raise what it failed of; there may be none."""
    if not task.cancelled():
        task.exception()


async def _body(receive: Receive) -> bytes | None:
    """Return the body of a request; None where the client has hung up."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _hang_up(receive: Receive) -> None:
    """Wait until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
