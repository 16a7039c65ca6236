"""What `outrider plan` prints: the modes, the places and the advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outrider.client import ControllerView, ModelInfo
from outrider.core.forecast import Forecast, Mode, break_even
from outrider.costs import NO_REJECTION_COST, RejectionCost
from outrider_cli.forecasting import best_over_alone, conditions_of, possible
from outrider_cli.memories import show_memory
from outrider_cli.verdict import UNSURE, forecast, times
from outrider_plan.layouts import compared, layout_lines


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


def _cell(found: Forecast | None, alone: float) -> str:
    if found is None:
        return f"{'-':^15}"
    rate = f"{found.rate:.1f}" if found.rate < 1000.0 else f"{found.rate:.0f}"
    return f"{rate:>5} {found.rate / alone:5.2f}x {found.length:<2}"


def plan_lines(
    measured: ControllerView,
    acceptances: Sequence[float],
    n_max: int,
    price: RejectionCost = NO_REJECTION_COST,
    memory: str = "",
) -> Iterator[str]:
    """Yield the table of modes, the break-even round trips and the advice."""
    costs = " ".join(f"{rows}:{1e3 * seconds:.1f}" for rows, seconds in measured.decode_costs)
    yield f"target        {costs} ms by rows"
    if memory:
        yield f"memory        {memory}"
    yield (
        f"draft         {1e3 * measured.draft_token_seconds:.1f} ms a token, "
        f"{1e3 * measured.draft_latency_seconds:.1f} ms away"
        + (", on the target's own cores" if measured.takes_turns else "")
    )
    modes = [Mode.SERIAL, *([Mode.OWN] if measured.takes_turns else [Mode.WAITING, Mode.NO_WAIT])]
    yield ""
    yield "accept  plain   " + "".join(f"{each.value:<17}" for each in modes)[:-1] + "best"
    advice = []
    for acceptance in acceptances:
        conditions = conditions_of(measured, acceptance, price)
        found = {each.mode: each for each in possible(conditions, n_max, measured.takes_turns)}
        alone = found[Mode.PLAIN].rate
        best = max(found.values(), key=lambda each: each.rate)
        cells = [_cell(found.get(mode), alone) for mode in modes]
        name = best.mode.value if best.rate > 1.01 * alone else "plain"
        yield f"{acceptance:<6.2f} {alone:6.1f}   " + "  ".join(cells) + f" {name}"
        advice.append((acceptance, best.rate / alone, name, conditions))
    yield ""
    yield "tokens/s, times the target alone, the draft length after a rejection"
    yield from _legend(modes)
    yield ""
    for acceptance, ratio, name, conditions in advice:
        away = break_even(conditions, n_max, Mode.SERIAL)
        reach = "at any distance" if away is None else f"up to {1e3 * away:.0f} ms away"
        if name == "plain":
            yield f"at {acceptance:.2f}: do not speculate; waiting for drafts pays {reach}"
        else:
            how = "in the target's process" if name == Mode.OWN.value else f"by {name}"
            yield f"at {acceptance:.2f}: {ratio:.2f}x {how}; waiting for drafts pays {reach}"


def _legend(modes: Sequence[Mode]) -> Iterator[str]:
    about = {
        Mode.PLAIN: "the target alone",
        Mode.SERIAL: "the draft drafts, then the target verifies",
        Mode.WAITING: "the draft continues while the target verifies, and is waited for",
        Mode.NO_WAIT: "the same, but the target never waits for it",
        Mode.OWN: "the draft runs in the target's process",
    }
    yield from (f"{each.value:<13} {about[each]}" for each in (Mode.PLAIN, *modes))


def plan_verdict(
    measured: ControllerView,
    acceptances: Sequence[float],
    n_max: int,
    price: RejectionCost = NO_REJECTION_COST,
) -> str:
    """Return in a sentence whether drafts are expected to pay, or from which acceptance on."""
    ratios = {each: best_over_alone(measured, each, n_max, price) for each in acceptances}
    if len(ratios) == 1:
        return forecast(*ratios.values())
    pays = [each for each, ratio in ratios.items() if ratio > 1 + UNSURE]
    if not pays:
        return "Drafts are not expected to save time here, however often they are right."
    least, most = min(pays), max(pays)
    at_most = f" to {times(ratios[most])} at {most:.2f}" if most > least else ""
    return (
        f"Drafts are expected to help where {100 * least:.0f} % of them or more are accepted: "
        f"{times(ratios[least])} the target alone there{at_most}."
    )


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
