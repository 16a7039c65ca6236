"""A draft over a stream as a source of draft tokens: its orders, and what came of its line. Pure.

What is known of it is in `DraftProgress`; here it is decided what to order, and the controller
learns how good its line was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outrider.core.counts import Counts
from outrider.core.draft_line import Compared, ForkedLine, Line
from outrider.core.draft_progress import DraftProgress, DraftState
from outrider.core.plan import Plan
from outrider.messages import MAX_DRAFT, Frame, Order, Rule
from outrider.row_window import NO_ROWS, RowWindow


class RemoteDraft:
    """One draft of one generation, over all its streams."""

    def __init__(self, plan: Plan, counts: Counts) -> None:
        """`counts` are the generation's: the draft's faults are counted there."""
        self.progress = DraftProgress()
        self._plan = plan
        self._control = plan.control
        self._counts = counts
        self._line_count = 1  # that the newest order asks for, its own included
        self._rows = NO_ROWS  # hidden ones of the text that came, for a head

    # --- what happened ---

    def lose(self) -> None:
        """The stream is gone."""
        if not self.progress.is_absent:
            self._counts.draft_faults += 1
            self.progress.pause_for(self._control.pause())
        self.progress.lose()

    def take_frame(
        self, frame: Frame, committed: Sequence[int], now: float, seconds: float, queue: float
    ) -> None:
        """A piece of the line arrived; the draft worked `seconds` and waited `queue` for it."""
        draft, line = self.progress, self.progress.line
        if self._is_rejection and len(frame.rows) != len(frame.token_ids):
            line.drop()
        else:
            is_first = frame.base > line.base
            compared = line.add(frame, committed)
            if frame.runner_ups:  # their rows took some of the time
                ratios = self._control.rates.line_ratios
                seconds /= ratios[min(self._line_count, len(ratios)) - 1]
            count = len(frame.token_ids) if compared.is_news or draft.is_new else 0
            if count:
                self._control.note_frame(
                    now, frame.base, count, seconds, is_first, queue, draft.is_new
                )
            draft.is_new = draft.is_new and not frame.token_ids
            self._note_line(compared)
        draft.note_completed(frame.completed)

    def note_rounds(self, committed: Sequence[int], count: int) -> None:
        """So many rounds were verified, and this is the text now."""
        self._note_line(self.progress.line.compare(committed))
        self.progress.note_rounds(count)

    def _note_line(self, compared: Compared) -> None:
        """Report to the controller how good the line was, and which orders it still answers."""
        if not self._is_rejection:
            self._note_decided(compared.decided, compared.mismatch is None)
        line = self.progress.line
        if compared.mismatch is not None and (self._line_count > 1 or compared.foreseen):
            self._note_miss(compared)
        if compared.mismatch is not None and not compared.foreseen:
            self._control.line_lost(compared.mismatch)
        elif line.token_ids:
            self._control.line_agrees(line.end)

    def _note_miss(self, compared: Compared) -> None:
        """Count a miss for which runner-up lines were written; the text may continue with one.

        The draft has to hear of it, whether or not more of that line is wanted.
        """
        self._counts.note_miss(compared.foreseen and len(compared.left) > 0)
        if compared.foreseen:
            self.progress.needs_order = True
            self._note_decided(compared.after, True)

    def _note_decided(self, confidences: Sequence[int], agrees: bool) -> None:
        """Count tokens compared with the text, of which the last one differs if not all agree."""
        self._control.note_line(confidences, agrees)
        if count := len(confidences):
            agreed = count if agrees else count - 1
            self._counts.note_compared(self._control.rates.source, count, agreed)

    def note_rows(self, rows: RowWindow, length: int) -> None:
        """Hidden rows of the text, of this length, came: those of rejected tokens are dropped.

        So are those of a width that the head does not read.
        """
        width = self.progress.row_width
        if width and rows.has_width(width):
            self._rows = self._rows.followed_by(rows).until(length - 1)

    def note_missing(self, order: int, held: int, length: int) -> None:
        """It holds less of the text, of this length, than the order assumed."""
        if order == self.progress.order:
            self._counts.draft_faults += 1
            self.progress.note_missing(held, length)

    def note_refused(self, order: int) -> None:
        """It is busy, or its context is full: this order brings nothing."""
        if order == self.progress.order:
            self.progress.note_refused()

    def give_up_waiting(self, now: float) -> None:
        """Continue plainly until the draft answers, if its order is long overdue."""
        if self.progress.state is DraftState.DRAFTING and self._control.is_late(now):
            self._counts.draft_faults += 1
            self.progress.note_overdue()
            self.progress.pause_for(self._control.pause())

    # --- asked ---

    @property
    def wants_rows(self) -> bool:
        """Whether it is a head that something is wanted of: the target is asked for hidden rows."""
        draft = self.progress
        is_there = draft.row_width > 0 and not draft.is_absent
        return is_there and self._control.draft_count(MAX_DRAFT) > 0

    @property
    def _is_rejection(self) -> bool:
        return self._plan.opening.rule is Rule.REJECTION

    def line_at(self, length: int) -> Line:
        """Return what can be used of the line after the first `length` tokens of the text."""
        return self.progress.line.line_after(length).first(self.cap(length))

    def forks_at(self, length: int) -> Sequence[ForkedLine]:
        """Return the runner-up lines that leave it after the first `length` tokens of the text."""
        cap, forks = self.cap(length), self.progress.line.forks_after(length)
        return [replace(each, line=each.line.first(cap)) for each in forks if each.fork < cap]

    def cap(self, length: int) -> int:
        """Return how many of its tokens a round after `length` tokens may carry.

        A verify always adds one token of the target's own, so the last one
        that may be generated need not be drafted.
        """
        draft = self.progress
        if draft.is_absent or draft.pause:
            return 0
        if self._is_rejection and not self._counts.rounds:
            return 0
        room = min(self._plan.target_context, draft.context) - length
        return max(0, min(MAX_DRAFT, self._plan.remaining(length) - 1, room))

    def order(self, committed: Sequence[int], wanted: int, ahead: int, now: float) -> Order | None:
        """Return an order with what is committed, if it must know that to extend its line.

        `wanted` tokens are for the next round, and `ahead` more for later ones.
        """
        draft, control, length = self.progress, self._control, len(committed)
        if not self._may_order(length, wanted):
            return None
        until = length + min(wanted + ahead, self.cap(length))
        if not draft.needs_order and not self._is_news(length, wanted, until):
            return None
        continues = draft.state is DraftState.DRAFTING and bool(self._usable(length))
        lines = control.line_count if ahead and not self._is_rejection else 1
        self._line_count = lines
        span = draft.extend(committed, until, lines)
        rows = self._rows.since(draft.rows_end) if draft.row_width else NO_ROWS
        draft.rows_end = max(draft.rows_end, rows.end)
        frame_tokens = 0 if ahead else wanted
        if not continues:
            control.note_order(now, length, frame_tokens, len(span.token_ids))
        stop_below = 0 if ahead else control.stop_below
        split = control.speculation.p_split if lines > 1 else 0.0
        return Order(draft.order, span, until, frame_tokens, stop_below, lines, split, rows)

    def _may_order(self, length: int, wanted: int) -> bool:
        """Return whether the draft is there for the text, and neither left alone nor late."""
        draft, control = self.progress, self._control
        if draft.is_absent or self._plan.remaining(length) <= 1:
            return False
        if wanted == 0 and control.sends_no_text:
            return False
        if draft.row_width and self._rows.end != length - 1:
            return False  # a head would not know what the last token but one was to the target
        return draft.state is not DraftState.LATE or control.asks_late_again(draft.late_rounds)

    def _is_news(self, length: int, wanted: int, until: int) -> bool:
        """Return whether the draft would stop too early, or go astray, without a new order."""
        draft = self.progress
        if wanted == 0 or (length == draft.ordered_length and until <= draft.ordered_until):
            return False
        if self._control.probing and draft.state is DraftState.DRAFTING:
            return False
        have = len(self._usable(length))
        if have:
            return have < wanted if until <= length + wanted else draft.ordered_until < until
        return True

    def _usable(self, length: int) -> list[int]:
        """Return the guesses that follow the text, under the rejection rule only a block's own."""
        line = self.progress.line
        if self._is_rejection and line.base != length:
            return []
        return line.token_ids[line.after(length)]
