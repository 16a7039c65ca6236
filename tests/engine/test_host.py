"""The engine's thread: jobs of many sessions share decodes, and nobody spoils another's."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from outrider.costs import CostTable
from outrider.engine import host as host_module
from outrider.engine import runner as runner_module
from outrider.engine import scheduler
from outrider.engine.guesser import guesser
from outrider.engine.host import EngineHost
from outrider.engine.hosting import HostOptions
from outrider.engine.job import Job, Lease, Step, Ticket
from outrider.engine.model import Chunk, Model, NoRoom, Numerics, Row
from outrider.engine.model_draft import ModelDraft
from outrider.engine.own_draft import DraftAsk
from outrider.errors import (
    ContextExhausted,
    DecodeFailed,
    Draining,
    EngineBusy,
    InvalidConfig,
    OutriderError,
    RoundSuperseded,
)
from outrider.messages import Rule, SessionParameters
from outrider.sampling import SamplingParameters
from tests.support.toy import Misused, ToyModel, generate_alone

A, B, C, D, E = (bytes([i]) * 16 for i in range(1, 6))
TEXT = [0, 12, 40, 7, 33, 21, 50, 9, 15]
LONG = [3 + i * 7 % 60 for i in range(1500)]
PATIENCE = 10.0
GREEDY = SamplingParameters(temperature=0.0)
OPENING = SessionParameters(
    session_id=A,
    attempt=1,
    rule=Rule.MATCH,
    sampling=GREEDY,
    seed=0,
    choice=0,
    prompt_count=len(TEXT),
    token_limit=20,
    vocabulary=64,
)


def toy(**options: Any) -> ToyModel:
    """Return a toy whose every held token counts, so that a wrong cell shows."""
    return ToyModel(**{"order": 4096, "context": 64} | options)


def big_toy() -> ToyModel:
    """Return a toy that takes long prompts, as llama.cpp does."""
    return toy(context=2048, batch_rows=512)


@contextmanager
def running(model: Model, **options: Any) -> Iterator[EngineHost]:
    """Run an engine on a model; it is loaded and measured, and stopped at the end."""
    host = EngineHost(lambda: model, HostOptions(**{"numerics": Numerics.EXACT} | options))
    host.start().result(PATIENCE)
    if isinstance(model, ToyModel):
        model.decodes.clear()
    yield host
    host.stop()


class Gate:
    """Holds the engine's thread inside a decode until it is opened."""

    def __init__(self, model: ToyModel) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()
        model.before_decode = self._wait

    def _wait(self, chunks: Sequence[Chunk]) -> None:
        self.entered.set()
        assert self._open.wait(PATIENCE)

    def open(self) -> None:
        self._open.set()


def rows_of(text: Sequence[int], row_count: int = 1) -> Job:
    """Return a job that holds a text and returns copies of its last rows."""

    def job(lease: Lease) -> Generator[Step, list[Row], list[Row]]:
        rows = yield Step(lease.reconcile(list(text), row_count), row_count)
        return [row.copy() for row in rows]

    return job


def offering(text: Sequence[int], row_count: int, gains: Sequence[float]) -> Job:
    """Return a job that lets the engine leave out as many of the last tokens as it has gains."""

    def job(lease: Lease) -> Generator[Step, list[Row], list[Row]]:
        lease.keep(0)
        rows = yield Step(list(text), row_count, gains)
        return [row.copy() for row in rows]

    return job


def token_by_token(text: Sequence[int]) -> Job:
    """Return a job that takes one decode per token."""

    def job(lease: Lease) -> Generator[Step, list[Row], int]:
        lease.keep(0)
        for token_id in text:
            yield Step([token_id], 1)
        return len(lease.held)

    return job


def fresh_rows(text: Sequence[int], row_count: int = 1) -> list[Row]:
    """Return the rows that an unused model gives."""
    [rows] = toy(context=2048, batch_rows=2048).decode([Chunk(0, 0, text, row_count)])
    return [row.copy() for row in rows]


def result(ticket: Ticket) -> Any:
    return ticket.future.result(PATIENCE)


def failure(ticket: Ticket) -> BaseException | None:
    return ticket.future.exception(PATIENCE)


def held(host: EngineHost, session_id: bytes) -> int:
    return host.held_count(session_id).result(PATIENCE)


def in_order_of_end(tickets: dict[str, Ticket]) -> list[str]:
    """Wait for all jobs; return their names as they ended."""
    ended: list[str] = []
    for name, ticket in tickets.items():
        ticket.future.add_done_callback(lambda _, name=name: ended.append(name))  # type: ignore[misc]
    for ticket in tickets.values():
        result(ticket)
    return ended


def settle(host: EngineHost) -> None:
    """Wait until everything that was asked for before has begun."""
    host.held_count(A).result(PATIENCE)


# decodes


def test_a_job_gets_the_rows_of_its_text() -> None:
    with running(toy()) as host:
        np.testing.assert_array_equal(result(host.submit(A, rows_of(TEXT, 3))), fresh_rows(TEXT, 3))
        assert held(host, A) == len(TEXT)


def test_a_repeated_job_gets_its_rows_again() -> None:
    model = toy()
    with running(model) as host:
        first = result(host.submit(A, rows_of(TEXT, 3)))
        np.testing.assert_array_equal(result(host.submit(A, rows_of(TEXT, 3))), first)
    assert [decode.token_count for decode in model.decodes] == [len(TEXT), 3]


def test_jobs_of_several_sessions_share_a_decode() -> None:
    model = toy()
    with running(model) as host:
        gate = Gate(model)
        tickets = [host.submit(A, rows_of(TEXT))]
        assert gate.entered.wait(PATIENCE)
        texts = {B: TEXT[:4], C: TEXT[2:], D: TEXT[::-1]}
        tickets += [host.submit(session, rows_of(text)) for session, text in texts.items()]
        gate.open()
        for ticket, text in zip(tickets, [TEXT, *texts.values()], strict=True):
            np.testing.assert_array_equal(result(ticket), fresh_rows(text))
    assert [len(decode.chunks) for decode in model.decodes] == [1, 3]


def test_jobs_of_one_session_run_one_after_the_other() -> None:
    model, order = toy(), []

    def numbered(number: int) -> Job:
        def job(lease: Lease) -> Generator[Step, list[Row], None]:
            order.append((number, "begins"))
            yield Step([5], 1)
            yield Step([6], 1)
            order.append((number, "ends"))

        return job

    with running(model) as host:
        tickets = [host.submit(A, numbered(i)) for i in range(3)]
        for ticket in tickets:
            result(ticket)
        assert held(host, A) == 6
    assert order == [(i, what) for i in range(3) for what in ("begins", "ends")]


@pytest.mark.parametrize("before_it_started", [True, False])
def test_a_job_that_gives_way_does_so_to_one_that_came_before_it_could(
    before_it_started: bool,
) -> None:
    model = toy()
    steps = list[bool]()

    def writing_on(lease: Lease) -> Generator[Step, list[Row], None]:
        for token_id in TEXT:
            steps.append(bool(steps))
            yield Step([token_id], 1, gives_way=steps[-1])

    with running(model) as host:
        gate = Gate(model)
        if before_it_started:  # both come while another session's decode runs
            host.submit(B, rows_of(TEXT[:2]))
            assert gate.entered.wait(PATIENCE)
        writing = host.submit(A, writing_on)
        assert gate.entered.wait(PATIENCE)
        after = host.submit(A, rows_of([TEXT[0], 8]))
        gate.open()
        assert result(writing) is None
        result(after)
        assert held(host, A) == 2
    assert len(steps) == 2, "its own decode, and no other"


def test_a_job_reconciles_with_what_is_held_when_it_starts() -> None:
    model = toy()
    with running(model) as host:
        gate = Gate(model)
        host.submit(A, rows_of(TEXT))
        assert gate.entered.wait(PATIENCE)
        later = host.submit(A, rows_of([*TEXT, 8]))
        gate.open()
        result(later)
    assert [decode.token_count for decode in model.decodes] == [len(TEXT), 1]


def test_a_step_without_rows_returns_none() -> None:
    def job(lease: Lease) -> Generator[Step, list[Row], int]:
        rows = yield Step(TEXT, 0)
        return len(rows)

    with running(toy()) as host:
        assert result(host.submit(A, job)) == 0


def test_a_text_longer_than_a_decode_is_decoded_in_chunks() -> None:
    with running(toy(context=256, batch_rows=64)) as host:
        rows = result(host.submit(A, rows_of(LONG[:200], 3)))
        np.testing.assert_array_equal(rows, fresh_rows(LONG[:200], 3))
        assert host.counters.tokens == 200


def test_a_long_prompt_leaves_room_for_others_between_its_chunks() -> None:
    model = big_toy()
    with running(model) as host:
        gate = Gate(model)
        long = host.submit(A, rows_of(LONG))
        assert gate.entered.wait(PATIENCE)
        b, c = (host.submit(session, token_by_token(TEXT[:1])) for session in (B, C))
        gate.open()
        assert in_order_of_end({"long": long, "b": b, "c": c})[-1] == "long"
        np.testing.assert_array_equal(result(long), fresh_rows(LONG))
    shared = [decode for decode in model.decodes if len(decode.chunks) == 3]
    assert [decode.row_count <= 512 for decode in shared] == [True]


def test_a_short_job_is_not_held_up_by_many_long_prompts() -> None:
    model = toy(context=2048, batch_rows=512, sequence_count=5)
    with running(model) as host:
        gate = Gate(model)
        host.submit(E, rows_of(TEXT))
        assert gate.entered.wait(PATIENCE)
        tickets = {f"long {i}": host.submit(s, rows_of(LONG)) for i, s in enumerate((A, B, C, D))}
        tickets["short"] = host.submit(E, rows_of([*TEXT, 8]))
        gate.open()
        assert in_order_of_end(tickets)[0] == "short"


def test_nobody_starves_when_not_all_fit_into_a_decode() -> None:
    model = toy(context=256, batch_rows=64, sequence_count=5)

    def half_decodes(lease: Lease) -> Generator[Step, list[Row], int]:
        lease.keep(0)
        for start in range(0, 224, 32):
            yield Step(LONG[start : start + 32], 1)
        return len(lease.held)

    with running(model) as host:
        gate = Gate(model)
        host.submit(E, rows_of(TEXT))
        assert gate.entered.wait(PATIENCE)
        tickets = [host.submit(session, half_decodes) for session in (A, B, C, D)]
        gate.open()
        assert [result(ticket) for ticket in tickets] == [224] * 4
    [_, *decodes] = [[chunk.sequence for chunk in decode.chunks] for decode in model.decodes]
    for sequence in {sequence for decode in decodes for sequence in decode}:
        turns = [i for i, decode in enumerate(decodes) if sequence in decode]
        # Four sessions, two of which fit: everybody is in every other decode.
        assert turns[0] <= 1
        assert [after - before for before, after in pairwise(turns)] == [2] * 6


@pytest.mark.parametrize("forgets", [True, False], ids=["free", "idle"])
def test_sessions_that_decode_together_become_neighbours(forgets: bool) -> None:
    # Of 100 jobs 75 are left when it is worth it, 25 decodes of 4 ms later. A busy machine
    # comes too late for many of the 38 that could be shared, or for all of them, so it has
    # several goes; as they sat, none could be shared.
    assert any(_neighbours_decode_together(toy(step_seconds=0.004), forgets) > 3 for _ in range(5))


def test_where_nothing_can_be_exchanged_sessions_move_to_free_sequences_alone() -> None:
    models = [toy(step_seconds=0.004, can_exchange=False) for _ in range(6)]
    assert any(_neighbours_decode_together(model, forgets=True) > 3 for model in models[:5])
    assert _neighbours_decode_together(models[5], forgets=False) == 0


def _neighbours_decode_together(model: ToyModel, forgets: bool) -> int:
    """Let the first and the last of four sessions loop; return their decodes side by side.

    Those between are forgotten, or stay idle with what they hold.
    """
    with running(model) as host:
        for session in (A, B, C, D):
            host.pin(session, True)
            result(host.submit(session, rows_of(LONG[:5])))
        for session in (B, C):
            if forgets:
                host.forget(session).result(PATIENCE)
            else:
                host.pin(session, False)

        def loop(session: bytes) -> list[Row]:
            for count in range(6, 56):
                rows = result(host.submit(session, rows_of(LONG[:count])))
            host.pin(session, False)
            return rows  # type: ignore[no-any-return]

        with ThreadPoolExecutor() as pool:
            rows = list(pool.map(loop, (A, D)))
    for [last] in rows:
        np.testing.assert_array_equal(last, fresh_rows(LONG[:55])[0])
    sequences = [[chunk.sequence for chunk in decode.chunks] for decode in model.decodes]
    assert [0] in sequences and [3] in sequences
    return sum(sorted(both) == [0, 1] for both in sequences)


def test_no_exchange_comes_between_a_copy_and_the_decode_that_carries_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "_FIRST_EXCHANGE", 0.0)
    model = toy(step_seconds=0.001)
    with running(model) as host:
        for session in (A, B, C, D):
            result(host.submit(session, rows_of(LONG[:40])))
        host.forget(C).result(PATIENCE)
        gate = Gate(model)
        loops = [host.submit(A, token_by_token(TEXT))]
        assert gate.entered.wait(PATIENCE)
        loops.append(host.submit(D, token_by_token(TEXT)))
        copied = host.submit(E, rows_of(LONG[:41]), wanted=LONG[:41])
        gate.open()
        np.testing.assert_array_equal(result(copied), fresh_rows(LONG[:41]))
        assert [result(loop) for loop in loops] == [len(TEXT)] * 2
        for session in (A, D):
            np.testing.assert_array_equal(
                result(host.submit(session, rows_of([*TEXT, 8])))[0], fresh_rows([*TEXT, 8])[0]
            )
    sequences = [[chunk.sequence for chunk in decode.chunks] for decode in model.decodes]
    assert any(sorted(those) == [0, 1] for those in sequences)
    assert LONG[40] in [c.token_ids[0] for d in model.decodes for c in d.chunks if c.position == 40]


# cancelling


def test_a_cancelled_job_ends_before_its_next_decode() -> None:
    model = toy()
    with running(model) as host:
        gate = Gate(model)
        ticket = host.submit(A, token_by_token(TEXT))
        assert gate.entered.wait(PATIENCE)
        host.cancel(ticket)
        gate.open()
        assert isinstance(failure(ticket), RoundSuperseded)
        assert held(host, A) == 1
    assert model.decode_count == 1


def test_a_job_that_is_cancelled_before_it_starts_never_runs() -> None:
    model = toy()
    with running(model) as host:
        gate = Gate(model)
        host.submit(A, rows_of(TEXT))
        assert gate.entered.wait(PATIENCE)
        waiting = host.submit(A, rows_of(TEXT[:3]))
        after = host.submit(A, rows_of([*TEXT, 8]))
        host.cancel(waiting)
        gate.open()
        assert isinstance(failure(waiting), RoundSuperseded)
        result(after)
        assert held(host, A) == len(TEXT) + 1


def test_a_cancelled_job_can_clean_up() -> None:
    model, cleaned = toy(), threading.Event()

    def job(lease: Lease) -> Generator[Step, list[Row], None]:
        try:
            while True:
                yield Step([5], 1)
        finally:
            cleaned.set()

    with running(model) as host:
        gate = Gate(model)
        ticket = host.submit(A, job)
        assert gate.entered.wait(PATIENCE)
        host.cancel(ticket)
        gate.open()
        failure(ticket)
        assert cleaned.is_set()


def test_cancelling_one_job_leaves_the_others_alone() -> None:
    model = toy()
    with running(model) as host:
        gate = Gate(model)
        first = host.submit(A, token_by_token(TEXT))
        other = host.submit(B, token_by_token(TEXT))
        assert gate.entered.wait(PATIENCE)
        host.cancel(first)
        gate.open()
        assert isinstance(failure(first), RoundSuperseded)
        assert result(other) == len(TEXT)


def test_cancelling_what_is_done_changes_nothing() -> None:
    with running(toy()) as host:
        ticket = host.submit(A, rows_of(TEXT))
        rows = result(ticket)
        host.cancel(ticket)
        settle(host)
        np.testing.assert_array_equal(result(ticket), rows)
        result(host.submit(A, rows_of([*TEXT, 8])))


# failing


def test_a_job_that_fails_fails_alone() -> None:
    model = toy()

    def failing(lease: Lease) -> Generator[Step, list[Row], None]:
        yield Step(TEXT, 1)
        raise ZeroDivisionError

    with running(model) as host:
        gate = Gate(model)
        host.submit(D, rows_of(TEXT))
        assert gate.entered.wait(PATIENCE)
        bad, good = host.submit(A, failing), host.submit(B, rows_of(TEXT[1:]))
        gate.open()
        assert isinstance(failure(bad), ZeroDivisionError)
        np.testing.assert_array_equal(result(good), fresh_rows(TEXT[1:]))
        np.testing.assert_array_equal(result(host.submit(A, rows_of(TEXT))), fresh_rows(TEXT))


def test_a_job_that_fails_before_its_first_step_fails_alone() -> None:
    def failing(lease: Lease) -> Generator[Step, list[Row], None]:
        raise ContextExhausted(9, 8)
        yield

    with running(toy()) as host:
        assert isinstance(failure(host.submit(A, failing)), ContextExhausted)
        result(host.submit(A, rows_of(TEXT)))


def test_a_decode_without_room_is_split_and_tried_again() -> None:
    model = toy()
    with running(model) as host:
        model.no_room_after = 8
        gate = Gate(model)
        host.submit(D, rows_of(TEXT))
        assert gate.entered.wait(PATIENCE)
        texts = {A: TEXT[:3], B: TEXT[3:6], C: TEXT[6:]}
        tickets = [host.submit(session, rows_of(text)) for session, text in texts.items()]
        gate.open()
        for ticket, text in zip(tickets, texts.values(), strict=True):
            np.testing.assert_array_equal(result(ticket), fresh_rows(text))
    assert [len(decode.chunks) for decode in model.decodes] == [1, 1, 2]


def test_a_decode_that_fails_for_one_session_fails_only_that_one() -> None:
    model = toy()

    def poison(chunks: Sequence[Chunk]) -> None:
        if any(13 in chunk.token_ids for chunk in chunks):
            raise DecodeFailed("llama_decode returned -3", llamaCode=-3)

    with running(model) as host:
        gate = Gate(model)
        host.submit(D, rows_of(TEXT))
        assert gate.entered.wait(PATIENCE)
        texts = {A: [5, 6], B: [5, 13], C: [5, 7]}
        a, b, c = (host.submit(session, rows_of(text)) for session, text in texts.items())
        model.before_decode = poison
        gate.open()
        np.testing.assert_array_equal(result(a), fresh_rows([5, 6]))
        np.testing.assert_array_equal(result(c), fresh_rows([5, 7]))
        assert isinstance(failure(b), DecodeFailed)
        np.testing.assert_array_equal(result(host.submit(B, rows_of([5, 8]))), fresh_rows([5, 8]))


def test_no_room_for_a_session_alone_is_busy() -> None:
    model = toy()

    def refuse(chunks: Sequence[Chunk]) -> None:
        raise NoRoom

    with running(model) as host:
        model.before_decode = refuse
        error = failure(host.submit(A, rows_of(TEXT)))
        assert isinstance(error, EngineBusy)
        assert error.retry_seconds > 0
        model.before_decode = None
        np.testing.assert_array_equal(result(host.submit(A, rows_of(TEXT))), fresh_rows(TEXT))


def test_a_text_longer_than_the_context_is_refused() -> None:
    with running(toy(context=64)) as host:
        error = failure(host.submit(A, rows_of(LONG[:65])))
        assert isinstance(error, ContextExhausted)
        assert error.capacity == 64
        result(host.submit(A, rows_of(LONG[:64])))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_ends_the_engine_visibly() -> None:
    def bug(chunks: Sequence[Chunk]) -> None:
        raise Misused("a bug")

    model = toy()
    with running(model) as host:
        model.before_decode = bug
        host.submit(A, rows_of(TEXT))
        assert isinstance(host.died.exception(PATIENCE), Misused)


# bounds


def test_a_full_queue_is_busy_at_once() -> None:
    model = toy()
    with running(model, queue_limit=2) as host:
        gate = Gate(model)
        first = host.submit(A, rows_of(TEXT))
        assert gate.entered.wait(PATIENCE)
        waiting = [host.submit(A, rows_of(TEXT)) for _ in range(2)]
        begin = time.perf_counter()
        with pytest.raises(EngineBusy, match="queue is full") as caught:
            host.submit(B, rows_of(TEXT))
        assert time.perf_counter() - begin < 0.5
        assert caught.value.retry_seconds > 0
        gate.open()
        for ticket in [first, *waiting]:
            result(ticket)
        result(host.submit(B, rows_of(TEXT)))


def test_places_in_the_queue_come_back_however_a_job_ends() -> None:
    def failing(lease: Lease) -> Generator[Step, list[Row], None]:
        raise ZeroDivisionError
        yield

    model = toy()
    with running(model, queue_limit=2) as host:
        for _ in range(5):
            failure(host.submit(A, failing))
            result(host.submit(A, rows_of(TEXT)))
            gate = Gate(model)
            host.submit(B, rows_of(TEXT))
            assert gate.entered.wait(PATIENCE)
            waiting = [host.submit(B, rows_of(TEXT)) for _ in range(2)]
            for ticket in waiting:
                host.cancel(ticket)
            gate.open()
            assert all(isinstance(failure(ticket), RoundSuperseded) for ticket in waiting)


def test_a_session_without_a_sequence_is_busy_after_a_while() -> None:
    with running(toy(sequence_count=2), room_seconds=0.1) as host:
        for session in (A, B):
            host.pin(session, True)
            result(host.submit(session, rows_of(TEXT)))
        begin = time.perf_counter()
        error = failure(host.submit(C, rows_of(TEXT)))
        waited = time.perf_counter() - begin
        assert isinstance(error, EngineBusy)
        assert error.retry_seconds == 0.1
        assert 0.1 <= waited < 2.0
        np.testing.assert_array_equal(result(host.submit(A, rows_of(TEXT))), fresh_rows(TEXT))


def test_a_session_waits_for_a_sequence_and_gets_it() -> None:
    with running(toy(sequence_count=1), room_seconds=PATIENCE) as host:
        host.pin(A, True)
        result(host.submit(A, rows_of(TEXT)))
        waiting = host.submit(B, rows_of(TEXT[1:]))
        settle(host)
        assert not waiting.future.done()
        host.pin(A, False)
        np.testing.assert_array_equal(result(waiting), fresh_rows(TEXT[1:]))
        assert held(host, A) == 0


@pytest.mark.fault(
    "others",
    "four clients that stop reading keep a target of four sessions from everybody",
    before="their sequences were held until the time limit of their requests",
    now="a stream that asked nothing for a second gives its sequence to one that needs it",
)
def test_an_idle_stream_gives_its_sequence_to_a_session_that_needs_one() -> None:
    with running(toy(sequence_count=1), room_seconds=PATIENCE) as host:
        host.pin(A, True)
        result(host.submit(A, rows_of(TEXT)))
        other = result(host.submit(B, rows_of(TEXT[1:])))
        np.testing.assert_array_equal(other, fresh_rows(TEXT[1:]))
        assert held(host, A) == 0
        np.testing.assert_array_equal(result(host.submit(A, rows_of(TEXT))), fresh_rows(TEXT))


def test_waiting_for_a_sequence_does_not_stop_others() -> None:
    with running(toy(sequence_count=1), room_seconds=PATIENCE) as host:
        host.pin(A, True)
        result(host.submit(A, rows_of(TEXT)))
        host.submit(B, rows_of(TEXT))
        result(host.submit(A, rows_of([*TEXT, 8])))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_job_that_waited_exactly_as_long_as_it_may_is_no_surprise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A clock that ticks 128 times a second: the deadline falls on a tick.
    coarse = lambda: math.floor(time.monotonic() * 128) / 128  # noqa: E731
    for module in (host_module, runner_module):
        monkeypatch.setattr(module, "perf_counter", coarse)
    with running(toy(sequence_count=1), room_seconds=8 / 128) as host:
        host.pin(A, True)
        result(host.submit(A, rows_of(TEXT)))
        waiting = host.submit(B, rows_of(TEXT)).future
        assert isinstance(waiting.exception(2.0), EngineBusy)


# the cache


def test_evicted_sessions_get_the_same_rows_again() -> None:
    texts = {session: [i, *TEXT, i] for i, session in enumerate((A, B, C, D, E), start=5)}
    with running(toy(sequence_count=2)) as host:
        for _ in range(3):
            for session, text in texts.items():
                rows = result(host.submit(session, rows_of(text, 2)))
                np.testing.assert_array_equal(rows, fresh_rows(text, 2))


def test_a_pinned_session_keeps_its_cells() -> None:
    model = toy(sequence_count=2)
    with running(model) as host:
        host.pin(A, True)
        result(host.submit(A, rows_of(TEXT)))
        for session in (B, C, D):
            result(host.submit(session, rows_of(TEXT[1:])))
        assert held(host, A) == len(TEXT)
        assert host.session_count() == 2


def test_a_new_session_copies_the_start_it_shares() -> None:
    model = toy(context=128)
    prompt = LONG[:40]
    with running(model) as host:
        result(host.submit(A, rows_of([*prompt, 5]), [*prompt, 5]))
        rows = result(host.submit(B, rows_of([*prompt, 6]), [*prompt, 6]))
        np.testing.assert_array_equal(rows, fresh_rows([*prompt, 6]))
        np.testing.assert_array_equal(
            result(host.submit(A, rows_of([*prompt, 5, 7]))), fresh_rows([*prompt, 5, 7])
        )
    assert [decode.token_count for decode in model.decodes] == [41, 1, 1]


def test_the_only_sequence_is_taken_over_with_the_start_it_shares() -> None:
    model = toy(context=128, sequence_count=1)
    prompt = LONG[:40]
    with running(model) as host:
        result(host.submit(A, rows_of([*prompt, 5]), [*prompt, 5]))
        rows = result(host.submit(B, rows_of([*prompt, 6]), [*prompt, 6]))
        np.testing.assert_array_equal(rows, fresh_rows([*prompt, 6]))
    assert [decode.token_count for decode in model.decodes] == [41, 1]


def test_truncating_cuts_and_cancels() -> None:
    model = toy()
    with running(model) as host:
        result(host.submit(A, rows_of(TEXT)))
        gate = Gate(model)
        ticket = host.submit(A, token_by_token(TEXT))
        assert gate.entered.wait(PATIENCE)
        count = host.truncate(A, 0)
        gate.open()
        assert count.result(PATIENCE) == 0
        assert isinstance(failure(ticket), RoundSuperseded)
        np.testing.assert_array_equal(result(host.submit(A, rows_of(TEXT))), fresh_rows(TEXT))


def test_truncating_to_more_than_is_held_keeps_what_is_held() -> None:
    with running(toy()) as host:
        result(host.submit(A, rows_of(TEXT)))
        assert host.truncate(A, 99).result(PATIENCE) == len(TEXT)
        assert host.truncate(A, 4).result(PATIENCE) == 4
        assert host.truncate(A, 6).result(PATIENCE) == 4
        assert host.truncate(B, 4).result(PATIENCE) == 0
        assert held(host, B) == 0


def test_a_forgotten_session_holds_nothing_and_frees_its_place() -> None:
    with running(toy(sequence_count=1)) as host:
        host.pin(A, True)
        result(host.submit(A, rows_of(TEXT)))
        host.forget(A).result(PATIENCE)
        assert host.session_count() == 0
        np.testing.assert_array_equal(
            result(host.submit(B, rows_of(TEXT[1:]))), fresh_rows(TEXT[1:])
        )


def test_idle_sessions_are_forgotten() -> None:
    with running(toy(), idle_seconds=0.05) as host:
        host.pin(B, True)
        for session in (A, B):
            result(host.submit(session, rows_of(TEXT)))
        deadline = time.monotonic() + PATIENCE
        while host.session_count() != 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert held(host, B) == len(TEXT)


# time


def test_a_job_is_told_where_its_time_went() -> None:
    def job(lease: Lease) -> Generator[Step, list[Row], Lease]:
        yield Step(TEXT, 1)
        time.sleep(0.02)
        return lease

    model = toy(step_seconds=0.02)
    with running(model) as host:
        spent = result(host.submit(A, job)).take_spent()
    assert 0.02 <= spent.decode < 1.0
    assert 0.0 <= spent.queue < 1.0
    assert spent.sample >= 0.02, "the time after the last rows counts"


def test_time_is_told_once() -> None:
    def job(lease: Lease) -> Generator[Step, list[Row], tuple[float, float]]:
        yield Step(TEXT, 1)
        return lease.take_spent().decode, lease.take_spent().decode

    with running(toy(step_seconds=0.01)) as host:
        first, second = result(host.submit(A, job))
    assert first >= 0.01
    assert second == 0.0


def test_what_is_cached_of_a_prompt_is_counted_while_others_decode() -> None:
    model = big_toy()
    with running(model) as host:
        host.submit(A, rows_of(LONG)).future.result(PATIENCE)
        gate = Gate(model)
        other = host.submit(B, rows_of(TEXT))
        assert gate.entered.wait(PATIENCE)
        with ThreadPoolExecutor(1) as asking:
            try:
                asked = asking.submit(host.cached_count, [*LONG[:1000], 2], b"")
                assert asked.result(PATIENCE) == 1000
            finally:
                gate.open()
        other.future.result(PATIENCE)


def test_steps_are_the_decodes_that_gave_rows() -> None:
    def job(lease: Lease) -> Generator[Step, list[Row], Lease]:
        yield Step(TEXT[:2], 0)
        yield Step(TEXT[2:3], 1)
        yield Step(TEXT[3:], 1)
        return lease

    with running(toy()) as host:
        spent = result(host.submit(A, job)).take_spent()
    assert spent.steps == 2


# loading and stopping


def test_an_engine_tells_what_it_measured() -> None:
    host = EngineHost(toy, HostOptions(numerics=Numerics.EXACT))
    loaded = host.start().result(PATIENCE)
    assert loaded.prepared.numerics is Numerics.EXACT
    assert loaded.model.pad_multiple == 2
    assert [each.rows for each in loaded.prepared.costs] == [2, 4, 6, 8, 12, 16, 24, 32]
    host.stop()


@pytest.mark.parametrize(
    ("wobble", "numerics"),
    [(1e-3, None), (1e-3, Numerics.EXACT), (0.0, Numerics.NATIVE), (1e-3, Numerics.NATIVE)],
)
def test_bits_that_vary_or_may_vary_are_said_to(wobble: float, numerics: Numerics | None) -> None:
    host = EngineHost(lambda: toy(wobble=wobble), HostOptions(numerics=numerics))
    loaded = host.start().result(PATIENCE)
    assert (loaded.prepared.numerics, loaded.model.pad_multiple) == (Numerics.NATIVE, 1)
    assert loaded.prepared.plain.exact is None
    host.stop()


@pytest.mark.parametrize(
    ("single_row_seconds", "numerics", "padding"),
    [(0.002, Numerics.NATIVE, 1), (0.02, Numerics.EXACT, 2)],
)
def test_exact_is_chosen_where_a_plain_token_costs_no_more_by_it(
    single_row_seconds: float, numerics: Numerics, padding: int
) -> None:
    model = toy()

    def take_time(chunks: Sequence[Chunk]) -> None:
        rows = sum(model.padded(len(chunk.token_ids)) for chunk in chunks)
        time.sleep(single_row_seconds if rows == 1 else 0.006)

    model.before_decode = take_time
    host = EngineHost(lambda: model, HostOptions(numerics=None))
    loaded = host.start().result(PATIENCE)
    assert (loaded.prepared.numerics, model.pad_multiple) == (numerics, padding)
    assert (
        loaded.prepared.plain.exact is not None
        and loaded.prepared.plain.native <= loaded.prepared.plain.exact
    )
    assert loaded.prepared.costs[0].rows == padding
    host.stop()


def test_measuring_leaves_no_tokens_behind() -> None:
    model = toy()
    with running(model):
        assert [model.held(sequence) for sequence in range(4)] == [()] * 4


def test_what_the_loader_raises_is_told() -> None:
    def load() -> Model:
        raise InvalidConfig("model", "no such file")

    host = EngineHost(load, HostOptions(numerics=Numerics.EXACT))
    with pytest.raises(InvalidConfig, match="no such file"):
        host.start().result(PATIENCE)
    host.stop()


def stop_while_decoding(host: EngineHost, gate: Gate) -> bool:
    """Stop the engine in the middle of a decode; return whether it soon ends after it."""
    stopping = threading.Thread(target=host.stop, daemon=True)
    stopping.start()
    time.sleep(0.05)
    gate.open()
    stopping.join(3.0)
    return not stopping.is_alive()


def test_stopping_fails_what_is_queued_and_what_is_under_way() -> None:
    model = toy()
    host = EngineHost(lambda: model, HostOptions(numerics=Numerics.EXACT))
    host.start().result(PATIENCE)
    gate = Gate(model)
    tickets = [host.submit(A, token_by_token(TEXT)) for _ in range(3)]
    assert gate.entered.wait(PATIENCE)
    tickets.append(host.submit(B, rows_of(TEXT)))
    assert stop_while_decoding(host, gate)
    assert all(isinstance(failure(ticket), OutriderError) for ticket in tickets)
    with pytest.raises(Misused, match="closed"):
        model.truncate(0, 0)


def test_an_idle_engine_stops_at_once() -> None:
    host = EngineHost(toy, HostOptions(numerics=Numerics.EXACT))
    host.start().result(PATIENCE)
    time.sleep(0.05)
    begin = time.perf_counter()
    host.stop()
    assert time.perf_counter() - begin < 1.0


LATE_CALLS: list[Callable[[EngineHost], Future[Any]]] = [
    lambda host: host.submit(A, rows_of(TEXT)).future,
    lambda host: host.held_count(A),
    lambda host: host.truncate(A, 0),
]


@pytest.mark.parametrize("call", LATE_CALLS, ids=["submit", "held_count", "truncate"])
def test_a_stopped_engine_refuses_and_leaves_nobody_waiting(
    call: Callable[[EngineHost], Future[Any]],
) -> None:
    host = EngineHost(toy, HostOptions(numerics=Numerics.EXACT))
    host.start().result(PATIENCE)
    host.stop()
    with pytest.raises(Draining):
        call(host).result(1.0)


# gains


def test_a_shared_decode_leaves_out_what_does_not_pay() -> None:
    model, text = toy(), [*TEXT, 3]  # two tokens beyond a multiple of four
    with running(model) as host:
        host._runner.scheduler.cost = CostTable(
            [(1, 0.010), (64, 0.640)]
        )  # rows are as expensive as decodes
        gate = Gate(model)
        first = host.submit(C, rows_of(TEXT))
        assert gate.entered.wait(PATIENCE)
        tickets = [host.submit(each, offering(text, 3, [0.1, 0.05])) for each in (A, B)]
        gate.open()
        assert len(result(first)) == 1
        for ticket in tickets:
            np.testing.assert_array_equal(result(ticket), fresh_rows(text[:-2]))
        assert (held(host, A), held(host, B)) == (len(text) - 2, len(text) - 2)


def test_a_session_alone_gets_all_that_it_offers() -> None:
    with running(toy()) as host:
        host._runner.scheduler.cost = CostTable([(1, 0.010), (64, 0.640)])
        assert len(result(host.submit(A, offering(TEXT, 3, [0.1, 0.05])))) == 3


# turns


class Refusing:
    """Somebody else's turn, a number of times."""

    cores_digest = b"shared"
    core_count = 2

    def __init__(self, count: int) -> None:
        self.log: list[str] = []
        self._left = count

    def take(self, now: float) -> float:
        self._left -= 1
        self.log.append("wait" if self._left >= 0 else "take")
        return 0.001 if self._left >= 0 else 0.0

    def give(self) -> None:
        self.log.append("give")

    def wait(self, seconds: float) -> None:
        self.log.append("load")


def test_what_comes_while_others_decode_joins_the_next_decode() -> None:
    model, turns = toy(), Refusing(300)
    host = EngineHost(lambda: model, HostOptions(numerics=Numerics.EXACT), lambda _: turns)
    assert host.start().result(PATIENCE).core_lock is turns
    model.decodes.clear()
    first = host.submit(A, rows_of(TEXT))
    settle(host)
    second = host.submit(B, rows_of(TEXT))
    assert len(result(first)) == len(result(second)) == 1
    host.stop()
    assert model.decode_count == 1
    assert turns.log == ["load", "give"] + ["wait"] * 300 + ["take", "give"]


# memory that lets go


def test_what_the_memory_no_longer_has_is_read_again() -> None:
    model = toy(lets_go_below=20)
    with running(model) as host:
        result(host.submit(A, rows_of(LONG[:30])))
        [row] = result(host.submit(A, rows_of(LONG[:25])))
        np.testing.assert_array_equal(row, fresh_rows(LONG[:25])[0])
        [row] = result(host.submit(A, rows_of(LONG[:12])))
        np.testing.assert_array_equal(row, fresh_rows(LONG[:12])[0])
    lengths = [(c.position, len(c.token_ids)) for d in model.decodes for c in d.chunks]
    assert lengths[-2:] == [(24, 1), (0, 12)]


# --- another draft ---


def asking(text: Sequence[int], count: int, model: Model) -> Job:
    """Return a job that returns what the engine's own draft drafts after a text."""
    guess = guesser(model, OPENING, 1, 0.0)

    def job(lease: Lease) -> Generator[Step | DraftAsk, Any, list[int]]:
        yield Step(lease.reconcile(list(text), 1), 1)
        guesses = yield DraftAsk(list(text), count, guess)
        return [guess.token_id for guess in guesses]

    return job


def drafted(host: EngineHost, model: Model) -> list[int]:
    ids: list[int] = result(host.submit(A, asking(TEXT, 3, model)))
    return ids


def test_another_draft_takes_the_place_of_the_one_before_which_is_closed() -> None:
    model, old, new = toy(), toy(seed=2), toy(seed=3)
    with running(model) as host:
        assert drafted(host, model) == []
        for each in (old, new):
            host.replace_draft(lambda _, its=each: partial(ModelDraft, its))
            expected = list(generate_alone(each, TEXT, 3, GREEDY, 0))
            assert drafted(host, model) == expected
        with pytest.raises(Misused):
            old.decode([Chunk(0, 0, [5], 1)])


def test_a_draft_that_cannot_be_made_leaves_the_one_before() -> None:
    model, old = toy(), toy(seed=2)

    def refuse(*_: object) -> Any:
        raise InvalidConfig("draft-model", "is damaged")

    with running(model) as host:
        host.replace_draft(lambda _: partial(ModelDraft, old))
        before = drafted(host, model)
        for load in (refuse, lambda _: refuse):
            with pytest.raises(InvalidConfig):
                host.replace_draft(load)
        assert drafted(host, model) == before and before


def test_a_draft_is_loaded_beside_decodes_and_the_model_stays_for_it() -> None:
    model, loading, loaded = toy(), threading.Event(), threading.Event()

    def load(target: Model) -> Any:
        loading.set()
        assert loaded.wait(PATIENCE)
        target.describe()
        assert not model._closed
        return partial(ModelDraft, toy(seed=2))

    with running(model) as host, ThreadPoolExecutor(2) as pool:
        replaced = pool.submit(host.replace_draft, load)
        assert loading.wait(PATIENCE)
        result(host.submit(A, rows_of(TEXT)))  # who writes is not held up
        stopped = pool.submit(host.stop)
        time.sleep(0.05)
        assert not stopped.done()
        loaded.set()
        assert isinstance(replaced.exception(PATIENCE), Draining)
        stopped.result(PATIENCE)
        with pytest.raises(Draining):
            host.replace_draft(load)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_replaces_a_draft_learns_that_the_engine_failed() -> None:
    def bug(chunks: Sequence[Chunk]) -> None:
        raise Misused("a bug")

    model = toy()
    with running(model) as host:
        model.before_decode = bug

        def load(_: Model) -> Any:
            host.submit(A, rows_of(TEXT))
            assert host.died.exception(PATIENCE)
            return partial(ModelDraft, toy(seed=2))

        with pytest.raises(Draining):
            host.replace_draft(load)
