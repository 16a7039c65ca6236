"""The command that says what to expect of two machines before anything is moved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.costs import NO_REJECTION_COST, RejectionCost
from outrider_cli.memories import show_memory
from outrider_cli.options import ClientOptions, Prefix, spread

if TYPE_CHECKING:
    from orchestrator.core.forecast import Conditions, Forecast, Mode
    from outrider.client import ControllerView, Model

_MEASURED = "Measured figures"
WIDTH = 80
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)


TargetMs = Annotated[
    str | None,
    typer.Option(
        metavar="MS | ROWS:MS,...",
        help="A decode of the target, by its rows: 66, or 1:66,4:55,8:100.",
    ),
]
AcceptanceOption = Annotated[
    float | None,
    typer.Option(
        help="Of a draft token when those before it were accepted, which is more than accepted "
        "over drafted; without it, a row for each of several."
    ),
]
AwayMs = Annotated[
    float | None,
    typer.Option(help="A round trip between two machines: say which service goes where."),
]
BesideMs = Annotated[
    float | None,
    typer.Option(
        help="The draft's time for one token on the target's own machine, in its process or not."
    ),
]


@spread
def plan(
    orchestrator: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Take what this one has measured for everything not given here.",
            rich_help_panel=_MEASURED,
        ),
    ] = None,
    target_ms: TargetMs = None,
    draft_ms: Annotated[float | None, typer.Option(help="The draft's time for one token.")] = None,
    acceptance: AcceptanceOption = None,
    round_trip_ms: Annotated[float | None, typer.Option(help="To the draft and back.")] = None,
    overhead_ms: Annotated[
        float | None, typer.Option(help="Of a round, beside the decode: the way to the target.")
    ] = None,
    takes_turns: Annotated[
        bool | None,
        typer.Option(
            "--takes-turns/--own-cores", help="Both on the same cores: they never run at once."
        ),
    ] = None,
    away_ms: AwayMs = None,
    beside_ms: BesideMs = None,
    n_max: Annotated[int, typer.Option(help="Draft tokens of a round at most.")] = 16,
    connection: Annotated[ClientOptions, Prefix(panel="Connection")] = ClientOptions(),
) -> None:
    """Forecast what speculating yields with given models, machines and links.

    The formulas are the ones that decide while a generation runs.
    """
    from outrider.errors import InvalidRequest
    from outrider_cli.render import wrapped

    if not orchestrator and (target_ms is None or draft_ms is None):
        needs = "needs --orchestrator, which has measured all, or --target-ms and --draft-ms"
        raise InvalidRequest("plan", needs)
    _check_draft(acceptance, n_max)
    _check_places(away_ms, beside_ms)
    measured, target = asyncio.run(_ask(orchestrator, connection)) if orchestrator else (None, None)
    milliseconds = {
        **{"draft_token_seconds": draft_ms, "draft_latency_seconds": round_trip_ms},
        "round_overhead_seconds": overhead_ms,
    }
    measured = _with_given(measured, target_ms, milliseconds, takes_turns)
    rows = ACCEPTANCES if acceptance is None else (acceptance,)
    price = price_of(target)
    lines = [*plan_lines(measured, rows, n_max, price, memory_of(target))]
    if away_ms is not None:
        lines += ["", *place_lines(measured, rows, away_ms, beside_ms, n_max, price)]
    lines += ["", plan_verdict(measured, rows, n_max, price)]
    for line in lines:
        indent = "" if line == lines[-1] else " " * 14
        print(*wrapped(line, WIDTH, indent), sep="\n")


def _check_draft(acceptance: float | None, n_max: int) -> None:
    """Raise InvalidRequest for what no draft has."""
    from outrider.errors import InvalidRequest

    if acceptance is not None and not 0.0 <= acceptance <= 1.0:
        raise InvalidRequest("acceptance", f"must be in [0, 1], not {acceptance:g}")
    if not 1 <= n_max <= 64:
        raise InvalidRequest("n_max", f"must be in [1, 64], not {n_max}")


def _check_places(away_ms: float | None, beside_ms: float | None) -> None:
    """Raise InvalidRequest for what cannot be."""
    from outrider.errors import InvalidRequest

    for name, value in (("away_ms", away_ms), ("beside_ms", beside_ms)):
        if value is not None and not value >= 0.0:
            raise InvalidRequest(name, f"must be at least 0, not {value:g}")
    if beside_ms is not None and away_ms is None:
        raise InvalidRequest("beside_ms", "is for --away-ms")


def _with_given(
    measured: ControllerView | None,
    target_ms: str | None,
    milliseconds: Mapping[str, float | None],
    takes_turns: bool | None,
) -> ControllerView:
    """Return what was measured, or a usual machine, with what is given in place of it."""
    from outrider.errors import InvalidRequest

    given: dict[str, Any] = {name: ms / 1e3 for name, ms in milliseconds.items() if ms is not None}
    for name, value in given.items():
        if not value >= 0.0:
            raise InvalidRequest(name, f"must be at least 0, not {value:g}")
    if target_ms is not None:
        given["decode_costs"] = tuple(read_costs(target_ms))
    if takes_turns is not None:
        given["takes_turns"] = takes_turns
    return replace(measured or on_one_machine(), **given)


def on_one_machine() -> ControllerView:
    """Return what is usual of a pair on one machine, where nothing was measured."""
    from outrider.client import ControllerView

    return ControllerView(round_overhead_seconds=0.0015, draft_latency_seconds=0.0005)


async def _ask(address: str, connection: ClientOptions) -> tuple[ControllerView, Model | None]:
    """Return what an orchestrator has measured, and its target."""
    from outrider.client import OutriderClient
    from outrider.errors import InvalidRequest

    async with OutriderClient(address, connection.security()) as client:
        status = await client.status()
    if not status.controller.decode_costs or not status.controller.draft_token_seconds:
        raise InvalidRequest("orchestrator", f"{address} has no pair yet: {status.reason}")
    target = status.peer("target")
    return status.controller, target.model if target is not None else None


def price_of(target: Model | None) -> RejectionCost:
    """Return what rejected drafts cost at a target beside decodes; nothing where none is known."""
    if target is None:
        return NO_REJECTION_COST
    seconds = target.checkpoint_milliseconds / 1e3, target.restore_milliseconds / 1e3
    return RejectionCost(*seconds, target.snapshot_token_count)


def memory_of(target: Model | None) -> str:
    """Return how a target's sessions are cut, and what that limits; empty where it is not known."""
    if target is None:
        return ""
    return show_memory(
        target.rollback_capability, target.snapshot_token_count, target.checkpoint_milliseconds
    )


def read_costs(text: str) -> Iterator[tuple[int, float]]:
    """Yield (rows, seconds) of `66` or `1:66,4:55`. Raises InvalidRequest."""
    from outrider.errors import InvalidRequest

    before = 0
    for part in text.split(","):
        rows, colon, milliseconds = part.partition(":")
        try:
            count, cost = (int(rows), float(milliseconds)) if colon else (1, float(rows))
        except ValueError:
            raise InvalidRequest("target_ms", f"is not MS or ROWS:MS,...: {text}") from None
        if count <= before or not cost > 0.0:
            raise InvalidRequest("target_ms", "needs rising rows and times above 0")
        before = count
        yield count, cost / 1e3
    if before == 1:
        # One figure says what one row costs. Up to eight more are often free.
        yield 8, cost / 1e3
        yield 16, 2.0 * cost / 1e3


def conditions_of(
    measured: ControllerView, acceptance: float, price: RejectionCost = NO_REJECTION_COST
) -> Conditions:
    """Return what a forecast rests on."""
    from orchestrator.core.forecast import Conditions, frame_size
    from outrider.costs import CostTable

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


def _cell(forecast: Forecast | None, alone: float) -> str:
    if forecast is None:
        return f"{'-':^15}"
    rate = f"{forecast.rate:.1f}" if forecast.rate < 1000.0 else f"{forecast.rate:.0f}"
    return f"{rate:>5} {forecast.rate / alone:5.2f}x {forecast.length:<2}"


def plan_lines(
    measured: ControllerView,
    acceptances: Sequence[float],
    n_max: int,
    price: RejectionCost = NO_REJECTION_COST,
    memory: str = "",
) -> Iterator[str]:
    """Yield the table of modes, the break-even round trips and the advice."""
    from orchestrator.core.forecast import Mode, break_even

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
        found = {each.mode: each for each in _possible(conditions, n_max, measured.takes_turns)}
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
    from orchestrator.core.forecast import Mode

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
    from outrider_cli.verdict import UNSURE, forecast, times

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


def best_over_alone(
    measured: ControllerView,
    acceptance: float,
    n_max: int = 16,
    price: RejectionCost = NO_REJECTION_COST,
) -> float:
    """Return what the best way to draft yields over the target alone."""
    conditions = conditions_of(measured, acceptance, price)
    alone, *others = _possible(conditions, n_max, measured.takes_turns)
    return max([alone.rate, *(each.rate for each in others)]) / alone.rate


def _possible(conditions: Conditions, n_max: int, takes_turns: bool) -> list[Forecast]:
    """Return what each mode yields, plain first.

    A draft on the target's own cores cannot run ahead, but may be in the target's process.
    """
    from orchestrator.core.forecast import forecasts
    from outrider_cli.layouts import GAP, in_process

    if not takes_turns:
        return forecasts(conditions, n_max, None)
    near = replace(conditions, gap=GAP)  # as a target there continues by itself
    return [*forecasts(near, n_max, False), in_process(near, near.token_time, n_max)]


def place_lines(
    measured: ControllerView,
    acceptances: Sequence[float],
    away_ms: float,
    beside_ms: float | None,
    n_max: int,
    price: RejectionCost = NO_REJECTION_COST,
) -> Iterator[str]:
    """Yield what each layout of two machines with such a round trip brings, and which is best."""
    from outrider_cli.layouts import compared, layout_lines

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
