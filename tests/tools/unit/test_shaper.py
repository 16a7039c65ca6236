"""When a lane lets each packet go, to the nanosecond."""

from __future__ import annotations

import random
from typing import Any

import pytest

from outrider_bench.shaper import Lane, Shape

MS = 1_000_000
CERTAIN = 0.5
"""A number for a packet that is not lost at the losses used here, and for no jitter."""


def lane(*numbers: float, **shape: Any) -> Lane:
    """Return a lane that draws these numbers, two for each packet, and then the middle."""
    drawn = iter(numbers)
    return Lane(Shape(**shape), lambda: next(drawn, CERTAIN))


def push(lane: Lane, *packets: bytes, at: int = 0) -> None:
    for packet in packets:
        lane.push(at, packet)


def departures(lane: Lane) -> list[tuple[int, bytes]]:
    """Empty the lane."""
    left = []
    while (due := lane.next_due) is not None:
        left += [(due, packet) for packet in lane.pop_due(due)]
    return left


def kilobytes(*names: str) -> list[bytes]:
    """Return packets that take a millisecond each at 8 Mbit/s."""
    return [name.encode() * 1000 for name in names]


def test_a_packet_leaves_at_once_without_a_delay() -> None:
    link = lane()
    assert link.next_due is None
    push(link, b"a", b"b", at=7 * MS)
    assert link.pop_due(7 * MS) == [b"a", b"b"]
    assert link.next_due is None


def test_a_packet_leaves_after_the_delay_and_not_before() -> None:
    link = lane(delay_ms=2.5)
    push(link, b"a", at=MS)
    assert link.next_due == 3_500_000
    assert link.pop_due(3_499_999) == []
    assert link.pop_due(3_500_000) == [b"a"]


def test_a_packet_occupies_the_line_for_its_bits() -> None:
    first, second, third = kilobytes("a", "b", "c")
    link = lane(rate_mbit=8.0, delay_ms=10.0)
    push(link, first, second)
    push(link, third, at=5 * MS)  # the line has been free for 3 ms
    assert departures(link) == [(11 * MS, first), (12 * MS, second), (16 * MS, third)]


def test_what_the_queue_cannot_hold_is_dropped() -> None:
    first, second, third, fourth, fifth = kilobytes("a", "b", "c", "d", "e")
    link = lane(rate_mbit=8.0, queue_bytes=3000)
    push(link, first, second, third, fourth)
    push(link, fifth, at=MS)  # the first has left the line
    assert [packet for _, packet in departures(link)] == [first, second, third, fifth]


def test_jitter_is_uniform_around_the_delay() -> None:
    link = lane(CERTAIN, 0.0, CERTAIN, 0.75, delay_ms=10.0, jitter_ms=2.0)
    push(link, b"earliest", b"late")
    assert departures(link) == [(8 * MS, b"earliest"), (11 * MS, b"late")]


def test_jitter_never_makes_a_packet_leave_before_it_came() -> None:
    link = lane(CERTAIN, 0.0, delay_ms=1.0, jitter_ms=2.0)
    push(link, b"a", at=5 * MS)
    assert link.next_due == 5 * MS


def test_packets_keep_their_order_under_jitter() -> None:
    link = lane(CERTAIN, 0.75, CERTAIN, 0.0, delay_ms=10.0, jitter_ms=2.0)
    push(link, b"slow", b"fast")
    assert departures(link) == [(11 * MS, b"slow"), (11 * MS, b"fast")]


def test_packets_overtake_where_the_shape_says_so() -> None:
    link = lane(CERTAIN, 0.75, CERTAIN, 0.0, delay_ms=10.0, jitter_ms=2.0, may_reorder=True)
    push(link, b"slow", b"fast")
    assert departures(link) == [(8 * MS, b"fast"), (11 * MS, b"slow")]


def test_a_packet_is_lost_if_its_number_is_below_the_loss() -> None:
    link = lane(0.2, CERTAIN, 0.3, CERTAIN, loss=0.3)
    push(link, b"lost", b"kept")
    assert link.pop_due(0) == [b"kept"]


def test_without_loss_nothing_is_lost_and_with_all_of_it_everything() -> None:
    whole, none = lane(0.0), lane(0.999999, loss=1.0)
    push(whole, b"a")
    push(none, b"a")
    assert (whole.next_due, none.next_due) == (0, None)


def test_a_lost_packet_takes_no_time_on_the_line() -> None:
    lost, kept = kilobytes("a", "b")
    link = lane(0.0, CERTAIN, loss=0.1, rate_mbit=8.0)
    push(link, lost, kept)
    assert departures(link) == [(MS, kept)]


def test_the_same_packets_are_lost_whatever_else_happens_to_them() -> None:
    plain = Lane(Shape(loss=0.3), random.Random(1).random)
    slow = Lane(Shape(loss=0.3, delay_ms=5, jitter_ms=5, rate_mbit=1), random.Random(1).random)
    packets = [bytes([number]) for number in range(200)]
    push(plain, *packets)
    push(slow, *packets)
    kept = [packet for _, packet in departures(plain)]
    assert 0 < len(kept) < 200
    assert kept == [packet for _, packet in departures(slow)]


def test_a_shorter_delay_is_for_the_packets_on_their_way_too() -> None:
    link = lane(delay_ms=100.0)
    push(link, b"a")
    push(link, b"b", at=90 * MS)
    link.reshape(Shape(delay_ms=20.0))
    push(link, b"c", at=91 * MS)
    assert departures(link) == [(20 * MS, b"a"), (110 * MS, b"b"), (111 * MS, b"c")]


def test_a_longer_delay_keeps_back_the_packets_on_their_way() -> None:
    link = lane(delay_ms=10.0)
    push(link, b"a")
    link.reshape(Shape(delay_ms=50.0))
    assert link.next_due == 50 * MS


def test_a_faster_line_sends_on_what_waited_for_the_slow_one() -> None:
    first, second = kilobytes("a", "b")
    link = lane(rate_mbit=0.008)  # a second for each
    push(link, first, second)
    assert link.next_due == 1000 * MS
    link.reshape(Shape(rate_mbit=8.0))
    assert departures(link) == [(MS, first), (2 * MS, second)]


def test_a_new_loss_is_for_new_packets_only() -> None:
    link = lane(delay_ms=10.0)
    push(link, b"on its way")
    link.reshape(Shape(delay_ms=10.0, loss=1.0))
    push(link, b"new", at=MS)
    assert departures(link) == [(10 * MS, b"on its way")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay_ms": -1.0},
        {"jitter_ms": -1.0},
        {"loss": 1.1},
        {"loss": -0.1},
        {"rate_mbit": 0.0},
        {"queue_bytes": 1000},
    ],
)
def test_a_shape_that_no_link_has_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Shape(**wrong)
