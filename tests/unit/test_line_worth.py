"""How many tokens of a line are verified, by what they add and what their decode takes."""

from __future__ import annotations

import math
import operator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.line_worth import HOPELESS, best_of_line, is_better_stopped


def seconds(drafted: int) -> float:
    """Return the time of a round of a target whose rows cost a tenth of its decode each."""
    return 0.010 + 0.001 * drafted


def test_a_line_is_verified_as_far_as_a_token_adds_more_than_its_row_takes() -> None:
    count, worth = best_of_line([0.9, 0.9, 0.05, 0.05], 0, 100.0, 100.0, seconds)
    assert count == 2
    assert worth == pytest.approx(1 + 0.9 + 0.81 - 100.0 * 0.012)


def test_fewer_tokens_pay_where_more_are_made_anyway() -> None:
    chances = [0.9, 0.9, 0.4, 0.4]
    slow, fast = (best_of_line(chances, 0, rate, rate, seconds)[0] for rate in (100.0, 200.0))
    assert fast < slow


def test_a_line_is_verified_at_once_where_decodes_of_its_parts_take_more() -> None:
    assert best_of_line([0.9999] * 59, 0, 100.0, 100.0, seconds)[0] == 59


@given(
    chances=st.lists(st.floats(0.5, 0.999), min_size=1, max_size=24),
    steps=st.lists(st.sampled_from([0.0, 0.0, 0.05, 0.2, 0.5]), min_size=24, max_size=24),
    faster=st.floats(1.0, 2.0),
)
def test_no_other_number_adds_more_in_a_round(
    chances: list[float], steps: list[float], faster: float
) -> None:
    # In units of a plain decode; a further row takes the next of the steps.
    times = [1.0, *(1.0 + each for each in accumulate(steps))]
    survivals = [each for each in accumulate(chances, operator.mul) if each >= HOPELESS]
    worths = [
        1.0 + sum(survivals[:count]) - faster * times[count]
        for count in range(1, len(survivals) + 1)
    ]
    count, worth = best_of_line(chances, 0, faster, faster, times.__getitem__)
    assert worth == pytest.approx(max(worths)) == pytest.approx(worths[count - 1])


def test_nothing_is_verified_where_less_than_the_least_number_is_likely() -> None:
    assert best_of_line([0.5, 0.01, 0.5], 2, 100.0, 100.0, seconds) == (0, -math.inf)
    assert best_of_line([], 0, 100.0, 100.0, seconds) == (0, -math.inf)


def test_a_target_is_stopped_for_a_line_that_is_wrong_and_not_for_one_that_is_right() -> None:
    times = {"decode": 0.020, "plain": 0.018, "gap": 0.0005, "beside": 0.002}
    assert is_better_stopped([0.3] * 4, **times)
    assert not is_better_stopped([1.0] * 4, **times)


def test_a_target_that_is_far_away_is_not_stopped() -> None:
    assert not is_better_stopped([0.3] * 4, decode=0.020, plain=0.018, gap=0.0005, beside=0.2)
