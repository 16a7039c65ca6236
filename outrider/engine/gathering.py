"""Until when prompts that come at about the same time are gathered, to be read at once. Pure.

Read at once they take less time than one after the other beside those who have begun to generate.
Nobody waits for it longer than is hardly noticed beside the reading itself. What one decode has no
room for is read in decodes as large, not in the small parts that do not keep up those who generate:
of four prompts of 256 tokens for a 1.1B on a CPU the last was read after 4.9 s, all after 3.9 s.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

FOLLOWS = 0.05
"""Seconds: prompts that come no later after one another come together."""

_WAIT, _LONGEST_WAIT = 0.015, 0.02
"""Of the time of reading, and in seconds: how long the first prompts wait for others."""
_NEXT_PROMPT, _MORE = 0.01, 0.04
"""Once several came: seconds until the next one, and of the time of reading, how long at most."""
_LONGEST_BURST = 0.5  # seconds in which prompts come together
_KEPT_SECONDS, _KEPT_TIMES, _LONGEST_KEPT = 2.0, 3.0, 8.0
"""For how long those who generate are kept: or so many times what the first one has waited so far,
where that is more; and seconds at most, however long a prompt is that came with theirs."""


class Gathering:
    """How many prompts came together, and until when to wait for as many again."""

    def __init__(self) -> None:
        self._latest = -math.inf  # when a prompt came last
        self._count = 0  # prompts that have come together lately, those of the newest burst
        self._before = 0  # and in the burst before it: as many are expected again
        self._begin = -math.inf  # when the first of `_sessions` came
        self._sessions = set[bytes]()  # whose prompts came within `_LONGEST_BURST`

    def note(self, time: float, session_id: bytes) -> None:
        """A session's prompt came at this time."""
        follows = time <= self._latest + FOLLOWS
        if not follows:
            self._before, self._count = self._count, 0
        if not follows or time > self._begin + _LONGEST_BURST:
            self._begin = time
            self._sessions.clear()
        self._sessions.add(session_id)
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

    def keeps(self, sessions: Collection[bytes], seconds: float, now: float) -> bool:
        """Return whether prompts are read in large decodes, though these sessions generate already.

        So it is where all of them came together, and reading what is left takes so many `seconds`:
        not long beside what they waited for their first token. Who came before is promised more.
        """
        most = min(_LONGEST_KEPT, max(_KEPT_SECONDS, _KEPT_TIMES * (now - self._begin)))
        return self._sessions.issuperset(sessions) and seconds <= most
