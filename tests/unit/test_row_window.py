"""The hidden rows of a text as they are sent: which stay, which replace others, how many."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.engine.hidden_rows import pack, unpack
from outrider.errors import InvalidRequest
from outrider.row_window import HIDDEN_ROWS, MOST_ROW_BYTES, NO_ROWS, RowWindow, read_window


def window(position: int, *values: int) -> RowWindow:
    return RowWindow(position, tuple(bytes([value, 0]) for value in values))


def test_more_rows_replace_those_from_their_position_on() -> None:
    assert window(3, 1, 2, 3).followed_by(window(5, 8, 9)) == window(3, 1, 2, 8, 9)
    assert window(3, 1, 2).followed_by(window(5, 8)) == window(3, 1, 2, 8)
    assert window(3, 1, 2).followed_by(window(2, 8)) == window(2, 8)


def test_after_a_gap_there_are_the_new_rows_alone() -> None:
    assert window(3, 1, 2).followed_by(window(6, 8)) == window(6, 8)
    assert NO_ROWS.followed_by(window(6, 8)) == window(6, 8)
    assert window(3, 1, 2).followed_by(NO_ROWS) == window(3, 1, 2)


def test_rows_before_and_after_a_position() -> None:
    rows = window(3, 1, 2, 3)
    assert rows.since(0) == rows and rows.since(5) == window(5, 3)
    assert rows.until(9) == rows and rows.until(5) == window(3, 1, 2)
    assert not rows.since(6).rows and not rows.until(2).rows
    assert rows.since(9).end == 6


def test_the_newest_rows_are_kept() -> None:
    rows = NO_ROWS
    for position in range(3 * HIDDEN_ROWS):
        rows = rows.followed_by(window(position, position % 250))
    assert len(rows) == HIDDEN_ROWS and rows.end == 3 * HIDDEN_ROWS
    assert rows.rows[-1] == bytes([(3 * HIDDEN_ROWS - 1) % 250, 0])


def test_wide_rows_are_fewer_so_that_a_message_has_a_bound() -> None:
    wide = RowWindow(7, (bytes(MOST_ROW_BYTES // 3),) * 5)
    assert wide.newest().position == 9 and len(wide.newest()) == 3
    with pytest.raises(InvalidRequest):
        read_window("hidden_rows", 0, wide.rows)
    with pytest.raises(InvalidRequest):
        read_window("hidden_rows", 0, (b"",) * (HIDDEN_ROWS + 1))
    with pytest.raises(InvalidRequest):
        read_window("hidden_rows", -1, (b"",))


def test_rows_arrive_as_float16() -> None:
    rows = np.array([[0.5, -3.25, 1e9], [1.0, -1e9, 0.0]], np.float32)
    sent = pack(4, rows)
    assert sent.position == 4 and sent.has_width(3) and not sent.has_width(2)
    assert unpack(sent, 3).tolist() == [[0.5, -3.25, 65504.0], [1.0, -65504.0, 0.0]]


def test_what_is_no_number_arrives_as_zero() -> None:
    """In a cache it would spoil whatever attends over it, of other texts as well."""
    rows = np.array([[np.nan, np.inf, -np.inf, 2.0]], "<f2")
    assert unpack(RowWindow(0, (rows.tobytes(),)), 4).tolist() == [[0.0, 0.0, 0.0, 2.0]]


def test_of_many_rows_the_newest_are_packed() -> None:
    sent = pack(10, np.zeros((HIDDEN_ROWS + 5, 2), np.float32))
    assert (sent.position, len(sent)) == (15, HIDDEN_ROWS)
