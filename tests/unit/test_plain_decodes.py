"""Jobs of one token, and a job alone in a decode, take a shorter way to the same chunks."""

from __future__ import annotations

import random

import pytest

from outrider.costs import CostTable
from outrider.engine.batching import Limits, Pending, allot
from outrider.engine.cache import Session
from outrider.engine.job import Lease, Step, Ticket
from outrider.engine.scheduler import Scheduler
from tests.support.toy import ToyModel


def ticket_of(step: Step, held: int, number: int = 1) -> Ticket:
    session = Session(bytes([number]), 0.0, sequence=number, token_ids=[7] * held)
    ticket = Ticket(session.session_id, lambda _: iter(()), (), 0.0)  # type: ignore[arg-type, return-value]
    ticket.lease = Lease(session, ToyModel(), 256)
    ticket.take(step, 0.0)
    return ticket


@pytest.mark.parametrize("multiple", [1, 4])
def test_it_is_the_one_that_is_allotted_among_others(
    multiple: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(1)
    cost = CostTable([(n, 0.01 + 0.002 * (n % 4)) for n in range(multiple, 33, multiple)])
    taken = 0
    for _ in range(300):
        count = draw.randint(1, 40)
        step = Step([5] * count, draw.randint(1, count))
        limits = Limits(rows=draw.choice((8, 32)), rows_out=draw.choice((4, 32)), padded=16)
        held = draw.randrange(100)

        def chunks(step: Step = step, limits: Limits = limits, held: int = held) -> list[object]:
            scheduler = Scheduler(cost, limits, lambda n: -(-n // multiple) * multiple)
            scheduler.start(ticket_of(step, held), 0.0)
            return [chunk for _, chunk in scheduler.next_decode(0.0)]

        short = chunks()
        with monkeypatch.context() as patched:
            patched.setattr(Scheduler, "_alone", lambda *_: None)
            assert short == chunks()
        taken += bool(short)
    assert taken > 100


@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("limits", [Limits(32, 128), Limits(512, 8), Limits(512, 128)])
def test_jobs_of_one_token_join_as_they_would_be_allotted(multiple: int, limits: Limits) -> None:
    def padded(count: int) -> int:
        return -(-count // multiple) * multiple

    for count in range(1, 64):
        scheduler = Scheduler(CostTable([(multiple, 0.01)]), limits, padded)
        for number in range(count):
            scheduler.start(ticket_of(Step([5], 1), number, number), 0.0)
        takes = allot([Pending(1, 1)] * count, 0, limits, padded)
        assert [t.row_count for t, _ in scheduler.next_decode(0.0)] == [
            take for take in takes if take
        ]
