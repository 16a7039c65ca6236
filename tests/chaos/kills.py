"""Containers that are killed one after the other: which and when, and what users saw of it."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EVERY_SECONDS = 10.0
"""Between two kills."""

HEALTH_SECONDS = 5.0
"""Of compose.yaml, between two health checks; names are resolved again as often."""

_MOST_AWAY_SECONDS = 2.0
_RIGHT = "right"


@dataclass(frozen=True)
class Kill:
    """One container that is killed, and started again."""

    at: float  # seconds after the first could be
    order: tuple[str, ...]  # who may be it, by "role number": the first that runs
    away: float  # seconds until it is started again


def kills(seed: int, minutes: float, counts: Mapping[str, int]) -> list[Kill]:
    """Return what is killed in so many minutes, of so many containers of each role."""
    rng = random.Random(seed)
    names = [f"{role} {number}" for role, count in counts.items() for number in range(count)]
    return [
        Kill(EVERY_SECONDS * number, tuple(rng.sample(names, len(names))), _away(rng))
        for number in range(math.ceil(60.0 * minutes / EVERY_SECONDS))
    ]


def _away(rng: random.Random) -> float:
    return rng.uniform(0.0, _MOST_AWAY_SECONDS)


@dataclass
class Request:
    """One text that a user asked for; times are seconds of one clock."""

    began: float
    first: float | None = None  # when its first token came
    ended: float | None = None
    outcome: str = "no end"  # right, another text, told: why, or no end
    token_count: int = 0
    drafted_count: int = 0

    @property
    def waited(self) -> float | None:
        """Seconds until the first token."""
        return None if self.first is None else self.first - self.began

    @property
    def is_fault(self) -> bool:
        """Whether its user has neither the text nor a reason why not."""
        return self.outcome != _RIGHT and not self.outcome.startswith("told: ")


@dataclass(frozen=True)
class Loss:
    """A kill that happened."""

    name: str
    at: float  # seconds of the clock of the requests
    until: float  # when it was used again
    texts: int = 0  # that were at it


def stood_still(request: Request, spans: Sequence[tuple[float, float]]) -> bool:
    """Return whether the machine did not run for a while of the request: it says nothing then."""
    ended = request.ended if request.ended is not None else math.inf
    return any(request.began < until and ended > since for since, until in spans)


def in_failover(request: Request, losses: Sequence[Loss]) -> bool:
    """Return whether a container was away at some time before its first token."""
    first = request.first if request.first is not None else math.inf
    return any(request.began < loss.until and first > loss.at for loss in losses)


@dataclass(frozen=True)
class Figures:
    """What the users of a phase saw."""

    count: int
    outcomes: Mapping[str, int]
    tokens_per_second: float
    drafted: float  # share of the tokens
    p50: float  # seconds to the first token
    p99: float


def figures(requests: Sequence[Request]) -> Figures:
    """Return the figures of requests that were made one after the other by the same users."""
    ended = [each.ended for each in requests if each.ended is not None]
    span = max(ended) - min(each.began for each in requests) if ended else 0.0
    tokens = sum(each.token_count for each in requests)
    waited = sorted(each.waited for each in requests if each.waited is not None)
    return Figures(
        len(requests),
        Counter(each.outcome for each in requests),
        tokens / span if span else 0.0,
        sum(each.drafted_count for each in requests) / tokens if tokens else 0.0,
        percentile(waited, 0.5),
        percentile(waited, 0.99),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that so many of the ordered ones do not exceed; nan of none."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def problems(before: Figures, during: Figures, requests: Sequence[Request]) -> list[str]:
    """Return what was promised and not kept; `during` is of the requests in failover."""
    faults = Counter(each.outcome for each in requests if each.is_fault)
    found = [f"{count} requests: {outcome}" for outcome, count in faults.items()]
    if not during.p99 <= before.p99 + HEALTH_SECONDS:
        found.append(
            f"p99 of the time to the first token was {during.p99:.2f} s in failover, more than"
            f" {HEALTH_SECONDS:.0f} s above the {before.p99:.2f} s without"
        )
    return found


def table(columns: Mapping[str, Figures]) -> str:
    """Return the figures as a table, a column for each phase."""
    outcomes = sorted({outcome for each in columns.values() for outcome in each.outcomes})
    rows = [
        ("requests", [f"{each.count:,}" for each in columns.values()]),
        *(
            (name, [f"{each.outcomes.get(name, 0):,}" for each in columns.values()])
            for name in outcomes
        ),
        ("tokens a second", [f"{each.tokens_per_second:.0f}" for each in columns.values()]),
        ("drafted", [f"{each.drafted:.0%}" for each in columns.values()]),
        ("first token, p50 s", [f"{each.p50:.2f}" for each in columns.values()]),
        ("first token, p99 s", [f"{each.p99:.2f}" for each in columns.values()]),
    ]
    lines = [
        ["", *columns],
        ["---"] * (len(columns) + 1),
        *([name, *cells] for name, cells in rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
