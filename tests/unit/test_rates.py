"""What is learned of a draft: how often it is right, how long it takes, and what it gains."""

from __future__ import annotations

import random

import pytest

from outrider.core.rates import FIRST_RETRY, LAST_RETRY, AcceptanceRate, Gain, Mean

PLAIN = 0.02
"""Seconds of a token of the target alone."""


# --- times ---


def test_a_high_estimate_of_which_nothing_is_seen_falls_back_to_the_first_one() -> None:
    mean = Mean(0.02)
    for _ in range(50):
        mean.note(0.2)
    mean.fade()
    assert 0.19 < mean.value < 0.2
    for _ in range(10 * LAST_RETRY):
        mean.fade()
    assert mean.value == pytest.approx(0.02, rel=0.1)
    mean.note(0.2)
    assert mean.value > 0.18, "what is seen then is believed at once"
    for _ in range(50):
        mean.note(0.001)
    low = mean.value
    mean.fade()
    assert mean.value == low < 0.02


# --- acceptance ---


def test_acceptance_is_what_was_seen() -> None:
    for stands in (0, 1):
        seen = AcceptanceRate()
        for i in range(400):
            seen.note([128], stands and int(i % 5 > 0))
        assert seen.mean == pytest.approx(0.8 * stands, abs=0.06)


def test_much_is_hoped_of_an_unknown_draft_for_some_tokens() -> None:
    unknown = AcceptanceRate()
    assert unknown.mean > 0.75
    for _ in range(10):
        unknown.note([128], 0)
    assert unknown.mean < 0.5
    for _ in range(40):
        unknown.note([128], 0)
    assert unknown.mean < 0.1


def test_a_good_beginning_is_not_taken_for_a_draft_that_is_always_right() -> None:
    known = AcceptanceRate()
    known.note([128] * 18, 18)
    assert 0.93 < known.mean < 0.99
    assert known.survival([], 16)[-1] < 0.8


def test_sure_tokens_are_told_from_unsure_ones() -> None:
    acceptance = AcceptanceRate()
    for _ in range(30):
        acceptance.note([250], 1)
        acceptance.note([20], 0)
    assert acceptance.chance(250) > 0.85
    assert acceptance.chance(20) < 0.15
    assert acceptance.chance(100) == pytest.approx(acceptance.mean)


def test_how_sure_tokens_are_is_known_by_how_often_they_came() -> None:
    acceptance = AcceptanceRate()
    assert acceptance.by_confidence == []
    for i in range(1000):
        acceptance.note([255 if i % 4 else 0], i % 4)
    (_, few, low), (edge, most, high) = [each for each in acceptance.by_confidence if each[1] > 0.0]
    assert few == pytest.approx(0.25, abs=0.01) and most == pytest.approx(0.75, abs=0.01)
    assert low < 0.15 and edge > 240 and high > 0.9


def test_survival_multiplies_and_goes_on_with_the_mean() -> None:
    acceptance = AcceptanceRate()
    mean = acceptance.mean
    survival = acceptance.survival([128], 3)
    assert survival == pytest.approx([mean, mean**2, mean**3])


def test_a_new_session_begins_with_what_was_learned_and_soon_trusts_itself() -> None:
    before = AcceptanceRate()
    for i in range(400):
        before.note([128], int(i % 10 > 0))
    after = AcceptanceRate(before)
    assert after.mean == pytest.approx(before.mean, abs=0.03)
    for _ in range(30):
        after.note([128], 0)
    assert after.mean < 0.35 < before.mean


def test_a_source_remembers_for_longer_than_a_copied_stretch_where_those_end() -> None:
    known = AcceptanceRate.of_source("suffix")
    for _ in range(10):
        known.note([254] * 51, 50)
    known.note([254] * 50, 50)
    assert 0.98 < known.chance(254) < 0.99  # one of 51 is wrong
    assert AcceptanceRate(known).chance(254) == pytest.approx(known.chance(254), abs=0.02)


def test_a_source_that_goes_by_matches_is_first_right_with_the_square_of_what_it_claims() -> None:
    assert AcceptanceRate.of_source("suffix").chance(204) == pytest.approx(0.64)
    assert AcceptanceRate.of_source("copy").chance(204) == pytest.approx(0.8)


def test_a_chance_becomes_what_was_seen_at_that_confidence_alone() -> None:
    known = AcceptanceRate.of_source("suffix")
    for _ in range(200):
        known.note([204], 0)
    assert known.chance(204) < 0.11
    assert known.chance(240) == AcceptanceRate.of_source("suffix").chance(240)
    for _ in range(400):
        known.note([204, 204], 2)
    assert known.chance(204) > 0.9


# --- gain ---


def write(gain: Gain, rounds: int, committed: int, times: float) -> int:
    """Note rounds of so many tokens, each token taking `times` a plain one; return how many.

    It ends where the draft rests.
    """
    for done in range(rounds):
        if gain.backs_off(1.0):
            return done
        gain.note_rounds(committed, times * committed * PLAIN, PLAIN)
    return rounds


def rest(gain: Gain) -> int:
    """Decode plainly until the draft may be used again; return how often."""
    count = 0
    while gain.backs_off(1.0):
        gain.note_unused(1)
        count += 1
    return count


def test_a_losing_draft_rests_once_twelve_tokens_are_lost() -> None:
    gain = Gain()
    assert write(gain, 100, 1, 1.5) == 24
    assert gain.backs_off(1.0)


def test_each_rest_is_longer_until_the_draft_has_gained_as_much() -> None:
    gain = Gain()
    rests = []
    for _ in range(4):
        write(gain, 100, 2, 1.5)
        rests.append(rest(gain))
    assert rests == [2 * FIRST_RETRY, 4 * FIRST_RETRY, 8 * FIRST_RETRY, 16 * FIRST_RETRY]
    write(gain, 100, 2, 0.5)
    write(gain, 100, 2, 1.5)
    assert rest(gain) == 2 * FIRST_RETRY


def test_what_many_sessions_lost_by_a_draft_says_nothing_of_fewer() -> None:
    gain = Gain()
    while not gain.backs_off(4.0):
        gain.note_rounds(1, 1.5 * PLAIN, PLAIN, sessions=4.0)
    assert gain.backs_off(8.0) and not gain.backs_off(2.0)
    while not gain.backs_off(2.0):
        gain.note_rounds(1, 1.5 * PLAIN, PLAIN, sessions=2.0)
    assert rest(gain) == 0  # of one session alone
    while gain.backs_off(8.0):
        gain.note_unused(1, 8.0)
    assert not gain.backs_off(2.0)


def test_what_one_gains_by_a_draft_lets_many_who_lost_rest_no_less() -> None:
    def rounds_of_rest(gain: Gain) -> int:
        for _ in range(30):
            gain.note_rounds(1, 2.0 * PLAIN, PLAIN, 4.0)
        for _ in range(30):  # and their sums are apart
            gain.note_rounds(2, 1.0 * PLAIN, PLAIN, 1.0)
        count = 0
        while gain.backs_off(4.0):
            gain.note_unused(4, 4.0)  # a decode, as each of four says
            count += 1
        return count

    gain = Gain()
    assert rounds_of_rest(gain) == 2 * FIRST_RETRY
    assert rounds_of_rest(gain) == 4 * FIRST_RETRY
    assert not gain.backs_off(1.0)


def test_one_slow_round_says_more_of_the_machine_than_of_the_draft() -> None:
    gain = Gain()
    gain.note_rounds(3, 100.0, PLAIN)
    assert not gain.backs_off(1.0)
    gain.note_rounds(3, 100.0, PLAIN)
    assert gain.backs_off(1.0)


def test_what_came_with_no_tokens_says_nothing_and_what_is_unused_rests_no_less() -> None:
    gain = Gain()
    gain.note_rounds(0, 100.0, PLAIN)
    gain.note_unused(5)
    assert write(gain, 100, 1, 1.5) == 24
    gain.note_rounds(1, 0.0, PLAIN)  # of another generation, in flight meanwhile
    assert rest(gain) == 2 * FIRST_RETRY


def test_a_good_draft_seldom_rests_for_bad_luck() -> None:
    """1.3 times the target's rate with three draft tokens a round, each accepted with .7: of 200
    texts of 512 tokens none rests with this seed."""
    dice, rested = random.Random(1), 0
    for _ in range(200):
        gain, tokens = Gain(), 0
        while tokens < 512 and not gain.backs_off(1.0):
            accepted = next((i for i in range(3) if dice.random() > 0.7), 3)
            gain.note_rounds(accepted + 1, 2.53 / 1.3 * PLAIN, PLAIN)
            tokens += accepted + 1
        rested += gain.backs_off(1.0)
    assert rested == 0
