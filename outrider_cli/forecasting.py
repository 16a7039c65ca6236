"""What drafts are expected to gain, from what was measured of a pair and its link."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from outrider.core.forecast import Conditions, Forecast, Mode, forecasts, frame_size, serial
from outrider.costs import NO_REJECTION_COST, CostTable, RejectionCost
from outrider.response import ControllerView
from outrider_cli.verdict import UNSURE

GAP = 0.0005
"""Seconds between two decodes of a target that writes by itself, with a draft in it or none."""

LIKELY, MOST = 0.7, 0.9
"""Acceptance rates to judge a draft by where its own is not known: between the .53 and .85 of
docs/benchmarks.md, and more than both."""


_AT_ONCE = 1e-6
"""Seconds of a token of a draft that takes no time."""


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
    alone, *others = possible(conditions, n_max, measured)
    return max([alone.rate, *(each.rate for each in others)]) / alone.rate


def possible(conditions: Conditions, n_max: int, measured: ControllerView) -> list[Forecast]:
    """Return what each mode yields, plain first.

    A draft on the target's own cores cannot run ahead, but may be in the target's process. Nor can
    a head, wherever it is.
    """
    near = replace(conditions, gap=GAP)  # as a target continues by itself
    if not measured.takes_turns:
        return forecasts(near, n_max, False if measured.head else None)
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


# --- where drafts pay ---


def pays(
    measured: ControllerView,
    acceptance: float,
    n_max: int = 16,
    price: RejectionCost = NO_REJECTION_COST,
) -> bool:
    """Return whether drafts are expected to save more time than a forecast is off by."""
    return best_over_alone(measured, acceptance, n_max, price) > 1 + UNSURE


def head_pays_from(
    decode_costs: Sequence[tuple[int, float]],
    token_seconds: float,
    most_tokens: int = 0,
    price: RejectionCost = NO_REJECTION_COST,
) -> float | None:
    """Return the acceptance rate from which on a head in its target's process pays; None: none.

    It drafts `most_tokens` after a text, 0: any number. Costs are pairs of rows and seconds.
    """
    measured = replace(
        on_one_machine(),
        decode_costs=tuple(decode_costs),
        draft_token_seconds=token_seconds,
        takes_turns=True,
        head=True,
    )
    n_max = most_tokens or 16
    return least(lambda acceptance: pays(measured, acceptance, n_max, price), 0.0, 0.99)


def reach(
    measured: ControllerView,
    acceptance: float,
    n_max: int = 16,
    price: RejectionCost = NO_REJECTION_COST,
) -> float:
    """Return the round trip from which on a draft pays no more, in seconds: 0 where it never does.

    Infinite from ten seconds on.
    """

    def is_too_far(seconds: float) -> bool:
        far = replace(measured, draft_latency_seconds=seconds)
        return not pays(far, acceptance, n_max, price)

    found = least(is_too_far, 0.0, 10.0)
    return math.inf if found is None else found


def too_slow(measured: ControllerView, acceptance: float = LIKELY, n_max: int = 16) -> str:
    """Return that a draft helps its target at no acceptance rate, and why or which it would help.

    Of that one `acceptance` of the tokens are accepted. Empty where it may help, or where times are
    not known.
    """
    if not measured.decode_costs or not measured.draft_token_seconds:
        return ""
    if pays(measured, max(MOST, acceptance), n_max):
        return ""
    (_, decode_seconds), *more = measured.decode_costs
    at_once = replace(on_one_machine(), decode_costs=measured.decode_costs)
    if more and not pays(replace(at_once, draft_token_seconds=_AT_ONCE), MOST, n_max):
        rows, seconds = more[-1]
        return (
            f"no draft can help a target of {show_ms(decode_seconds)} ms a token that takes "
            f"{show_ms(seconds)} ms to check {rows} at once"
        )

    def helps(times: float) -> bool:
        costs = tuple((rows, times * seconds) for rows, seconds in measured.decode_costs)
        return pays(replace(measured, decode_costs=costs), acceptance, n_max)

    slower = least(helps, 1.0, 100.0)
    helped = ""
    if slower is not None:
        its = f"{show_ms(slower * decode_seconds)} ms ({100 * acceptance:.0f} % accepted)"
        helped = f"; it would help one of {its}"
    return (
        f"a draft of {show_ms(measured.draft_token_seconds)} ms a token cannot help a target of "
        f"{show_ms(decode_seconds)} ms, however often it is right{helped}"
    )


def least(holds: Callable[[float], bool], low: float, high: float) -> float | None:
    """Return from where on something holds, to a hundredth of it; None where it does not at all."""
    if holds(low):
        return low
    if not holds(high):
        return None
    while high - low > 0.01 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def show_ms(seconds: float) -> str:
    """Return milliseconds for people, without their unit."""
    return f"{1e3 * seconds:.3g}" if seconds < 1.0 else f"{1e3 * seconds:.0f}"
