"""Rounds at a target until their rows are complete, and what it says that they took."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.timings import Timings
from outrider import wire, wire_rounds
from outrider.errors import InvalidRequest
from outrider.messages import Answer, Form, Round, Rows, ServiceTime
from outrider.row_window import NO_ROWS
from outrider.v1 import target_service_pb2
from outrider.wire_checks import within


class SentRound:
    """A round at the target; its rows may come in several messages."""

    def __init__(self, round_: Round, now: float) -> None:
        self.time = now
        self.spent = ServiceTime()  # of the messages so far
        self.hidden = NO_ROWS  # the same
        self.draft_wait = 0.0  # before it was sent
        self.draft_network = 0.0  # of `draft_wait`, what the draft's own time does not explain
        self.form = round_.form
        self._expected = round_.row_count  # rows; fewer where the target cut the round
        self._draft_count = len(round_.draft)
        self._may_be_cut = bool(round_.survivals) or round_.form is Form.DISTRIBUTIONS
        self._rows = Rows()  # so far, in order and without gaps

    def take(self, message: target_service_pb2.Rows, vocabulary: int) -> Rows | None:
        """Return all rows once a message brings the last one, over so many tokens.

        Raises InvalidRequest for nonsense.
        """
        self._expect(message.answered_row_count)
        piece = wire_rounds.read_rows(message, vocabulary)
        piece.check(self.form)
        return self._add(message.first_row, piece)

    def drafted(self, rows: Rows) -> int:
        """Return how many draft tokens its rows verify: all of those that distributions judge."""
        return self._draft_count if self.form is Form.DISTRIBUTIONS else len(rows) - 1

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


class SentRounds:
    """What one generation sent to its targets, and how long the rows took that came of it.

    `plain_share` is what one row takes of so many rows' decode.
    """

    def __init__(
        self, vocabulary: int, timings: Timings, plain_share: Callable[[int], float]
    ) -> None:
        self._vocabulary = vocabulary
        self._timings = timings
        self._plain_share = plain_share
        # By number: those whose rows are not complete.
        self._by_number: dict[int, SentRound] = {}
        self._newest = 0  # number that was sent
        self._answer_time = 0.0  # of the newest rows
        self._draft_wait = DraftWait(timings)

    def note_draft_wait(self, now: float) -> None:
        """The target has nothing to do until the draft sends more."""
        self._draft_wait.begin(now)

    def note_sent(self, round_: Round, now: float) -> None:
        """A round goes out."""
        self._newest = max(self._newest, round_.number)
        sent = self._by_number[round_.number] = SentRound(round_, now)
        self._draft_wait.end(sent)

    def forget(self) -> None:
        """Nothing more comes of what was sent so far."""
        self._by_number.clear()

    def expects(self, number: int) -> bool:
        """Return whether rows of a round may still come: it was sent, and is not over.

        Raises InvalidRequest for one that never was sent.
        """
        within("round", number, 1, self._newest)
        return number in self._by_number

    def read_answer(self, message: target_service_pb2.VerifyResponse, now: float) -> Answer:
        """Read rows that say which text they follow; the target may write more of them.

        Raises InvalidRequest for what cannot be read.
        """
        sent = self._by_number[message.round]
        answer = wire_rounds.read_answer(message, self._vocabulary)
        answer.rows.check(sent.form)
        self._timings.note_target(answer.spent)
        self._arrive(sent, now, answer)
        self._forget_before(message.round)
        return answer

    def read_rows(
        self, message: target_service_pb2.VerifyResponse, now: float, length: int
    ) -> Answer | None:
        """Collect a round's rows after a text of so many tokens; return them once all came.

        Raises InvalidRequest for what cannot be read.
        """
        sent = self._by_number[message.round]
        rows = sent.take(message.rows, self._vocabulary)
        spent = wire.read_time(message.service_time)
        self._timings.note_target(spent)
        sent.spent.add(spent)
        sent.hidden = sent.hidden.followed_by(wire.read_hidden_rows(message.hidden_rows))
        if rows is None:
            return None
        drafted = sent.drafted(rows)
        answer = Answer(message.round, length, drafted, rows, (), sent.spent, sent.hidden)
        self._arrive(sent, now, answer)
        self._forget_before(message.round + 1)
        return answer

    def _forget_before(self, number: int) -> None:
        """Forget the rounds before one that was answered: answers come in order."""
        for earlier in [n for n in self._by_number if n < number]:
            del self._by_number[earlier]

    def _arrive(self, sent: SentRound, now: float, answer: Answer) -> None:
        """Count the time since the rows before these."""
        waited = now - max(sent.time, self._answer_time)
        self._answer_time = now
        note_answer(self._timings, sent, waited, answer, self._plain_share)


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
    waited: float,
    answer: Answer,
    plain_share: Callable[[int], float],
) -> None:
    """Count an answer that was waited for so long.

    `plain_share` is what one row takes of so many rows' decode.
    """
    spent = answer.spent
    if timings.trace is not None:
        timings.trace.note_answer(sent.draft_wait, waited, answer, not timings.prompt)
    network = max(0.0, waited - spent.total)
    timings.draft_wait += spent.draft
    timings.verify_wait += max(0.0, waited - spent.draft)
    timings.verify_network += network
    phases, count = timings.rounds, answer.decode_count
    phases.draft.note(sent.draft_wait + spent.draft / count)  # of its first decode
    phases.draft.note(spent.draft / count, count - 1)
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
    timings.plain += max(0.0, waited - spent.decode - spent.draft)
    if answer.own_drafts:
        shares = map(plain_share, answer.row_counts)
        owns = zip(answer.own_drafts, shares, strict=True)
        timings.plain += sum(own.spent.decode * share for own, share in owns)
    else:
        timings.plain += spent.decode * plain_share(answer.drafted + 1)
    timings.plain_rounds += count
