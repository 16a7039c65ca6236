"""What tools/benchmarks/parts.py makes of when tokens came."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.parts import ARMS, Arrivals, read_texts, report


def test_a_parts_rate_is_of_the_tokens_after_its_first_one() -> None:
    arrivals = Arrivals([(1, 0.0), (11, 1.0), (12, 1.5), (32, 2.0)])
    assert arrivals.rate(0, 11) == 10.0
    assert arrivals.rate(11, 32) == 21.0
    assert arrivals.rate(5, 32) == 21.0  # tokens of one message came at once


def test_equal_neighbours_are_one_part(tmp_path: Path) -> None:
    parts = [["new", 3], ["copied", 4], ["copied", 5], ["new", 1]]
    task = {"kind": "mixed", "prompt": [7], "text": [0] * 13, "parts": parts}
    (tmp_path / "tasks.json").write_text(json.dumps([task]))
    [text] = read_texts(tmp_path, "mixed")
    assert text.parts == [("new", 3), ("copied", 9), ("new", 1)]
    assert text.count == 13
    with pytest.raises(SystemExit, match="no tasks"):
        read_texts(tmp_path, "prose")


def test_the_last_line_is_all_sources_over_the_best_single_one() -> None:
    rates = {name: [[10.0, 20.0], [30.0, 20.0], [12.0, 20.0]] for name in ARMS}
    rates["all"] = [[6.0, 40.0]]
    *_, last = report(rates, ["new"])
    assert last == "| all, over the best | 0.50 | 2.00 |"
