"""What a target that goes back to checkpoints decodes again, by its rounds. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.core.estimates import ServiceTime
from orchestrator.core.outcomes import Outcome
from outrider.costs import MOST_REDONE, RejectionCost


@dataclass(slots=True)
class TakenBack:
    """The tokens that were accepted and taken back with rejected ones, of one generation."""

    count: int = 0  # that the next decode begins with; 0 where nothing was taken back

    @property
    def is_apart(self) -> bool:
        """Whether they are too many, and decoded by themselves before a new checkpoint."""
        return self.count > MOST_REDONE

    def beside_decode(self, price: RejectionCost, spent: ServiceTime, drafted: int) -> ServiceTime:
        """Return a round's time without the checkpoints that were made in its decode.

        `price` is of all sessions in that: each needs a checkpoint as often as this one.
        """
        if not price.is_due(drafted) or 0 < self.count <= MOST_REDONE:
            return spent
        return replace(spent, decode=max(0.0, spent.decode - price.checkpoint_seconds))

    def note(self, price: RejectionCost, outcome: Outcome) -> None:
        """Take note of a round that was verified."""
        before = 0 if self.is_apart else self.count
        again = price.redone_count(outcome.drafted, outcome.accepted)
        self.count = before + again if again else 0
