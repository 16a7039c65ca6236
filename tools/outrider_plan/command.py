"""The command that says what to expect of two machines before anything is moved."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider_cli.options import ClientOptions, Prefix, spread

if TYPE_CHECKING:
    from outrider.client import ControllerView, ModelInfo

_MEASURED = "Measured figures"
WIDTH = 80
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)


TargetMs = Annotated[
    str | None,
    typer.Option(
        metavar="MS | ROWS:MS,...",
        help="A decode of the target, by its rows: 66, or 1:66,4:55,8:100. Of one figure eight "
        "rows are assumed to cost what one does, and sixteen twice that, as on a GPU.",
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
    round_trip_ms: Annotated[
        float | None, typer.Option(help="To the draft and back; else .5, as on one machine.")
    ] = None,
    overhead_ms: Annotated[
        float | None,
        typer.Option(help="Of a round, beside the decode: the way to the target; else 1.5."),
    ] = None,
    takes_turns: Annotated[
        bool | None,
        typer.Option(
            "--takes-turns/--own-cores",
            help="Both on the same cores: they never run at once. Else each has its own.",
        ),
    ] = None,
    head: Annotated[bool, typer.Option("--head", help="A head, which never runs ahead.")] = False,
    away_ms: AwayMs = None,
    beside_ms: BesideMs = None,
    n_max: Annotated[int, typer.Option(help="Draft tokens of a round at most.")] = 16,
    connection: Annotated[ClientOptions, Prefix(panel="Connection")] = ClientOptions(),
) -> None:
    """Say whether a draft pays for a target, and from which round trip on it does not.

    The formulas are the ones that decide while a generation runs.
    """
    from outrider.errors import InvalidRequest
    from outrider_cli.terminal import wrapped
    from outrider_plan.tables import answer, memory_of, place_lines, plan_lines, price_of

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
    measured = _with_given(measured, target_ms, milliseconds, takes_turns, head)
    rows = ACCEPTANCES if acceptance is None else (acceptance,)
    price = price_of(target)
    print(*wrapped(answer(measured, rows, n_max, price), WIDTH), "", sep="\n")
    lines = [*plan_lines(measured, rows, n_max, price, memory_of(target))]
    if away_ms is not None:
        lines += ["", *place_lines(measured, rows, away_ms, beside_ms, n_max, price)]
    for line in lines:
        print(*wrapped(line, WIDTH, " " * 14), sep="\n")


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
        if value is not None and not 0.0 <= value < math.inf:
            raise InvalidRequest(name, f"must be finite and at least 0, not {value:g}")
    if beside_ms is not None and away_ms is None:
        raise InvalidRequest("beside_ms", "is for --away-ms")


def _with_given(
    measured: ControllerView | None,
    target_ms: str | None,
    milliseconds: Mapping[str, float | None],
    takes_turns: bool | None,
    head: bool,
) -> ControllerView:
    """Return what was measured, or a usual machine, with what is given in place of it."""
    from outrider.errors import InvalidRequest
    from outrider_cli.forecasting import on_one_machine

    given: dict[str, Any] = {name: ms / 1e3 for name, ms in milliseconds.items() if ms is not None}
    for name, value in given.items():
        if not 0.0 <= value < math.inf:
            raise InvalidRequest(name, f"must be finite and at least 0, not {value:g}")
    if target_ms is not None:
        given["decode_costs"] = tuple(read_costs(target_ms))
    if takes_turns is not None:
        given["takes_turns"] = takes_turns
    if head:
        given["head"] = True
    return replace(measured or on_one_machine(), **given)


async def _ask(address: str, connection: ClientOptions) -> tuple[ControllerView, ModelInfo | None]:
    """Return what an orchestrator has measured, and its target."""
    from outrider.client import OutriderClient
    from outrider.errors import InvalidRequest

    async with OutriderClient(address, connection.security()) as client:
        status = await client.status()
    if not status.controller.decode_costs or not status.controller.draft_token_seconds:
        raise InvalidRequest("orchestrator", f"{address} has no pair yet: {status.reason}")
    target = status.peer("target")
    return status.controller, target.model if target is not None else None


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
        if count <= before or not 0.0 < cost < math.inf:
            raise InvalidRequest("target_ms", "needs rising rows and finite times above 0")
        before = count
        yield count, cost / 1e3
    if before == 1:
        # One figure says what one row costs. Up to eight more are often free.
        yield 8, cost / 1e3
        yield 16, 2.0 * cost / 1e3
