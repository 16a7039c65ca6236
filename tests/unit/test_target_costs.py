"""What rounds teach of a target: its decodes, who shares them, and what a round takes beside."""

from __future__ import annotations

import pytest

from outrider.core.rates import DraftRates, Mean
from outrider.core.target_costs import TakenBack, TargetCosts
from outrider.costs import CostTable, Point
from outrider.messages import ServiceTime
from tests.unit.test_speculate import CPU, made, outcome

PADDED = TargetCosts(CostTable([(4, 10.0), (8, 16.0), (12, 20.0)]))
"""A target that pads to four rows: one row costs what four do."""


def test_rows_between_two_points_cost_what_the_next_one_does() -> None:
    shares = {rows: PADDED.plain_share(rows, 0) for rows in (1, 4, 5, 8, 9, 12)}
    assert shares == {1: 1.0, 4: 1.0, 5: 0.625, 8: 0.625, 9: 0.5, 12: 0.5}
    assert PADDED.plain_share(65, 0) == 10.0 / (20.0 + (68 - 12) * 1.0), "and beyond the table"


def test_more_rows_are_never_taken_for_cheaper_than_one() -> None:
    assert TargetCosts(CostTable([(1, 9.0), (4, 6.0)])).plain_share(4, 0) == 1.0


# --- between decodes ---


def test_when_gathered_answers_come_says_nothing_of_the_gap_between_decodes() -> None:
    """At multiples of 100 ms, one or two decodes of 62 ms each: they follow each other at once."""
    gathered = made()
    gathered.note_round(outcome(now=0.0, is_prompt=True))
    done, arrived = 0, 0.0
    for i in range(1, 60):
        count = int(0.1 * i / 0.062) - done
        for j in range(count):
            now = arrived + (0.1 * i - arrived) * (j + 1) / count
            spent = ServiceTime(0.055, draft=0.0065, sample=0.0005)
            gathered.note_round(outcome(now=now, sent=None, committed=2, spent=spent))
        done, arrived = done + count, 0.1 * i if count else arrived
    assert gathered.costs.gap.value == pytest.approx(0.0005)


def test_the_gap_after_drafted_decodes_is_no_part_of_a_plain_token() -> None:
    own = DraftRates(token_time=Mean(0.0002))
    quick = made(costs=[(1, 0.0006), (4, 0.0020)], continues=True, own=own)
    plain = quick.plain_seconds
    for _ in range(20):
        spent = ServiceTime(0.0020, rows=4, sample=0.0013, draft=0.0006, sessions=1)
        drafted = outcome(spent=spent, sent=None, drafted=3, accepted=1, is_own=True)
        quick.note_round(drafted)
    assert quick.costs.gap.value + own.latency.value == pytest.approx(0.0013, rel=0.05)
    assert quick.plain_seconds == pytest.approx(plain)


def test_waiting_for_others_is_no_overhead_of_a_round() -> None:
    its = made(costs=CPU)
    for _ in range(60):
        its.note_round(outcome(sent=0.8, spent=ServiceTime(0.055, queue=0.143, rows=4), drafted=3))
    assert its.costs.overhead.value == pytest.approx(0.002, abs=1e-3)


@pytest.mark.parametrize(("takes_turns", "wait"), [(True, 0.0), (False, 0.055)])
def test_in_turns_the_wait_for_the_draft_is_no_wait_for_others(
    takes_turns: bool, wait: float
) -> None:
    its = made(costs=CPU, takes_turns=takes_turns)
    its.note_round(outcome(sent=0.5, spent=ServiceTime(0.055, queue=0.4, rows=4)))
    assert its.costs.queue.value == wait, "one decode of the others at most"


# --- decodes ---


@pytest.mark.parametrize("same_host", [False, True])
def test_what_a_decode_takes_beside_a_busy_draft_is_learned_where_that_is_elsewhere(
    same_host: bool,
) -> None:
    its = made(costs=CPU, same_host=same_host)
    for _ in range(40):
        its.note_round(outcome(spent=ServiceTime(0.088), drafted=3, draft_busy=True))
    known = 0.055 if same_host else 0.088
    assert its.costs.table.seconds(4) == pytest.approx(known, rel=0.02)


@pytest.mark.parametrize(("drafted", "rows"), [(0, 9), (0, 6), (3, 6)])
def test_others_with_more_or_fewer_rows_teach_who_shares_and_not_what_rows_cost(
    drafted: int, rows: int
) -> None:
    crowded = made(costs=CPU)
    before = crowded.costs.table.points
    for _ in range(60):  # beside two that draft, or one, or two that do not
        spent = ServiceTime(0.2, rows=rows, sessions=3)
        crowded.note_round(outcome(spent=spent, drafted=drafted))
    assert crowded.costs.sessions_together == pytest.approx(3.0)
    assert crowded.costs.table.points == before


def test_a_decode_that_others_share_with_as_many_rows_teaches_what_those_cost() -> None:
    crowded = made(costs=CPU)
    alone = crowded.decode_seconds(4)
    for _ in range(4 * 60):
        crowded.note_round(outcome(spent=ServiceTime(0.2, rows=16, sessions=4), drafted=3))
    # Not taken for a slower target: what a decode of its own rows costs has not changed.
    assert crowded.costs.table.seconds(4) == pytest.approx(alone, rel=0.01)
    assert crowded.decode_seconds(4) == pytest.approx(0.2, rel=0.02)
    crowded = made(costs=[(1, 0.03), (4, 0.06), (8, 0.12)])
    for _ in range(3 * 60):  # three plain ones; what fills the decode to four rows is not counted
        crowded.note_round(outcome(spent=ServiceTime(0.1, rows=3, sessions=3)))
    assert crowded.costs.table.seconds(3) == pytest.approx(0.1, rel=0.02)


def test_a_decode_that_several_share_teaches_no_more_than_one_alone() -> None:
    before, shared, alone = (made(costs=CPU) for _ in range(3))
    for _ in range(4):  # each of the sessions says so
        shared.note_round(outcome(spent=ServiceTime(0.06, rows=4, sessions=4)))
    alone.note_round(outcome(spent=ServiceTime(0.06, rows=4, sessions=1), drafted=3))
    once, twice = (each.costs.table.seconds(4) for each in (alone, shared))
    assert before.costs.table.seconds(4) < once == pytest.approx(twice, rel=0.01)


def test_who_has_left_a_target_that_writes_by_itself_shares_no_decode() -> None:
    costs = TargetCosts(table=CostTable(CPU), continues=True, generation_count=4)
    for _ in range(20):
        costs.note_round(
            outcome(spent=ServiceTime(0.06, rows=4, sessions=4)), 1, TakenBack(), False, False
        )
    assert costs.sessions_together == 4.0
    costs.generation_count = 1
    assert costs.sessions_together == 1.0
    for _ in range(60):  # those of another orchestrator
        costs.note_round(
            outcome(spent=ServiceTime(0.06, rows=3, sessions=3)), 1, TakenBack(), False, False
        )
    assert costs.sessions_together == pytest.approx(3.0, abs=0.01)


def test_a_decode_costs_what_it_does_after_the_text_beside_those_who_share_it() -> None:
    its = made()
    its.costs.table = CostTable([Point(1, 0.03, 1e-6), Point(8, 0.03, 8e-6)])
    its.note_length(10_000)
    assert its.plain_seconds == pytest.approx(0.03 + 0.01 + 0.001)
    assert its.decode_seconds(8) == pytest.approx(0.03 + 0.08)
    # Three rows of others, each after 2,000 tokens.
    spent = ServiceTime(0.046, rows=4, attended=10_000 + 3 * 2_000, sessions=4)
    for _ in range(20):
        its.note_round(outcome(length=10_000, committed=0, spent=spent))
    assert its.decode_seconds(1) == pytest.approx(0.03 + 0.016, rel=0.01)
    assert its.costs.others_length.value == pytest.approx(2_000)


def test_a_piece_of_somebodys_prompt_teaches_nothing() -> None:
    its = made(costs=CPU)
    before = its.costs.table.points
    its.note_round(outcome(spent=ServiceTime(1.3, rows=132, sessions=1), drafted=3))
    assert its.costs.sessions_together == 1.0
    assert its.costs.table.points == before
