"""The state machine of one completion: what to ask next, and what to do with answers. Pure.

The driver tells it what happened (`draft_*`, `target_*`), at times of its own
clock in seconds, and carries out what `next_actions` returns. Committed text
only grows, and is the truth. The controller says how much to draft and when
waiting for a draft pays; nothing that a draft does, or fails to do, changes
what is committed.

Several rounds may be at the target at once: each after the first assumes that
the one before is accepted in full and that the line goes on as drafted. The
first mismatch drops all later ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import zip_longest
from typing import TypeVar

import numpy as np

from orchestrator.core import acceptance
from orchestrator.core.acceptance import DraftToken, Verdict
from orchestrator.core.controller import UNTOLD, Control, Outcome, Spent
from orchestrator.core.draft_line import Compared, ReceivedLine
from orchestrator.core.text import ends_inside_character
from outrider.distribution import Distribution
from outrider.messages import (
    MAX_DRAFT,
    Candidates,
    Form,
    Frame,
    Logprobs,
    Opening,
    Order,
    Round,
    Rows,
    Rule,
    Span,
)
from outrider.noise import Purpose, uniform
from outrider.sampling import law

T = TypeVar("T")

_FINISHING_TOKENS = 3
"""So many tokens may follow the limit to finish a character: it has 4 bytes at most."""


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
class Wake:
    """Ask for the next actions again at this time, if nothing happens before."""

    time: float


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
    DOUBT = "doubt"  # the draft stopped at an unsure token, as the request wants
    ENOUGH = "enough"  # more would not have paid
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
class TokenLogprob:
    """The natural logarithm of a token's probability, and of the most probable tokens there."""

    value: float
    alternatives: Logprobs


@dataclass(frozen=True, slots=True)
class Commit:
    """These tokens are now part of the text; `logprobs` are there if they were asked for."""

    token_ids: Sequence[int]
    origins: Sequence[Origin]
    report: Report | None = field(default=None, compare=False, repr=False)
    logprobs: Sequence[TokenLogprob] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class End:
    """The generation is over."""

    reason: Finish


Action = SendOrder | SendRound | Wake | RollBack | Commit | End


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What stays the same over a generation."""

    opening: Opening
    prompt: Sequence[int]
    control: Control
    form: Form
    rollback_calls: bool  # call Rollback after every rejection, as in the textbook
    end_token_ids: frozenset[int]
    target_context: int
    limit_reason: Finish = Finish.TOKEN_LIMIT  # what reaching the token limit means
    token_texts: Sequence[bytes] = ()  # by id
    finishes_character: bool = False  # with some tokens beyond the limit; needs `token_texts`
    control_names: Mapping[int, str] = field(default_factory=dict)  # those to report, by id
    mirostat_mu: float | None = None  # to begin with; None is mirostat's own start
    beam_count: int = 1  # more: the target searches the text, and nothing is drafted
    whole_count: int = 0  # tokens of the prompt, its middle included where that is left out
    keep_count: int = -1  # tokens at the start that stay when a full context shifts; -1: it ends

    @property
    def is_truncated(self) -> bool:
        """Whether the middle of the prompt is left out."""
        return self.opening.prompt_count < self.whole_count


@dataclass(slots=True)
class Counts:
    """What happened so far."""

    rounds: int = 0
    drafted_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_round: list[int] = field(default_factory=list)  # only rounds with a draft
    drafted_by_round: list[int] = field(default_factory=list)
    cached: int = 0  # tokens of the prompt that the target held
    draft_faults: int = 0
    target_faults: int = 0

    def note_draft(self, drafted: int, accepted: int) -> None:
        """Count one verified draft."""
        self.rounds += 1
        if drafted:
            self.drafted_rounds += 1
            self.drafted_by_round.append(drafted)
            self.accepted_by_round.append(accepted)
        self.drafted += drafted
        self.accepted += accepted
        for counts, count in (
            (self.drafted_by_position, drafted),
            (self.accepted_by_position, accepted),
        ):
            counts.extend([0] * (drafted - len(counts)))
            for i in range(count):
                counts[i] += 1

    def add(self, more: Counts) -> None:
        """Count what happened in a later part of the same completion."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(more, each.name)
            if each.name.endswith("_by_round"):
                mine += theirs
            elif isinstance(mine, list):
                pairs = zip_longest(mine, theirs, fillvalue=0)
                setattr(self, each.name, [a + b for a, b in pairs])
            else:
                setattr(self, each.name, mine + theirs)

    def forget_accepted(self, kept: int, noted: int) -> None:
        """Take back the accepted tokens from `kept` on of the `noted` ones noted last."""
        self.accepted -= noted - kept
        if noted > kept:
            self.accepted_by_round[-1] = kept
        for i in range(kept, noted):
            self.accepted_by_position[i] -= 1


class DraftState(Enum):
    """What the draft is doing, as far as is known."""

    ABSENT = "absent"  # no stream
    IDLE = "idle"  # nothing ordered, or the order is complete
    DRAFTING = "drafting"  # ordered, and worth waiting for
    LATE = "late"  # ordered, past its deadline: nobody waits for it


@dataclass(slots=True)
class _Asked:
    """A round that the target was asked for, and what its draft came with."""

    round: Round
    length: int  # of the text, the committed and the assumed, before its draft
    confidences: Sequence[int]
    rows: Sequence[Distribution]
    candidates: Sequence[Candidates]
    draft_end: DraftEnd
    sent_time: float | None = None
    draft_busy: bool = False

    @property
    def pending(self) -> int:
        """The token that its prefix ends with."""
        return self.round.prefix.token_ids[-1]


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
        self.waits_for_draft = False
        self._control = plan.control
        self._draft_context = 0
        self._draft_told = 0
        self._draft_line = ReceivedLine()
        self._draft_pause = 0
        self._block = (-1, 0)
        self._draft_is_new = False
        self._last_start = self._last_accepted = 0
        self._ordered_length = self._ordered_until = -1
        self._missed_length = -1
        self._late_rounds = 0
        self._needs_order = False
        self._target_ready = False
        self._target_holds = 0
        self._mirostat_mu = plan.mirostat_mu
        self._asked: list[_Asked] = []  # oldest first
        self._actions: list[Action] = []

    # --- what the driver may look at ---

    @property
    def mirostat_mu(self) -> float | None:
        """Mirostat's state behind the text."""
        return self._mirostat_mu

    @property
    def target_ready(self) -> bool:
        """Whether a stream to the target is open."""
        return self._target_ready

    @property
    def draft_length(self) -> int:
        """The tokens that a draft made anew now would have; 0 while there is no draft."""
        absent = self.draft_state is DraftState.ABSENT
        return 0 if absent else self._control.draft_count(MAX_DRAFT)

    @property
    def _only_reads(self) -> bool:
        """Whether the prompt is to be read and nothing written, and that is still to be done."""
        return self.plan.opening.token_limit == 0 and not self.counts.rounds

    # --- what happened at the draft ---

    def draft_opened(self, context: int) -> None:
        """A stream to the draft is open; it has no line yet."""
        self.draft_state = DraftState.IDLE
        self._draft_context = context
        self._draft_line = ReceivedLine()
        # The last orders of the stream before may never have arrived.
        self._draft_told = 0
        self._draft_is_new = True
        self._missed_length = -1
        self._needs_order = True

    def draft_lost(self) -> None:
        """The stream to the draft is gone."""
        if self.draft_state is not DraftState.ABSENT:
            self.counts.draft_faults += 1
            self._pause()
        self.draft_state = DraftState.ABSENT
        self._draft_line = ReceivedLine()

    def draft_frame(
        self, frame: Frame, now: float, seconds: float = 0.0, queue: float = 0.0
    ) -> None:
        """A piece of the line arrived; the draft worked `seconds` and waited `queue` for it."""
        line = self._draft_line
        if self.plan.opening.rule is Rule.REJECTION and len(frame.rows) != len(frame.token_ids):
            line.drop()
        else:
            is_first = frame.base > line.base
            compared = line.add(frame, self.committed)
            if not self._draft_is_new:
                count = len(frame.token_ids) if compared.is_news else 0
                self._control.note_frame(now, frame.base, count, seconds, is_first, queue)
            self._draft_is_new = self._draft_is_new and not frame.token_ids
            self._note_line(compared)
        if frame.completed == self.order and self.draft_state is not DraftState.ABSENT:
            self.draft_state = DraftState.IDLE

    def _note_line(self, compared: Compared) -> None:
        """Tell the controller how good the line was, and which orders it still answers."""
        if not self._is_rejection:
            self._control.note_line(compared.decided, compared.mismatch is None)
        if compared.mismatch is not None:
            self._control.line_lost(compared.mismatch)
        elif self._draft_line.token_ids:
            self._control.line_agrees(self._draft_line.end)

    def draft_missing(self, order: int, held: int) -> None:
        """The draft holds less of the text than the order assumed: tell it, once a round."""
        if order == self.order:
            self.counts.draft_faults += 1
            self._draft_told = held if held < self._draft_told else 0
            self._draft_line = ReceivedLine()
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

    def _give_up_waiting(self, now: float) -> None:
        """Go on plainly until the draft answers, if its order is long overdue."""
        if self.draft_state is DraftState.DRAFTING and self._control.is_late(now):
            self.counts.draft_faults += 1
            self.draft_state = DraftState.LATE
            self._late_rounds = 0
            self._pause()

    def _pause(self) -> None:
        self._draft_pause = self._control.pause()
        if self._draft_pause:
            self._draft_line.drop()

    # --- what happened at the target ---

    def target_opened(self) -> None:
        """A stream to the target is open; it may lead to another replica, or to an old cache."""
        self._target_ready = True
        self._target_holds = 0
        self._ask_again()

    def target_lost(self) -> None:
        """The stream to the target is gone; the oldest round under way is asked again."""
        if self._target_ready:
            self.counts.target_faults += 1
        self._target_ready = False

    def target_missing(self, round_: int, held: int) -> None:
        """The target holds less of the text than the round assumed."""
        if self._is_oldest(round_):
            self.counts.target_faults += 1
            self._target_holds = held if held < self._target_holds else 0
            self._ask_again()

    def target_busy(self, round_: int) -> None:
        """The target had no room, or dropped the round; it is asked again when this is called."""
        if self._is_oldest(round_):
            self._ask_again()

    def target_full(self, round_: int) -> None:
        """The round does not fit the target's context."""
        if self._is_oldest(round_):
            self._finish(Finish.CONTEXT_FULL)

    def _is_oldest(self, round_: int) -> bool:
        """Whether a round is the oldest under way; a later one that failed is forgotten."""
        numbers = [asked.round.number for asked in self._asked]
        if round_ in numbers[1:]:
            del self._asked[numbers.index(round_) :]
        return numbers[:1] == [round_]

    def target_rows(self, round_: int, rows: Rows, now: float, spent: Spent = UNTOLD) -> None:
        """The target answered: decide, commit, say what follows."""
        if not self._is_oldest(round_):
            return
        asked = self._asked.pop(0)
        if self._only_reads:
            self.counts.note_draft(0, 0)
            self._target_holds = len(self.committed)
            return
        # A target that decodes for others too may have left out the draft's end.
        draft = asked.round.draft[: len(rows) - 1]
        verdict = self._judge(asked, draft, rows)
        before = len(self.committed)
        accepted, origins = self._commit(draft, verdict)
        self.counts.note_draft(len(draft), accepted)
        self._last_start, self._last_accepted = before, accepted
        self._control.note_round(
            Outcome(
                now=now,
                sent=now if asked.sent_time is None else asked.sent_time,
                confidences=asked.confidences,
                offered=len(asked.round.draft),
                drafted=len(draft),
                accepted=verdict.accepted_count,
                committed=len(origins),
                spent=spent,
                draft_busy=asked.draft_busy,
                is_prompt=self.counts.rounds == 1,
            )
        )
        self._target_holds = before + verdict.accepted_count
        if rows.mirostat_mus:
            self._mirostat_mu = rows.mirostat_mus[verdict.accepted_count]
        self._keep_what_follows(asked.round.draft, verdict)
        self._note_line(self._draft_line.compare(self.committed))
        self._draft_pause = max(0, self._draft_pause - 1)
        self._late_rounds += 1
        report = Report(
            round=self.counts.rounds,
            committed_count=before,
            draft=draft,
            accepted_count=verdict.accepted_count,
            next_token_id=verdict.next_token_id,
            draft_end=asked.draft_end,
            target_candidates=rows.candidates[: verdict.accepted_count + 1],
            draft_candidates=asked.candidates[: verdict.accepted_count + 1],
        )
        added = self.committed[before:]
        self._actions.append(Commit(added, origins, report, self._logprobs(added, rows)))
        if self.finished is None and origins[-1] is Origin.CORRECTED and self.plan.rollback_calls:
            self._actions.append(RollBack(self._target_holds, self.round, self.order))
            self._draft_told = min(self._draft_told, self._target_holds)
            self._draft_line.drop()

    def _logprobs(self, token_ids: Sequence[int], rows: Rows) -> list[TokenLogprob]:
        """Return what the rows tell about the tokens that were added."""
        options = self.plan.opening.logprobs
        if options is None:
            return []
        listed = zip(token_ids, rows.logprobs, strict=False)
        return [
            TokenLogprob(dict(row).get(token_id, -np.inf), row[: options.top_count])
            for token_id, row in listed
        ]

    def _keep_what_follows(self, draft: Sequence[int], verdict: Verdict) -> None:
        """Drop the later rounds under way unless they assumed just what came."""
        whole = verdict.accepted_count == len(draft)
        if self._asked and not (whole and verdict.next_token_id == self._asked[0].pending):
            self._asked.clear()

    # --- deciding ---

    def _judge(self, asked: _Asked, draft: Sequence[int], rows: Rows) -> Verdict:
        """Apply the acceptance rule."""
        if self.plan.form is Form.SAMPLED:
            return acceptance.match(draft, rows.sampled)
        laws = rows.distributions
        if self.plan.form is Form.LOGITS:
            sampling = self.plan.opening.sampling
            laws = [law(np.frombuffer(row, np.float32), sampling) for row in rows.logits]
        tokens = [DraftToken(i, q) for i, q in zip(draft, asked.rows, strict=True)]
        return acceptance.rejection(tokens, laws, self._uniform)

    def _uniform(self, purpose: Purpose, index: int) -> float:
        opening = self.plan.opening
        first = len(self.committed) + len(opening.dropped.token_ids)
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
            elif self._is_long_enough():
                self._finish(self.plan.limit_reason)
            if self.finished:
                break
        return min(count, verdict.accepted_count), origins[:count]

    def _remaining(self, length: int | None = None) -> int:
        """Return the tokens that may still follow the text, or its first `length` tokens."""
        opening = self.plan.opening
        length = len(self.committed) if length is None else length
        length += len(opening.dropped.token_ids)
        return opening.prompt_count + opening.token_limit - length

    def _is_long_enough(self) -> bool:
        """Whether the limit is reached, and no character is to be finished there."""
        left = self._remaining()
        if left > 0:
            return False
        if not self.plan.finishes_character:
            return True
        texts, room = self.plan.token_texts, self.plan.target_context - len(self.committed)
        if not texts or not left > -_FINISHING_TOKENS or room <= 0:
            return True
        written = max(len(self.committed) - _FINISHING_TOKENS - 1, len(self.plan.prompt))
        return not ends_inside_character(b"".join(texts[i] for i in self.committed[written:]))

    def stop(self, length: int) -> None:
        """End the text at `length` tokens, within the last commit: a stop sequence is complete."""
        accepted = max(0, min(self._last_accepted, length - self._last_start))
        self.counts.forget_accepted(accepted, self._last_accepted)
        del self.committed[length:]
        self.finished = Finish.STOP_SEQUENCE
        self._asked.clear()

    def _finish(self, reason: Finish) -> None:
        if self.finished is None:
            self.finished = reason
            self._asked.clear()

    # --- asking ---

    def next_actions(self, now: float) -> list[Action]:
        """Return what is to be done now; empty means wait for something to happen."""
        self.waits_for_draft = False
        if self.finished is None and self._is_long_enough() and not self._only_reads:
            self._finish(self.plan.limit_reason)
        if self.finished is None:
            self._ask_for_more(now)
        actions, self._actions = self._actions, []
        if self.finished is not None:
            actions.append(End(self.finished))
        return actions

    def _ask_for_more(self, now: float) -> None:
        if not self._asked:
            self._ask_for_a_round(now)
        elif self._needs_order:
            self._order_draft(0, 0, now)
        elif len(self.committed) != self._ordered_length and self._control.runs_ahead():
            # Text was committed while later rounds stay under way: the line may go on.
            wanted = self._control.draft_count(self._cap(len(self.committed)))
            self._order_draft(wanted, self._control.lookahead(), now)
        while self._ask_ahead():
            pass
        if not self._target_ready:
            return
        for asked in self._asked:
            if asked.sent_time is None:
                asked.sent_time = now
                asked.draft_busy = self.draft_state in (DraftState.DRAFTING, DraftState.LATE)
                self._control.note_sent()
                self._actions.append(SendRound(asked.round))

    def _ask_for_a_round(self, now: float) -> None:
        """Ask the target about the text and a part of the line, or wait for more of it."""
        length = len(self.committed)
        cap = self._cap(length)
        wanted = self._wanted(length, cap)
        self._order_draft(wanted, self._control.lookahead() if wanted else 0, now)
        self._give_up_waiting(now)
        count = 0
        if self._is_rejection:
            cap = wanted  # a block is used whole or not at all
        if self.counts.rounds:
            # The first round is the prompt's: both models read it at once.
            expected = self.draft_state is DraftState.DRAFTING
            known = self._line_from(length, self._draft_line.confidences)[:cap]
            choice = self._control.choose(known, cap, now, length, expected)
            count = choice.count
            if choice.until is not None:
                self.waits_for_draft = True
                self._actions.append(Wake(choice.until))
                return
        else:
            count = min(cap, len(self._line_from(length, self._draft_line.token_ids)))
        if self._is_rejection and not (self._draft_line.base == length and count == wanted):
            count = 0
        self._ask(length, count, Span(self._target_holds, self.committed[self._target_holds :]))
        self._asked[-1].draft_end = self._why(self._asked[-1].round.draft, cap, wanted)

    def _wanted(self, length: int, cap: int) -> int:
        """Return how many tokens to draft anew; a block's length is chosen once, before it."""
        if self._is_rejection and self._block[0] == length:
            return min(self._block[1], cap)
        self._control.note_unread(length - self._draft_told)
        wanted = self._control.draft_count(cap)
        if cap:
            self._block = (length, wanted)
        return wanted

    def _ask_ahead(self) -> bool:
        """Ask for a round more that assumes the ones under way; return whether there is one."""
        if not self._asked or self._is_rejection or self.plan.rollback_calls:
            return False
        if self.plan.opening.sampling.mirostat:
            return False  # its state is in the answer
        last = self._asked[-1]
        count = len(last.round.draft)
        if len(self._asked) > self._control.rounds_ahead(count) or not count:
            return False
        pending = last.length + count
        guesses = self._line_from(pending, self._draft_line.token_ids)
        count = self._control.draft_count(self._cap(pending + 1))
        if not 0 < count < len(guesses) or guesses[0] in self.plan.end_token_ids:
            return False
        self._ask(pending + 1, count, Span(pending, guesses[:1]), is_ahead=True)
        self._asked[-1].draft_end = DraftEnd.LENGTH
        return True

    @property
    def _is_rejection(self) -> bool:
        return self.plan.opening.rule is Rule.REJECTION

    def _cap(self, length: int) -> int:
        """Return how many draft tokens a round behind `length` tokens may carry.

        A verify always adds one token of the target's own, so the last one
        that may be generated need not be drafted.
        """
        if self.draft_state is DraftState.ABSENT or self._draft_pause:
            return 0
        if self._is_rejection and not self.counts.rounds:
            return 0
        room = min(self.plan.target_context, self._draft_context) - length
        return max(0, min(MAX_DRAFT, self._remaining(length) - 1, room))

    def _line_from(self, length: int, what: list[T]) -> list[T]:
        """Return the part of the line's tokens, or of what came with them, from a length on."""
        return what[self._draft_line.after(length)]

    def _order_draft(self, wanted: int, ahead: int, now: float) -> None:
        """Tell the draft what is committed, if it must know to draft on.

        `wanted` tokens are for the next round, and `ahead` more for later ones.
        """
        if self.draft_state is DraftState.ABSENT or self._remaining() <= 1:
            return
        if wanted == 0 and self._control.leaves_draft_alone:
            return
        late = self.draft_state is DraftState.LATE
        if late and not self._control.probes(self._late_rounds):
            return
        length = len(self.committed)
        until = length + min(wanted + ahead, self._cap(length))
        if not self._needs_order and not self._is_news(length, wanted, until):
            return
        position = self._draft_line.agreed(self.committed, self._draft_told)
        span = Span(position, self.committed[position:])
        self.order += 1
        self._draft_told = self._ordered_length = length
        self._ordered_until = until
        self._needs_order = False
        goes_on = self.draft_state is DraftState.DRAFTING and self._has_line(length)
        frame_tokens = 0 if ahead else wanted
        if not goes_on:
            self._control.note_order(now, length, frame_tokens)
        # Nobody waits for the answer to a probe; it shows that the draft is back.
        self.draft_state = DraftState.LATE if late else DraftState.DRAFTING
        stop_below = 0 if ahead else self._control.stop_below
        self._actions.append(SendOrder(Order(self.order, span, until, frame_tokens, stop_below)))

    def _is_news(self, length: int, wanted: int, until: int) -> bool:
        """Return whether the draft would stop too early, or go astray, without a new order."""
        if wanted == 0 or (length == self._ordered_length and until <= self._ordered_until):
            return False
        if self._control.probing and self.draft_state is DraftState.DRAFTING:
            return False
        have = len(self._usable(length))
        if self._has_line(length):
            return have < wanted if until <= length + wanted else self._ordered_until < until
        return True

    def _has_line(self, length: int) -> bool:
        return bool(self._usable(length))

    def _usable(self, length: int) -> list[int]:
        """Return the guesses that follow the text, under the rejection rule only a block's own."""
        if self._is_rejection and self._draft_line.base != length:
            return []
        return self._line_from(length, self._draft_line.token_ids)

    def _ask(self, length: int, count: int, prefix: Span, is_ahead: bool = False) -> None:
        line = self._draft_line
        self.round += 1
        draft = self._line_from(length, line.token_ids)[:count]
        confidences = self._line_from(length, line.confidences)[:count]
        survivals = b""
        if self.plan.form is Form.SAMPLED and self._control.may_be_cut:
            chances = self._control.acceptance.survival(confidences, len(draft))
            survivals = bytes(int(255 * chance) for chance in chances)
        self._asked.append(
            _Asked(
                round=Round(
                    self.round,
                    prefix,
                    draft,
                    self.plan.form,
                    is_ahead,
                    survivals,
                    self._mirostat_mu,
                ),
                length=length,
                confidences=confidences,
                rows=self._line_from(length, line.rows)[:count],
                candidates=self._line_from(length, line.candidates)[:count],
                draft_end=DraftEnd.OFF,
            )
        )

    def _ask_again(self) -> None:
        """Ask for the oldest round anew; what was asked behind it is forgotten."""
        if self._asked:
            asked = self._asked[0]
            self.round += 1
            span = Span(self._target_holds, self.committed[self._target_holds :])
            asked.round = replace(asked.round, number=self.round, prefix=span, is_ahead=False)
            asked.sent_time = None
            self._asked = [asked]

    def _why(self, guesses: Sequence[int], cap: int, wanted: int) -> DraftEnd:
        """Return why the round's draft is as long as it is."""
        if not self._control.speculation.drafts:
            return DraftEnd.OFF
        if guesses and guesses[-1] in self.plan.end_token_ids:
            return DraftEnd.END_OF_TEXT
        if self.draft_state is DraftState.ABSENT:
            return DraftEnd.ABSENT
        if self._draft_pause:
            return DraftEnd.PAUSED
        if not self.counts.rounds and not guesses:
            return DraftEnd.PROMPT
        unhindered = self._control.draft_count(MAX_DRAFT)
        if len(guesses) == cap < unhindered:
            return DraftEnd.TOKEN_LIMIT if self._remaining() - 1 <= cap else DraftEnd.CONTEXT
        if guesses and len(guesses) >= unhindered:
            return DraftEnd.LENGTH
        if self.draft_state is DraftState.LATE:
            return DraftEnd.LATE
        if self.draft_state is DraftState.IDLE and self._control.may_doubt and wanted:
            return DraftEnd.DOUBT
        if self.draft_state is DraftState.IDLE and self._control.stop_below:
            return DraftEnd.ENOUGH
        return DraftEnd.SHORT if len(guesses) < wanted else DraftEnd.ENOUGH
