"""The streams of one session to peers, one after the other, and the tasks that serve each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.event_queue import EventQueue
from orchestrator.streams import SessionStream, StreamLost
from outrider.messages import SessionParameters

MOST_WAITING = 64
"""Messages that a peer may leave unread before it counts as lost."""

SHORT_SECONDS = 0.01  # s; before another look at what is full or busy: less than a decode


class Link:
    """One stream of a session, what it was opened with, what waits to be written to it.

    `send` and `call` return at once; what they hand over is carried out in their order by a task
    of the link. A peer that does not read delays that task, and no generation. Messages that come
    in are events that `receive` handles, and are not read while too many wait; `lose` handles that
    the stream ended or the peer leaves too much unread.
    """

    def __init__(
        self,
        opening: SessionParameters,
        stream: SessionStream,
        events: EventQueue[Any],
        receive: Callable[[Any], None],
        lose: Callable[[Link, StreamLost], None],
    ) -> None:
        self.opening = opening
        self._stream = stream
        self._events = events
        self._receive = receive
        self._lose = lose
        # What is to be written or called, in order.
        self._outbox: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())
        self._is_over = False  # its end is an event already, or must not be any more
        self.is_closed = False
        """Whether it was closed. What came before a stream ended by itself is still good."""

    @property
    def byte_count(self) -> int:
        """Serialized bytes so far, both ways."""
        return self._stream.byte_count

    def send(self, message: Any) -> None:
        """Write a message once those before it are written."""
        self.call(partial(self._stream.write, message))

    def call(self, action: Callable[[], Awaitable[None]]) -> None:
        """Carry something out once everything before it is."""
        if self._outbox.qsize() >= MOST_WAITING:
            self._end(StreamLost.unread(MOST_WAITING))
        else:
            self._outbox.put_nowait(action)

    def close(self) -> None:
        """End the stream without a word to anyone."""
        self.is_closed = True
        self._cut()

    def _cut(self) -> None:
        self._is_over = True
        self._stream.cancel()
        # The reader ends with its stream, soon: gRPC loses some memory for each read that is
        # cancelled, and a generation ends with one for each of its streams.
        _readers.add(self._reader)
        self._reader.add_done_callback(_readers.discard)
        if self._writer is not asyncio.current_task():
            self._writer.cancel()

    async def _read(self) -> None:
        events = self._events
        try:
            async for message in self._stream:
                if self._is_over:
                    return
                events.happen(partial(self._take, message))
                while events.is_full and not self._is_over:  # noqa: ASYNC110 - it empties anywhere
                    await asyncio.sleep(SHORT_SECONDS)
        except StreamLost as lost:
            self._end(lost)

    def _take(self, message: Any) -> None:
        # What still waits of a stream that was closed is nobody's, least of all the next one's.
        if not self.is_closed:
            self._receive(message)

    async def _write(self) -> None:
        try:
            while True:
                action = await self._outbox.get()
                await action()
        except StreamLost:
            return  # its reader sees that, too, and says why

    def _end(self, lost: StreamLost) -> None:
        if not self._is_over:
            self._cut()
            self._events.happen(partial(self._lose, self, lost))


_readers = set[asyncio.Task[None]]()  # of streams that were ended


class Attempts:
    """The streams of a session, one after the other. What they bring, and their ends, are events.

    `read` takes a message of the newest one, `lose` a stream that ended and why.
    """

    def __init__(
        self,
        opening: SessionParameters,
        events: EventQueue[Any],
        read: Callable[[Any], None],
        lose: Callable[[Link, StreamLost], None],
    ) -> None:
        """The first attempt opens with `opening`."""
        self._opening = opening
        self._events = events
        self._read = read
        self._lose = lose
        self.link: Link | None = None
        """The newest stream; None before the first."""
        self._bytes_before = 0  # over the streams before it

    @property
    def byte_count(self) -> int:
        """Serialized bytes so far, both ways, of all attempts."""
        return self._bytes_before + (self.link.byte_count if self.link is not None else 0)

    def next_opening(self) -> SessionParameters:
        """Return what the next stream opens with, after the one before was lost."""
        before = self.link.opening.attempt if self.link is not None else 0
        return replace(self._opening, attempt=before + 1)

    def begin(self, opening: SessionParameters, stream: SessionStream) -> None:
        """Go by a new stream from now on."""
        self._bytes_before = self.byte_count
        self.link = Link(opening, stream, self._events, self._read, self._lose)

    def close(self) -> None:
        """End the newest stream."""
        if self.link is not None:
            self.link.close()
