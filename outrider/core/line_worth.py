"""What it is worth to a target to verify some tokens of a line. Pure.

Worth is in tokens: what a round is expected to add, less what is made in its time anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

HOPELESS = 0.02
"""The chance below which no more of a line is drafted or verified: such a token adds less than a
fiftieth of one, and a row of a decode costs more."""


def best_of_line(
    chances: Sequence[float],
    n_min: int,
    rate: float,
    usual: float,
    round_seconds: Callable[[int], float],
) -> tuple[int, float]:
    """Return how many tokens of a line are best verified next, and the worth of that round.

    `chances` are those of its tokens, each if those before it stand. The number is for the `rate`
    that is made now, in tokens per second, the worth by the `usual` one; a round with k tokens
    takes `round_seconds(k)`. Where no number may be, that is 0 and its worth minus infinity.
    """
    tokens, survival = 1.0, 1.0  # expected of the round; of all before the next token to stand
    best, most, worth = 0, -math.inf, -math.inf
    for k, chance in enumerate(chances, 1):
        survival *= chance
        if survival < HOPELESS:
            break
        tokens += survival
        seconds = round_seconds(k)
        if k >= n_min and tokens - rate * seconds > most:
            best, most, worth = k, tokens - rate * seconds, tokens - usual * seconds
    return best, worth


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
