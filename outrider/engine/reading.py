"""How much of prompts a decode reads while others generate, by how long they may wait. Pure.

The promise: a decode with a part of a prompt takes at most `PROMISED_ROUNDS` times what a round of
all who generate takes without it, or `PROMISED_SECONDS` where that is more: as fast as people read.
Reading then has most of the engine's time, but small parts of a prompt cost more for each token:
under a promise of four rounds, on a 1.1B beside four users, it took 2.7 times as long as alone
(59 s for 3,900 tokens, 22 s alone). Who is in flight and misses a decode waits for the next one
too, so that this one is half as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.costs import CostTable
from outrider.engine.batching import LEAST_CHUNK, Limits, decode_seconds

PROMISED_ROUNDS = 8.0
PROMISED_SECONDS = 0.2
"""Five tokens a second. More often nobody needs them, and small parts cost more for each token."""


@dataclass(frozen=True, slots=True)
class Share:
    """A session's rows in a decode, and the tokens before them that each attends to."""

    row_count: int
    length: int = 0


@dataclass(frozen=True, slots=True)
class Promise:
    """What those who generate are promised while a prompt is read, with one row each."""

    seconds: float  # that a decode with a part of the prompt takes at most
    token_count: int  # of the prompt in such a decode, at its start


class Reading:
    """What decodes with parts of prompts take, and how large the parts may be.

    The cost table ends where prompts begin, and may have been measured roughly: beyond it time is
    taken to grow in proportion, and what decodes take in service corrects both.
    """

    def __init__(self, cost: CostTable, limits: Limits, padded: Callable[[int], int]) -> None:
        self._cost = cost
        self._limits = limits
        self._padded = padded
        # What the newest decodes took over what the table says: of one with a part of a prompt,
        # and of a round of those who generate, each with the seconds that it took.
        self._read: tuple[Sequence[Share], Share, float] | None = None
        self._round: tuple[Sequence[tuple[int, int]], float] | None = None

    def promised_seconds(self, others: Sequence[Share], length: int = 0) -> float:
        """Return what a decode takes at most that also reads a prompt after `length` tokens.

        `others` are all who generate.
        """
        rounds = PROMISED_ROUNDS * self._round_ratio * self._decode_seconds(others)
        return max(rounds, PROMISED_SECONDS, self.seconds(others, Share(LEAST_CHUNK, length)))

    def seconds(self, others: Sequence[Share], prompts: Share) -> float:
        """Return the expected time of a decode with a part of a prompt."""
        return self._read_ratio * self._table_seconds(others, prompts)

    def rows(self, present: Sequence[Share], missing: Sequence[Share], length: int = 0) -> int:
        """Return how many rows of prompts the next decode may carry.

        `present` are those who generate in this decode and `missing` those who come back too late
        for it; `length` tokens come before the part of the prompt.
        """
        if not (present or missing):
            return self._limits.rows
        promised = self.promised_seconds([*present, *missing], length)
        bound = promised / 2.0 if missing else promised
        low, high = LEAST_CHUNK, max(LEAST_CHUNK, self._limits.rows)
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds(present, Share(middle, length)) <= bound:
                low = middle
            else:
                high = middle - 1
        unit = self._padded(1)
        return max(low // unit * unit, self._padded(LEAST_CHUNK))

    def promise(self, user_count: int) -> Promise:
        """Return what so many users are promised after short texts."""
        users = [Share(1)] * user_count
        return Promise(self.promised_seconds(users), self.rows(users, ()))

    def note(self, others: Sequence[Share], prompts: Share, seconds: float) -> None:
        """Learn from a decode that read a part of a prompt while others generate."""
        self._read = others, prompts, seconds

    def note_round(self, others: Sequence[tuple[int, int]], seconds: float) -> None:
        """Learn from a decode of those who generate alone: their rows, and the tokens before.

        It comes with every decode and is of use only where prompts are read.
        """
        self._round = others, seconds

    @property
    def _round_ratio(self) -> float:
        if self._round is None:
            return 1.0
        others, seconds = self._round
        return seconds / self._decode_seconds([Share(*each) for each in others])

    @property
    def _read_ratio(self) -> float:
        if self._read is None:
            return self._round_ratio
        others, prompts, seconds = self._read
        return seconds / self._table_seconds(others, prompts)

    def _table_seconds(self, others: Sequence[Share], prompts: Share) -> float:
        # In the middle a row attends to half of its own chunk besides.
        prompts = Share(prompts.row_count, prompts.length + prompts.row_count // 2)
        beyond = self._cost.in_proportion(prompts.row_count) - self._cost.seconds(prompts.row_count)
        return self._decode_seconds([*others, prompts]) + beyond

    def _decode_seconds(self, shares: Sequence[Share]) -> float:
        rows = [self._padded(each.row_count) for each in shares]
        lengths = [each.length for each in shares]
        attended = list(zip(rows, lengths, strict=True))
        return decode_seconds(rows, self._limits, self._cost) + self._cost.attending(attended)
