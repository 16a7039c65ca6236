"""How much of a draft stands, and what follows it, told in small cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from outrider.core.acceptance import (
    DraftToken,
    Uniform,
    Verdict,
    block_verification,
    match,
    prefix_shares,
    token_verification,
)
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
    """Passes every question on and keeps it."""

    def __init__(self, answer: Uniform) -> None:
        self.answer = answer
        self.questions: list[tuple[Purpose, int]] = []

    def __call__(self, purpose: Purpose, i: int) -> float:
        self.questions.append((purpose, i))
        return self.answer(purpose, i)


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


# token verification


def test_full_acceptance_adds_a_bonus_token() -> None:
    assert token_verification(
        surely(4, 8), [certain(4), certain(8), certain(1)], always(0.9)
    ) == Verdict(2, 1)


def test_without_a_draft_the_target_draws_the_next_token() -> None:
    target = row({4: 1, 8: 3})
    assert token_verification([], [target], always(0.2)) == Verdict(0, 4)
    assert token_verification([], [target], always(0.3)) == Verdict(0, 8)


def test_a_token_the_target_likes_at_least_as_much_is_always_accepted() -> None:
    draft = [DraftToken(4, row({4: 1, 8: 3}))]
    for p in (row({4: 1, 8: 3}), row({8: 1, 4: 1}), certain(4)):
        assert token_verification(draft, [p, certain(1)], always(1 - 2**-53)) == Verdict(1, 1)


def test_the_coin_decides_at_p_over_q() -> None:
    draft, targets = [DraftToken(4, row({4: 3, 8: 1}))], [row({8: 5, 4: 3}), certain(1)]
    assert token_verification(draft, targets, always(0.5 - 1e-12)) == Verdict(1, 1)
    assert token_verification(draft, targets, always(0.5)) == Verdict(0, 8)


def test_a_token_the_target_forbids_is_never_accepted() -> None:
    draft = [DraftToken(4, row({4: 1, 8: 1}))]
    for p in (row({8: 1, 9: 1}), row({4: 0, 8: 1, 9: 1})):
        assert token_verification(draft, [p, certain(1)], always(2**-54)) == Verdict(0, 9)


def test_after_a_rejection_only_what_p_has_more_than_q_can_follow() -> None:
    draft = [DraftToken(4, row({4: 6, 8: 2, 9: 2}))]
    targets = [row({9: 4, 4: 3, 8: 3}), certain(1)]
    drawn = [
        token_verification(draft, targets, coin_and_draw(0.9, u)).next_token_id for u in (0.6, 0.7)
    ]
    assert drawn == [9, 8]


def test_nothing_after_the_first_rejection_is_accepted() -> None:
    targets = [certain(5), certain(8), certain(3), certain(1)]
    assert token_verification(surely(4, 8, 3), targets, always(0.5)) == Verdict(0, 5)


def test_a_rejection_in_the_middle_keeps_what_came_before() -> None:
    targets = [certain(4), certain(7), certain(3), certain(1)]
    assert token_verification(surely(4, 8, 3), targets, always(0.5)) == Verdict(1, 7)


def test_a_certain_target_turns_rejection_into_match() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        draft = rng.integers(0, 2, 4).tolist()
        samples = rng.integers(0, 2, 5).tolist()
        tokens = [DraftToken(i, row({0: 1, 1: 2})) for i in draft]
        ruled = token_verification(tokens, [certain(i) for i in samples], always(rng.random()))
        assert ruled == match(draft, samples)


def test_rows_are_aligned_by_id_and_not_by_place() -> None:
    draft = [DraftToken(9, row({2: 1, 9: 4}))]
    targets = [row({9: 1, 7: 3, 2: 1}), certain(1)]
    assert token_verification(draft, targets, coin_and_draw(0.2, 0.5)) == Verdict(1, 1)
    assert token_verification(draft, targets, coin_and_draw(0.3, 0.0001)) == Verdict(0, 7)
    assert token_verification(draft, targets, coin_and_draw(0.3, 0.9999)) == Verdict(0, 7)


def test_each_accepted_token_costs_one_coin_and_the_bonus_one_draw() -> None:
    u = Asked(always(0.5))
    token_verification(surely(4, 8), [certain(4), certain(8), certain(1)], u)
    assert u.questions == [(Purpose.ACCEPT, 0), (Purpose.ACCEPT, 1), (Purpose.NEXT, 2)]


def test_a_rejection_draws_with_a_number_of_its_own_and_asks_no_more() -> None:
    u = Asked(always(0.5))
    token_verification(surely(4, 8, 3), [certain(4), certain(7), certain(3), certain(1)], u)
    assert u.questions == [(Purpose.ACCEPT, 0), (Purpose.ACCEPT, 1), (Purpose.NEXT, 1)]


@pytest.mark.parametrize("row_count", [1, 2, 4])
def test_rejection_refuses_a_wrong_number_of_target_rows(row_count: int) -> None:
    targets = [certain(4), certain(8), certain(1), certain(1)][:row_count]
    with pytest.raises(ValueError):
        token_verification(surely(4, 8), targets, always(0.5))


# block verification


HALF = row({4: 1, 8: 1})


def coins(*numbers: float, draw: float = 0.5) -> Uniform:
    """Return the numbers as the coins of the draft's tokens."""
    return lambda purpose, i: numbers[i] if purpose is Purpose.ACCEPT else draw


def test_a_share_multiplies_p_over_q_and_never_exceeds_1_on_the_way() -> None:
    draft = [DraftToken(4, HALF)] * 4
    targets = [row({4: w, 8: 8 - w}) for w in (2, 6, 7, 2)]
    assert prefix_shares(draft, [*targets, certain(1)]) == [1.0, 0.5, 0.75, 1.0, 0.5]


def test_a_token_that_p_likes_more_makes_up_for_one_that_it_likes_less() -> None:
    draft = [DraftToken(4, HALF)] * 2
    targets = [row({4: 1, 8: 3}), row({4: 1}), certain(1)]  # shares .5 and 1
    assert block_verification(draft, targets, coins(0.9, 0.9)) == Verdict(2, 1)
    assert token_verification(draft, targets, coins(0.9, 0.9)) == Verdict(0, 8)


def test_the_coin_of_a_longer_prefix_goes_before_that_of_a_shorter_one() -> None:
    draft = [DraftToken(4, HALF)] * 2
    targets = [row({4: 3, 8: 5}), HALF, certain(1)]  # shares .75 and .75
    assert block_verification(draft, targets, coins(1 - 1e-9, 0.75 - 1e-9)) == Verdict(2, 1)
    assert block_verification(draft, targets, coins(1e-9, 0.75)) == Verdict(0, 8)


def test_the_coin_of_a_prefix_turns_at_what_is_left_for_it() -> None:
    draft = [DraftToken(4, HALF)] * 2
    targets = [row({4: 3, 8: 5}), row({4: 1, 8: 7}), certain(1)]
    # Of .75 p, 8 has .65625 and q has .5; .15625 / (.15625 + .25) is 5 / 13.
    assert block_verification(draft, targets, coins(5 / 13 - 1e-9, 0.9)) == Verdict(1, 8)
    assert block_verification(draft, targets, coins(5 / 13 + 1e-9, 0.9)) == Verdict(0, 8)


def test_a_prefix_of_share_1_stands_whatever_the_coin() -> None:
    for other in (HALF, row({4: 1, 8: 1 + 1e-15}), row({4: 1e-9, 8: 1})):
        draft, targets = [DraftToken(4, HALF)] * 2, [certain(4), other, certain(1)]
        verdict = block_verification(draft, targets, coins(1 - 2**-53, 1 - 2**-53))
        assert verdict.accepted_count >= 1


def test_what_follows_a_prefix_is_what_its_share_of_p_has_more_than_q() -> None:
    q = row({4: 4, 8: 3, 9: 3})
    draft, targets = [DraftToken(4, HALF), DraftToken(4, q)], [row({4: 3, 8: 5}), HALF, certain(1)]
    # .75 p is .375 and .375: of 8 there is .075 more, though p alone has more of both.
    for drawn in (1e-9, 0.5, 1 - 1e-9):
        assert block_verification(draft, targets, coins(1e-9, 1 - 1e-9, draw=drawn)) == Verdict(
            1, 8
        )


def test_nothing_that_contains_a_forbidden_token_is_accepted() -> None:
    draft = [DraftToken(4, HALF)] * 3
    targets = [HALF, row({8: 1}), certain(4), certain(4)]
    assert prefix_shares(draft, targets) == [1.0, 1.0, 0.0, 0.0]
    assert block_verification(draft, targets, always(2**-54)) == Verdict(1, 8)


def test_a_token_that_neither_row_lists_is_not_accepted_and_divides_nothing() -> None:
    draft = [DraftToken(7, HALF)] * 2
    assert prefix_shares(draft, [HALF, HALF, certain(1)]) == [1.0, 0.0, 0.0]
    assert block_verification(draft, [HALF, HALF, certain(1)], always(2**-54)).accepted_count == 0


def test_shares_too_small_for_a_number_accept_nothing() -> None:
    draft = [DraftToken(4, row({4: 65535, 8: 1}))] * 64
    targets = [row({4: 1e-12, 8: 1.0})] * 65
    assert prefix_shares(draft, targets)[-1] == 0.0
    assert block_verification(draft, targets, always(1e-9)) == Verdict(0, 8)


def test_the_next_token_is_never_the_one_that_was_left_out() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        rows = [row(dict(enumerate(rng.gamma(0.5, size=3) + 1e-3))) for _ in range(7)]
        draft = [DraftToken(int(rng.integers(3)), q) for q in rows[:3]]
        u = coins(*rng.random(3), draw=rng.random())
        verdict = block_verification(draft, rows[3:], u)
        if verdict.accepted_count < 3:
            assert verdict.next_token_id != draft[verdict.accepted_count].token_id


def test_a_certain_target_turns_block_verification_into_match() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        draft = rng.integers(0, 2, 4).tolist()
        samples = rng.integers(0, 2, 5).tolist()
        tokens = [DraftToken(i, row({0: 1, 1: 2})) for i in draft]
        ruled = block_verification(tokens, [certain(i) for i in samples], always(rng.random()))
        assert ruled == match(draft, samples)


def test_a_block_of_one_token_is_verified_as_a_token() -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        p, q, bonus = (row(dict(enumerate(rng.gamma(0.5, size=3) + 1e-3))) for _ in range(3))
        draft, u = [DraftToken(int(rng.integers(3)), q)], coins(rng.random(), draw=rng.random())
        expected = token_verification(draft, [p, bonus], u)
        assert block_verification(draft, [p, bonus], u) == expected


def test_without_a_block_the_target_draws_and_no_coin_is_asked_for() -> None:
    u = Asked(always(0.3))
    assert block_verification([], [row({4: 1, 8: 3})], u) == Verdict(0, 8)
    assert u.questions == [(Purpose.NEXT, 0)]


@pytest.mark.parametrize(
    ("numbers", "asked"),
    [((0.9, 0.9, 0.1), [2]), ((0.9, 0.01, 0.9), [2, 1]), ((0.9, 0.9, 0.9), [2, 1, 0])],
)
def test_a_block_asks_for_the_coins_of_longer_prefixes_only(
    numbers: Sequence[float], asked: Sequence[int]
) -> None:
    u = Asked(coins(*numbers))
    targets = [row({4: 3, 8: 5}), row({4: 7, 8: 9}), row({4: 1, 8: 7}), certain(1)]
    count = block_verification([DraftToken(4, HALF)] * 3, targets, u).accepted_count
    assert u.questions == [*((Purpose.ACCEPT, i) for i in asked), (Purpose.NEXT, count)]


@pytest.mark.parametrize("row_count", [1, 2, 4])
def test_block_verification_refuses_a_wrong_number_of_target_rows(row_count: int) -> None:
    targets = [certain(4), certain(8), certain(1), certain(1)][:row_count]
    with pytest.raises(ValueError):
        block_verification(surely(4, 8), targets, always(0.5))
