"""How far a long piece of work is, and how long it will still take."""

from __future__ import annotations

import sys
from collections.abc import Callable

from outrider_cli.screen import Progress

_LINE_SECONDS = 10.0
_LIVE_SECONDS = 0.2


class TimeLeft:
    """Reports it on standard error: on a terminal always, elsewhere a line every ten seconds.

    Use as a context, so that the line goes away. `clock` returns seconds.
    """

    def __init__(self, work: str, total: int, clock: Callable[[], float]) -> None:
        self._work = work
        self._total = total
        self._clock = clock
        self._screen = Progress()
        self._pause = _LIVE_SECONDS if self._screen.is_live else _LINE_SECONDS
        self._start = clock()
        self._next = self._start + self._pause

    def __enter__(self) -> TimeLeft:
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.clear()

    def report(self, done: int) -> None:
        """Say that so much of the total is done, if it is time to."""
        now = self._clock()
        if now < self._next or not done:
            return
        self._next = now + self._pause
        left = round((self._total - done) * (now - self._start) / done)
        text = f"{self._work}: {done}/{self._total} done, ETA {left // 60:02}:{left % 60:02}"
        if self._screen.is_live:
            self._screen.say(text)
        else:
            print(text, file=sys.stderr, flush=True)
