"""How many tokens to draft, and whether to wait for them. Pure.

So far serial drafting with a fixed length; the measured policy takes this
place and answers the same questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.messages import Rule


def plain_share(costs: Sequence[tuple[int, float]], row_count: int) -> float:
    """Return what one row costs to decode as a share of what `row_count` rows cost.

    `costs` are (rows, time) by rising rows; rows between two of them are
    padded to the next. 1 when nothing is known.
    """
    if not costs:
        return 1.0
    whole = next((time for rows, time in costs if rows >= row_count), costs[-1][1])
    return min(1.0, costs[0][1] / whole) if whole > 0 else 1.0


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Draft `draft_length` tokens a round and wait for all of them.

    `plain_rounds` is how many rounds go without a draft after a block of the
    rejection rule was dropped: a schedule that no token has a say in. A draft
    that is late is asked again every `probe_rounds` rounds.
    """

    draft_length: int
    plain_rounds: int = 4
    probe_rounds: int = 16

    def draft_count(self, remaining: int, room: int) -> int:
        """Return the tokens to draft when `remaining` may still be generated.

        A verify always adds one token of the target's own, so the last of
        them need not be drafted. `room` is what the contexts leave.
        """
        return max(0, min(self.draft_length, remaining - 1, room))

    def probes(self, late_rounds: int) -> bool:
        """Return whether to order again from a draft that did not answer in time.

        Its answer may have been lost, and an order costs a message, not time.
        """
        return late_rounds > 0 and late_rounds % self.probe_rounds == 0

    def pause(self, rule: Rule) -> int:
        """Return the rounds to go plainly after a late draft, even if it comes back."""
        return self.plain_rounds if rule is Rule.REJECTION else 0
