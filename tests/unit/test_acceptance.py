"""How much of a draft stands, and what follows it, told in small cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from orchestrator.core.acceptance import DraftToken, Uniform, Verdict, match, rejection
from outrider.distribution import Distribution, certain
from outrider.noise import Purpose


def row(weights: Mapping[int, float]) -> Distribution:
    return Distribution(np.array(list(weights), np.int32), np.array(list(weights.values()), float))


def surely(*token_ids: int) -> list[DraftToken]:
    """Return a draft of a drafter that had no doubt."""
    return [DraftToken(token_id, certain(token_id)) for token_id in token_ids]


def always(number: float) -> Uniform:
    return lambda purpose, i: number


def coin_and_draw(coin: float, draw: float) -> Uniform:
    return lambda purpose, i: coin if purpose is Purpose.ACCEPT else draw


class Asked:
    """Answers every question with one number and keeps the questions."""

    def __init__(self, number: float) -> None:
        self.number = number
        self.questions: list[tuple[Purpose, int]] = []

    def __call__(self, purpose: Purpose, i: int) -> float:
        self.questions.append((purpose, i))
        return self.number


# match


def test_a_fully_matched_draft_adds_a_bonus_token() -> None:
    assert match([4, 8], [4, 8, 1]) == Verdict(2, 1)


def test_the_first_sample_that_differs_follows_the_accepted_tokens() -> None:
    assert match([4, 8, 3], [4, 7, 3, 1]) == Verdict(1, 7)


def test_nothing_after_the_first_difference_is_accepted() -> None:
    assert match([5, 8, 3], [4, 8, 3, 1]) == Verdict(0, 4)


def test_without_a_draft_the_sample_is_the_next_token() -> None:
    assert match([], [4]) == Verdict(0, 4)


@pytest.mark.parametrize("samples", [[], [4], [4, 8], [4, 8, 1, 2]])
def test_match_refuses_a_wrong_number_of_samples(samples: Sequence[int]) -> None:
    with pytest.raises((ValueError, IndexError)):
        match([4, 8], samples)


# rejection


def test_full_acceptance_adds_a_bonus_token() -> None:
    assert rejection(surely(4, 8), [certain(4), certain(8), certain(1)], always(0.9)) == Verdict(
        2, 1
    )


def test_without_a_draft_the_target_draws_the_next_token() -> None:
    target = row({4: 1, 8: 3})
    assert rejection([], [target], always(0.2)) == Verdict(0, 4)
    assert rejection([], [target], always(0.3)) == Verdict(0, 8)


def test_a_token_the_target_likes_at_least_as_much_is_always_accepted() -> None:
    draft = [DraftToken(4, row({4: 1, 8: 3}))]
    for p in (row({4: 1, 8: 3}), row({8: 1, 4: 1}), certain(4)):
        assert rejection(draft, [p, certain(1)], always(1 - 2**-53)) == Verdict(1, 1)


def test_the_coin_decides_at_p_over_q() -> None:
    draft, targets = [DraftToken(4, row({4: 3, 8: 1}))], [row({8: 5, 4: 3}), certain(1)]
    assert rejection(draft, targets, always(0.5 - 1e-12)) == Verdict(1, 1)
    assert rejection(draft, targets, always(0.5)) == Verdict(0, 8)


def test_a_token_the_target_forbids_is_never_accepted() -> None:
    draft = [DraftToken(4, row({4: 1, 8: 1}))]
    for p in (row({8: 1, 9: 1}), row({4: 0, 8: 1, 9: 1})):
        assert rejection(draft, [p, certain(1)], always(2**-54)) == Verdict(0, 9)


def test_after_a_rejection_only_what_p_has_more_than_q_can_follow() -> None:
    draft = [DraftToken(4, row({4: 6, 8: 2, 9: 2}))]
    targets = [row({9: 4, 4: 3, 8: 3}), certain(1)]
    drawn = [rejection(draft, targets, coin_and_draw(0.9, u)).next_token_id for u in (0.6, 0.7)]
    assert drawn == [9, 8]


def test_nothing_after_the_first_rejection_is_accepted() -> None:
    targets = [certain(5), certain(8), certain(3), certain(1)]
    assert rejection(surely(4, 8, 3), targets, always(0.5)) == Verdict(0, 5)


def test_a_rejection_in_the_middle_keeps_what_came_before() -> None:
    targets = [certain(4), certain(7), certain(3), certain(1)]
    assert rejection(surely(4, 8, 3), targets, always(0.5)) == Verdict(1, 7)


def test_a_certain_target_turns_rejection_into_match() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        draft = rng.integers(0, 2, 4).tolist()
        samples = rng.integers(0, 2, 5).tolist()
        tokens = [DraftToken(i, row({0: 1, 1: 2})) for i in draft]
        ruled = rejection(tokens, [certain(i) for i in samples], always(rng.random()))
        assert ruled == match(draft, samples)


def test_rows_are_aligned_by_id_and_not_by_place() -> None:
    draft = [DraftToken(9, row({2: 1, 9: 4}))]
    targets = [row({9: 1, 7: 3, 2: 1}), certain(1)]
    assert rejection(draft, targets, coin_and_draw(0.2, 0.5)) == Verdict(1, 1)
    assert rejection(draft, targets, coin_and_draw(0.3, 0.0001)) == Verdict(0, 7)
    assert rejection(draft, targets, coin_and_draw(0.3, 0.9999)) == Verdict(0, 7)


def test_each_accepted_token_costs_one_coin_and_the_bonus_one_draw() -> None:
    u = Asked(0.5)
    rejection(surely(4, 8), [certain(4), certain(8), certain(1)], u)
    assert u.questions == [(Purpose.ACCEPT, 0), (Purpose.ACCEPT, 1), (Purpose.NEXT, 2)]


def test_a_rejection_draws_with_a_number_of_its_own_and_asks_no_more() -> None:
    u = Asked(0.5)
    rejection(surely(4, 8, 3), [certain(4), certain(7), certain(3), certain(1)], u)
    assert u.questions == [(Purpose.ACCEPT, 0), (Purpose.ACCEPT, 1), (Purpose.NEXT, 1)]


@pytest.mark.parametrize("row_count", [1, 2, 4])
def test_rejection_refuses_a_wrong_number_of_target_rows(row_count: int) -> None:
    targets = [certain(4), certain(8), certain(1), certain(1)][:row_count]
    with pytest.raises(ValueError):
        rejection(surely(4, 8), targets, always(0.5))
