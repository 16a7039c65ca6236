"""What `make hostile` calls well, and what not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hostile.run import MEGABYTE, Process, Rates, Stage, Users, report


class Popen:
    """A process that runs, or has ended."""

    def __init__(self, status: int | None = None) -> None:
        self._status = status

    def poll(self) -> int | None:
        return self._status


def process(folder: Path, log: str = "{}\n", status: int | None = None, grown: int = 10) -> Process:
    path = folder / "a.log"
    path.write_text(log)
    popen: Any = Popen(status)
    return Process(
        "target", popen, path, [100 * MEGABYTE, (100 + grown) * MEGABYTE, 105 * MEGABYTE]
    )


def is_well(folder: Path, users: Users, one: Process) -> bool:
    stage = Stage(folder, seed=1)
    stage.honest.append(one)
    rates = Rates([210.0, 190.0], [100.0, 120.0, 80.0, 100.0], [95.0, 108.0, 80.0, 97.0])
    return report(stage, "client", users, rates, "7 hostile calls", 150)


def test_a_good_run_says_the_rates_and_the_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert is_well(tmp_path, Users({}, text_count=12), process(tmp_path))
    assert capsys.readouterr().out.splitlines() == [
        "hostile client (seed 1): 12 honest texts; 7 hostile calls",
        "  wrong texts: 0; failed requests: 0",
        "  tokens/s: 95.0 beside it, 100.0 beside somebody honest, 200.0 alone",
        "  share: 0.95 (quartiles of 4 turns 0.91 and 0.99)",
        "  target: runs, 100 MB, at most 110, then 105; bugs logged: 0",
        "  well",
    ]


def test_a_wrong_text_a_failure_or_no_text_at_all_is_not_well(tmp_path: Path):
    for users in (
        Users({}, text_count=12, wrong=[3]),
        Users({}, text_count=12, failures=["UNAVAILABLE: it is gone"]),
        Users({}),
    ):
        assert not is_well(tmp_path, users, process(tmp_path))


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": -11},
        {"status": 0},
        {"grown": 151},
        {"log": '{"message": "internal error id=12"}\n'},
        {"log": "Traceback (most recent call last):\n"},
    ],
)
def test_a_process_that_ended_grew_or_logged_a_bug_is_not_well(tmp_path: Path, wrong: Any):
    assert not is_well(tmp_path, Users({}, text_count=12), process(tmp_path, **wrong))
