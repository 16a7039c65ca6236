"""The grids of the virtual clock: their cells, and what is said of them."""

from __future__ import annotations

import pytest

from benchmarks.clock import GRIDS, Cell, describe, ratios
from outrider.costs import CostTable
from tests.support.simulation import Models

FREE = CostTable([(1, 0.02), (16, 0.022)])


@pytest.mark.parametrize("grid", GRIDS)
def test_no_two_cells_have_one_name(grid: str) -> None:
    names = [cell.name for cell in GRIDS[grid]()]
    assert len(names) == len(set(names)) >= 40


@pytest.mark.parametrize("users", [1, 2])
def test_a_draft_that_is_always_right_pays_and_one_that_never_is_does_not(users: int) -> None:
    for acceptance, least, most in ((1.0, 2.0, 17.0), (0.0, 0.8, 1.0)):
        models = Models(costs=FREE, draft_token=0.001, acceptance=acceptance)
        first, later = ratios(Cell(name="x", models=models, users=users), 0, 2, 64)
        assert least <= first <= most and least <= later <= most


def test_what_is_said_names_the_worst_cell_and_what_moved() -> None:
    found = {"a": (1.0, 1.0), "b": (4.0, 2.0)}
    first, later = describe("own", found, None)
    assert "2 cells, mean 2.000, worst 1.000 (a)" in first and "mean 1.414" in later
    _, moved, _, _ = describe("own", found, {"a": (2.0, 1.0), "b": (4.0, 4.0)})
    assert moved.strip() == "over before: 0.707, 0.500 (a) to 1.000 (b)"
