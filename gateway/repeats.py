"""Answers a request that is sent again with the same key as it was answered first. Plain ASGI.

As in the IETF's draft-ietf-httpapi-idempotency-key-header: the key of a request that is over brings
its answer again, and with another request it is refused with 422. Where the draft lets a server
refuse the key of a request in flight (409), both get the one answer here.

A request is an entry of the log (`orchestrator/log.py`). Its first event is the answer's status and
headers, those after it are parts of its body, byte by byte as they were sent, and an empty one says
that this is all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import http_errors
from gateway.event_streams import ANSWER
from gateway.http_errors import HttpFailure
from orchestrator.log import Entry, Log, Retention, check_key, digest_of, owned_key
from outrider.errors import InvalidRequest, KeyReused

HEADER = "Idempotency-Key"
KEEP_SECONDS = 600.0  # after its end; clients try again for seconds, or minutes
MOST_KEYS = 4096  # answers: some seven new ones a second over that time
MOST_BYTES = 64 * 2**20  # of all answers, which are in memory
MOST_ANSWER_BYTES = 4 * 2**20  # a longer answer is sent once, as fast as it is read, and not kept
ABANDONED_SECONDS = 30.0  # that the work continues when nobody listens: a client may come back

_REPLAYED = (b"idempotent-replayed", b"true")

Refusal = Callable[[str, HttpFailure], Response]


def answer_log(folder: Path | None = None) -> Log:
    """Return the log of answers; with a folder they outlive the process. Raises InvalidConfig."""
    retention = Retention(KEEP_SECONDS, MOST_KEYS, MOST_BYTES, away_seconds=0.0)
    return Log(retention, folder and folder / "answers.sqlite")


def read_key(values: Iterable[bytes]) -> str | None:
    """Return the key of a request that may have the header; None without one.

    The draft's quotes around it are no part of it, and most clients send none. Raises
    InvalidRequest.
    """
    found = [value.decode("latin-1").strip() for value in values]
    if not found:
        return None
    key = found[0]
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    return check_key(HEADER, key if len(found) == 1 else "")


@dataclass(slots=True, eq=False)
class Writing:
    """An answer that is being written, and who reads it meanwhile."""

    places: dict[object, int] = field(default_factory=dict)  # events that each reader has
    is_failed: bool = False
    stop: asyncio.TimerHandle | None = None  # of the work, while nobody reads

    def fail(self) -> None:
        """What follows says that it failed, though it began well."""
        self.is_failed = True


class Repeats:
    """Gives requests with an `Idempotency-Key` that is known the answer that it had."""

    def __init__(self, app: ASGIApp, refusal: Refusal, log: Log) -> None:
        self._app = app
        self._refusal = refusal
        self._log = log
        self._writing: dict[Entry, Writing] = {}

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
            failure = http_errors.failure_of(error)
            if isinstance(error, KeyReused):
                failure = HttpFailure(422, str(error), HEADER, error.reason, error.metadata)
            await self._refusal(scope["path"], failure)(scope, receive, send)
        except HTTPException as error:  # the body is too long, or does not come
            failure = HttpFailure(error.status_code, str(error.detail))
            await self._refusal(scope["path"], failure)(scope, receive, send)

    async def _serve(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            return
        shown = [v for name, v in scope["headers"] if name in (b"authorization", b"x-api-key")]
        owned = owned_key(key, shown)
        asked = scope["method"].encode(), scope["path"].encode(), scope["query_string"], body
        entry = self._log.repeated(owned, digest_of(*asked), HEADER)
        is_repeat = entry is not None and entry.first == 0  # else its beginning is gone
        if entry is None or not is_repeat:
            entry = self._log.begin(digest_of(*asked), owned)
            writing = self._writing[entry] = Writing()
            entry.task = asyncio.create_task(self._answer(entry, writing, scope, body))
            entry.task.add_done_callback(_note_end)
        await self._follow(entry, is_repeat, receive, send)

    async def _answer(self, entry: Entry, writing: Writing, scope: Scope, body: bytes) -> None:
        """Have the application answer, even if nobody reads it. Keep a whole and good answer."""
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if not parts:
                await asyncio.Event().wait()  # who works for a key is cancelled, not hung up on
            return parts.pop()

        try:
            take = partial(self._take, entry, writing)
            await self._app({**scope, ANSWER: writing}, receive, take)
        except BaseException:
            writing.fail()
            raise
        finally:
            del self._writing[entry]
            self._log.finish(entry)
            if writing.is_failed or entry.first or entry.id not in self._log.entries:
                self._log.forget(entry)
            else:
                self._log.keep(entry)
                self._log.make_room()

    async def _take(self, entry: Entry, writing: Writing, message: Message) -> None:
        """Log what the application sends; where that is too much to be kept, wait for readers."""
        if message["type"] == "http.response.start":
            writing.is_failed |= message["status"] != 200
            headers = [
                [part.decode("latin-1") for part in each] for each in message.get("headers", ())
            ]
            self._log.append(entry, json.dumps([message["status"], headers]).encode())
        else:
            if body := message.get("body", b""):
                self._log.append(entry, bytes(body))
            if not message.get("more_body", False):
                self._log.append(entry, b"")
        while entry.byte_count > MOST_ANSWER_BYTES:
            if not writing.places:  # nobody could read it from its beginning any more
                self._abandon(entry)
            self._log.take(entry, min(writing.places.values(), default=0))
            if entry.byte_count > MOST_ANSWER_BYTES:
                await entry.news.wait()

    async def _follow(self, entry: Entry, is_repeat: bool, receive: Receive, send: Send) -> None:
        """Send an answer to one client, until it hangs up."""
        writing, reader = self._writing.get(entry, Writing()), object()
        writing.places[reader] = 0
        if writing.stop is not None:
            writing.stop.cancel()
        following = asyncio.ensure_future(self._send_all(entry, writing, reader, is_repeat, send))
        gone = asyncio.ensure_future(_hang_up(receive))
        try:
            await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The server stops. What is written ends with words that say so.
            if entry.task is not None:
                entry.task.cancel()
            await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            following.cancel()
            gone.cancel()
            await asyncio.gather(following, gone, return_exceptions=True)
            del writing.places[reader]
            entry.wake()
            if not (writing.places or entry.is_over):
                loop = asyncio.get_running_loop()
                writing.stop = loop.call_later(ABANDONED_SECONDS, self._abandon, entry)
        if entry.task is not None and entry.task.done():
            entry.task.result()  # raises what it failed of

    async def _send_all(
        self, entry: Entry, writing: Writing, reader: object, is_repeat: bool, send: Send
    ) -> None:
        """Send an answer from its beginning, as far as it is written, to its end."""
        place = 0
        while place < entry.end or not entry.is_over:
            if place == entry.end:
                await entry.news.wait()
                continue
            await send(_message(entry.events[place - entry.first], place, is_repeat))
            place += 1
            writing.places[reader] = place
            entry.wake()

    def _abandon(self, entry: Entry) -> None:
        """Stop the work for an answer; its key is new again."""
        self._log.forget(entry)
        assert entry.task is not None
        entry.task.cancel()


def _message(event: bytes, number: int, is_repeat: bool) -> Message:
    """Return what an event of an answer is to be sent as."""
    if number:
        return {"type": "http.response.body", "body": event, "more_body": event != b""}
    status, named = json.loads(event)
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named]
    headers += [_REPLAYED] if is_repeat else []
    return {"type": "http.response.start", "status": status, "headers": headers}


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
