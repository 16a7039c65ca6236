"""One HTTP connection: how many there may be, how long a head may take, and a reader stall."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 512
"""Below what processes may usually open (1,024 files): gRPC needs some, too."""

HEAD_SECONDS = 10.0  # s; a request's head must come within them
STALL_SECONDS = 30.0  # s; a connection of which nothing is read so long is closed
MAX_HEAD_BYTES = 64 * 1024  # bytes of a request's head


class Connection(H11Protocol):
    """A connection that is closed when a head does not come in time, or its client stops reading.

    `_head_timer` runs exactly while a head is waited for; between two requests
    of a connection it is uvicorn's own time limit that counts. `_stall_timer` runs exactly
    while the write buffer is too full to write more.
    """

    head_seconds = HEAD_SECONDS
    stall_seconds = STALL_SECONDS
    max_connections = MAX_CONNECTIONS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.close()
        else:
            self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def _watch_reader(self, unread: int) -> None:
        self._stall_timer = self.loop.call_later(self.stall_seconds, self._check_reader, unread)

    def _check_reader(self, unread: int) -> None:
        """Hang up on a client that took nothing since; a slow one is given time again."""
        left = self.transport.get_write_buffer_size()
        if left < unread:
            self._watch_reader(left)
        else:
            self.transport.abort()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
