"""How far the draft is: what it was sent, what it holds, what it still owes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from outrider.core.draft_line import ReceivedLine
from outrider.messages import Span


class DraftState(Enum):
    """What the draft is doing, as far as is known."""

    ABSENT = "absent"  # no stream
    IDLE = "idle"  # nothing ordered, or the order is complete
    DRAFTING = "drafting"  # ordered, and worth waiting for
    LATE = "late"  # ordered, past its deadline: nobody waits for it


class DraftEvent(Enum):
    """What changes the state."""

    OPENED = "opened"  # a stream
    LOST = "lost"  # the stream
    ORDERED = "ordered"  # more of the line
    ANSWERED = "answered"  # the newest order, by all its tokens or by saying why there are none
    OVERDUE = "overdue"  # the newest order


_ABSENT, _IDLE = DraftState.ABSENT, DraftState.IDLE
_DRAFTING, _LATE = DraftState.DRAFTING, DraftState.LATE

TRANSITIONS: Mapping[DraftEvent, Mapping[DraftState, DraftState]] = {
    DraftEvent.OPENED: {_ABSENT: _IDLE, _IDLE: _IDLE, _DRAFTING: _IDLE, _LATE: _IDLE},
    DraftEvent.LOST: {_ABSENT: _ABSENT, _IDLE: _ABSENT, _DRAFTING: _ABSENT, _LATE: _ABSENT},
    # Nothing is ordered of a draft that is absent. Nobody waits for the answer to an order that a
    # late draft is probed with; it shows that the draft is back.
    DraftEvent.ORDERED: {_IDLE: _DRAFTING, _DRAFTING: _DRAFTING, _LATE: _LATE},
    DraftEvent.ANSWERED: {_ABSENT: _ABSENT, _IDLE: _IDLE, _DRAFTING: _IDLE, _LATE: _IDLE},
    DraftEvent.OVERDUE: {_DRAFTING: _LATE},
}


@dataclass(slots=True)
class DraftProgress:
    """One draft, over all its streams."""

    state: DraftState = DraftState.ABSENT
    context: int = 0  # tokens that its session holds at most; of the newest stream
    order: int = 0  # the number of the newest order; it rises over all streams
    # Tokens of the text that it was sent on this stream; never more than there are.
    known_length: int = 0
    line: ReceivedLine = field(default_factory=ReceivedLine)  # empty on a new stream
    pause: int = 0  # rounds that still are made without it; its line is dropped while it has any
    is_new: bool = False  # no token came on this stream: its times say nothing yet
    ordered_length: int = -1  # the text's length when it was ordered last; -1 before
    ordered_until: int = -1  # the furthest position of that order; -1 before
    missed_length: int = -1  # the text's length when it last held too little; -1 on a new stream
    late_rounds: int = 0  # rounds since the newest order, or since that became late
    needs_order: bool = False  # is to be sent the text whether or not more of its line is wanted
    row_width: int = 0  # numbers of a hidden row that it reads, where it is a head; else 0
    rows_end: int = 0  # position up to which it was sent those; 0 on a new stream

    @property
    def is_absent(self) -> bool:
        """Whether there is no stream."""
        return self.state is DraftState.ABSENT

    @property
    def owes(self) -> bool:
        """Whether something is ordered that did not come."""
        return self.state in (DraftState.DRAFTING, DraftState.LATE)

    @property
    def is_silent(self) -> bool:
        """Whether it owes tokens that were ordered, and none came on this stream."""
        return self.owes and self.is_new and self.ordered_until > self.ordered_length

    def open(self, context: int, row_width: int = 0) -> None:
        """Begin with a stream; the last orders of the one before may never have arrived."""
        self._happen(DraftEvent.OPENED)
        self.context, self.row_width, self.rows_end = context, row_width, 0
        self.line = ReceivedLine()
        self.known_length = 0
        self.is_new = True
        self.missed_length = -1
        self.needs_order = True

    def lose(self) -> None:
        """Be without a stream, and so without a line."""
        self._happen(DraftEvent.LOST)
        self.line = ReceivedLine()

    def note_completed(self, order: int) -> None:
        """All tokens of an order came; older orders than the newest say nothing."""
        if order == self.order:
            self._happen(DraftEvent.ANSWERED)

    def note_missing(self, held: int, length: int) -> None:
        """The newest order found `held` tokens of the text, whose length is `length`, and too few.

        It is sent more at once, but only once a round.
        """
        self._happen(DraftEvent.ANSWERED)
        self.known_length = held if held < self.known_length else 0
        self.rows_end = 0
        self.line = ReceivedLine()
        self.needs_order = True
        if self.missed_length == length:
            self.pause = max(self.pause, 1)
        self.missed_length = length

    def note_refused(self) -> None:
        """The newest order brings nothing."""
        self._happen(DraftEvent.ANSWERED)
        self.pause = max(self.pause, 1)

    def note_overdue(self) -> None:
        """Wait no more for the newest order."""
        self._happen(DraftEvent.OVERDUE)
        self.late_rounds = 0

    def note_rounds(self, count: int) -> None:
        """So many rounds were verified."""
        self.pause = max(0, self.pause - count)
        self.late_rounds += count

    def pause_for(self, rounds: int) -> None:
        """Make so many rounds without it."""
        self.pause = rounds
        if rounds:
            self.line.drop()

    def roll_back(self, count: int) -> None:
        """Rollback was called: it holds `count` tokens of the text at most, and no line."""
        self.known_length = min(self.known_length, count)
        self.line.drop()

    def extend(self, committed: Sequence[int], until: int, line_count: int = 1) -> Span:
        """Order `line_count` lines up to `until`; return what has to be sent of the text."""
        position = self.line.agreed(committed, self.known_length)
        self.order += 1
        self.known_length = self.ordered_length = len(committed)
        self.ordered_until = until
        self.needs_order = False
        self.late_rounds = 0
        self.line.may_fork = self.line.may_fork or line_count > 1
        self._happen(DraftEvent.ORDERED)
        return Span(position, committed[position:])

    def _happen(self, event: DraftEvent) -> None:
        self.state = TRANSITIONS[event][self.state]
