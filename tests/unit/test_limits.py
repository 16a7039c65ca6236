"""The arithmetic of limits, on a clock of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InvalidRequest, LimitReached
from outrider.limits import IN_FLIGHT_RETRY, NO_LIMITS, Ledger, Meter, TokenLimits

A_MINUTE = TokenLimits(requests_per_minute=60)


def count(ledger: Ledger, now: float, limits: TokenLimits = A_MINUTE, name: str = "a") -> float:
    """Count a request; return after how many seconds to try again, 0 where it was counted."""
    try:
        ledger.count_request(name, limits, now)
    except LimitReached as refused:
        assert refused.retry_seconds > 0
        return refused.retry_seconds
    return 0.0


def test_a_minutes_requests_may_come_at_once_and_then_one_a_second():
    ledger = Ledger()
    assert [count(ledger, 100.0) for _ in range(60)] == [0.0] * 60
    assert count(ledger, 100.0) == pytest.approx(1.0)
    assert count(ledger, 100.25) == pytest.approx(0.75)
    assert count(ledger, 101.0) == 0.0
    assert count(ledger, 101.0) == pytest.approx(1.0)
    assert [count(ledger, 500.0) for _ in range(61)] == [0.0] * 60 + [pytest.approx(1.0)]


def test_one_token_uses_nothing_of_another():
    ledger = Ledger()
    for _ in range(60):
        assert count(ledger, 0.0) == 0.0
    assert count(ledger, 0.0) and count(ledger, 0.0, name="b") == 0.0


def test_a_refusal_costs_nothing():
    ledger = Ledger()
    for _ in range(60):
        count(ledger, 0.0)
    waits = {round(count(ledger, 0.5), 6) for _ in range(1000)}
    assert waits == {0.5} and count(ledger, 1.0) == 0.0


def test_generations_in_flight_make_room_when_they_end():
    ledger, limits = Ledger(), TokenLimits(generations=3)
    ledger.begin("a", limits, 2, 0.0)
    with pytest.raises(LimitReached) as refused:
        ledger.begin("a", limits, 2, 0.0)
    assert refused.value.metadata == {
        "limit": "generations",
        "maximum": "3",
        "retrySeconds": str(IN_FLIGHT_RETRY),
    }
    ledger.begin("a", limits, 1, 0.0)
    ledger.end("a", 2)
    ledger.begin("a", limits, 2, 0.0)


def test_more_than_may_ever_be_in_flight_is_no_request():
    ledger = Ledger()
    with pytest.raises(InvalidRequest, match="may have 3 generations in flight, not 4") as refused:
        ledger.begin("a", TokenLimits(generations=3), 4, 0.0)
    assert refused.value.field == "completion_count"


def test_tokens_are_paid_after_they_were_written():
    ledger, limits = Ledger(), TokenLimits(tokens_per_minute=600)
    ledger.begin("a", limits, 1, 0.0)
    ledger.spend("a", limits, 1000, 0.0)  # 400 more than there were
    ledger.end("a", 1)
    with pytest.raises(LimitReached) as refused:
        ledger.begin("a", limits, 1, 10.0)
    assert refused.value.retry_seconds == pytest.approx(40.1 - 10.0)
    ledger.begin("a", limits, 1, 40.1)


def test_a_limit_that_changes_counts_from_then_on():
    ledger, small = Ledger(), TokenLimits(requests_per_minute=6)
    for _ in range(60):
        count(ledger, 0.0)
    assert count(ledger, 0.0, small) == pytest.approx(550.0)
    assert count(ledger, 0.0, TokenLimits(requests_per_minute=61)) == 0.0
    assert count(ledger, 0.0, NO_LIMITS) == 0.0


@given(
    st.integers(1, 100), st.lists(st.floats(0.0, 90.0), min_size=1, max_size=200), st.integers(0, 9)
)
def test_no_minute_has_more_than_twice_its_limit(most: int, pauses: list[float], seed: int):
    """Those that were saved up, and those that are freed meanwhile."""
    ledger, limits, now = Ledger(), TokenLimits(requests_per_minute=most), float(seed)
    times = []
    for pause in pauses:
        now += pause if pause > 60.0 else pause / 60.0
        if count(ledger, now, limits) == 0.0:
            times.append(now)
    for begin in times:
        assert sum(begin <= each < begin + 60.0 for each in times) <= 2 * most


@given(st.integers(1, 1000), st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_who_waits_as_long_as_was_said_is_let_in(most: int, level: float, now: float):
    meter = Meter(level, now)
    wait = meter.wait_seconds(most, now)
    assert meter.wait_seconds(most, now + wait) <= 1e-3


def test_a_clock_that_goes_back_drains_nothing():
    meter = Meter(5.0, 100.0)
    assert meter.wait_seconds(1, 50.0) == meter.wait_seconds(1, 100.0) == pytest.approx(300.0)
