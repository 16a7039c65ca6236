"""A draft that loses time is left alone for a while, and a good one's bad luck is not held against
it."""

from __future__ import annotations

import random

from orchestrator.core.gains import Gain

PLAIN = 0.02


def write(gain: Gain, rounds: int, committed: int, times: float) -> int:
    """Note rounds of so many tokens, each token taking `times` a plain one; return how many.

    It ends where the draft rests.
    """
    for done in range(rounds):
        if gain.is_resting:
            return done
        gain.note_rounds(committed, times * committed * PLAIN, PLAIN)
    return rounds


def rest(gain: Gain) -> int:
    """Decode plainly until the draft may be used again; return how often."""
    count = 0
    while gain.is_resting:
        gain.note_unused(1)
        count += 1
    return count


def test_a_losing_draft_rests_once_twelve_tokens_are_lost() -> None:
    gain = Gain()
    assert write(gain, 100, 1, 1.5) == 24
    assert gain.is_resting


def test_each_rest_is_longer_until_the_draft_has_gained_as_much() -> None:
    gain = Gain()
    rests = []
    for _ in range(4):
        write(gain, 100, 2, 1.5)
        rests.append(rest(gain))
    assert rests == [64, 256, 1024, 1024]
    write(gain, 100, 2, 0.5)
    write(gain, 100, 2, 1.5)
    assert rest(gain) == 64


def test_one_slow_round_says_more_of_the_machine_than_of_the_draft() -> None:
    gain = Gain()
    gain.note_rounds(3, 100.0, PLAIN)
    assert not gain.is_resting
    gain.note_rounds(3, 100.0, PLAIN)
    assert gain.is_resting


def test_what_came_with_no_tokens_says_nothing_and_what_is_unused_rests_no_less() -> None:
    gain = Gain()
    gain.note_rounds(0, 100.0, PLAIN)
    gain.note_unused(5)
    assert write(gain, 100, 1, 1.5) == 24
    gain.note_rounds(1, 0.0, PLAIN)  # of another generation, in flight meanwhile
    assert rest(gain) == 64


def test_a_good_draft_seldom_rests_for_bad_luck() -> None:
    """1.3 times the target's rate with three draft tokens a round, each accepted with .7: of 200
    texts of 512 tokens none rests with this seed."""
    dice, rested = random.Random(1), 0
    for _ in range(200):
        gain, tokens = Gain(), 0
        while tokens < 512 and not gain.is_resting:
            accepted = next((i for i in range(3) if dice.random() > 0.7), 3)
            gain.note_rounds(accepted + 1, 2.53 / 1.3 * PLAIN, PLAIN)
            tokens += accepted + 1
        rested += gain.is_resting
    assert rested == 0
