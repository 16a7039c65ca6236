"""Rows of several sessions are sampled side by side, and everybody gets what one thread gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.engine import workers as workers_module
from outrider.engine.host import EngineHost
from outrider.engine.hosting import HostOptions
from outrider.engine.job import Job, Lease, Step, Ticket
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_candidates import Candidates
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.llama_sampling import ChainSampler, Links
from outrider.engine.model import Chunk, Numerics, Row, Sampler
from outrider.engine.workers import Work, Workers, WorkResult
from outrider.errors import Draining, RoundSuperseded
from outrider.messages import Answer, Form, LogprobOptions, Round, Rule, SessionParameters, Span
from outrider.model_service import run as run_module
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import count_helpers
from outrider.sampling import SamplingParameters
from target_service.verifier import Verifier
from tests.support.tiny_gguf import Shape, write_model
from tests.support.toy import ToyModel

PATIENCE = 30.0
SIZE = 320
TEXT = [0, 12, 40, 7]
SESSIONS = [bytes([i]) * 16 for i in range(1, 7)]
SAMPLINGS = [
    SamplingParameters(temperature=0.0),
    SamplingParameters(repeat_penalty=1.3, presence_penalty=0.5),
    SamplingParameters(dry_multiplier=0.8, dry_allowed_length=1),
    SamplingParameters(grammar="root ::= [a-f]+ [0-9] root | [x-z]"),
    SamplingParameters(mirostat=2),
    SamplingParameters(xtc_probability=0.5, xtc_threshold=0.02, top_k=0),
]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any two works be worth a thread, once one of them was timed."""
    monkeypatch.setattr(workers_module, "_LEAST_SECONDS", 1e-12)


def run(workers: Workers[int], works: Sequence[Callable[[], Any]]) -> list[WorkResult]:
    """Run works for the owners 0, 1, ...; return what came of each of them."""
    for owner, each in enumerate(works):
        workers.add(owner, Work(each))
    owners, outcomes = zip(*workers.outcomes(), strict=True)
    assert owners == tuple(range(len(works)))
    return list(outcomes)


def met(barrier: threading.Barrier) -> int:
    """Return what thread this is, once as many have come as the barrier wants."""
    barrier.wait(PATIENCE)
    return threading.get_ident()


@contextmanager
def warm(most: int) -> Iterator[Workers[int]]:
    """Lend workers that have timed a work, and end their threads."""
    workers = Workers[int](most)
    run(workers, [threading.get_ident])
    yield workers
    threads = list(workers._threads)
    workers.stop()
    assert not any(thread.is_alive() for thread in threads)


# Workers


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("most", [0, 1, 3])
def test_outcomes_come_in_order_whatever_thread_they_are_of(most: int) -> None:
    with warm(most) as workers:
        for count in (1, 2, 5, 40):
            outcomes = run(workers, [lambda i=i: i * i for i in range(count)])  # type: ignore[misc]
            assert [each.value for each in outcomes] == [i * i for i in range(count)]
            assert all(each.error is None and each.seconds >= 0 for each in outcomes)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("most", [1, 3])
def test_works_run_at_the_same_time(most: int) -> None:
    with warm(most) as workers:
        barrier = threading.Barrier(most + 1)
        idents = {each.value for each in run(workers, [lambda: met(barrier)] * (most + 1))}
    assert len(idents) == most + 1 and threading.get_ident() in idents


@pytest.mark.usefixtures("always")
def test_outcomes_come_in_order_where_the_first_work_ends_last() -> None:
    """Whoever runs the first work waits in it, and then runs the last one."""

    with warm(1) as workers:
        first_ends, last_begins = threading.Event(), threading.Event()
        works = [
            lambda: first_ends.wait(PATIENCE),
            lambda: 1,
            first_ends.set,
            lambda: last_begins.wait(PATIENCE),
            last_begins.set,
        ]
        assert [each.value for each in run(workers, works)] == [True, 1, None, True, None]


@pytest.mark.usefixtures("always")
def test_one_work_stays_in_its_thread_and_needs_no_other() -> None:
    with warm(3) as workers:
        assert run(workers, [threading.get_ident])[0].value == threading.get_ident()
        assert not workers._threads


def test_what_takes_less_than_waking_a_thread_stays_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "_LEAST_SECONDS", 1e6)
    with warm(3) as workers:
        idents = {each.value for each in run(workers, [threading.get_ident] * 20)}
        assert idents == {threading.get_ident()} and not workers._threads


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("most", [0, 3])
def test_what_works_returned_is_finished_at_once_without_those_that_failed(most: int) -> None:
    asked: list[Sequence[int]] = []

    def finish(values: Sequence[int]) -> Sequence[int]:
        asked.append(values)
        return [10 * each for each in values]

    def fail() -> int:
        raise ValueError

    with warm(most) as workers:
        for owner, run_it in enumerate([lambda: 1, fail, lambda: 3, lambda: 4]):
            workers.add(owner, Work(run_it, None if owner == 2 else finish))
        outcomes = [outcome for _, outcome in workers.outcomes()]
    assert asked == [[1, 4]]
    assert [each.value for each in outcomes] == [10, None, 3, 40]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("most", [0, 1, 3])
@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), StopIteration(3)])
def test_an_error_is_the_outcome_of_its_work_alone(most: int, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with warm(most) as workers:
        for _ in range(3):
            outcomes = run(workers, [lambda: 1, fail, lambda: 2, lambda: 3])
            assert [each.error for each in outcomes] == [None, error, None, None]
            assert [each.value for each in outcomes] == [1, None, 2, 3]


@pytest.mark.usefixtures("always")
def test_works_run_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with warm(3) as workers, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert [each.value for each in run(workers, [lambda: 7] * 4)] == [7] * 4


# chains of samplers


@pytest.fixture(scope="module")
def samplers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", shape=Shape(layers=1))
    config = LlamaConfig(path=path, context=128, sequence_count=1, thread_count=1, pad_multiple=1)
    model = LlamaModel(config)
    yield model
    model.close()


class Pause:
    """A stage of a chain that waits in its midst, with the row half sampled."""

    def __init__(self) -> None:
        self.entered, self.ends = threading.Event(), threading.Event()

    def apply(self, candidates: Candidates) -> None:
        self.entered.set()
        assert self.ends.wait(PATIENCE)

    def accept(self, token_id: int) -> None:
        return None

    def clone(self) -> Pause:
        return self


def test_two_threads_sample_with_one_models_chains_without_seeing_each_other(
    samplers: LlamaModel,
) -> None:
    plain = samplers.sampler(SamplingParameters(top_k=40), 1, 0)
    assert isinstance(plain, ChainSampler)
    pause = Pause()
    waiting = ChainSampler(
        SamplingParameters(), plain._desk, Links([], None, [*plain._links.cuts, pause], None)
    )
    rows = np.random.default_rng(1).normal(scale=3.0, size=(2, SIZE)).astype(np.float32)
    expected = plain.distribution(rows[0])
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(waiting.distribution, rows[0])
        assert pause.entered.wait(PATIENCE)
        plain.distribution(rows[1])
        pause.ends.set()
        found = future.result(PATIENCE)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_array_equal(found.weights, expected.weights)


# jobs of a host


class ToyWithChains(ToyModel):
    """A toy whose rows are sampled by llama.cpp's chains."""

    chains: LlamaModel

    def sampler(self, parameters: SamplingParameters, seed: int = 0, choice: int = 0) -> Sampler:
        """Return a chain of the other model."""
        return self.chains.sampler(parameters, seed, choice)


class Gate:
    """Holds the engine's thread inside its decodes until it is opened."""

    def __init__(self, model: ToyModel) -> None:
        self.entered, self._open = threading.Event(), threading.Event()
        model.before_decode = self._wait

    def _wait(self, chunks: Sequence[Chunk]) -> None:
        self.entered.set()
        assert self._open.wait(PATIENCE)

    def open(self) -> None:
        self._open.set()


@contextmanager
def running(model: ToyModel, helpers: int) -> Iterator[EngineHost]:
    options = HostOptions(
        numerics=Numerics.EXACT, room_seconds=PATIENCE, count_helpers=lambda _: helpers
    )
    host = EngineHost(lambda: model, options)
    host.start().result(PATIENCE)
    yield host
    host.stop()


def toy(**options: Any) -> ToyModel:
    return ToyModel(**{"order": 4096, "context": 64, "sequence_count": 8} | options)


def submit_together(host: EngineHost, model: ToyModel, jobs: Sequence[Job]) -> list[Ticket]:
    """Submit a job for each session; their first steps share a decode."""
    gate = Gate(model)
    first = host.submit(bytes(16), stepping(1))
    assert gate.entered.wait(PATIENCE)
    tickets = [host.submit(*each) for each in zip(SESSIONS, jobs, strict=False)]
    gate.open()
    first.future.result(PATIENCE)
    return tickets


def stepping(count: int, work: Callable[[], Any] = lambda: None) -> Job:
    """Return a job of so many decodes, and of work after each of them; it returns the values."""

    def job(lease: Lease) -> Generator[Step | Work, Any, list[Any]]:
        lease.keep(0)
        values = []
        for token_id in range(5, 5 + count):
            yield Step([token_id], 1)
            values.append((yield Work(work)))
        return values

    return job


def writing(model: ToyModel, number: int, answers: list[Answer]) -> Job:
    """Return a job that verifies a draft and then writes by itself, with everything reported."""
    opening = SessionParameters(
        session_id=SESSIONS[number],
        attempt=1,
        rule=Rule.SHARED_NOISE,
        sampling=SAMPLINGS[number],
        seed=number,
        choice=0,
        prompt_count=len(TEXT),
        token_limit=40,
        vocabulary=SIZE,
        candidate_count=2,
        logprobs=LogprobOptions(2, after_sampling=True),
    )
    verifier = Verifier(model, opening)
    round_ = Round(1, Span(0, TEXT), [9, 70], Form.SAMPLED, continue_count=30)
    return lambda lease: verifier.verify(lease, round_, answers.append)


@pytest.mark.usefixtures("always")
def test_sessions_write_the_same_with_any_number_of_threads(samplers: LlamaModel) -> None:
    written = []
    for helpers in (0, 1, 3):
        model = ToyWithChains(context=64, sequence_count=8, vocabulary_size=SIZE, order=5)
        model.chains = samplers
        with running(model, helpers) as host:
            answers = [list[Answer]() for _ in SESSIONS]
            jobs = [writing(model, i, its) for i, its in enumerate(answers)]
            for ticket in submit_together(host, model, jobs):
                ticket.future.result(PATIENCE)
            assert len(host._runner._workers._threads) == helpers
        written.append([[each.rows for each in its] for its in answers])
    assert all(sum(len(rows.sampled) for rows in its) > 20 for its in written[0])
    assert written[0] == written[1] == written[2]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_an_error_of_a_work_ends_its_ticket_alone(helpers: int) -> None:
    counts = [0, 0]

    def fails_later(number: int) -> None:
        counts[number] += 1
        if counts[number] == 3:
            raise ValueError("of the work")

    model = toy()
    with running(model, helpers) as host:
        jobs = [
            stepping(6, lambda: 1),
            stepping(6, lambda: fails_later(0)),
            stepping(6, lambda: 2),
            stepping(6, lambda: fails_later(1)),
        ]
        one, bad, two, worse = submit_together(host, model, jobs)
        assert one.future.result(PATIENCE) == [1] * 6
        assert two.future.result(PATIENCE) == [2] * 6
        for ticket in (bad, worse):
            error = ticket.future.exception(PATIENCE)
            assert isinstance(error, ValueError) and str(error) == "of the work"
        again = host.submit(SESSIONS[1], stepping(2, lambda: 3))
        assert again.future.result(PATIENCE) == [3, 3]
    assert not host.died.done()


def test_a_job_may_handle_the_error_of_its_work() -> None:
    def fail() -> None:
        raise ValueError("mended")

    def job(lease: Lease) -> Generator[Step | Work, Any, str]:
        yield Step([5], 1)
        try:
            yield Work(fail)
        except ValueError as error:
            return str(error)
        return "nothing"

    with running(toy(), 0) as host:
        assert host.submit(SESSIONS[0], job).future.result(PATIENCE) == "mended"


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("helpers", [0, 3])
def test_a_job_that_is_cancelled_in_its_work_ends_before_its_next_decode(helpers: int) -> None:
    entered, ends = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert ends.wait(PATIENCE)

    model = toy()
    with running(model, helpers) as host:
        jobs = [stepping(3, wait), stepping(3, lambda: 1), stepping(3, lambda: 2)]
        cancelled, *others = submit_together(host, model, jobs)
        assert entered.wait(PATIENCE)
        host.cancel(cancelled)
        ends.set()
        assert isinstance(cancelled.future.exception(PATIENCE), RoundSuperseded)
        assert [each.future.result(PATIENCE) for each in others] == [[1] * 3, [2] * 3]
        assert host.held_count(SESSIONS[0]).result(PATIENCE) == 1


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("helpers", [0, 3])
def test_an_engine_that_stops_waits_for_the_works_in_flight(helpers: int) -> None:
    entered, ends = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert ends.wait(PATIENCE)

    model = toy()
    with running(model, helpers) as host:
        tickets = submit_together(host, model, [stepping(40, wait), stepping(40, wait)])
        assert entered.wait(PATIENCE)
        stopping = threading.Thread(target=host.stop)
        stopping.start()
        deadline = time.monotonic() + PATIENCE
        while host._inbox.empty():  # until the engine is about to be stopped
            assert time.monotonic() < deadline
            time.sleep(0.001)
        ends.set()
        stopping.join(PATIENCE)
        assert not stopping.is_alive()
        for ticket in tickets:
            assert isinstance(ticket.future.exception(PATIENCE), Draining)


def test_a_work_may_come_before_the_first_decode() -> None:
    def job(lease: Lease) -> Generator[Step | Work, Any, tuple[int, int]]:
        first = yield Work(lambda: 4)
        rows: list[Row] = yield Step([5], 1)
        return first, len(rows)

    with running(toy(), 0) as host:
        assert host.submit(SESSIONS[0], job).future.result(PATIENCE) == (4, 1)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("helpers", [0, 3])
def test_the_time_of_a_work_counts_as_sampling(helpers: int) -> None:
    spent: list[float] = []

    def busy() -> None:
        begin = time.thread_time()
        while time.thread_time() < begin + 0.02:
            pass

    def job(lease: Lease) -> Generator[Step | Work, Any, None]:
        yield Step([5], 1)
        yield Work(busy)
        yield Step([6], 1)
        spent.append(lease.spent.sample)

    model = toy()
    with running(model, helpers) as host:
        for ticket in submit_together(host, model, [job, job]):
            ticket.future.result(PATIENCE)
    assert len(spent) == 2 and min(spent) >= 0.02


# how many


@pytest.mark.parametrize(
    ("cores", "threads", "of_batches", "is_on_gpu", "helpers"),
    [
        (2, 2, 0, False, 0),
        (2, 1, 0, False, 1),
        (2, 1, 2, False, 0),
        (4, 6, 0, False, 0),
        (32, 8, 0, False, 4),  # no more, however many are left
        (4, 4, 0, True, 3),  # a GPU leaves all but the engine's own
        (1, 1, 0, True, 0),
    ],
)
def test_there_are_no_more_threads_than_the_model_leaves_cores(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    threads: int,
    of_batches: int,
    is_on_gpu: bool,
    helpers: int,
) -> None:
    monkeypatch.setattr(run_module, "available_threads", lambda: cores)
    config = ModelConfig(model=Path("model.gguf"), threads_batch=of_batches)
    described = replace(ToyModel().describe(), thread_count=threads, is_on_gpu=is_on_gpu)
    assert count_helpers(config, described) == helpers
