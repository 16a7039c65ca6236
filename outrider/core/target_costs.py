"""What a target's decodes take, how its users share them, and what a round takes beside. Pure.

One object for each target, which all generations there go by and teach. Times are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from outrider.core.forecast import Forecast
from outrider.core.outcomes import Outcome
from outrider.core.rates import AcceptanceRate, DraftRates, Mean
from outrider.costs import (
    MOST_REDONE,
    NO_REJECTION_COST,
    Attended,
    CostTable,
    RejectionCost,
)
from outrider.messages import Rule, ServiceTime

_UNKNOWN_COSTS = ((1, 0.03), (64, 0.06))


@dataclass(slots=True)
class TakenBack:
    """The tokens that were accepted and taken back with rejected ones, of one generation.

    Only a target that goes back to checkpoints has any.
    """

    count: int = 0
    """That the next decode begins with; above MOST_REDONE they had a decode of their own."""

    @property
    def is_apart(self) -> bool:
        """Whether they are decoded by themselves before a new checkpoint."""
        return self.count > MOST_REDONE

    def note(self, price: RejectionCost, outcome: Outcome) -> None:
        """Take note of a round that was verified."""
        before = 0 if self.is_apart else self.count
        again = price.redone_count(outcome.drafted, outcome.accepted)
        self.count = before + again if again else 0


@dataclass(slots=True)
class TargetCosts:
    """What is known of a target; outlives the generations."""

    table: CostTable = field(default_factory=lambda: CostTable(_UNKNOWN_COSTS))
    """Of a decode by its rows, those of all sessions."""
    alone_share: float = 0.0
    """A token of the target alone, without padding and messages, over a decode of one row of ours,
    as measured together; 0 where not reported. What such decodes take in service follows."""
    rejection: RejectionCost = NO_REJECTION_COST
    """What rejected draft tokens cost, beside decodes."""
    continues: bool = False
    """The target writes by itself where it may."""
    tree_leaves: int = 0
    """Leaves of a tree that the target verifies; 0: chains alone."""
    own: DraftRates | None = None
    """Of the draft in the target's own process; None where it has none."""
    sources: dict[tuple[Rule, str], AcceptanceRate] = field(default_factory=dict)
    """By rule and name, of what drafts without a model, and of the target's own draft."""
    overhead: Mean = field(default_factory=lambda: Mean(0.002))
    """Of a round that the target waits for, what neither its decode nor those before explain."""
    queue: Mean = field(default_factory=lambda: Mean(0.0))
    """What such a round waits for others' decodes."""
    gap: Mean = field(default_factory=lambda: Mean(0.0))
    """Of its own work between two decodes where it writes by itself, as it says: news of them comes
    late and several at once, so when they come says nothing of a few milliseconds."""
    others: Mean = field(default_factory=lambda: Mean(0.0))
    """Sessions in a decode of ours, beside those that are known to be in it."""
    others_length: Mean = field(default_factory=lambda: Mean(0.0))
    """Tokens that a row of the others who share a decode attends to."""
    together: dict[Hashable, tuple[float, int, Forecast]] = field(default_factory=dict)
    """What those who share decodes do, by what was asked: when it was found, for how many
    generations, and the forecast."""
    generation_count: int = 1
    """Generations that are being written, whether they share a decode or not."""

    @property
    def sessions_together(self) -> float:
        """Sessions that share a decode, ours included: those that are known, and usual others."""
        return self._known_sessions + self.others.value

    @property
    def _known_sessions(self) -> int:
        """Where the target writes by itself, all in flight: each is ready for every decode."""
        return max(1, self.generation_count) if self.continues else 1

    # --- asked ---

    def decode_seconds(self, row_count: int, length: int = 0) -> float:
        """Return the expected time of a decode with so many rows of a session, after its text.

        Whole sessions share a decode, and a cost is no line between their row counts.
        """
        own, sharing = self.table.padded(row_count), self.sessions_together
        fewest = math.floor(sharing)
        seconds = self._shared_seconds(own, length, fewest)
        if sharing > fewest:
            more = self._shared_seconds(own, length, fewest + 1)
            seconds += (sharing - fewest) * (more - seconds)
        return seconds

    def _shared_seconds(self, own: float, length: int, sessions: int) -> float:
        """Return the time of a decode with `own` rows of each of some sessions."""
        others = ((sessions - 1) * own, self.others_length.value)
        return self.table.seconds(sessions * own, ((own, length), others))

    def checked_seconds(self, row_count: int, length: int, acceptance: float) -> float:
        """Return the same and what taking back takes that the decode will show to be wrong.

        `acceptance` is the chance of each draft token in it.
        """
        decode = self.decode_seconds(row_count, length)
        if not self.rejection.checkpoint_seconds:
            return decode
        price = self.rejection.of_all(self.sessions_together)
        return decode + price.seconds(
            row_count - 1, acceptance, lambda rows: self.decode_seconds(rows, length)
        )

    def alone_seconds(self, length: int) -> float:
        """Return the time of a token of the target alone, after a text; 0 if it is not known."""
        attending = self.table.attending(((1, length),))
        return self.alone_share and self.alone_share * self.table.seconds(1) + attending

    def plain_share(self, row_count: int, length: int) -> float:
        """Return what one row costs after a text as a share of what `row_count` rows cost there."""
        whole, one = (
            self.table.seconds(count, ((self.table.padded(count), length),))
            for count in (row_count, 1)
        )
        return min(1.0, one / whole) if whole > 0 else 1.0

    def draft_ratio(self) -> float:
        """Return the time of a token of its own draft for all sessions together, over one's alone.

        They share the draft's decodes, whose rows cost in proportion what they cost the target.
        """
        alone = self.table.padded(1)
        return self.table.seconds(self.sessions_together * alone) / self.table.seconds(alone)

    def is_alike(self, spent: ServiceTime, own: float) -> bool:
        """Return whether a decode had as many rows of each session as of ours, and no prompt's.

        Of streams with other numbers of rows each llama.cpp computes parts one after the other: 1,
        1, 1 and 4 rows take 70 ms where 8 at once take 42.
        """
        return spent.rows == spent.sessions * own

    # --- what happened ---

    def note_round(
        self, outcome: Outcome, rows: int, again: TakenBack, is_slowed: bool, in_turns: bool
    ) -> None:
        """Learn from a round that was verified with `rows` rows of ours, not of the prompt.

        `is_slowed` says that a draft on the same cores may have slowed it down. One that takes
        turns with the target is waited for, which is no overhead.
        """
        spent = outcome.spent
        if spent.decode <= 0.0:
            return
        restoring = self.rejection.restore_seconds if again.count else 0.0
        if outcome.sent is None:
            self._note_gap(max(0.0, spent.sample - restoring), outcome.is_own)
        else:
            own = spent.queue + spent.decode + spent.draft + restoring
            self.overhead.note(max(0.0, outcome.now - outcome.sent - own))
            if not in_turns:
                # One decode at most; a piece of somebody's prompt is no usual one.
                self.queue.note(min(spent.queue, spent.decode))
        if not again.is_apart and not is_slowed:
            self._note_decode(
                self._without_checkpoint(spent, outcome.drafted, again), rows, outcome
            )

    def _note_gap(self, seconds: float, is_own: bool) -> None:
        if is_own and self.own is not None:
            self.own.latency.note(max(0.0, seconds - self.gap.value))
        else:
            self.gap.note(seconds)
        self.overhead.fade()
        self.queue.fade()

    def _without_checkpoint(
        self, spent: ServiceTime, drafted: int, again: TakenBack
    ) -> ServiceTime:
        """Return a round's time without the checkpoints that were made in its decode.

        Each session in it needs one as often as this one.
        """
        price = self.rejection.of_all(float(max(1, spent.sessions)))
        if not price.is_due(drafted) or 0 < again.count <= MOST_REDONE:
            return spent
        return replace(spent, decode=max(0.0, spent.decode - price.checkpoint_seconds))

    def _note_decode(self, spent: ServiceTime, rows: int, outcome: Outcome) -> None:
        """Learn what a decode took, where its time says what so many rows of each session cost."""
        own, length = self.table.padded(rows), float(outcome.length)
        if not spent.rows:
            self.table.note(own, spent.decode, ((own, length),), outcome.decodes)
            return
        self.others.note(float(max(0, spent.sessions - self._known_sessions)))
        if not self.is_alike(spent, own):
            return
        attended: Attended = [(own, length)]
        if spent.rows > own:
            others = max(0.0, spent.attended - own * length) / (spent.rows - own)
            self.others_length.note(others)
            attended = [(own, length), (spent.rows - own, others)]
        # Each of the sessions says the same of these decodes.
        self.table.note(spent.rows, spent.decode, attended, outcome.decodes / spent.sessions)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft beside it: what a generation goes by."""

    costs: TargetCosts = field(default_factory=TargetCosts)
    rates: DraftRates = field(default_factory=DraftRates)
    same_host: bool = False
    """They share their cores."""
    takes_turns: bool = False
    """And never decode at the same time."""
