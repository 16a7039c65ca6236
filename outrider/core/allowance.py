"""What a peer may still send on one stream, by what it was asked. Pure.

A peer decides how much it sends; here it is decided how much of that is in order. What goes beyond
ends the stream, so that nobody fills this process or keeps its event loop from others.
"""

from __future__ import annotations

from outrider.errors import InvalidRequest
from outrider.messages import MAX_CONTINUED, MAX_DRAFT, Frame, Order, Round

_SPARE = 16
"""Messages that whatever is asked is good for besides those with the answer: a few say that there
is no room, or that something is lost or superseded, and a link may repeat each."""

_MOST_LOST = 16
"""Answers in a row that what was asked is lost: after each the whole text is sent again. A target
whose cache is full of others' texts says so some times, a draft that cannot hold it for ever."""


class Allowance:
    """Counts the messages of a peer, and its answers that bring nothing."""

    def __init__(self, most: int) -> None:
        """What goes unanswered adds up to `most` messages."""
        self._most = most
        self._messages = _SPARE  # that may still come before something is asked
        self._lost = 0  # answers since the newest progress that say that something is lost

    def note_asked(self, count: int) -> None:
        """Something is asked that so many messages may answer."""
        self._messages = min(self._most, self._messages + count + _SPARE)

    def take_message(self) -> None:
        """Take note of a message. Raises InvalidRequest for one that nobody asked for."""
        self._messages -= 1
        if self._messages < 0:
            raise InvalidRequest("response", "more messages than were asked for")

    def take_lost(self) -> None:
        """Take note that what was asked is lost. Raises InvalidRequest where that continues."""
        self._lost += 1
        if self._lost > _MOST_LOST:
            raise InvalidRequest("response", "loses what it is sent again and again")

    def note_progress(self) -> None:
        """It brought something of what it was asked for."""
        self._lost = 0


class RoundAllowance(Allowance):
    """Of a target, which may answer a round row by row, and by each decode that follows."""

    def __init__(self) -> None:
        super().__init__(2 * (MAX_CONTINUED + MAX_DRAFT))

    def note_round(self, round_: Round) -> None:
        """Take note of a round before it is sent."""
        self.note_asked(2 * (round_.row_count + round_.continue_count))  # a link may repeat each


class OrderAllowance(Allowance):
    """Of a draft, which sends no tokens beyond the furthest position that was ever ordered."""

    def __init__(self) -> None:
        super().__init__(4 * (MAX_DRAFT + _SPARE))  # it gathers what it has of runner-up lines
        self._horizon = 0
        self._newest_order = 0
        self._forks = False  # runner-up lines were asked for

    def note_order(self, order: Order) -> None:
        """Take note of an order before it is sent."""
        self._horizon = max(self._horizon, order.draft_until)
        self._newest_order = order.number
        # A line that is complete may be followed by messages of runner-up lines alone.
        self.note_asked(max(0, order.draft_until - order.committed.end) * order.line_count)
        self._forks |= order.line_count > 1

    def take_completed(self, order: int) -> None:
        """Take note of a message that completes an order. Raises InvalidRequest for an odd one."""
        self.take_message()
        if not 0 <= order <= self._newest_order:
            raise InvalidRequest("completed_order", f"{order} was not given yet")

    def take_frame(self, frame: Frame) -> None:
        """Take note of a frame. Raises InvalidRequest for tokens that nobody asked for."""
        end = frame.position + len(frame.token_ids)
        if end > self._horizon:
            raise InvalidRequest("token_ids", f"up to {end}, ordered up to {self._horizon}")
        if frame.token_ids:
            self.note_progress()
        for piece in frame.runner_ups:
            last = piece.position + len(piece.token_ids)
            if not self._forks:
                raise InvalidRequest("runner_up_lines", "were not asked for")
            if last > self._horizon:
                raise InvalidRequest("token_ids", f"up to {last}, ordered up to {self._horizon}")
