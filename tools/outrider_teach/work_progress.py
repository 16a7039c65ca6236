"""How far a long piece of work is, how fast, and how long it will still take."""

from __future__ import annotations

import sys
from time import monotonic

from outrider_cli.screen import Progress

_LINE_SECONDS = 30.0  # s; between two lines where there is no terminal


def duration(seconds: float) -> str:
    """Return a time in the two largest of its units."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


class WorkProgress:
    """Reports it on standard error: on a terminal always, elsewhere a line every 30 s."""

    def __init__(self, work: str, total: int, progress: Progress, done: int = 0) -> None:
        """`done` of the total tokens were there before."""
        self._work, self._total, self._progress = work, total, progress
        self._before = done
        self._start = self._said = monotonic()

    def report(self, done: int, more: str = "") -> None:
        """Say that so much is done, and something more."""
        now = monotonic()
        rate = (done - self._before) / max(now - self._start, 1e-3)
        left = duration(max(0, self._total - done) / rate) if rate > 0.0 else "?"
        text = f"{self._work}: {min(done, self._total):,} of {self._total:,} tokens"
        text += f", {rate:,.0f} a second, {left} left, {more}"
        if self._progress.is_live:
            self._progress.say(text)
        elif now - self._said >= _LINE_SECONDS:
            self._said = now
            print(text, file=sys.stderr, flush=True)
