"""What a decode costs: read off a table, and refreshed in service."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.costs import CostTable

SETTINGS = settings(derandomize=True, deadline=None)
POINTS = st.lists(
    st.tuples(st.integers(1, 64), st.floats(1e-4, 1.0)), min_size=1, unique_by=lambda p: p[0]
).map(sorted)
NOTES = st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 1.0)), max_size=20)


def test_a_cost_is_read_between_its_points() -> None:
    table = CostTable([(1, 0.010), (4, 0.016), (8, 0.032)])
    assert table.seconds(0) == 0.0
    assert table.seconds(1) == pytest.approx(0.010)
    assert table.seconds(2) == pytest.approx(0.012)
    assert table.seconds(8) == pytest.approx(0.032)
    assert table.seconds(12) == pytest.approx(0.048)


def test_rows_that_an_engine_pads_cost_what_the_padded_ones_do() -> None:
    table = CostTable([(4, 0.055), (8, 0.100), (16, 0.180)])
    assert table.seconds(1) == table.seconds(4) == pytest.approx(0.055)
    assert table.seconds(5) == table.seconds(8) == pytest.approx(0.100)
    assert table.seconds(9) == table.seconds(12) == pytest.approx(0.140)


def test_fewer_rows_never_cost_more_since_they_can_be_padded() -> None:
    table = CostTable([(1, 0.066), (2, 0.070), (4, 0.055), (8, 0.108)])
    assert table.seconds(1) == table.seconds(2) == table.seconds(4) == 0.055


def test_one_point_is_a_line_through_nothing() -> None:
    table = CostTable([(4, 0.02)])
    assert table.seconds(2) == 0.02
    assert table.seconds(8) == pytest.approx(0.04)


@SETTINGS
@given(POINTS, NOTES)
def test_a_cost_never_falls_with_the_rows(
    points: list[tuple[int, float]], notes: list[tuple[int, float]]
) -> None:
    table = CostTable(points)
    for rows, seconds in notes:
        table.note(rows, seconds)
    costs = [table.seconds(count) for count in range(80)]
    assert all(left <= right * (1 + 1e-12) for left, right in pairwise(costs))


@SETTINGS
@given(POINTS)
def test_a_cost_is_at_most_what_was_measured(points: list[tuple[int, float]]) -> None:
    table = CostTable(points)
    assert all(table.seconds(count) <= seconds * (1 + 1e-12) for count, seconds in points)


def test_decodes_that_all_take_twice_as_long_move_the_whole_table() -> None:
    table = CostTable([(1, 0.01), (4, 0.02), (8, 0.04)])
    for _ in range(200):
        for rows, seconds in ((1, 0.02), (4, 0.04), (8, 0.08)):
            table.note(rows, seconds)
    assert [seconds for _, seconds in table.points] == pytest.approx([0.02, 0.04, 0.08], rel=0.01)


def test_what_was_not_seen_for_long_drifts_with_the_rest() -> None:
    table = CostTable([(1, 0.01), (4, 0.02)])
    for _ in range(200):
        table.note(4, 0.04)
    seen, unseen = table.seconds(4), table.seconds(1)
    assert seen == pytest.approx(0.04, rel=0.01)
    assert 0.012 < unseen < 0.018


def test_one_odd_decode_changes_little() -> None:
    table = CostTable([(1, 0.01), (4, 0.02)])
    table.note(4, 10.0)
    assert table.seconds(4) < 0.02 * 1.3
    table.note(4, 0.0)
    assert table.seconds(4) > 0.0
