"""Until when prompts that come at about the same time are gathered, to be read at once. Pure.

Read at once they take less time than one after the other beside those who have begun to generate.
Nobody waits for it longer than is hardly noticed beside the reading itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FOLLOWS = 0.05
"""Seconds: prompts that come no later after one another come together."""

_WAIT, _LONGEST_WAIT = 0.015, 0.02
"""Of the time of reading, and in seconds: how long the first prompts wait for others."""
_NEXT_PROMPT, _MORE = 0.01, 0.04
"""Once several came: seconds until the next one, and of the time of reading, how long at most."""


class Gathering:
    """How many prompts came together, and until when to wait for as many again."""

    def __init__(self) -> None:
        self._latest = -math.inf  # when a prompt came last
        self._count = 0  # prompts that have come together lately, those of the newest burst
        self._before = 0  # and in the burst before it: as many are expected again

    def note(self, time: float) -> None:
        """A prompt came at this time."""
        if time > self._latest + FOLLOWS:
            self._before, self._count = self._count, 0
        self._count += 1
        self._latest = max(self._latest, time)

    def ends(self, times: Sequence[float], reading: float, is_full: bool) -> float:
        """Return until when to gather more prompts beside those that came at these times.

        Reading those takes `reading` seconds, all at once; `is_full` says that a decode has no
        room for more. Not later than 0 where all that usually come together are here.
        """
        first, count = min(times), len(times)
        ends = first + min(_LONGEST_WAIT, _WAIT * reading)
        if is_full:
            return ends
        if count < self._before:
            usual = reading * self._before / count
            return max(ends, min(max(times) + FOLLOWS, first + _MORE * usual))
        if self._before > 1:
            return 0.0
        # More come one after the other: their sender needs some time for each.
        if count > 1:
            ends = max(ends, min(max(times) + _NEXT_PROMPT, first + _MORE * reading))
        return ends
