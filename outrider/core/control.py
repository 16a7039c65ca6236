"""What every policy knows of one generation, and how it learns. Pure.

All that goes in is measured; times are seconds of one clock, the caller's. What is learned of a
target and of a draft is theirs (`TargetCosts`, `DraftRates`): all generations go by it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache, partial

from outrider.core.expected_frames import ExpectedFrames
from outrider.core.forecast import Conditions, Forecast, Mode, forecasts
from outrider.core.forecast import own as own_forecast
from outrider.core.line_worth import HOPELESS, best_of_line, is_better_stopped
from outrider.core.outcomes import Choice, Outcome
from outrider.core.own_draft_state import OwnDraftState
from outrider.core.rates import LATE_ROUNDS, AcceptanceRate, RecentRate
from outrider.core.target_costs import Pair, TakenBack
from outrider.messages import NO_OWN_DRAFT, OwnDraftOrder, Rule
from outrider.response import ControllerView
from outrider.speculation import MODEL, Policy, Speculation, Verification

_FORECAST_DECODES, _FORECAST_SECONDS = 8, 0.2
"""Rounds and seconds that a forecast stands, whichever are over first: making one takes .15 ms on a
Zen 5, and eight rounds of many rows that were in vain are a second of a slow target."""
CLEARLY = 1.05
"""Times the target's own rate, from which on a draft is used: forecasts are right to some percent
on the virtual clock, and what gains nothing costs others' rows and the draft's machine."""

USUAL_TOKENS = 256
"""Tokens that a text is expected to get, at least, of which nothing else is known."""


class Control(ABC):
    """Decides for one generation."""

    def __init__(
        self,
        speculation: Speculation,
        rule: Rule,
        pair: Pair,
        timeout: float,
        samples: bool = True,
    ) -> None:
        """`timeout` seconds without a sign of the draft are too many.

        `samples` says that rows may be sampled ids and no `Rollback` is called for: only then the
        target knows by itself what is accepted, and may draft by itself.
        """
        self.speculation = speculation
        self.rule = rule
        self._samples = samples
        self._longest_wait = timeout
        self._has_draft = False  # there is a stream to one
        self.last_time: float | None = None  # when the newest rows came
        # The target has been without a round since; None while one is in flight.
        self._idle_since: float | None = None
        self._frames = ExpectedFrames()
        self._recent = RecentRate()
        self._taken_back = TakenBack()
        self._unread = 0  # tokens of the text that the draft has not read yet
        self._remaining = 0  # that may still follow; 0 before that is known
        self._written = self._rounds = 0
        self._text_length = 0  # in tokens, prompt included
        self._forecast: Forecast | None = None  # made again every few rounds
        self._forecast_round, self._forecast_time = 0, 0.0
        self._forecast_generations = 0  # that were written when it was made
        self._round_times: list[float] = []  # by draft tokens, as of the newest forecast
        self.pair, self.costs, self.rates = pair, pair.costs, pair.rates
        self._begin_at_target()
        self._begin_with_draft()

    # --- what happened ---

    def note_pair(self, pair: Pair) -> None:
        """Another target writes, or another draft drafts from now on."""
        before, self.pair, self.costs, self.rates = self.pair, pair, pair.costs, pair.rates
        self._forecast = None
        if pair.costs is not before.costs:
            self._begin_at_target()
        if pair.rates is not before.rates:
            self._begin_with_draft()

    def _begin_at_target(self) -> None:
        """Begin with what all generations know of the target's own draft."""
        known = self.costs.sources.setdefault((self.rule, self.own_source), AcceptanceRate())
        self._own_acceptance, self._all_own_acceptance = AcceptanceRate(known), known
        own = self.costs.own if self._may_have_own else None
        self._own = OwnDraftState(own) if own is not None else None

    def _begin_with_draft(self) -> None:
        """Begin with what all generations know of the draft."""
        known = self.rates.acceptance.setdefault(self.rule, AcceptanceRate())
        self.acceptance, self._all_acceptance = AcceptanceRate(known), known

    def note_length(self, length: int) -> None:
        """The text has so many tokens now."""
        self._text_length = length

    def note_presence(self, is_there: bool) -> None:
        """A stream to a draft is open, or is gone."""
        self._has_draft = is_there
        self._forecast = None

    def note_order(self, now: float, length: int, frame_tokens: int, reading: int = 0) -> None:
        """An order went out that may start the line over at the committed length `length`.

        The draft first reads `reading` tokens of the text. Its answer comes in frames of
        `frame_tokens`; 0 is as the draft runs ahead.
        """
        if frame_tokens and self.stop_below:
            frame_tokens = min(frame_tokens, round(self.forecast.mean_length))
        size = frame_tokens or self.rates.frame_tokens
        self._frames.note_order(self.rates, now, length, size, reading)

    def note_frame(
        self,
        now: float,
        base: int,
        count: int,
        seconds: float,
        is_first: bool,
        queue: float = 0.0,
        is_new: bool = False,
    ) -> None:
        """A frame of the line that started over at `base` came, after the draft's own `seconds`.

        `is_first` says that it is the first one of its base; before it the draft waited for
        `queue` seconds. `is_new`: of its stream, so that the draft may have read a prompt before.
        """
        # While the target has its turn nothing is lost by waiting.
        waited = queue if self.pair.takes_turns else 0.0
        if is_new:
            self._frames.note_better(self.rates, now, base, count, seconds, waited)
        elif count:
            self._frames.note_frame(self.rates, now, base, count, seconds, waited, is_first)

    def line_agrees(self, end: int) -> None:
        """The line agrees with the text and reaches to `end`; it answers the orders up to there."""
        self._frames.line_agrees(end)

    def line_lost(self, length: int) -> None:
        """The line disagrees with the text at position `length`; a later order starts it over."""
        self._frames.line_lost(self.rates, length)

    def note_unread(self, count: int, remaining: int) -> None:
        """The draft was not sent the last `count` tokens of the text; so many may still follow."""
        self._unread, self._remaining = count, remaining

    def note_sent(self) -> None:
        """A round went to the target."""
        self._idle_since = None

    def note_round(self, outcome: Outcome) -> None:
        """Learn from a verified round, or from several without a draft."""
        if not outcome.is_prompt:
            self._recent.note(outcome.committed, self._seconds_of(outcome), outcome.decodes)
            pair = self.pair
            slows = outcome.draft_busy and pair.same_host and not pair.takes_turns
            rows = self._rows_of(outcome)
            self.costs.note_round(outcome, rows, self._taken_back, slows, pair.takes_turns)
        self._taken_back.note(self.costs.rejection, outcome)
        self.last_time = outcome.now
        self.note_length(outcome.length + outcome.committed)
        self._written += outcome.committed
        self._rounds += outcome.decodes
        if self.rule is Rule.REJECTION and not (outcome.is_local or outcome.is_own):
            self._note_decided(outcome.confidences[: outcome.accepted + 1], outcome.accepted)
        self._note_own(outcome)

    def _note_own(self, outcome: Outcome) -> None:
        own = self._own
        if own is None:
            return
        sessions, seconds = self.costs.sessions_together, outcome.spent.draft
        if not outcome.is_own:
            own.rates.retry.unused += outcome.decodes / sessions  # each of them notes these decodes
            is_in_vain = outcome.asks_own and not (outcome.drafted or outcome.is_prompt)
            decodes, length = outcome.decodes, outcome.length
            if is_in_vain and own.note_nothing(length, decodes, seconds * decodes):
                self._forecast = None  # without it
            return
        if own.drafts_nothing:
            self._forecast = None  # with it again
        drafted, ratio = outcome.drafted, self.costs.draft_ratio()
        own.note_drafted(seconds, drafted, self.own_pays, outcome.length, ratio)
        for acceptance in (self._own_acceptance, self._all_own_acceptance):
            acceptance.note(outcome.confidences[: outcome.accepted + 1], outcome.accepted)

    def _rows_of(self, outcome: Outcome) -> int:
        """Return the rows of a round that was not noted yet, in each of its decodes."""
        return outcome.drafted + 1 + outcome.beside + self._taken_back.count

    def _seconds_of(self, outcome: Outcome) -> float:
        """Return the time since the rows before those of a round that was not noted yet."""
        since = self.last_time if self.last_time is not None else outcome.sent or outcome.now
        return max(0.0, outcome.now - since)

    def note_line(self, confidences: Sequence[int], agrees: bool) -> None:
        """Learn from draft tokens that the text has caught up with, verified or not.

        All of them agree with it, but for the last one unless `agrees`. Where
        acceptance is equality, that is what the acceptance rule says of them.
        """
        self._note_decided(confidences, len(confidences) - (not agrees))

    def _note_decided(self, confidences: Sequence[int], accepted: int) -> None:
        for acceptance in (self.acceptance, self._all_acceptance):
            acceptance.note(confidences, accepted)

    # --- what is known ---

    def acceptance_of(self, source: str) -> tuple[AcceptanceRate, AcceptanceRate]:
        """Return how good a source without a model is, for this session to go on with, and overall.

        That belongs to the target: it does not change with the draft.
        """
        unknown = AcceptanceRate.of_source(source)
        over_all = self.costs.sources.setdefault((self.rule, source), unknown)
        return AcceptanceRate(over_all), over_all

    @property
    def may_continue(self) -> bool:
        """Whether the target can write plainly by itself: where only its samples are needed."""
        return self.costs.continues and self.rule is not Rule.REJECTION

    @property
    def _may_have_own(self) -> bool:
        """Whether this generation may use a draft in the target's own process.

        The target judges it, and under `rejection` that is as a block.
        """
        asked, continues = self.speculation, self.costs.continues
        pins = asked.n_min > 0 or asked.run_ahead is not None
        pins |= self.rule is Rule.REJECTION and asked.verification is not Verification.BLOCK
        may_draft = asked.lets_draft(self.own_source)
        return continues and self._samples and may_draft and not pins

    @property
    def own_source(self) -> str:
        """The name of the target's own draft among the drafters."""
        return MODEL if self.costs.own is None else self.costs.own.source

    @property
    def _leaves_to_own(self) -> bool:
        """Whether another draft is not even tried beside the target's own.

        There may be none; and on the same cores it would do the same work with messages in between.
        """
        is_useless = self.pair.takes_turns or not self._has_draft
        return self._own is not None and not self._own.drafts_nothing and is_useless

    @property
    def needs_stream(self) -> bool:
        """Whether a draft that there is may be asked for anything, so that a stream is opened.

        On the same cores the target's own does the work as long as it drafts at all.
        """
        if not self.speculation.lets_draft(self.rates.source):
            return False
        return self._own is None or self._own.drafts_nothing or not self.pair.takes_turns

    @property
    def plain_seconds(self) -> float:
        """The time of a token without a draft."""
        beside = self.costs.gap if self.may_continue else self.costs.overhead
        return self.decode_seconds(1) + beside.value

    @property
    def rate(self) -> float:
        """Tokens per second that are made now, at least what the target alone would make."""
        return max(1.0 / self.plain_seconds, self._recent.value)

    def decode_seconds(self, row_count: int) -> float:
        """Return the expected time of a decode with so many rows after the text."""
        return self.costs.decode_seconds(row_count, self._text_length)

    def round_seconds(self, drafted: int) -> float:
        """Return the time of a round with so many draft tokens, as of the newest forecast."""
        known, mean = self._round_times, min(0.99, self.acceptance.mean)
        while len(known) <= drafted:
            decode = self.costs.checked_seconds(len(known) + 1, self._text_length, mean)
            known.append(decode + self.costs.overhead.value)
        return known[drafted]

    @property
    def forecast(self) -> Forecast:
        """The way to speculate that is best by what is known, and what it yields."""
        passed = (self.last_time or 0.0) - self._forecast_time
        rounds = 1 if passed >= _FORECAST_SECONDS else _FORECAST_DECODES
        is_old = self._rounds >= self._forecast_round + rounds
        is_old |= self.costs.generation_count != self._forecast_generations
        if self._forecast is None or is_old:
            self._forecast_round, self._forecast_time = self._rounds, self.last_time or 0.0
            self._forecast_generations = self.costs.generation_count
            self._round_times = []
            self._forecast = self._best_of_all() if self._shares_decodes else self._best()
        return self._forecast

    @property
    def _shares_decodes(self) -> bool:
        """Whether others are in the decodes, whom nothing but the target's own draft drafts for.

        A session for which that drafts nothing, or has to read a text first, decides by itself.
        """
        own = self._own
        if own is None or own.drafts_nothing or own.reading_seconds(self._text_length) > 0.0:
            return False
        is_own = self._leaves_to_own or not self._has_draft
        return is_own and self.costs.sessions_together >= 1.5

    def _best_of_all(self) -> Forecast:
        """Return what the first of those who share decodes found to be best, for as long as it is.

        A session that drafts beside others that do not makes both slower: of streams with other
        numbers of rows llama.cpp computes parts one after the other.
        """
        now, key = self.last_time or 0.0, (self.rule, self.speculation)
        together, count = self.costs.together, self.costs.generation_count
        for other in [k for k, each in together.items() if now >= each[0] + _FORECAST_SECONDS]:
            del together[other]
        known = together.get(key)
        if known is None or known[1] != count:
            known = together[key] = now, count, self._best()
        self._forecast_time, _, found = known
        return found

    def _best(self) -> Forecast:
        """Return what pays most of all that may be used now, or the target alone."""
        asked, own, run_ahead = self.speculation, self._own, self.speculation.run_ahead
        if not self._may_run_ahead or (run_ahead is None and self.pair.takes_turns):
            run_ahead = False
        may_draft = (
            asked.lets_draft(self.rates.source) and self._has_draft and not self._leaves_to_own
        )
        sessions = self.costs.sessions_together
        n_max = asked.n_max if may_draft and not self.rates.gain.backs_off(sessions) else 0
        alone, *others = forecasts(self._conditions(), n_max, run_ahead)
        may_use_own = asked.policy is Policy.MEASURED and own is not None and not own.drafts_nothing
        if may_use_own and own is not None and not own.rates.gain.backs_off(sessions):
            most = min(asked.n_max, own.rates.most_tokens)
            others.append(own_forecast(self._own_conditions(own), most))
        best = max(others, key=lambda each: each.rate, default=alone)
        return best if self._pays(best, alone) else alone

    def _pays(self, best: Forecast, alone: Forecast) -> bool:
        """Whether drafts clearly save more than the target loses while the draft reads the text."""
        reading = 0.0
        if best.own_length and self._own is not None:
            reading = self._own.reading_seconds(self._text_length)
        elif self.pair.takes_turns:
            reading = self._unread * self.rates.read_time.value
        # As many tokens again as were written are likely, or a usual text.
        likely = max(USUAL_TOKENS, self._written)
        likely = min(likely, self._remaining or likely)
        return reading < likely * (1.0 / (CLEARLY * alone.rate) - 1.0 / best.rate)

    def _conditions(self) -> Conditions:
        """Return what a forecast for the draft on the stream rests on."""
        costs, rates, mean = self.costs, self.rates, min(0.99, self.acceptance.mean)
        seconds = partial(costs.checked_seconds, length=self._text_length, acceptance=mean)
        return Conditions(
            acceptance=mean,
            decode_seconds=cache(seconds),
            overhead=costs.overhead.value + costs.queue.value,
            latency=rates.latency.value,
            token_time=rates.token_time.value,
            first_frame=rates.frame_tokens,
            confidences=self.acceptance.by_confidence if self._may_stop else (),
            gap=costs.gap.value if self.may_continue else None,
        )

    def _own_conditions(self, own: OwnDraftState) -> Conditions:
        """Return the same for the target's own draft.

        Sessions that share decodes wait for the longest of their drafts, so none ends early, and
        they draft together or not at all.
        """
        costs, is_shared = self.costs, self.costs.sessions_together >= 1.5
        acceptance = self._all_own_acceptance if is_shared else self._own_acceptance
        mean = min(0.99, acceptance.mean)
        seconds = partial(costs.checked_seconds, length=self._text_length, acceptance=mean)
        return Conditions(
            acceptance=mean,
            decode_seconds=cache(seconds),
            overhead=costs.gap.value + own.rates.latency.value,
            latency=0.0,
            token_time=costs.draft_ratio() * own.rates.token_time.value,
            confidences=acceptance.by_confidence if self._may_stop and not is_shared else (),
        )

    def view(self) -> ControllerView:
        """Return what the controller thinks."""
        costs, alone = self.costs, self.costs.alone_seconds(self._text_length)
        return ControllerView(
            token_rate=self.rate,
            plain_token_rate=1.0 / self.plain_seconds,
            target_alone_token_rate=1.0 / alone if alone else 0.0,
            acceptance=self.acceptance.mean,
            draft_token_seconds=self.rates.token_time.value,
            draft_latency_seconds=self.rates.latency.value,
            round_overhead_seconds=costs.overhead.value,
            run_ahead=self.runs_ahead(),
            takes_turns=self.pair.takes_turns,
            head=self.rates.is_head,
            decode_costs=tuple(
                (each.rows, each.seconds + each.slope * self._text_length)
                for each in costs.table.points
            ),
        )

    # --- what is decided ---

    @abstractmethod
    def draft_count(self, cap: int) -> int:
        """Return how many tokens to draft anew for the next round, at most `cap`."""

    @abstractmethod
    def choose(self, confidences: Sequence[int], cap: int, now: float, expected: bool) -> Choice:
        """Return what to verify now that the target is free.

        `confidences` are those of the usable tokens, at most `cap` may be
        verified, and `expected` says whether more are on their way.
        """

    @property
    def own_draft(self) -> OwnDraftOrder:
        """What the target's own draft is to do, where it has one."""
        return NO_OWN_DRAFT

    @property
    def own_pays(self) -> bool:
        """Whether the target's own draft is used for more than to see how good it is."""
        return True

    @property
    def waits_for_drafts(self) -> bool:
        """Whether a target waits for the draft that is wanted, instead of writing by itself."""
        return True

    @property
    def sends_no_text(self) -> bool:
        """Whether a draft of which nothing is wanted is not even sent the text."""
        return False

    @property
    def probing(self) -> bool:
        """Whether an order only asks how good the draft is now; one will do."""
        return False

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
    def may_doubt(self) -> bool:
        """Whether the draft may stop at a token that it is not sure of."""
        return self.speculation.p_min > 0.0 or self.speculation.policy is Policy.CLASSIC

    @property
    def _may_run_ahead(self) -> bool:
        """Whether the draft may draft while the target verifies: no block, and no head."""
        return self.rule is not Rule.REJECTION and not self.rates.is_head

    def runs_ahead(self) -> bool:
        """Return whether the draft continues while the target verifies."""
        if not self._may_run_ahead:
            return False
        if self.speculation.run_ahead is not None:
            return self.speculation.run_ahead
        return self.forecast.mode in (Mode.WAITING, Mode.NO_WAIT)

    def lookahead(self) -> int:
        """Return how far to draft beyond the next round.

        That is what may be committed before the next order arrives, unless it
        is unlikely to survive for so long.
        """
        if self.probing:
            # A probe must reach beyond what is decoded until it comes.
            return self._decoded_meanwhile()
        if not self.runs_ahead():
            return 0
        count = self.forecast.hit_length or 1
        ahead_time = self.rates.latency.value + self.decode_seconds(count + 1)
        wanted = count + 1 + math.ceil(ahead_time / max(self.rates.token_time.value, 1e-4))
        mean = min(0.98, max(0.02, self.acceptance.mean))
        return max(2, min(wanted, math.ceil(math.log(HOPELESS) / math.log(mean))))

    def _decoded_meanwhile(self) -> int:
        """Return the tokens decoded plainly until a draft comes."""
        return math.ceil(self.rates.latency.value / self.plain_seconds)

    @property
    def line_count(self) -> int:
        """Lines that the draft may write at once: more than one only where that was asked for."""
        asked = self.speculation.n_parallel or 1
        return min(asked, len(self.rates.line_ratios)) if self.runs_ahead() else 1

    def rounds_ahead(self, count: int) -> int:
        """Return how many rounds of `count` tokens may be at the target beside the oldest.

        They pay when a round spends longer on the way than in the decode.
        """
        if not self.runs_ahead():
            return 0
        return min(3, int(2.0 * self.costs.overhead.value / self.decode_seconds(count + 1)))

    def best_of_line(self, chances: Sequence[float]) -> tuple[int, float]:
        """Return how many tokens of a line at hand are best verified next, and their worth.

        `chances` are those of its tokens, each if those before it stand. The worth is what the
        round adds, less what is made anyway in the time, as in `choose`; the number is for the
        rate that the generation has now, which is higher where sources without a model are right.
        """
        asked, usual = self.speculation, self.forecast.rate
        rate = max(usual, self.rate)
        if self.forecast.mode is Mode.PLAIN:
            usual *= CLEARLY  # as for any draft: what sources say of themselves is not exact
        likely = chances[: asked.local_n_max]
        return best_of_line(likely, asked.n_min, rate, usual, self.round_seconds)

    def waits_for_lines(self, chances: Sequence[float]) -> bool:
        """Return whether a target that has verified a line is better stopped for the next."""
        plain = self.decode_seconds(1)
        if self.forecast.own_length:  # it writes with drafts of its own
            plain = min(plain, 1.0 / self.forecast.rate)
        decode = self.decode_seconds(len(chances) + 1)
        gap, beside = self.costs.gap.value, self.costs.overhead.value
        return is_better_stopped(chances, decode, plain, gap, beside)

    # --- waiting ---

    def _wait_for_all(self, have: int, wanted: int, now: float, expected: bool) -> Choice:
        """Return the choice to verify all that is wanted, if it comes before it is late."""
        if have < wanted and expected and not self.is_late(now):
            return Choice(have, self._wait(now), math.inf)
        count = min(have, wanted)
        plain = 1.0 - self.forecast.rate * self.plain_seconds
        return Choice(count, worth=math.inf if count else plain)

    def _wait(self, now: float) -> float:
        """Let the target wait for the draft from now on; return until when."""
        if self._idle_since is None:
            self._idle_since = now
        return self._waited_since + self._timeout()

    def is_late(self, now: float) -> bool:
        """Return whether the draft should have sent something long ago."""
        return now >= self._waited_since + self._timeout()

    @property
    def _waited_since(self) -> float:
        """When the next frame was due; while the target has no round, not before it had none."""
        due, idle = self._frames.due, self._idle_since
        return due if idle is None else max(due, idle)

    def _timeout(self) -> float:
        return self._longest_wait

    def asks_late_again(self, late_rounds: int) -> bool:
        """Return whether to order again from a draft that did not answer in time.

        Its answer may have been lost, and an order costs a message, not time.
        """
        return late_rounds >= LATE_ROUNDS

    def pause(self) -> int:
        """Return the rounds to go plainly after a late draft, even if it comes back.

        Under the rejection rule no token may decide by its value whether it is seen.
        """
        return 4 if self.rule is Rule.REJECTION else 0
