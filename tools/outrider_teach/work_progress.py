"""How far a long piece of work is, how fast, and how long it will still take."""

from __future__ import annotations

import sys
from time import monotonic

from outrider_cli.screen import Progress

_FIRST_SECONDS = 10.0  # s; after which a rate says something, and the first line comes
_LINE_SECONDS = 30.0  # s; between two lines where there is no terminal


def duration(seconds: float) -> str:
    """Return a time in the two largest of its units."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


class WorkProgress:
    """Reports it on standard error: on a terminal always, elsewhere a line every 30 s."""

    def __init__(
        self, work: str, total: int, progress: Progress, done: int = 0, unit: str = "tokens"
    ) -> None:
        """`done` of the total were there before."""
        self._work, self._total, self._progress, self._unit = work, total, progress, unit
        self._before = done
        self._start = monotonic()
        self._next = self._start + _FIRST_SECONDS

    def report(self, done: int, more: str = "") -> None:
        """Say that so much is done, and something more."""
        now = monotonic()
        rate = (done - self._before) / max(now - self._start, 1e-3)
        left = duration(max(0, self._total - done) / rate) if rate > 0.0 else "?"
        text = f"{self._work}: {min(done, self._total):,} of {self._total:,} {self._unit}"
        text += f", {rate:,.{0 if rate >= 10 else 1}f} a second, {left} left, {more}"
        if self._progress.is_live:
            self._progress.say(text)
        elif now >= self._next:
            self._next = now + _LINE_SECONDS
            print(text, file=sys.stderr, flush=True)
