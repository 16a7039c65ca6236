"""What a decode costs: read off a table, and refreshed in service."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.costs import MOST_REDONE, MOST_ROWS, CostTable, Point, RejectionCost
from tests.support.thorough import cells

SETTINGS = settings(derandomize=True, deadline=None)
POINTS = st.lists(
    st.tuples(st.integers(1, 64), st.floats(1e-4, 1.0)), min_size=1, unique_by=lambda p: p[0]
).map(sorted)
SLOPED = st.lists(
    st.builds(Point, st.integers(1, 64), st.floats(1e-4, 1.0), st.floats(0.0, 1e-3)),
    min_size=1,
    unique_by=lambda p: p.rows,
).map(sorted)
LENGTHS = st.integers(0, 32768)
NOTES = st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 1.0), LENGTHS), max_size=20)


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


def test_many_rows_are_taken_to_cost_as_much_each_as_the_most_that_were_measured() -> None:
    flat = CostTable([(1, 0.008), (16, 0.010), (32, 0.010)])
    assert [flat.in_proportion(rows) for rows in (1, 32, 512)] == pytest.approx([0.008, 0.01, 0.16])
    steep = CostTable([(1, 0.008), (16, 0.010), (32, 0.040)])
    assert steep.in_proportion(512) == steep.seconds(512) > 0.64


def test_one_point_is_a_line_through_nothing() -> None:
    table = CostTable([(4, 0.02)])
    assert table.seconds(2) == 0.02
    assert table.seconds(8) == pytest.approx(0.04)


@SETTINGS
@given(SLOPED, NOTES, LENGTHS)
def test_a_cost_never_falls_with_the_rows_nor_with_the_text(
    points: list[Point], notes: list[tuple[int, float, int]], length: int
) -> None:
    table = CostTable(points)
    for rows, seconds, its_length in notes:
        table.note(rows, seconds, [(rows, its_length)])
    costs = [after(table, count, length) for count in range(80)]
    assert all(left <= right * (1 + 1e-9) for left, right in pairwise(costs))
    assert all(after(table, n, length) >= table.seconds(n) > 0.0 for n in range(1, 80))


def after(table: CostTable, rows: int, length: float) -> float:
    """Return what a decode of one session's rows costs after a text."""
    return table.seconds(rows, [(table.padded(rows), length)])


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
    assert [point.seconds for point in table.points] == pytest.approx([0.02, 0.04, 0.08], rel=0.01)


def test_what_was_not_seen_for_long_drifts_with_the_rest() -> None:
    table = CostTable([(1, 0.01), (4, 0.02)])
    for _ in range(200):
        table.note(4, 0.04)
    seen, unseen = table.seconds(4), table.seconds(1)
    assert seen == pytest.approx(0.04, rel=0.01)
    assert 0.012 < unseen < 0.018


def test_the_mean_of_many_decodes_says_as_much_as_each_of_them() -> None:
    one_by_one, together, once = (CostTable([(1, 0.01), (4, 0.02)]) for _ in range(3))
    for _ in range(12):
        one_by_one.note(1, 0.006)
    together.note(1, 0.006, decodes=12)
    once.note(1, 0.006)
    assert together.points == one_by_one.points
    assert together.seconds(1) < 0.0075 < once.seconds(1)
    once.note(1, 0.006, decodes=100_000)  # of a long text, in no time
    assert once.seconds(1) == pytest.approx(0.006, rel=0.1)


def test_what_is_beside_a_decode_of_one_row_does_not_make_many_rows_expensive_by_its_share() -> (
    None
):
    table = CostTable([(1, 0.02), (4, 0.05), (8, 0.1)])
    for _ in range(200):
        table.note(1, 0.025)
    four, eight = table.seconds(4) - 0.05, table.seconds(8) - 0.1
    assert table.seconds(1) == pytest.approx(0.025, rel=0.01)
    assert 0.001 < four < 0.006 and eight == pytest.approx(four), "not .0125 and .025"


def test_rough_costs_promise_nothing_of_row_counts_between_two_points() -> None:
    rough = CostTable([(1, 0.02), (4, 0.05), (8, 0.1)], is_rough=True)
    assert rough.seconds(3) == rough.seconds(4) == 0.05
    assert rough.seconds(5) == rough.seconds(8) == 0.1
    assert rough.seconds(10) > 0.1
    rough.note(5, 0.08)
    assert rough.seconds(8) < 0.1 and rough.seconds(4) > 0.047, "it is 8 rows that were seen"


SAW = {1: 17.0, 2: 27.9, 3: 40.1, 4: 31.1, 5: 42.9, 6: 55.7, 7: 67.2, 8: 55.0, 9: 67.4, 10: 79.2}
SAW |= {12: 79.4, 14: 104.1, 16: 84.3, 17: 97.4, 20: 113.5, 24: 136.9, 32: 166.4}
"""Milliseconds by rows, of a 1.1B in Q4_0 on a Zen 5."""


@pytest.mark.parametrize("measured", [(1, 2, 3, 4, 8, 32), (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)])
def test_rows_beyond_a_kernel_of_four_are_padded_to_the_next_where_that_is_cheaper(
    measured: tuple[int, ...],
) -> None:
    table = CostTable([(rows, SAW[rows]) for rows in measured], is_rough=len(measured) < 8)
    for rows, padded in {1: 1, 2: 2, 3: 4, 4: 4, 5: 5, 7: 8, 8: 8, 9: 9, 11: 12, 16: 16}.items():
        assert table.cheapest(rows) == padded
        assert table.seconds(rows) == pytest.approx(SAW[padded], rel=0.1)
    assert table.seconds(7) == table.seconds(8) and table.seconds(5) > 1.3 * table.seconds(4)


def test_where_rows_cost_nothing_more_none_are_padded() -> None:
    table = CostTable([(1, 10.0), (2, 10.0), (3, 10.1), (4, 10.1), (8, 10.5)], is_rough=True)
    assert [table.cheapest(rows) for rows in range(1, 9)] == [*range(1, 9)]
    assert table.seconds(6) == pytest.approx(10.3, rel=0.02)


def test_a_row_beyond_full_kernels_drifts_with_the_rest() -> None:
    table = CostTable([(rows, SAW[rows]) for rows in (1, 2, 3, 4, 8)], is_rough=True)
    for _ in range(200):
        for rows in (1, 2, 4, 8):
            table.note(rows, 2 * SAW[rows])
    assert table.seconds(5) == pytest.approx(2 * SAW[5], rel=0.15)


def test_a_decode_of_far_more_rows_than_were_measured_is_known_from_then_on() -> None:
    # A 1.1B on a Zen 3: 8 rows take 148 ms, and a row of 17 little more than half of one of 4.
    quick = [(1, 0.037), (2, 0.066), (3, 0.087), (4, 0.077), (8, 0.148)]
    table = CostTable(quick, is_rough=True)
    before = table.seconds(8)
    assert table.seconds(17) > 0.30
    table.note(17, 0.266, [(17, 400.0)])
    table.note(60, 0.939, [(60, 400.0)])
    assert table.seconds(17) == pytest.approx(0.266, rel=0.01)
    assert table.seconds(32) == pytest.approx(0.5, rel=0.1)
    assert table.seconds(60) == pytest.approx(0.939, rel=0.01)
    assert table.seconds(8) == pytest.approx(before, rel=0.01)
    assert [each.rows for each in table.points] == [1, 2, 3, 4, 8, 17, 60]


def test_rough_costs_are_known_after_a_few_decodes_in_service() -> None:
    rough = CostTable([(1, 0.02), (4, 0.09), (8, 0.1)], is_rough=True)
    for _ in range(3):
        assert not rough.is_known(4) and not rough.is_known(3)
        rough.note(4, 0.05)
    assert rough.is_known(4) and rough.is_known(3) and not rough.is_known(8)
    assert rough.seconds(4) < 0.075
    assert CostTable([(1, 0.02), (4, 0.09)]).is_known(4), "what was measured well"


def test_a_second_in_which_decodes_take_ten_times_as_long_is_soon_unlearned() -> None:
    table = CostTable([(1, 0.02), (4, 0.05)])
    for _ in range(5):
        table.note(1, 0.2)
    for _ in range(20):
        table.note(1, 0.02)
    assert table.seconds(1) < 0.02 * 1.1


def test_what_a_disturbance_taught_of_rows_that_are_not_decoded_since_is_forgotten() -> None:
    table = CostTable([(1, 0.017), (2, 0.028), (3, 0.04), (4, 0.027), (8, 0.055), (12, 0.07)])
    for _ in range(20):
        table.note(4, 0.145)
    assert table.seconds(4) > 0.05
    for _ in range(250):
        table.note(12, 0.07)
    assert table.seconds(4) == pytest.approx(0.027, rel=0.1)
    assert table.seconds(12) == pytest.approx(0.07, rel=0.05)


def test_one_odd_decode_changes_little() -> None:
    table = CostTable([(1, 0.01), (4, 0.02)])
    table.note(4, 10.0)
    assert table.seconds(4) < 0.02 * 1.1
    table.note(4, 0.0)
    assert table.seconds(4) > 0.0


def true_seconds(rows: int, length: float) -> float:
    """Return what a decode takes: after 30,000 tokens four rows take twice what one takes."""
    return 0.05 + 0.001 * rows + 1e-6 * rows * length


GROWS = [Point(n, true_seconds(n, 0), 1e-6 * n) for n in (1, 2, 4, 8, 16)]
SHORT, LONG = 300, 30_000


def test_a_decode_takes_a_slope_times_the_tokens_that_its_rows_attend_to() -> None:
    table = CostTable(GROWS)
    for rows in (1, 2, 3, 4, 7, 16, 20):
        for length in (0, SHORT, LONG):
            assert after(table, rows, length) == pytest.approx(true_seconds(rows, length))


def test_of_sessions_that_share_a_decode_each_attends_to_its_own_text() -> None:
    table = CostTable(GROWS)
    shared = table.seconds(5, [(2, LONG), (3, SHORT)])
    assert shared == pytest.approx(0.055 + 1e-6 * (2 * LONG + 3 * SHORT))
    assert table.seconds(4, [(4, SHORT), (0, LONG)]) == after(table, 4, SHORT)


def test_a_peer_that_reports_no_slope_has_none() -> None:
    assert [point.slope for point in CostTable([(1, 0.01), (4, 0.02)]).points] == [0.0, 0.0]
    assert after(CostTable([(1, 0.01)]), 1, LONG) == 0.01


@pytest.mark.parametrize(
    ("base", "slope", "lengths"),
    cells([0.5, 1.0, 2.0], [0.0, 0.3, 1.0, 3.0], [(SHORT, LONG), (1000, 8000), (2000, 8000)]),
)
def test_texts_of_two_lengths_find_base_and_slope(
    base: float, slope: float, lengths: tuple[int, int]
) -> None:
    table = CostTable([Point(n, base * s, slope * p) for n, s, p in GROWS])
    for i in range(6000):
        rows, length = (1, 2, 4, 8)[i % 4], lengths[i // 4 % 2]
        table.note(rows, true_seconds(rows, length), [(rows, length)])
    for rows in (1, 2, 4, 8):
        for length in lengths:
            assert after(table, rows, length) == pytest.approx(true_seconds(rows, length), rel=0.04)


@pytest.mark.fault(
    "others",
    "A session after 30,000 tokens beside short ones",
    before="its decodes made all rows look expensive, and short texts were drafted wrongly",
    now="a cost is a base and a slope times the tokens attended to, and each learns its part",
)
def test_a_long_text_does_not_make_short_ones_look_expensive() -> None:
    table = CostTable([(n, seconds) for n, seconds, _ in GROWS])
    for i in range(400):
        rows = (1, 4)[i % 2]
        table.note(rows, true_seconds(rows, LONG), [(rows, LONG)])
    assert after(table, 1, LONG) == pytest.approx(true_seconds(1, LONG), rel=0.05)
    assert after(table, 4, LONG) == pytest.approx(true_seconds(4, LONG), rel=0.05)
    assert after(table, 4, SHORT) < 2.0 * true_seconds(4, SHORT)


def test_short_texts_say_little_of_a_slope() -> None:
    table = CostTable(GROWS)
    for _ in range(400):
        table.note(1, 3.0 * true_seconds(1, SHORT), [(1, SHORT)])
    assert 1e-6 <= table.point(1).slope < 2e-6
    assert after(table, 1, SHORT) == pytest.approx(3.0 * true_seconds(1, SHORT), rel=0.01)


def test_a_row_count_that_was_not_seen_for_long_is_learned_anew_at_once() -> None:
    seen, unseen = CostTable([(1, 0.06), (4, 0.06)]), CostTable([(1, 0.06), (4, 0.06)])
    for _ in range(500):
        unseen.note(4, 0.06)
    for table in (seen, unseen):
        for _ in range(3):
            table.note(1, 0.03)
    assert unseen.seconds(1) < 0.04 < seen.seconds(1)


def test_a_slope_that_was_not_measured_is_learned_from_a_few_long_texts() -> None:
    table = CostTable([(n, seconds) for n, seconds, _ in GROWS])
    for _ in range(8):
        table.note(1, true_seconds(1, LONG), [(1, LONG)])
    assert after(table, 1, LONG) == pytest.approx(true_seconds(1, LONG), rel=0.1)
    assert after(table, 1, SHORT) == pytest.approx(true_seconds(1, SHORT), rel=0.2)
    assert after(table, 4, LONG) > 1.2 * after(table, 1, LONG), "more rows attend to more"


def a_second(rows: int) -> float:
    """Return what a decode takes where each row takes a second."""
    return float(rows)


def test_a_round_costs_a_checkpoint_and_what_is_decoded_again_after_a_rejection() -> None:
    price = RejectionCost(checkpoint_seconds=0.5, restore_seconds=0.25)
    assert price.seconds(0, 0.5, a_second) == 0.0
    assert price.seconds(2, 1.0, a_second) == 0.5
    # Every round is rejected at once: the token before the draft is decoded again, then two, up to
    # eight, from one checkpoint; the ninth time there are nine, in a decode of their own.
    in_a_row = sum(range(MOST_REDONE + 1)) + MOST_REDONE + 1
    expected = (in_a_row + 2 * 0.5) / (MOST_REDONE + 1) + 0.25
    assert price.seconds(2, 0.0, a_second) == pytest.approx(expected)
    assert RejectionCost().seconds(8, 0.5, a_second) == 0.0


def test_what_is_taken_back_at_no_cost_costs_nothing() -> None:
    price = RejectionCost(checkpoint_seconds=0.5, restore_seconds=0.25, free_count=2)
    assert price.seconds(2, 0.0, a_second) == 0.0
    # Of three tokens the last two can be taken back; a first one that stands is enough.
    assert price.seconds(3, 0.5, a_second) > price.seconds(3, 0.9, a_second) > 0.5
    assert price.redone_count(3, 0) == 1
    assert price.redone_count(3, 1) == price.redone_count(2, 0) == 0


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("drafted", [1, 3, 8])
def test_the_price_of_rejections_is_that_of_a_long_run_of_rounds(
    acceptance: float, drafted: int
) -> None:
    price = RejectionCost(checkpoint_seconds=0.5, restore_seconds=0.25)
    dice, spent, again, is_new = random.Random(1), 0.0, 0, True
    rounds = 40_000
    for _ in range(rounds):
        if again > MOST_REDONE:
            spent, again, is_new = spent + again, 0, True
        spent += again + (price.checkpoint_seconds if is_new else 0.0)
        accepted = next((k for k in range(drafted) if dice.random() >= acceptance), drafted)
        is_new = accepted == drafted
        again = 0 if is_new else again + accepted + 1
        spent += 0.0 if is_new else price.restore_seconds
    assert price.seconds(drafted, acceptance, a_second) == pytest.approx(spent / rounds, rel=0.1)


def test_a_disturbed_first_decode_of_many_rows_forbids_no_others() -> None:
    table = CostTable([(1, 0.037), (2, 0.066), (4, 0.077), (8, 0.148)])
    usual = table.in_proportion(17)
    table.note(17, 60.0)
    assert table.seconds(17) < 3.1 * usual


def test_a_decode_of_half_as_many_rows_more_does_not_move_the_last_point() -> None:
    table = CostTable([(1, 0.037), (2, 0.066), (4, 0.077), (8, 0.148)])
    for _ in range(20):
        table.note(12, 0.170)
    assert table.seconds(8) == pytest.approx(0.148, rel=0.01)
    assert table.seconds(12) == pytest.approx(0.170, rel=0.01)


@pytest.mark.parametrize("counts", [(2, 4, 6, 8, 12, 16, 24, 32), (1, 2, 3, 4, 8), (1,), (4, 64)])
@pytest.mark.parametrize("worst", [1, 3, 8, 16])  # rows that take three times what they should
def test_hours_of_decodes_leave_no_cost_without_bound(counts: Sequence[int], worst: int) -> None:
    """A soak of half an hour once ended in costs of 1e239 seconds, which no float can square.

    Rows that take longer than more of them do were raised by each of their decodes, though no
    forecast showed it, and what was not seen was moved along.
    """
    dice = random.Random(worst)
    table = CostTable([Point(count, 0.003 + 0.0003 * count, 1e-6 * count) for count in counts])
    for _ in range(20_000):
        rows = dice.choice([1, 2, 3, 4, 5, 7, 8, 12, 16])
        attended = [(rows, dice.choice([0.0, 50.0, 250.0]))]
        truth = (0.003 + 0.0003 * rows) * (3.0 if rows == worst else 1.0)
        table.note(rows, truth * dice.lognormvariate(0.0, 0.3), attended)
    for point in table.points:
        assert 0.0003 < point.seconds < 3.0 * (0.003 + 0.0003 * max(worst, point.rows))
        assert point.slope < 1e-3


@given(POINTS, st.booleans(), NOTES)
@SETTINGS
def test_a_decode_takes_what_the_cheapest_does_that_it_can_be_padded_to(
    points: list[tuple[int, float]], is_rough: bool, notes: list[tuple[int, float, int]]
) -> None:
    table = CostTable(points, is_rough)
    for rows, seconds, length in notes:
        table.note(rows, seconds, [(rows, length)])
    whole = table._saw(table._bases, table._left_over)
    for rows in range(1, len(whole)):
        cheapest = min(whole[each] for each in range(int(table.padded(rows)), len(whole)))
        assert table.seconds(rows) == pytest.approx(cheapest)


@pytest.mark.fault(
    "crash",
    "A target or a draft says that it decodes two thousand million rows at once",
    before="a list as long was made of its costs, which filled the memory and blocked all others",
    now="costs are of at most 4,096 rows; a description with more is refused",
)
def test_a_table_does_not_grow_with_the_rows_that_a_service_says_it_decodes() -> None:
    table = CostTable([(1, 0.02), (8, 0.05)])
    before = table.seconds(4)
    for rows in (MOST_ROWS + 1, 1 << 20):
        table.note(rows, 0.06, [(1, 10.0), (rows - 1, 10.0)])
    assert [point.rows for point in table.points] == [1, 8]
    assert table.seconds(4) == pytest.approx(before, rel=0.2)
    table.note(MOST_ROWS, 0.06)
    assert [point.rows for point in table.points] == [1, 8, MOST_ROWS]
