"""What `outrider plan` prints: the answer, what each acceptance rate yields, and the places."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from outrider.client import ControllerView, ModelInfo
from outrider.core.forecast import Mode
from outrider.costs import NO_REJECTION_COST, RejectionCost
from outrider_cli.forecasting import (
    LIKELY,
    best_over_alone,
    conditions_of,
    least,
    pays,
    possible,
    reach,
    show_ms,
    too_slow,
)
from outrider_cli.phrases import show_memory
from outrider_cli.verdict import times
from outrider_plan.layouts import compared, layout_lines

_HOW = {
    Mode.SERIAL: "draft, then verify",
    Mode.WAITING: "run ahead, then wait",
    Mode.NO_WAIT: "run ahead, never wait",
    Mode.OWN: "in the target's process",
}


def price_of(target: ModelInfo | None) -> RejectionCost:
    """Return what rejected drafts cost at a target beside decodes; nothing where none is known."""
    if target is None:
        return NO_REJECTION_COST
    seconds = target.checkpoint_milliseconds / 1e3, target.restore_milliseconds / 1e3
    return RejectionCost(*seconds, target.snapshot_token_count)


def memory_of(target: ModelInfo | None) -> str:
    """Return how a target's sessions are cut, and what that limits; empty where it is not known."""
    if target is None:
        return ""
    return show_memory(
        target.rollback_capability, target.snapshot_token_count, target.checkpoint_milliseconds
    )


def answer(
    measured: ControllerView,
    acceptances: Sequence[float],
    n_max: int,
    price: RejectionCost = NO_REJECTION_COST,
) -> str:
    """Return in a sentence whether a draft is expected to pay, where, and how far away at most."""
    kind = "head" if measured.head else "draft"
    draft = f"a {kind} of {show_ms(measured.draft_token_seconds)} ms a token"
    target = f"a target of {show_ms(measured.decode_costs[0][1])} ms"
    paying = [each for each in acceptances if pays(measured, each, n_max, price)]
    if not paying:
        return _capital(_refusal(measured, draft, target, max(acceptances), n_max, price))
    worst, best = paying[0], paying[-1]
    gains = [times(best_over_alone(measured, each, n_max, price)) for each in (worst, best)]
    more = " or more" if len(acceptances) > 1 else ""
    said = f"{draft} helps {target} if {100 * worst:.0f} %{more} of its tokens are accepted: "
    said += f"{gains[0]} the target alone" + f", {gains[1]} at {100 * best:.0f} %" * (best > worst)
    if measured.takes_turns:
        return _capital(f"{said}.")
    far = _away(reach(measured, best, n_max, price))
    return _capital(f"{said}. It pays up to a round trip of {far}, at {100 * best:.0f} %.")


def _refusal(
    measured: ControllerView,
    draft: str,
    target: str,
    acceptance: float,
    n_max: int,
    price: RejectionCost,
) -> str:
    """Return that a draft does not pay, and what would make it: another place, rate or target."""
    far = reach(measured, acceptance, n_max, price)
    if far and not measured.takes_turns:
        trip = f"with a round trip of {show_ms(measured.draft_latency_seconds)} ms"
        return f"{draft} does not help {target} {trip}; up to {_away(far)} it would."
    needed = least(lambda rate: pays(measured, rate, n_max, price), acceptance, 0.99)
    if needed is not None:
        return (
            f"{draft} does not help {target} where {100 * acceptance:.0f} % of its tokens are "
            f"accepted; it would from {100 * needed:.0f} % on."
        )
    return (
        too_slow(measured, min(acceptance, LIKELY), n_max) or f"{draft} does not help {target}"
    ) + "."


def _away(seconds: float) -> str:
    return "any distance" if math.isinf(seconds) else f"{show_ms(seconds)} ms"


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def plan_lines(
    measured: ControllerView,
    acceptances: Sequence[float],
    n_max: int,
    price: RejectionCost = NO_REJECTION_COST,
    memory: str = "",
) -> Iterator[str]:
    """Yield what a forecast goes by, and a row of what it says for each acceptance rate."""
    costs = " ".join(f"{rows}:{1e3 * seconds:.1f}" for rows, seconds in measured.decode_costs)
    yield f"target        {costs} ms by rows"
    if memory:
        yield f"memory        {memory}"
    yield (
        f"{'head ' if measured.head else 'draft'}         "
        f"{1e3 * measured.draft_token_seconds:.1f} ms a token, "
        f"{1e3 * measured.draft_latency_seconds:.1f} ms away"
        + (", on the target's own cores" if measured.takes_turns else "")
    )
    yield ""
    head = "" if measured.takes_turns else "pays up to"
    yield f"{'accepted':<10}{'alone':>7}{'with drafts':>14}{'':7}  {'how':<25}{head}".rstrip()
    for acceptance in acceptances:
        yield _row(measured, acceptance, n_max, price)
    yield "in tokens/s, and times the target alone"


def _row(measured: ControllerView, acceptance: float, n_max: int, price: RejectionCost) -> str:
    conditions = conditions_of(measured, acceptance, price)
    alone, *others = possible(conditions, n_max, measured)
    best = max(others, key=lambda each: each.rate)
    how = _HOW[best.mode] if pays(measured, acceptance, n_max, price) else "alone"
    far = reach(measured, acceptance, n_max, price)
    away = _away(far) if far and not measured.takes_turns else ""
    rates = f"{_rate(alone.rate):>7}{_rate(best.rate):>14} {best.rate / alone.rate:5.2f}x"
    return f"{acceptance:<10.2f}{rates}  {how:<25}{away}".rstrip()


def _rate(rate: float) -> str:
    return f"{rate:.1f}" if rate < 1000.0 else f"{rate:.0f}"


def place_lines(
    measured: ControllerView,
    acceptances: Sequence[float],
    away_ms: float,
    beside_ms: float | None,
    n_max: int,
    price: RejectionCost = NO_REJECTION_COST,
) -> Iterator[str]:
    """Yield what each layout of two machines with such a round trip brings, and which is best."""
    beside = None if beside_ms is None else beside_ms / 1e3
    if beside is None and measured.takes_turns:
        beside = measured.draft_token_seconds
    yield f"two machines, {away_ms:g} ms apart: tokens/s, times the target alone"
    if beside is None:
        yield "for a draft on the target's own machine, give its time there as --beside-ms"
    yield ""
    rows = [
        (each, compared(conditions_of(measured, each, price), away_ms / 1e3, beside, n_max))
        for each in acceptances
    ]
    yield from layout_lines(rows)
