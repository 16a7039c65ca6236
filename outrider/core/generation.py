"""The state machine of one completion: what its text is, by what was answered. Pure.

The driver reports what happened (`draft_*`, `target_*`), at times of its own
clock in seconds, and carries out what `next_actions` returns. Committed text
only grows, and is the truth. The controller says how much to draft and when
waiting for a draft pays; nothing that a draft does, or fails to do, changes
what is committed.

What the draft holds and owes is `RemoteDraft`'s, what the target holds and which
rounds are in flight in `TargetProgress`, and what to ask of them next is decided in
`Asking`. Nobody else changes any of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core import verdicts
from outrider.core.acceptance import Verdict
from outrider.core.actions import Action, Commit, End, RollBack, TokenLogprob, Wake
from outrider.core.asking import Asking
from outrider.core.counts import Counts, SourceCounts
from outrider.core.local_drafters import LocalDrafters
from outrider.core.plan import Plan
from outrider.core.remote_draft import RemoteDraft
from outrider.core.target_progress import RoundInFlight, TargetProgress
from outrider.core.verdicts import Decode, decodes_of, news_of
from outrider.messages import (
    MAX_DRAFT,
    Answer,
    FinishReason,
    Form,
    Frame,
    Origin,
)


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
        self._local = local = LocalDrafters(
            plan.sources, plan.control, self.counts.sources, len(plan.prompt), plan.clock
        )
        self._remote = RemoteDraft(plan, self.counts)
        self._draft = self._remote.progress
        self._target = TargetProgress(mirostat_mu=plan.mirostat_mu)
        self._asking = Asking(plan, self.committed, self.counts, self._target, self._remote, local)
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
    def draft_is_silent(self) -> bool:
        """Whether the draft owes what was ordered, and nothing came on its stream."""
        return self._draft.is_silent

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
        return self._control.costs.plain_share(row_count, len(self.committed))

    # --- what happened at the draft ---

    def draft_opened(self, context: int, row_width: int = 0) -> None:
        """A stream to the draft is open; it has no line yet. A head reads rows of such a width."""
        self._draft.open(context, row_width)
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

    def target_busy(self, round_: int) -> bool:
        """The target had no room, or dropped the round; return if it is asked again from now on."""
        if is_oldest := self._target.is_oldest(round_):
            self._target.ask_again(self.committed)
        return is_oldest

    def target_full(self, round_: int) -> None:
        """The round does not fit the target's context."""
        if self._target.is_oldest(round_):
            self._finish(FinishReason.CONTEXT_FULL)

    def target_answered(self, answer: Answer, now: float) -> None:
        """The target answered a round; the rows have no position and follow the text as it is."""
        if self._target.is_oldest(answer.round):
            self.target_wrote(answer, now)

    def target_wrote(self, answer: Answer, now: float) -> None:
        """Rows with a position came, answered or written unasked: decide, commit, say what follows.

        Raises InvalidRequest for an answer that does not follow the text.
        """
        asked = self._target.answered_by(answer.round)
        if asked is None:
            return
        if self._asking.only_reads:
            self.counts.note_draft(0, 0)
            self._target.note_length(asked, len(self.committed))
            self._target.held = len(self.committed)
            return
        news = news_of(asked, asked.walked(answer, self.committed), self.committed)
        if news is None:
            # It forgot what it wrote, and now writes something else, if only by a last bit.
            self.counts.target_faults += 1
            self._target.note_missing(answer.position - 1, self.committed)
        elif news.rows.sampled or asked.round.form is not Form.SAMPLED:
            waited = asked.finds_target_idle
            since = asked.sent_time if waited else self._control.last_time
            begin = now if since is None else since
            own_source = self._control.own_source
            self._commit_answer(asked, decodes_of(asked, news, begin, now, own_source))
            self._remote.note_rows(answer.hidden, len(self.committed))

    def _commit_answer(self, asked: RoundInFlight, decodes: Sequence[Decode]) -> None:
        """Commit what an answer adds to the text; each decode by itself where it is watched."""
        begin, self._last_drafts = len(self.committed), []
        last_origin = Origin.PLAIN
        origins: list[Origin] = []
        logprobs: list[TokenLogprob] = []
        for decode in decodes:
            before = len(self.committed)
            verdict = verdicts.judge(self.plan, asked, decode, before)
            origins += self._commit_decode(asked, decode, verdict)
            logprobs += verdicts.logprobs(self.plan, self.committed[before:], decode.rows)
            asked.is_answered = True
            last_origin = origins[-1]
            if self.plan.is_watched:
                added = Commit(self.committed[begin:], origins, logprobs=logprobs)
                self._actions += verdicts.reported(
                    asked, added, before, decode, verdict, self.counts.rounds
                )
                begin, origins, logprobs = len(self.committed), [], []
            if self.finished is not None:
                break
        if origins:
            self._actions.append(Commit(self.committed[begin:], origins, logprobs=logprobs))
        if self.finished is not None:
            return
        self._target.note_length(asked, len(self.committed))
        if last_origin is Origin.CORRECTED and self.plan.rollback_calls:
            self._actions.append(RollBack(self._target.held, self.round, self.order))
            self._draft.roll_back(self._target.held)

    def _commit_decode(
        self, asked: RoundInFlight, decode: Decode, verdict: Verdict
    ) -> list[Origin]:
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
            self.counts.note_compared(decode.own_source, decided, accepted)
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
            part = tokens[count : count + max(1, self.plan.remaining(len(self.committed)))]
            end = next((i for i, token_id in enumerate(part, 1) if token_id in ends), 0)
            self.committed += part[: end or len(part)]
            count += end or len(part)
            if end:
                self._finish(FinishReason.END_OF_TEXT)
            elif self.plan.is_long_enough(self.committed):
                self._finish(self.plan.limit_reason)
        return count

    def stop(self, length: int) -> None:
        """End the text at `length` tokens, within the last commit: a stop sequence is complete."""
        drafts = self._last_drafts
        if not any(sources for _, sources in drafts):  # then each token was a round
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
        if self.plan.is_long_enough(self.committed) and not self._asking.only_reads:
            self._finish(self.plan.limit_reason)
        if self.finished is None:
            self._actions += self._asking.next_actions(now)
            self.waits_for_draft = self._asking.waits_for_draft
            if self._target.in_flight and self._local.reads(self.committed):
                self._actions.append(Wake(now))
        actions, self._actions = self._actions, []
        if self.finished is not None:
            self._local.reads(self.committed)  # the last tokens say how good the sources were
            actions.append(End(self.finished))
        return actions
