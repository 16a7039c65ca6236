"""Where a text goes, which weights and records are served, and what a peer probably holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from outrider.core.route import (
    BLOCK,
    MOST_PASSED_OVER,
    MOST_RECORDS,
    HeldTexts,
    RankedPeer,
    dialled,
    digests_of,
    seconds_of_draft,
    seconds_of_target,
    weights_served,
)

DRAFT = {"text_count": 0, "token_seconds": 0.01, "latency_seconds": 0.02, "acceptance": 0.7}
TARGET = {
    "text_count": 0,
    "session_count": 4,
    "token_seconds": 0.01,
    "read_seconds": 0.001,
    "queued_count": 0,
    "unread_count": 1000,
}


def draft(**changed: Any) -> float:
    return seconds_of_draft(**{**DRAFT, **changed})


def target(**changed: Any) -> float:
    return seconds_of_target(**{**TARGET, **changed})


@pytest.mark.parametrize(
    ("better", "fair"),
    [
        (draft(token_seconds=0.005), draft()),
        (draft(latency_seconds=0.001), draft()),
        (draft(acceptance=0.8), draft()),
        (target(unread_count=100), target()),
        (target(read_seconds=0.0005), target()),
        (target(token_seconds=0.005), target()),
    ],
    ids=["quicker", "nearer", "more often right", "holds more", "reads quicker", "writes quicker"],
)
def test_the_better_peer_takes_less_time(better: float, fair: float) -> None:
    assert better < fair


def test_the_quickest_peer_is_leased_wherever_it_stands() -> None:
    quick, fair = RankedPeer(seconds=1.0), RankedPeer(seconds=2.0)
    for peers in permutations([fair, quick, fair]):
        assert min(peers) is quick


@pytest.mark.parametrize("role", [draft, target])
def test_of_equal_peers_texts_go_where_the_fewest_are(role: Callable[..., float]) -> None:
    counts = [0, 0, 0]
    for _ in range(9):
        peers = [RankedPeer(seconds=role(text_count=n), text_count=n) for n in counts]
        counts[peers.index(min(peers))] += 1
    assert counts == [3, 3, 3]


def test_an_idle_peer_that_looks_bad_is_tried_again_after_a_while() -> None:
    fair, bad = RankedPeer(seconds=1.0), RankedPeer(seconds=9.0, passed_over=MOST_PASSED_OVER)
    assert min(fair, replace(bad, passed_over=MOST_PASSED_OVER - 1)) is fair
    assert min(fair, bad) is bad
    assert min(fair, replace(bad, text_count=4)) is fair


def test_a_quick_draft_far_away_yields_to_a_slower_one_nearby() -> None:
    assert draft() < draft(token_seconds=0.005, latency_seconds=0.1)


def test_a_draft_that_holds_the_text_is_leased_before_one_that_has_to_read_it() -> None:
    assert draft() < draft(unread_seconds=0.5)
    # Its tokens make up for that.
    assert draft(unread_seconds=0.5, token_seconds=0.006) < draft()


def test_a_peer_without_room_is_leased_only_where_none_has_any() -> None:
    full = RankedPeer(seconds=0.1, is_full=True)
    assert min(full, free := RankedPeer(seconds=1.0)) is free
    assert min(full, replace(full, seconds=1.0)) is full


def test_the_expected_time_is_the_queue_what_is_to_be_read_and_a_text() -> None:
    assert target(unread_count=400, queued_count=200) == pytest.approx(0.2 + 0.4 + 1.28)


def test_a_text_that_would_have_to_wait_counts_those_that_end_before_it() -> None:
    assert target(text_count=4) - target() == pytest.approx(1.28 / 4)
    assert target(text_count=3) == target()


def test_a_prefix_is_left_where_the_queue_is_longer_than_reading_it() -> None:
    assert target(unread_count=0, queued_count=900) < target()
    assert target() < target(unread_count=0, queued_count=1100)


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


# --- records ---


@pytest.mark.parametrize(
    ("records", "before", "now"),
    [
        (["10.0.0.1"], [], []),
        ([], [], []),
        (["10.0.0.2", "10.0.0.1"], [], ["10.0.0.1", "10.0.0.2"]),
        (["10.0.0.2", "10.0.0.2"], [], []),
        (["10.0.0.3"], ["10.0.0.1", "10.0.0.2"], ["10.0.0.3"]),
        ([], ["10.0.0.2", "10.0.0.1"], ["10.0.0.1", "10.0.0.2"]),
        (["::1", "127.0.0.1"], [], []),
        (["fd00::2", "fd00::1"], [], ["fd00::1", "fd00::2"]),
        (["fd00::1", "fd00::2", "10.0.0.1", "10.0.0.2"], [], ["10.0.0.1", "10.0.0.2"]),
    ],
    ids=[
        "one record: the name itself",
        "no record: the name itself",
        "several: each of them",
        "one record twice",
        "one record is left of several",
        "nobody answers for the name",
        "one machine with an address of each kind",
        "IPv6 alone",
        "machines with an address of each kind",
    ],
)
def test_what_is_dialled(records: list[str], before: list[str], now: list[str]) -> None:
    assert dialled(records, before) == now


def test_no_more_services_are_dialled_than_there_may_be() -> None:
    assert len(dialled([f"10.0.{i >> 8}.{i & 255}" for i in range(600)])) == MOST_RECORDS


# --- prefixes ---

KEY, SALT = b"key of this process", b"salt"


def digests(*ids: int, salt: bytes = SALT) -> tuple[bytes, ...]:
    return digests_of(ids, salt, KEY)


def held(*texts: tuple[bytes, ...], session_count: int = 4) -> HeldTexts:
    known = HeldTexts()
    for text in texts:
        known.note(text, session_count)
    return known


def test_there_is_a_digest_for_every_whole_block_and_none_for_the_rest() -> None:
    assert len(digests(*range(3 * BLOCK + 5))) == 3
    assert digests(*range(BLOCK - 1)) == ()


def test_equal_prefixes_have_equal_digests_up_to_the_block_that_differs() -> None:
    one, other = list(range(64)), list(range(64))
    other[2 * BLOCK] = 7
    assert digests(*one)[:2] == digests(*other)[:2]
    assert not set(digests(*one)[2:]) & set(digests(*other)[2:])


def test_the_same_block_after_another_one_has_another_digest() -> None:
    block = list(range(BLOCK))
    first, second = digests(*block, *block)
    assert first != second


def test_what_one_caller_s_text_is_says_nothing_of_the_text_of_a_caller_with_another_salt() -> None:
    text = range(10 * BLOCK)
    known = held(digests(*text))
    assert known.count(digests(*text)) == 10 * BLOCK
    assert known.count(digests(*text, salt=b"other")) == 0
    assert known.count(digests(*text, salt=b"")) == 0


def test_digests_of_another_process_are_others() -> None:
    assert not set(digests(*range(64))) & set(digests_of(range(64), SALT, b"another key"))


def test_the_next_turn_of_a_chat_finds_the_turns_before_it() -> None:
    known = held(digests(*range(5 * BLOCK)))
    assert known.count(digests(*range(8 * BLOCK))) == 5 * BLOCK


def test_a_text_takes_the_place_of_the_one_that_it_continues() -> None:
    known = held(digests(*range(2 * BLOCK)), digests(*range(4 * BLOCK)))
    assert len(known) == 1 and known.count(digests(*range(4 * BLOCK))) == 4 * BLOCK


def test_as_many_texts_are_held_as_there_are_sessions_and_the_oldest_goes() -> None:
    texts = [digests(*range(n, n + 2 * BLOCK)) for n in (0, 1000, 2000)]
    known = held(*texts, session_count=2)
    assert [known.count(text) for text in texts] == [0, 2 * BLOCK, 2 * BLOCK]


def test_a_text_that_was_used_again_goes_last() -> None:
    texts = [digests(*range(n, n + 2 * BLOCK)) for n in (0, 1000, 2000)]
    known = held(texts[0], texts[1], texts[0], texts[2], session_count=2)
    assert [known.count(text) for text in texts] == [2 * BLOCK, 0, 2 * BLOCK]


def test_a_prefix_of_a_held_text_uses_that_text() -> None:
    long, other, third = (digests(*range(n, n + 4 * BLOCK)) for n in (0, 1000, 2000))
    known = held(long, other, long[:2], third, session_count=2)
    assert len(known) == 2 and known.count(long) == 4 * BLOCK and known.count(other) == 0


def test_a_prefix_that_two_texts_share_is_held_until_both_are_gone() -> None:
    shared = list(range(2 * BLOCK))
    one, two = (digests(*shared, *range(n, n + BLOCK)) for n in (1000, 2000))
    known = held(one, two, digests(*range(3000, 3000 + BLOCK)), session_count=2)
    assert known.count(one) == 2 * BLOCK and known.count(two) == 3 * BLOCK


def test_what_a_service_says_that_it_did_not_hold_is_forgotten() -> None:
    text = digests(*range(6 * BLOCK))
    known = held(text)
    known.correct(text, 5 * BLOCK + 3)  # all but the last tokens: nothing is missing
    assert known.count(text) == 6 * BLOCK
    known.correct(text, 2 * BLOCK)
    assert known.count(text) == 0


def test_nothing_is_held_after_a_restart() -> None:
    text = digests(*range(64))
    known = held(text)
    known.clear()
    assert len(known) == 0 and known.count(text) == 0
