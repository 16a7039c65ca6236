"""What rounds say of the cost of a decode, and of what a draft on the same machine adds. Pure."""

from __future__ import annotations

from orchestrator.core.estimates import PairEstimates, ServiceTime
from orchestrator.core.outcomes import Outcome

_GRAPH_SECONDS = 0.003  # more for a plain decode after another kind: its graph is built anew


class DecodeCosts:
    """Learns from the rounds of one generation; the estimates keep what is learned."""

    def __init__(self) -> None:
        self._draft_seconds = 0.0  # that the draft worked since the newest round was sent
        self._was_plain = False  # the last decode had a plain token's row alone

    def note_draft(self, seconds: float) -> None:
        """The draft worked for so long."""
        self._draft_seconds += seconds

    def note_sent(self) -> None:
        """A round went to the target."""
        self._draft_seconds = 0.0

    def note_over(self, rows: int, outcome: Outcome) -> None:
        """A round with so many rows is over, learned from or not."""
        self._was_plain = rows == 1 and not outcome.is_prompt
        self._draft_seconds = 0.0

    def note_decode(
        self, estimates: PairEstimates, rows: int, spent: ServiceTime, outcome: Outcome
    ) -> None:
        """Learn what a decode costs, and what it costs more beside a busy draft."""
        seconds = spent.decode
        attended = estimates.note_sharing(spent, rows, outcome.length)
        if attended is None:
            return
        rows = spent.rows or rows
        # One on other cores takes nothing from the target.
        shares = outcome.draft_busy and estimates.same_host
        overlap = min(seconds, self._draft_seconds) if shares else 0.0
        expected = estimates.costs.seconds(rows, attended)
        is_first = rows == outcome.decodes == 1 and not self._was_plain
        if is_first and 0.0 < seconds - expected < _GRAPH_SECONDS:
            return
        if overlap < 0.1 * seconds:
            estimates.costs.note(rows, seconds, attended, outcome.decodes)
        elif overlap > 0.5 * seconds:
            estimates.slowdown.note(max(0.5, 1.0 + (seconds - expected) / overlap))
