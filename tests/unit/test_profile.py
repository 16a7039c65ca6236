"""The numerics profile by what a plain token costs."""

from __future__ import annotations

import pytest

from outrider.costs import Point
from outrider.engine.model import Numerics
from outrider.engine.profile import PlainCosts, choose, padded_costs, plain_costs


def points(*costs: tuple[int, float]) -> list[Point]:
    return [Point(*each) for each in costs]


WIDE_IS_CHEAP = points((1, 0.066), (2, 0.068), (4, 0.055), (6, 0.110), (8, 0.100))
ONE_IS_CHEAP = points((1, 0.022), (2, 0.038), (3, 0.050), (4, 0.056), (8, 0.100))


def test_padded_rows_cost_what_as_many_unpadded_ones_do():
    assert padded_costs(ONE_IS_CHEAP, 1) == ONE_IS_CHEAP
    assert padded_costs(ONE_IS_CHEAP, 2) == points((2, 0.038), (4, 0.056), (8, 0.100))
    assert padded_costs(ONE_IS_CHEAP, 4) == points((4, 0.056), (8, 0.100))


def test_a_row_count_that_was_not_measured_costs_what_the_line_says():
    [found] = padded_costs([Point(1, 0.02, 1e-5), Point(3, 0.04, 3e-5)], 4)
    assert found == (4, pytest.approx(0.05), pytest.approx(4e-5))


@pytest.mark.parametrize(
    ("costs", "padding", "alone", "native", "exact"),
    [
        (WIDE_IS_CHEAP, 4, 0.066, 0.055, 0.055),
        (WIDE_IS_CHEAP, 2, 0.066, 0.055, 0.055),
        (ONE_IS_CHEAP, 4, 0.022, 0.022, 0.056),
        (ONE_IS_CHEAP, 2, 0.022, 0.022, 0.038),
        (ONE_IS_CHEAP, 1, 0.022, 0.022, 0.022),
        (ONE_IS_CHEAP, None, 0.022, 0.022, None),
    ],
)
def test_a_plain_token_costs_one_row_alone_and_the_cheapest_that_a_profile_may_take(
    costs: list[Point],
    padding: int | None,
    alone: float,
    native: float,
    exact: float | None,
):
    assert plain_costs(costs, padding) == PlainCosts(alone, native, exact)


@pytest.mark.parametrize(
    ("exact", "by_default"),
    [
        (None, Numerics.NATIVE),
        (1.0, Numerics.EXACT),
        (1.05, Numerics.EXACT),
        (1.06, Numerics.NATIVE),
        (1.7, Numerics.NATIVE),
    ],
)
def test_exact_runs_by_default_where_it_costs_a_plain_token_at_most_5_percent(
    exact: float | None, by_default: Numerics
):
    plain = PlainCosts(alone=1.2, native=1.0, exact=exact)
    assert choose(None, plain) is by_default
    assert choose(Numerics.NATIVE, plain) is Numerics.NATIVE
    # Asked for, it runs at any price; but not where it cannot.
    asked = Numerics.NATIVE if exact is None else Numerics.EXACT
    assert choose(Numerics.EXACT, plain) is asked
