"""The state machine of one completion: what to ask next, and what to do with answers. Pure.

The driver reports what happened (`draft_*`, `target_*`), at times of its own
clock in seconds, and carries out what `next_actions` returns. Committed text
only grows, and is the truth. The controller says how much to draft and when
waiting for a draft pays; nothing that a draft does, or fails to do, changes
what is committed.

Several rounds may be at the target at once: each after the first assumes that
the one before is accepted in full and that the line continues as drafted. The
first mismatch drops all later ones.

What the draft holds and owes is `RemoteDraft`'s, what the target holds and which
rounds are in flight in `TargetProgress`. Nobody else changes any of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import TypeVar

from orchestrator.core import verdicts
from orchestrator.core.acceptance import Verdict
from orchestrator.core.actions import (
    Action,
    Commit,
    End,
    RollBack,
    SendOrder,
    SendRound,
    TokenLogprob,
    Wake,
)
from orchestrator.core.branching import as_bytes
from orchestrator.core.counts import Counts, SourceCounts
from orchestrator.core.decodes import Decode, decodes_of, news_of
from orchestrator.core.draft_end import draft_end
from orchestrator.core.draft_line import Line
from orchestrator.core.draft_progress import DraftState
from orchestrator.core.estimates import UNREPORTED, ServiceTime, plain_share
from orchestrator.core.local_drafters import LocalDrafters, LocalLine
from orchestrator.core.outcomes import Choice
from orchestrator.core.own_draft import NO_OWN_DRAFT, OwnDraftOrder
from orchestrator.core.plan import Plan
from orchestrator.core.remote_draft import RemoteDraft
from orchestrator.core.target_progress import RoundInFlight, TargetProgress
from orchestrator.core.tree_rounds import branch
from outrider.distribution import certain
from outrider.messages import (
    MAX_DRAFT,
    Answer,
    DraftEnd,
    FinishReason,
    Form,
    Frame,
    Origin,
    Round,
    Rows,
    Rule,
    Span,
)
from outrider.speculation import MODEL

T = TypeVar("T")


class Generation:
    """One completion. See the module's docstring for how it is driven."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.committed = list(plan.prompt)  # it only grows, but for what a stop sequence takes back
        # What happened so far, for reports; nothing is decided by it but the first round.
        self.counts = Counts()
        self.finished: FinishReason | None = None  # set once; nothing is asked after it
        self.waits_for_draft = False  # the newest actions were to wait for more of the line
        self._control = plan.control
        self._control.note_length(len(plan.prompt))
        self.counts.sources.update({name: SourceCounts() for name in plan.sources})
        self._local = LocalDrafters(
            plan.sources, plan.control, self.counts.sources, len(plan.prompt), plan.clock
        )
        self._remote = RemoteDraft(plan, self.counts)
        self._draft = self._remote.progress
        self._target = TargetProgress(mirostat_mu=plan.mirostat_mu)
        self._block = (-1, 0)  # under `rejection`: a length of the text, the draft length there
        # Of the decodes of the last commit that verified drafts: the text's length before it, and
        # who proposed the tokens accepted in it.
        self._last_drafts: list[tuple[int, Sequence[str]]] = []
        self._actions: list[Action] = []  # for the driver, not taken yet

    # --- what the driver may look at ---

    @property
    def mirostat_mu(self) -> float | None:
        """Mirostat's state after the text."""
        return self._target.mirostat_mu

    @property
    def target_ready(self) -> bool:
        """Whether a stream to the target is open."""
        return self._target.is_open

    @property
    def waits_for_target(self) -> bool:
        """Whether the target has a round to answer."""
        return self._target.is_asked

    @property
    def draft_state(self) -> DraftState:
        """What the draft is doing, as far as is known."""
        return self._draft.state

    @property
    def order(self) -> int:
        """The number of the newest order."""
        return self._draft.order

    @property
    def round(self) -> int:
        """The number of the newest round."""
        return self._target.round

    @property
    def draft_length(self) -> int:
        """The tokens that a draft made anew now would have; 0 while there is no draft."""
        own = self._control.own_draft.count
        return own or (0 if self._draft.is_absent else self._control.draft_count(MAX_DRAFT))

    def plain_share(self, row_count: int) -> float:
        """Return what one row costs to decode as a share of what `row_count` rows cost."""
        return plain_share(self._control.estimates.costs, row_count, len(self.committed))

    @property
    def _only_reads(self) -> bool:
        """Whether the prompt is to be read and nothing written, and that is still to be done."""
        return self.plan.opening.token_limit == 0 and not self.counts.rounds

    # --- what happened at the draft ---

    def draft_opened(self, context: int) -> None:
        """A stream to the draft is open; it has no line yet."""
        self._draft.open(context)
        self._control.note_presence(True)

    def draft_lost(self) -> None:
        """The stream to the draft is gone."""
        self._remote.lose()
        self._control.note_presence(False)

    def draft_frame(
        self, frame: Frame, now: float, seconds: float = 0.0, queue: float = 0.0
    ) -> None:
        """A piece of the line arrived; the draft worked `seconds` and waited `queue` for it."""
        self._remote.take_frame(frame, self.committed, now, seconds, queue)

    def draft_missing(self, order: int, held: int) -> None:
        """The draft holds less of the text than the order assumed."""
        self._remote.note_missing(order, held, len(self.committed))

    def draft_refused(self, order: int) -> None:
        """The draft is busy, or its context is full: this order brings nothing."""
        self._remote.note_refused(order)

    # --- what happened at the target ---

    def target_opened(self, continues: bool = False) -> None:
        """A stream to the target is open; it may lead to another replica, or to an old cache.

        `continues` says that the target can write by itself.
        """
        self._target.open(self.committed, continues)

    def target_lost(self) -> None:
        """The stream to the target is gone; the oldest round in flight is asked again."""
        if self._target.is_open:
            self.counts.target_faults += 1
        self._target.is_open = False

    def target_cached(self, count: int) -> None:
        """The target held so many tokens of the prompt before it read the rest."""
        self.counts.cached = max(self.counts.cached, count)

    def target_missing(self, round_: int, held: int) -> bool:
        """The target holds less of the text than the round assumed; return if it is asked again."""
        if is_oldest := self._target.is_oldest(round_):
            self.counts.target_faults += 1
            self._target.note_missing(held, self.committed)
        return is_oldest

    def target_busy(self, round_: int) -> None:
        """The target had no room, or dropped the round; it is asked again when this is called."""
        if self._target.is_oldest(round_):
            self._target.ask_again(self.committed)

    def target_full(self, round_: int) -> None:
        """The round does not fit the target's context."""
        if self._target.is_oldest(round_):
            self._finish(FinishReason.CONTEXT_FULL)

    def target_rows(
        self, round_: int, rows: Rows, now: float, spent: ServiceTime = UNREPORTED
    ) -> None:
        """The target answered a round as a whole: decide, commit, say what follows."""
        if self._target.is_oldest(round_):
            length = len(self.committed)
            self.target_wrote(Answer(round_, length, len(rows) - 1, rows), now, spent)

    def target_wrote(
        self,
        answer: Answer,
        now: float,
        spent: ServiceTime = UNREPORTED,
        each: Sequence[ServiceTime] = (),
    ) -> None:
        """The target answered, or wrote more by itself: decide, commit, say what follows.

        `each` is what every decode took, where its own draft drafted.

        Raises InvalidRequest for an answer that does not follow the text.
        """
        asked = self._target.answered_by(answer.round)
        if asked is None:
            return
        if self._only_reads:
            self.counts.note_draft(0, 0)
            self._target.note_length(asked, len(self.committed))
            self._target.held = len(self.committed)
            return
        news = news_of(asked, asked.walked(answer, self.committed), self.committed)
        if news is None:
            # It forgot what it wrote, and now writes something else, if only by a last bit.
            self.counts.target_faults += 1
            self._target.note_missing(answer.position - 1, self.committed)
        elif news.rows.sampled or self.plan.form is not Form.SAMPLED:
            waited = asked.is_waited_for and not asked.is_answered
            since = asked.sent_time if waited else self._control.last_time
            begin = now if since is None else since
            self._take_decodes(asked, decodes_of(asked, news, begin, now, spent, each))

    def _take_decodes(self, asked: RoundInFlight, decodes: Sequence[Decode]) -> None:
        """Commit what an answer adds to the text; each decode by itself where it is watched."""
        begin, self._last_drafts = len(self.committed), []
        origins: list[Origin] = []
        logprobs: list[TokenLogprob] = []
        for decode in decodes:
            before = len(self.committed)
            verdict = verdicts.judge(self.plan, asked, decode, before)
            origins += self._take(asked, decode, verdict)
            logprobs += verdicts.logprobs(self.plan, self.committed[before:], decode.rows)
            asked.is_answered = True
            if self.plan.is_watched or self.finished is not None or decode is decodes[-1]:
                last = before, decode, verdict
                report = verdicts.report(asked, self.committed, *last, self.counts.rounds)
                self._actions.append(Commit(self.committed[begin:], origins, report, logprobs))
                begin, last_origin, origins, logprobs = len(self.committed), origins[-1], [], []
            if self.finished is not None:
                return
        self._control.note_credit(self._target.note_length(asked, len(self.committed)))
        if last_origin is Origin.CORRECTED and self.plan.rollback_calls:
            self._actions.append(RollBack(self._target.held, self.round, self.order))
            self._draft.roll_back(self._target.held)

    def _take(self, asked: RoundInFlight, decode: Decode, verdict: Verdict) -> list[Origin]:
        """Commit what comes of a decode, or of several; return where each of its tokens is from."""
        before, draft, rows = len(self.committed), decode.draft, decode.rows
        tokens = verdicts.tokens_of(decode, verdict)
        count = self._commit(tokens)
        accepted = min(count, verdict.accepted_count)
        decodes = count if decode.count > 1 else 1
        if draft:
            sources = decode.sources(asked, before)
            self.counts.note_sources(sources, accepted)
            self._last_drafts.append((before, sources[:accepted]))
        self.counts.note_draft(len(draft), accepted, decodes)
        is_prompt = self.counts.rounds == 1
        outcome = verdicts.outcome(asked, before, decode, verdict, count, is_prompt)
        self._control.note_round(outcome)
        if decode.is_own:
            decided = min(accepted + 1, len(draft))
            self.counts.note_compared(MODEL, decided, accepted)
        last = verdict.accepted_count if decode.count == 1 else count - 1
        self._target.held = before + last
        if rows.mirostat_mus:
            self._target.mirostat_mu = rows.mirostat_mus[last]
        is_whole = verdict.accepted_count == len(asked.round.draft)
        self._target.keep_what_follows(is_whole, verdict.next_token_id)
        self._remote.note_rounds(self.committed, decodes)
        return verdicts.origins_of(draft, verdict, count)

    # --- deciding ---

    def _commit(self, tokens: Sequence[int]) -> int:
        """Add tokens up to the end of the text or the limit; return how many were added."""
        count, ends = 0, self.plan.end_token_ids
        while count < len(tokens) and self.finished is None:
            # Beyond the limit a character may still be finished, one token after the other.
            part = tokens[count : count + max(1, self._remaining())]
            end = next((i for i, token_id in enumerate(part, 1) if token_id in ends), 0)
            self.committed += part[: end or len(part)]
            count += end or len(part)
            if end:
                self._finish(FinishReason.END_OF_TEXT)
            elif self.plan.is_long_enough(self.committed):
                self._finish(self.plan.limit_reason)
        return count

    def _remaining(self, length: int | None = None) -> int:
        """Return the tokens that may still follow the text, or its first `length` tokens."""
        return self.plan.remaining(len(self.committed) if length is None else length)

    def stop(self, length: int) -> None:
        """End the text at `length` tokens, within the last commit: a stop sequence is complete."""
        drafts = self._last_drafts
        if not any(sources for _, sources in drafts):
            self.counts.rounds -= len(self.committed) - length
        for back, (before, sources) in enumerate(reversed(drafts), 1):
            accepted = max(0, min(len(sources), length - before))
            self.counts.forget_accepted(accepted, sources, back)
        del self.committed[length:]
        self.finished = FinishReason.STOP_SEQUENCE
        self._target.in_flight.clear()

    def _finish(self, reason: FinishReason) -> None:
        if self.finished is None:
            self.finished = reason
            self._target.in_flight.clear()

    # --- asking ---

    def next_actions(self, now: float) -> list[Action]:
        """Return what is to be done now; empty means wait for something to happen."""
        self.waits_for_draft = False
        if self.plan.is_long_enough(self.committed) and not self._only_reads:
            self._finish(self.plan.limit_reason)
        if self.finished is None:
            self._ask_for_more(now)
            if self._target.in_flight and self._local.reads(self.committed):
                self._actions.append(Wake(now))
        actions, self._actions = self._actions, []
        if self.finished is not None:
            self._local.reads(self.committed)  # the last tokens say how good the sources were
            actions.append(End(self.finished))
        return actions

    def _ask_for_more(self, now: float) -> None:
        if not self._target.in_flight:
            self._ask_for_a_round(now)
        elif self._target.in_flight[-1].round.continue_count:
            self._follow(now)
        elif self._draft.needs_order:
            self._order_draft(0, 0, now)
        elif len(self.committed) != self._draft.ordered_length and self._control.runs_ahead():
            # Text was committed while later rounds stay in flight: the line may be extended.
            wanted = self._control.draft_count(self._remote.cap(len(self.committed)))
            self._order_draft(wanted, self._control.lookahead(), now)
        while self._ask_ahead():
            pass
        if not self._target.is_open:
            return
        for each in self._target.in_flight:
            if each.sent_time is None:
                each.sent_time = now
                each.draft_busy = self._draft.state in (DraftState.DRAFTING, DraftState.LATE)
                self._control.note_sent()
                self._actions.append(SendRound(each.round))

    def _ask_for_a_round(self, now: float) -> None:
        """Ask the target about the text and a line, or wait for more of the draft's."""
        length = len(self.committed)
        cap, local = self._remote.cap(length), self._local_line(length)
        is_ahead = self._control.runs_ahead()  # then it costs the target nothing to draft on
        wanted = self._wanted(length, cap) if local is None or local.worth <= 0 or is_ahead else 0
        self._order_draft(wanted, self._control.lookahead() if wanted else 0, now)
        self._remote.give_up_waiting(now)
        count = 0
        if self._is_rejection:
            cap = wanted  # a block is used whole or not at all
        if self.counts.rounds:
            # The first round is the prompt's: both models read it at once.
            expected = self._draft.state is DraftState.DRAFTING
            known = self._line_from(length, self._draft.line.confidences)[:cap]
            choice = self._control.choose(known, cap, now, length, expected)
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
        asked = self._ask(length, line, self._target.prefix(self.committed))
        asked.draft_end = self._why_so_long(asked, cap, wanted)
        self._let_continue(asked, wanted, count)
        branch(asked, self._control, self._remote, self._local)

    def _local_line(self, length: int) -> LocalLine | None:
        """Return the best line of sources without a model, where one may be used now."""
        is_chosen = self._is_rejection and self._block[0] == length
        if not self.counts.rounds or is_chosen or self._control.looks_at_plain:
            return None  # under `rejection` nobody may choose with the draft's block in sight
        room = self.plan.target_context - length
        return self._local.best(self.committed, min(MAX_DRAFT, self._remaining() - 1, room))

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

        It stops after it for the next one, or continues with what is left of it and by itself.
        """
        chances = local.chances[: local.count]
        credit = 0 if self._control.waits_for_lines(chances) else self._credit(0)
        line = local.line if credit or not is_waited_for else local.line.first(local.count)
        asked = self._ask(length, line, self._target.prefix(self.committed), chances=local.chances)
        asked.is_waited_for = is_waited_for
        asked.draft_end = DraftEnd.ENOUGH
        if asked.round.draft[-1] in self.plan.end_token_ids:
            asked.draft_end = DraftEnd.END_OF_TEXT
        asked.round = replace(
            asked.round,
            continue_count=credit,
            decode_limit=local.count if line is local.line else 0,
        )
        if credit:
            asked.let_draft(self._control.own_draft)
        branch(asked, self._control, self._remote, self._local)

    def _follow(self, now: float) -> None:
        """Keep a target that continues by itself supplied with the line, and with credit."""
        if not self.counts.rounds:
            return
        length, newest = len(self.committed), self._target.in_flight[-1]
        cap, local = self._remote.cap(length), self._local_line(length)
        wanted = self._wanted(length, cap)
        if self._draft.needs_order or length != self._draft.ordered_length:
            self._order_draft(wanted, self._control.lookahead() if wanted else 0, now)
        self._remote.give_up_waiting(now)
        confidences = self._line_from(length, self._draft.line.confidences)[:cap]
        choice = self._control.choose(confidences, cap, now, length, False)
        limit = choice.count
        line = self._draft.line.line_after(length).first(cap if limit else 0)
        if better := self._better(local, choice):
            line, limit = better.line, better.count
        credit = self._credit(0 if better else wanted)
        brings = newest.is_overtaken_by(line.token_ids, limit, self.committed, better is not None)
        if not brings and not self._has_to_hear(newest, wanted, credit):
            return
        if better:
            self._ask_locally(length, better, is_waited_for=False)
            return
        asked = self._ask(length, line, self._target.prefix(self.committed))
        asked.draft_end = self._why_so_long(asked, cap, wanted)
        asked.is_waited_for = False
        self._let_continue(asked, wanted, limit)

    def _has_to_hear(self, newest: RoundInFlight, wanted: int, credit: int) -> bool:
        """Whether a target that continues needs a message: to write on, otherwise, or to stop."""
        left = newest.round.continue_until - len(self.committed)
        changes_own = self._own_order(wanted).is_news(newest.own_order)
        return 2 * left < credit or changes_own or (left > 0 and not credit)

    def _let_continue(self, asked: RoundInFlight, wanted: int, limit: int) -> None:
        """Let the target write by itself after a round, verifying `limit` at once at most."""
        if credit := self._credit(wanted):
            own = self._own_order(wanted)
            gathers = self._may_gather(wanted, own)
            asked.round = replace(
                asked.round,
                continue_count=credit,
                decode_limit=limit if asked.round.draft else 0,
                gather_ms=self._control.estimates.gather_ms if gathers else 0,
            )
            asked.let_draft(own)

    def _may_gather(self, wanted: int, own: OwnDraftOrder) -> bool:
        """Whether nothing waits for the tokens that the target writes by itself, one by one."""
        if wanted and not self._control.probing:
            return False
        is_awaited = own.is_probe or (own.count and self.plan.is_watched)
        return not is_awaited and not self._local.expects(len(self.committed))

    def _own_order(self, wanted: int) -> OwnDraftOrder:
        """Return what the target's own draft is to do: nothing where another one is wanted."""
        is_used = wanted and not self._control.probing
        return NO_OWN_DRAFT if is_used else self._control.own_draft

    def _credit(self, wanted: int) -> int:
        """Return the tokens that the target may write by itself now; 0: it waits for a draft."""
        if not self._target.continues or self.plan.form is not Form.SAMPLED:
            return 0
        if self.plan.rollback_calls or self._only_reads:
            return 0
        is_late = self._draft.state is DraftState.LATE
        is_next = wanted or self._control.looks_at_plain
        if is_next and not is_late and self._control.waits_for_drafts:
            return 0
        room = self.plan.target_context + 1 - len(self.committed)
        return max(0, min(self._control.estimates.credit, self._remaining(), room))

    def _wanted(self, length: int, cap: int) -> int:
        """Return how many tokens to draft anew; a block's length is chosen once, before it."""
        if self._is_rejection and self._block[0] == length:
            return min(self._block[1], cap)
        self._control.note_unread(length - self._draft.known_length, self._remaining())
        wanted = self._control.draft_count(cap)
        if cap:
            self._block = (length, wanted)
        return wanted

    def _ask_ahead(self) -> bool:
        """Ask for a round more that assumes those in flight; return whether there is one."""
        in_flight = self._target.in_flight
        if not in_flight or self._is_rejection or self.plan.rollback_calls:
            return False
        if self.plan.opening.sampling.mirostat:
            return False  # its state is in the answer
        last = in_flight[-1]
        if last.round.continue_count or last.sources or last.round.parents:
            return False  # it needs no answer, or none can say what follows it
        count = len(last.round.draft)
        if len(in_flight) > self._control.rounds_ahead(count) or not count:
            return False
        pending = last.length + count
        guesses = self._line_from(pending, self._draft.line.token_ids)
        count = self._control.draft_count(self._remote.cap(pending + 1))
        if not 0 < count < len(guesses) or guesses[0] in self.plan.end_token_ids:
            return False
        line = self._draft.line.line_after(pending + 1).first(count)
        asked = self._ask(pending + 1, line, Span(pending, guesses[:1]), is_ahead=True)
        asked.draft_end = DraftEnd.LENGTH
        return True

    @property
    def _is_rejection(self) -> bool:
        return self.plan.opening.rule is Rule.REJECTION

    def _line_from(self, length: int, what: list[T]) -> list[T]:
        """Return the part of the line's tokens, or of what came with them, from a length on."""
        return what[self._draft.line.after(length)]

    def _order_draft(self, wanted: int, ahead: int, now: float) -> None:
        order = self._remote.order(self.committed, wanted, ahead, now)
        if order is not None:
            self._actions.append(SendOrder(order))

    def _ask(
        self,
        length: int,
        line: Line,
        prefix: Span,
        is_ahead: bool = False,
        chances: Sequence[float] | None = None,
    ) -> RoundInFlight:
        """Put a round with a line in flight; `chances` are its tokens', if not by confidence."""
        draft, rows, form = list(line.token_ids), line.rows, self.plan.form
        if form is not Form.SAMPLED and line.sources:
            rows = [certain(token_id) for token_id in draft]
        survivals = self._survivals(line, chances)
        number, mu = self._target.next_number(), self._target.mirostat_mu
        round_ = Round(number, prefix, draft, form, is_ahead, survivals, mu)
        asked = RoundInFlight.of_line(round_, length, line, rows)
        self._target.in_flight.append(asked)
        return asked

    def _survivals(self, line: Line, chances: Sequence[float] | None) -> bytes:
        """Return how likely each token of a line and all before it are right; none if all count."""
        if self.plan.form is not Form.SAMPLED or not self._control.may_be_cut:
            return b""
        count = len(line.token_ids)
        if chances is None:
            return as_bytes(self._control.acceptance.survival(line.confidences, count))
        return as_bytes(accumulate(chances[:count], mul))

    def _why_so_long(self, asked: RoundInFlight, cap: int, wanted: int) -> DraftEnd:
        """Return why a round's draft is as long as it is."""
        is_first = not self.counts.rounds
        draft, remaining = asked.round.draft, self._remaining()
        if draft and draft[-1] in self.plan.end_token_ids:
            return DraftEnd.END_OF_TEXT
        return draft_end(self._control, self._draft, draft, cap, wanted, remaining, is_first)
