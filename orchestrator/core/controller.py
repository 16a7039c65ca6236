"""How many tokens to draft, what to verify, and when to wait for more. Pure.

One rule decides all of it, the marginal rule of renewal-reward processes:
spending time d on drafting, waiting or more rows pays iff the tokens that it
is expected to add exceed rho * d, where rho is the tokens per second that
this generation makes, and never less than the target alone would make. All
that goes in is measured; times are seconds of one clock, the caller's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache

from orchestrator.core.decode_costs import DecodeCosts
from orchestrator.core.estimates import MOST_CREDIT, Acceptance, PairEstimates
from orchestrator.core.expected_frames import ExpectedFrames
from orchestrator.core.forecast import Conditions, Forecast, Mode, forecasts
from orchestrator.core.line_worth import HOPELESS, best_of_line, is_better_stopped
from orchestrator.core.outcomes import Choice, Outcome, RecentRate, View
from orchestrator.core.own_draft import NO_OWN_DRAFT, OwnDraftOrder
from orchestrator.core.rejections import TakenBack
from outrider.messages import Rule
from outrider.speculation import Policy, Speculation

_LOOKAHEAD = 48
_WORTHWHILE = 1.05  # times the target's own rate: forecasts are not much better than that
_WORTHWHILE_TOGETHER = 1.3  # where generations take turns: not all share every decode after all
_FORECAST_ROUNDS, _FORECAST_SECONDS = 8, 0.2
"""Rounds and seconds that a forecast stands, whichever are over first: making one takes .15 ms on a
Zen 5, and eight rounds of many rows that were in vain are a second of a slow target."""
_OTHER_LOAD = 1.25  # times as many sessions in a decode as forecast: it is made anew
_AHEAD = (Mode.WAITING, Mode.NO_WAIT)


class Control(ABC):
    """Decides for one generation. All that it knows was reported to it."""

    def __init__(
        self, speculation: Speculation, rule: Rule, estimates: PairEstimates, patience: float
    ) -> None:
        self.speculation = speculation
        self.rule = rule
        self.note_draft(estimates)
        self._longest_patience = patience
        self._has_draft = False  # there is a stream to one
        self._recent = RecentRate()
        self.last_time: float | None = None  # when the newest rows came
        # The target has been without a round since; None while one is in flight.
        self._idle_since: float | None = None
        self._frames = ExpectedFrames()
        self._decode_costs = DecodeCosts()
        self._unread = 0  # tokens of the text that the draft has not read yet
        self._written = 0  # tokens so far, and how many may follow
        self._remaining = 0
        # Rounds so far; how many when the forecast was made, and for how many sessions together.
        self._rounds = self._forecast_round = 0
        self._forecast_sessions, self._forecast_time = 1.0, 0.0
        self._text_length = 0  # of the text, in tokens
        self._round_times: list[float] = []  # by draft tokens, as of the forecast of that round
        self._seconds_round = -1
        self._taken_back = TakenBack()

    def acceptance_of(self, source: str) -> tuple[Acceptance, Acceptance]:
        """Return how good a source without a model is, for this session to go on with, and overall.

        That belongs to the target: it does not change with the draft.
        """
        known = self.estimates.of_sources
        unknown = Acceptance.trusting(goes_by_matches=source in ("suffix", "ngram", "past"))
        over_all = known.setdefault((self.rule, source), unknown)
        return Acceptance(over_all), over_all

    # --- what happened ---

    def note_length(self, length: int) -> None:
        """The text has so many tokens now."""
        self._text_length = length

    def note_draft(self, estimates: PairEstimates) -> None:
        """Another draft drafts from now on, of which this is known."""
        self.estimates = estimates
        known = estimates.acceptance.setdefault(self.rule, Acceptance())
        # This session's own, from what all had.
        self.acceptance, self._all_acceptance = Acceptance(known), known
        self._forecast: Forecast | None = None  # made again every few rounds

    def note_presence(self, is_there: bool) -> None:
        """A stream to a draft is open, or is gone."""
        self._has_draft = is_there
        self._forecast = None  # it is weighed against another, or against none

    def note_order(self, now: float, length: int, frame_tokens: int, reading: int = 0) -> None:
        """An order went out that may start the line over at the committed length `length`.

        The draft first reads `reading` tokens of the text. Its answer comes in frames of
        `frame_tokens`; 0 is as the draft runs ahead.
        """
        if frame_tokens and self.stop_below:
            frame_tokens = min(frame_tokens, round(self.forecast.mean_length))
        size = frame_tokens or self.estimates.frame_tokens
        self._frames.note_order(self.estimates, now, length, size, reading)

    def note_frame(
        self,
        now: float,
        base: int,
        count: int,
        seconds: float,
        is_first: bool,
        queue: float = 0.0,
    ) -> None:
        """A frame of the line that started over at `base` came, after the draft's own `seconds`.

        `is_first` says that it is the first one of its base; before it the draft waited for
        `queue` seconds.
        """
        self._decode_costs.note_draft(seconds)
        if count == 0:
            return
        reads_prompt = not self._rounds
        self._frames.note_frame(
            self.estimates, now, base, count, seconds, is_first, queue, reads_prompt
        )

    def note_new_stream(
        self, now: float, base: int, count: int, seconds: float, queue: float
    ) -> None:
        """The first frame of a stream came; before it the draft may have read a prompt."""
        self._frames.note_better(self.estimates, now, base, count, seconds, queue)

    def line_agrees(self, end: int) -> None:
        """The line agrees with the text and reaches to `end`; it answers the orders up to there."""
        self._frames.line_agrees(end)

    def line_lost(self, length: int) -> None:
        """The line disagrees with the text at position `length`; a later order starts it over."""
        self._frames.line_lost(self.estimates, length)

    def note_unread(self, count: int, remaining: int) -> None:
        """The draft was not sent the last `count` tokens of the text; so many may still follow."""
        self._unread, self._remaining = count, remaining

    def note_sent(self) -> None:
        """A round went to the target."""
        self._idle_since = None
        self._decode_costs.note_sent()

    def note_round(self, outcome: Outcome) -> None:
        """Learn from a verified round, or from several without a draft."""
        estimates, again, rows = self.estimates, self._taken_back, self._rows_of(outcome)
        self._text_length = outcome.length
        if outcome.is_prompt:
            estimates.sharing.restart(1.0)  # who was there before may be gone
        else:
            self._recent.note(outcome.committed, self._seconds_of(outcome), outcome.decodes)
            spent = outcome.spent
            if spent.decode > 0.0:
                restoring = estimates.rejection.restore_seconds if again.count else 0.0
                if outcome.sent is None:
                    gap = estimates.gap_of(outcome.is_own)
                    gap.note(max(0.0, spent.sample - restoring))
                    estimates.overhead.fade()
                    estimates.queue.fade()
                else:
                    own = spent.queue + spent.decode + spent.draft + restoring
                    estimates.overhead.note(max(0.0, outcome.now - outcome.sent - own))
                    if not estimates.takes_turns:
                        # One decode at most; a piece of somebody's prompt is no usual one.
                        estimates.queue.note(min(spent.queue, spent.decode))
                price = estimates.rejection.of_all(estimates.sharing_of(spent, rows))
                spent = again.beside_decode(price, spent, outcome.drafted)
                if not again.is_apart:
                    self._decode_costs.note_decode(estimates, rows, spent, outcome)
        again.note(estimates.rejection, outcome)
        self._decode_costs.note_over(rows, outcome)
        self.last_time = outcome.now
        self.note_length(outcome.length + outcome.committed)
        self._written += outcome.committed
        self._rounds += outcome.decodes
        if self.rule is Rule.REJECTION and not outcome.is_local:
            self._note_decided(outcome.confidences[: outcome.accepted + 1], outcome.accepted)

    def _rows_of(self, outcome: Outcome) -> int:
        """Return the rows of a round that was not noted yet, in each of its decodes."""
        return outcome.drafted + 1 + outcome.beside + self._taken_back.count

    def _seconds_of(self, outcome: Outcome) -> float:
        """Return the time since the rows before those of a round that was not noted yet."""
        since = self.last_time if self.last_time is not None else outcome.sent or outcome.now
        return max(0.0, outcome.now - since)

    def note_credit(self, is_used_up: bool) -> None:
        """The target came, or did not come, to the end of what it may write by itself.

        It should not, as long as its text is received: then the way to it is longer than thought.
        """
        if is_used_up:
            self.estimates.credit = min(MOST_CREDIT, 2 * self.estimates.credit)

    def note_line(self, confidences: Sequence[int], agrees: bool) -> None:
        """Learn from draft tokens that the text has caught up with, verified or not.

        All of them agree with it, but for the last one unless `agrees`. Where
        acceptance is equality, that is what the acceptance rule says of them.
        """
        self._note_decided(confidences, len(confidences) - (not agrees))

    def _note_decided(self, confidences: Sequence[int], accepted: int) -> None:
        for acceptance in (self.acceptance, self._all_acceptance):
            acceptance.note(confidences, accepted)

    # --- asked ---

    @property
    def may_continue(self) -> bool:
        """Whether the target can write by itself: where the rule needs no more than its samples."""
        return self.estimates.continues and self.rule is not Rule.REJECTION

    @property
    def plain_seconds(self) -> float:
        """The time of a token without a draft."""
        estimates = self.estimates
        beside = estimates.gap if self.may_continue else estimates.overhead
        return self.decode_seconds(1) + beside.value

    def decode_seconds(self, row_count: int) -> float:
        """Return the expected time of a decode with so many rows after the text."""
        return self.estimates.decode_seconds(row_count, self._text_length)

    @property
    def _alone_seconds(self) -> float:
        """The time of a token of the target alone, after the text; 0 if it is not known."""
        share, costs = self.estimates.alone_share, self.estimates.costs
        if not share:
            return 0.0
        return share * costs.seconds(1) + costs.attending(((1, self._text_length),))

    @property
    def rate(self) -> float:
        """Rho: tokens per second, at least what the target alone would make."""
        return max(1.0 / self.plain_seconds, self._recent.value)

    @abstractmethod
    def draft_count(self, cap: int) -> int:
        """Return how many tokens to draft anew for the next round, at most `cap`."""

    @abstractmethod
    def choose(
        self, confidences: Sequence[int], cap: int, now: float, length: int, expected: bool
    ) -> Choice:
        """Return what to verify now that the target is free and the text has `length` tokens.

        `confidences` are those of the usable tokens, at most `cap` may be
        verified, and `expected` says whether more are on their way.
        """

    @property
    def own_draft(self) -> OwnDraftOrder:
        """What the target's own draft is to do, where it has one."""
        return NO_OWN_DRAFT

    @property
    def waits_for_drafts(self) -> bool:
        """Whether a target waits for the draft that is wanted, instead of writing by itself."""
        return True

    @property
    def may_be_cut(self) -> bool:
        """Whether a busy target may verify fewer tokens than it is sent; not a pinned length."""
        return self.speculation.policy is Policy.MEASURED

    @property
    def _may_stop(self) -> bool:
        """Whether drafts may end where they are not sure enough for more to pay."""
        return self.speculation.policy is Policy.MEASURED and self.rule is not Rule.REJECTION

    @property
    def stop_below(self) -> int:
        """The confidence of a draft token below which to draft no further; 0 for any."""
        return 0 if self.runs_ahead() or not self._may_stop else self.forecast.stop_below

    @property
    def needs_stream(self) -> bool:
        """Whether a draft that there is may be asked for anything, so that a stream is opened."""
        return True

    @property
    def leaves_draft_alone(self) -> bool:
        """Whether a draft of which nothing is wanted is not even sent the text."""
        return False

    @property
    def may_doubt(self) -> bool:
        """Whether the draft may stop at a token that it is not sure of."""
        return self.speculation.p_min > 0.0 or self.speculation.policy is Policy.CLASSIC

    def lookahead(self) -> int:
        """Return how far to draft beyond the next round.

        That is what may be committed before the next order arrives, unless it
        is unlikely to survive for so long.
        """
        estimates = self.estimates
        if self.probing:
            # A probe must reach beyond what is decoded until it comes.
            return self._overtaken()
        if not self.runs_ahead():
            return 0
        count = self.forecast.hit_length or 1
        ahead_time = estimates.latency.value + self.decode_seconds(count + 1)
        wanted = count + 1 + math.ceil(ahead_time / max(estimates.token_time.value, 1e-4))
        mean = min(0.98, max(0.02, self.acceptance.mean))
        return max(2, min(_LOOKAHEAD, wanted, math.ceil(math.log(HOPELESS) / math.log(mean))))

    def _overtaken(self) -> int:
        """Return the tokens decoded plainly until a draft comes."""
        return math.ceil(self.estimates.latency.value / self.plain_seconds)

    def runs_ahead(self) -> bool:
        """Return whether the draft continues while the target verifies."""
        if self.rule is Rule.REJECTION:
            return False
        if self.speculation.run_ahead is not None:
            return self.speculation.run_ahead
        return self.forecast.mode in _AHEAD

    @property
    def forecast(self) -> Forecast:
        """The mode that is best by what is known, and what it yields."""
        sessions = self.estimates.sessions_together
        is_other_load = not 1 / _OTHER_LOAD < sessions / self._forecast_sessions < _OTHER_LOAD
        passed = (self.last_time or 0.0) - self._forecast_time
        rounds = 1 if passed >= _FORECAST_SECONDS else _FORECAST_ROUNDS
        is_old = self._rounds >= self._forecast_round + rounds
        if self._forecast is None or is_old or is_other_load:
            self._forecast_round, self._forecast_sessions = self._rounds, sessions
            self._forecast_time = self.last_time or 0.0
            self._forecast = self._best_mode(self._conditions())
        return self._forecast

    def checked_seconds(self, row_count: int, acceptance: Acceptance | None = None) -> float:
        """Return the expected time of a decode and of taking back what it will show to be wrong.

        `acceptance` is of the draft that it verifies; None: of the one that sends its line.
        """
        price = self.estimates.rejection.of_all(self.estimates.sessions_together)
        decode, mean = self.decode_seconds(row_count), (acceptance or self.acceptance).mean
        return decode + price.seconds(row_count - 1, min(0.99, mean), self.decode_seconds)

    def _conditions(self) -> Conditions:
        estimates = self.estimates
        return Conditions(
            acceptance=min(0.99, self.acceptance.mean),
            decode_seconds=cache(self.checked_seconds),
            overhead=estimates.overhead.value + estimates.queue.value,
            latency=estimates.latency.value,
            token_time=estimates.token_time.value,
            first_frame=estimates.frame_tokens,
            slowdown=estimates.slowdown.value,
            confidences=self.acceptance.confidences if self._may_stop else (),
            gap=estimates.gap.value if self.may_continue else None,
        )

    def _best_mode(self, conditions: Conditions) -> Forecast:
        estimates = self.estimates
        run_ahead = self.speculation.run_ahead
        if self.rule is Rule.REJECTION or (run_ahead is None and estimates.takes_turns):
            run_ahead = False
        speculation = self.speculation
        most = speculation.n_max if speculation.drafts and self._has_draft else 0
        alone, *others = forecasts(conditions, most, run_ahead)
        if estimates.gain.is_resting:
            return alone
        best = max(others, key=lambda each: each.rate, default=alone)
        takes_part = estimates.takes_turns and estimates.generation_count > 1
        worthwhile = _WORTHWHILE_TOGETHER if takes_part else _WORTHWHILE
        return best if best.rate > worthwhile * alone.rate else alone

    @property
    def line_count(self) -> int:
        """Lines that the draft may write at once: more than one only where that was asked for."""
        asked = self.speculation.n_parallel or 1
        return min(asked, len(self.estimates.line_ratios)) if self.runs_ahead() else 1

    def rounds_ahead(self, count: int) -> int:
        """Return how many rounds of `count` tokens may be at the target beside the oldest.

        They pay when a round spends longer on the way than in the decode.
        """
        if not self.runs_ahead():
            return 0
        estimates = self.estimates
        return min(3, int(2.0 * estimates.overhead.value / self.decode_seconds(count + 1)))

    def best_of_line(self, chances: Sequence[float]) -> tuple[int, float]:
        """Return how many tokens of a line at hand are best verified next, and their worth.

        `chances` are those of its tokens, each if those before it stand. The worth is what the
        round adds, less what is made anyway in the time, as in `choose`; the number is for the
        rate that the generation has now, which is higher where sources without a model are right.
        """
        speculation, usual = self.speculation, self.forecast.rate
        rate = max(usual, self.rate)
        if self.forecast.mode is Mode.PLAIN:
            usual *= _WORTHWHILE  # as for any draft: what sources say of themselves is not exact
        likely = chances[: speculation.local_n_max]
        return best_of_line(likely, speculation.n_min, rate, usual, self._round_seconds)

    def _round_seconds(self, drafted: int) -> float:
        """Return the time of a round with so many draft tokens, as of the newest forecast."""
        if self._seconds_round != self._forecast_round:
            self._seconds_round, self._round_times = self._forecast_round, []
        known = self._round_times
        while len(known) <= drafted:
            known.append(self.checked_seconds(len(known) + 1) + self.estimates.overhead.value)
        return known[drafted]

    def waits_for_lines(self, chances: Sequence[float]) -> bool:
        """Return whether a target that has verified a line is better stopped for the next."""
        estimates, plain = self.estimates, self.decode_seconds(1)
        if self.forecast.own_length:  # it writes with drafts of its own
            plain = min(plain, 1.0 / self.forecast.rate)
        decode = self.decode_seconds(len(chances) + 1)
        gap, beside = estimates.gap.value, estimates.overhead.value
        return is_better_stopped(chances, decode, plain, gap, beside)

    def _wait_for_all(self, have: int, wanted: int, now: float, expected: bool) -> Choice:
        """Return the choice to verify all that is wanted, if it comes before it is late."""
        if have < wanted and expected and not self.is_late(now):
            if self._idle_since is None:
                self._idle_since = now
            return Choice(have, self._waited_since + self._patience(), math.inf)
        count = min(have, wanted)
        return Choice(count, worth=math.inf if count else self._plain_worth)

    @property
    def _plain_worth(self) -> float:
        """What a round without a draft is worth, in tokens: 0 where no draft pays, else less."""
        return 1.0 - self.forecast.rate * self.plain_seconds

    def is_late(self, now: float) -> bool:
        """Return whether the draft should have sent something long ago."""
        return now >= self._waited_since + self._patience()

    @property
    def _waited_since(self) -> float:
        """When the next frame was due; while the target has no round, not before it had none."""
        due, idle = self._frames.due, self._idle_since
        return due if idle is None else max(due, idle)

    def _patience(self) -> float:
        return self._longest_patience

    def view(self) -> View:
        """Return what the controller thinks."""
        estimates, alone = self.estimates, self._alone_seconds
        return View(
            rate=self.rate,
            plain_rate=1.0 / self.plain_seconds,
            alone_rate=1.0 / alone if alone else 0.0,
            acceptance=self.acceptance.mean,
            draft_token_seconds=estimates.token_time.value,
            latency_seconds=estimates.latency.value,
            overhead_seconds=estimates.overhead.value,
            slowdown=estimates.slowdown.value,
            run_ahead=self.runs_ahead(),
            takes_turns=estimates.takes_turns,
            costs=[
                (each.rows, each.seconds + each.slope * self._text_length)
                for each in estimates.costs.points
            ],
        )

    # --- a schedule that no token has a say in ---

    @property
    def probing(self) -> bool:
        """Whether an order only asks how good the draft is now; one will do."""
        return False

    def probes(self, late_rounds: int) -> bool:
        """Return whether to order again from a draft that did not answer in time.

        Its answer may have been lost, and an order costs a message, not time.
        """
        return late_rounds >= 16

    def pause(self) -> int:
        """Return the rounds to go plainly after a late draft, even if it comes back."""
        return 4 if self.rule is Rule.REJECTION else 0
