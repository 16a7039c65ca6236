"""Sparse distributions over token ids: probabilities, draws, races, residuals and the integer form.

Source of the formulas: Leviathan et al. 2211.17192 (residual), Sun et al. 2403.10444 (of a share
of p), Daliri et al. 2408.07978 (the Gumbel race as a coupling).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider import noise
from outrider.errors import InvalidRequest
from outrider.sampling import SamplingParameters

MAX_WEIGHT = 65535
"""The largest integer weight of the form that goes over the wire."""

_GROUP = 32  # values that are looked at together for the largest
_FEW = 8  # ids that are looked up one by one, which needs no order


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """A distribution on distinct token ids: probability = weight / sum of weights.

    `token_ids` is int32[n] and `weights` float64[n], n >= 1, every weight
    >= 0 and their sum > 0. Integer weights below 2**16 keep every sum exact.
    """

    token_ids: NDArray[np.int32]
    weights: NDArray[np.float64]

    @property
    def total(self) -> float:
        """The sum of the weights."""
        return float(self.weights.sum())

    def probability(self, token_id: int) -> float:
        """Return the probability of one id, 0 for ids that are not listed."""
        found = np.flatnonzero(self.token_ids == token_id)
        return float(self.weights[found[0]]) / self.total if found.size else 0.0

    def draw(self, u: float) -> int:
        """Return the id that `u` in (0, 1) falls on, walking the ids as listed."""
        sums = self.weights.cumsum()
        index = int(sums.searchsorted(u * sums[-1], side="right"))
        return int(self.token_ids[min(index, len(sums) - 1)])

    def race(self, seed: int, stream: int, position: int) -> tuple[int, float]:
        """Draw with shared noise: the winner's id and its margin over the second.

        The winner maximises log weight + Gumbel noise, ties to the lowest id.
        The margin is infinite when nobody else runs.
        """
        return lead(self.finish(seed, stream, position, 2))

    def finish(self, seed: int, stream: int, position: int, count: int) -> list[tuple[int, float]]:
        """Return the first `count` ids of the same race at most, with what they scored."""
        if len(self.token_ids) == 1:
            return [(int(self.token_ids[0]), 0.0)]
        key = noise.position_key(seed, stream, position)
        return _first(self.token_ids, _scores(self.token_ids, self.weights, key), count)


Race = tuple[Distribution, int, int, int]
"""A distribution, and the seed, the stream and the position of the noise that it is drawn with."""


def winners(races: Sequence[Race]) -> list[int]:
    """Return who wins each race; all are run at once, as numpy's calls take longer than few ids."""
    open_races = [race for race in races if len(race[0].token_ids) > 1]
    won = iter(_run(open_races) if open_races else ())
    return [next(won) if len(each.token_ids) > 1 else int(each.token_ids[0]) for each, *_ in races]


def _run(races: Sequence[Race]) -> Iterator[int]:
    counts = [len(race[0].token_ids) for race in races]
    keys = np.array([noise.position_key(*key) for _, *key in races])
    ids = np.concatenate([race[0].token_ids for race in races])
    weights = np.concatenate([race[0].weights for race in races])
    scores = _scores(ids, weights, np.repeat(keys, counts))
    for end, count in zip(accumulate(counts), counts, strict=True):
        part = slice(end - count, end)
        yield _first(ids[part], scores[part], 1)[0][0]


def _scores(
    token_ids: NDArray[np.int32],
    weights: NDArray[np.float64],
    keys: np.uint64 | NDArray[np.uint64],
) -> NDArray[np.float64]:
    """Return log weight + Gumbel noise of each id."""
    u = noise.uniforms(keys, token_ids)
    # In place, as in `noise.uniforms`.
    waits = np.log(u, out=u)
    np.log(np.negative(waits, out=waits), out=waits)
    with np.errstate(divide="ignore"):
        scores = np.log(weights)
    scores -= waits
    return scores


def _first(
    token_ids: NDArray[np.int32], scores: NDArray[np.float64], count: int
) -> list[tuple[int, float]]:
    """Return the best `count` ids at most, with their scores, which are overwritten."""
    first = []
    for _ in range(min(count, len(scores))):
        best = scores[scores.argmax()]
        [ties] = (scores == best).nonzero()
        winner = ties[token_ids[ties].argmin()]
        scores[winner] = -np.inf
        first.append((int(token_ids[winner]), float(best)))
    return first


def lead(first: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """Return the winner of a race and its margin, by the first two to finish."""
    (winner, score), *others = first
    return winner, score - others[0][1] if others else float("inf")


_ONE = np.ones(1)


def certain(token_id: int) -> Distribution:
    """Return the distribution that always gives `token_id`."""
    return Distribution(np.array([token_id], np.int32), _ONE)


def from_logits(token_ids: NDArray[np.int32], logits: NDArray[np.float32]) -> Distribution:
    """Return softmax(`logits`) in float64 on `token_ids`."""
    shifted = logits.astype(np.float64)
    shifted -= shifted[shifted.argmax()]
    return Distribution(token_ids, np.exp(shifted, out=shifted))


def softmax(row: NDArray[np.float32]) -> Distribution:
    """Return the distribution of a whole row of logits, without any sampler."""
    return from_logits(np.arange(len(row), dtype=np.int32), row)


def most_probable(distribution: Distribution, count: int) -> list[tuple[int, float]]:
    """Return up to `count` ids with their probabilities, the most probable first."""
    likely = largest(distribution.weights, count)
    order = likely[np.argsort(-distribution.weights[likely], kind="stable")][:count]
    total = distribution.total
    return [(int(distribution.token_ids[i]), float(distribution.weights[i]) / total) for i in order]


def logprobs(
    distribution: Distribution, count: int, wanted: Iterable[int]
) -> list[tuple[int, float]]:
    """Return the natural logarithms of probabilities: of the `count` best ids, then of `wanted`.

    Each id comes once; one that the distribution does not list has -inf. Equal
    probabilities rank by lowest id.
    """
    ids, weights, total = distribution.token_ids, distribution.weights, math.log(distribution.total)

    def values(slots: NDArray[np.int64]) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):
            return np.log(weights[slots]) - total

    # Weights that differ by less than this may have equal logarithms.
    best = largest(weights, count, within=1e-9)
    best = best[np.lexsort((ids[best], -values(best)))][:count]
    listed = {
        int(token_id): float(value) for token_id, value in zip(ids[best], values(best), strict=True)
    }
    rest = np.array([token_id for token_id in wanted if token_id not in listed], np.int32)
    slots, known = _slots(distribution, rest)
    for token_id, value, is_known in zip(rest, values(slots), known, strict=True):
        listed[int(token_id)] = float(value) if is_known else -math.inf
    return list(listed.items())


def largest(
    values: NDArray[np.floating[Any]], count: int, within: float = 0.0
) -> NDArray[np.int64]:
    """Return, rising, where the `count` largest values are, and more: all that equal the least.

    And those below it by a share of at most `within`. Finite values, of which the
    largest is positive if `within` is not 0. Nothing is sorted: the `count`th largest
    maximum of groups is no larger than the `count`th largest value.
    """
    if count <= 0:
        return np.empty(0, np.int64)
    groups = len(values) // _GROUP
    if groups <= count:
        return np.arange(len(values), dtype=np.int64)
    # A group is a column: maxima of rows take numpy 17 times as long.
    table, rest = values[: groups * _GROUP].reshape(_GROUP, groups), values[groups * _GROUP :]
    maxima = np.maximum.reduce(table)
    least = np.partition(maxima, groups - count)[groups - count] * (1.0 - within)
    [columns] = (maxima >= least).nonzero()
    rows, found = (table.take(columns, axis=1) >= least).nonzero()
    slots = rows * groups + columns[found]
    return np.append(slots, table.size + np.flatnonzero(rest >= least)) if len(rest) else slots


def ranked(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return where the logits are, the largest first, of equal ones the first.

    As a stable argsort, which takes twice the time.
    """
    bits = (logits + np.float32(0)).view(np.int32)  # -0 is 0
    # Numbers in the order of the floats: below 0 a float's bits fall as it rises.
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64)
    keys = (-order << 32) + np.arange(len(logits))
    keys.sort()
    return keys & 0xFFFFFFFF


def _slots(
    distribution: Distribution, token_ids: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return where a distribution lists each id, and whether it does."""
    if len(token_ids) <= _FEW:
        found = [np.flatnonzero(distribution.token_ids == token_id) for token_id in token_ids]
        slots = np.array([each[0] if each.size else 0 for each in found], np.int64)
        return slots, np.array([bool(each.size) for each in found], np.bool_)
    order = np.argsort(distribution.token_ids)
    sorted_ids = distribution.token_ids[order]
    slots = order[np.minimum(np.searchsorted(sorted_ids, token_ids), len(order) - 1)]
    return slots, distribution.token_ids[slots] == token_ids


def residual(p: Distribution, q: Distribution, share: float = 1.0) -> Distribution:
    """Return max(`share` * p - q, 0) normalised, or p when rounding left nothing of it."""
    left = excess(p, q, share)
    return Distribution(p.token_ids, left) if left.any() else p


def excess(p: Distribution, q: Distribution, share: float = 1.0) -> NDArray[np.float64]:
    """Return max(`share` * p - q, 0) of each id that p lists, as probabilities: float64[n].

    Exactly 0 where the same product of probabilities is not more than q's.
    """
    # By id: for whole vocabularies that takes half the time of a search in q's ids.
    q_by_id = np.zeros(1 + max(int(p.token_ids.max()), int(q.token_ids.max())))
    q_by_id[q.token_ids] = q.weights / q.total
    left = p.weights / p.total
    left *= share
    left -= q_by_id[p.token_ids]
    return np.maximum(left, 0.0, out=left)


def quantised(distribution: Distribution, support: int, tail: float) -> Distribution:
    """Return the row that a draft samples from and sends: integer weights on few ids.

    Keeps the most likely ids until at most `tail` of the mass is dropped, and
    at most `support` of them. What is dropped costs acceptance, never
    exactness, because the draft draws from this very row.
    """
    order = np.argsort(-distribution.weights, kind="stable")
    weights = distribution.weights[order]
    mass = np.cumsum(weights)
    enough = int(np.searchsorted(mass, (1.0 - tail) * mass[-1])) + 1
    count = min(enough, support, int(np.count_nonzero(weights)))
    scaled = np.floor(weights[:count] / weights[0] * MAX_WEIGHT + 0.5)
    return Distribution(distribution.token_ids[order[:count]], np.maximum(scaled, 1.0))


# --- of a row of logits ---


def distribution_of(row: NDArray[np.float32], parameters: SamplingParameters) -> Distribution:
    """Return the distribution of a row of logits, float32[vocabulary].

    The chain is llama.cpp's (top-k, top-p, min-p, temperature), written
    anew for those who hold no model: the orchestrator in LOGITS form and the
    toy model. Equal logits rank by lowest id. Raises InvalidRequest where the
    parameters ask for more than these four.
    """
    more = parameters.beyond_basic()
    if more:
        raise InvalidRequest(more[0], "needs the target's own sampler chain")
    if parameters.greedy:
        return certain(int(row.argmax()))
    order = _top(row, parameters.top_k)
    logits = row[order]
    keep = min(_top_p(logits, parameters.top_p), _min_p(logits, parameters.min_p))
    return from_logits(order[:keep], logits[:keep] / np.float32(parameters.temperature))


def _top(row: NDArray[np.float32], count: int) -> NDArray[np.int32]:
    """Return the ids of the `count` largest logits, largest first; 0 means all."""
    order = np.argsort(-row, kind="stable").astype(np.int32)
    return order[:count] if count else order


def _top_p(logits: NDArray[np.float32], top_p: float) -> int:
    """Return how many of the sorted logits reach the mass `top_p`."""
    if top_p >= 1.0:
        return len(logits)
    weights = np.exp(logits.astype(np.float64) - float(logits[0]))
    mass = np.cumsum(weights)
    return int(np.searchsorted(mass, np.float32(top_p) * mass[-1])) + 1


def _min_p(logits: NDArray[np.float32], min_p: float) -> int:
    """Return how many of the sorted logits reach `min_p` times the best probability."""
    if min_p <= 0.0:
        return len(logits)
    floor = logits[0] + np.float32(math.log(min_p))
    return int(np.count_nonzero(logits >= floor))
