"""Containers that are killed one after the other: who, when, and what is a fault of ours."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from tests.chaos.containers import COUNTS
from tests.chaos.kills import (
    EVERY_SECONDS,
    HEALTH_SECONDS,
    Loss,
    Request,
    figures,
    in_failover,
    kills,
    percentile,
    problems,
    stood_still,
    table,
)


def request(began: float, waited: float = 0.5, outcome: str = "right") -> Request:
    return Request(began, began + waited, began + waited + 1.0, outcome, 20, 5)


def test_a_seed_gives_the_same_kills_again() -> None:
    assert kills(3, 10.0, COUNTS) == kills(3, 10.0, COUNTS)
    assert kills(3, 10.0, COUNTS) != kills(4, 10.0, COUNTS)


def test_one_is_killed_every_ten_seconds_and_each_container_in_turn_may_be_it() -> None:
    plan = kills(1, 10.0, COUNTS)
    assert [kill.at for kill in plan] == [EVERY_SECONDS * number for number in range(60)]
    everyone = {"target 0", "target 1", "target 2", *(f"draft {number}" for number in range(5))}
    assert all(set(kill.order) == everyone for kill in plan)
    assert set(Counter(kill.order[0] for kill in plan)) == everyone
    assert len(kills(1, 0.25, COUNTS)) == 2


def test_the_99th_percentile_is_a_value_that_was_seen() -> None:
    assert percentile([float(value) for value in range(1, 101)], 0.99) == 99.0
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3.0
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert math.isnan(percentile([], 0.5))


def test_a_request_is_in_failover_if_a_container_was_away_before_its_first_token() -> None:
    losses = [Loss("target 0", 10.0, 13.0)]
    assert not in_failover(request(8.0, waited=1.0), losses)
    assert in_failover(request(9.9, waited=1.0), losses)
    assert in_failover(request(12.9), losses)
    assert not in_failover(request(13.1), losses)
    assert in_failover(Request(9.0), losses)  # its first token never came


def test_a_request_of_a_while_in_which_the_machine_stood_still_says_nothing() -> None:
    spans = [(10.0, 90.0)]
    assert not stood_still(Request(1.0, 2.0, 9.0), spans)
    assert stood_still(Request(9.0, 95.0, 96.0), spans)
    assert stood_still(Request(9.0), spans)
    assert not stood_still(Request(91.0), spans)


def test_the_figures_count_tokens_by_the_time_from_the_first_to_the_last() -> None:
    seen = figures([request(0.0), request(1.5, waited=0.7), request(3.0, outcome="told: BUSY")])
    assert seen.count == 3
    assert seen.outcomes == {"right": 2, "told: BUSY": 1}
    assert seen.tokens_per_second == pytest.approx(60 / 4.5)
    assert seen.drafted == 0.25
    assert (seen.p50, seen.p99) == pytest.approx((0.5, 0.7))
    assert figures([]).count == 0


def test_a_user_who_was_told_why_not_is_no_fault_and_everything_else_is() -> None:
    fine = [request(0.0), request(1.0, outcome="told: PEER_UNAVAILABLE")]
    assert problems(figures(fine), figures(fine), fine) == []
    for outcome in ("another text", "an end without a word", "no end"):
        lost = [*fine, request(2.0, outcome=outcome)]
        assert problems(figures(fine), figures(lost), lost) == [f"1 requests: {outcome}"]


def test_a_first_token_may_be_one_health_interval_later_and_no_more() -> None:
    before, after = [request(0.0, waited=0.5)], [request(9.0, waited=0.4 + HEALTH_SECONDS)]
    assert problems(figures(before), figures(after), [*before, *after]) == []
    late = [request(9.0, waited=0.6 + HEALTH_SECONDS)]
    assert "5.60 s in failover" in problems(figures(before), figures(late), [*before, *late])[0]
    nothing = problems(figures(before), figures([]), before)  # no first token at all
    assert len(nothing) == 1


def test_the_table_has_a_row_for_each_outcome() -> None:
    seen = figures([request(0.0), request(1.0, outcome="another text")])
    said = table({"undisturbed": figures([request(0.0)]), "2 killed": seen})
    assert "|  | undisturbed | 2 killed |" in said
    assert "| another text | 0 | 1 |" in said
    assert "| right | 1 | 1 |" in said
