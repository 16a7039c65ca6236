"""What joins the next decode, and when it is worth to wait for more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.costs import CostTable, Point
from outrider.engine.batching import (
    LEAST_CHUNK,
    Awaited,
    Limits,
    Offer,
    Pending,
    allot,
    apart_seconds,
    decode_seconds,
    exchange_to_adjoin,
    gains_that_pay,
    split_seconds,
    wait_until,
    widths,
)

SETTINGS = settings(derandomize=True, deadline=None)
LIMITS = Limits(rows=512, rows_out=128, padded=16)
ZEN = CostTable([(2, 0.038), (4, 0.056), (8, 0.105), (16, 0.147)])
"""Measured on a 1.1B model in Q4_0, two threads."""


def by(multiple: int) -> Callable[[int], int]:
    return lambda count: -(-count // multiple) * multiple


def rows_out(job: Pending, padded: Callable[[int], int]) -> int:
    """Return the rows of logits that llama.cpp computes for a finishing job."""
    pads = padded(job.token_count) - job.token_count
    return padded(job.row_count + pads) if job.row_count else 0


@st.composite
def pending_jobs(draw: st.DrawFn) -> Pending:
    row_count = draw(st.one_of(st.integers(0, 9), st.integers(0, 65)))
    token_count = max(1, row_count) + draw(st.one_of(st.integers(0, 12), st.integers(0, 1500)))
    return Pending(token_count, row_count)


JOBS = st.lists(pending_jobs(), min_size=1, max_size=12)
MULTIPLES = st.sampled_from([1, 4])


# allot

READ_ROWS = st.sampled_from([LEAST_CHUNK, 40, 128, 512])


@SETTINGS
@given(JOBS, READ_ROWS, MULTIPLES)
def test_a_decode_never_exceeds_its_limits(
    jobs: list[Pending], read_rows: int, multiple: int
) -> None:
    padded = by(multiple)
    taken = allot(jobs, read_rows, LIMITS, padded)
    assert sum(map(padded, taken)) <= LIMITS.rows
    pairs = list(zip(jobs, taken, strict=True))
    finishing = [job for job, count in pairs if count == job.token_count]
    assert sum(rows_out(job, padded) for job in finishing) <= LIMITS.rows_out
    assert sum(padded(count) for job, count in pairs if job.reads) <= read_rows


@SETTINGS
@given(JOBS, READ_ROWS, MULTIPLES)
def test_wanted_rows_are_never_split(jobs: list[Pending], read_rows: int, multiple: int) -> None:
    for job, count in zip(jobs, allot(jobs, read_rows, LIMITS, by(multiple)), strict=True):
        assert 0 <= count <= job.token_count
        assert count == job.token_count or count <= job.token_count - job.row_count


@SETTINGS
@given(JOBS, READ_ROWS)
def test_a_chunk_before_the_rows_is_whole_multiples(jobs: list[Pending], read_rows: int) -> None:
    for job, count in zip(jobs, allot(jobs, read_rows, LIMITS, by(4)), strict=True):
        assert count == job.token_count or count % 4 == 0


@SETTINGS
@given(JOBS, READ_ROWS, MULTIPLES)
def test_the_oldest_job_always_gets_on(jobs: list[Pending], read_rows: int, multiple: int) -> None:
    assert allot(jobs, read_rows, LIMITS, by(multiple))[0] > 0


@SETTINGS
@given(JOBS, READ_ROWS, MULTIPLES)
def test_every_job_finishes(jobs: list[Pending], read_rows: int, multiple: int) -> None:
    left = list(jobs)
    for _ in range(1200):
        taken = allot(left, read_rows, LIMITS, by(multiple))
        pairs = list(zip(left, taken, strict=True))
        later = [job for job, count in pairs if not count]
        left = later + [
            Pending(job.token_count - count, job.row_count)
            for job, count in pairs
            if 0 < count < job.token_count
        ]
        if not left:
            return
    raise AssertionError(f"{left} did not finish")


@SETTINGS
@given(st.lists(st.builds(Pending, st.integers(1, 9), st.just(1)), min_size=1, max_size=30))
def test_short_jobs_all_join(jobs: list[Pending]) -> None:
    assert allot(jobs, 512, LIMITS, by(4)) == [job.token_count for job in jobs]


def test_a_prompt_takes_what_may_be_read_and_others_all_theirs() -> None:
    assert allot([Pending(2000, 1)], 512, LIMITS, by(4)) == [512]
    assert allot([Pending(2000, 1), Pending(5, 5)], 40, LIMITS, by(4)) == [40, 5]


def test_prompts_take_turns_and_leave_room_for_others() -> None:
    long, short = Pending(2000, 1), Pending(5, 5)
    assert allot([long, long, short], 40, LIMITS, by(4)) == [40, 0, 5]
    assert allot([long, short, long], 512, LIMITS, by(4)) == [504, 5, 0]
    assert allot([Pending(100, 1), long], 512, LIMITS, by(4)) == [100, 412]


def test_the_chunk_before_the_rows_leaves_all_of_them() -> None:
    assert allot([Pending(533, 5)], 512, LIMITS, by(4)) == [512]
    assert allot([Pending(530, 32)], 512, LIMITS, by(4)) == [496]
    assert allot([Pending(512, 5)], 512, LIMITS, by(4)) == [512]


def test_a_prompt_without_rows_ends_with_its_last_token() -> None:
    assert allot([Pending(513, 0)], 512, LIMITS, by(4)) == [512]
    assert allot([Pending(1, 0)], 512, LIMITS, by(4)) == [1]


def test_rows_that_do_not_fit_wait_for_the_next_decode() -> None:
    jobs = [Pending(60, 60), Pending(60, 60), Pending(4, 4)]
    assert allot(jobs, 512, LIMITS, by(4)) == [60, 60, 0]


def test_a_job_with_many_rows_is_not_held_up_by_how_little_may_be_read() -> None:
    assert allot([Pending(65, 65), Pending(1, 1)], LEAST_CHUNK, LIMITS, by(4)) == [65, 1]


# cost


POINTS = st.lists(
    st.tuples(st.integers(1, 64), st.floats(1e-4, 1.0)),
    min_size=1,
    max_size=8,
    unique_by=lambda point: point[0],
).map(sorted)


FLAT = CostTable([(4, 0.050), (8, 0.050), (16, 0.050)])
"""Shared decodes are free: every wait below 50 ms pays."""

STEEP = CostTable([(4, 0.050), (8, 0.100), (16, 0.200)])
"""Shared decodes save nothing."""

AWAITED = st.builds(
    Awaited,
    answer_time=st.floats(9.0, 10.0),
    turnaround=st.floats(1e-4, 0.5),
    row_count=st.sampled_from([4, 8, 12]),
    sequence=st.integers(1, 8),
)


def test_one_session_never_waits() -> None:
    assert wait_until(10.0, {0: 4}, [], FLAT) <= 10.0


def test_a_session_that_was_just_answered_is_awaited() -> None:
    just = Awaited(answer_time=10.0, turnaround=0.004, row_count=4, sequence=1)
    assert wait_until(10.001, {0: 4}, [just], FLAT) == pytest.approx(10.008)


def test_a_session_is_awaited_for_at_most_twice_its_turnaround() -> None:
    late = Awaited(answer_time=10.0, turnaround=0.004, row_count=4, sequence=1)
    assert wait_until(10.007, {0: 4}, [late], FLAT) == pytest.approx(10.008)
    assert wait_until(10.008, {0: 4}, [late], FLAT) <= 10.008
    assert wait_until(11.0, {0: 4}, [late], FLAT) <= 11.0


def test_nobody_is_awaited_when_a_shared_decode_saves_nothing() -> None:
    just = Awaited(answer_time=10.0, turnaround=0.001, row_count=4, sequence=1)
    assert wait_until(10.0, {0: 4}, [just], STEEP) <= 10.0


def test_a_session_that_comes_back_slowly_is_not_awaited() -> None:
    slow = Awaited(answer_time=10.0, turnaround=0.4, row_count=4, sequence=1)
    assert wait_until(10.0, {0: 4}, [slow], FLAT) <= 10.0


def test_a_slow_session_does_not_keep_a_fast_one_from_being_awaited() -> None:
    slow = Awaited(answer_time=10.0, turnaround=0.4, row_count=4, sequence=2)
    fast = Awaited(answer_time=10.0, turnaround=0.004, row_count=4, sequence=1)
    assert wait_until(10.0, {0: 4}, [slow, fast], FLAT) == pytest.approx(10.008)


def test_nobody_is_awaited_for_longer_than_it_saves() -> None:
    just = Awaited(answer_time=10.0, turnaround=0.040, row_count=4, sequence=1)
    assert wait_until(10.0, {0: 4}, [just], FLAT) == pytest.approx(10.050)


def test_sessions_that_did_not_come_back_save_nothing() -> None:
    # 4 + 4 rows save nothing here; only the forty that never came would.
    table = CostTable([(4, 0.010), (8, 0.020), (40, 0.100), (48, 0.100)])
    gone = [Awaited(answer_time=1.0, turnaround=0.001, row_count=4, sequence=1) for _ in range(10)]
    just = Awaited(answer_time=10.0, turnaround=0.005, row_count=4, sequence=1)
    assert wait_until(10.0, {0: 4}, [just], table) <= 10.0
    assert wait_until(10.0, {0: 4}, [*gone, just], table) <= 10.0


@SETTINGS
@given(st.lists(AWAITED, max_size=6), st.sampled_from([4, 8]), POINTS)
def test_no_wait_is_longer_than_twice_a_turnaround_or_than_it_pays(
    awaited: list[Awaited], ready: int, points: list[tuple[int, float]]
) -> None:
    table, now = CostTable(points), 10.0
    until = wait_until(now, {0: ready}, awaited, table)
    if until > now:
        assert until <= max(a.answer_time + 2 * a.turnaround for a in awaited)
        # A shared decode saves at most all of the others' time.
        others = sum(table.seconds(a.row_count) for a in awaited)
        assert until - now <= others + 1e-9


def test_only_neighbours_are_computed_together() -> None:
    # Two sessions of two rows took 105 ms where they were no neighbours, and 56 where they were.
    assert apart_seconds({0: 2, 1: 2}, ZEN) == pytest.approx(0.056)
    assert apart_seconds({0: 2, 2: 2}, ZEN) == pytest.approx(0.076)
    assert apart_seconds({3: 2, 0: 2, 2: 2, 1: 2}, ZEN) == pytest.approx(0.105)
    assert apart_seconds({}, ZEN) == 0.0


def test_the_session_between_two_is_worth_a_longer_wait() -> None:
    between = Awaited(answer_time=10.0, turnaround=0.020, row_count=2, sequence=1)
    beyond = replace(between, sequence=5)
    last = replace(between, sequence=3)
    assert wait_until(10.0, {0: 2, 2: 2}, [between, last], ZEN) > 10.020
    assert wait_until(10.0, {0: 2, 2: 2}, [beyond], ZEN) <= 10.0


@SETTINGS
@given(st.sets(st.integers(0, 9), max_size=6))
def test_exchanges_make_neighbours_and_move_as_few_as_possible(sequences: set[int]) -> None:
    count = len(sequences)
    stay = max(len(sequences & set(range(s, s + count))) for s in range(10))
    now, moves = set(sequences), 0
    while pair := exchange_to_adjoin(now):
        leaves, enters = pair
        assert leaves in now and 0 <= enters < 10 and enters not in now
        now = now - {leaves} | {enters}
        moves += 1
    assert len(now) == count and moves == count - stay
    assert not now or max(now) - min(now) == count - 1


# gains that pay


def offers_by(rows: list[int], gains: list[list[float]]) -> list[Offer]:
    return [Offer(count, gain) for count, gain in zip(rows, gains, strict=True)]


SURVIVALS = st.lists(st.floats(0.01, 0.99), max_size=4).map(lambda s: sorted(s, reverse=True))


@SETTINGS
@given(st.lists(SURVIVALS, min_size=2, max_size=3), MULTIPLES, st.integers(0, 2))
def test_the_limit_with_the_best_goodput_is_taken(
    gains: list[list[float]], multiple: int, table: int
) -> None:
    cost = (FLAT, STEEP, CostTable([(1, 0.03), (64, 0.06)]))[table]
    padded = by(multiple)

    def rate(counts: list[int]) -> float:
        tokens = sum(1 + sum(g[:n]) for g, n in zip(gains, counts, strict=True))
        rows = [padded(1 + n) for n in counts]
        return tokens / split_seconds(widths(rows, LIMITS, cost), cost)

    taken = gains_that_pay(offers_by([1] * len(gains), gains), LIMITS, cost, padded)
    limits = [[min(len(g), limit) for g in gains] for limit in range(multiple - 1, 8, multiple)]
    assert taken in limits
    assert rate(taken) >= max(map(rate, limits)) * (1 - 1e-9)


def test_unequal_rows_are_computed_apart() -> None:
    assert split_seconds([4, 4, 4, 4], ZEN) == pytest.approx(0.147)
    # Measured on a 1.1B model with two threads: 141 to 157 ms.
    assert split_seconds([2, 4, 2, 2], ZEN) == pytest.approx(0.105 + 0.038)
    assert split_seconds([3], CostTable([(1, 1.0), (4, 4.0)])) == pytest.approx(3.0)


def test_one_long_draft_does_not_hold_up_many_short_ones() -> None:
    offers = offers_by([1] * 4, [[0.7, 0.5, 0.3], [0.7], [0.7], [0.7]])
    assert gains_that_pay(offers, LIMITS, ZEN, by(2)) == [1, 1, 1, 1]
    assert gains_that_pay(offers_by([1] * 4, [[0.9, 0.8, 0.7]] * 4), LIMITS, ZEN, by(2)) == [3] * 4


def test_rows_after_a_long_text_must_pay_for_what_they_attend_to() -> None:
    table = CostTable([Point(1, 0.030, 2e-6), Point(16, 0.032, 32e-6)])  # 60 ms a row at 30,000
    short, long = Offer(1, [0.6, 0.36], 300), Offer(1, [0.6, 0.36], 30_000)
    assert gains_that_pay([short, short], LIMITS, table, by(1)) == [2, 2]
    assert gains_that_pay([long, long], LIMITS, table, by(1)) == [0, 0]


def test_one_job_alone_keeps_what_it_offers() -> None:
    assert gains_that_pay([Offer(1, [0.1, 0.01])], LIMITS, STEEP, by(1)) == [2]


def test_where_rows_are_free_all_are_taken_and_where_they_are_dear_the_likely_ones() -> None:
    offers = offers_by([1, 1], [[0.9, 0.8], [0.5, 0.1]])
    assert gains_that_pay(offers, LIMITS, FLAT, by(1)) == [2, 2]
    line = CostTable([(1, 0.02), (64, 0.65)])  # a row costs half of what one alone does
    assert gains_that_pay(offers, LIMITS, line, by(1)) == [1, 1]


def test_rows_that_fill_the_padding_cost_nothing() -> None:
    offers = offers_by([1, 1], [[0.2, 0.1, 0.05, 0.04], [0.2]])
    assert gains_that_pay(offers, LIMITS, STEEP, by(4)) == [3, 1]


# widths


def test_a_session_alone_takes_the_row_count_that_is_fastest() -> None:
    gemm_of_four = CostTable([(1, 0.066), (2, 0.120), (4, 0.055), (8, 0.108)])
    assert [widths([rows], LIMITS, gemm_of_four) for rows in (1, 2, 3, 4, 8)] == [
        [4],
        [4],
        [4],
        [4],
        [8],
    ]
    assert [widths([rows], LIMITS, ZEN) for rows in (2, 4, 6, 16, 300)] == [
        [2],
        [4],
        [6],
        [16],
        [300],
    ]


def test_short_sessions_are_padded_where_that_keeps_all_together() -> None:
    # Two rows of four and then two more of three cost 105 + 80 ms; four of four, 147.
    assert widths([2, 4, 4, 4], LIMITS, ZEN) == [4, 4, 4, 4]
    assert widths([2, 2, 2, 16], LIMITS, ZEN) == [2, 2, 2, 16]


def test_nothing_is_padded_beyond_what_a_decode_may_carry() -> None:
    free = CostTable([(1, 0.03), (512, 0.03)])
    tight = Limits(rows=512, rows_out=20, padded=16)
    assert widths([4, 8, 8], tight, free) == [4, 8, 8]
    assert widths([4, 128], LIMITS, ZEN) == [4, 128]
    dear_below = CostTable([(1, 0.05), (16, 0.05), (32, 0.01)])
    assert widths([1], LIMITS, dear_below) == [1]


@SETTINGS
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 2))
def test_padding_never_costs_and_never_exceeds_the_limits(rows: list[int], table: int) -> None:
    cost = (FLAT, STEEP, ZEN)[table]
    taken = widths(rows, LIMITS, cost)
    assert all(width >= count for width, count in zip(taken, rows, strict=True))
    assert split_seconds(taken, cost) <= split_seconds(rows, cost) + 1e-9
    if taken != rows:
        assert max(b for a, b in zip(rows, taken, strict=True) if b > a) <= LIMITS.padded
        assert sum(taken) <= LIMITS.rows_out


def test_a_little_cheaper_may_be_noise() -> None:
    assert widths([2], LIMITS, CostTable([(2, 0.0100), (4, 0.0095), (8, 0.02)])) == [2]
    assert widths([2], LIMITS, CostTable([(2, 0.0100), (4, 0.0085), (8, 0.02)])) == [4]
    disturbed = CostTable([(2, 0.075), (4, 0.211), (8, 0.211), (16, 0.150)])
    assert [widths([rows], LIMITS, disturbed) for rows in (2, 4, 8)] == [[2], [4], [8]]


# one pool of cells

POOL = Limits(rows=512, rows_out=128, padded=16, is_pool=True)


def test_rows_of_a_pool_are_computed_at_once_whatever_their_sequences() -> None:
    assert apart_seconds({0: 2, 7: 2}, ZEN, is_pool=True) == ZEN.seconds(4)
    assert decode_seconds([4, 2, 1, 1], POOL, ZEN) == ZEN.seconds(8)
    assert decode_seconds([4, 2, 1, 1], replace(POOL, is_pool=False), ZEN) > ZEN.seconds(8)


def test_a_decode_of_a_pool_is_padded_as_a_whole() -> None:
    table = CostTable([(1, 0.066), (2, 0.066), (4, 0.055), (8, 0.080)])
    assert widths([1, 1], POOL, table) == [1, 3]
    assert widths([3, 2], POOL, table) == [3, 2]


def test_nobody_is_awaited_in_a_pool_for_lying_between_two() -> None:
    between = Awaited(answer_time=10.0, turnaround=0.012, row_count=2, sequence=1)
    apart = wait_until(10.0, {0: 2, 2: 2}, [between], ZEN)
    assert wait_until(10.0, {0: 2, 2: 2}, [between], ZEN, is_pool=True) <= apart
