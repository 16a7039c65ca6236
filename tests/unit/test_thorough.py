"""The cells of a grid that are tested by default."""

from __future__ import annotations

import itertools

import pytest

from tests.support import thorough

AXES = ("abc", range(4), (True, False), (0.5, 1.0))


@pytest.mark.parametrize("together", [1, 2, 3])
def test_every_few_values_are_in_one_cell(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thorough, "THOROUGH", False)
    cells = thorough.cells(*AXES, together=together)
    for places in itertools.combinations(range(len(AXES)), together):
        for values in itertools.product(*(AXES[place] for place in places)):
            assert any(tuple(cell[place] for place in places) == values for cell in cells)
    assert len(cells) < 48


def test_all_of_a_grid_is_tested_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thorough, "THOROUGH", True)
    assert thorough.cells(*AXES) == list(itertools.product(*AXES))
