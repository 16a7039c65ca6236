"""What a benchmark says about its machine."""

from __future__ import annotations

import pytest

from outrider_bench.machine import CpuClock, Machine, describe_machine

QUIET = Machine(cpu="a CPU", core_count=2, system="Linux")


def test_a_quiet_machine_gives_no_warning():
    assert QUIET.warnings() == []
    assert Machine(cpu="", core_count=2, system="", load_before=0.1).warnings() == []


def test_a_busy_machine_is_told():
    busy = Machine(cpu="", core_count=2, system="", load_before=2.5, others_share=0.25)
    assert busy.warnings() == [
        "the load average was 2.50 before the run",
        "other processes took 25 % of the CPUs",
    ]


def test_the_description_names_what_figures_depend_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    found = describe_machine()
    assert found.environment["GOMP_SPINCOUNT"] == "10000" and "PATH" not in found.environment
    assert found.cpu and found.core_count >= 1
    assert found.versions.keys() == {"outrider", "python", "llama-cpp-python", "grpcio", "numpy"}


def test_a_clock_counts_from_its_first_start():
    readings = iter([1.0, 10.0, 1.5, 14.0])
    clock = CpuClock({"target": 1, "draft": 2}, lambda pid: next(readings))
    clock.start()
    clock.start()
    assert clock.stop() == {"target": 0.5, "draft": 4.0}


def test_a_process_that_ended_is_left_out():
    readings = iter([1.0, 10.0, 1.5, None])
    clock = CpuClock({"target": 1, "draft": 2}, lambda pid: next(readings))
    clock.start()
    assert clock.stop() == {"target": 0.5}


def test_a_clock_that_never_started_has_nothing():
    assert CpuClock({"target": 1}, lambda pid: 1.0).stop() == {}
