"""`make dashboard-picture`: what is asked for, how it is drawn, and what counts as no data."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any, cast

import pytest

from deploy.draw_dashboard import (
    DASHBOARD,
    Line,
    Panel,
    draw,
    filled,
    kind_of,
    name_of,
    read,
    shown,
    with_gaps,
    without_data,
)
from deploy.fire_alerts import Prometheus

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
MOST_BYTES = 200_000


class Answering:
    """A Prometheus that knows two seconds of anything but what is named here."""

    def __init__(self, unknown: str = "-", value: str = "1.5") -> None:
        self.unknown, self.value = unknown, value
        self.asked: list[dict[str, str]] = []

    def ask(self, path: str, **query: str) -> Any:
        assert path == "query_range"
        self.asked.append(query)
        if self.unknown in query["query"]:
            return {"result": []}
        values = [[100.0 + second, self.value] for second in range(6)]
        return {"result": [{"metric": {"origin": "bonus", "address": "a:1"}, "values": values}]}


def panels() -> list[dict[str, Any]]:
    return list(json.loads(DASHBOARD.read_text())["panels"])


def asked_of(answering: Answering) -> Prometheus:
    return cast(Prometheus, answering)


def test_every_expression_is_sent_without_a_variable_of_grafana() -> None:
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(expressions) > 20
    assert any("$" in each for each in expressions)
    assert not any("$" in filled(each) for each in expressions)
    assert filled('rate(a{i=~"$instance"}[$__rate_interval])') == 'rate(a{i=~".*"}[10s])'


def test_a_legend_has_the_labels_of_its_series() -> None:
    assert name_of("{{model}} {{ address }} used", {"address": "a:1"}) == "a:1 used"


def test_a_panel_has_a_line_for_each_series_in_seconds_since_the_first() -> None:
    answering = Answering()
    panel = read(asked_of(answering), panels()[0], 100.0, 106.0)
    assert panel.title == "Tokens a second"
    assert panel.kind == "stacked"
    assert panel.lines == [Line("bonus", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [1.5] * 6)]
    assert answering.asked[0]["start"] == "100.0"


def test_an_expression_without_data_is_named() -> None:
    assert without_data(asked_of(Answering()), 100.0, 106.0) == []
    [named] = without_data(asked_of(Answering("ALERTS")), 100.0, 106.0)
    assert named.startswith("Alerts: ALERTS{")
    every = sum(len(panel["targets"]) for panel in panels())
    assert len(without_data(asked_of(Answering(value="NaN")), 100.0, 106.0)) == every


def test_every_panel_of_the_dashboard_can_be_drawn() -> None:
    assert {kind_of(panel) for panel in panels()} == {"lines", "stacked", "states"}
    with pytest.raises(ValueError, match="a gauge cannot be drawn"):
        kind_of({"title": "Speed", "type": "gauge"})


def test_values_are_shown_with_their_units() -> None:
    assert shown("percentunit", 0.5) == "50%"
    assert shown("s", 0.025) == "25 ms"
    assert shown("s", 2.0) == "2 s"
    assert shown("reqps", 1.5) == "1.5/s"
    assert shown("short", 1200.0) == "1,200"


def test_a_line_ends_where_it_has_no_points() -> None:
    times, values = with_gaps(Line("a", [0.0, 1.0, 5.0], [1.0, 2.0, 3.0]))
    assert times == [0.0, 1.0, 2.0, 5.0]
    assert math.isnan(values[2])


def test_a_small_picture_has_all_panels(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    line = Line("a", [0.0, 1.0], [1.0, 2.0])
    drawn = [
        Panel(kind, 12 * column, 0, 12, 7, "s", kind, [line])
        for column, kind in enumerate(("stacked", "states"))
    ]
    draw([*drawn, Panel("lines", 0, 7, 24, 7, "percentunit", "lines", [line])], tmp_path / "a.png")
    picture = (tmp_path / "a.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert struct.unpack(">II", picture[16:24]) == (1500, 14 * 31)
    assert len(picture) < MOST_BYTES


def test_the_pictures_in_the_documents_are_small() -> None:
    for name in ("dashboard.png", "prometheus.png"):
        assert (IMAGES / name).stat().st_size < MOST_BYTES
