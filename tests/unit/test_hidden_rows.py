"""The hidden rows that are kept of a sequence: the newest, without a gap, also after rollbacks."""

from __future__ import annotations

import numpy as np

from outrider.engine.hidden_rows import HiddenRows, Rows
from outrider.row_window import HIDDEN_ROWS

WIDTH = 3


def rows_of(first: int, count: int, mark: float = 0.0) -> Rows:
    """Return rows that say their positions."""
    return np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], WIDTH, 1) + mark


def check(kept: HiddenRows, sequence: int, first: int, count: int, mark: float = 0.0) -> None:
    begin, rows = kept.of(sequence)
    assert (begin, len(rows)) == (first, count)
    assert np.array_equal(rows, rows_of(first, count, mark))


def test_rows_of_decodes_follow_each_other_and_the_newest_stay() -> None:
    kept, position = HiddenRows(2, WIDTH), 0
    for count in (1, 2, 5, 40, 3, 1, 60, 1, HIDDEN_ROWS + 9, 2, *[1] * 300):
        kept.note(0, position, rows_of(position, count))
        position += count
        first = max(0, position - HIDDEN_ROWS)
        check(kept, 0, first, position - first)
    check(kept, 1, 0, 0)


def test_a_rollback_puts_other_rows_in_the_place_of_those_that_were_rejected() -> None:
    kept = HiddenRows(1, WIDTH)
    kept.note(0, 0, rows_of(0, 10))
    kept.note(0, 7, rows_of(7, 2, 0.5))
    begin, rows = kept.of(0)
    assert begin == 0 and np.array_equal(rows[:7], rows_of(0, 7))
    assert np.array_equal(rows[7:], rows_of(7, 2, 0.5))
    kept.note(0, 8, rows_of(8, 0))
    assert len(kept.of(0)[1]) == 8


def test_after_a_gap_what_was_before_is_dropped() -> None:
    kept = HiddenRows(1, WIDTH)
    kept.note(0, 0, rows_of(0, 10))
    kept.note(0, 11, rows_of(11, 4))
    check(kept, 0, 11, 4)
    kept.note(0, 5, rows_of(5, 2))
    check(kept, 0, 5, 2)


def test_a_copy_is_its_own_and_an_exchange_moves_both() -> None:
    kept = HiddenRows(3, WIDTH)
    kept.note(0, 0, rows_of(0, 10))
    kept.note(1, 0, rows_of(0, 4, 0.5))
    kept.copy(0, 1)
    kept.note(0, 9, rows_of(9, 1, 0.5))
    check(kept, 1, 0, 10)
    kept.copy(2, 1)
    check(kept, 1, 0, 0)
    kept.note(1, 0, rows_of(0, 6))
    kept.exchange(1, 2)
    check(kept, 2, 0, 6)
    check(kept, 1, 0, 0)
