"""What to ask of the target and of the draft next, by what is committed. Pure.

Several rounds may be at the target at once: each after the first assumes that the one before is
accepted in full and that the line continues as drafted; the first mismatch drops all later ones.
Where a target writes by itself, its newest round is only followed: by more of the line, by more
that it may write, or by a change of mind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import TypeVar

from outrider.core.actions import Action, Wake
from outrider.core.branching import as_bytes, branch
from outrider.core.counts import Counts
from outrider.core.draft_line import Line
from outrider.core.draft_progress import DraftState
from outrider.core.local_drafters import LocalDrafters, LocalLine
from outrider.core.outcomes import Choice
from outrider.core.plan import Plan
from outrider.core.remote_draft import RemoteDraft
from outrider.core.target_progress import RoundInFlight, TargetProgress
from outrider.distribution import certain
from outrider.messages import (
    MAX_CONTINUED,
    MAX_DRAFT,
    NO_OWN_DRAFT,
    DraftEnd,
    Form,
    OwnDraftOrder,
    Round,
    Rule,
    Span,
)

T = TypeVar("T")


class Asking:
    """Asks for the rounds and orders of one generation. It commits nothing."""

    def __init__(
        self,
        plan: Plan,
        committed: Sequence[int],
        counts: Counts,
        target: TargetProgress,
        remote: RemoteDraft,
        local: LocalDrafters,
    ) -> None:
        """`committed` and `counts` are the generation's, and grow with it."""
        self._plan = plan
        self._control = plan.control
        self._committed = committed
        self._counts = counts
        self._target = target
        self._remote = remote
        self._draft = remote.progress
        self._local = local
        self.waits_for_draft = False
        """Whether the newest actions were to wait for more of the line."""
        self._block = (-1, 0)  # under `rejection`: a length of the text, the draft length there
        self._actions: list[Action] = []  # that are about to be returned

    @property
    def only_reads(self) -> bool:
        """Whether the prompt is to be read and nothing written, and that is still to be done."""
        return self._plan.opening.token_limit == 0 and not self._counts.rounds

    @property
    def _remaining(self) -> int:
        """The tokens that may still follow the text."""
        return self._plan.remaining(len(self._committed))

    def next_actions(self, now: float) -> list[Action]:
        """Return what is to be asked now, or when to look again; nothing that was asked already."""
        self._actions, self.waits_for_draft = [], False
        self._ask_for_more(now)
        return self._actions

    def _ask_for_more(self, now: float) -> None:
        if not self._target.in_flight:
            self._ask_for_a_round(now)
        elif self._target.in_flight[-1].round.continue_count:
            self._follow(now)
        elif self._draft.needs_order:
            self._order_draft(0, 0, now)
        elif len(self._committed) != self._draft.ordered_length and self._control.runs_ahead():
            # Text was committed while later rounds stay in flight: the line may be extended.
            wanted = self._control.draft_count(self._remote.cap(len(self._committed)))
            self._order_draft(wanted, self._control.lookahead(), now)
        while self._ask_ahead():
            pass
        if not self._target.is_open:
            return
        for each in self._target.in_flight:
            if each.sent_time is None:
                each.sent_time = now
                each.draft_busy = self._draft.owes
                self._control.note_sent()
                self._actions.append(each.round)

    def _ask_for_a_round(self, now: float) -> None:
        """Ask the target about the text and a line, or wait for more of the draft's."""
        length = len(self._committed)
        cap, local = self._remote.cap(length), self._local_line(length)
        is_ahead = self._control.runs_ahead()  # then it costs the target nothing to draft on
        wanted = self._wanted(length, cap) if local is None or local.worth <= 0 or is_ahead else 0
        self._order_draft(wanted, self._control.lookahead() if wanted else 0, now)
        self._remote.give_up_waiting(now)
        count = 0
        if self._is_rejection:
            cap = wanted  # a block is used whole or not at all
        if self._counts.rounds:
            # The first round is the prompt's: both models read it at once.
            expected = self._draft.state is DraftState.DRAFTING
            known = self._line_from(length, self._draft.line.confidences)[:cap]
            choice = self._control.choose(known, cap, now, expected)
            if better := self._better(local, choice):
                self._ask_locally(length, better)
                return
            count = choice.count
            if choice.until is not None:
                self.waits_for_draft = True
                self._actions.append(Wake(choice.until))
                return
        else:
            count = min(cap, len(self._line_from(length, self._draft.line.token_ids)))
        if self._is_rejection and not (self._draft.line.base == length and count == wanted):
            count = 0
        line = self._draft.line.line_after(length).first(count)
        asked = self._ask(length, line, self._target.prefix(self._committed))
        asked.draft_end = self._why_so_long(line.token_ids, cap, wanted)
        self._let_continue(asked, wanted, count)
        branch(asked, self._control, self._remote, self._local)

    def _local_line(self, length: int) -> LocalLine | None:
        """Return the best line of sources without a model, where one may be used now."""
        is_chosen = self._is_rejection and self._block[0] == length
        if not self._counts.rounds or is_chosen:
            return None  # under `rejection` nobody may choose with the draft's block in sight
        room = self._plan.target_context - length
        return self._local.best(self._committed, min(MAX_DRAFT, self._remaining - 1, room))

    def _better(self, local: LocalLine | None, choice: Choice) -> LocalLine | None:
        """Return a local line that is worth more than what the draft has, or is about to have.

        What is waited for is worth nothing beside the rate that it makes, which is the best known.
        """
        least = choice.worth
        if self._draft.state is DraftState.DRAFTING and not self._control.probing:
            least = max(least, 0.0)
        return local if local is not None and local.worth > least else None

    def _ask_locally(self, length: int, local: LocalLine, is_waited_for: bool = True) -> None:
        """Ask the target about a line of sources without a model.

        It stops after it for the next one, or continues by itself.
        """
        chances = local.chances[: local.count]
        continue_count = 0 if self._control.waits_for_lines(chances) else self._continue_count(0)
        line = local.line if continue_count else local.line.first(local.count)
        asked = self._ask(length, line, self._target.prefix(self._committed), chances=local.chances)
        asked.is_waited_for = is_waited_for
        asked.draft_end = DraftEnd.ENOUGH
        if asked.round.draft[-1] in self._plan.end_token_ids:
            asked.draft_end = DraftEnd.END_OF_TEXT
        if continue_count:
            own = self._control.own_draft
            asked.round = replace(
                asked.round,
                form=Form.SAMPLED,
                continue_count=continue_count,
                decode_limit=local.count,
                own_draft=own,
            )
        branch(asked, self._control, self._remote, self._local)

    def _follow(self, now: float) -> None:
        """Keep a target that continues by itself supplied with the line, and leave to write."""
        if not self._counts.rounds:
            return
        length, newest = len(self._committed), self._target.in_flight[-1]
        # Under `rejection` a block follows a text that stands still.
        cap, local = 0 if self._is_rejection else self._remote.cap(length), self._local_line(length)
        wanted = self._wanted(length, cap)
        if self._draft.needs_order or length != self._draft.ordered_length:
            self._order_draft(wanted, self._control.lookahead() if wanted else 0, now)
        self._remote.give_up_waiting(now)
        confidences = self._line_from(length, self._draft.line.confidences)[:cap]
        choice = self._control.choose(confidences, cap, now, False)
        limit = choice.count
        line = self._draft.line.line_after(length).first(cap if limit else 0)
        if better := self._better(local, choice):
            line, limit = better.line, better.count
        continue_count = self._continue_count(0 if better else wanted)
        brings = newest.is_overtaken_by(line.token_ids, limit, self._committed)
        if not brings and not self._has_to_hear(newest, wanted, continue_count):
            return
        if better:
            self._ask_locally(length, better, is_waited_for=False)
            return
        asked = self._ask(length, line, self._target.prefix(self._committed))
        asked.draft_end = self._why_so_long(line.token_ids, cap, wanted)
        asked.is_waited_for = False
        self._let_continue(asked, wanted, limit)

    def _has_to_hear(self, newest: RoundInFlight, wanted: int, continue_count: int) -> bool:
        """Whether a target that continues needs a message: to write on, otherwise, or to stop."""
        left = newest.round.continue_until - len(self._committed)
        changes = self._own_order(wanted) != newest.round.own_draft
        changes |= self._remote.wants_rows != newest.round.wants_rows
        return 2 * left < continue_count or changes or (left > 0 and not continue_count)

    def _let_continue(self, asked: RoundInFlight, wanted: int, limit: int) -> None:
        """Let the target write by itself after a round, verifying `limit` at once at most."""
        if continue_count := self._continue_count(wanted):
            own = self._own_order(wanted)
            asked.round = replace(
                asked.round,
                form=Form.SAMPLED,
                continue_count=continue_count,
                decode_limit=limit if asked.round.draft else 0,
                gathers=self._may_gather(wanted, own),
                own_draft=own,
            )

    def _may_gather(self, wanted: int, own: OwnDraftOrder) -> bool:
        """Whether nothing waits for the tokens that the target writes by itself, one by one."""
        if wanted and not self._control.probing:
            return False
        is_awaited = own.count and (self._plan.is_watched or not self._control.own_pays)
        return not is_awaited and not self._local.expects(len(self._committed))

    def _own_order(self, wanted: int) -> OwnDraftOrder:
        """Return what the target's own draft is to do: nothing where another one is wanted."""
        is_used = wanted and not self._control.probing
        return NO_OWN_DRAFT if is_used else self._control.own_draft

    def _continue_count(self, wanted: int) -> int:
        """Return the tokens that the target may write by itself now; 0: it waits for a draft.

        Under `rejection` it writes so with a draft of its own alone, which it judges itself.
        """
        if not self._target.continues or self._plan.rollback_calls or self.only_reads:
            return 0
        if self._plan.form is not Form.SAMPLED and (wanted or not self._control.own_draft.count):
            return 0
        is_late = self._draft.state is DraftState.LATE
        if wanted and not is_late and self._control.waits_for_drafts:
            return 0
        room = self._plan.target_context + 1 - len(self._committed)
        return max(0, min(MAX_CONTINUED, self._remaining, room))

    def _wanted(self, length: int, cap: int) -> int:
        """Return how many tokens to draft anew; a block's length is chosen once, before it."""
        if self._is_rejection and self._block[0] == length:
            return min(self._block[1], cap)
        self._control.note_unread(length - self._draft.known_length, self._remaining)
        wanted = self._control.draft_count(cap)
        if cap:
            self._block = (length, wanted)
        return wanted

    def _ask_ahead(self) -> bool:
        """Ask for a round more that assumes those in flight; return whether there is one."""
        in_flight = self._target.in_flight
        if not in_flight or self._is_rejection or self._plan.rollback_calls:
            return False
        if self._plan.opening.sampling.mirostat:
            return False  # its state is in the answer
        last = in_flight[-1]
        if last.round.continue_count or last.line.sources or last.round.parents:
            return False  # it needs no answer, or none can say what follows it
        count = len(last.round.draft)
        if len(in_flight) > self._control.rounds_ahead(count) or not count:
            return False
        pending = last.length + count
        guesses = self._line_from(pending, self._draft.line.token_ids)
        count = self._control.draft_count(self._remote.cap(pending + 1))
        if not 0 < count < len(guesses) or guesses[0] in self._plan.end_token_ids:
            return False
        line = self._draft.line.line_after(pending + 1).first(count)
        asked = self._ask(pending + 1, line, Span(pending, guesses[:1]), is_ahead=True)
        asked.draft_end = DraftEnd.LENGTH
        return True

    @property
    def _is_rejection(self) -> bool:
        return self._plan.opening.rule is Rule.REJECTION

    def _line_from(self, length: int, what: list[T]) -> list[T]:
        """Return the part of the line's tokens, or of what came with them, from a length on."""
        return what[self._draft.line.after(length)]

    def _order_draft(self, wanted: int, ahead: int, now: float) -> None:
        order = self._remote.order(self._committed, wanted, ahead, now)
        if order is not None:
            self._actions.append(order)

    def _ask(
        self,
        length: int,
        line: Line,
        prefix: Span,
        is_ahead: bool = False,
        chances: Sequence[float] | None = None,
    ) -> RoundInFlight:
        """Put a round with a line in flight; `chances` are its tokens', if not by confidence."""
        draft, form = list(line.token_ids), self._plan.form
        if any(each.round.continue_count for each in self._target.in_flight):
            form = Form.SAMPLED  # what it wrote meanwhile is
        if form is not Form.SAMPLED and line.sources:
            line = replace(line, rows=[certain(token_id) for token_id in draft])
        survivals = self._survivals(line, chances)
        number, mu = self._target.next_number(), self._target.mirostat_mu
        round_ = Round(number, prefix, draft, form, is_ahead, survivals, mu)
        if self._remote.wants_rows:
            round_ = replace(round_, wants_rows=True)
        asked = RoundInFlight(round_, length, line, draft_source=self._control.rates.source)
        self._target.in_flight.append(asked)
        return asked

    def _survivals(self, line: Line, chances: Sequence[float] | None) -> bytes:
        """Return how likely each token of a line and all before it are right; none if all count."""
        if self._plan.form is not Form.SAMPLED or not self._control.may_be_cut:
            return b""
        count = len(line.token_ids)
        if chances is None:
            return as_bytes(self._control.acceptance.survival(line.confidences, count))
        return as_bytes(accumulate(chances[:count], mul))

    def _why_so_long(self, draft: Sequence[int], cap: int, wanted: int) -> DraftEnd:
        """Return why a round's draft has just these tokens.

        At most `cap` may be verified, of `wanted` that the controller asked for.
        """
        control, progress = self._control, self._draft
        if draft and draft[-1] in self._plan.end_token_ids:
            return DraftEnd.END_OF_TEXT
        if not control.speculation.drafts:
            return DraftEnd.OFF
        if progress.is_absent:
            return DraftEnd.ABSENT
        if progress.pause:
            return DraftEnd.PAUSED
        if not draft and not self._counts.rounds:
            return DraftEnd.PROMPT
        unhindered = control.draft_count(MAX_DRAFT)
        if len(draft) == cap < unhindered:
            return DraftEnd.TOKEN_LIMIT if self._remaining - 1 <= cap else DraftEnd.CONTEXT
        if draft and len(draft) >= unhindered:
            return DraftEnd.LENGTH
        if progress.state is DraftState.LATE:
            return DraftEnd.LATE
        if progress.state is DraftState.IDLE and control.may_doubt and wanted:
            return DraftEnd.DOUBT
        if progress.state is DraftState.IDLE and control.stop_below:
            return DraftEnd.ENOUGH
        return DraftEnd.SHORT if len(draft) < wanted else DraftEnd.ENOUGH
