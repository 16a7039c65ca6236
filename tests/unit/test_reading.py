"""How much of a prompt is read at once, and how long others wait meanwhile: on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.costs import CostTable, Point
from outrider.engine.batching import LEAST_CHUNK, Limits, decode_seconds
from outrider.engine.cache import Session
from outrider.engine.job import Lease, Ticket
from outrider.engine.model import Chunk
from outrider.engine.reading import PROMISED_ROUNDS, Reading, Share
from outrider.engine.scheduler import Scheduler
from tests.support.thorough import cells

NOTHING: Any = None
STREAMS = Limits(512, 128, padded=16)
POOL = Limits(512, 128, padded=16, is_pool=True)
CPU = CostTable([Point(1, 0.022, 2e-6), Point(4, 0.056, 6e-6), Point(16, 0.147, 20e-6)])
GPU = CostTable([(1, 0.080), (4, 0.082), (16, 0.086), (32, 0.092)])
PROMPT, USERS = 4000, 4
PROMPT_ID = b"prompt"


def reading(cost: CostTable, limits: Limits = POOL) -> Reading:
    return Reading(cost, limits, padded=lambda rows: rows)


# one decision


def test_who_reads_alone_takes_all_rows() -> None:
    assert reading(CPU).rows([], []) == 512


@pytest.mark.parametrize("limits", [STREAMS, POOL], ids=["streams", "pool"])
@pytest.mark.parametrize("length", [0, 1000, 30_000])
@settings(derandomize=True, deadline=None)
@given(
    users=st.lists(st.builds(Share, st.integers(1, 9), st.integers(0, 9000)), min_size=1),
    missing=st.integers(0, 3),
)
def test_a_decode_takes_what_was_promised_at_most_and_the_next_row_would_not_do(
    limits: Limits, length: int, users: list[Share], missing: int
) -> None:
    some = reading(CPU, limits)
    absent, present = users[:missing], users[missing:]
    count = some.rows(present, absent, length)
    promised = some.promised_seconds(users, length)
    bound = promised / 2 if absent else promised
    if count > LEAST_CHUNK:
        assert some.seconds(present, Share(count, length)) <= bound
    if count < limits.rows:
        assert some.seconds(present, Share(count + 1, length)) > bound


def test_the_promise_is_eight_rounds_of_those_who_generate_or_as_fast_as_people_read() -> None:
    users = [Share(1, 300)] * 4
    a_round = decode_seconds([1] * 4, POOL, CPU) + CPU.attending([(1, 300)] * 4)
    assert PROMISED_ROUNDS * a_round > 0.2
    assert reading(CPU).promised_seconds(users) == pytest.approx(8 * a_round)
    assert reading(CPU).promised_seconds([Share(1, 300)]) == 0.2


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_what_users_are_promised_is_told_in_seconds_and_tokens(count: int) -> None:
    some = reading(CPU)
    promise, users = some.promise(count), [Share(1)] * count
    assert promise.seconds == some.promised_seconds(users)
    assert promise.token_count == some.rows(users, [])


def test_some_tokens_are_read_whatever_they_cost() -> None:
    users = [Share(1, 0)]
    far = 100_000  # sixteen rows that attend to so many take 2 s, a round of the user 22 ms
    some = reading(CPU)
    assert some.rows(users, [], far) == LEAST_CHUNK
    assert some.promised_seconds(users, far) == some.seconds(users, Share(LEAST_CHUNK, far))


def test_behind_a_long_text_fewer_tokens_are_read_at_once() -> None:
    users = [Share(4, 300)] * 4
    counts = [reading(CPU).rows(users, [], length) for length in (0, 4000, 16_000)]
    assert counts == sorted(counts, reverse=True) and counts[0] > 1.4 * counts[-1]


def test_padded_rows_are_whole_multiples() -> None:
    some = Reading(CPU, STREAMS, padded=lambda rows: -(-rows // 4) * 4)
    assert {some.rows([Share(4, length)], []) % 4 for length in range(0, 9000, 250)} == {0}


# in service


@dataclass(slots=True)
class User:
    """Who generates: `turnaround` seconds after an answer the next round comes, at once if 0."""

    session_id: bytes
    sequence: int
    rows: int
    turnaround: float
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)


class World:
    """A scheduler, its users and one long prompt, on a virtual clock."""

    def __init__(
        self,
        cost: CostTable,
        limits: Limits,
        users: Sequence[User],
        true_seconds: Callable[[Sequence[Chunk]], float],
    ) -> None:
        self.scheduler = Scheduler(cost, limits, padded=lambda rows: rows)
        self.users = {user.session_id: user for user in users}
        self.now = 0.0
        self.chunks: list[int] = []  # of the prompt
        self._true_seconds = true_seconds
        self._arrivals = [(0.0, user.session_id) for user in users]

    def read(self) -> float:
        """Let all generate for a while, then read the prompt; return the seconds of the latter."""
        self._run(lambda: bool(self.users) and self.now < 2.0)
        begin = self.now
        for user in self.users.values():
            user.gaps.clear()
        prompt = self._start(PROMPT_ID, len(self.users), [5] * PROMPT)
        self._run(lambda: self.scheduler.is_active(prompt))
        return self.now - begin

    def _run(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            some = self.scheduler
            wake = some.decode_time(self.now) if some.has_active else math.inf
            self._arrivals.sort()
            if self._arrivals and self._arrivals[0][0] <= max(wake, self.now):
                arrival, session = self._arrivals.pop(0)
                self.now = max(self.now, arrival)
                user = self.users[session]
                self._start(session, user.sequence, [5] * user.rows)
                continue
            self.now = max(self.now, wake)
            self._decode()

    def _start(self, session_id: bytes, sequence: int, tokens: Sequence[int]) -> Ticket:
        job = Ticket(session_id, NOTHING, (), self.now)
        self.scheduler.queue(job)
        self.scheduler.leave_lane(job)
        job.lease = Lease(Session(session_id, self.now, sequence), NOTHING, 10_000)
        job.tokens, job.row_count = tokens, len(tokens) if session_id in self.users else 1
        self.scheduler.start(job, self.now)
        return job

    def _decode(self) -> None:
        entries = self.scheduler.next_decode(self.now)
        chunks = [chunk for _, chunk in entries]
        seconds = self._true_seconds(chunks)
        self.now += seconds
        self.scheduler.note_decode(seconds, chunks)
        for job, chunk in entries:
            job.tokens = job.tokens[len(chunk.token_ids) :]
            assert job.lease is not None
            if job.session_id == PROMPT_ID:
                job.lease.session.token_ids.extend(chunk.token_ids)
                self.chunks.append(len(chunk.token_ids))
            self.scheduler.put_last(job)
            if not job.tokens:
                self._answer(job)

    def _answer(self, job: Ticket) -> None:
        self.scheduler.end(job)
        user = self.users.get(job.session_id)
        if user is None:
            return
        user.gaps.append(self.now - user.last)
        user.last = self.now
        if user.turnaround:
            self.scheduler.expect(job, user.sequence, self.now)
        self._arrivals.append((self.now + user.turnaround, user.session_id))


def truth(
    cost: CostTable, limits: Limits, reading: float, row: float | None = None
) -> Callable[[Sequence[Chunk]], float]:
    """Return a world where reading takes so many times what the table says, or `row` a row."""

    def seconds(chunks: Sequence[Chunk]) -> float:
        rows = [len(chunk.token_ids) for chunk in chunks]
        attended = [(n, c.position + n // 2) for n, c in zip(rows, chunks, strict=True)]
        if row is not None:
            return 0.080 + row * sum(rows) + cost.attending(attended)
        whole = decode_seconds(rows, limits, cost) + cost.attending(attended)
        return whole * (reading if max(rows) >= LEAST_CHUNK else 1.0)

    return seconds


def users(rows: int, turnaround: float) -> list[User]:
    return [User(bytes([i]), i, rows, turnaround) for i in range(USERS)]


def promised(cost: CostTable, limits: Limits, rows: int) -> float:
    return reading(cost, limits).promised_seconds([Share(rows, 0)] * USERS, PROMPT)


@pytest.mark.parametrize(
    ("memory", "turnaround", "rows", "reads"),
    cells(["streams", "pool"], [0.0, 0.004, 0.050, 0.300], [1, 4], [0.6, 1.0, 1.5]),
)
def test_nobody_waits_longer_than_twice_what_was_promised(
    memory: str, turnaround: float, rows: int, reads: float
) -> None:
    limits = STREAMS if memory == "streams" else POOL
    world = World(CPU, limits, users(rows, turnaround), truth(CPU, limits, reads))
    world.read()
    longest = max(gap for user in world.users.values() for gap in user.gaps)
    assert longest <= 2 * promised(CPU, limits, rows) + turnaround
    assert min(len(user.gaps) for user in world.users.values()) > 8


@pytest.mark.parametrize("limits", [STREAMS, POOL], ids=["streams", "pool"])
@pytest.mark.parametrize("turnaround", [0.0, 0.004, 0.050])
def test_a_prompt_beside_others_takes_little_longer_than_alone(
    limits: Limits, turnaround: float
) -> None:
    alone = World(CPU, limits, [], truth(CPU, limits, 1.0)).read()
    beside = World(CPU, limits, users(4, turnaround), truth(CPU, limits, 1.0)).read()
    assert beside < alone * PROMISED_ROUNDS / (PROMISED_ROUNDS - 1) * 1.2


def test_who_comes_back_a_little_later_is_not_taken_to_have_gone() -> None:
    world = World(CPU, POOL, users(1, 0.3)[:1], truth(CPU, POOL, 1.0))
    world.read()
    assert max(world.chunks) < 64


def test_where_many_rows_cost_no_more_than_few_large_parts_are_read() -> None:
    world = World(GPU, POOL, users(4, 0.0), truth(GPU, POOL, 1.0, row=1e-4))
    world.read()
    assert world.chunks[0] < max(world.chunks) and max(world.chunks) > 450
    longest = max(gap for user in world.users.values() for gap in user.gaps)
    assert longest <= promised(GPU, POOL, 4)


@pytest.mark.parametrize("off", [0.3, 5.0])
def test_a_table_that_is_wrong_by_much_is_not_believed(off: float) -> None:
    points = [Point(each.rows, off * each.seconds, off * each.slope) for each in CPU.points]
    world = World(CostTable(points), POOL, users(4, 0.004), truth(CPU, POOL, 1.0))
    world.read()
    longest = max(gap for user in world.users.values() for gap in user.gaps)
    assert longest <= 2 * promised(CPU, POOL, 4) + 0.004
    assert sum(world.chunks) / len(world.chunks) > 20


def test_where_every_decode_takes_much_more_from_now_on_larger_parts_are_read() -> None:
    """As when another process begins to use the cores while a prompt is read."""
    extra = [0.0]

    def disturbed(chunks: Sequence[Chunk]) -> float:
        if any(chunk.row_count == 0 for chunk in chunks):
            extra[0] = 0.3
        return extra[0] + truth(CPU, POOL, 1.0)(chunks)

    alone = World(CPU, POOL, [], disturbed).read()
    extra[0] = 0.0
    world = World(CPU, POOL, users(1, 0.0), disturbed)
    beside = world.read()
    assert beside < 2.0 * alone
    longest = max(gap for user in world.users.values() for gap in user.gaps)
    assert longest < 2 * PROMISED_ROUNDS * disturbed([Chunk(0, 0, [5], 1)])


def test_a_prompt_alone_is_read_in_full_decodes() -> None:
    world = World(CPU, POOL, [], truth(CPU, POOL, 1.0))
    world.read()
    assert world.chunks == [512] * 7 + [416]
