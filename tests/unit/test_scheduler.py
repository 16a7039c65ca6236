"""Who starts, who is waited for and who moves, decided without a thread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from outrider.costs import CostTable
from outrider.engine.batching import Limits
from outrider.engine.cache import Session
from outrider.engine.job import Lease, Ticket, counts_of
from outrider.engine.model import Chunk
from outrider.engine.scheduler import Scheduler
from outrider.messages import ServiceTime

A, B, C = b"a", b"b", b"c"
NOTHING: Any = None  # the scheduler runs no job and asks no model
COST = CostTable([(1, 0.010), (2, 0.011), (8, 0.020)])  # shared decodes pay


def scheduler(cost: CostTable = COST) -> Scheduler:
    return Scheduler(cost, Limits(512, 256), padded=lambda rows: rows)


def ticket(session_id: bytes, submit_time: float = 0.0) -> Ticket:
    return Ticket(session_id, NOTHING, (), submit_time)


def run(
    some: Scheduler, session_id: bytes, sequence: int, now: float, tokens: Sequence[int] = (5,)
) -> Ticket:
    """Queue and start a job whose next step are these tokens, one row wanted."""
    job = ticket(session_id, now)
    some.queue(job)
    some.leave_lane(job)
    job.lease = Lease(Session(session_id, now, sequence), NOTHING, 100)
    job.tokens, job.row_count = tokens, 1
    some.start(job, now)
    some.put_last(job)
    return job


def answer(some: Scheduler, job: Ticket, now: float) -> None:
    """End a job and expect its session's next."""
    some.end(job)
    assert job.lease is not None and job.lease.session.sequence is not None
    some.expect(job, job.lease.session.sequence, now)


def test_jobs_of_a_session_start_one_after_the_other() -> None:
    some = scheduler()
    first, second, other = ticket(A), ticket(A), ticket(B)
    for job in (first, second, other):
        some.queue(job)
    assert some.startable() == [first, other]
    some.leave_lane(first)
    some.start(first, 0.0)
    assert some.startable() == [other]
    assert some.jobs_of(A) == [second, first]
    assert (some.is_active(first), some.is_waiting(second)) == (True, True)
    some.end(first)
    assert some.startable() == [second, other]
    assert some.busy_sessions == {A, B}


def test_a_session_without_jobs_is_not_busy() -> None:
    some = scheduler()
    some.end(run(some, A, 0, 0.0))
    assert (some.busy_sessions, some.has_active, some.first_submit_time()) == (set(), False, None)


def test_what_was_just_answered_is_waited_for_as_long_as_it_usually_takes() -> None:
    some = scheduler()
    now = 0.0
    for _ in range(30):  # it comes back after 4 ms
        answer(some, run(some, A, 0, now), now)
        now += 0.004
    first = run(some, A, 0, now)
    other = run(some, B, 1, now)
    answer(some, first, now)
    assert other is not None
    assert now + 0.0035 < some.decode_time(now) < now + 0.009


@pytest.mark.parametrize(
    ("is_expected", "decodes"), [(True, range(20, 24)), (False, range(35, 81))]
)
def test_sessions_in_a_closed_loop_share_their_decodes(is_expected: bool, decodes: range) -> None:
    some, now, count = scheduler(), 0.0, 0
    left = {session: 20 for session in (b"0", b"1", b"2", b"3")}
    arrivals = [(0.0003 * i, session) for i, session in enumerate(left)]
    while arrivals or some.has_active:
        wake = some.decode_time(now) if some.has_active else math.inf
        arrivals.sort()
        if arrivals and arrivals[0][0] <= wake:
            arrival, session = arrivals.pop(0)
            now = max(now, arrival)
            run(some, session, int(session), now)
            continue
        now = max(now, wake) + 0.010
        count += 1
        some.note_decode(0.010)
        for job, _ in some.next_decode(now):
            some.end(job)
            session = job.session_id
            left[session] -= 1
            if left[session]:
                if is_expected:
                    answer(some, job, now)
                arrivals.append((now + 0.001 + 0.0004 * int(session), session))
    assert count in decodes, "20 if all are always awaited, 80 if nobody ever meets another"


def test_a_stranger_is_not_waited_for() -> None:
    some = scheduler()
    answer(some, run(some, A, 0, 1.0), 1.0)
    some.expect_no_more(A)
    run(some, B, 1, 1.0)
    assert some.decode_time(1.0) <= 1.0


def test_nobody_is_waited_for_where_sharing_saves_nothing() -> None:
    some = scheduler(CostTable([(1, 0.010), (64, 0.640)]))
    answer(some, run(some, A, 0, 1.0), 1.0)
    run(some, B, 1, 1.0)
    assert some.decode_time(1.0) <= 1.0


def test_the_decodes_of_others_are_no_part_of_a_sessions_turnaround() -> None:
    quiet, busy = scheduler(), scheduler()
    now = 0.0
    for _ in range(30):
        answer(quiet, run(quiet, A, 0, now), now)
        answer(busy, run(busy, A, 0, now), now)
        busy.note_decode(0.5)
        now += 0.5
    now += 0.002  # and 2 ms in which nothing was decoded
    last, last_busy = run(quiet, A, 0, now), run(busy, A, 0, now)
    answer(quiet, last, now)
    answer(busy, last_busy, now)
    run(busy, B, 1, now)
    assert busy.decode_time(now) < now + 0.01
    assert quiet._turnarounds[A] > 0.4
    assert busy._turnarounds[A] < 0.01


def test_prompts_wait_for_others_for_a_small_part_of_their_reading() -> None:
    some = scheduler()
    run(some, A, 0, 1.0, range(100))
    assert 1.0 < some.decode_time(1.0) < 1.0 + 0.03 * COST.in_proportion(100)
    run(some, B, 1, 1.001, range(100))
    assert some.decode_time(1.001) < 1.0 + 0.03 * COST.in_proportion(200), "from the first one on"
    run(some, C, 2, 1.002)
    assert some.decode_time(1.002) <= 1.002, "who generates waits for no prompt"


def test_prompts_that_fill_a_decode_wait_for_nobody() -> None:
    some = scheduler()
    run(some, A, 0, 1.0, range(1 << 12))
    assert some.decode_time(1.0) <= 1.0


def test_active_jobs_take_turns() -> None:
    some = scheduler()
    first, second = run(some, A, 0, 0.0), run(some, B, 1, 0.0)
    assert [job for job, _ in some.next_decode(0.0)] == [first, second]
    some.put_last(first)
    assert [job for job, _ in some.next_decode(0.0)] == [second, first]


def test_an_exchange_is_due_once_being_apart_has_cost_more() -> None:
    some = scheduler()
    run(some, A, 0, 0.0)
    run(some, C, 2, 0.0)
    due = [some.exchange_due(0.0) for _ in range(30)]
    # Apart 20 ms, together 11: more than the first exchange is taken to cost.
    assert due.index((2, 1)) == 0
    some.note_exchange({}, seconds=0.5)
    again = [some.exchange_due(0.0) for _ in range(80)]
    assert again.index((2, 1)) == 55, "the next one by what this one took"


def test_adjacent_sequences_are_left_where_they_are() -> None:
    some = scheduler()
    run(some, A, 1, 0.0)
    run(some, C, 2, 0.0)
    assert all(some.exchange_due(0.0) is None for _ in range(100))


def test_an_awaited_session_is_known_by_its_new_sequence() -> None:
    some = scheduler()
    answer(some, run(some, A, 0, 0.0), 0.0)
    some.note_exchange({A: 3, B: None})
    assert [each.sequence for each in some._awaited.values()] == [3]
    assert list(some.awaited_sessions) == [A]


@pytest.mark.parametrize("offered", [1, 3])
def test_what_is_offered_is_shortened_only_in_company(offered: int) -> None:
    some = scheduler(CostTable([(1, 0.010), (64, 0.640)]))
    job = run(some, A, 0, 0.0, tokens=[5] * (1 + offered))
    job.row_count, job.gains = 1 + offered, [0.1] * offered
    assert len(some.next_decode(0.0)[0][1].token_ids) == 1 + offered
    run(some, B, 1, 0.0)
    assert len(some.next_decode(0.0)[0][1].token_ids) == 1


def test_rows_that_only_fill_a_decode_are_counted_nowhere() -> None:
    chunks = [Chunk(0, 5, [1], 1, fillers=(1, 3)), Chunk(2, 7, [1], 1)]
    assert counts_of(chunks, lambda count: count) == ServiceTime(rows=2, attended=12, sessions=2)
