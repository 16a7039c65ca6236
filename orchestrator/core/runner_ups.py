"""Whether the draft also writes what follows its second choices, by what that yields. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.core.controller import Control
from orchestrator.core.estimates import RunnerUpEstimates
from orchestrator.core.forecast import Conditions, Forecast, no_wait, waiting
from outrider.speculation import Policy

_WORTHWHILE, _WORTHWHILE_NEAR = 1.03, 1.1
"""Times the rate of one line: they cost the draft's machine its spare time. More where the draft
answers within a token's time, so that a miss costs little: there 1.03 was forecast and .88 came."""
_LINE_COUNTS = (4, 8)
"""Lines at once where a request does not say. Rows beside its own cost a draft on a GPU little; on
a core eight take three times as long as one, and four foresee nearly as much."""


def forecasts(
    conditions: Conditions, n_max: int, known: RunnerUpEstimates, line_count: int
) -> Sequence[Forecast]:
    """Return what running ahead yields with so many lines.

    The target waits for a message after each round: what follows a miss is not the line that it
    was sent.
    """
    each = replace(
        conditions,
        foreseen=known.foreseen.value * known.share(line_count),
        corrected=known.corrected.value * known.share(line_count),
        token_time=conditions.token_time * known.step_ratios[line_count - 1],
        gap=None,
    )
    found = waiting(each, n_max), no_wait(each, n_max)
    return [replace(best, lines=line_count, foreseen=each.foreseen) for best in found]


def better(best: Forecast, control: Control, conditions: Conditions) -> Forecast:
    """Return what is forecast runner-up lines where they pay, or are asked for."""
    speculation, known = control.speculation, control.estimates.runner_ups
    asked = (speculation.n_parallel,) if speculation.n_parallel else _LINE_COUNTS
    counts = sorted({min(known.line_limit, each) for each in asked})
    if counts[0] < 2 or not speculation.n_max:
        return best
    possible = [each for n in counts for each in forecasts(conditions, speculation.n_max, known, n)]
    found = max(possible, key=lambda forecast: forecast.rate)
    if speculation.n_parallel:
        return found if found.rate > 0.0 else best
    is_near = conditions.latency <= conditions.decode_seconds(1)
    least = _WORTHWHILE_NEAR if is_near else _WORTHWHILE
    return found if found.rate > least * best.rate else best


def line_count(control: Control) -> int:
    """Return how many lines the draft may write at once after the text."""
    if not control.runs_ahead():
        return 1
    if control.speculation.policy is not Policy.MEASURED:
        return min(control.estimates.runner_ups.line_limit, control.speculation.n_parallel or 1)
    return control.forecast.lines
