"""Draws deploy/grafana/outrider.json with the data of a real run.

    make dashboard-picture           two and a half minutes; writes docs/images/dashboard.png

A real Prometheus scrapes a real `outrider up` over the bundled pair while users come and go and
drafts join and are killed. Then every panel's own expressions are put to that Prometheus, and what
it answers is drawn where the dashboard has the panel. It fails where an expression has no data, so
that the picture shows that each of them works. Grafana itself takes no part.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from deploy.fire_alerts import DRAFT, ROOT, Machine, Prometheus, end, running, until
from tests.support.browser import chromium

DASHBOARD = ROOT / "deploy" / "grafana" / "outrider.json"
PICTURE = ROOT / "docs" / "images" / "dashboard.png"
COLUMNS = 24  # of Grafana's grid
RATE_INTERVAL = "10s"  # a scrape is 1 s old at most here, and not 15
STEP = 1  # seconds between the points of a line
FEWEST_POINTS = 5  # of an expression, in the whole picture

_LABEL = re.compile(r"\{\{ *(\w+) *\}\}")
_PIXELS = 1500, 31  # the width, and the height of a row of the grid
_DPI = 100
_COLOURS = 96


@dataclass(frozen=True)
class Line:
    """One series of a panel: a name for the legend; seconds since the first, and values."""

    name: str
    times: list[float]
    values: list[float]


@dataclass(frozen=True)
class Panel:
    """What is drawn in one place of the grid."""

    title: str
    x: int
    y: int
    width: int
    height: int
    unit: str
    kind: str  # lines, stacked or states
    lines: list[Line]


# --- asking ---


def filled(expression: str) -> str:
    """Return an expression as Grafana sends it, for every instance."""
    return expression.replace("$__rate_interval", RATE_INTERVAL).replace("$instance", ".*")


def name_of(legend: str, labels: dict[str, str]) -> str:
    """Return a legend with the labels of a series filled in."""
    return _LABEL.sub(lambda found: labels.get(found[1], ""), legend).strip()


def read(prometheus: Prometheus, panel: dict[str, Any], begin: float, stop: float) -> Panel:
    """Ask for what a panel shows."""
    lines = []
    for target in panel["targets"]:
        query = {"query": filled(target["expr"]), "start": str(begin), "end": str(stop)}
        for series in prometheus.ask("query_range", step=str(STEP), **query)["result"]:
            points = [(float(at) - begin, float(value)) for at, value in series["values"]]
            kept = [(at, value) for at, value in points if math.isfinite(value)]
            name = name_of(target["legendFormat"], series["metric"])
            lines.append(Line(name, *([point[i] for point in kept] for i in (0, 1))))
    place, defaults = panel["gridPos"], panel["fieldConfig"]["defaults"]
    where = (place["x"], place["y"], place["w"], place["h"])
    return Panel(panel["title"], *where, defaults["unit"], kind_of(panel), lines)


def kind_of(panel: dict[str, Any]) -> str:
    """Return how the lines of a panel are drawn. Raises ValueError for a type not known here."""
    if panel["type"] == "state-timeline":
        return "states"
    if panel["type"] != "timeseries":
        raise ValueError(f"{panel['title']}: a {panel['type']} cannot be drawn")
    stacking = panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {})
    return "stacked" if stacking.get("mode") == "normal" else "lines"


def without_data(prometheus: Prometheus, begin: float, stop: float) -> list[str]:
    """Return the expressions of the dashboard that have next to no data."""
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            alone = read(prometheus, panel | {"targets": [target]}, begin, stop)
            if sum(len(line.values) for line in alone.lines) < FEWEST_POINTS:
                found.append(f"{panel['title']}: {target['expr']}")
    return found


def photograph(prometheus: Prometheus, path: Path) -> None:
    """Take a picture of Prometheus' own page, with the first panel's expression and the alerts."""
    [first, *_, last] = json.loads(DASHBOARD.read_text())["panels"]
    asked = [("expr", filled(first["targets"][0]["expr"])), ("stacked", "1"), ("tab", "0")]
    query = [(f"g0.{key}", value) for key, value in asked]
    query += [("g1.expr", filled(last["targets"][0]["expr"])), ("g1.tab", "0")]
    query += [(f"g{number}.range_input", "3m") for number in range(2)]
    with chromium() as browser:
        browser.resize(1200, 900)
        browser.open(f"{prometheus.url}/graph?{urlencode(query)}")
        until(lambda: browser.count(".legend .label") > 2, "Prometheus draws nothing", 30.0)
        time.sleep(1.0)  # its lines are drawn over a while
        path.write_bytes(browser.screenshot())
    reduce(path)


# --- what happens meanwhile ---


def live(machine: Machine) -> None:
    """Let users come and go, drafts join, one be killed and come back."""
    users = machine.users
    users.work(1, n_predict=64)
    time.sleep(25)
    users.work(2, n_predict=64, temperature=0.8)
    time.sleep(20)
    joined = machine.joining(DRAFT)
    time.sleep(25)
    users.work(8, n_predict=64)
    time.sleep(30)
    end(machine.draft)
    users.work(2, n_predict=64)
    time.sleep(25)
    machine.restart_draft()
    end(joined)
    time.sleep(25)


# --- drawing ---


def shown(unit: str, value: float) -> str:
    """Return a value with its unit, in few characters."""
    if unit == "percentunit":
        return f"{100 * value:.0f}%"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:,.4g}{' s' if unit == 's' else '/s' if unit == 'reqps' else ''}"


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Write the panels as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = max(panel.y + panel.height for panel in panels)
    stop = max((at for panel in panels for line in panel.lines for at in line.times), default=1)
    size = _PIXELS[0] / _DPI, _PIXELS[1] * rows / _DPI
    figure = Figure(figsize=size, dpi=_DPI)
    FigureCanvasAgg(figure)
    for panel in panels:
        # Beside and below the axes are their numbers, and below those the legend.
        corner = (panel.x + 0.85) / COLUMNS, 1 - (panel.y + panel.height - 1.7) / rows
        extent = (panel.width - 1.2) / COLUMNS, (panel.height - 2.6) / rows
        axes = figure.add_axes((*corner, *extent))
        axes.set_xlim(0, stop)
        _draw_panel(axes, panel)
    figure.savefig(path)
    reduce(path)


def _draw_panel(axes: Any, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=9, fontweight="bold", pad=4)
    axes.tick_params(labelsize=7, length=2)
    axes.grid(color="#dddddd", linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    if panel.kind == "states":
        _draw_states(axes, panel)
        return
    if panel.kind == "stacked":
        _stack(axes, panel)
    else:
        for line in panel.lines:
            axes.plot(*with_gaps(line), label=line.name, linewidth=1.1)
    axes.set_ylim(0, 1.02 if panel.unit == "percentunit" else None)
    axes.yaxis.set_major_formatter(lambda value, _: shown(panel.unit, value))
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.05, -0.09),
        ncols=4 if sum(len(line.name) for line in panel.lines) < 60 else 2,
        fontsize=6.5,
        frameon=False,
        handlelength=1.2,
        columnspacing=1.0,
        labelspacing=0.2,
    )


def _draw_states(axes: Any, panel: Panel) -> None:
    names = sorted({line.name for line in panel.lines}, reverse=True)
    for line in panel.lines:
        row = names.index(line.name)
        axes.broken_barh([(at, STEP) for at in line.times], (row - 0.3, 0.6), color="#c4162a")
        axes.text(0, row + 0.34, f" {line.name}", fontsize=6.5)  # a name may be long
    axes.set_yticks([])
    axes.set_ylim(-0.6, len(names) - 0.1)


def with_gaps(line: Line) -> tuple[list[float], list[float]]:
    """Return times and values for a line that ends where it has no points."""
    times, values = list[float](), list[float]()
    for at, value in zip(line.times, line.values, strict=True):
        if times and at - times[-1] > 1.5 * STEP:
            times.append(times[-1] + STEP)
            values.append(math.nan)
        times.append(at)
        values.append(value)
    return times, values


def _stack(axes: Any, panel: Panel) -> None:
    ends = [line.times[-1] for line in panel.lines if line.times]
    times = range(0, round(max(ends, default=0)) + 1, STEP)
    layers = []
    for line in panel.lines:
        values = {round(at): value for at, value in zip(line.times, line.values, strict=True)}
        layers.append([values.get(at, 0.0) for at in times])
    axes.stackplot(times, *layers, labels=[line.name for line in panel.lines], alpha=0.6)


def reduce(path: Path) -> None:
    """Give a picture a palette: a quarter of the bytes."""
    from PIL import Image

    with Image.open(path) as picture:
        reduced = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=PICTURE, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="Prometheus' own page")
    options = parser.parse_args()
    if shutil.which("prometheus") is None:
        sys.exit("dashboard: needs Prometheus on the path")
    with running() as machine:
        begin = time.time()
        live(machine)
        span = begin, time.time()
        empty = without_data(machine.prometheus, *span)
        every = json.loads(DASHBOARD.read_text())["panels"]
        panels = [read(machine.prometheus, each, *span) for each in every]
        if options.page:
            photograph(machine.prometheus, options.page)
    draw(panels, options.out)
    print(f"{options.out}: {len(panels)} panels, {options.out.stat().st_size:,} bytes")
    for expression in empty:
        print(f"no data: {expression}")
    sys.exit(bool(empty))


if __name__ == "__main__":
    main()
