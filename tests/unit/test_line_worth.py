"""How many tokens of a line are verified, by what they add and what their decode takes."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.line_worth import best_count, best_part, is_better_stopped, survivals_of


def seconds(drafted: int) -> float:
    """Return the time of a round of a target whose rows cost a tenth of its decode each."""
    return 0.010 + 0.001 * drafted


def test_each_token_survives_with_those_before_it() -> None:
    assert list(survivals_of([0.5, 0.5], 0.8, 3, 0)) == pytest.approx([0.5, 0.25, 0.2])


def test_tokens_to_come_need_those_that_the_text_has_overtaken() -> None:
    known, to_come = survivals_of([0.5], 0.8, 2, unread=2)
    assert known == 0.5
    assert to_come == pytest.approx(0.5 * 0.8**2 * 0.8)


def test_the_number_that_is_worth_most_is_none_where_too_few_may_be() -> None:
    values = [0.0, 1.0, 3.0, 2.0]
    assert best_count(values, 0) == 2
    assert best_count(values, 3) == 3
    assert best_count([0.0, -1.0, -2.0], 1) == 0


def test_a_line_is_verified_as_far_as_a_token_adds_more_than_its_row_takes() -> None:
    count, worth = best_part([0.9, 0.9, 0.05, 0.05], 0, 100.0, 100.0, seconds)
    assert count == 2
    assert worth == pytest.approx(1 + 0.9 + 0.81 - 100.0 * 0.012)


def test_fewer_tokens_pay_where_more_are_made_anyway() -> None:
    chances = [0.9, 0.9, 0.4, 0.4]
    slow, fast = (best_part(chances, 0, rate, rate, seconds)[0] for rate in (100.0, 200.0))
    assert fast < slow


def test_a_line_is_verified_at_once_where_decodes_of_its_parts_take_more() -> None:
    assert best_part([0.9999] * 59, 0, 100.0, 100.0, seconds)[0] == 59


def in_tiles(drafted: int) -> float:
    """Return the time of a round of a target that computes four rows in the time of one."""
    return 0.020 * (drafted // 4 + 1)


def test_a_line_is_verified_in_parts_where_decodes_of_them_take_no_more() -> None:
    for chance in (0.6, 0.9, 0.9999):
        assert best_part([chance] * 59, 0, 60.0, 60.0, in_tiles)[0] == 3


@given(
    chances=st.lists(st.floats(0.5, 0.999), min_size=1, max_size=24),
    steps=st.lists(st.sampled_from([0.0, 0.0, 0.05, 0.2, 0.5]), min_size=24, max_size=24),
    faster=st.floats(1.0, 2.0),
)
def test_its_parts_add_nearly_what_the_best_ones_do(
    chances: list[float], steps: list[float], faster: float
) -> None:
    # In units of a plain decode; a further row takes the next of the steps.
    chances = sorted(chances, reverse=True)
    times = [1.0, *(1.0 + each for each in accumulate(steps))]
    best = _best_worth(chances, faster, times)
    chosen = _worth_of_choices(chances, faster, times)
    assert best * 0.8 - 0.1 <= chosen <= best + 1e-9


def _worth_of_choices(chances: list[float], rate: float, times: list[float]) -> float:
    """Return what a line adds if every round verifies what `best_part` says."""
    if not chances:
        return 0.0
    count, worth = best_part(chances, 0, rate, rate, times.__getitem__)
    if worth <= 0.0:
        return 0.0
    hit = math.prod(chances[: count + 1]) if count < len(chances) else 0.0
    return worth + hit * _worth_of_choices(chances[count + 1 :], rate, times)


def _best_worth(chances: list[float], rate: float, times: list[float]) -> float:
    """Return what a line adds at best, by trying every number of tokens for every round."""
    worths = [0.0] * (len(chances) + 2)  # of what is left of it from a token on
    for begin in reversed(range(len(chances))):
        survival = tokens = 1.0
        for end in range(begin, len(chances)):
            survival *= chances[end]
            tokens += survival
            hit = survival * chances[end + 1] if end + 1 < len(chances) else 0.0
            added = tokens - rate * times[end + 1 - begin] + hit * worths[end + 2]
            worths[begin] = max(worths[begin], added)
    return worths[0]


def test_nothing_is_verified_where_less_than_the_least_number_is_likely() -> None:
    assert best_part([0.5, 0.01, 0.5], 2, 100.0, 100.0, seconds) == (0, -math.inf)
    assert best_part([], 0, 100.0, 100.0, seconds) == (0, -math.inf)


def test_a_target_is_stopped_for_a_line_that_is_wrong_and_not_for_one_that_is_right() -> None:
    times = {"decode": 0.020, "plain": 0.018, "gap": 0.0005, "beside": 0.002}
    assert is_better_stopped([0.3] * 4, **times)
    assert not is_better_stopped([1.0] * 4, **times)


def test_a_target_that_is_far_away_is_not_stopped() -> None:
    assert not is_better_stopped([0.3] * 4, decode=0.020, plain=0.018, gap=0.0005, beside=0.2)
