"""The policies: draft lengths that are given, follow a rule of thumb, or are measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cache, partial

from orchestrator.core.controller import Control
from orchestrator.core.estimates import FIRST_PROBE, OWN, Acceptance, PairEstimates
from orchestrator.core.forecast import Conditions, Forecast, Mode, expected_tokens, plain
from orchestrator.core.line_worth import best_count, survivals_of
from orchestrator.core.outcomes import Choice, Outcome, View
from orchestrator.core.own_draft import NO_OWN_DRAFT, OwnDraft, OwnDraftOrder, forecast
from outrider.messages import Rule
from outrider.speculation import Policy, Speculation

_CLASSIC_START, _CLASSIC_STEP, _CLASSIC_LARGEST, _CLASSIC_SMALLEST = 16, 8, 30, 2
CLASSIC_RATIO = 2.0
"""Under the classic policy drafting stops when the best token is less than so many times as
likely as the second."""


class OwnDrafting(Control):
    """What policies know of the draft in the target's own process, where there is one."""

    def __init__(
        self,
        speculation: Speculation,
        rule: Rule,
        estimates: PairEstimates,
        patience: float,
        samples: bool = True,
    ) -> None:
        """`samples` says that rows are sampled ids and no `Rollback` is called for.

        Only then the target knows by itself what is accepted.
        """
        self._samples = samples
        super().__init__(speculation, rule, estimates, patience)
        self._begin()

    def _begin(self) -> None:
        """Set what the policy starts from, where it keeps anything."""

    def note_draft(self, estimates: PairEstimates) -> None:
        super().note_draft(estimates)
        known = estimates.of_sources.setdefault((self.rule, OWN), Acceptance())
        self._own_acceptance, self._all_own_acceptance = Acceptance(known), known
        own = estimates.own_draft if self._may_have_own else None
        self._own = OwnDraft(own) if own is not None else None

    def note_round(self, outcome: Outcome) -> None:
        super().note_round(outcome)
        self._note_own(outcome)

    def _note_own(self, outcome: Outcome) -> None:
        own = self.estimates.own_draft
        if self._own is None or own is None:
            return
        if not outcome.is_own:
            own.note_unused(outcome.decodes, self.estimates.sessions_together)
            is_in_vain = outcome.asks_own and not (outcome.drafted or outcome.is_prompt)
            seconds = outcome.spent.draft * outcome.decodes
            if is_in_vain and self._own.note_nothing(outcome.length, outcome.decodes, seconds):
                self._forecast = None  # without it
            return
        if self._own.is_silent:
            self._forecast = None  # with it again
        drafted, pays = outcome.drafted, self._own_pays
        self._own.note_drafted(outcome.spent.draft, drafted, pays, outcome.length)
        for acceptance in (self._own_acceptance, self._all_own_acceptance):
            acceptance.note(outcome.confidences[: outcome.accepted + 1], outcome.accepted)

    @property
    def _own_pays(self) -> bool:
        """Whether it is used for more than to see how good it is."""
        return self.forecast.own_length > 0

    @property
    def _leaves_to_own(self) -> bool:
        """Whether another draft is not even tried beside the target's own.

        There may be none; and on the same cores it would do the same work with messages in between.
        """
        is_useless = self.estimates.takes_turns or not self._has_draft
        return self._own is not None and not self._own.is_silent and is_useless

    @property
    def needs_stream(self) -> bool:
        # On the same cores the target's own draft does the work as long as it drafts at all.
        return self._own is None or self._own.is_silent or not self.estimates.takes_turns

    @property
    def _may_have_own(self) -> bool:
        """Whether this generation may use a draft in the target's own process."""
        asked = self.speculation
        pins = asked.n_min > 0 or asked.run_ahead is not None
        return self.may_continue and self._samples and asked.drafts and not pins


class Fixed(OwnDrafting):
    """Draft `n_max` tokens a round and wait for all of them.

    The target's own draft does so on the same cores, without messages in between.
    """

    def draft_count(self, cap: int) -> int:
        return 0 if self._leaves_to_own else max(0, min(self._length(), cap))

    @property
    def own_draft(self) -> OwnDraftOrder:
        return OwnDraftOrder(self._length()) if self._leaves_to_own else NO_OWN_DRAFT

    @property
    def _own_pays(self) -> bool:
        return True

    @property
    def _may_have_own(self) -> bool:
        return super()._may_have_own and not self.may_doubt

    def _length(self) -> int:
        return self.speculation.n_max

    def choose(
        self, confidences: Sequence[int], cap: int, now: float, length: int, expected: bool
    ) -> Choice:
        return self._wait_for_all(len(confidences), self.draft_count(cap), now, expected)


class Classic(Fixed):
    """The rule of llama.cpp's example: longer after a full acceptance, shorter after a rejection.

    It starts at `n_max`, grows by 8 up to 30 when a full-length draft is all
    accepted, stays for a shorter one, and shrinks by 1 down to 2 otherwise.
    """

    def _begin(self) -> None:
        self._current = self.speculation.n_max

    def _length(self) -> int:
        return self._current

    def note_round(self, outcome: Outcome) -> None:
        super().note_round(outcome)
        if outcome.is_local:
            return
        if outcome.accepted < outcome.drafted:
            self._current = max(min(_CLASSIC_SMALLEST, self._current), self._current - 1)
        elif outcome.drafted and outcome.drafted >= self._current:
            self._current = min(_CLASSIC_LARGEST, self._current + _CLASSIC_STEP)


class Measured(OwnDrafting):
    """Draft, verify and wait for what pays."""

    _PROBE_LENGTH = 3
    _PROBE_STEP, _LAST_PROBE = 2, 128
    _PROBE_STEP_IN_TURNS, _LAST_PROBE_IN_TURNS, _PROBE_SHARE = 4, 512, 0.015
    """On the target's own cores a probe takes time from it, at most this share."""
    _FIRST_PROBE_SHARE = 0.04
    """And the first one of a draft that was never seen to draft."""
    _FIRST_PROBE_SHARE_AHEAD = 0.025
    """The same of the time that the text will likely take: a short one is read at once."""
    _SLOW_PROBE = 1024
    """Rounds after which one is tried again that looked too slow even if it were always right."""
    _ROUGHLY = 0.4
    """Of what a draft token took in a look in passing it may take in truth."""
    _FEW_UNREAD = 8
    """Tokens of the text that a draft reads together with its own newest one."""
    _USUAL_TOKENS = 256
    """Of a text of which nothing is known."""
    _OWN_PAYS, _OWN_PAYS_TOGETHER = 1.03, 1.15
    """Times the target's own rate, from which on its own draft is used; with others, whose tokens
    the rows of a draft delay, more."""
    _TOGETHER = 1.5
    """Sessions in a decode, in the mean, from which on others count."""
    _GRANT_STEP = 0.25
    """Tokens a round by which a draft grows again after a busy target cut it."""

    def _begin(self) -> None:
        # No length would pay, as of the forecast of that round.
        self._slow, self._slow_round = False, -1
        # Tokens at most; less after a rejection, then growing again.
        self._granted = float(self.speculation.n_max)

    def note_draft(self, estimates: PairEstimates) -> None:
        super().note_draft(estimates)
        self._unknown_rounds = estimates.unprobed_rounds  # since the draft was last seen to draft
        self._probe_after = estimates.probe_after  # so many of them it is tried again

    def note_round(self, outcome: Outcome) -> None:
        self._note_gain(outcome)
        super().note_round(outcome)
        self._unknown_rounds += outcome.decodes
        self.estimates.unprobed_rounds = self._unknown_rounds
        if outcome.drafted < outcome.offered:
            self._granted = float(outcome.drafted)
        else:
            self._granted += self._GRANT_STEP * outcome.decodes

    def _note_gain(self, outcome: Outcome) -> None:
        """Learn what the draft that the forecast goes by gained, where a round can say it."""
        estimates, own, known = self.estimates, self.estimates.own_draft, self._forecast
        if known is None or known.mode is Mode.PLAIN:
            estimates.gain.note_unused(outcome.decodes)
            if own is not None:
                own.gain.note_unused(outcome.decodes)
            return
        spent, own_rows = outcome.spent, estimates.costs.padded(self._rows_of(outcome))
        is_shared = spent.rows > 0 and not estimates.is_alike(spent, own_rows)
        if outcome.is_prompt or outcome.is_local or is_shared:
            return
        gain = own.gain if known.own_length and own is not None else estimates.gain
        gain.note_rounds(outcome.committed, self._seconds_of(outcome), self.plain_seconds)
        if gain.is_resting:
            self._forecast = None  # without it

    def note_frame(
        self,
        now: float,
        base: int,
        count: int,
        seconds: float,
        is_first: bool,
        queue: float = 0.0,
    ) -> None:
        if count:
            self._note_probed()
        super().note_frame(now, base, count, seconds, is_first, queue)

    def note_new_stream(
        self, now: float, base: int, count: int, seconds: float, queue: float
    ) -> None:
        self._note_probed()
        super().note_new_stream(now, base, count, seconds, queue)

    def _note_probed(self) -> None:
        """Let what a draft is like now count for more where it was not seen for long."""
        if self._unknown_rounds >= FIRST_PROBE:
            for mean in (self.estimates.latency, self.estimates.token_time):
                mean.doubt(self._unknown_rounds)

    def note_line(self, confidences: Sequence[int], agrees: bool) -> None:
        super().note_line(confidences, agrees)
        if confidences:
            nothing = len(confidences) == 1 and not agrees
            # A probe costs little, but not nothing: a good draft may be too far away for long.
            in_vain = nothing or (
                self.forecast.length == 0 and self._best_mode(self._conditions()).length == 0
            )
            self._unknown_rounds = 0
            self._probe_after = self._longer_probe() if in_vain else FIRST_PROBE
            self.estimates.unprobed_rounds = 0
            self.estimates.probe_after = self._probe_after

    def _longer_probe(self) -> int:
        if self.estimates.takes_turns:
            return min(self._LAST_PROBE_IN_TURNS, self._PROBE_STEP_IN_TURNS * self._probe_after)
        return min(self._LAST_PROBE, self._PROBE_STEP * self._probe_after)

    @property
    def own_draft(self) -> OwnDraftOrder:
        if self._own is None:
            return NO_OWN_DRAFT
        length = self._text_length
        likely, sessions = self._likely_tokens, self.estimates.sessions_together
        return self._own.order(self.forecast, self.plain_seconds, length, likely, sessions)

    @property
    def expected_rate(self) -> float:
        """Tokens per second to expect of such texts."""
        its = copy(self)
        its.acceptance = self._all_acceptance.lasting()
        its._own_acceptance = self._all_own_acceptance.lasting()
        return its._best_mode(its._conditions()).rate

    def view(self) -> View:
        view = replace(super().view(), forecast_rate=self.expected_rate)
        own = self.estimates.own_draft
        if not self.forecast.own_length or own is None:
            return view
        return replace(
            view,
            acceptance=self._own_acceptance.mean,
            draft_token_seconds=own.token_time.value,
            latency_seconds=0.0,
        )

    @property
    def _likely_tokens(self) -> int:
        """Tokens that are likely to follow: as many again as were written, or a usual text."""
        return min(self._remaining, max(self._USUAL_TOKENS, self._written))

    def _best_mode(self, conditions: Conditions) -> Forecast:
        alone, own = plain(conditions.continuing), self.estimates.own_draft
        best = alone if self._leaves_to_own else super()._best_mode(conditions)
        if self._own is None or own is None or self._own.is_silent or own.gain.is_resting:
            return best
        seconds = cache(partial(self.checked_seconds, acceptance=self._own_acceptance))
        checked = replace(conditions, decode_seconds=seconds)
        there = forecast(checked, own, self._own_acceptance, self.speculation.n_max)
        is_alone = self.estimates.sessions_together < self._TOGETHER
        pays = self._OWN_PAYS if is_alone else self._OWN_PAYS_TOGETHER
        return there if there.rate > max(pays * alone.rate, best.rate) else best

    def note_presence(self, is_there: bool) -> None:
        super().note_presence(is_there)
        self._slow_round = -1

    @property
    def probing(self) -> bool:
        return not self._is_wanted and self._is_time_to_probe

    @property
    def _is_wanted(self) -> bool:
        """Whether drafting pays, what the draft has to read before included."""
        return self.forecast.length > 0 and self._reading_pays()

    @property
    def _is_time_to_probe(self) -> bool:
        after = self._SLOW_PROBE if self._is_too_slow() else self._probe_after
        estimates = self.estimates
        if self._leaves_to_own:
            return False
        is_first = estimates.takes_turns and self.acceptance.is_untried
        if self._unknown_rounds < after and not is_first:
            return False
        if not estimates.takes_turns:
            return True
        allowed = self._PROBE_SHARE * self._unknown_rounds
        if self.acceptance.is_untried:
            likely = self._FIRST_PROBE_SHARE_AHEAD * min(self._remaining, self._USUAL_TOKENS)
            allowed = max(likely, self._FIRST_PROBE_SHARE * self._unknown_rounds)
        allowed *= self.plain_seconds / max(1, estimates.generation_count)  # all share the cores
        return self._probe_seconds() <= allowed

    def _probe_seconds(self) -> float:
        """Return the draft's time for a probe, the text that it was not sent included."""
        estimates = self.estimates
        count = self._PROBE_LENGTH + self._overtaken()
        return self._unread * estimates.read_time.value + count * estimates.token_time.value

    def _reading_pays(self) -> bool:
        """Return whether drafting is likely to save twice what the draft needs to read the text.

        Four times, if nothing is known of how good it is. On the target's own cores that is time
        lost. What is written is expected to become as long again as it is, and not to be short
        unless it must.
        """
        estimates = self.estimates
        if not estimates.takes_turns or self._unread <= self._FEW_UNREAD:
            return True
        saved = self._likely_tokens * (self.plain_seconds - 1.0 / self.forecast.rate)
        times = 4.0 if self.acceptance.is_untried else 2.0
        return saved >= times * self._unread * estimates.read_time.value

    def _is_too_slow(self) -> bool:
        """Return whether the draft could not pay if it were always right, and here."""
        estimates = self.estimates
        if self._slow_round != self._forecast_round:
            self._slow_round = self._forecast_round
            # The lesser: both may have been taken in a noisy moment.
            token_time = min(estimates.loaded_token_time, estimates.token_time.value)
            if estimates.is_roughly_loaded:
                token_time *= self._ROUGHLY
            at_best = replace(
                self._conditions(),
                acceptance=0.99,
                confidences=(),
                latency=0.0,
                token_time=token_time,
            )
            self._slow = token_time > 0.0 and self._best_mode(at_best).length == 0
        return self._slow

    @property
    def waits_for_drafts(self) -> bool:
        # With runner-up lines the target waits to hear with which of them it continues.
        waits = self.forecast.mode is not Mode.NO_WAIT or self.line_count > 1
        return waits and not self.probing

    @property
    def leaves_draft_alone(self) -> bool:
        # On the target's own cores, reading the text takes time from the target.
        return self.estimates.takes_turns and not self._is_wanted

    def draft_count(self, cap: int) -> int:
        count = min(self.forecast.length, int(self._granted)) if self._is_wanted else 0
        if count == 0 and self._is_time_to_probe:
            count = min(self.speculation.n_max, self._PROBE_LENGTH)
        return max(0, min(count, cap))

    def choose(
        self, confidences: Sequence[int], cap: int, now: float, length: int, expected: bool
    ) -> Choice:
        if self.rule is Rule.REJECTION:
            return self._wait_for_all(len(confidences), cap, now, expected)
        if self.forecast.own_length:
            return Choice(0)  # the target is worth its rate by itself
        most = max(0, min(self.speculation.n_max, cap))
        have = min(len(confidences), most)
        unread = max(0, length - self._frames.next_position(length, self.runs_ahead()))
        values = self._values(confidences, have, most if expected else have, now, unread, expected)
        best_now = best_count(values[: have + 1], self.speculation.n_min)
        best = best_count(values, self.speculation.n_min)
        if best <= have or self.is_late(now):
            return Choice(best_now, worth=values[best_now])
        if self._idle_since is None:
            self._idle_since = now
        if self.estimates.takes_turns:
            until = self._waited_since + self._patience()
        else:
            gain = values[best] - values[best_now]
            until = max(self._frames.due, now) + gain / self.forecast.rate + 1e-4
        return Choice(best_now, until, values[best])

    def _values(
        self,
        confidences: Sequence[int],
        have: int,
        most: int,
        now: float,
        unread: int,
        expected: bool,
    ) -> list[float]:
        """Return what it is worth, in tokens, to verify 0, 1, .. `most` draft tokens.

        That is what the round adds, less what the target makes anyway in the
        time, and what a hit after it is worth. Beyond `have` tokens the time
        includes the wait for them, and for `unread` ones that the text has
        overtaken and that must all agree with it.
        """
        forecast, continues = self.forecast, self.runs_ahead()
        mean, token_time = self.acceptance.mean, self.estimates.token_time.value

        def value(tokens: float, time: float, hit: float, left: int) -> float:
            """Return what is added, less what is made in the time anyway, and what a hit adds.

            `hit` is its chance. It is worth what `left` tokens of the line are worth to the next
            round, unless more are expected.
            """
            worth = forecast.hit_worth if continues else 0.0
            if not expected:
                worth = min(worth, expected_tokens(mean, max(0, left)) - 1.0)
            return tokens - forecast.rate * time + hit * worth

        first = self._wait_for_the_first(now) + unread * token_time
        rounds = self._plain_rounds(first) if expected else 1
        hit = mean ** (unread + rounds) if expected else mean
        values = [value(1.0 * rounds, rounds * self.plain_seconds, hit, have - 1)]
        known = [self.acceptance.chance(each) for each in confidences[:have]]
        tokens = 1.0
        for k, survival in enumerate(survivals_of(known, mean, most, unread), 1):
            tokens += survival
            time = self.checked_seconds(k + 1) + self.estimates.overhead.value
            if k > have:
                frames = (k - have - 1) // self._frames.size
                time += first + frames * self._frames.size * token_time
            values.append(value(tokens, time, survival * mean, have - k - 1))
        return values

    def _plain_rounds(self, seconds: float) -> int:
        """Return how many rounds without a draft begin until one comes, after so many seconds."""
        return max(1, math.ceil(seconds / self.plain_seconds)) if seconds > 0 else 1

    def _wait_for_the_first(self, now: float) -> float:
        """Return the expected wait for the next frame.

        What is overdue is expected to take as long again as it is late. But where the
        two take turns, a draft that is late is a machine that is slow, for the target too,
        which would only keep the draft from its turn.
        """
        left = self._frames.due - now
        return max(left, 0.0 if self.estimates.takes_turns else -left)

    def _patience(self) -> float:
        estimates = self.estimates
        waits = estimates.latency.value + estimates.turn.value + estimates.token_time.value
        usual = 0.05 + 4.0 * waits
        return min(self._longest_patience, usual)


_POLICIES = {Policy.FIXED: Fixed, Policy.CLASSIC: Classic, Policy.MEASURED: Measured}


def control(
    speculation: Speculation,
    rule: Rule,
    estimates: PairEstimates,
    patience: float,
    samples: bool = True,
) -> Control:
    """Return what decides for one generation; `patience` seconds without a sign are too many.

    `samples` says that rows are sampled ids and no `Rollback` is called for.
    """
    return _POLICIES[speculation.policy](speculation, rule, estimates, patience, samples)
