"""The policies: draft lengths that are given, follow a rule of thumb, or are measured. Pure.

The measured one drafts as long as it pays, from the first token on. One forecast says what each way
to speculate yields by what is known, and the best is used where it is clearly better than the
target alone. What is not used is tried after 64 to 1,024 decodes (`Retry`), on the target's own
cores for a small share of its time; what loses by the time that was measured backs off (`Gain`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from outrider.core.control import USUAL_TOKENS, Control
from outrider.core.forecast import Forecast, Mode, expected_tokens
from outrider.core.outcomes import Choice, Outcome
from outrider.core.rates import Gain
from outrider.core.target_costs import Pair
from outrider.messages import NO_OWN_DRAFT, OwnDraftOrder, Rule
from outrider.response import ControllerView
from outrider.speculation import Policy, Speculation

_CLASSIC_STEP, _CLASSIC_MOST, _CLASSIC_LEAST = 8, 30, 2
"""Tokens; those of llama.cpp's example, as is CLASSIC_RATIO."""
CLASSIC_RATIO = 2.0
"""Under the classic policy drafting stops when the best token is less than so many times as
likely as the second."""
_PROBE_TOKENS = 3
"""Draft tokens of a probe: a few of them tell an acceptance of .9 from one of .5."""
_PROBE_SHARE = 0.015
"""A probe on the target's own cores takes at most this share of the time since the last one, or of
a usual text's."""


class Fixed(Control):
    """Draft `n_max` tokens a round and wait for all of them.

    The target's own draft does so on the same cores, without messages in between.
    """

    def draft_count(self, cap: int) -> int:
        return 0 if self._leaves_to_own else max(0, min(self._length(), cap))

    @property
    def own_draft(self) -> OwnDraftOrder:
        return OwnDraftOrder(self._length()) if self._leaves_to_own else NO_OWN_DRAFT

    @property
    def _may_have_own(self) -> bool:
        return super()._may_have_own and not self.may_doubt

    def _length(self) -> int:
        return self.speculation.n_max

    def choose(self, confidences: Sequence[int], cap: int, now: float, expected: bool) -> Choice:
        return self._wait_for_all(len(confidences), self.draft_count(cap), now, expected)


class Classic(Fixed):
    """The rule of llama.cpp's example: longer after a full acceptance, shorter after a rejection.

    It starts at `n_max`, grows by 8 up to 30 when a full-length draft is all
    accepted, stays for a shorter one, and shrinks by 1 down to 2 otherwise.
    """

    _current: int | None = None  # tokens; None before the first round

    def _length(self) -> int:
        return self.speculation.n_max if self._current is None else self._current

    def note_round(self, outcome: Outcome) -> None:
        super().note_round(outcome)
        current = self._length()
        if outcome.is_local:
            return
        if outcome.accepted < outcome.drafted:
            self._current = max(min(_CLASSIC_LEAST, current), current - 1)
        elif outcome.drafted and outcome.drafted >= current:
            self._current = min(_CLASSIC_MOST, current + _CLASSIC_STEP)


class Measured(Control):
    """Draft, verify and wait for what pays."""

    # --- what happened ---

    def note_round(self, outcome: Outcome) -> None:
        self._note_gain(outcome)
        super().note_round(outcome)
        self.rates.retry.unused += outcome.decodes

    def _note_gain(self, outcome: Outcome) -> None:
        """Learn what the draft that the forecast goes by gained, where a round can say it."""
        known, own = self._forecast, self._own.rates.gain if self._own is not None else Gain()
        sessions = self.costs.sessions_together
        if known is None or known.mode is Mode.PLAIN:
            self.rates.gain.note_unused(outcome.decodes, sessions)
            own.note_unused(outcome.decodes, sessions)
            return
        spent, rows = outcome.spent, self.costs.table.padded(self._rows_of(outcome))
        is_shared = spent.rows > 0 and not self.costs.is_alike(spent, rows)
        # Of a decode with others, who have left meanwhile, or without those who came.
        is_before = spent.rows > 0 and self.may_continue and spent.sessions != round(sessions)
        if outcome.is_prompt or outcome.is_local or is_shared or is_before or self._reads(known):
            return
        gain = own if known.own_length else self.rates.gain
        seconds = self._seconds_of(outcome)
        gain.note_rounds(outcome.committed, seconds, self.plain_seconds, sessions)
        if gain.backs_off(sessions):
            self._forecast = None  # without it
            self.costs.together.clear()

    def _reads(self, known: Forecast) -> bool:
        """Whether the target's own draft still read the text, which was weighed before."""
        return known.own_length > 0 and self._own is not None and not self._own.has_read

    def note_line(self, confidences: Sequence[int], agrees: bool) -> None:
        super().note_line(confidences, agrees)
        if confidences:
            self.rates.retry.note_tried(pays=self.forecast.length > 0)

    @property
    def expected_rate(self) -> float:
        """Tokens per second to expect of such texts."""
        its = copy(self)
        its.acceptance, its._own_acceptance = self._all_acceptance, self._all_own_acceptance
        return its._best().rate

    def view(self) -> ControllerView:
        view = replace(super().view(), forecast_token_rate=self.expected_rate)
        if not self.forecast.own_length or self._own is None:
            return view
        return replace(
            view,
            acceptance=self._own_acceptance.mean,
            draft_token_seconds=self._own.rates.token_time.value,
            draft_latency_seconds=0.0,
        )

    # --- what is not used is tried now and then ---

    @property
    def probing(self) -> bool:
        return not self.forecast.length and self._is_due

    @property
    def _is_due(self) -> bool:
        """Whether it is time to see how good the draft is."""
        rates = self.rates
        if self._leaves_to_own or not rates.retry.is_due:
            return False
        if not self.pair.takes_turns:
            return True
        count = _PROBE_TOKENS + self._decoded_meanwhile()
        seconds = self._unread * rates.read_time.value + count * rates.token_time.value
        return self._may_probe(seconds, rates.retry.unused)

    def _may_probe(self, seconds: float, decodes: float) -> bool:
        """Whether a probe that takes so long of the target's cores is a small share of its time.

        All sessions that share its decodes wait for it, and may find at once that one is due.
        """
        most = _PROBE_SHARE * max(USUAL_TOKENS, decodes) * self.plain_seconds
        return self.costs.sessions_together * seconds <= most

    @property
    def own_draft(self) -> OwnDraftOrder:
        best, own = self.forecast, self._own
        if own is None:
            return NO_OWN_DRAFT
        if best.own_length:
            return OwnDraftOrder(best.own_length, best.stop_below)
        if not own.rates.retry.is_due:
            return NO_OWN_DRAFT
        seconds = own.reading_seconds(self._text_length)
        # The target has begun the next decode, with a draft, when it hears that one was enough.
        seconds += 2 * _PROBE_TOKENS * own.rates.token_time.value
        if not self._may_probe(seconds, own.rates.retry.unused):
            return NO_OWN_DRAFT
        return OwnDraftOrder(_PROBE_TOKENS)

    @property
    def own_pays(self) -> bool:
        return self.forecast.own_length > 0

    # --- what is done ---

    @property
    def waits_for_drafts(self) -> bool:
        return self.forecast.mode is not Mode.NO_WAIT and not self.probing

    @property
    def sends_no_text(self) -> bool:
        # On the target's own cores, reading the text takes time from the target.
        return self.pair.takes_turns and not self.forecast.length

    def draft_count(self, cap: int) -> int:
        count = self.forecast.length or (_PROBE_TOKENS if self._is_due else 0)
        return max(0, min(count, self.speculation.n_max, cap))

    def choose(self, confidences: Sequence[int], cap: int, now: float, expected: bool) -> Choice:
        best = self.forecast
        if self.rule is Rule.REJECTION:
            return self._wait_for_all(len(confidences), cap, now, expected)
        if not best.length:  # or of the target's own draft, of which nothing is ordered
            return Choice(0, worth=self._worth(0))
        wanted = min(cap, best.hit_length if self.runs_ahead() else best.length)
        have = min(len(confidences), wanted)
        if have < self.speculation.n_min:
            have = 0
        waits = best.mode is Mode.SERIAL or (best.mode is Mode.WAITING and not have)
        if have < wanted and expected and waits and not self.is_late(now):
            return Choice(have, self._wait(now), self._worth(wanted))
        return Choice(have, worth=self._worth(have))

    def _worth(self, drafted: int) -> float:
        """Return what a round adds, in tokens, less what is made in its time anyway."""
        seconds = self.round_seconds(drafted) if drafted else self.plain_seconds
        return expected_tokens(self.acceptance.mean, drafted) - self.forecast.rate * seconds

    def _timeout(self) -> float:
        rates = self.rates
        waits = rates.latency.value + rates.token_time.value
        if self.pair.takes_turns:
            waits += self.plain_seconds
        return min(self._longest_wait, 0.05 + 4.0 * waits)


_POLICIES = {Policy.FIXED: Fixed, Policy.CLASSIC: Classic, Policy.MEASURED: Measured}


def control(
    speculation: Speculation, rule: Rule, pair: Pair, timeout: float, samples: bool = True
) -> Control:
    """Return what decides for one generation; `timeout` seconds without a sign are too many.

    `samples` says that rows may be sampled ids and no `Rollback` is called for.
    """
    return _POLICIES[speculation.policy](speculation, rule, pair, timeout, samples)
