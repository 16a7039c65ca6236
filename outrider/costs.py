"""What a decode costs by its rows and by the text they attend to: measured at load, refreshed in
service. Pure.

Seconds of a decode = base(rows) + the sum over its sessions of slope(rows of the session) times
the tokens that each of these rows attends to. Base and slope are lines through points; kernels that
take rows by fours make a saw of the base: of 1 to 8 rows of a 1.1B in Q4_0 a decode takes
17, 28, 40, 31, 43, 55, 66 and 55 ms, where 3 are best padded to 4, and 7 to 8.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

_DRIFT = 0.1  # weight of one new decode, at least, for the row count nearest to its rows
_ROUGHLY = 4.0  # decodes in service: what a rough measurement is worth
_MOST_DECODES = 20  # of as many nearly nothing is left of what was known before
_SEEN = 3  # decodes in service: what their row count costs is known then
_BEYOND = 1.5  # times the rows of the last point: a decode of so many says what no point does
_NO_MORE = 2.0  # times what so many rows take in proportion: a first decode may be disturbed
MOST_ROWS = 4096
"""Of one decode, as a table has them: what it holds grows with its last point, and services say
themselves how many rows they decode."""
_FADING = 0.02
"""Of what service taught of a row count, with every decode of another one: some 200 decodes after a
disturbance that met decodes of one row count alone, the table is again as it was measured, in
proportion to what decodes take now. Without, four users' drafts were used for minutes where they
made .85 of plain, since plain decodes, disturbed, looked twice as dear, and none came to correct
that."""
_LARGEST_DRIFT = 1.5  # of one decode: what disturbs a machine for a moment is soon unlearned
KERNEL_ROWS = 4  # that kernels take at once; what is left they take row by row
NOISE = 0.05
"""Of the time of a decode: what differs by less may be as long, and nothing is chosen by it."""
_CHEAPER = 0.9  # times what it replaces: less may be noise
_TELLING = 1e-3  # share of a decode's news that concerns slopes: less leaves them as they are
_DOUBLING = 16384
"""Tokens: attending to so many may double a decode, for all that a slope of 0 is worth."""


class Point(NamedTuple):
    """What was measured of decodes of `rows` rows."""

    rows: int
    seconds: float  # with nothing to attend to
    slope: float = 0.0  # seconds for every token that each of the rows attends to; 0 if not known


MOST_REDONE = 8
"""Tokens of a checked text that are decoded again with the next draft; of more a checkpoint is made
first, in a decode of their own."""


class RejectionCost(NamedTuple):
    """What a target that goes back to checkpoints pays beside the decode of a round, in seconds.

    All 0 for one whose sequences are simply cut.
    """

    checkpoint_seconds: float = 0.0  # before a decode with more draft tokens than are free
    restore_seconds: float = 0.0  # after one of which a token was rejected
    free_count: int = 0  # draft tokens that are taken back at no cost

    def of_all(self, sessions: float) -> RejectionCost:
        """Return what each of some sessions waits for where all of them share a decode."""
        seconds = sessions * self.checkpoint_seconds, sessions * self.restore_seconds
        return RejectionCost(*seconds, self.free_count)

    def is_due(self, drafted: int) -> bool:
        """Return whether a round of so many draft tokens needs a checkpoint."""
        return self.checkpoint_seconds > 0.0 and drafted > self.free_count

    def redone_count(self, drafted: int, accepted: int) -> int:
        """Return how many tokens of a round are decoded again after it: 0 where it is cut."""
        if not self.is_due(drafted) or drafted - accepted <= self.free_count:
            return 0
        return accepted + 1

    def seconds(
        self, drafted: int, acceptance: float, decode_seconds: Callable[[int], float]
    ) -> float:
        """Return the expected price of a round of so many draft tokens, of many like it.

        `acceptance` is that of each token in [0, 1]. After a rejection the accepted tokens and the
        one before them are decoded again with the next round's, from the same checkpoint; when
        those are more than MOST_REDONE, in a decode of their own, and a checkpoint follows.
        """
        if not self.is_due(drafted):
            return 0.0
        deep = drafted - self.free_count  # accepted tokens with which nothing is decoded again
        stands = [acceptance**count for count in range(1, deep + 1)]
        rejected = 1.0 - stands[-1]
        if rejected <= 0.0:
            return self.checkpoint_seconds
        redone = 1.0 + (sum(stands) - deep * stands[-1]) / rejected  # tokens of such a round
        most = int(MOST_REDONE / redone)
        # Rounds by the rejections since the checkpoint: 0 after it was made.
        shares = [rejected**count for count in range(most + 2)]
        in_round = sum(shares[:-1])
        plain = decode_seconds(drafted + 1)
        again = [decode_seconds(drafted + 1 + round(count * redone)) for count in range(most + 1)]
        carried = sum(share * (each - plain) for share, each in zip(shares, again, strict=False))
        apart = shares[-1] * decode_seconds(math.ceil((most + 1) * redone))
        remembered = (shares[0] + shares[-1]) * self.checkpoint_seconds
        return (remembered + carried + apart) / in_round + rejected * self.restore_seconds


NO_REJECTION_COST = RejectionCost()

Attended = Sequence[tuple[float, float]]
"""Of every session in a decode: its rows, and the tokens that each of them attends to."""


class CostTable:
    """Seconds of one decode by row count, between and beyond its points on a line.

    Never falling in the row count: a decode can be padded up to a cheaper one.
    `points` are (rows, seconds) or (rows, seconds, slope) by rising rows, at least one; an engine
    that pads has its first point at what it pads to, and all others at multiples. What is
    measured roughly (`is_rough`) is soon replaced by what decodes in service take.
    """

    def __init__(self, points: Sequence[tuple[int, float] | Point], is_rough: bool = False) -> None:
        assert points
        self._is_rough = is_rough
        measured = [Point(*each) for each in points]
        self._counts = [each.rows for each in measured]  # rising
        pads = all(count % self._counts[0] == 0 for count in self._counts)
        self._multiple = self._counts[0] if pads else 1
        self._raw = [each.seconds for each in measured]  # as measured
        left_over = _left_over(self._counts, self._raw) if self._multiple == 1 else None
        # Of every row count up to the last point's, as measured.
        self._unpadded = self._saw(self._raw, left_over)
        self._cheapest: dict[int, int] = {}  # what `cheapest` returned by these
        self._left_over = left_over  # seconds now of a row beyond a multiple of four, if known
        # What they take now, above 0 and at least 0; never falling in the rows (`_refresh`).
        self._bases = list(self._raw)
        self._slopes = [each.slope for each in measured]
        # Decodes that a new one of this row count is weighed against; fewer the longer ago.
        self._known = [_ROUGHLY if is_rough else 1.0 / _DRIFT] * len(measured)
        self._noted = [0.0] * len(measured)  # decodes in service
        self._slopes_known = 1.0  # the same for all slopes: what was measured at load is a guess
        self._refresh()

    def _refresh(self) -> None:
        """Follow what changed of bases and slopes.

        What is above a later point is not seen in any forecast, so that no decode could correct it:
        it would grow for ever.
        """
        self._bases, self._slopes = _never_falling(self._bases), _never_falling(self._slopes)

    def _saw(self, values: Sequence[float], left_over: float | None) -> list[float]:
        """Return what a decode of 0, 1, 2 ... rows takes, up to the last point's, if not padded.

        Between two points that is at least what the line says, and what full kernels take and the
        rows beyond them. Where those are not known, rough costs promise nothing of 5 that 8 do not
        take.
        """
        most = self._counts[-1]
        return [self._unpadded_seconds(rows, values, left_over) for rows in range(most + 1)]

    def _unpadded_seconds(
        self, rows: int, values: Sequence[float], left_over: float | None
    ) -> float:
        i = bisect_left(self._counts, rows)
        if i == 0 or self._counts[i] == rows:
            return values[i]
        between, full = _between(self._counts, values, rows), rows - rows % KERNEL_ROWS
        if left_over is None:
            return values[i] if self._is_rough else between
        if full < self._counts[0]:
            return between
        return max(between, _between(self._counts, values, full) + (rows - full) * left_over)

    def _padded_seconds(self, rows: int) -> float:
        """Return what a decode between two points takes, if it may be padded up.

        That is never cheaper beyond the next full kernel or point: bases do not fall.
        """
        full = -(-rows // KERNEL_ROWS) * KERNEL_ROWS
        full = min(full, self._counts[bisect_left(self._counts, rows)])
        values, left_over = self._bases, self._left_over
        return min(self._unpadded_seconds(each, values, left_over) for each in (rows, full))

    def padded(self, row_count: float) -> float:
        """Return the rows that a session's `row_count` rows take in a decode."""
        return -(-row_count // self._multiple) * self._multiple

    def cheapest(self, row_count: int) -> int:
        """Return the row count to pad a decode up to: `row_count` itself if none is cheaper.

        A kernel for four rows may take less time than one for two, or for three; but a
        row count beyond the next multiple of four that looks cheaper was measured in a
        quieter moment.
        """
        if row_count not in self._cheapest:  # every decode asks
            self._cheapest[row_count] = self._find_cheapest(row_count)
        return self._cheapest[row_count]

    def _find_cheapest(self, row_count: int) -> int:
        last = -(-row_count // KERNEL_ROWS) * KERNEL_ROWS
        if row_count < self._counts[0] or last >= len(self._unpadded) or row_count == last:
            return row_count
        best = min(range(row_count, last + 1), key=self._unpadded.__getitem__)
        return best if self._unpadded[best] < _CHEAPER * self._unpadded[row_count] else row_count

    def seconds(self, row_count: float, attended: Attended = ()) -> float:
        """Return the expected time of a decode of `row_count` rows; none cost nothing.

        They may be a mean, and then no whole number: it is rounded up. What they attend to is
        counted as far as `attended` names it.
        """
        if row_count <= 0:
            return 0.0
        row_count, first = self.padded(row_count), self._counts[0]
        if row_count <= first:
            base = self._bases[0]
        elif len(self._counts) == 1:
            base = self._bases[0] * row_count / first
        elif row_count >= self._counts[-1]:
            base = _between(self._counts, self._bases, row_count)
        else:
            base = self._padded_seconds(math.ceil(row_count))
        return base + self.attending(attended)

    def in_proportion(self, row_count: float) -> float:
        """Return the expected time of a decode of what may be many more rows than were measured.

        Two points near each other say little of hundreds of rows: beyond the last one each row
        takes at least as much as one of its own.
        """
        last, seconds = self._counts[-1], self.seconds(row_count)
        if row_count <= last:
            return seconds
        return max(seconds, self._bases[-1] * self.padded(row_count) / last)

    def is_known(self, row_count: float) -> bool:
        """Return whether decodes of about so many rows were measured well, or seen in service."""
        return not self._is_rough or self._noted[self._nearest(self.padded(row_count))] >= _SEEN

    def attending(self, attended: Attended) -> float:
        """Return how much of a decode's time is for what its rows attend to."""
        seconds = 0.0
        for rows, length in attended:
            if rows > 0 < length:
                seconds += self._slope(rows) * length
        return seconds

    def _slope(self, row_count: float) -> float:
        if row_count <= self._counts[0] or len(self._counts) == 1:
            return self._slopes[0] * row_count / self._counts[0]
        return _between(self._counts, self._slopes, row_count)

    def point(self, row_count: int) -> Point:
        """Return what a decode of so many rows of one session takes now."""
        return Point(row_count, self.seconds(row_count), self._slope(row_count))

    @property
    def points(self) -> list[Point]:
        """What it goes by now, by rising rows."""
        return [self.point(count) for count in self._counts]

    def note(
        self, row_count: float, seconds: float, attended: Attended = (), decodes: float = 1.0
    ) -> None:
        """Learn from one decode in service, or from `decodes` that took so long in the mean.

        A part of one is what each of several says who all speak of it.

        What it took beyond what was expected is shared out between base and slopes by the squares
        of their parts in it (normalised least mean squares): a short text moves the bases and a
        long one mostly the slopes, so that texts of several lengths find both. All points drift
        with what the machine does; the ones nearest to the rows by themselves, and the more the
        longer they were not seen. Times drift in proportion, so they stay above 0, but bases not by
        more than the nearest one's: what work beside it costs a decode of one row need not cost
        one of many rows more. A slope of 0 can rise, as if it had `_DOUBLING`'s doubt.
        """
        if MOST_ROWS >= row_count >= _BEYOND * self._counts[-1] and seconds > 0.0:
            self._add_point(int(self.padded(row_count)), seconds - self.attending(attended))
        left = min(decodes, _MOST_DECODES)
        while left > 0.0:
            self._note_one(row_count, seconds, attended, min(1.0, left))
            left -= 1.0

    def _note_one(self, row_count: float, seconds: float, attended: Attended, part: float) -> None:
        base, attending = self.seconds(row_count), self.attending(attended)
        expected = base + attending
        if not (expected > 0.0 < seconds):
            return
        rows, length = max(attended, key=lambda each: each[0] * each[1], default=(row_count, 0.0))
        reach = attending + base * length / _DOUBLING
        whole, ratio = base**2 + reach**2, seconds / expected
        missing = _bounded_log(ratio) * expected * base / whole
        self._move_bases(self._nearest(row_count), part * missing, part)
        share = reach**2 / whole
        if share > _TELLING:
            weight = max(_DRIFT, share * _weight(self._slopes_known))
            # What is hardly known may be wrong by much.
            missing = _bounded_log(ratio, weight / _DRIFT) * expected * reach / whole
            self._move_slopes(self._nearest(rows), part * weight * missing)
            self._slopes_known += part * share
        self._refresh()

    def _add_point(self, rows: int, base: float) -> None:
        """Take a decode of far more rows than the last point's as the next point.

        A line through two points near each other says little of it, and the last one would be
        moved by what it is wrong there. Each has half as many rows more: there are only so many.
        """
        base = max(self._bases[-1], min(base, _NO_MORE * self.in_proportion(rows)))
        slope = max(self._slopes[-1], self._slope(rows))
        self._counts.append(rows)
        self._raw.append(base)
        self._bases.append(base)
        self._slopes.append(slope)
        self._known.append(1.0)
        self._noted.append(0.0)
        self._unpadded = self._saw(self._raw, self._left_over)
        self._cheapest.clear()
        self._refresh()

    def _move_bases(self, nearest: int, missing: float, part: float) -> None:
        seen, share = self._bases[nearest], math.expm1(0.5 * _DRIFT * missing)
        self._bases[nearest] = seen * math.exp(_weight(self._known[nearest]) * missing)
        for i, base in enumerate(self._bases):
            if i != nearest:
                self._bases[i] += share * min(base, seen)
                if unknown := self._unknown(i):
                    self._bases[i] += part * _FADING * unknown * (self._implied(i, nearest) - base)
            self._known[i] *= 1.0 - part * _FADING
        if self._left_over is not None:
            self._left_over += share * min(self._left_over, seen)
            self._left_over = min(self._left_over, self._bases[0])
        self._known[nearest] = min(1.0 / _DRIFT, self._known[nearest] + part)
        self._noted[nearest] += part

    def _implied(self, i: int, nearest: int) -> float:
        """Return what decodes of one point take by how another one's changed since the load.

        That is no less than what seen ones of fewer rows take, unless it was then.
        """
        raw, bases = self._raw, self._bases
        changed = raw[i] + 0.5 * (bases[nearest] / raw[nearest] - 1.0) * min(raw[i], raw[nearest])
        fewer = (bases[j] * min(1.0, raw[i] / raw[j]) for j in range(i) if not self._unknown(j))
        return max(changed, max(fewer, default=0.0))

    def _unknown(self, i: int) -> float:
        """Return how far what service taught of a point is forgotten: 0 until half of it is."""
        return max(0.0, 1.0 - 2.0 * _DRIFT * self._known[i])

    def _move_slopes(self, nearest: int, drift: float) -> None:
        doubts = [count / self._counts[0] * self._bases[0] / _DOUBLING for count in self._counts]
        now = (self._slopes[nearest] + doubts[nearest]) * math.exp(drift)
        for i, doubt in enumerate(doubts):
            moved = (self._slopes[i] + doubt) * math.exp(0.5 * drift)
            moved = now if i == nearest else min(moved, self._times(i, nearest) * now + doubt)
            self._slopes[i] = max(0.0, moved - doubt)

    def _times(self, i: int, nearest: int) -> int:
        """Return how many decodes of the rows of one point take the place of one of another's."""
        return -(-self._counts[i] // self._counts[nearest])

    def _nearest(self, row_count: float) -> int:
        i = bisect_left(self._counts, row_count)
        if self._is_rough and self._left_over is None and i < len(self._counts):
            return i  # what stands for it
        if 0 < i < len(self._counts):
            return i - (row_count - self._counts[i - 1] <= self._counts[i] - row_count)
        return min(i, len(self._counts) - 1)


def _bounded_log(ratio: float, times: float = 1.0) -> float:
    """Return the logarithm of a decode's time over what was expected, within bounds."""
    most = times * math.log(_LARGEST_DRIFT)
    return min(most, max(-most, math.log(ratio)))


def _weight(known: float) -> float:
    """Return how much a value follows a new one when it stands for so many before it."""
    return max(_DRIFT, 1.0 / (known + 1.0))


def _left_over(counts: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Return what one row more takes where kernels of four rows leave it over, if 3 were seen."""
    known = dict(zip(counts, seconds, strict=True))
    return max(0.0, known[3] - known[1]) / 2.0 if {1, 3} <= known.keys() else None


def _never_falling(values: Sequence[float]) -> list[float]:
    """Return for each point the least of it and all later ones, which it can be padded to."""
    return list(accumulate(reversed(values), min))[::-1]


def _between(counts: Sequence[int], values: Sequence[float], row_count: float) -> float:
    """Return the value at a row count on the line through its adjacent points, or the last two."""
    high = bisect_left(counts, row_count, 1, len(counts) - 1) if len(counts) > 1 else 0
    if high == 0:
        return values[0]
    count, value = counts[high - 1], values[high - 1]
    return value + (values[high] - value) / (counts[high] - count) * (row_count - count)
