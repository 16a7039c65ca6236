"""What is due is measured after some quiet, and later after each try that failed."""

from __future__ import annotations

from itertools import pairwise

from outrider.engine.quiet import QuietTries


def test_a_fresh_engine_is_measured_soon_and_one_that_worked_after_minutes() -> None:
    tries = QuietTries(first=1.0, later=120.0)
    assert tries.due(10.0) == 11.0
    tries.note_work()
    assert tries.due(10.0) == 130.0


def test_each_try_that_fails_doubles_the_quiet_that_it_takes_up_to_an_hour() -> None:
    tries, now = QuietTries(first=1.0, later=120.0), 0.0
    begun = []
    for _ in range(8):  # others use the cores all the time
        now = tries.due(now)
        begun.append(now)
        tries.note_failure()
    gaps = [after - before for before, after in pairwise(begun)]
    assert gaps == [120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]
    tries.note_work()
    assert tries.due(0.0) == 3600.0, "a text is no reason to try sooner"
