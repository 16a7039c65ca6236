"""What is learned of a draft: its times, how often it is right, what it gains. Pure.

Everything that was learned can be unlearned, since newer values outweigh older ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.core.forecast import frame_size
from outrider.messages import MAX_DRAFT, Rule
from outrider.speculation import MODEL

FIRST_RETRY, LAST_RETRY = 64, 1024
"""Decodes without a draft before it is tried again, 1.3 s at 50 tokens/s; each try in vain doubles
them, up to 20 s. From 16 on, first texts beside a draft that lies make .04 to .06 less."""

_UNKNOWN = (4.0, 5.0)
"""Accepted of tried: high, so that a new draft is used at once, and of so many that the first good
rounds are not taken for a draft that is always right."""

_MEMORY = 0.99
"""Of the counts that is kept with each token, so that they are of the last 100, about: with .97 a
source that copies a long stretch promises no end at all, and drafts gain nothing."""

LATE_ROUNDS = 16
"""Rounds in a row without tokens that a draft was asked for, after which it is asked again, or, in
the target's process, not counted on: with 64 a text of 40 tokens had no draft at all where that one
drafts nothing."""

_PRIOR = 6.0
"""Tokens that what is expected of a confidence counts for; drafts had 4 and sources 12, and one
number changes no grid by 1 %; with 8 a wrong prediction costs 3 % (docs/decisions/0051)."""


@dataclass(slots=True)
class Retry:
    """When a draft that is not used is tried again; counted in decodes."""

    unused: float = 0.0
    """Since it was last tried, or seen to draft."""
    after: int = FIRST_RETRY
    """After so many it is tried again."""

    @property
    def is_due(self) -> bool:
        """Whether it is time for a try."""
        return self.unused >= self.after

    def note_tried(self, pays: bool) -> None:
        """It was tried, or used; `pays` says whether it is worth using."""
        self.unused = 0.0
        self.after = FIRST_RETRY if pays else min(LAST_RETRY, 2 * self.after)


class Mean:
    """A mean of the latest values, weighted exponentially; `prior` until there is one."""

    _MOST = 10.0  # values that a new one is weighed against
    _HALF_LIFE = FIRST_RETRY / 4  # decodes without a value, after which it counts for half

    def __init__(self, prior: float) -> None:
        self.value = self.prior = prior
        self.count = 0  # of the values so far
        self._known = 0.0  # how many it is weighed against now, itself included

    def note(self, value: float, most_rise: float = math.inf) -> None:
        """Take in a value, at most `most_rise` above this one; the first ones count in full."""
        value = min(value, self.value + most_rise)
        self.count += 1
        self._known = min(self._MOST, self._known + 1.0)
        self.value += (value - self.value) / self._known

    def doubt(self, decodes: float) -> None:
        """Let the next values count for more after so many decodes without one."""
        self._known *= math.exp2(-decodes / self._HALF_LIFE)

    def fade(self) -> None:
        """Fall back towards the prior, as nothing was seen; the next values count for more.

        So a high value does not keep away for good what would show that it is lower now. Half is
        left after 256 of these: with 16, drafts of several users made .92 of that
        (docs/decisions/0051).
        """
        kept = math.exp2(-4.0 / LAST_RETRY)
        self._known *= kept
        self.value = min(self.value, self.prior + kept * (self.value - self.prior))


class AcceptanceRate:
    """How often draft tokens are accepted, overall and by how sure the draft was.

    Only tokens that were decided count: the accepted ones and the first
    rejected one of a round (a censored geometric sample). Older rounds fade.
    """

    _EDGES = (*(1 << i for i in range(8)), *(256 - (1 << i) for i in reversed(range(7))))
    """Confidences in 1/255 at which another bin begins: each is half as far from certainty."""
    _CERTAIN = 30.0
    """Tokens from which on the mean is taken as it is. If it never were, a draft that ends after
    two tokens would make 1.60 times plain instead of 1.86; if it were at once, a hybrid target's
    would make 1.0 instead of 1.3."""

    def __init__(
        self,
        before: AcceptanceRate | None = None,
        weight: float = 12.0,
        claimed: Callable[[float], float] | None = None,
    ) -> None:
        """Start as `before` ended, as if that had been at most `weight` tokens.

        `claimed` returns the chance of a token before some were seen, by its confidence in [0, 1];
        None: of that nothing is known but the mean of all tokens.
        """
        bins = len(self._EDGES) + 1
        self._accepted, self._tried = [0.0] * bins, [0.0] * bins
        self._seen = [0.0] * bins
        self._all_accepted, self._all_tried = _UNKNOWN
        self._claimed = claimed
        if before is not None:
            self._claimed = before._claimed
            share = min(1.0, weight / before._all_tried)
            self._accepted = [share * count for count in before._accepted]
            self._tried = [share * count for count in before._tried]
            self._seen = [share * count for count in before._seen]
            self._all_accepted = share * before._all_accepted
            self._all_tried = share * before._all_tried

    @classmethod
    def of_source(cls, name: str) -> AcceptanceRate:
        """Return what is known of a source without a model before it proposed anything.

        One that goes by matches and says c is right with c squared, about: in texts and code .15
        to .27 of the tokens after a match of one (.5) stand, .35 to .55 of two (.67), .72 to .80
        of six to nine.
        """
        power = 2.0 if name in ("suffix", "ngram", "past") else 1.0
        return cls(claimed=lambda confidence: confidence**power)

    @property
    def mean(self) -> float:
        """The chance of a token of which nothing is known, and some more while few were decided.

        Else a good draft that began with bad luck is not used for texts (optimism in the face of
        uncertainty).
        """
        mean = self._all_accepted / self._all_tried
        doubt = max(0.0, self._all_tried**-0.5 - self._CERTAIN**-0.5)
        error = 0.5 * (mean * (1.0 - mean)) ** 0.5 * doubt
        return mean if self._all_tried <= _UNKNOWN[1] else min(0.99, mean + error)

    def note(self, confidences: Sequence[int], accepted: int) -> None:
        """Take in decided tokens by their confidences, of which the first `accepted` stood."""
        for i, confidence in enumerate(confidences):
            stood = float(i < accepted)
            bin_ = self._bin(confidence)
            self._accepted[bin_] = _MEMORY * self._accepted[bin_] + stood
            self._tried[bin_] = _MEMORY * self._tried[bin_] + 1.0
            self._seen = [_MEMORY * count for count in self._seen]
            self._seen[bin_] += 1.0
            self._all_accepted = _MEMORY * self._all_accepted + stood
            self._all_tried = _MEMORY * self._all_tried + 1.0

    def chance(self, confidence: int) -> float:
        """Return the chance of a token of this confidence, drawn towards what is expected of it."""
        bin_ = self._bin(confidence)
        expected = self._claimed(confidence / 255) if self._claimed else self.mean
        return (self._accepted[bin_] + _PRIOR * expected) / (self._tried[bin_] + _PRIOR)

    @property
    def by_confidence(self) -> list[tuple[int, float, float]]:
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
class _Sum:
    """What drafting gained and lost where so many sessions share a decode."""

    lost: float = 0.0
    """Plain tokens that were lost by drafting, less those gained since: never below 0."""
    gained: float = 0.0
    """The same the other way round."""
    retry: Retry = field(default_factory=Retry)
    is_off: bool = False
    """It lost so much that it is not used now."""


class Gain:
    """What drafting gained as measured, over all generations; what lost too much backs off.

    A forecast goes by what a draft says of itself and on a model of how rounds follow each other.
    A draft that is dishonest, or behaves in a way that the model does not have, could so make
    every text slower for good. Here only two things count: the tokens that came, and when. What
    four sessions lose says nothing of one alone, and what that gains nothing of four.
    """

    _MOST_LOST = 12.0
    """Tokens that the target alone would have written meanwhile; then the draft backs off."""
    _MOST_OF_A_ROUND = 4.0
    """Times a plain token's seconds that a round counts for each of its tokens, at most: one that
    took longer says more of the machine than of the draft."""

    def __init__(self) -> None:
        self._by_sessions: dict[int, _Sum] = {}

    def backs_off(self, sessions: float) -> bool:
        """Return whether it is not used now where so many share a decode.

        Fewer leave more room for its rows than those who lost by it.
        """
        return any(its.is_off for its in self._of_as_many(sessions))

    def _of_as_many(self, sessions: float) -> list[_Sum]:
        return [its for count, its in self._by_sessions.items() if count <= round(sessions)]

    def note_rounds(
        self, committed: int, seconds: float, plain_seconds: float, sessions: float = 1.0
    ) -> None:
        """Rounds of a generation that uses it committed so many tokens in so many seconds.

        `plain_seconds` is of a token without it, and `sessions` share a decode. What is lost is a
        sum that starts over at nothing with every gain (Page's CUSUM), so that a good draft's bad
        luck does not add up.
        """
        if self.backs_off(sessions) or not committed:
            return
        its = self._by_sessions.setdefault(round(sessions), _Sum())
        lost = min(seconds / plain_seconds, self._MOST_OF_A_ROUND * committed) - committed
        its.lost = max(0.0, its.lost + lost)
        its.gained = max(0.0, its.gained - lost)
        if its.gained >= self._MOST_LOST:
            its.retry.note_tried(pays=True)
        if its.lost >= self._MOST_LOST:
            its.lost = its.gained = 0.0
            its.retry.note_tried(pays=False)
            its.is_off = True

    def note_unused(self, decodes: float, sessions: float = 1.0) -> None:
        """A generation made so many decodes without it, which so many share."""
        for its in self._of_as_many(sessions):
            its.retry.unused += decodes / sessions  # each of them says so
            its.is_off &= not its.retry.is_due


class RecentRate:
    """Tokens per second of the newest rounds of a generation; older ones fade."""

    _KEPT = 0.95
    """Of what earlier rounds made and took, with each round: some 20 rounds count."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def note(self, tokens: int, seconds: float, rounds: int) -> None:
        """Take in some rounds that took equally long and committed equally many tokens."""
        kept = self._KEPT**rounds
        share = (1.0 - kept) / (1.0 - self._KEPT) / rounds
        self._tokens = kept * self._tokens + share * tokens
        self._seconds = kept * self._seconds + share * seconds

    @property
    def value(self) -> float:
        """The rate; 0 before anything is known."""
        return self._tokens / self._seconds if self._seconds > 0.0 else 0.0


@dataclass(slots=True)
class DraftRates:
    """What is known of one draft beside targets of one model; outlives the generations.

    A draft in the target's own process has the same fields; it has no way to the target, so
    `latency` is what the target does between two decodes more than without it.
    """

    source: str = MODEL
    """Its name among the drafters."""
    token_time: Mean = field(default_factory=lambda: Mean(0.005))
    """Seconds of a drafted token, of one session alone."""
    read_time: Mean = field(default_factory=lambda: Mean(0.0))
    """Seconds of each token of a text that it reads."""
    latency: Mean = field(default_factory=lambda: Mean(0.002))
    """Seconds from an order to its first frame that the draft's own time does not explain."""
    loaded_token_time: float = 0.0
    """`token_time` as measured at load; 0 if that was not reported."""
    most_tokens: int = MAX_DRAFT
    """Tokens that it drafts after a text."""
    line_ratios: Sequence[float] = (1.0,)
    """A token's time while the draft writes 1, 2, ... lines, over one alone; as many as it can."""
    acceptance: dict[Rule, AcceptanceRate] = field(default_factory=dict)
    """Of its tokens, by rule."""
    gain: Gain = field(default_factory=Gain)
    """Of what was drafted by it."""
    retry: Retry = field(default_factory=Retry)
    """Of a draft that does not pay."""

    @property
    def is_head(self) -> bool:
        """Whether it reads the target's hidden rows, so that it never drafts ahead of those."""
        return self.source != MODEL

    def doubt(self) -> None:
        """Let the next times count for more, the longer the draft was not seen to draft.

        One that is only probed was slow or far away for a bad hour, perhaps; some hundred probes
        would be needed to outweigh that.
        """
        for mean in (self.token_time, self.read_time, self.latency):
            mean.doubt(self.retry.unused)

    @property
    def frame_tokens(self) -> int:
        """Tokens of a frame, where it runs ahead."""
        return frame_size(self.token_time.value)
