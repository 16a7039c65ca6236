"""What a decode costs by its rows: measured at load, refreshed in service. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

_DRIFT = 0.1  # weight of one new decode
_LARGEST_DRIFT = 8.0
_KERNEL_ROWS = 4
_CHEAPER = 0.9  # times what it replaces: less may be noise


class CostTable:
    """Seconds of one decode by row count, between and beyond its points on a line.

    Never falling in the row count: a decode can be padded up to a cheaper one.
    `points` are (rows, seconds) by rising rows, at least one; an engine that
    pads has its first point at what it pads to, and all others at multiples.
    """

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        assert points
        self._counts = [count for count, _ in points]  # rows, rising
        pads = all(count % self._counts[0] == 0 for count in self._counts)
        self._multiple = self._counts[0] if pads else 1
        self._raw = [seconds for _, seconds in points]  # as measured
        self._seconds = [min(s for _, s in points[i:]) for i in range(len(points))]
        self._drifts = [1.0] * len(points)  # what each takes now over what was measured
        self._drift = 1.0  # the same for all of them together
        self._now = list(self._seconds)  # with the drifts

    def padded(self, row_count: float) -> float:
        """Return the rows that a session's `row_count` rows take in a decode."""
        return -(-row_count // self._multiple) * self._multiple

    def cheapest(self, row_count: int) -> int:
        """Return the row count to pad a decode up to: `row_count` itself if none is cheaper.

        A kernel for four rows may take less time than one for two, or for three; but a
        row count beyond the next multiple of four that looks cheaper was measured in a
        quieter moment.
        """
        first = bisect_left(self._counts, row_count)
        if not 0 < first < len(self._counts) and row_count != self._counts[0]:
            return row_count
        own = _between(self._counts, self._raw, row_count)
        end = bisect_right(self._counts, -(-row_count // _KERNEL_ROWS) * _KERNEL_ROWS)
        best = min(range(first, max(first + 1, end)), key=self._raw.__getitem__)
        return self._counts[best] if self._raw[best] < _CHEAPER * own else row_count

    def seconds(self, row_count: float) -> float:
        """Return the expected time of a decode of `row_count` rows; none cost nothing.

        They may be a mean, and then no whole number.
        """
        if row_count <= 0:
            return 0.0
        row_count = self.padded(row_count)
        last = len(self._counts) - 1
        if row_count <= self._counts[0] or last == 0:
            return self._now[0] * max(1.0, row_count / self._counts[0])
        return _between(self._counts, self._now, row_count)

    @property
    def points(self) -> list[tuple[int, float]]:
        """What it goes by now, (rows, seconds) by rising rows."""
        return list(zip(self._counts, self._now, strict=True))

    def note(self, row_count: float, seconds: float) -> None:
        """Learn from one decode in service.

        All points drift with what the machine and the context do; the point
        nearest to the rows also by itself.
        """
        expected = self.seconds(row_count)
        if not (expected > 0.0 < seconds):
            return
        ratio = min(_LARGEST_DRIFT, max(1.0 / _LARGEST_DRIFT, seconds / expected))
        self._drift *= ratio ** (0.5 * _DRIFT)
        nearest = self._nearest(row_count)
        self._drifts[nearest] *= ratio ** (0.5 * _DRIFT)
        # Never more than at a later point, which a decode can be padded to.
        least = float("inf")
        for i in range(len(self._counts) - 1, -1, -1):
            least = min(least, self._drift * self._seconds[i] * self._drifts[i])
            self._now[i] = least

    def _nearest(self, row_count: float) -> int:
        gaps = [abs(count - row_count) for count in self._counts]
        return gaps.index(min(gaps))


def _between(counts: Sequence[int], seconds: Sequence[float], row_count: float) -> float:
    """Return the seconds of a row count on the line through its neighbours, or the last two."""
    high = min(max(1, bisect_left(counts, row_count)), len(counts) - 1)
    if high == 0:
        return seconds[0]
    slope = (seconds[high] - seconds[high - 1]) / (counts[high] - counts[high - 1])
    return seconds[high - 1] + slope * (row_count - counts[high - 1])
