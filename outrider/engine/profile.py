"""Which numerics profile an engine runs, and what a plain token costs under each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.costs import NOISE, CostTable, Point
from outrider.engine.model import Numerics

Costs = Sequence[Point]
"""Of one decode, by rising rows, at least one."""


@dataclass(frozen=True, slots=True)
class PlainCosts:
    """Seconds of the decode of one token of one session, with no draft and nothing before it."""

    alone: float  # one row, unpadded: as llama.cpp runs the model by itself
    native: float  # padded up where that is cheaper
    exact: float | None  # padded until bits are equal; None: not tried, or they never are


def padded_costs(costs: Costs, padding: int) -> Costs:
    """Return what decodes cost whose rows are padded to a multiple.

    `costs` are of unpadded rows: at a multiple the two are the same decode.
    """
    at_multiples = [each for each in costs if each.rows % padding == 0]
    return at_multiples or [CostTable(costs).point(padding)]


def plain_costs(costs: Costs, padding: int | None, native: Costs = ()) -> PlainCosts:
    """Return what a plain token costs by the costs of unpadded rows.

    `padding` is the least with which bits do not depend on batching, if there is one. `native` are
    the costs of the layout that `native` has, where that is another one.
    """
    exact = CostTable(padded_costs(costs, padding)).seconds(1) if padding else None
    native = native or costs
    first = native[0]
    return PlainCosts(first.seconds / first.rows, CostTable(native).seconds(1), exact)


def choose(asked: Numerics | None, plain: PlainCosts) -> Numerics:
    """Return the profile to run; None asks for `exact` where it is almost free."""
    if plain.exact is None or asked is Numerics.NATIVE:
        return Numerics.NATIVE
    if asked is Numerics.EXACT or plain.exact <= (1.0 + NOISE) * plain.native:
        return Numerics.EXACT
    return Numerics.NATIVE
