"""How many tokens to draft, what to verify, and when to wait for more. Pure.

One rule decides all of it, the marginal rule of renewal-reward processes:
spending time d on drafting, waiting or more rows pays iff the tokens that it
is expected to add exceed rho * d, where rho is the tokens per second that
this generation makes, and never less than the target alone would make. All
that goes in is measured; times are seconds of one clock, told by the caller.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from orchestrator.core.forecast import Conditions, Forecast, Mode, forecasts
from outrider.costs import CostTable
from outrider.messages import Rule
from outrider.speculation import Policy, Speculation

_UNKNOWN_COSTS = ((1, 0.03), (64, 0.06))
_UNKNOWN_ACCEPTANCE = (1.6, 2.0)  # accepted of tried: high, so that a new draft is tried at once
_LOOKAHEAD = 48
_HOPELESS = 0.02
_WORTHWHILE = 1.05  # times the target's own rate: forecasts are not much better than that
_FORECAST_ROUNDS = 8
_MOST_SHARING = 16.0
_SLOWDOWN_SAMPLES = 4
_SLOWDOWN_ROUNDS = 512  # between two looks at what a busy draft does to the target
_AHEAD = (Mode.WAITING, Mode.RESTLESS)
_FIRST_PROBE = 16  # rounds without a draft
_CLASSIC_START, _CLASSIC_STEP, _CLASSIC_LARGEST, _CLASSIC_SMALLEST = 16, 8, 30, 2
CLASSIC_RATIO = 2.0
"""Under the classic policy drafting stops when the best token is less than so many times as
likely as the second."""


class Mean:
    """A mean of the latest values, weighted exponentially; `prior` until there is one."""

    def __init__(self, prior: float, weight: float = 0.1) -> None:
        self.value = prior
        self.count = 0
        self._weight = weight

    def note(self, value: float) -> None:
        """Take in a value; the first ones count in full."""
        self.count += 1
        self.value += (value - self.value) * max(self._weight, 1.0 / self.count)


class Acceptance:
    """How often draft tokens are accepted, overall and by how sure the draft was.

    Only tokens that were decided count: the accepted ones and the first
    rejected one of a round (a censored geometric sample). Older rounds fade.
    """

    _EDGES = (8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 244, 253)
    _MEMORY = 0.97
    _LONG_MEMORY = 0.99
    _SHRINKAGE = 4.0

    def __init__(self, before: Acceptance | None = None, weight: float = 12.0) -> None:
        """Start as `before` ended, as if that had been at most `weight` tokens."""
        bins = len(self._EDGES) + 1
        self._accepted, self._tried = [0.0] * bins, [0.0] * bins
        self._seen = [0.0] * bins
        self._all_accepted, self._all_tried = _UNKNOWN_ACCEPTANCE
        if before is not None:
            share = min(1.0, weight / before._all_tried)
            self._accepted = [share * count for count in before._accepted]
            self._tried = [share * count for count in before._tried]
            self._seen = [share * count for count in before._seen]
            self._all_accepted = share * before._all_accepted
            self._all_tried = share * before._all_tried

    @property
    def mean(self) -> float:
        """The chance of a token of which nothing is known."""
        return (self._all_accepted + 0.1) / (self._all_tried + 0.2)

    def note(self, confidences: Sequence[int], accepted: int) -> None:
        """Take in decided tokens by their confidences, of which the first `accepted` stood."""
        for i, confidence in enumerate(confidences):
            stood = float(i < accepted)
            bin_ = self._bin(confidence)
            self._accepted[bin_] = self._MEMORY * self._accepted[bin_] + stood
            self._tried[bin_] = self._MEMORY * self._tried[bin_] + 1.0
            self._seen = [self._LONG_MEMORY * count for count in self._seen]
            self._seen[bin_] += 1.0
            self._all_accepted = self._MEMORY * self._all_accepted + stood
            self._all_tried = self._MEMORY * self._all_tried + 1.0

    def chance(self, confidence: int) -> float:
        """Return the chance of a token of this confidence, drawn towards the mean."""
        bin_ = self._bin(confidence)
        return (self._accepted[bin_] + self._SHRINKAGE * self.mean) / (
            self._tried[bin_] + self._SHRINKAGE
        )

    @property
    def confidences(self) -> list[tuple[int, float, float]]:
        """What is known by confidence: (least confidence, share of the tokens, chance)."""
        whole = sum(self._seen)
        return [
            (edge, seen / whole, self.chance(edge))
            for edge, seen in zip((0, *self._EDGES), self._seen, strict=True)
            if whole > 0.0
        ]

    def survival(self, confidences: Sequence[int], count: int) -> list[float]:
        """Return for each of `count` tokens the chance that it and all before it stand.

        Those beyond the known confidences are not drafted yet.
        """
        chances = [self.chance(confidence) for confidence in confidences[:count]]
        chances += [self.mean] * (count - len(chances))
        survival, product = [], 1.0
        for chance in chances:
            product *= chance
            survival.append(product)
        return survival

    def _bin(self, confidence: int) -> int:
        return sum(confidence >= edge for edge in self._EDGES)


@dataclass(slots=True)
class Experience:
    """What was learned about a pair of models and the links to them; outlives the sessions."""

    costs: CostTable = field(default_factory=lambda: CostTable(_UNKNOWN_COSTS))
    same_host: bool = False  # draft and target share their cores
    takes_turns: bool = False  # and never decode at the same time
    sharing: Mean = field(default_factory=lambda: Mean(1.0))
    """Rows of a decode over the session's own: above 1 when others share it."""
    overhead: Mean = field(default_factory=lambda: Mean(0.002))
    """Of a round, what the target's decode does not explain, nor the others' before it."""
    latency: Mean = field(default_factory=lambda: Mean(0.002))
    """From an order to its first frame, what the draft's own time does not explain."""
    turn: Mean = field(default_factory=lambda: Mean(0.0))
    """What a draft that takes turns with its target waits for its own."""
    token_time: Mean = field(default_factory=lambda: Mean(0.005))
    """The draft's own time for one token."""
    loaded_token_time: float = 0.0
    """The same as measured when it was loaded; 0 if that was not told."""
    read_time: float = 0.0
    """And for one token of a text that it reads, as measured then."""
    slowdown: Mean = field(default_factory=lambda: Mean(1.0))
    """A decode of the target while the draft is busy, over one while it is not."""
    acceptance: dict[Rule, Acceptance] = field(default_factory=dict)
    generation_count: int = 1
    """Generations under way."""
    unprobed_rounds: int = 0
    """Rounds since the draft was last seen to draft, in the latest generation to have any."""
    probe_after: int = _FIRST_PROBE
    """And after how many it is tried again."""

    @property
    def plain_seconds(self) -> float:
        """Return the time of a round without a draft."""
        return self.decode_seconds(1) + self.overhead.value

    def decode_seconds(self, row_count: int) -> float:
        """Return the expected time of a decode with so many rows of one session.

        Where draft and target take turns everybody waits for everybody, and a decode is best
        shared by all; whether it was depends on what was chosen before.
        """
        together = self.generation_count if self.takes_turns else 1
        sharing = max(self.sharing.value, float(together))
        return self.costs.seconds(sharing * self.costs.padded(row_count))


@dataclass(frozen=True, slots=True)
class Choice:
    """Verify this many tokens now, or look again at the time `until` if nothing comes before."""

    count: int
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """What the target says of a round: seconds, and rows of its decodes, others' included."""

    decode: float
    queue: float = 0.0  # waited for other sessions' decodes
    rows: int = 0


UNTOLD = Spent(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One verified round, for the controller to learn from."""

    now: float
    sent: float
    confidences: Sequence[int]  # of the draft
    offered: int  # draft tokens that were sent
    drafted: int  # and of them, those that were verified
    accepted: int
    committed: int
    spent: Spent
    draft_busy: bool
    is_prompt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the controller thinks, for the statistics."""

    rate: float  # rho, tokens per second
    plain_rate: float  # expected of the target alone
    acceptance: float
    draft_token_seconds: float
    latency_seconds: float
    overhead_seconds: float
    slowdown: float
    run_ahead: bool
    takes_turns: bool
    costs: Sequence[tuple[int, float]]  # (rows, seconds)


class Control(ABC):
    """Decides for one generation. Everything it knows it was told."""

    def __init__(
        self, speculation: Speculation, rule: Rule, experience: Experience, patience: float
    ) -> None:
        self.speculation = speculation
        self.rule = rule
        self.experience = experience
        self.acceptance = Acceptance(experience.acceptance.get(rule))
        self._all_acceptance = experience.acceptance.setdefault(rule, Acceptance())
        self._longest_patience = patience
        self._tokens = self._seconds = 0.0
        self._last_time: float | None = None
        self._idle_since: float | None = None
        self._orders: list[tuple[int, float]] = []  # committed length and time, unanswered ones
        self._due = 0.0
        self._draft_seconds = 0.0  # since the newest round was sent
        self._frame_tokens = 1
        self._unread = 0
        self._line_end: int | None = None  # of the line, while it agrees with the text
        self._rounds = self._forecast_round = 0
        self._forecast: Forecast | None = None

    # --- told ---

    def note_order(self, now: float, length: int, frame_tokens: int) -> None:
        """An order went out that may start the line over at the committed length `length`.

        Its answer comes in frames of `frame_tokens`; 0 is one token at a time.
        """
        if frame_tokens and self.stop_below:
            frame_tokens = min(frame_tokens, round(self.forecast.mean_length))
        self._frame_tokens = max(1, frame_tokens)
        if not self._orders:
            self._due = self._first_due(now)
        self._orders.append((length, now))

    def _first_due(self, order_time: float) -> float:
        experience = self.experience
        drafting = self._frame_tokens * experience.token_time.value
        return order_time + experience.latency.value + drafting

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
        self._draft_seconds += seconds
        if count == 0:
            return
        experience = self.experience
        times = [time for length, time in self._orders if length == base]
        if seconds > 0.0:
            experience.token_time.note(seconds / count)
            if is_first and times and self._rounds:
                # While the target has its turn nothing is lost by waiting.
                turn = queue if experience.takes_turns else 0.0
                experience.turn.note(turn)
                experience.latency.note(max(0.0, now - times[0] - seconds - turn))
        self._due = now + experience.token_time.value

    def line_agrees(self, end: int) -> None:
        """The line agrees with the text and reaches to `end`; it answers the orders up to there."""
        self._line_end = end
        self._orders = [order for order in self._orders if order[0] > end]

    def line_lost(self, length: int) -> None:
        """The line disagrees with the text at position `length`; a later order starts it over."""
        self._line_end = None
        self._orders = [order for order in self._orders if order[0] > length]
        if self._orders:
            self._due = self._first_due(self._orders[0][1])

    def note_unread(self, count: int) -> None:
        """The draft was not told the last `count` tokens of the text."""
        self._unread = count

    def note_sent(self) -> None:
        """A round went to the target."""
        self._idle_since = None
        self._draft_seconds = 0.0

    def note_round(self, outcome: Outcome) -> None:
        """Learn from a verified round."""
        experience = self.experience
        rows = outcome.drafted + 1
        if not outcome.is_prompt:
            since = outcome.sent if self._last_time is None else self._last_time
            self._tokens = 0.95 * self._tokens + outcome.committed
            self._seconds = 0.95 * self._seconds + max(0.0, outcome.now - since)
            spent = outcome.spent
            if spent.decode > 0.0:
                waited = outcome.now - outcome.sent - spent.queue
                experience.overhead.note(max(0.0, waited - spent.decode))
                self._note_decode(rows, spent, outcome.draft_busy)
        self._last_time = outcome.now
        self._rounds += 1
        self._draft_seconds = 0.0
        if self.rule is Rule.REJECTION:
            self._note_decided(outcome.confidences[: outcome.accepted + 1], outcome.accepted)

    def _note_decode(self, rows: int, spent: Spent, draft_busy: bool) -> None:
        """Learn what a decode costs, and what it costs more beside a busy draft."""
        experience, seconds = self.experience, spent.decode
        if spent.rows:
            sharing = max(1.0, spent.rows / experience.costs.padded(rows))
            if sharing > _MOST_SHARING:
                return  # a piece of somebody's prompt was among them
            experience.sharing.note(sharing)
            rows = spent.rows
        overlap = min(seconds, self._draft_seconds) if draft_busy else 0.0
        if overlap < 0.1 * seconds:
            experience.costs.note(rows, seconds)
        elif overlap > 0.5 * seconds:
            more = (seconds - experience.costs.seconds(rows)) / overlap
            experience.slowdown.note(max(0.5, 1.0 + more))

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
    def rate(self) -> float:
        """Rho: tokens per second, at least what the target alone would make."""
        plain = 1.0 / self.experience.plain_seconds
        return max(plain, self._tokens / self._seconds) if self._seconds > 0.0 else plain

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
    def leaves_draft_alone(self) -> bool:
        """Whether a draft of which nothing is wanted is not even told the text."""
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
        experience = self.experience
        if self.probing:
            # A probe must reach behind what is decoded until it comes.
            return self._overtaken()
        if not self.runs_ahead():
            return 0
        count = self.forecast.hit_length or 1
        ahead_time = experience.latency.value + experience.decode_seconds(count + 1)
        wanted = count + 1 + math.ceil(ahead_time / max(experience.token_time.value, 1e-4))
        mean = min(0.98, max(0.02, self.acceptance.mean))
        return max(2, min(_LOOKAHEAD, wanted, math.ceil(math.log(_HOPELESS) / math.log(mean))))

    def _overtaken(self) -> int:
        """Return the tokens decoded plainly until a draft comes."""
        return math.ceil(self.experience.latency.value / self.experience.plain_seconds)

    def runs_ahead(self) -> bool:
        """Return whether the draft goes on while the target verifies."""
        if self.rule is Rule.REJECTION:
            return False
        if self.speculation.run_ahead is not None:
            return self.speculation.run_ahead
        return self.forecast.mode in _AHEAD or self._measures_slowdown

    @property
    def _measures_slowdown(self) -> bool:
        """Whether this is a round to see what a busy draft does to the target beside it."""
        experience = self.experience
        known = experience.slowdown.count >= _SLOWDOWN_SAMPLES
        every = _SLOWDOWN_ROUNDS if known else 8
        shares = experience.same_host and not experience.takes_turns
        return shares and self._rounds % every == every // 2

    @property
    def forecast(self) -> Forecast:
        """The mode that is best by what is known, and what it yields."""
        if self._forecast is None or self._rounds >= self._forecast_round + _FORECAST_ROUNDS:
            self._forecast_round = self._rounds
            self._forecast = self._best_mode(self._conditions())
        return self._forecast

    def _conditions(self) -> Conditions:
        experience = self.experience
        return Conditions(
            acceptance=min(0.99, self.acceptance.mean),
            decode_seconds=experience.decode_seconds,
            overhead=experience.overhead.value,
            latency=experience.latency.value,
            token_time=experience.token_time.value,
            slowdown=experience.slowdown.value,
            confidences=self.acceptance.confidences if self._may_stop else (),
        )

    def _best_mode(self, conditions: Conditions) -> Forecast:
        experience = self.experience
        run_ahead = self.speculation.run_ahead
        unmeasured = experience.same_host and experience.slowdown.count < _SLOWDOWN_SAMPLES
        in_vain = experience.takes_turns or unmeasured
        if self.rule is Rule.REJECTION or (run_ahead is None and in_vain):
            run_ahead = False
        alone, *others = forecasts(conditions, self.speculation.n_max, run_ahead)
        best = max(others, key=lambda each: each.rate, default=alone)
        return best if best.rate > _WORTHWHILE * alone.rate else alone

    def rounds_ahead(self, count: int) -> int:
        """Return how many rounds of `count` tokens may be at the target beside the oldest.

        They pay when a round spends longer on the way than in the decode.
        """
        if not self.runs_ahead():
            return 0
        experience = self.experience
        return min(3, int(2.0 * experience.overhead.value / experience.decode_seconds(count + 1)))

    def _wait_for_all(self, have: int, wanted: int, now: float, expected: bool) -> Choice:
        """Return the choice to verify all that is wanted, if it comes before it is late."""
        if have < wanted and expected and not self.is_late(now):
            if self._idle_since is None:
                self._idle_since = now
            return Choice(have, max(self._due, self._idle_since) + self._patience())
        return Choice(min(have, wanted))

    def is_late(self, now: float) -> bool:
        """Return whether the draft should have sent something long ago."""
        since = self._due if self._idle_since is None else max(self._due, self._idle_since)
        return now >= since + self._patience()

    def _patience(self) -> float:
        return self._longest_patience

    def view(self) -> View:
        """Return what the controller thinks."""
        experience = self.experience
        return View(
            rate=self.rate,
            plain_rate=1.0 / experience.plain_seconds,
            acceptance=self.acceptance.mean,
            draft_token_seconds=experience.token_time.value,
            latency_seconds=experience.latency.value,
            overhead_seconds=experience.overhead.value,
            slowdown=experience.slowdown.value,
            run_ahead=self.runs_ahead(),
            takes_turns=experience.takes_turns,
            costs=experience.costs.points,
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
        return late_rounds > 0 and late_rounds % 16 == 0

    def pause(self) -> int:
        """Return the rounds to go plainly after a late draft, even if it comes back."""
        return 4 if self.rule is Rule.REJECTION else 0


class Fixed(Control):
    """Draft `n_max` tokens a round and wait for all of them."""

    def draft_count(self, cap: int) -> int:
        return max(0, min(self._length(), cap))

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

    def __init__(
        self, speculation: Speculation, rule: Rule, experience: Experience, patience: float
    ) -> None:
        super().__init__(speculation, rule, experience, patience)
        self._current = speculation.n_max

    def _length(self) -> int:
        return self._current

    def note_round(self, outcome: Outcome) -> None:
        super().note_round(outcome)
        if outcome.accepted < outcome.drafted:
            self._current = max(min(_CLASSIC_SMALLEST, self._current), self._current - 1)
        elif outcome.drafted and outcome.drafted >= self._current:
            self._current = min(_CLASSIC_LARGEST, self._current + _CLASSIC_STEP)


class Measured(Control):
    """Draft, verify and wait for what pays."""

    _PROBE_LENGTH = 3
    _PROBE_STEP, _LAST_PROBE = 2, 128
    _PROBE_STEP_IN_TURNS, _LAST_PROBE_IN_TURNS, _PROBE_SHARE = 4, 512, 0.015
    """On the target's own cores a probe takes time from it, at most this share."""
    _GRANT_STEP = 0.25
    """Tokens a round by which a draft grows again after a busy target cut it."""

    def __init__(
        self, speculation: Speculation, rule: Rule, experience: Experience, patience: float
    ) -> None:
        super().__init__(speculation, rule, experience, patience)
        self._unknown_rounds = experience.unprobed_rounds
        self._probe_after = experience.probe_after
        self._slow, self._slow_round = False, -1
        self._granted = float(speculation.n_max)

    def note_round(self, outcome: Outcome) -> None:
        super().note_round(outcome)
        self._unknown_rounds += 1
        self.experience.unprobed_rounds = self._unknown_rounds
        if outcome.drafted < outcome.offered:
            self._granted = float(outcome.drafted)
        else:
            self._granted += self._GRANT_STEP

    def note_line(self, confidences: Sequence[int], agrees: bool) -> None:
        super().note_line(confidences, agrees)
        if confidences:
            nothing = len(confidences) == 1 and not agrees
            # A probe costs little, but not nothing: a good draft may be too far away for long.
            in_vain = nothing or (
                self.forecast.length == 0 and self._best_mode(self._conditions()).length == 0
            )
            self._unknown_rounds = 0
            self._probe_after = self._longer_probe() if in_vain else _FIRST_PROBE
            self.experience.unprobed_rounds = 0
            self.experience.probe_after = self._probe_after

    def _longer_probe(self) -> int:
        if self.experience.takes_turns:
            return min(self._LAST_PROBE_IN_TURNS, self._PROBE_STEP_IN_TURNS * self._probe_after)
        return min(self._LAST_PROBE, self._PROBE_STEP * self._probe_after)

    @property
    def probing(self) -> bool:
        return self.forecast.length == 0 and self._is_time_to_probe

    @property
    def _is_time_to_probe(self) -> bool:
        if self._unknown_rounds < self._probe_after or self._is_too_slow():
            return False
        experience = self.experience
        passed = self._unknown_rounds * experience.plain_seconds
        return not experience.takes_turns or self._probe_seconds() <= self._PROBE_SHARE * passed

    def _probe_seconds(self) -> float:
        """Return the draft's time for a probe, the text that it was not told included."""
        experience = self.experience
        count = self._PROBE_LENGTH + self._overtaken()
        return self._unread * experience.read_time + count * experience.token_time.value

    def _is_too_slow(self) -> bool:
        """Return whether the draft could not pay if it were always right, and here."""
        experience = self.experience
        if self._slow_round != self._forecast_round:
            self._slow_round = self._forecast_round
            # The lesser: both may have been taken in a noisy moment.
            token_time = min(experience.loaded_token_time, experience.token_time.value)
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
    def leaves_draft_alone(self) -> bool:
        # On the target's own cores, reading the text takes time from the target.
        return self.experience.takes_turns and self.forecast.length == 0

    def draft_count(self, cap: int) -> int:
        count = min(self.forecast.length, int(self._granted))
        if count == 0 and self._is_time_to_probe:
            count = min(self.speculation.n_max, self._PROBE_LENGTH)
        return max(0, min(count, cap))

    def choose(
        self, confidences: Sequence[int], cap: int, now: float, length: int, expected: bool
    ) -> Choice:
        if self.rule is Rule.REJECTION:
            return self._wait_for_all(len(confidences), cap, now, expected)
        most = max(0, min(self.speculation.n_max, cap))
        have = min(len(confidences), most)
        behind = max(0, length - self._next_position(length))
        values = self._values(confidences, have, most if expected else have, now, behind, expected)
        best_now = _best(values[: have + 1], self.speculation.n_min)
        best = _best(values, self.speculation.n_min)
        if best <= have or self.is_late(now):
            return Choice(best_now)
        if self._idle_since is None:
            self._idle_since = now
        if self.experience.takes_turns:
            return Choice(best_now, max(self._due, self._idle_since) + self._patience())
        gain = values[best] - values[best_now]
        return Choice(best_now, max(self._due, now) + gain / self.forecast.rate + 1e-4)

    def _next_position(self, length: int) -> int:
        """Return where the next token stands that will come; the text may be further by now.

        A draft that does not run ahead stands still until it is told more, and then starts there.
        """
        if not self.runs_ahead():
            return self._orders[-1][0] if self._orders else length
        if self._line_end is not None:
            return self._line_end
        return self._orders[0][0] if self._orders else length

    def _values(
        self,
        confidences: Sequence[int],
        have: int,
        most: int,
        now: float,
        behind: int,
        expected: bool,
    ) -> list[float]:
        """Return what it is worth, in tokens, to verify 0, 1, .. `most` draft tokens.

        That is what the round adds, less what the target makes anyway in the
        time, and what a hit after it is worth. Beyond `have` tokens the time
        includes the wait for them, and for `behind` ones that the text has
        overtaken and that must all agree with it.
        """
        forecast, experience = self.forecast, self.experience
        rate, goes_on = forecast.rate, self.runs_ahead()
        mean = self.acceptance.mean
        first = self._wait_for_the_first(now) + behind * experience.token_time.value
        values, tokens, survival = [], 1.0, 1.0
        for k in range(most + 1):
            if k == have + 1:
                survival *= mean**behind
            if k:
                survival *= self.acceptance.chance(confidences[k - 1]) if k <= have else mean
                tokens += survival
            time = experience.decode_seconds(k + 1) + experience.overhead.value
            hit = survival * mean
            if k > have:
                frames = (k - have - 1) // self._frame_tokens
                time += first + frames * self._frame_tokens * experience.token_time.value
            elif k == 0 and expected:
                # Plain rounds until the first frame comes, and the line agrees with them all.
                rounds = max(1, math.ceil(first / time)) if first > 0 else 1
                tokens, time = 1.0 * rounds, time * rounds
                hit = mean ** (behind + rounds)
            worth = forecast.hit_worth if goes_on and (expected or k < have) else 0.0
            values.append(tokens - rate * time + hit * worth)
            if k == 0:
                tokens = 1.0
        return values

    def _wait_for_the_first(self, now: float) -> float:
        """Return the expected wait for the next frame.

        What is overdue is expected to take as long again as it is late. But where the
        two take turns, a draft that is late is a machine that is slow, for the target too,
        which would only keep the draft from its turn.
        """
        left = self._due - now
        return max(left, 0.0 if self.experience.takes_turns else -left)

    def _patience(self) -> float:
        experience = self.experience
        waits = experience.latency.value + experience.turn.value + experience.token_time.value
        usual = 0.05 + 4.0 * waits
        return min(self._longest_patience, usual)


def _best(values: Sequence[float], n_min: int) -> int:
    """Return the number of tokens that is worth most; fewer than `n_min` are none."""
    best = 0
    for count in range(max(1, n_min), len(values)):
        if values[count] > values[best]:
            best = count
    return best


_POLICIES = {Policy.FIXED: Fixed, Policy.CLASSIC: Classic, Policy.MEASURED: Measured}


def control(
    speculation: Speculation, rule: Rule, experience: Experience, patience: float
) -> Control:
    """Return what decides for one generation; `patience` seconds without a sign are too many."""
    return _POLICIES[speculation.policy](speculation, rule, experience, patience)


def plain_share(costs: CostTable, row_count: int) -> float:
    """Return what one row costs to decode as a share of what `row_count` rows cost."""
    whole = costs.seconds(row_count)
    return min(1.0, costs.seconds(1) / whole) if whole > 0 else 1.0
