"""What a draft may still send on one stream, by what it was asked. Pure.

A peer decides how much it sends; here it is decided how much of that is in order. What goes beyond
ends the stream, so that nobody fills this process or keeps its event loop from others.
"""

from __future__ import annotations

from outrider.errors import InvalidRequest
from outrider.messages import MAX_DRAFT, Frame, Order

_SPARE = 16
"""Messages that every order is good for besides one for each token it may bring."""

_MOST_MESSAGES = 4 * (MAX_DRAFT + _SPARE)  # a draft gathers what it has of runner-up lines
"""Orders that go unanswered add up to no more than this."""

_MOST_MISSING = 4
"""Answers in a row that the text is not held: each is sent the whole of it again."""


class Allowance:
    """Counts what was ordered and what came.

    `_horizon` is the furthest position that was ever ordered, `_messages` what may still come
    before the next order, and `_missing` the answers since the last token that say nothing is held.
    """

    def __init__(self) -> None:
        self._horizon = 0
        self._newest_order = 0
        self._messages = _SPARE
        self._missing = 0
        self._forks = False  # runner-up lines were asked for

    def note_order(self, order: Order) -> None:
        """Take note of an order before it is sent."""
        self._horizon = max(self._horizon, order.draft_until)
        self._newest_order = order.number
        # A line that is complete may be followed by messages of runner-up lines alone.
        asked = max(0, order.draft_until - order.committed.end) * order.line_count + _SPARE
        self._forks |= order.line_count > 1
        self._messages = min(_MOST_MESSAGES, self._messages + asked)

    def take_message(self, completed_order: int) -> None:
        """Take note of a message. Raises InvalidRequest for one that nobody asked for."""
        self._messages -= 1
        if self._messages < 0:
            raise InvalidRequest("response", "more messages than the orders asked for")
        if not 0 <= completed_order <= self._newest_order:
            raise InvalidRequest("completed_order", f"{completed_order} was not given yet")

    def take_frame(self, frame: Frame) -> None:
        """Take note of a frame. Raises InvalidRequest for tokens that nobody asked for."""
        end = frame.position + len(frame.token_ids)
        if end > self._horizon:
            raise InvalidRequest("token_ids", f"up to {end}, ordered up to {self._horizon}")
        if frame.token_ids:
            self._missing = 0
        for piece in frame.runner_ups:
            last = piece.position + len(piece.token_ids)
            if not self._forks:
                raise InvalidRequest("runner_up_lines", "were not asked for")
            if last > self._horizon:
                raise InvalidRequest("token_ids", f"up to {last}, ordered up to {self._horizon}")

    def take_missing(self, held_count: int) -> None:
        """Take note that the text is not held. Raises InvalidRequest when that continues."""
        self._missing += 1
        if held_count < 0 or self._missing > _MOST_MISSING:
            raise InvalidRequest("missing", "holds nothing of what it is sent again and again")
