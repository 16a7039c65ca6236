"""What is learned of one length of short matches holds for the others."""

from __future__ import annotations

import random

import pytest

from orchestrator.core.estimates import Acceptance
from orchestrator.core.short_matches import ShortMatches

USUAL = (0.1, 0.3, 0.5, 0.7)


def test_the_usual_chances_hold_where_nothing_was_seen() -> None:
    assert [ShortMatches(USUAL).chance(i) for i in range(4)] == pytest.approx(USUAL)


def test_one_copied_stretch_raises_the_chances_of_all_lengths() -> None:
    known = ShortMatches(USUAL)
    for i in (1, 2, 3):
        known.note(i, stood=True)
    chances = [known.chance(i) for i in range(4)]
    assert all(chance > usual for chance, usual in zip(chances, USUAL, strict=True))
    assert chances == sorted(chances)
    assert chances[1] > 0.5


def test_misses_lower_them_and_neither_goes_far() -> None:
    known = ShortMatches(USUAL)
    for _ in range(1000):
        known.note(2, stood=False)
    assert known.chance(2) < 0.03
    assert known.chance(3) == pytest.approx(0.34, abs=0.01)  # 4.5 times less likely, no less
    for _ in range(1000):
        known.note(2, stood=True)
    assert known.chance(1) == pytest.approx(0.66, abs=0.01)


def test_the_next_text_begins_half_as_far_from_the_usual() -> None:
    known = ShortMatches(USUAL)
    for _ in range(1000):
        known.note(3, stood=True)
    following = known.for_next_text()
    assert USUAL[2] < following.chance(2) < known.chance(2)


def test_what_is_seen_of_a_length_outweighs_the_others() -> None:
    dice, known = random.Random(1), ShortMatches(USUAL)
    for _ in range(2000):
        known.note(0, dice.random() < 0.1)
        known.note(3, dice.random() < 0.95)
    assert known.chance(0) < 0.25
    assert known.chance(3) > 0.85


def test_only_sources_that_go_by_matches_have_them_and_only_for_short_ones() -> None:
    by_matches, honest = Acceptance.trusting(True), Acceptance.trusting(False)
    for session in (by_matches, honest):
        before = [session.chance(each) for each in (130, 230)]
        for _ in range(5):
            session.note([100], 1)
        after = [session.chance(each) for each in (130, 230)]
        assert (after[0] > 1.5 * before[0]) == (session is by_matches)
        assert after[1] < 1.2 * before[1]
    assert Acceptance(by_matches).chance(130) > Acceptance.trusting(True).chance(130)
