"""A figure of several measurements with its interval, by the bootstrap.

An interval is the 2.5th to the 97.5th percentile of the figure of as many measurements, drawn with
replacement again and again. The draws have a fixed seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DRAWS = 1000  # resamples of the bootstrap
_SEED = 1  # so that the same figures give the same interval
_INTERVAL = (2.5, 97.5)  # percentiles: an interval of 95 %


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


def median_of(values: Iterable[float | None]) -> Estimate | None:
    """Return the median of what is known."""
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return None
    return estimate_of(float(np.median(known)), np.median(known[draws(len(known))], axis=1))


def estimate_of(value: float, drawn: NDArray[np.float64]) -> Estimate:
    """Return a figure with its interval, by what it is of each draw: float64[draw]."""
    low, high = np.percentile(drawn, _INTERVAL)
    return Estimate(value, float(low), float(high))


def draws(count: int) -> NDArray[np.int64]:
    """Return which measurements are drawn: int64[draw, measurement]."""
    return np.random.default_rng(_SEED).integers(count, size=(_DRAWS, count))
