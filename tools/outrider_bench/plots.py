"""Draws what drafts gain as PNG files: by draft length, users, round trip. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import InvalidConfig
from outrider.extensions import installing
from outrider_bench.report import Measured, blocks_away
from outrider_bench.variants import PEER, PLAIN
from outrider_cli.intervals import Estimate

_INCHES = (7.0, 4.2)
_DOTS = 150


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through estimates."""

    name: str
    points: Sequence[tuple[float, Estimate]]
    dashed: bool = False  # a prediction


@dataclass(frozen=True, slots=True)
class Plot:
    """Gains over something."""

    name: str  # of the file
    across: str
    lines: Sequence[Line]


def make_plots(blocks: Sequence[Measured]) -> list[Plot]:
    """Return a plot for what was measured in more than one place."""
    here = [each for each in blocks if each.block.round_trip_ms is None]
    plots = [
        Plot("draft-length", "draft length, tokens", _length_lines(here[0]) if here else []),
        Plot("users", "users at once", _lines_over(here)),
        Plot(
            "round-trip",
            "round trip to the draft, ms",
            _lines_over(blocks_away(blocks, "draft")),
        ),
        Plot(
            "target-round-trip",
            "round trip to the target, ms",
            _lines_over(blocks_away(blocks, "target")),
        ),
    ]
    return [plot for plot in plots if any(len(line.points) > 1 for line in plot.lines)]


def _length_lines(measured: Measured) -> list[Line]:
    ours = [s for s in measured.summaries if s.variant == f"n={s.length}"]
    peers = [s for s in measured.summaries if s.variant.startswith(f"{PEER} ")]
    lines = [
        Line("outrider", [(s.length, s.over_plain) for s in ours if s.length and s.over_plain]),
        Line(PEER, [(s.length, s.over_plain) for s in peers if s.length and s.over_plain]),
        Line(
            "the papers' formula",
            [(s.length, s.formula) for s in ours if s.length and s.formula],
            True,
        ),
    ]
    return [line for line in lines if line.points]


def _lines_over(blocks: Sequence[Measured]) -> list[Line]:
    """Return a line per variant of the last block, but for the one that all are measured by."""
    names = [s.variant for s in blocks[-1].summaries if s.variant != PLAIN] if blocks else []
    lines = []
    for name in names:
        points = [
            (_place(each), found.over_plain)
            for each in blocks
            if (found := each.of(name)) is not None and found.over_plain is not None
        ]
        lines.append(Line(name, points))
    return [line for line in lines if line.points]


def _place(measured: Measured) -> float:
    block = measured.block
    return block.user_count if block.round_trip_ms is None else block.round_trip_ms


def check_matplotlib() -> None:
    """Raise InvalidConfig if there is no matplotlib, before anything is measured."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidConfig("plots", f"needs matplotlib: {installing('bench')}") from None


def draw(plots: Sequence[Plot], title: str, folder: Path, prefix: str) -> list[Path]:
    """Write the plots as PNG files and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for plot in plots:
        path = folder / f"{prefix}{plot.name}.png"
        _draw(plot, title, path)
        paths.append(path)
    return paths


def _draw(plot: Plot, title: str, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, dpi=_DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.axhline(1.0, color="gray", linewidth=0.8)
    for line in plot.lines:
        _draw_line(axes, line)
    ticks = sorted({place for line in plot.lines for place, _ in line.points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel(plot.across)
    axes.set_ylabel("tokens/s over those without drafts")
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def _draw_line(axes: Any, line: Line) -> None:
    places = [place for place, _ in line.points]
    values = [estimate.value for _, estimate in line.points]
    if line.dashed:
        axes.plot(places, values, linestyle="--", label=line.name)
        return
    below = [max(0.0, estimate.value - estimate.low) for _, estimate in line.points]
    above = [max(0.0, estimate.high - estimate.value) for _, estimate in line.points]
    axes.errorbar(
        places, values, yerr=(below, above), marker="o", capsize=3, elinewidth=1, label=line.name
    )
