"""How far the target is: what it holds, and the rounds that are in flight. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outrider.distribution import Distribution
from outrider.messages import Candidates, DraftEnd, Round, Span


@dataclass(slots=True)
class RoundInFlight:
    """A round that the target was asked for, or will be, and what its draft came with."""

    round: Round
    length: int  # of the text, the committed and the assumed, before its draft
    confidences: Sequence[int]  # one per draft token
    rows: Sequence[Distribution]  # one per draft token under `rejection`, else none
    candidates: Sequence[Candidates]  # one per draft token where they were asked for, else none
    draft_end: DraftEnd
    sent_time: float | None = None  # None until there is a stream to send it on
    draft_busy: bool = False  # the draft worked when it was sent

    @property
    def pending(self) -> int:
        """The token that its prefix ends with."""
        return self.round.prefix.token_ids[-1]


@dataclass(slots=True)
class TargetProgress:
    """One target, over all its streams.

    Each round in flight assumes that those before it are accepted in full, and the pending token
    of each is what the one before is assumed to add.
    """

    is_open: bool = False  # there is a stream
    held: int = (
        0  # tokens of the text it holds for sure; 0 on a new stream, below the text's length
    )
    round: int = 0  # the number of the newest round, repeats counted; it rises over all streams
    in_flight: list[RoundInFlight] = field(default_factory=list)  # oldest first
    mirostat_mu: float | None = None  # mirostat's state after the text; None is its own start

    def open(self, committed: Sequence[int]) -> None:
        """Begin with a stream; it may lead to another replica, or to an old cache."""
        self.is_open = True
        self.held = 0
        self.ask_again(committed)

    def note_missing(self, held: int, committed: Sequence[int]) -> None:
        """The oldest round found less of the text than it assumed: ask for it with more."""
        self.held = held if held < self.held else 0
        self.ask_again(committed)

    def is_oldest(self, number: int) -> bool:
        """Return whether a round is the oldest in flight; a later one that failed is forgotten."""
        numbers = [each.round.number for each in self.in_flight]
        if number in numbers[1:]:
            del self.in_flight[numbers.index(number) :]
        return numbers[:1] == [number]

    def ask_again(self, committed: Sequence[int]) -> None:
        """Ask for the oldest round anew; what was asked after it is forgotten."""
        if self.in_flight:
            oldest = self.in_flight[0]
            oldest.round = replace(
                oldest.round,
                number=self.next_number(),
                prefix=self.prefix(committed),
                is_ahead=False,
            )
            oldest.sent_time = None
            self.in_flight = [oldest]

    def next_number(self) -> int:
        """Return the number of a round that is asked now."""
        self.round += 1
        return self.round

    def prefix(self, committed: Sequence[int]) -> Span:
        """Return what the target needs of the text before it can verify what follows it."""
        return Span(self.held, committed[self.held :])

    def keep_what_follows(self, is_whole: bool, next_token_id: int) -> None:
        """Drop what is left in flight unless it assumed just what came of the oldest round."""
        if self.in_flight and not (is_whole and next_token_id == self.in_flight[0].pending):
            self.in_flight.clear()
