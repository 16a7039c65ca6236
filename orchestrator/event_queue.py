"""What happens to one generation, in turn: no event begins before the one before is done with.

Messages, lost streams and timers are all events here, so that what handles them needs no lock and
never sees the state of another one half changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_MOST_WAITING = 256
"""Events that wait until what was put out is taken; then peers are read no further."""

T = TypeVar("T")


class EventQueue(Generic[T]):
    """Handles events one after the other, and what follows from each.

    `follow` carries that out, and returns what of it is for the reader of `outputs`.
    """

    def __init__(self, follow: Callable[[], Sequence[T]]) -> None:
        self._follow = follow
        self._loop = asyncio.get_running_loop()
        # What happened and was not handled yet, oldest first.
        self._events: list[Callable[[], None]] = []
        self._untaken: list[T] = []  # for the reader; nothing advances while there are any
        self._news = asyncio.Event()  # set when there is something untaken, or a failure
        self._advancing = False  # `advance` runs; what happens meanwhile only joins `_events`
        self._timers: set[asyncio.TimerHandle] = set()  # that have not fired; none outlives `close`
        self._failure: Exception | None = None  # nothing is handled after it

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no more should be read."""
        return len(self._events) >= _MOST_WAITING

    def happen(self, event: Callable[[], None]) -> None:
        """Let an event happen, in turn with all others."""
        self._events.append(event)
        self.advance()

    def after(self, seconds: float, event: Callable[[], None]) -> asyncio.TimerHandle:
        """Make an event happen later, in turn with all others."""

        def fire() -> None:
            self._timers.discard(handle)
            self.happen(event)

        handle = self._loop.call_later(max(0.0, seconds), fire)
        self._timers.add(handle)
        return handle

    def forget(self, timer: asyncio.TimerHandle | None) -> None:
        """Let what was to happen later not happen."""
        if timer is not None:
            timer.cancel()
            self._timers.discard(timer)

    def fail(self, failure: Exception) -> None:
        """Let this event be the last one: the reader is raised `failure`."""
        self._failure = failure

    def advance(self) -> None:
        """Handle what happened and carry out what follows, on news of any kind.

        One at a time; and not while something put out waits to be taken, because
        its reader may end it all there. Nothing is awaited here: what a peer does
        or leaves undone holds nobody up.
        """
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._failure is None and not self._untaken:
                # One at a time: a reader may end the text at what any of them puts out.
                if self._events:
                    self._events.pop(0)()
                self._untaken += self._follow()
                if not self._events:
                    break
        except Exception as error:
            self._failure = error
        finally:
            self._advancing = False
        if self._untaken or self._failure is not None:
            self._news.set()

    async def outputs(self) -> Sequence[T]:
        """Return what was put out, once there is something. Raises the failure, if there is one."""
        await self._news.wait()
        self._news.clear()
        if self._failure is not None:
            raise self._failure
        return self._untaken

    def note_taken(self) -> None:
        """What `outputs` returned is taken: continue."""
        self._untaken.clear()
        self.advance()

    def close(self) -> None:
        """Let nothing happen any more that was to happen later."""
        for timer in self._timers:
            timer.cancel()
