"""A stream to a peer and the tasks that serve it, so that nobody else ever waits for the peer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from orchestrator.streams import SessionStream, StreamLost
from outrider.messages import SessionParameters

MOST_WAITING = 64
"""Messages that a peer may leave unread before it counts as lost."""

SHORT_SECONDS = 0.01  # s; before another look at what is full or busy: less than a decode


class Link:
    """One stream of a session, what it was opened with, what waits to be written to it.

    `send` and `call` return at once; what they hand over is carried out in their order by a task
    of the link. A peer that does not read delays that task, and no generation. Messages that come
    in go to `receive`, and are not read while it `is_full`; `lose` is called once, when the stream
    ends or the peer leaves too much unread.
    """

    def __init__(
        self,
        opening: SessionParameters,
        stream: SessionStream,
        receive: Callable[[Any], None],
        is_full: Callable[[], bool],
        lose: Callable[[Link, StreamLost], None],
    ) -> None:
        self.opening = opening
        self._stream = stream
        self._receive = receive
        self._is_full = is_full
        self._lose = lose
        # What is to be written or called, in order.
        self._outbox: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())
        self._is_over = False  # `lose` was called, or must not be any more
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
        try:
            async for message in self._stream:
                if self._is_over:
                    return
                self._receive(message)
                while self._is_full() and not self._is_over:  # noqa: ASYNC110 - it empties anywhere
                    await asyncio.sleep(SHORT_SECONDS)
        except StreamLost as lost:
            self._end(lost)

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
            self._lose(self, lost)


_readers = set[asyncio.Task[None]]()  # of streams that were ended
