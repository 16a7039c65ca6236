"""The state machine of one completion: what to ask next, and what to do with answers. Pure.

The driver tells it what happened (`draft_*`, `target_*`) and carries out what
`next_actions` returns. Committed text only grows, and is the truth. The
target is never left idle for a draft that cannot be used, and nothing that a
draft does, or fails to do, changes what is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from orchestrator import acceptance
from orchestrator.acceptance import DraftToken, Verdict
from orchestrator.control import FixedLength
from outrider.distribution import Distribution
from outrider.messages import Candidates, Form, Frame, Opening, Order, Round, Rows, Rule, Span
from outrider.noise import Purpose, uniform
from outrider.sampling import law


class Origin(Enum):
    """Where a committed token came from."""

    DRAFTED = "drafted"
    CORRECTED = "corrected"
    BONUS = "bonus"
    PLAIN = "plain"


class Finish(Enum):
    """Why a generation ended."""

    END_OF_TEXT = "end of text"
    TOKEN_LIMIT = "token limit"
    STOP_SEQUENCE = "stop sequence"
    CONTEXT_FULL = "context full"


@dataclass(frozen=True, slots=True)
class SendOrder:
    """Send this order to the draft."""

    order: Order


@dataclass(frozen=True, slots=True)
class SendRound:
    """Send this round to the target."""

    round: Round


@dataclass(frozen=True, slots=True)
class RollBack:
    """Call Rollback at both services and wait for it."""

    token_count: int
    round: int
    order: int


class DraftEnd(Enum):
    """Why a round's draft is as long as it is."""

    LENGTH = "length"  # as long as was wanted
    END_OF_TEXT = "end of text"
    TOKEN_LIMIT = "token limit"
    CONTEXT = "context"
    SHORT = "short"  # no more was there when the target was free
    LATE = "late"
    PAUSED = "paused"
    ABSENT = "absent"
    OFF = "off"
    PROMPT = "prompt"  # the first round is the prompt's


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one round verified and what came of it, for whoever wants to watch."""

    round: int  # from 1, repeats not counted
    committed_count: int  # before the round
    draft: Sequence[int]
    accepted_count: int
    next_token_id: int
    draft_end: DraftEnd
    target_candidates: Sequence[Candidates] = ()
    draft_candidates: Sequence[Candidates] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """These tokens are now part of the text."""

    token_ids: Sequence[int]
    origins: Sequence[Origin]
    report: Report | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class End:
    """The generation is over."""

    reason: Finish


Action = SendOrder | SendRound | RollBack | Commit | End


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What stays the same over a generation."""

    opening: Opening
    prompt: Sequence[int]
    control: FixedLength
    form: Form
    rollback_calls: bool  # call Rollback after every rejection, as in the textbook
    end_token_ids: frozenset[int]
    target_context: int
    limit_reason: Finish = Finish.TOKEN_LIMIT  # what reaching the token limit means


@dataclass(slots=True)
class Counts:
    """What happened so far."""

    rounds: int = 0
    drafted_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    drafted_by_position: list[int] = field(default_factory=list)
    draft_faults: int = 0
    target_faults: int = 0

    def note_draft(self, drafted: int, accepted: int) -> None:
        """Count one verified draft."""
        self.rounds += 1
        self.drafted_rounds += drafted > 0
        self.drafted += drafted
        self.accepted += accepted
        for counts, count in (
            (self.drafted_by_position, drafted),
            (self.accepted_by_position, accepted),
        ):
            counts.extend([0] * (drafted - len(counts)))
            for i in range(count):
                counts[i] += 1

    def forget_accepted(self, kept: int, noted: int) -> None:
        """Take back the accepted tokens from `kept` on of the `noted` ones noted last."""
        self.accepted -= noted - kept
        for i in range(kept, noted):
            self.accepted_by_position[i] -= 1


class DraftState(Enum):
    """What the draft is doing, as far as is known."""

    ABSENT = "absent"  # no stream
    IDLE = "idle"  # nothing ordered, or the order is complete
    DRAFTING = "drafting"  # ordered, and worth waiting for
    LATE = "late"  # ordered, past its deadline: nobody waits for it


class _Line:
    """The draft's line as received: tokens from `start` on, of the newest base."""

    def __init__(self) -> None:
        self.base = -1
        self.start = 0
        self.token_ids: list[int] = []
        self.rows: list[Distribution] = []
        self.candidates: list[Candidates] = []
        self._dead = -1

    def add(self, frame: Frame, committed: Sequence[int]) -> None:
        """Take in a frame; older bases, repeats and dropped lines change nothing."""
        if frame.base <= self._dead or frame.base < self.base or frame.base > len(committed):
            return
        if frame.base > self.base:
            self.base = frame.base
            self._begin(frame.position)
        end = self.start + len(self.token_ids)
        if frame.position > end:
            # A frame between was lost: what follows it stands on its own.
            self._begin(frame.position)
            end = frame.position
        fresh = max(0, end - frame.position)
        self.token_ids += frame.token_ids[fresh:]
        self.rows += frame.rows[fresh:]
        self.candidates += frame.candidates[fresh:]
        self.compare(committed)

    def _begin(self, position: int) -> None:
        self.start = position
        self.token_ids, self.rows, self.candidates = [], [], []

    def compare(self, committed: Sequence[int]) -> None:
        """Drop the line, and its base for good, at its first mismatch with the text."""
        known = committed[self.start : self.start + len(self.token_ids)]
        if list(known) != self.token_ids[: len(known)]:
            self.drop()

    def drop(self) -> None:
        """Forget the line; later frames of its base are ignored."""
        self._dead = max(self._dead, self.base)
        self._begin(self.start)

    def agreed(self, committed: Sequence[int], told: int) -> int:
        """Return how much of the committed text the draft has, by what it was told and drafted.

        Behind a gap in its frames nobody knows what it drafted.
        """
        if self.start > told:
            return told
        return max(told, min(len(committed), self.start + len(self.token_ids)))

    def after(self, length: int) -> slice:
        """Return where the guesses for positions `length` and later are."""
        return slice(max(0, length - self.start), None) if self.start <= length else slice(0, 0)


class Generation:
    """One completion. See the module's docstring for how it is driven."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.committed = list(plan.prompt)
        self.counts = Counts()
        self.draft_state = DraftState.ABSENT
        self.finished: Finish | None = None
        self.order = 0
        self.round = 0
        self._draft_context = 0
        self._draft_told = 0
        self._draft_line = _Line()
        self._draft_pause = 0
        self._last_start = self._last_accepted = 0
        self._ordered_length = -1
        self._missed_length = -1
        self._late_rounds = 0
        self._needs_order = False
        self._target_ready = False
        self._target_holds = 0
        self._asked: Round | None = None
        self._asked_rows: list[Distribution] = []
        self._asked_candidates: list[Candidates] = []
        self._draft_end = DraftEnd.OFF
        self._sent = False
        self._actions: list[Action] = []

    # --- what the driver may look at ---

    @property
    def waits_for_draft(self) -> bool:
        """Whether the target is idle only because a draft is on its way."""
        return self._asked is None and self.draft_state is DraftState.DRAFTING

    @property
    def target_ready(self) -> bool:
        """Whether a stream to the target is open."""
        return self._target_ready

    # --- what happened at the draft ---

    def draft_opened(self, context: int) -> None:
        """A stream to the draft is open; it has no line yet."""
        self.draft_state = DraftState.IDLE
        self._draft_context = context
        self._draft_line = _Line()
        # The last orders of the stream before may never have arrived.
        self._draft_told = 0
        self._missed_length = -1
        self._needs_order = True

    def draft_lost(self) -> None:
        """The stream to the draft is gone."""
        if self.draft_state is not DraftState.ABSENT:
            self.counts.draft_faults += 1
            self._pause()
        self.draft_state = DraftState.ABSENT
        self._draft_line = _Line()

    def draft_frame(self, frame: Frame) -> None:
        """A piece of the line arrived."""
        if self.plan.opening.rule is Rule.REJECTION and len(frame.rows) != len(frame.token_ids):
            self._draft_line.drop()
        else:
            self._draft_line.add(frame, self.committed)
        if frame.completed == self.order and self.draft_state is not DraftState.ABSENT:
            self.draft_state = DraftState.IDLE

    def draft_missing(self, order: int, held: int) -> None:
        """The draft holds less of the text than the order assumed: tell it, once a round."""
        if order == self.order:
            self.counts.draft_faults += 1
            self._draft_told = held if held < self._draft_told else 0
            self._draft_line = _Line()
            self.draft_state = DraftState.IDLE
            self._needs_order = True
            if self._missed_length == len(self.committed):
                self._draft_pause = max(self._draft_pause, 1)
            self._missed_length = len(self.committed)

    def draft_refused(self, order: int) -> None:
        """The draft is busy, or its context is full: this order brings nothing."""
        if order == self.order:
            self.draft_state = DraftState.IDLE
            self._draft_pause = max(self._draft_pause, 1)

    def draft_late(self) -> None:
        """The deadline of the order passed: go on plainly until the draft answers."""
        if self.draft_state is DraftState.DRAFTING:
            self.counts.draft_faults += 1
            self.draft_state = DraftState.LATE
            self._late_rounds = 0
            self._pause()

    def _pause(self) -> None:
        self._draft_pause = self.plan.control.pause(self.plan.opening.rule)
        if self._draft_pause:
            self._draft_line.drop()

    # --- what happened at the target ---

    def target_opened(self) -> None:
        """A stream to the target is open; it may lead to another replica, or to an old cache."""
        self._target_ready = True
        self._target_holds = 0
        if self._asked is not None:
            self._ask(self._asked.draft)

    def target_lost(self) -> None:
        """The stream to the target is gone; the round under way is asked again."""
        if self._target_ready:
            self.counts.target_faults += 1
        self._target_ready = False

    def target_missing(self, round_: int, held: int) -> None:
        """The target holds less of the text than the round assumed."""
        if self._asked is not None and round_ == self._asked.number:
            self.counts.target_faults += 1
            self._target_holds = held if held < self._target_holds else 0
            self._ask(self._asked.draft)

    def target_busy(self, round_: int) -> None:
        """The target had no room; the round is asked again when this is called."""
        if self._asked is not None and round_ == self._asked.number:
            self._ask(self._asked.draft)

    def target_full(self, round_: int) -> None:
        """The round does not fit the target's context."""
        if self._asked is not None and round_ == self._asked.number:
            self._finish(Finish.CONTEXT_FULL)

    def target_rows(self, round_: int, rows: Rows) -> None:
        """The target answered: decide, commit, and say what follows."""
        asked = self._asked
        if asked is None or round_ != asked.number:
            return
        verdict = self._judge(asked.draft, rows)
        before = len(self.committed)
        accepted, origins = self._commit(asked.draft, verdict)
        self.counts.note_draft(len(asked.draft), accepted)
        self._last_start, self._last_accepted = before, accepted
        self._asked = None
        self._target_holds = before + verdict.accepted_count
        self._draft_line.compare(self.committed)
        self._draft_pause = max(0, self._draft_pause - 1)
        self._late_rounds += 1
        report = Report(
            round=self.counts.rounds,
            committed_count=before,
            draft=asked.draft,
            accepted_count=verdict.accepted_count,
            next_token_id=verdict.next_token_id,
            draft_end=self._draft_end,
            target_candidates=rows.candidates[: verdict.accepted_count + 1],
            draft_candidates=self._asked_candidates[: verdict.accepted_count + 1],
        )
        self._actions.append(Commit(self.committed[before:], origins, report))
        if self.finished is None and origins[-1] is Origin.CORRECTED and self.plan.rollback_calls:
            self._actions.append(RollBack(self._target_holds, self.round, self.order))
            self._draft_told = min(self._draft_told, self._target_holds)
            self._draft_line.drop()

    # --- deciding ---

    def _judge(self, draft: Sequence[int], rows: Rows) -> Verdict:
        """Apply the acceptance rule."""
        if self.plan.form is Form.SAMPLED:
            return acceptance.match(draft, rows.sampled)
        laws = rows.distributions
        if self.plan.form is Form.LOGITS:
            sampling = self.plan.opening.sampling
            laws = [law(np.frombuffer(row, np.float32), sampling) for row in rows.logits]
        tokens = [DraftToken(i, q) for i, q in zip(draft, self._asked_rows, strict=True)]
        return acceptance.rejection(tokens, laws, self._uniform)

    def _uniform(self, purpose: Purpose, index: int) -> float:
        first = len(self.committed)
        opening = self.plan.opening
        return uniform(opening.seed, opening.choice, purpose, first, first + index)

    def _commit(self, draft: Sequence[int], verdict: Verdict) -> tuple[int, list[Origin]]:
        """Add a verdict's tokens up to the end of the text or the limit.

        Returns how many draft tokens were added, and all origins.
        """
        if verdict.accepted_count < len(draft):
            last = Origin.CORRECTED
        else:
            last = Origin.BONUS if draft else Origin.PLAIN
        tokens = [*draft[: verdict.accepted_count], verdict.next_token_id]
        origins = [Origin.DRAFTED] * verdict.accepted_count + [last]
        count = 0
        for token_id in tokens:
            self.committed.append(token_id)
            count += 1
            if token_id in self.plan.end_token_ids:
                self._finish(Finish.END_OF_TEXT)
            elif self._remaining() == 0:
                self._finish(self.plan.limit_reason)
            if self.finished:
                break
        return min(count, verdict.accepted_count), origins[:count]

    def _remaining(self) -> int:
        opening = self.plan.opening
        return opening.prompt_count + opening.token_limit - len(self.committed)

    def stop(self, length: int) -> None:
        """End the text at `length` tokens, within the last commit: a stop sequence is complete."""
        accepted = max(0, min(self._last_accepted, length - self._last_start))
        self.counts.forget_accepted(accepted, self._last_accepted)
        del self.committed[length:]
        self.finished = Finish.STOP_SEQUENCE
        self._asked = None

    def _finish(self, reason: Finish) -> None:
        if self.finished is None:
            self.finished = reason
            self._asked = None

    # --- asking ---

    def next_actions(self) -> list[Action]:
        """Return what is to be done now; empty means wait for something to happen."""
        if self.finished is None and self._remaining() <= 0:
            self._finish(self.plan.limit_reason)
        if self.finished is None:
            self._ask_for_more()
        actions, self._actions = self._actions, []
        if self.finished is not None:
            actions.append(End(self.finished))
        return actions

    def _ask_for_more(self) -> None:
        if self._asked is None:
            wanted = self._draft_count()
            self._order_draft(wanted)
            # The first round is the prompt: both models read it at once.
            if self.counts.rounds and self.waits_for_draft and len(self._guesses(wanted)) < wanted:
                return
            self._ask_draft(wanted)
        elif self._needs_order:
            self._order_draft(0)
        if self._asked is not None and self._target_ready and not self._sent:
            self._sent = True
            self._actions.append(SendRound(self._asked))

    def _draft_count(self) -> int:
        """Return how many tokens the next round should carry."""
        if self.draft_state is DraftState.ABSENT or self._draft_pause:
            return 0
        if self.plan.opening.rule is Rule.REJECTION and not self.counts.rounds:
            return 0
        room = min(self.plan.target_context, self._draft_context) - len(self.committed)
        return self.plan.control.draft_count(self._remaining(), room)

    def _guesses(self, wanted: int) -> list[int]:
        """Return the part of the line that may be verified now.

        A rejection block is used whole or not at all, and only at the
        position that it was drafted for.
        """
        length = len(self.committed)
        guesses = self._draft_line.token_ids[self._draft_line.after(length)][:wanted]
        if self.plan.opening.rule is Rule.REJECTION:
            whole = self._draft_line.base == length and len(guesses) == wanted
            return guesses if whole else []
        return guesses

    def _order_draft(self, wanted: int) -> None:
        """Tell the draft what is committed, if it must know to draft `wanted` tokens."""
        if self.draft_state is DraftState.ABSENT or self._remaining() <= 1:
            return
        late = self.draft_state is DraftState.LATE
        if late and not self.plan.control.probes(self._late_rounds):
            return
        length = len(self.committed)
        enough = length == self._ordered_length or len(self._guesses(wanted)) >= wanted
        if enough and not self._needs_order:
            return
        position = self._draft_line.agreed(self.committed, self._draft_told)
        span = Span(position, self.committed[position:])
        self.order += 1
        self._draft_told = self._ordered_length = length
        self._needs_order = False
        # Nobody waits for the answer to a probe; it shows that the draft is back.
        self.draft_state = DraftState.LATE if late else DraftState.DRAFTING
        self._actions.append(SendOrder(Order(self.order, span, length + wanted)))

    def _ask_draft(self, wanted: int) -> None:
        """Ask the target about the text and the usable part of the line."""
        guesses = self._guesses(wanted)
        where = self._draft_line.after(len(self.committed))
        self._asked_rows = self._draft_line.rows[where][: len(guesses)]
        self._asked_candidates = self._draft_line.candidates[where][: len(guesses)]
        self._draft_end = self._why(guesses, wanted)
        self._ask(guesses)

    def _why(self, guesses: Sequence[int], wanted: int) -> DraftEnd:
        """Return why the round's draft is as long as it is."""
        length = self.plan.control.draft_length
        scarce = DraftEnd.TOKEN_LIMIT if self._remaining() - 1 <= wanted else DraftEnd.CONTEXT
        if length == 0:
            return DraftEnd.OFF
        if guesses and guesses[-1] in self.plan.end_token_ids:
            return DraftEnd.END_OF_TEXT
        if guesses and len(guesses) == wanted:
            return DraftEnd.LENGTH if wanted == length else scarce
        if self.draft_state is DraftState.ABSENT:
            return DraftEnd.ABSENT
        if self._draft_pause:
            return DraftEnd.PAUSED
        if self.draft_state is DraftState.LATE:
            return DraftEnd.LATE
        if not self.counts.rounds:
            return DraftEnd.PROMPT
        return DraftEnd.SHORT if wanted else scarce

    def _ask(self, draft: Sequence[int]) -> None:
        self.round += 1
        span = Span(self._target_holds, self.committed[self._target_holds :])
        self._asked = Round(self.round, span, draft, self.plan.form)
        self._sent = False
