"""Whether tests try everything: `OUTRIDER_TEST_THOROUGH=1 make test`.

Without it they have eight minutes, with fewer prompts, seeds and lengths of the same kinds.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

THOROUGH = bool(os.environ.get("OUTRIDER_TEST_THOROUGH"))


def cells(*axes: Iterable[Any], together: int = 2) -> list[tuple[Any, ...]]:
    """Return the cells of a grid to test: all of them if THOROUGH, else an all-pairs choice.

    Every value of an axis is in a cell with every value of each other axis; with `together` 1 every
    value is in some cell, with 3 every three values of three axes are in one.
    """
    values = [list(axis) for axis in axes]
    grid = list(itertools.product(*(range(len(axis)) for axis in values)))
    if not THOROUGH:
        grid = list(_covering(grid, together))
    return [tuple(axis[i] for axis, i in zip(values, cell, strict=True)) for cell in grid]


def _covering(grid: Sequence[tuple[int, ...]], together: int) -> Iterable[tuple[int, ...]]:
    """Yield the cell that brings most that is new, until there is nothing new."""

    def parts(cell: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(itertools.combinations(enumerate(cell), together))

    left = set().union(*map(parts, grid))
    while left:
        best = max(grid, key=lambda cell: len(parts(cell) & left))
        left -= parts(best)
        yield best
