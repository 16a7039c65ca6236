"""At which target a text is written, and which weights are served."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from orchestrator.core.routing import (
    MOST_PASSED_OVER,
    TargetOffer,
    choose_target,
    weights_served,
)

FAIR = TargetOffer(
    session_count=4,
    generation_count=0,
    unread_count=0,
    prompt_count=1000,
    cached_count=0,
    read_seconds=0.001,
    token_seconds=0.01,
)


def chosen(*offers: TargetOffer) -> TargetOffer:
    return offers[choose_target(offers)]


@pytest.mark.parametrize(
    "better",
    [
        replace(FAIR, cached_count=900),
        replace(FAIR, read_seconds=0.0005),
        replace(FAIR, token_seconds=0.005),
    ],
    ids=["holds more of the prompt", "reads more quickly", "writes more quickly"],
)
def test_the_better_target_is_taken_wherever_it_stands(better: TargetOffer) -> None:
    for offers in permutations([FAIR, better, FAIR]):
        assert chosen(*offers) is better


def test_of_equal_targets_texts_go_where_the_fewest_are() -> None:
    counts = [0, 0, 0]
    for _ in range(9):
        counts[choose_target([replace(FAIR, generation_count=n) for n in counts])] += 1
    assert counts == [3, 3, 3]


def test_the_expected_time_is_the_queue_what_is_to_be_read_and_a_text() -> None:
    offer = replace(FAIR, cached_count=600, unread_count=200)
    assert offer.queue_seconds == pytest.approx(0.2)
    assert offer.expected_seconds == pytest.approx(0.2 + 0.4 + 1.28)


def test_a_text_that_would_have_to_wait_counts_those_that_end_before_it() -> None:
    full = replace(FAIR, generation_count=4)
    assert full.queue_seconds == pytest.approx(1.28 / 4)
    assert replace(full, generation_count=3).queue_seconds == 0.0


def test_a_prefix_is_left_where_the_queue_is_longer_than_reading_it() -> None:
    holds = replace(FAIR, cached_count=1000, unread_count=900)
    assert chosen(holds, FAIR) is holds
    assert chosen(replace(holds, unread_count=1100), FAIR) is FAIR


def test_a_target_that_said_it_has_no_room_is_the_last_to_be_asked() -> None:
    busy = replace(FAIR, cached_count=1000, is_busy=True)
    assert chosen(busy, FAIR) is FAIR
    assert chosen(busy) is busy


def test_an_idle_target_that_looks_slow_is_tried_again_after_a_while() -> None:
    slow = replace(FAIR, token_seconds=0.1)
    assert chosen(replace(slow, passed_over=MOST_PASSED_OVER - 1), FAIR) is FAIR
    again = replace(slow, passed_over=MOST_PASSED_OVER)
    assert chosen(again, FAIR) is again


@pytest.mark.parametrize(
    ("current", "hosted", "served"),
    [
        (b"", [b"", b"a", b"b"], b"a"),
        (b"a", [b"b", b"a"], b"a"),
        (b"a", [b"b", b"b"], b"b"),
        (b"a", [b"", b""], b"a"),
        (b"", [b"", b""], b""),
    ],
    ids=[
        "the first that is known",
        "as long as any target has them",
        "all came with others",
        "nobody says anything",
        "nobody ever said anything",
    ],
)
def test_the_weights_that_are_served(current: bytes, hosted: list[bytes], served: bytes) -> None:
    assert weights_served(current, hosted) == served
