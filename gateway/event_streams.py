"""Carries generations to HTTP clients, and stops them at once when the client is gone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.bodies import ENCODER
from outrider.errors import Draining, EngineBusy

Item = TypeVar("Item")

ANSWER = "outrider.answer"
"""In the scope of a request whose answer is kept: what is kept of it, with a method `fail`."""

DONE = b"data: [DONE]\n\n"

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_TOGETHER = 4  # prompts of one HTTP request that are generated at the same time


class ClientGone(Exception):
    """The client has hung up; nobody waits for an answer."""


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """Return a server-sent event."""
    text = f"data: {ENCODER.encode(data)}\n\n"
    return (f"event: {name}\n{text}" if name else text).encode()


def line(data: Mapping[str, Any], name: str = "") -> bytes:
    """Return a line of JSON, which has no place for a name."""
    return f"{ENCODER.encode(data)}\n".encode()


@dataclass(frozen=True, slots=True)
class Framing:
    """How a stream is written: `write` takes what is sent and its name, `ping` adds nothing."""

    media_type: str
    write: Callable[[Mapping[str, Any], str], bytes]
    ping: bytes


EVENTS = Framing("text/event-stream", event, b": ping\n\n")
LINES = Framing("application/x-ndjson", line, b" ")
"""Lines of JSON; before one there may be blanks, while an empty line is an error to clients."""


async def until_gone(receive: Receive, work: Coroutine[Any, Any, Item]) -> Item:
    """Return what `work` returns; raise ClientGone, `work` cancelled, when the client hangs up."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hang_up(receive: Receive) -> None:
    """Wait until the client hangs up; its request has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends events as they come, and closes their generator when the client hangs up.

    The status waits for the first event, but not longer than for a ping: an
    error before it becomes `refusal(error)`, a later one `last_words(error)`.
    A server that stops cancels it; that is such an error too.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        *,
        refusal: Callable[[Exception], Response],
        last_words: Callable[[Exception], bytes],
        ping_seconds: float,
        framing: Framing = EVENTS,
    ) -> None:
        super().__init__(headers=_HEADERS, media_type=framing.media_type)
        del self.headers["content-length"]
        self._events = events
        self._refusal = refusal
        self._last_words = last_words
        self._ping_seconds = ping_seconds
        self._ping = framing.ping
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application."""
        try:
            await until_gone(receive, self._serve(scope, receive, send))
        except ClientGone:
            pass
        except asyncio.CancelledError:
            error = Draining("the server is stopping")
            if not self._has_begun:
                await self._refusal(error)(scope, receive, send)
                return
            _note_failure(scope)
            await _send(send, self._last_words(error))
            await _send(send, b"", more=False)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        pinged = _with_pings(self._events, self._ping, self._ping_seconds)
        async with aclosing(pinged) as events:
            try:
                first = await anext(events, b"")
            except Exception as error:
                await self._refusal(error)(scope, receive, send)
                return
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            self._has_begun = True
            await send(start)
            await _send(send, first)
            try:
                async for chunk in events:
                    await _send(send, chunk)
            except Exception as error:
                _note_failure(scope)
                await _send(send, self._last_words(error))
            await _send(send, b"", more=False)


def _note_failure(scope: Scope) -> None:
    """Say to those who keep the answer that it failed, though its status says that all is well."""
    answer = scope.get(ANSWER)
    if answer is not None:
        answer.fail()


async def _send(send: Send, chunk: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": more})


async def _with_pings(
    events: AsyncGenerator[bytes], ping: bytes, seconds: float
) -> AsyncGenerator[bytes]:
    """Yield the events, and a ping whenever none comes for so long."""
    step: asyncio.Future[bytes] | None = None
    try:
        while True:
            step = step or asyncio.ensure_future(anext(events, b""))
            await asyncio.wait({step}, timeout=seconds)
            if not step.done():
                yield ping
                continue
            chunk, step = step.result(), None
            if not chunk:
                return
            yield chunk
    finally:
        if step is not None:
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        await events.aclose()


async def numbered(
    streams: Sequence[Callable[[], AsyncGenerator[Item]]],
) -> AsyncGenerator[tuple[int, Item]]:
    """Yield what several streams bring, each with the number of its stream; a few run together.

    One that is refused because too much is in flight comes after the others, and one less runs from
    then on. Raises what a stream raises, the others closed.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]()) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Item] | Exception | None] = asyncio.Queue(_TOGETHER)
    waiting = deque(range(len(streams)))
    pump_count = min(_TOGETHER, len(streams))

    async def pump() -> None:
        nonlocal pump_count
        while waiting:
            number, has_begun = waiting.popleft(), False
            try:
                async with aclosing(streams[number]()) as stream:
                    async for item in stream:
                        has_begun = True
                        await queue.put((number, item))
            except Exception as error:
                if has_begun or pump_count == 1 or not _ends_with_others(error):
                    await queue.put(error)
                    return
                waiting.append(number)
                break
            await queue.put(None)
        pump_count -= 1

    pumps = [asyncio.ensure_future(pump()) for _ in range(pump_count)]
    try:
        left = len(streams)
        while left:
            brought = await queue.get()
            if isinstance(brought, Exception):
                raise brought
            if brought is None:
                left -= 1
            else:
                yield brought
    finally:
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _ends_with_others(refusal: Exception) -> bool:
    """Say whether there may be room when other generations have ended."""
    return isinstance(refusal, EngineBusy) and refusal.metadata.get("limit") != "tokens_per_minute"
