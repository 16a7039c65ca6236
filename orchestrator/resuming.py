"""What was reported of a generation before it was interrupted, and how it continues. Pure.

Committed tokens are the truth: they are enough to continue the text, if all else was lost. So a
generation is continued after the last token that was reported, and nothing that a client has seen
is written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from outrider.errors import InvalidRequest, PeerUnavailable
from outrider.messages import FinishReason, Origin
from outrider.request import Request
from outrider.response import Delta, Event, Finished, Started


@dataclass(slots=True)
class Reported:
    """What was reported of one completion."""

    token_ids: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    has_rest: bool = False  # the text that is held back until the end, too
    is_finished: bool = False

    def add(self, event: Delta | Finished) -> None:
        """Take in what was reported next."""
        if isinstance(event, Finished):
            self.is_finished = True
            return
        self.token_ids += event.token_ids
        self.origins += event.origins
        if event.pieces and not event.token_ids:
            self.has_rest = True

    def reason(self, end_token_ids: Iterable[int], stopped_by: str) -> FinishReason | None:
        """Return why the text ends after what was reported, apart from the limit; None: it doesn't.

        `stopped_by` is the stop sequence that is complete by then.
        """
        if stopped_by:
            return FinishReason.STOP_SEQUENCE
        if self.token_ids and self.token_ids[-1] in end_token_ids:
            return FinishReason.END_OF_TEXT
        return None


NOTHING_REPORTED: Mapping[int, Reported] = {}


def reported_of(events: Iterable[Event]) -> dict[int, Reported]:
    """Return what was reported of each completion, by its number."""
    reported: dict[int, Reported] = {}
    for event in events:
        if not isinstance(event, Started):
            reported.setdefault(event.choice, Reported()).add(event)
    return reported


def repeatable(request: Request, started: Started) -> Request:
    """Return a request that asks for the same text of the same model again, but for its prompt."""
    # Log probabilities of the prompt were reported before the first token.
    return replace(request, seed=started.seed, model=started.model, prompt_logprobs=False)


def check_prompt(before: Started, now: Started) -> None:
    """Raise InvalidRequest if a prompt is read as other tokens than before."""
    if before.prompt_token_ids != now.prompt_token_ids:
        raise InvalidRequest(
            "prompt", "is other tokens than before the restart: the target reads it differently"
        )


class WrittenOtherwise(PeerUnavailable):
    """A text that is written once more is another one than was reported of it."""


MOST_REPEATS = 4
"""Times that a text is written once more for that, before its caller gets to know."""


class Repeated:
    """Follows a text that is written once more, and lets through what was not reported yet."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._left = list(reversed(token_ids))  # of what was reported, the next one last

    def pass_over(self, token_ids: Sequence[int]) -> int:
        """Return how many of the tokens that come next were reported.

        Raises WrittenOtherwise where they are others.
        """
        count = 0
        while self._left and count < len(token_ids):
            if self._left.pop() != token_ids[count]:
                its = "the target writes its beginning otherwise than before the restart"
                raise WrittenOtherwise(f"the text cannot be continued: {its}; ask for it anew")
            count += 1
        return count
