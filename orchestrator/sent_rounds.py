"""Rounds at a target until their rows are complete, and what it says that they took."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.core.estimates import ServiceTime
from orchestrator.timings import EngineSeconds, Timings
from outrider import wire
from outrider.errors import InvalidRequest
from outrider.messages import Answer, Form, Round, Rows
from outrider.v1 import common_pb2, target_service_pb2


def of_decodes(spent: EngineSeconds) -> ServiceTime:
    return ServiceTime(
        decode=spent.decode,
        queue=spent.queue,
        rows=spent.rows,
        attended=spent.attended,
        draft=spent.own_draft,
        sample=spent.sample,
        sessions=spent.sessions,
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

    def take(self, message: target_service_pb2.Rows, vocabulary: int, form: Form) -> Rows | None:
        """Return all rows once a message brings the last one. Raises InvalidRequest for nonsense.

        They are of a form, over so many tokens.
        """
        self._expect(message.answered_row_count)
        piece = wire.read_rows(message, vocabulary)
        piece.check(form)
        return self._add(message.first_row, piece)

    def _expect(self, answered: int) -> None:
        """Note that fewer rows come than were asked for; 0 is all of them."""
        if not 0 <= answered <= self._expected or (answered and not self._may_be_cut):
            raise InvalidRequest("answered_row_count", f"{answered} of {self._expected}")
        self._expected = answered or self._expected

    def _add(self, first: int, rows: Rows) -> Rows | None:
        """Return all rows once the last one came; ignore repeats of the first ones."""
        if first == 0:
            self._rows = Rows()
        if first != len(self._rows):
            raise InvalidRequest("rows", f"row {first} came after {len(self._rows)} rows")
        self._rows = Rows.join([self._rows, rows])
        if len(self._rows) > self._expected:
            raise InvalidRequest("rows", f"more than the {self._expected} asked for")
        return self._rows if len(self._rows) == self._expected else None


class DraftWait:
    """How long the target is idle for the draft before a round is sent."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings
        self._since: float | None = None  # when the target fell idle; None while it works
        self._service = 0.0  # the draft's own time until then

    def begin(self, now: float) -> None:
        """The target has nothing to do until the draft sends more."""
        if self._since is None:
            self._since, self._service = now, self._timings.draft.total

    def end(self, sent: SentRound) -> None:
        """Count the wait for a round that is sent, if there was one."""
        if self._since is None:
            return
        timings = self._timings
        sent.draft_wait = sent.time - self._since
        its_own = timings.draft.total - self._service
        sent.draft_network = max(0.0, sent.draft_wait - its_own)
        timings.draft_wait += sent.draft_wait
        timings.draft_network += sent.draft_network
        self._since = None


def note_answer(
    timings: Timings,
    sent: SentRound,
    spent: EngineSeconds,
    waited: float,
    answer: Answer,
    each: Sequence[EngineSeconds],
    plain_share: Callable[[int], float],
) -> None:
    """Count an answer that was waited for, where its rows took the target's own time `spent`.

    `each` is of its decodes, if known; `plain_share` is what one row takes of so many rows' decode.
    """
    if timings.trace is not None:
        timings.trace.note_answer(sent.draft_wait, spent, waited, answer, not timings.prompt)
    network = max(0.0, waited - spent.total)
    timings.draft.decode += spent.own_draft
    timings.draft_wait += spent.own_draft
    timings.verify_wait += max(0.0, waited - spent.own_draft)
    timings.verify_network += network
    phases, count = timings.rounds, answer.decode_count
    phases.draft.note(sent.draft_wait + spent.own_draft / count)  # of its first decode
    phases.draft.note(spent.own_draft / count, count - 1)
    phases.network.note(sent.draft_network + network / count)
    phases.network.note(network / count, count - 1)
    phases.verify.note(waited / count, count)
    phases.queue.note(spent.queue / count, count)
    phases.decode.note(spent.decode / count, count)
    phases.sample.note(spent.sample / count, count)
    sent.draft_wait = sent.draft_network = 0.0
    if not timings.prompt:
        timings.prompt = waited
        return
    timings.plain += max(0.0, waited - spent.decode - spent.own_draft)
    if each:
        shares = map(plain_share, answer.row_counts)
        timings.plain += sum(e.decode * s for e, s in zip(each, shares, strict=True))
    else:
        timings.plain += spent.decode * plain_share(answer.drafted + 1)
    timings.plain_rounds += answer.decode_count
