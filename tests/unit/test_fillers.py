"""Rows that only fill a decode: in the gaps between streams, and up to a full kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outrider.costs import CostTable
from outrider.engine.batching import Limits, apart_seconds, fillers
from outrider.engine.cache import Session
from outrider.engine.job import Lease, Ticket
from outrider.engine.scheduler import Scheduler

# As measured of a 1.1B on two cores: what is left over of four rows takes as long as by itself.
COST = CostTable([(1, 0.015), (2, 0.024), (3, 0.034), (4, 0.026), (8, 0.046), (16, 0.085)])
LIMITS = Limits(512, 128, streams=8)
NOTHING: Any = None  # the scheduler runs no job and asks no model


def nothing(_: int) -> int:
    return 0


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        ({0, 1, 2}, [3]),  # three rows take longer than four
        ({1, 2, 3}, [0]),
        ({0, 1, 2, 4, 5, 6, 7}, [3]),  # eight at once, not three and then four
        ({0, 1, 2, 3, 5, 6}, [4, 7]),
        ({0, 1, 2, 3}, []),
        ({0, 1}, []),  # two rows take less than four
        ({0, 7}, []),  # far apart, eight rows would take longer than two decodes of one
        ({3}, []),  # who is alone is padded
    ],
)
def test_rows_fill_gaps_and_kernels_where_that_takes_less(
    sequences: set[int], expected: list[int]
) -> None:
    assert fillers(sequences, LIMITS, COST, nothing) == expected


def test_none_is_beyond_the_streams_nor_where_there_are_none() -> None:
    assert fillers({5, 6, 7}, LIMITS, COST, nothing) == [4]
    assert fillers({0, 1, 2}, Limits(512, 128, streams=3), COST, nothing) == []
    assert fillers({0, 1, 2}, Limits(512, 128, is_pool=True), COST, nothing) == []


def test_the_one_that_holds_least_fills_and_none_that_holds_much() -> None:
    cost = CostTable([(1, 0.015, 2e-6), (3, 0.034, 6e-6), (4, 0.026, 8e-6)])

    def held(counts: dict[int, int]) -> Callable[[int], int]:
        return lambda sequence: counts.get(sequence, 0)

    assert fillers({1, 2, 3}, LIMITS, cost, held({0: 100, 4: 10})) == [4]
    assert fillers({1, 2, 3}, LIMITS, cost, held({0: 4000, 4: 4000})) == []


def test_what_fills_never_makes_a_decode_slower_by_the_table() -> None:
    for bits in range(1, 256):
        sequences = {i for i in range(8) if bits >> i & 1}
        added = fillers(sequences, LIMITS, COST, nothing)
        assert not sequences & set(added)
        before = apart_seconds(dict.fromkeys(sequences, 1), COST)
        after = apart_seconds(dict.fromkeys(sequences | set(added), 1), COST)
        assert after <= before * (1 + 1e-9)


def test_a_decode_of_one_row_of_each_session_is_filled() -> None:
    scheduler = Scheduler(COST, LIMITS, padded=lambda rows: rows)
    for sequence in (0, 1, 2):
        job = Ticket(bytes([sequence]), NOTHING, (), 0.0)
        job.lease = Lease(Session(job.session_id, 0.0, sequence), NOTHING, 100)
        job.tokens, job.row_count = [5], 1
        scheduler.start(job, 0.0)
    entries = scheduler.next_decode(0.0)
    assert [list(chunk.fillers) for _, chunk in entries] == [[3], [], []]
    entries[0][0].tokens, entries[0][0].row_count = [5, 6], 2  # a draft token
    assert not any(chunk.fillers for _, chunk in scheduler.next_decode(0.0))
