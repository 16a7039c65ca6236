"""What drafts are expected to gain, from what was measured of a pair and its link."""

from __future__ import annotations

from dataclasses import replace

from outrider.client import ControllerView
from outrider.core.forecast import Conditions, Forecast, Mode, forecasts, frame_size, serial
from outrider.costs import NO_REJECTION_COST, CostTable, RejectionCost

GAP = 0.0005
"""Seconds between two decodes of a target that writes by itself, with a draft in it or none."""


def on_one_machine() -> ControllerView:
    """Return what is usual of a pair on one machine, where nothing was measured."""
    return ControllerView(round_overhead_seconds=0.0015, draft_latency_seconds=0.0005)


def conditions_of(
    measured: ControllerView, acceptance: float, price: RejectionCost = NO_REJECTION_COST
) -> Conditions:
    """Return what a forecast depends on."""
    costs, accepted = CostTable(measured.decode_costs), min(acceptance, 0.99)
    return Conditions(
        acceptance=accepted,
        decode_seconds=lambda rows: (
            costs.seconds(rows) + price.seconds(rows - 1, accepted, costs.seconds)
        ),
        overhead=measured.round_overhead_seconds,
        latency=measured.draft_latency_seconds,
        token_time=measured.draft_token_seconds,
        first_frame=frame_size(measured.draft_token_seconds),
    )


def best_over_alone(
    measured: ControllerView,
    acceptance: float,
    n_max: int = 16,
    price: RejectionCost = NO_REJECTION_COST,
) -> float:
    """Return what the best way to draft yields over the target alone."""
    conditions = conditions_of(measured, acceptance, price)
    alone, *others = possible(conditions, n_max, measured.takes_turns)
    return max([alone.rate, *(each.rate for each in others)]) / alone.rate


def possible(conditions: Conditions, n_max: int, takes_turns: bool) -> list[Forecast]:
    """Return what each mode yields, plain first.

    A draft on the target's own cores cannot run ahead, but may be in the target's process.
    """
    if not takes_turns:
        return forecasts(conditions, n_max, None)
    near = replace(conditions, gap=GAP)  # as a target there continues by itself
    return [*forecasts(near, n_max, False), in_process(near, near.token_time, n_max)]


def in_process(conditions: Conditions, token_seconds: float, n_max: int) -> Forecast:
    """Return the best of a draft in the target's own thread: in turn, and without a message."""
    here = replace(
        conditions,
        overhead=min(GAP, conditions.overhead),
        latency=0.0,
        token_time=token_seconds,
    )
    best = serial(here, n_max)
    return replace(best, mode=Mode.OWN, own_length=best.length)
