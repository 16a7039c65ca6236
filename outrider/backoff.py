"""How long to wait before something that failed is tried again: every redial and every retry."""

from __future__ import annotations

import random

from outrider.core.health import doubled

FIRST_PAUSE = 0.1
"""Seconds before the first retry, and between two looks for a peer while none is usable: a text
waits no longer than that for one that is there again."""

LONGEST_PAUSE = 5.0
"""Seconds between two tries, however many failed: a peer that comes back is noticed within it."""


class Backoff:
    """Seconds until the next try: twice as long each time, up to a limit, until something works.

    `tries` counts those since anything worked. A random part keeps callers from trying all at
    once.
    """

    def __init__(self, longest: float | None = None) -> None:
        self.tries = 0
        self._longest = LONGEST_PAUSE if longest is None else longest

    def next(self) -> float:
        """Return how long to wait before another try."""
        longest = doubled(FIRST_PAUSE, self.tries, self._longest)
        self.tries += 1
        return longest * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Take note that something worked."""
        self.tries = 0
