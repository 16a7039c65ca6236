"""What each place for draft, target and orchestrator yields: part of `outrider plan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from outrider.core.forecast import Conditions, Forecast, Mode, forecasts
from outrider_cli.forecasting import GAP, in_process

_WORTHWHILE = 1.01  # times the target alone: less is no reason for a draft

ALONE = "target alone"
DIALS_IN = "draft dials in"
FAR_TARGET = "target far away"
IN_PROCESS = "draft in the target's process"
BESIDE = "draft beside target"
_HEADS = {
    **{ALONE: ALONE, DIALS_IN: "dials in", FAR_TARGET: "far target"},
    **{IN_PROCESS: "in process", BESIDE: "beside target"},
}
_CELL = 14


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to place the services on two machines, and the best that it yields."""

    name: str
    forecast: Forecast

    @property
    def how(self) -> str:
        """The layout, and how target and draft take turns in it."""
        if self.forecast.mode in (Mode.PLAIN, Mode.OWN):
            return self.name
        return f"{self.name}, {self.forecast.mode.value}"


def compared(
    conditions: Conditions, away_seconds: float, beside_seconds: float | None, n_max: int
) -> list[Layout]:
    """Return what every layout yields, the target alone first.

    `conditions` are those of services side by side, `away_seconds` is a round trip between the two
    machines, and `beside_seconds` the draft's time for a token on the target's own; None where
    there is no room for it. There it is in the target's process, as `outrider up` has it, or a
    service.
    """
    near = replace(conditions, gap=GAP)
    alone, *_ = forecasts(near, 0, False)
    late_drafts = forecasts(replace(near, latency=near.latency + away_seconds), n_max, None)
    # A target that is far away and waits does so in every round; one that does not gets its drafts
    # as late as from a draft that is far away.
    late_rounds = forecasts(replace(near, overhead=near.overhead + away_seconds), n_max, None)
    waited_for = [each for each in late_rounds if each.mode in (Mode.SERIAL, Mode.WAITING)]
    not_waited_for = [each for each in late_drafts if each.mode in (Mode.PLAIN, Mode.NO_WAIT)]
    layouts = [
        Layout(ALONE, alone),
        Layout(DIALS_IN, _best(late_drafts)),
        Layout(FAR_TARGET, _best([*not_waited_for, *waited_for])),
    ]
    if beside_seconds is not None:
        # On the same cores: one after the other.
        there = forecasts(replace(near, token_time=beside_seconds), n_max, False)
        layouts.append(Layout(IN_PROCESS, in_process(near, beside_seconds, n_max)))
        layouts.append(Layout(BESIDE, _best(there)))
    return layouts


def _best(found: Sequence[Forecast]) -> Forecast:
    return max(found, key=lambda each: each.rate)


def layout_lines(rows: Sequence[tuple[float, Sequence[Layout]]]) -> Iterator[str]:
    """Yield a table of layouts by acceptance, and which one to choose."""
    head = "".join(f"{_HEADS[layout.name]:<{_CELL}}" for layout in rows[0][1])
    yield f"accept  {head}".rstrip()
    for acceptance, layouts in rows:
        alone = layouts[0].forecast.rate
        shares = "".join(f"{_cell(each, alone):<{_CELL}}" for each in layouts)
        yield f"{acceptance:<6.2f}  {shares}".rstrip()
    yield ""
    for acceptance, layouts in rows:
        best = max(layouts, key=lambda each: each.forecast.rate)
        chosen = best if best.forecast.rate > _WORTHWHILE * layouts[0].forecast.rate else layouts[0]
        yield f"at {acceptance:.2f}: choose {chosen.how}"


def _cell(layout: Layout, alone: float) -> str:
    rate = layout.forecast.rate
    return f"{rate:.1f}" if layout.name == ALONE else f"{rate:.1f} {rate / alone:.2f}x"
