"""The attempts of one session at one side: a stream each, of which the newest owns the session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.event_queue import EventQueue
from orchestrator.link import Link
from orchestrator.streams import SessionStream, StreamLost
from outrider.messages import SessionParameters


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
        link: Link

        def read_on(message: Any) -> None:
            # What still waits of a stream that was closed is nobody's, least of all the next one's.
            if not link.is_closed:
                self._read(message)

        link = Link(
            opening,
            stream,
            lambda message: self._events.happen(partial(read_on, message)),
            lambda: self._events.is_full,
            lambda its, lost: self._events.happen(partial(self._lose, its, lost)),
        )
        self.link = link

    def close(self) -> None:
        """End the newest stream."""
        if self.link is not None:
            self.link.close()
