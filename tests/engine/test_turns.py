"""Engines that do not fit the cores at once decode one after the other, whatever becomes of one."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.engine import core_lock
from outrider.engine.core_lock import CoreLock, NoCoreLock, SharedCores, shared_core_lock

CORES = 4

NEIGHBOUR = """
import os, sys
from pathlib import Path
from outrider.engine.core_lock import SharedCores
file = os.open(Path(sys.argv[1], "cores"), os.O_RDWR | os.O_CREAT)
turns = SharedCores(file, int(sys.argv[2]), int(sys.argv[3]))
for line in sys.stdin:
    print(turns.take(0.0) if line.strip() == "take" else turns.give(), flush=True)
"""


class Neighbour:
    """An engine in another process: locks of one process never exclude each other."""

    def __init__(self, folder: Path, thread_count: int) -> None:
        command = [sys.executable, "-c", NEIGHBOUR, str(folder), str(CORES), str(thread_count)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, word: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Callable[[int], Neighbour]]:
    started: list[Neighbour] = []

    def start(thread_count: int) -> Neighbour:
        started.append(Neighbour(tmp_path, thread_count))
        assert started[-1].ask("take") == "0.0"
        return started[-1]

    yield start
    for each in started:
        each.end()


def engine(folder: Path, thread_count: int) -> SharedCores:
    file = os.open(folder / "cores", os.O_RDWR | os.O_CREAT)
    return SharedCores(file, CORES, thread_count)


@pytest.mark.parametrize(("own", "other", "waits"), [(2, 2, False), (3, 1, False), (2, 3, True)])
def test_who_does_not_fit_beside_another_waits_for_it(
    tmp_path: Path, neighbour: Callable[[int], Neighbour], own: int, other: int, waits: bool
) -> None:
    beside = neighbour(other)
    turns = engine(tmp_path, own)
    assert (turns.take(0.0) > 0.0) is waits
    beside.ask("give")
    assert turns.take(0.001) == 0.0


def test_more_threads_than_cores_take_all_of_them(
    tmp_path: Path, neighbour: Callable[[int], Neighbour]
) -> None:
    neighbour(1)
    assert engine(tmp_path, 2 * CORES).take(0.0) > 0.0


def test_a_killed_process_gives_its_turn_back(
    tmp_path: Path, neighbour: Callable[[int], Neighbour]
) -> None:
    beside = neighbour(CORES)
    turns = engine(tmp_path, CORES)
    assert turns.take(0.0) > 0.0
    beside.end()
    assert turns.take(0.001) == 0.0


def test_a_stopped_process_is_waited_for_once(
    tmp_path: Path, neighbour: Callable[[int], Neighbour]
) -> None:
    beside = neighbour(CORES)
    turns = engine(tmp_path, CORES)
    waited = 0.0
    while turns.take(waited) > 0.0:
        waited += 0.001
    assert 0.01 < waited < 2.5
    turns.give()
    assert turns.take(waited + 1.0) == 0.0
    beside.ask("give")
    assert turns.take(waited + 2.0) == 0.0
    turns.give()
    assert beside.ask("take") == "0.0"
    assert turns.take(waited + 3.0) > 0.0


def test_a_loading_engine_waits_to_be_alone(
    tmp_path: Path, neighbour: Callable[[int], Neighbour]
) -> None:
    beside = neighbour(CORES)
    turns = engine(tmp_path, CORES)
    turns.wait(0.05)  # in vain
    giving = threading.Timer(0.05, beside.ask, ["give"])
    giving.start()
    turns.wait(30.0)
    giving.join()  # two that ask at once may read each other's answers
    assert beside.ask("take") != "0.0"
    turns.give()
    assert beside.ask("take") == "0.0"


def test_a_long_wait_is_logged_once_with_what_for(
    tmp_path: Path,
    neighbour: Callable[[int], Neighbour],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    neighbour(CORES)
    turns = engine(tmp_path, 3)
    turns.wait(0.02)
    assert caplog.messages == []
    monkeypatch.setattr(core_lock, "_NOTED_SECONDS", 0.01)
    turns.wait(0.03)
    turns.wait(0.03)
    assert caplog.messages == ["waiting for cores"]
    fields: Any = caplog.records[0]
    assert fields.fields["detail"].startswith("3 of 4 cores, on which other models of yours decode")


def test_who_only_tries_for_the_turn_waits_for_nobody(
    tmp_path: Path, neighbour: Callable[[int], Neighbour]
) -> None:
    beside = neighbour(CORES)
    turns = engine(tmp_path, CORES)
    assert not turns.try_take() and not turns.try_take()
    assert turns.take(1000.0) > 0.0, "the wait begins only now"
    beside.ask("give")
    assert turns.try_take()
    assert beside.ask("take") != "0.0"


def test_engines_of_one_user_share_one_file(tmp_path: Path) -> None:
    first, second = shared_core_lock(1, tmp_path), shared_core_lock(2, tmp_path)
    assert first.cores_digest == second.cores_digest != b""
    assert first.core_count == len(os.sched_getaffinity(0))
    assert shared_core_lock(1, tmp_path / "elsewhere").cores_digest != first.cores_digest


def test_nobody_is_waited_for_where_no_file_can_be_shared(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    turns: CoreLock = shared_core_lock(1, tmp_path / "taken")
    assert isinstance(turns, NoCoreLock) and turns.cores_digest == b""
    assert turns.take(0.0) == 0.0
    turns.give()
