"""One HTTP connection: how many there may be, and how long a request's head may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 512
"""Below what processes may usually open (1,024 files): gRPC needs some, too."""

HEAD_SECONDS = 10.0
MAX_HEAD_BYTES = 64 * 1024


class Connection(H11Protocol):
    """A connection that is closed when the head of a request does not come in time.

    `_head_timer` runs exactly while a head is waited for; between two requests
    of a connection it is uvicorn's own time limit that counts.
    """

    head_seconds = HEAD_SECONDS
    max_connections = MAX_CONNECTIONS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None

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
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
