"""When a target that drafts is looked at without a draft. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

_ABOUT = 0.15  # of the expected time of a decode: less may be noise


class PlainLooks:
    """When plain rounds are due, only to see what they cost.

    A plain token is what every draft is weighed against, and drafted rounds do not show its cost:
    one that is too high would keep them going. So after texts of every magnitude, now and then and
    where that cost is estimated anew, some rounds are plain until one takes what was expected, or
    what they took differs by no more than it does among them.
    """

    _FIRST, _STALE = 6, 256  # drafted rounds in a row: for the first time, and later
    _MOST = 8  # plain rounds then
    _FEW = 3  # plain rounds that say how much such rounds differ
    _MEASURED_BITS = 10  # of the length of texts like those that a target measures with at load

    def __init__(self) -> None:
        self._drafted: dict[int, int] = {}  # rounds since a plain one, by the length's bits
        self._due: dict[int, int] = {}  # plain rounds, at most, by the same
        self._seconds: dict[int, float] = {}  # expected at the last plain round, by the same
        self._ratios: dict[int, list[float]] = {}  # of plain rounds that were due, by the same

    def note(
        self, length: int, drafted: bool, ratio: float | None, seconds: float, count: int = 1
    ) -> None:
        """A round came after a text of this length, and a plain one is expected to take `seconds`.

        It took `ratio` times what was expected; None where that cannot be said. `count` plain ones
        may be noted at once.
        """
        bits = length.bit_length()
        before = self._drafted.get(bits, self._STALE - self._FIRST)
        if drafted:
            self._drafted[bits] = before + 1
            moved = abs(seconds - self._seconds.get(bits, seconds)) > _ABOUT * seconds
            if moved or before + 1 >= self._STALE:
                self._due[bits] = self._MOST
            return
        due, ratios = self._plain_rounds(bits), self._ratios.setdefault(bits, [])
        if ratio is not None:
            ratios.append(ratio)
        is_other = ratio is not None and abs(ratio - 1.0) >= _ABOUT
        if (ratio is not None and not is_other) or self._is_noise(ratios):
            due = 0
        elif due:
            due = max(0, due - count)
        elif is_other and before and bits in self._due:
            due = self._MOST
        if not due:
            ratios.clear()
        self._drafted[bits], self._due[bits], self._seconds[bits] = 0, due, seconds

    def _is_noise(self, ratios: Sequence[float]) -> bool:
        """Return whether plain rounds differ too much to say that something else is expected."""
        if len(ratios) < self._FEW:
            return False
        mean = sum(ratios) / len(ratios)
        variance = sum((ratio - mean) ** 2 for ratio in ratios) / (len(ratios) - 1)
        return abs(mean - 1.0) <= 2.0 * math.sqrt(variance / len(ratios))

    def is_due(self, length: int) -> bool:
        """Whether the next round after such a text is better plain."""
        return self._plain_rounds(length.bit_length()) > 0

    def _plain_rounds(self, bits: int) -> int:
        return self._due.get(bits, 0 if bits <= self._MEASURED_BITS else self._MOST)
