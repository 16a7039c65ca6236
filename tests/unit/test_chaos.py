"""The fault matrix and the soak run: which cells there are, and what is a fault of ours."""

from __future__ import annotations

import random

from outrider.messages import Rule
from outrider.wire_requests import read_request
from tests.chaos.faults import FAULTS
from tests.chaos.run import MOMENTS, Cell, Row, _judge, cells, read_rows, table
from tests.chaos.soak import Count, Sample, problems, sampled_request
from tests.chaos.work import Left
from tests.chaos.world import SERVICES
from tests.support.faults_page import PAGE, read_matrix


def test_every_fault_comes_at_every_service_and_moment_and_first_once_at_each() -> None:
    every = cells(seed=1)
    assert len(set(every)) == len(every)
    for fault in FAULTS.values():
        for service in fault.services:
            pair = fault.name, service
            its = [cell.moment for cell in every if (cell.fault, cell.service) == pair]
            assert sorted(its) == sorted(MOMENTS)
    pairs = sum(len(fault.services) for fault in FAULTS.values())
    assert len({(cell.fault, cell.service) for cell in every[:pairs]}) == pairs
    assert {cell.service for cell in every} == set(SERVICES)


def test_a_seed_gives_the_same_cells_again() -> None:
    assert cells(seed=3) == cells(seed=3)
    assert cells(seed=3) != cells(seed=4)
    only = cells(seed=3, only=("kill", "target"))
    assert only == [cell for cell in cells(seed=3) if cell in only]
    assert {cell.fault for cell in only} == {"kill"}


def test_a_text_that_is_another_or_an_error_that_says_nothing_is_a_fault() -> None:
    assert not _judge(Left("right"), "right")
    assert not _judge(Left(error="UNAVAILABLE: gone"), "right")
    assert "character 3" in _judge(Left("rigid"), "right")
    assert _judge(Left("righ"), "right")
    assert _judge(Left(error="INTERNAL: ?", is_clear=False), "right")
    assert _judge(Left(error="UNAVAILABLE: gone"), "right", "afterwards: ")


def test_the_table_counts_what_it_lists() -> None:
    rows = [
        Row(Cell("stop", "draft", "verify"), "text unchanged", 1.25, True),
        Row(Cell("kill", "target", "drain"), "error: UNAVAILABLE: a | b\nc", 2.0, True),
        Row(Cell("kill", "draft", "drain"), "another text", 3.0, False),
    ]
    said = table(rows, 7, 10)
    assert "3 of 10 cells: 1 texts unchanged, 1 clients got an error, 1 faults of ours" in said
    assert "| kill | drain | target | error: UNAVAILABLE: a / b c | 2.0 |" in said
    assert said.index("| kill |") < said.index("| stop |")


def test_a_table_is_continued_from_what_it_has_of_the_same_seed() -> None:
    error = "error: HTTP: a: b"
    rows = [
        Row(Cell("half-open connection", "target", "job poll"), error, 1.1, True),
        Row(Cell("stop", "draft", "verify"), "text unchanged, before the fault", 0.0, True),
        Row(Cell("kill", "draft", "drain"), "another text", 2.0, False),
    ]
    written = table(rows, 7, 324)
    assert {row.cell for row in rows[:2]} == {row.cell for row in read_rows(written, 7)}
    assert set(read_rows(written, 7)) == set(rows[:2]), "a fault of ours is tried again"
    assert read_rows(written, 8) == [] and read_rows("", 7) == []


def test_the_page_itself_can_be_continued() -> None:
    matrix = read_matrix(PAGE.read_text(encoding="utf-8"))
    rows = read_rows(matrix, 1)
    assert len(rows) == len(set(rows)) == matrix.count("| text unchanged") + matrix.count("| error")
    assert {row.cell for row in rows} <= set(cells(seed=1))


def sample(minutes: float, memory: int = 100, files: int = 50, sessions: int = 0) -> Sample:
    return Sample(minutes, sessions, {"target": Count(memory, files, 9)}, 0)


def test_sampled_work_is_under_every_rule_and_allowed() -> None:
    asked = [read_request(sampled_request(random.Random(i))) for i in range(60)]
    assert {each.rule for each in asked} == set(Rule)


def test_what_grows_after_the_first_minutes_is_found() -> None:
    flat = [sample(minute, 50 if minute < 10 else 100) for minute in range(30)]
    assert problems(flat, 10.0) == []
    growing = [sample(minute, 1000 + 3 * minute) for minute in range(30)]
    assert problems(growing, 10.0) == ["memory of the target grew from 1034 to 1082"]
    assert problems([sample(minute, files=50 + minute) for minute in range(30)], 10.0)
    assert problems([*flat, sample(31.0, sessions=1)], 10.0) == ["1 sessions left at 31.0 min"]
    assert problems(flat[:11], 10.0) == ["too short to say anything"]
