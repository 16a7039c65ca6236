"""What it is worth to a target to verify some tokens of a line. Pure.

Worth is in tokens: what a round is expected to add, less what is made in its time anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

HOPELESS = 0.02
"""The chance below which no more of a line is looked at."""

_AS_LONG = 0.05
"""The share of the time that does not decide whether a line is verified in parts: where they take
about as long as all of it at once, fewer rows are in vain if it turns out to end early."""


def survivals_of(known: Sequence[float], mean: float, count: int, unread: int) -> Iterator[float]:
    """Yield the chance that the first token is right, the first two are, and so on up to `count`.

    Beyond those with a `known` chance each has the `mean`, and so have `unread` ones before them,
    which are about to come and which the text has overtaken.
    """
    survival = 1.0
    for k in range(count):
        if k == len(known):
            survival *= mean**unread
        survival *= known[k] if k < len(known) else mean
        yield survival


def best_count(values: Sequence[float], n_min: int) -> int:
    """Return the number of tokens that is worth most; fewer than `n_min` are none.

    `values` are what 0, 1, 2 .. tokens are worth.
    """
    best = 0
    for count in range(max(1, n_min), len(values)):
        if values[count] > values[best]:
            best = count
    return best


def best_part(
    chances: Sequence[float],
    n_min: int,
    rate: float,
    usual: float,
    round_seconds: Callable[[int], float],
) -> tuple[int, float]:
    """Return how many tokens of a line are best verified at once, and the worth of that round.

    `chances` are those of its tokens, each if those before it stand. The number is for the `rate`
    that is made now, in tokens per second, the worth by the `usual` one; a round with k tokens
    takes `round_seconds(k)`. Where no number may be, that is 0 and its worth minus infinity.

    What follows a part is there for the next round if the part is right and so is the token after
    it, which the target adds. So a number is judged by what the whole line adds in rounds of so
    many tokens: all of it at once where that takes less than its parts do, one after the other.
    """
    survivals = [1.0]  # of so many tokens
    for chance in chances:
        survival = survivals[-1] * chance
        if survival < HOPELESS:
            break
        survivals.append(survival)
    tokens = [0.0, *accumulate(survivals)]  # expected of as many places, the first is sure
    times = [rate * round_seconds(k) for k in range(len(survivals))]
    tried = {
        k: _in_parts(k, survivals, tokens, times) for k in _parts(max(1, n_min), len(survivals) - 1)
    }
    if not tried:
        return 0, -math.inf
    best = max(tried, key=lambda k: tried[k][0])
    least = tried[best][0] - _AS_LONG * tried[best][1]
    best = next((k for k in tried if 2 * (k + 1) <= best + 1 and tried[k][0] >= least), best)
    return best, tokens[best + 1] - usual * round_seconds(best)


def _parts(least: int, most: int) -> Iterator[int]:
    """Yield the numbers of draft tokens that are tried: beyond eight rows every fourth.

    Kernels compute rows in tiles of at least four, and a line may be long.
    """
    for k in range(least, most + 1):
        if k < 8 or k % 4 == 3 or k == most:
            yield k


def _in_parts(
    count: int, survivals: Sequence[float], tokens: Sequence[float], times: Sequence[float]
) -> tuple[float, float]:
    """Return what a line adds in rounds of `count` tokens, and what is made anyway in their time.

    `tokens` are the sums of the `survivals` before each, `times` what is made anyway in a round
    with so many draft tokens. No round follows that adds nothing; the first may be a loss.
    """
    added, spent, begin, last = 0.0, 0.0, 0, len(survivals) - 1
    while begin < last:
        end = min(begin + count, last)
        anyway = times[end - begin] * survivals[begin]
        its = tokens[end + 1] - tokens[begin] - anyway
        if its <= 0.0 and begin:
            break
        added, spent = added + its, spent + anyway
        if its <= 0.0:
            break
        begin = end + 1
    return added, spent


def is_better_stopped(
    chances: Sequence[float], decode: float, plain: float, gap: float, beside: float
) -> bool:
    """Return whether a target that has verified a line is better stopped for the next one.

    Else it continues: without a message where the line does, and with plain tokens, for as long
    as a message takes, where it was wrong. Stopped it waits for that message. In seconds: `decode`
    is of the line, `plain` of a token without a draft, `gap` between two decodes of a target that
    continues, and `beside` what a message takes.
    """
    survival, tokens = 1.0, 1.0
    for chance in chances:
        survival *= chance
        tokens += survival
    missed = (1.0 - survival) * math.ceil(beside / plain)
    continuing = (tokens + missed) / (gap + decode + missed * plain)
    return tokens / (beside + decode) > continuing
