"""Which targets are asked, how often and after which pause, once some of them failed."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.fail_over import FailOver, PeerFailed
from outrider.core.health import MOST_FAILURES
from outrider.errors import DecodeFailed, InvalidRequest, PeerUnavailable


class Target:
    """A target that remembers why it was ejected."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def note_failure(self, reason: str) -> None:
        self.reasons.append(reason)


def targets(count: int) -> list[Any]:
    return [Target() for _ in range(count)]


NONSENSE = PeerFailed(DecodeFailed("it sent what cannot be"), is_ejected=True)
REFUSED = PeerFailed(InvalidRequest("sampling", "refused"), is_asked_again=False)
AWAY = PeerFailed(PeerUnavailable("it is away"), is_counted=False)


def test_all_that_failed_are_asked_last_until_one_brings_something() -> None:
    one, other = targets(2)
    over = FailOver[Any]()
    for each in (one, other, one):
        over.note(each, NONSENSE)
    assert over.failed == [one, other]
    over.note_progress()
    assert over.failed == []


def test_only_what_no_target_should_do_ejects_it() -> None:
    [one] = targets(1)
    over = FailOver[Any]()
    for failed in (REFUSED, AWAY, NONSENSE):
        over.note(one, failed)
    assert one.reasons == ["it sent what cannot be"]


def test_failures_in_a_row_end_the_text_and_progress_begins_anew() -> None:
    [one] = targets(1)
    over = FailOver[Any]()
    for _ in range(2):
        for _ in range(MOST_FAILURES - 1):
            over.note(one, NONSENSE)
            assert over.pause(NONSENSE, is_another_left=False) > 0.0
        over.note_progress()
    for _ in range(MOST_FAILURES):
        over.note(one, NONSENSE)
    with pytest.raises(DecodeFailed, match="cannot be"):
        over.pause(NONSENSE, is_another_left=True)


def test_a_refusal_ends_the_text_unless_another_target_may_take_it() -> None:
    [one] = targets(1)
    over = FailOver[Any]()
    over.note(one, REFUSED)
    assert over.pause(REFUSED, is_another_left=True) > 0.0
    with pytest.raises(InvalidRequest, match="refused"):
        over.pause(REFUSED, is_another_left=False)


def test_a_target_that_is_away_is_waited_for_however_often_and_the_pauses_grow() -> None:
    [one] = targets(1)
    over, pauses = FailOver[Any](), []
    for _ in range(3 * MOST_FAILURES):
        over.note(one, AWAY)
        pauses.append(over.pause(AWAY, is_another_left=False))
    assert pauses[0] <= 0.1 and 2.5 <= pauses[-1] <= 5.0
