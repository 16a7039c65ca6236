"""A sampler with a state follows the text, also where the text is taken back."""

from __future__ import annotations

from outrider.distribution import Distribution, certain
from outrider.engine.model import Row
from outrider.engine.sampler_state import SamplerTracker


class Remembering:
    """A sampler whose state is all that it accepted, and whether that was the prompt's."""

    has_state = True
    mirostat_mu = None

    def __init__(self, accepted: list[tuple[int, bool]] | None = None) -> None:
        self.accepted = accepted or []

    def distribution(self, row: Row) -> Distribution:
        return certain(0)

    def accept(self, token_id: int, is_prompt: bool = False) -> None:
        self.accepted.append((token_id, is_prompt))

    def clone(self) -> Remembering:
        return Remembering(list(self.accepted))


def state(tracker: SamplerTracker, text: list[int], settled_count: int) -> list[tuple[int, bool]]:
    sampler = tracker.at(text, settled_count)
    assert isinstance(sampler, Remembering)
    return sampler.accepted


def test_the_state_is_that_of_the_text_whatever_it_was_before() -> None:
    tracker = SamplerTracker(Remembering(), 1)
    for text in ([1, 2, 3], [1, 2, 3, 4], [1, 9], [1, 9, 3], [1], [7, 8]):
        assert state(tracker, text, len(text)) == [(text[0], True), *((i, False) for i in text[1:])]


def test_what_is_guessed_ahead_stays_out_of_the_settled_state() -> None:
    tracker = SamplerTracker(Remembering(), 0)
    for ahead in ([3, 4], [3, 4, 5], [6]):
        guessed = [1, 2, *ahead]
        assert state(tracker, guessed, 2) == [(i, False) for i in guessed]
    assert state(tracker, [1, 2], 2) == [(1, False), (2, False)]
