"""The array of candidates that llama.cpp's samplers work on, and what they lack."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.distribution import largest, ranked
from outrider.engine.llama_library import ll
from outrider.engine.model import Row

_FIELDS = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_SORTED_IN_PLACE = 1024
"""So many candidates llama.cpp's top-p sorts where they are."""


def _array(table: NDArray[np.void]) -> Any:
    """Return what llama.cpp's samplers take, still without a candidate."""
    return ll.llama_token_data_array(table.ctypes.data_as(ll.llama_token_data_p), 0, -1, False)


class Candidates:
    """The array that llama.cpp's samplers work on, filled anew for every row."""

    def __init__(self, size: int) -> None:
        self._ids = np.arange(size, dtype=np.int32)
        self._after_one = np.zeros(1 + size, _FIELDS)
        """The table, after one entry that only `probabilities` uses."""
        self._table = self._after_one[1:]
        self._array = _array(self._table)
        # Kept, as they are asked for several times with every row.
        self._start = self._table.ctypes.data
        self._id_column, self._logit_column = self._table["id"], self._table["logit"]

    def fill(self, logits: Row, ids: NDArray[Any] | None = None) -> None:
        """Hold these logits: of all ids from 0 on, or of the ones given."""
        count = len(logits)
        self._id_column[:count] = self._ids[:count] if ids is None else ids
        self._logit_column[:count] = logits
        self._array.size = count
        self._array.sorted = False

    def fill_with_largest(self, logits: Row, count: int) -> None:
        """Hold the `count` largest logits of all ids, the largest first.

        Hold all of them where two that are equal are among the first, or most are impossible: then
        llama.cpp's own sampler decides which it keeps.
        """
        likely = largest(logits, count)
        if len(likely) <= 2 * count:
            first = likely[np.argsort(-logits[likely])[: count + 1]]
            values = logits[first]
            if (values[1:] < values[:-1]).all():
                self.fill(values[:count], first[:count])
                self._array.sorted = True
                return
        self.fill(logits)

    def apply(self, sampler: Any) -> None:
        """Apply a sampler of llama.cpp."""
        ll.llama_sampler_apply(sampler, ctypes.byref(self._array))
        data: Any = self._array.data
        assert ctypes.addressof(data.contents) == self._start, "moved"

    def __len__(self) -> int:
        return int(self._array.size)

    @property
    def ids(self) -> NDArray[np.int32]:
        """The ids still there: int32[n]. A view."""
        return self._id_column[: len(self)]

    @property
    def logits(self) -> NDArray[np.float32]:
        """Their logits: float32[n]. A view."""
        return self._logit_column[: len(self)]

    @property
    def is_sorted(self) -> bool:
        """Whether the largest logit is known to come first."""
        return bool(self._array.sorted)

    def sort(self) -> None:
        """Put the largest logit first."""
        if not self.is_sorted:
            self.select(ranked(self.logits))

    def select(self, slots: NDArray[np.int64]) -> None:
        """Drop all but the ones in these slots, which name them largest logit first."""
        # Both columns at once, as a table, take ten times as long.
        for column in (self._id_column, self._logit_column):
            column[: len(slots)] = column[slots]
        self._array.size = len(slots)
        self._array.sorted = True

    def keep(self, first: int, end: int) -> None:
        """Drop all but the candidates [first, end)."""
        self._table[: end - first] = self._table[first:end].copy()
        self._array.size = end - first

    def keep_largest(self, count: int) -> None:
        """Drop all but the `count` largest logits, the largest first; of equal ones the first."""
        if not self.is_sorted:
            likely = largest(self.logits, count)
            self.select(likely[ranked(self.logits[likely])])
        self.keep(0, min(count, len(self)))

    def probabilities(self, best: Any) -> NDArray[np.float32]:
        """Return llama.cpp's own softmax, in the order of the candidates: float32[n], n > 1024.

        No sampler gives just that, but `best`, a top-p that keeps one token, writes it on its way,
        and then the one token over the first entry: so an impossible one is put there.
        """
        count = len(self)
        assert count > _SORTED_IN_PLACE, f"{count} are sorted"
        self._after_one[0] = (0, -np.inf, 0)
        array = _array(self._after_one)
        array.size = 1 + count
        ll.llama_sampler_apply(best, ctypes.byref(array))
        return np.ascontiguousarray(self._table["p"][:count])

    def sorted_probabilities(self) -> NDArray[np.float32]:
        """Sort, and return the softmax: float32[n]."""
        self.sort()
        weights = np.exp(self.logits - self.logits[0])
        return np.asarray(weights / weights.sum(), np.float32)
