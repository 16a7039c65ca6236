"""Which draft a generation leases."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from orchestrator.core.leasing import MOST_PASSED_OVER, Offer, choose

FAIR = Offer(token_seconds=0.01, latency_seconds=0.02, acceptance=0.7, session_count=4)


def chosen(*offers: Offer) -> Offer:
    return offers[choose(offers)]


@pytest.mark.parametrize(
    "better",
    [
        replace(FAIR, token_seconds=0.005),
        replace(FAIR, latency_seconds=0.001),
        replace(FAIR, acceptance=0.8),
    ],
    ids=["quicker", "nearer", "more often right"],
)
def test_the_better_draft_is_leased_wherever_it_stands(better: Offer) -> None:
    for offers in permutations([FAIR, better, FAIR]):
        assert chosen(*offers) is better


def test_a_quick_draft_far_away_yields_to_a_slower_one_nearby() -> None:
    far = replace(FAIR, token_seconds=0.005, latency_seconds=0.1)
    assert chosen(far, FAIR) is FAIR


def test_a_draft_that_holds_the_text_is_leased_before_one_that_has_to_read_it() -> None:
    reads = replace(FAIR, unread_seconds=0.5)
    assert chosen(reads, FAIR) is FAIR
    quicker = replace(reads, token_seconds=0.006)
    assert chosen(FAIR, quicker) is quicker  # its tokens make up for that


def test_of_equal_drafts_generations_take_the_one_that_fewest_lease() -> None:
    counts = [0, 0, 0]
    for _ in range(9):
        counts[choose([replace(FAIR, generation_count=count) for count in counts])] += 1
    assert counts == [3, 3, 3]


def test_a_draft_without_room_is_leased_only_where_none_has_any() -> None:
    full = replace(FAIR, token_seconds=0.0001, generation_count=4)
    assert chosen(full, FAIR) is FAIR
    worse = replace(FAIR, generation_count=4)
    assert chosen(worse, full) is full


def test_a_bad_draft_is_tried_again_after_long() -> None:
    bad = replace(FAIR, acceptance=0.01, passed_over=MOST_PASSED_OVER)
    assert chosen(FAIR, bad) is bad
    assert chosen(FAIR, replace(bad, passed_over=MOST_PASSED_OVER - 1)) is FAIR
    assert chosen(FAIR, replace(bad, generation_count=4)) is FAIR
