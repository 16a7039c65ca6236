"""What is read of the time that processes take."""

from __future__ import annotations

import os
from pathlib import Path

from outrider_cli.cpu_time import OthersClock, cpu_seconds


def test_cpu_time_is_read_whatever_the_name_of_the_process(tmp_path: Path):
    stat = tmp_path / "7" / "stat"
    stat.parent.mkdir()
    stat.write_text("7 (odd) name) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 1 0 5 6 7\n")
    assert cpu_seconds(7, tmp_path) == 300 / os.sysconf("SC_CLK_TCK")
    assert cpu_seconds(8, tmp_path) is None


def test_the_share_of_others_is_a_share():
    share = OthersClock().share()
    assert share is None or share >= 0.0
