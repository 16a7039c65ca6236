"""What a round without a draft would have cost, read off the target's cost table."""

from __future__ import annotations

from orchestrator.control import plain_share

PADDED = [(4, 10.0), (8, 16.0), (12, 20.0)]
"""A target that pads to four rows: one row costs what four do."""


def test_rows_between_two_points_cost_what_the_next_one_does() -> None:
    shares = {rows: plain_share(PADDED, rows) for rows in (1, 4, 5, 8, 9, 12)}
    assert shares == {1: 1.0, 4: 1.0, 5: 0.625, 8: 0.625, 9: 0.5, 12: 0.5}


def test_beyond_the_table_its_last_point_counts() -> None:
    assert plain_share(PADDED, 65) == 0.5


def test_more_rows_are_never_taken_for_cheaper_than_one() -> None:
    assert plain_share([(1, 9.0), (4, 6.0)], 4) == 1.0


def test_without_a_table_nothing_is_assumed() -> None:
    assert plain_share([], 5) == 1.0
    assert plain_share([(1, 0.0)], 1) == 1.0
