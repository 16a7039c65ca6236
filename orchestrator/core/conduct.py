"""Whether a target is left alone for a while, since it is too slow or loses its texts. Pure.

Slow is what takes several times as long as its own load says and as the other targets take, by that
measure: a load that all share, or a machine that is slower and says so, does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_SLOW = 3.0
"""Times what the others take, and what is expected, from which on a target is an outlier."""
_WEIGHT = 0.3  # of the newest text in a target's mean
_LEAST_TEXTS = 3  # before a mean says anything
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
_FORGIVING_SECONDS = 600.0  # of good conduct, and the next pause is a short one again
_LEAST_FAULTS = 2  # in a row; one is what every restart brings
_AT_ONCE_SECONDS = 1.0


class Conduct:
    """How one target behaved lately, and until when it is left alone. Times are in seconds."""

    def __init__(self) -> None:
        self.ratio = 1.0  # a token's time over what its load explains; a mean of the latest texts
        self.text_count = 0  # that `ratio` is of, since the last pause
        self.reason = ""  # of the latest pause, for people
        self._until = 0.0  # of the caller's clock: the end of that pause
        self._pauses = 0  # in a row, each soon after the one before
        self._faults = 0  # losses in a row, none of which brought a text to its end
        self._last_fault = -math.inf

    def note_text(self, seconds: float, expected: float) -> None:
        """The tokens of a text took `seconds` each, where `expected` is what its load explains."""
        self._faults = 0
        if seconds <= 0.0 or expected <= 0.0:
            return
        weight = max(_WEIGHT, 1.0 / (self.text_count + 1))
        self.ratio += weight * (seconds / expected - self.ratio)
        self.text_count += 1

    def note_fault(self, now: float) -> None:
        """It lost a text that it was writing; all that it loses at once count as one."""
        if now < self._last_fault + _AT_ONCE_SECONDS:
            return
        self._last_fault = now
        self._faults += 1
        if self._faults >= _LEAST_FAULTS:
            self._pause(now, f"it lost {self._faults} texts in a row")

    def note_broken(self, now: float, reason: str) -> None:
        """It left a text unanswered though the link is alive, or said nonsense: no restart does."""
        self._last_fault = now
        self._pause(now, reason)

    def note_others(self, others: Sequence[Conduct], now: float) -> None:
        """Leave it alone if it takes several times what the others take."""
        known = [each.ratio for each in others if each.text_count >= _LEAST_TEXTS]
        if not known or self.text_count < _LEAST_TEXTS:
            return
        usual = max(1.0, sorted(known)[len(known) // 2])
        if self.ratio > _SLOW * usual:
            times = self.ratio / usual
            self._pause(now, f"it takes {times:.1f} times as long as the others")

    def left_alone(self, now: float) -> float:
        """Return for how many more seconds it is left alone; 0 if it is not."""
        return max(0.0, self._until - now)

    def _pause(self, now: float, reason: str) -> None:
        """Leave it alone, twice as long as the last time; then it is judged anew."""
        if now > self._until + _FORGIVING_SECONDS:
            self._pauses = 0
        if now < self._until:
            return
        self._until = now + doubled(_FIRST_PAUSE, self._pauses, _LONGEST_PAUSE)
        self._pauses += 1
        self._faults = self.text_count = 0
        self.ratio, self.reason = 1.0, reason


def doubled(first: float, times: int, longest: float) -> float:
    """Return seconds doubled so many times, `longest` at most, however many times that is."""
    return min(longest, first * 2.0 ** min(times, 64))  # 2.0**1024 is an error


def not_left_alone(conducts: Sequence[Conduct], now: float) -> list[int]:
    """Return the indices of those that may be used: at least half of them, the best ones.

    However all behave, somebody has to write.
    """
    least = -(-len(conducts) // 2)
    order = sorted(range(len(conducts)), key=lambda i: conducts[i].left_alone(now))
    count = max(least, sum(not each.left_alone(now) for each in conducts))
    return sorted(order[:count])
