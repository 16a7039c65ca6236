"""A simulated target's memory that is never cut, but goes back to checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.costs import MOST_REDONE, CostTable, RejectionCost
from outrider.engine.cache import common_prefix


@dataclass(slots=True)
class GoingBack:
    """What the memory is in the state of, and what decodes cost besides; in seconds and rows."""

    price: RejectionCost
    costs: CostTable
    state: list[int] = field(default_factory=list)
    checkpoint: int = 0  # tokens of the newest one, the only one that is ever needed
    depth: int = 0  # of the cut that needs none, after the newest decode

    def prepare(self, text: Sequence[int], drafted: int) -> tuple[int, float, float]:
        """Return the rows decoded again with a round, and seconds in and before its decode.

        `text` is what the target has to hold up to the last committed token, which is decoded with
        the round, and `drafted` are the tokens after it.
        """
        again, within, before = 0, 0.0, 0.0
        if not self.price.checkpoint_seconds:
            return again, within, before
        held, base = self.state, len(text) - 1
        same = min(common_prefix(held, text), base)
        if len(held) - same > self.depth:
            before = self.price.restore_seconds
            same = min(self.checkpoint, same)
        again = base - same
        if again > MOST_REDONE:
            within += self.costs.seconds(again)
            again = 0
        if self.price.is_due(drafted) and self.checkpoint != base - again:
            within += self.price.checkpoint_seconds
            self.checkpoint = base - again
        self.depth = min(self.price.free_count, drafted)
        return again, within, before
