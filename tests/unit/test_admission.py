"""Turns of jobs, the share they leave, and the wait that a refusal carries."""

from __future__ import annotations

import pytest

from orchestrator.admission import Pace, Writers, job_share, next_turn


@pytest.mark.parametrize(("sessions", "share"), [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (64, 48)])
def test_a_quarter_of_the_sessions_is_left_to_others(sessions: int, share: int) -> None:
    assert job_share(sessions) == share


def test_the_caller_of_whom_the_least_runs_is_next() -> None:
    assert next_turn(["a", "a", "b"], {"a": 3, "b": 1}) == 2
    assert next_turn(["a", "b", "c"], {"a": 1}) == 1
    assert next_turn(["a", "b"], {}) == 0


@pytest.mark.fault(
    "others",
    "the wait that a full orchestrator names",
    before="Retry-After was 1 second, with any load",
    now="it is computed from how long generations took and how many run",
)
def test_the_wait_follows_how_long_generations_take() -> None:
    pace = Pace()
    assert pace.wait_seconds(4) == 1.0, "nothing is known"
    pace.note(40.0)
    assert pace.wait_seconds(4) == 10.0
    for _ in range(50):
        pace.note(8.0)
    assert pace.wait_seconds(1) == pytest.approx(8.0, rel=0.01)
    assert pace.wait_seconds(64) == 1.0
    pace.note(1e9)
    assert pace.wait_seconds(1) == 600.0


def test_only_texts_that_are_being_written_count() -> None:
    writers = Writers()
    for text in "abcd":
        writers.note(text, 0.0)
    assert writers.count(60.0) == 4, "their prompts are read"
    for now in (61.0, 62.0, 63.0):
        writers.note("a", now)
    for text in "bcd":
        writers.note(text, 60.5)
    assert writers.count(61.0) == 4
    writers.note("c", 61.0)
    writers.note("d", 61.0)
    assert writers.count(500.0) == 0, "they wait for their clients"
    writers.note("a", 500.0)
    writers.note("b", 500.0)
    assert writers.count(500.1) == 2
    writers.remove("a")
    assert writers.count(500.2) == 1


def test_a_text_that_is_written_slowly_counts_between_its_rows() -> None:
    writers = Writers()
    for now in (0.0, 5.0, 10.0):
        writers.note("slow", now)
    assert writers.count(14.0) == 1
    assert writers.count(40.0) == 0
