"""Rounds at a target until their rows are complete, and what it says that they took."""

from __future__ import annotations

from orchestrator.core.estimates import ServiceTime
from orchestrator.timings import EngineSeconds
from outrider.errors import InvalidRequest
from outrider.messages import Round, Rows
from outrider.v1 import common_pb2


def of_decodes(spent: EngineSeconds) -> ServiceTime:
    return ServiceTime(
        decode=spent.decode,
        queue=spent.queue,
        rows=spent.rows,
        attended=spent.attended,
        draft=spent.own_draft,
        sample=spent.sample,
    )


def seconds_of(message: common_pb2.ServiceTime) -> EngineSeconds:
    spent = EngineSeconds()
    spent.add(message)
    return spent


class SentRound:
    """A round at the target; its rows may come in several messages."""

    def __init__(self, round_: Round, now: float) -> None:
        self.time = now
        self.service = EngineSeconds()  # of the messages so far
        self.draft_wait = 0.0  # before it was sent
        self.draft_network = 0.0  # of `draft_wait`, what the draft's own time does not explain
        self._expected = round_.row_count  # rows; fewer where the target cut the round
        self._may_be_cut = bool(round_.survivals)
        self._rows = Rows()  # so far, in order and without gaps

    def expect(self, answered: int) -> None:
        """Note that fewer rows come than were asked for; 0 is all of them."""
        if not 0 <= answered <= self._expected or (answered and not self._may_be_cut):
            raise InvalidRequest("answered_row_count", f"{answered} of {self._expected}")
        self._expected = answered or self._expected

    def add(self, first: int, rows: Rows) -> Rows | None:
        """Return all rows once the last one came; ignore repeats of the first ones."""
        if first == 0:
            self._rows = Rows()
        if first != len(self._rows):
            raise InvalidRequest("rows", f"row {first} came after {len(self._rows)} rows")
        self._rows = Rows.join([self._rows, rows])
        if len(self._rows) > self._expected:
            raise InvalidRequest("rows", f"more than the {self._expected} asked for")
        return self._rows if len(self._rows) == self._expected else None
