"""What is known of a source that was never used: its proposals, compared with the text."""

from __future__ import annotations

import random
from collections.abc import Sequence

from outrider.core.rates import AcceptanceRate
from outrider.drafters.source import NOTHING, Decided, Proposal, Scored, confidence


class Scripted:
    """Proposes what it is told to, with rising confidences."""

    def __init__(self, *proposals: Sequence[int]) -> None:
        self._proposals = list(proposals)

    def append(self, token_ids: Sequence[int]) -> None:
        pass

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        token_ids = self._proposals.pop(0)[:count]
        return Proposal(token_ids, bytes(range(10, 10 + len(token_ids))))


def test_tokens_up_to_the_first_that_did_not_stand_are_decided() -> None:
    scored = Scored(Scripted([1, 2, 3, 4]))
    scored.propose(4)
    assert scored.append([1, 2, 9, 4]) == Decided(bytes([10, 11, 12]), 2)
    assert scored.append([4]) == Decided()
    assert (scored.decided_count, scored.accepted_count) == (3, 2)


def test_what_the_text_has_not_come_to_is_decided_later() -> None:
    scored = Scored(Scripted([1, 2, 3]))
    scored.propose(4)
    assert scored.append([1]) == Decided(bytes([10]), 1)
    assert scored.append([]) == Decided()
    assert scored.append([2, 3, 4]) == Decided(bytes([11, 12]), 2)
    assert scored.append([4]) == Decided()


def test_the_newest_proposal_counts_and_each_position_once() -> None:
    scored = Scored(Scripted([1, 2, 3], [8, 9]))
    scored.propose(4)
    assert scored.append([1]) == Decided(bytes([10]), 1)
    scored.propose(4)
    assert scored.append([2, 3]) == Decided(bytes([10]), 0)


def test_a_source_that_says_nothing_has_no_open_proposal() -> None:
    scored = Scored(Scripted([1, 2], []))
    scored.propose(4)
    scored.propose(4)
    assert scored.append([1, 2]) == Decided()


def test_what_is_said_behind_another_sources_tokens_is_not_scored() -> None:
    scored = Scored(Scripted([1, 2], [7]))
    scored.propose(4)
    assert scored.propose(4, after=[1, 2]).token_ids == [7]
    assert scored.append([1, 2]) == Decided(bytes([10, 11]), 2)


def test_the_share_that_stands_is_found_without_using_any() -> None:
    """Each token stands with .7 if those before do: 3000 proposals, so 3 sigma is .025."""
    draws = random.Random(1)
    text = [0] * 3000
    scored = Scored(Scripted(*([int(draws.random() > 0.7) for _ in range(4)] for _ in text)))
    for token_id in text:
        scored.propose(4)
        scored.append([token_id])
    assert abs(scored.accepted_count / scored.decided_count - 0.7) < 0.025


def test_what_is_decided_is_what_estimates_are_made_of() -> None:
    acceptance = AcceptanceRate()
    scored = Scored(Scripted([5, 6, 7]))
    scored.propose(3)
    decided = scored.append([5, 6, 8])
    acceptance.note(decided.confidences, decided.accepted)


def test_a_confidence_is_a_byte() -> None:
    assert [confidence(chance) for chance in (-0.1, 0.0, 0.5, 1.0, 1.1)] == [0, 0, 127, 255, 255]
    assert NOTHING.token_ids == () and NOTHING.confidences == b""
