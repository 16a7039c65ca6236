"""What each way to speculate yields with given models and links: the controller's model. Pure.

A generation is a renewal process with two states when the target falls free.
After a *miss* the draft must start over: its first token is a latency and a
token's time away. After a *hit*, everything verified so far was accepted and
the draft, which ran ahead, has already continued. With acceptance a per token,
a verify of k tokens adds (1 - a^(k+1)) / (1 - a) of them (Leviathan et al.)
and leads to a hit with a^(k+1), because the token after a fully accepted
draft is the draft's own next one just as often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

_FEW = 0.01  # of the tokens: not worth a split
_ROUNDS, _SECONDS, _MOVED = 8, 0.05, 0.03
"""Rounds after which a forecast may be made anew, if so many seconds passed since it was made or
one of its conditions is another by such a share: it takes as long as a token of a fast target."""


class Mode(Enum):
    """How the target and the draft take turns."""

    PLAIN = "plain"  # the target alone
    SERIAL = "serial"  # draft, then verify
    WAITING = "run ahead"  # draft while verifying; wait for the draft after a miss
    NO_WAIT = "never wait"  # draft while verifying; decode plainly until the draft is back
    OWN = "at the target"  # the target's own draft, then verify, without messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a forecast rests on; times in seconds."""

    acceptance: float  # of a draft token, given that those before it were accepted
    decode_seconds: Callable[[int], float]  # of the target, by rows
    overhead: float  # of a round, beside the decode
    latency: float  # from a miss to the draft's start over and back
    token_time: float  # of the draft
    slowdown: float = 1.0  # of a decode while the draft is busy
    first_frame: int = 1  # tokens that a draft which runs ahead sends at first, at least
    gap: float | None = None  # the overhead where a target continues by itself; None: it cannot
    foreseen: float = 0.0  # share of the misses after which a runner-up line is there at once
    corrected: float = 0.0  # share of those whose correction such a line has, however short it is
    confidences: Sequence[tuple[int, float, float]] = ()
    """(confidence, share, chance): how many tokens are at least so sure but less than the next
    entry, and how often those are accepted. Rising, and () where that is not known."""

    @property
    def continuing(self) -> Conditions:
        """The conditions for a target that waits for nobody."""
        return self if self.gap is None else replace(self, overhead=self.gap)

    def hit(self, drafted: int) -> float:
        """Return the chance that a line is there after a round of so many draft tokens."""
        all_stand = self.acceptance ** (drafted + 1)
        return all_stand + (1.0 - all_stand) * self.foreseen

    def decode(self, drafted: int) -> float:
        """Return the time of a round of so many draft tokens, the draft being idle."""
        return self.decode_seconds(drafted + 1) + self.overhead

    def busy_decode(self, drafted: int) -> float:
        """Return the time of a round of so many draft tokens, the draft being busy."""
        return self.slowdown * self.decode_seconds(drafted + 1) + self.overhead


@dataclass(frozen=True, slots=True)
class Forecast:
    """The best that a mode can do."""

    mode: Mode
    rate: float  # tokens per second
    length: int  # of a draft made anew
    hit_length: int  # of a draft that continued
    hit_worth: float  # tokens that a hit is better than a miss
    stop_below: int = 0  # a new draft ends with the first token less sure than this
    mean_length: float = 0.0  # of a new draft, with that
    own_length: int = 0  # of the drafts of the target's own draft; then nothing is ordered
    lines: int = 1  # that the draft writes at once
    foreseen: float = 0.0  # share of the misses after which one of them is there


class Age:
    """How old a forecast is, and whether it is made anew."""

    def __init__(self) -> None:
        self._round = 0  # when it was made, or last looked at
        self._time: float | None = None
        self._numbers: Sequence[float] = ()  # that it rested on

    def note(self, round_: int, now: float | None, conditions: Conditions) -> None:
        """A forecast is made; None is before the first rows."""
        self._round, self._time, self._numbers = round_, now, _numbers(conditions)

    def is_past(self, round_: int, now: float | None, conditions: Callable[[], Conditions]) -> bool:
        """Return whether the forecast is too old."""
        if round_ < self._round + _ROUNDS:
            return False
        self._round = round_
        if now is None or self._time is None or now - self._time >= _SECONDS:
            return True
        decode, numbers = self._numbers[0], zip(_numbers(conditions()), self._numbers, strict=True)
        # A time that is little beside a decode may be another by much.
        return any(abs(new - old) > _MOVED * max(old, decode) for new, old in numbers)


def _numbers(conditions: Conditions) -> Sequence[float]:
    return (
        conditions.decode_seconds(1),
        conditions.acceptance,
        conditions.overhead,
        conditions.latency,
        conditions.token_time,
        conditions.slowdown,
        conditions.gap or 0.0,
    )


def expected_tokens(acceptance: float, drafted: int) -> float:
    """Return the tokens that a verify adds on average."""
    if acceptance >= 1.0:
        return drafted + 1.0
    return (1.0 - acceptance ** (drafted + 1)) / (1.0 - acceptance)


def forecasts(conditions: Conditions, n_max: int, run_ahead: bool | None) -> list[Forecast]:
    """Return what the possible modes yield, plain first."""
    found = [plain(conditions.continuing)]
    if n_max > 0 and run_ahead is not True:
        found.append(serial(conditions, n_max))
    if n_max > 0 and run_ahead is not False:
        found += [waiting(conditions, n_max), no_wait(conditions.continuing, n_max)]
    return found


def plain(conditions: Conditions) -> Forecast:
    """Return what the target does alone."""
    return Forecast(Mode.PLAIN, 1.0 / conditions.decode(0), 0, 0, 0.0)


def serial(conditions: Conditions, n_max: int) -> Forecast:
    """Return the best of drafting tokens and then verifying them.

    The draft ends after `length` tokens, or with the first one that is less
    sure than `stop_below`.
    """
    decodes = [conditions.decode(k) for k in range(n_max + 1)]
    best = Forecast(Mode.SERIAL, 0.0, 0, 0, 0.0)
    for stop_below, share, sure, unsure in _splits(conditions):
        best = _longest(conditions, decodes, stop_below, share, sure, unsure, best)
    return best


def _splits(conditions: Conditions) -> Iterator[tuple[int, float, float, float]]:
    """Yield (confidence, share, chance of a token as sure as that, chance of another one)."""
    a = conditions.acceptance
    yield 0, 1.0, a, 0.0
    whole = sum(share for _, share, _ in conditions.confidences)
    mean = sum(share * chance for _, share, chance in conditions.confidences)
    left, accepted = whole, mean
    for (_, share, chance), (confidence, _, _) in pairwise(conditions.confidences):
        left -= share
        accepted -= share * chance
        sure_share = left / whole
        if share and _FEW < sure_share < 1.0 - _FEW:
            # The mean over all tokens is known better than what each confidence is worth.
            sure = min(0.99, accepted / left * a * whole / mean)
            unsure = max(0.0, (a - sure_share * sure) / (1.0 - sure_share))
            yield confidence, sure_share, sure, unsure


def _longest(
    conditions: Conditions,
    decodes: Sequence[float],
    stop_below: int,
    share: float,
    sure: float,
    unsure: float,
    best: Forecast,
) -> Forecast:
    """Return the best length of drafts that continue after sure tokens only, or `best`.

    A `share` of tokens is sure. An unsure last one is verified if it pays.
    """
    token_time, rate = conditions.token_time, best.rate
    mean = share * sure + (1.0 - share) * unsure
    reached, survival = 1.0, 1.0  # the chance to draft the next token; of those before it to stand
    ended_tokens = ended_time = drafted = stood = 0.0
    for k in range(1, len(decodes)):
        # Drafts of k tokens, the last one unsure or of any kind.
        drafted += reached
        tokens = ended_tokens + reached * (1.0 + stood + survival * mean)
        fixed = conditions.latency + token_time * drafted
        time = fixed + ended_time + reached * decodes[k]
        if tokens / time > best.rate:
            best = Forecast(Mode.SERIAL, tokens / time, k, k, 0.0, stop_below, drafted)
        ends = reached * (1.0 - share)
        gain = survival * unsure
        pays = gain >= rate * (decodes[k] - decodes[k - 1])
        ended_tokens += ends * (1.0 + stood + (gain if pays else 0.0))
        ended_time += ends * decodes[k if pays else k - 1]
        reached *= share
        survival *= sure
        stood += survival
    return best


def waiting(conditions: Conditions, n_max: int) -> Forecast:
    """Return the best of running ahead and waiting for k tokens after a miss."""
    a, first = conditions.acceptance, conditions.first_frame

    def miss(rate: float, worth: float) -> Miss:
        def value(k: int) -> float:
            wait = conditions.latency + max(k, first) * conditions.token_time
            time = wait + conditions.busy_decode(k)
            return expected_tokens(a, k) - rate * time + conditions.hit(k) * worth

        k = max(range(1, n_max + 1), key=value)
        decode = conditions.busy_decode(k)
        time = conditions.latency + max(k, first) * conditions.token_time + decode
        ready = int(decode / conditions.token_time) if conditions.token_time else n_max
        return Miss(k, expected_tokens(a, k), time, conditions.hit(k), ready - 1)

    return _renew(Mode.WAITING, conditions, n_max, miss)


def no_wait(conditions: Conditions, n_max: int) -> Forecast:
    """Return the best of running ahead and decoding plainly until the draft has caught up.

    Its line counts only if it agrees with all that is decoded meanwhile.
    """
    step = conditions.busy_decode(0)
    steps = max(1, math.ceil((conditions.latency + conditions.token_time) / step))

    left = steps * step - conditions.latency
    ready = int(left / conditions.token_time) if conditions.token_time else n_max
    # Each token decoded meanwhile is the line's own, or that of a runner-up line.
    stands = conditions.acceptance + (1.0 - conditions.acceptance) * conditions.corrected
    chance = stands**steps

    def miss(rate: float, worth: float) -> Miss:
        return Miss(0, float(steps), steps * step, chance, ready - steps)

    return _renew(Mode.NO_WAIT, conditions, n_max, miss)


@dataclass(frozen=True, slots=True)
class Miss:
    """What follows a miss, up to the next verify."""

    length: int  # of the draft that is waited for
    tokens: float
    time: float
    chance: float  # of a hit
    ready: int  # draft tokens that are there then


def _renew(
    mode: Mode, conditions: Conditions, n_max: int, miss: Callable[[float, float], Miss]
) -> Forecast:
    """Return a mode's forecast by policy iteration (Howard) on the two states."""
    a, rate, worth = conditions.acceptance, 1.0 / conditions.decode(0), 0.0
    length = hit_length = 0
    for _ in range(4):
        hit_length, hit_tokens, hit_time = _hit(conditions, n_max, rate, worth)
        after = miss(rate, worth)
        length = after.length
        # The first verify after a miss has what is there, later ones what they want.
        first = max(0, min(after.ready, hit_length))
        first_tokens, first_time = expected_tokens(a, first), conditions.busy_decode(first)
        stays = min(conditions.hit(hit_length), 0.999)
        hits = after.chance * conditions.hit(first) / (1.0 - stays)
        tokens = after.tokens + after.chance * first_tokens + hits * hit_tokens
        time = after.time + after.chance * first_time + hits * hit_time
        rate = tokens / time
        worth = (hit_tokens - rate * hit_time) / (1.0 - stays)
    return Forecast(mode, rate, length or hit_length, hit_length, max(0.0, worth))


def _hit(conditions: Conditions, n_max: int, rate: float, worth: float) -> tuple[int, float, float]:
    """Return the best draft length after a hit, its tokens and its time.

    A draft that is slower than the verify is waited for.
    """
    a = conditions.acceptance

    def time(k: int) -> float:
        return max(conditions.busy_decode(k), (k + 1) * conditions.token_time)

    k = max(
        range(1, n_max + 1),
        key=lambda k: expected_tokens(a, k) - rate * time(k) + conditions.hit(k) * worth,
    )
    return k, expected_tokens(a, k), time(k)


def break_even(conditions: Conditions, n_max: int, mode: Mode) -> float | None:
    """Return the latency at which a mode is no faster than the target alone.

    0 if it never is faster, None if it is at any latency up to ten seconds.
    """
    alone = plain(conditions.continuing).rate

    def gains(latency: float) -> bool:
        away = replace(conditions, latency=latency)
        return any(
            each.mode is mode and each.rate > 1.001 * alone for each in forecasts(away, n_max, None)
        )

    low, high = 0.0, 10.0
    if not gains(low):
        return 0.0
    if gains(high):
        return None
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if gains(middle) else (low, middle)
    return low
