"""The sampling parameters as a value, checked, and the law they give a row of logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.distribution import Distribution, certain, from_logits
from outrider.errors import InvalidRequest

MAX_TEMPERATURE = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How a row of logits becomes a law; the defaults are llama.cpp's.

    Raises InvalidRequest when a value is outside its range or not a number.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _check("top_k", self.top_k, 0, 2**31 - 1)
        if self.top_k != int(self.top_k):
            raise InvalidRequest("top_k", f"must be a whole number, not {self.top_k!r}")
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequest("top_p", "must be above 0")

    @property
    def greedy(self) -> bool:
        """Whether the law is always one token: below 1e-5, logits divided would overflow."""
        return self.temperature < 1e-5


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidRequest(name, f"must be in [{low:g}, {high:g}], not {value!r}")


GREEDY = SamplingParameters(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)


def law(row: NDArray[np.float32], parameters: SamplingParameters) -> Distribution:
    """Return the law of a row of logits, float32[vocabulary].

    The chain is llama.cpp's (top-k, top-p, min-p, temperature), written
    anew for those who hold no model: the orchestrator in LOGITS form and the
    toy model. Equal logits rank by lowest id.
    """
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
