"""A job alone in a decode takes a shorter way to the same chunk."""

from __future__ import annotations

import random

import pytest

from outrider.costs import CostTable
from outrider.engine.batching import Limits
from outrider.engine.cache import Session
from outrider.engine.job import Lease, Step, Ticket
from outrider.engine.scheduler import Scheduler
from tests.support.toy import ToyModel


def ticket_of(step: Step, held: int) -> Ticket:
    session = Session(b"a", 0.0, sequence=1, token_ids=[7] * held)
    ticket = Ticket(b"a", lambda _: iter(()), (), 0.0)  # type: ignore[arg-type, return-value]
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
