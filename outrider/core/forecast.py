"""What each way to speculate yields with given models and links: the controller's model. Pure.

With a draft that runs ahead a generation is a renewal process with two states
when the target falls free; a serial one always starts over. After a *miss* the
draft must start over: its first token is a latency and a token's time away.
After a *hit*, everything verified so far was accepted and the draft, which ran
ahead, has already continued. With acceptance a per token,
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

from outrider.messages import FRAME_SECONDS, FRAME_TOKENS


class Mode(Enum):
    """A way to speculate."""

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
    first_frame: int = 1  # tokens that a draft which runs ahead sends at once
    gap: float | None = None  # the overhead where a target continues by itself; None: it cannot
    confidences: Sequence[tuple[int, float, float]] = ()
    """(confidence, share, chance): how many tokens are at least so sure but less than the next
    entry, and how often those are accepted. Rising, and () where that is not known."""

    @property
    def continuing(self) -> Conditions:
        """The conditions for a target that waits for nobody."""
        return self if self.gap is None else replace(self, overhead=self.gap)

    def hit(self, drafted: int) -> float:
        """Return the chance that a line is there after a round of so many draft tokens."""
        return self.acceptance ** (drafted + 1)

    def decode(self, drafted: int) -> float:
        """Return the time of a round of so many draft tokens."""
        return self.decode_seconds(drafted + 1) + self.overhead


@dataclass(frozen=True, slots=True)
class Forecast:
    """The best that a mode can do."""

    mode: Mode
    rate: float  # tokens per second
    length: int  # of a draft made anew
    hit_length: int  # of a draft that continued
    stop_below: int = 0  # a new draft ends with the first token less sure than this
    mean_length: float = 0.0  # of a new draft, with that
    own_length: int = 0  # of the drafts of the target's own draft; then nothing is ordered


def expected_tokens(acceptance: float, drafted: int) -> float:
    """Return the tokens that a verify adds on average."""
    if acceptance >= 1.0:
        return drafted + 1.0
    return (1.0 - acceptance ** (drafted + 1)) / (1.0 - acceptance)


def frame_size(token_time: float) -> int:
    """Return the tokens that a draft which runs ahead sends at once: as they are a few ms old.

    It looks at their age with each new one.
    """
    return min(FRAME_TOKENS, 1 + math.ceil(FRAME_SECONDS / max(1e-4, token_time)))


def forecasts(conditions: Conditions, n_max: int, run_ahead: bool | None) -> list[Forecast]:
    """Return what the possible modes yield, plain first."""
    found = [plain(conditions.continuing)]
    if n_max > 0 and run_ahead is not True:
        found.append(serial(conditions, n_max))
    if n_max > 0 and run_ahead is not False:
        found += [waiting(conditions, n_max), no_wait(conditions, n_max)]
    return found


def plain(conditions: Conditions) -> Forecast:
    """Return what the target does alone."""
    return Forecast(Mode.PLAIN, 1.0 / conditions.decode(0), 0, 0)


def serial(conditions: Conditions, n_max: int) -> Forecast:
    """Return the best of drafting tokens and then verifying them.

    The draft ends after `length` tokens, or with the first one that is less
    sure than `stop_below`.
    """
    decodes = [conditions.decode(k) for k in range(n_max + 1)]
    best = Forecast(Mode.SERIAL, 0.0, 0, 0)
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
        if 0.0 < sure_share < 1.0:  # old counts fade until they are nothing beside the rest
            # The mean over all tokens is known better than what each confidence is worth.
            sure = min(0.99, max(0.0, accepted) / left * a * whole / mean)
            unsure = min(1.0, max(0.0, (a - sure_share * sure) / (1.0 - sure_share)))
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
            best = Forecast(Mode.SERIAL, tokens / time, k, k, stop_below, drafted)
        ends = reached * (1.0 - share)
        gain = survival * unsure
        pays = gain >= rate * (decodes[k] - decodes[k - 1])
        ended_tokens += ends * (1.0 + stood + (gain if pays else 0.0))
        ended_time += ends * decodes[k if pays else k - 1]
        reached *= share
        survival *= sure
        stood += survival
    return best


def own(conditions: Conditions, n_max: int) -> Forecast:
    """Return the best that a target does which drafts by itself.

    That is drafting and verifying in turn, without a way between the two. `length` is of a draft
    that is ordered, so it is 0, and `own_length` what the target drafts.
    """
    best = serial(conditions, n_max)
    return replace(best, mode=Mode.OWN, length=0, hit_length=0, own_length=best.length)


def waiting(conditions: Conditions, n_max: int) -> Forecast:
    """Return the best of running ahead and waiting for k tokens after a miss."""
    a, frame = conditions.acceptance, conditions.first_frame

    def miss(rate: float, worth: float) -> Miss:
        def wait(k: int) -> float:
            count = math.ceil(k / frame) * frame
            return conditions.latency + count * conditions.token_time

        def value(k: int) -> float:
            time = wait(k) + conditions.decode(k)
            return expected_tokens(a, k) - rate * time + conditions.hit(k) * worth

        k = max(range(1, n_max + 1), key=value)
        time = wait(k) + conditions.decode(k)
        return Miss(k, expected_tokens(a, k), time, conditions.hit(k), k + 1)

    return _renew(Mode.WAITING, conditions, n_max, miss)


def no_wait(conditions: Conditions, n_max: int) -> Forecast:
    """Return the best of running ahead and decoding plainly until the draft has caught up.

    Its line counts only if it agrees with all that is decoded meanwhile. A target that continues by
    itself has begun the next decode when news of the miss comes, and takes up what is there before
    its end.
    """
    late = 0.0 if conditions.gap is None else conditions.overhead
    conditions = replace(conditions.continuing, latency=conditions.latency + late)
    step = conditions.decode(0)
    first = conditions.latency + conditions.first_frame * conditions.token_time
    steps = max(1, math.ceil(first / step))
    chance = conditions.acceptance**steps  # each token decoded meanwhile has to be the line's own

    def miss(rate: float, worth: float) -> Miss:
        return Miss(0, steps, steps * step, chance, steps)

    return _renew(Mode.NO_WAIT, conditions, n_max, miss)


@dataclass(frozen=True, slots=True)
class Miss:
    """What follows a miss, up to the next verify."""

    length: int  # of the draft that is waited for
    tokens: float
    time: float
    chance: float  # of a hit
    used: int  # tokens of the line that the text has then


def _renew(
    mode: Mode, conditions: Conditions, n_max: int, miss: Callable[[float, float], Miss]
) -> Forecast:
    """Return a mode's forecast by policy iteration (Howard) on the two states."""
    rate, worth = 1.0 / conditions.decode(0), 0.0
    length = hit_length = 0
    for _ in range(4):
        hit_length, hit_tokens, hit_time = _hit(conditions, n_max, rate, worth)
        after = miss(rate, worth)
        length = after.length
        tokens, time, chance = _catching_up(conditions, after, hit_length)
        stays = min(conditions.hit(hit_length), 0.999)
        hits = chance / (1.0 - stays)
        rate = (after.tokens + tokens + hits * hit_tokens) / (after.time + time + hits * hit_time)
        worth = (hit_tokens - rate * hit_time) / (1.0 - stays)
    return Forecast(mode, rate, length or hit_length, hit_length)


def _catching_up(
    conditions: Conditions, after: Miss, hit_length: int
) -> tuple[float, float, float]:
    """Return the expected tokens and time of verifies that have less of a line than they want.

    The draft sends its tokens in frames. Also returns the chance of a hit after all of them.
    """
    passed, used, chance = after.time, after.used, after.chance
    tokens = time = 0.0
    for _ in range(hit_length):
        ready = _sent(conditions, passed) - used
        if ready >= hit_length:
            break
        count = max(0, ready)
        decode = conditions.decode(count)
        tokens += chance * expected_tokens(conditions.acceptance, count)
        time += chance * decode
        chance *= conditions.hit(count)
        passed, used = passed + decode, used + count + 1
    return tokens, time, chance


def _sent(conditions: Conditions, passed: float) -> int:
    """Return how much of a line has come after so many seconds since it was ordered."""
    frame = conditions.first_frame
    time = frame * max(1e-6, conditions.token_time)
    return frame * max(0, int((passed - conditions.latency) / time + 1e-9))


def _hit(conditions: Conditions, n_max: int, rate: float, worth: float) -> tuple[int, float, float]:
    """Return the best draft length after a hit, its tokens and its time.

    A draft that is slower than the verify is waited for.
    """
    a = conditions.acceptance

    def time(k: int) -> float:
        return max(conditions.decode(k), (k + 1) * conditions.token_time)

    k = max(
        range(1, n_max + 1),
        key=lambda k: expected_tokens(a, k) - rate * time(k) + conditions.hit(k) * worth,
    )
    return k, expected_tokens(a, k), time(k)
