"""Jobs outlive the orchestrator that they were submitted to, where it keeps them on disk."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from orchestrator.jobs import MAX_ATTEMPTS, MOST_RESPONSES, Jobs, job_log
from orchestrator.log import Log
from orchestrator.metering import counted
from orchestrator.store import Store
from outrider.access import ANYONE, Access, Caller, current_caller, work_for
from outrider.errors import InvalidConfig, LimitReached, NotFound, StateUnavailable
from outrider.grants import Grant
from outrider.limits import NO_LIMITS, TokenLimits
from outrider.messages import FinishReason, Origin, Rule
from outrider.request import Request
from outrider.response import Delta, Event, Finished, Started, Statistics, TextPiece
from outrider.rpc.channel import open_channel
from outrider.sampling import SamplingParameters
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from outrider.wire import write_sampling
from tests.support.gated import GatedModel, load_gated
from tests.support.processes import ServiceProcess
from tests.support.sampling_table import LETTERS
from tests.support.services import (
    DRAFT,
    PATIENCE,
    TARGET,
    Completion,
    Gate,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.tiny_gguf import Shape, write_model
from tests.support.toy import NEVER, ToyModel

CANCELLED = messages.FINISH_REASON_CANCELLED


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def ending() -> ToyModel:
    return toy(seed=1, eos_bias=2.0)


def drafter() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.9, eos_bias=NEVER)


async def submit(stub: Any, asked: messages.GenerateRequest) -> str:
    submission = messages.SubmitGenerationRequest(request=asked)
    response = await stub.SubmitGeneration(submission, timeout=PATIENCE)
    return str(response.job_id)


async def poll(
    stub: Any, job_id: str, cursor: int = 0, wait: float = 5.0
) -> messages.PollGenerationResponse:
    asked = messages.PollGenerationRequest(job_id=job_id, cursor=cursor)
    asked.wait_duration.FromMilliseconds(int(1e3 * wait))
    response: messages.PollGenerationResponse = await stub.PollGeneration(asked, timeout=PATIENCE)
    return response


class Client:
    """Polls one job; fails where anything comes twice, or after the end."""

    def __init__(self, job_id: str, count: int = 1) -> None:
        self.job_id = job_id
        self.cursor = 0
        self.completions = [Completion() for _ in range(count)]
        self.failure: messages.JobError | None = None
        self.is_over = False

    async def poll(self, stub: Any) -> None:
        assert not self.is_over
        polled = await poll(stub, self.job_id, self.cursor)
        assert polled.next_cursor == self.cursor + len(polled.responses)
        self.cursor, self.is_over = polled.next_cursor, polled.finished
        for each in polled.responses:
            assert self.completions[each.choice_index].finished is None
            self.completions[each.choice_index].add(each)
        self.failure = polled.error if polled.HasField("error") else None

    async def to_the_end(self, stub: Any) -> list[Completion]:
        while not self.is_over:
            await self.poll(stub)
        return self.completions


# --- a process that is killed ---


@asynccontextmanager
async def orchestrator_process(target: str, state: Path) -> AsyncIterator[tuple[Any, Any]]:
    """Yield an orchestrator in a process of its own, and a client of it."""
    options = ("--target", target, "--no-draft", "--state", str(state))
    process = ServiceProcess("orchestrator", *options)
    process.start()
    try:
        await process.wait_until_serving()
        async with open_channel(process.address) as channel:
            yield process, OrchestratorServiceStub(channel)
    finally:
        process.stop()


async def until_serving(process: ServiceProcess) -> None:
    process.start()
    await process.wait_until_serving()


@pytest.mark.fault(
    "restart",
    "The orchestrator is killed while jobs run, and after others have ended",
    before="All of them were lost, and a poll said that there is no such job.",
    now="With --state each is still to be polled, and continues after its last token.",
)
async def test_jobs_are_polled_to_their_ends_after_kill_9(tmp_path: Path) -> None:
    async with running(ModelProcess(TARGET, target)) as service:  # noqa: SIM117 - it needs its address
        async with orchestrator_process(service.address, tmp_path) as (process, stub):
            asked = [request(seed=seed, token_limit=40) for seed in (3, 4)]
            over = Client(await submit(stub, asked[0]))
            while (await poll(stub, over.job_id)).finished is False:
                pass  # the end is there; nothing of it was taken
            gate = Gate(service.model, passes=10)
            running_job = Client(await submit(stub, asked[1]))
            await gate.reached()
            await running_job.poll(stub)
            before = len(running_job.completions[0].token_ids)
            assert 0 < before < 40
            process.kill()
            await gate.open()
            await until_serving(process)
            for client, its in ((over, asked[0]), (running_job, asked[1])):
                [completion] = await client.to_the_end(stub)
                assert completion.token_ids == written_alone(target(), its)
                assert completion.finished is not None
                assert completion.statistics.generated_token_count == 40
            process.kill()
            await until_serving(process)
            polled = await poll(stub, over.job_id, over.cursor)
            assert polled.finished and not polled.responses


async def test_a_job_submitted_again_after_a_restart_is_the_same_job(tmp_path: Path) -> None:
    asked = messages.SubmitGenerationRequest(
        request=request(token_limit=20), idempotency_key="a key"
    )
    async with running(ModelProcess(TARGET, target)) as service:
        async with running(OrchestratorProcess(service.address, state=tmp_path)) as before:
            first = await before.stub.SubmitGeneration(asked, timeout=PATIENCE)
        async with running(OrchestratorProcess(service.address, state=tmp_path)) as after:
            again = await after.stub.SubmitGeneration(asked, timeout=PATIENCE)
            assert again == first
            assert (await after.status()).job_count == 1
            [completion] = await Client(again.job_id).to_the_end(after.stub)
            assert completion.token_ids == written_alone(target(), asked.request)
            asked.request.seed += 1
            with pytest.raises(grpc.aio.AioRpcError, match="another request"):
                await after.stub.SubmitGeneration(asked, timeout=PATIENCE)


async def test_a_key_is_forgotten_with_its_job(tmp_path: Path) -> None:
    asked = messages.SubmitGenerationRequest(
        request=request(token_limit=2), idempotency_key="a key"
    )
    async with (
        running(ModelProcess(TARGET, target)) as service,
        running(OrchestratorProcess(service.address, state=tmp_path, jobs=1)) as orchestrator,
    ):
        first = await orchestrator.stub.SubmitGeneration(asked, timeout=PATIENCE)
        await Client(first.job_id).to_the_end(orchestrator.stub)
        other = await submit(orchestrator.stub, request(token_limit=2))  # takes its place
        await Client(other).to_the_end(orchestrator.stub)
        again = await orchestrator.stub.SubmitGeneration(asked, timeout=PATIENCE)
        assert again.job_id not in (first.job_id, other)
        await orchestrator.close()
        with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as file:
            found = file.execute("SELECT count(*) FROM submissions WHERE key != x''").fetchone()
        assert found == (1,)
        await orchestrator.start()


# --- every kind of request, interrupted ---


def plain(**options: Any) -> messages.GenerateRequest:
    """Return a request with these fields, too."""
    asked = request(token_limit=40)
    asked.MergeFrom(messages.GenerateRequest(**options))
    return asked


# What the toy model does not sample is asked of a tiny real one, below.
SHIFTING = messages.ContextOverflow(shift=True, keep_token_count=4)
KINDS: dict[str, Callable[[], messages.GenerateRequest]] = {
    "shared noise": lambda: request(token_limit=40),
    "greedy": lambda: request(token_limit=40, temperature=0.0),
    "logprobs": lambda: plain(logprobs=messages_logprobs(3)),
    "prompt logprobs": lambda: plain(logprobs=messages_logprobs(2), prompt_logprobs=True),
    "beams": lambda: plain(beam_count=3),
    "three texts": lambda: plain(completion_count=3),
    "reports": lambda: plain(round_detail=messages.ROUND_DETAIL_TOKENS),
    "statistics": lambda: plain(running_statistics=True),
    "a full context": lambda: request(token_limit=-1),
    "a character to finish": lambda: plain(finish_character=True),
    "a context that shifts": lambda: shifting(),  # noqa: PLW0108 - defined below
}


def messages_logprobs(count: int) -> Any:
    return common.LogprobOptions(top_count=count)


def shifting() -> messages.GenerateRequest:
    asked = request(token_limit=290)
    asked.overflow.CopyFrom(SHIFTING)
    return asked


async def interrupted(
    service: ModelProcess,
    asked: messages.GenerateRequest,
    state: Path,
    passes: int,
    draft: str = "",
) -> list[Completion]:
    """Return what a job brings whose orchestrator stops after some decodes, and comes back."""
    orchestrator = OrchestratorProcess(service.address, draft, state=state)
    await orchestrator.start()
    await orchestrator.until_ready()
    gate = Gate(service.model, passes=passes)
    client = Client(await submit(orchestrator.stub, asked), max(1, asked.completion_count))
    await gate.reached()
    await orchestrator.close()
    await gate.open()
    await orchestrator.start()
    try:
        return await client.to_the_end(orchestrator.stub)
    finally:
        await orchestrator.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_interrupted_job_brings_what_it_would_have_brought(
    tmp_path: Path, kind: str
) -> None:
    asked = KINDS[kind]()
    async with running(ModelProcess(TARGET, target)) as service:
        async with running(OrchestratorProcess(service.address, state=tmp_path / "w")) as whole:
            client = Client(await submit(whole.stub, asked), max(1, asked.completion_count))
            expected = await client.to_the_end(whole.stub)
        for passes in (20, 265) if "shifts" in kind else (1, 25):
            await service.restart()
            found = await interrupted(service, asked, tmp_path / str(passes), passes)
            check_equal(found, expected)


def check_equal(found: list[Completion], expected: list[Completion]) -> None:
    for its, one in zip(found, expected, strict=True):
        assert its.finished is not None and one.finished is not None
        assert (its.token_ids, its.text) == (one.token_ids, one.text)
        assert its.finished.reason == one.finished.reason
        assert its.finished.truncated == one.finished.truncated
        assert its.logprobs == one.logprobs
        count = one.statistics.generated_token_count
        assert its.statistics.generated_token_count == count
        assert its.statistics.prompt_token_count == one.statistics.prompt_token_count


# --- samplers, grammars and stop sequences, with a real model ---


REAL_KINDS: dict[str, SamplingParameters] = {
    "penalties": SamplingParameters(repeat_penalty=1.3),
    "mirostat": SamplingParameters(mirostat=2, mirostat_tau=3.0),
    "mirostat 1": SamplingParameters(mirostat=1, mirostat_tau=3.0),
    "a grammar": SamplingParameters(grammar=LETTERS),
    "DRY": SamplingParameters(dry_multiplier=0.8, dry_allowed_length=1),
}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target.gguf", shape=Shape(layers=1))


@pytest.mark.parametrize("kind", REAL_KINDS)
@pytest.mark.parametrize("passes", [1, 20])
async def test_samplers_go_on_where_they_were(
    tmp_path: Path, model_path: Path, kind: str, passes: int
) -> None:
    asked = messages.GenerateRequest(
        prompt_text="for line in lines: print(line)\nfor line in",
        sampling=write_sampling(REAL_KINDS[kind]),
        seed=5,
        token_limit=40,
        logprobs=common.LogprobOptions(top_count=2),
    )

    def load() -> GatedModel:
        return load_gated(model_path)

    async with running(ModelProcess(TARGET, load)) as service:
        async with running(OrchestratorProcess(service.address, state=tmp_path / "w")) as whole:
            client = Client(await submit(whole.stub, asked))
            expected = await client.to_the_end(whole.stub)
        await service.restart()
        check_equal(await interrupted(service, asked, tmp_path, passes), expected)


async def test_a_stop_sequence_that_is_half_there_is_found_after_a_restart(tmp_path: Path) -> None:
    asked = request(token_limit=60)
    async with running(ModelProcess(TARGET, target)) as service:
        async with running(OrchestratorProcess(service.address)) as alone:
            text = (await generate(alone, asked)).text
        # A stop sequence of many tokens, so that the restart is within it.
        asked.stop_sequences.append(text[len(text) // 4 : len(text) // 4 + 40])
        async with running(OrchestratorProcess(service.address)) as alone:
            expected = await generate(alone, asked)
        assert expected.finished is not None and expected.finished.stop_sequence
        count = len(expected.token_ids)
        for passes in (count // 3, count - 2):
            await service.restart()
            [its] = await interrupted(service, asked, tmp_path / str(passes), passes)
            assert (its.text, its.token_ids) == (expected.text, expected.token_ids)
            assert its.finished is not None
            assert its.finished.stop_sequence == expected.finished.stop_sequence


@pytest.mark.parametrize("rule", ["MATCH", "REJECTION"])
async def test_a_drafted_job_goes_on_with_its_draft(tmp_path: Path, rule: str) -> None:
    temperature = 0.0 if rule == "MATCH" else 0.8
    asked = request(token_limit=40, temperature=temperature)
    asked.speculative.acceptance = common.AcceptanceRule.Value(f"ACCEPTANCE_RULE_{rule}")
    async with (
        running(ModelProcess(TARGET, target)) as service,
        running(ModelProcess(DRAFT, drafter)) as draft,
    ):
        [its] = await interrupted(service, asked, tmp_path, 5, draft.address)
    assert its.finished is not None
    assert its.finished.reason == messages.FINISH_REASON_TOKEN_LIMIT
    assert len(its.token_ids) == 40
    assert its.statistics.drafted_token_count > 0
    if rule == "MATCH":
        assert its.token_ids == written_alone(target(), asked)


@pytest.mark.parametrize("passes", [2, 6, 12])
async def test_a_text_that_was_over_before_its_end_was_stored_ends(
    tmp_path: Path, passes: int
) -> None:
    """Whatever is missing of the last responses, the job ends as it would have."""
    asked = request(token_limit=200)
    async with running(ModelProcess(TARGET, ending)) as service:
        async with running(OrchestratorProcess(service.address, state=tmp_path)) as whole:
            client = Client(await submit(whole.stub, asked))
            [expected] = await client.to_the_end(whole.stub)
        file = sqlite3.connect(tmp_path / "jobs.sqlite")
        [end] = file.execute("SELECT max(number) FROM events").fetchone()
        for lost in range(1, min(passes, end)):
            with file:
                file.execute("DELETE FROM events WHERE number > ?", (end - lost,))
                file.execute("UPDATE submissions SET is_over = 0, first = 0, attempts = 0")
            file.commit()
            file.close()
            async with running(OrchestratorProcess(service.address, state=tmp_path)) as again:
                client = Client(client.job_id)
                [its] = await client.to_the_end(again.stub)
            assert (its.text, its.token_ids) == (expected.text, expected.token_ids)
            assert its.finished is not None and expected.finished is not None
            assert its.finished.reason == expected.finished.reason
            file = sqlite3.connect(tmp_path / "jobs.sqlite")
            [end] = file.execute("SELECT max(number) FROM events").fetchone()
        file.close()


async def test_another_model_ends_the_job_by_name(tmp_path: Path) -> None:
    async with running(ModelProcess(TARGET, target)) as service:
        gate = Gate(service.model, passes=3)
        orchestrator = OrchestratorProcess(service.address, state=tmp_path)
        async with running(orchestrator):
            client = Client(await submit(orchestrator.stub, request()))
            await gate.reached()
        await gate.open()
        await service.restart(lambda: toy(seed=9, eos_bias=NEVER))
        async with running(orchestrator):
            await client.to_the_end(orchestrator.stub)
    assert client.failure is not None and client.failure.reason == "MODEL_CHANGED"


# --- what is kept, for how long, and how much ---


def one_at_a_time() -> int:
    return 1


async def responses(count: int, size: int = 1) -> AsyncIterator[Event]:
    yield Started((), 1, Rule.MATCH)
    for i in range(count):
        yield Delta((i,), (Origin.PLAIN,), (TextPiece("x" * size, Origin.PLAIN),))
    yield Finished(FinishReason.UNSPECIFIED, Statistics())


def kept(folder: Path, seconds: float = 60.0, byte_count: int = 2**30) -> Log:
    """Return a log of 16 jobs at most in a folder."""
    log = job_log(16, seconds, folder)
    log.retention = replace(log.retention, byte_count=byte_count)
    return log


def file_of(log: Log) -> Store:
    assert log.store is not None
    return log.store


def jobs_of(log: Log, count: int = 1, size: int = 1) -> Jobs:
    """Return jobs that each bring so many responses."""
    return Jobs(lambda *_: responses(count, size), one_at_a_time, log)  # type: ignore[arg-type,return-value]


async def until_over(jobs: Jobs, job_id: str) -> None:
    async def is_over() -> bool:
        polled = await jobs.poll(messages.PollGenerationRequest(job_id=job_id))
        while polled.responses and not polled.finished:
            cursor = polled.next_cursor
            polled = await jobs.poll(messages.PollGenerationRequest(job_id=job_id, cursor=cursor))
        return polled.finished

    await eventually(is_over)


async def test_a_page_of_a_long_job_costs_a_page(tmp_path: Path) -> None:
    """A poll writes one row, whatever the job's length, and reads no more than it returns."""
    log = kept(tmp_path)
    jobs, file = jobs_of(log, 50_000), file_of(log)
    job_id, _ = await jobs.submit(Request("x"))
    cursor, finished, numbers = 0, False, list[int]()
    await eventually(lambda: _is_over(jobs, job_id))
    while not finished:
        before = file._connection.total_changes
        polled = await jobs.poll(messages.PollGenerationRequest(job_id=job_id, cursor=cursor))
        await file.settle()
        assert file._connection.total_changes - before <= 1
        assert len(polled.responses) <= MOST_RESPONSES
        numbers += [each.delta.token_ids[0] for each in polled.responses if each.HasField("delta")]
        cursor, finished = polled.next_cursor, polled.finished
    assert numbers == list(range(50_000))
    await jobs.close()


def _is_over(jobs: Jobs, job_id: str) -> bool:
    return jobs._log.entries[job_id].is_over


async def test_results_are_kept_for_a_time_after_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(kept(tmp_path))
    job_id, _ = await jobs.submit(Request("x"))
    await until_over(jobs, job_id)
    await jobs.close()
    # However long the orchestrator was away, within a day; and though the clock went back.
    now = time.time()
    for away in (23 * 3600, -48 * 3600):
        monkeypatch.setattr("time.time", lambda away=away: now + away)
        jobs = jobs_of(kept(tmp_path))
        jobs.start(Access().returning)
        assert job_id in jobs
        await jobs.close()
    monkeypatch.setattr("time.time", lambda: now + 25 * 3600)
    jobs = jobs_of(kept(tmp_path))
    jobs.start(Access().returning)
    assert job_id not in jobs
    await jobs.close()
    monkeypatch.undo()
    jobs = jobs_of(kept(tmp_path, 0.05))
    job_id, _ = await jobs.submit(Request("x"))
    await eventually(lambda: len(jobs) == 0)
    await jobs.close()
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as file:
        for table in ("submissions", "events"):
            assert file.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


async def test_all_jobs_together_have_a_bound(tmp_path: Path) -> None:
    log = kept(tmp_path, byte_count=400_000)
    jobs = jobs_of(log, 10, 10_000)
    ids = []
    for _ in range(8):
        job_id, _ = await jobs.submit(Request("x"))
        await until_over(jobs, job_id)
        ids.append(job_id)
    assert len(jobs) == 3, "the oldest have made room"
    assert [each in jobs for each in ids[-3:]] == [True] * 3
    large = jobs_of(log, 100, 10_000)
    job_id, _ = await large.submit(Request("x"))
    await until_over(large, job_id)
    polled = await large.poll(messages.PollGenerationRequest(job_id=job_id))
    while not polled.finished:
        asked = messages.PollGenerationRequest(job_id=job_id, cursor=polled.next_cursor)
        polled = await large.poll(asked)
    assert polled.error.reason == "ENGINE_BUSY" and "400000" in polled.error.message
    await log.settle()
    assert (tmp_path / "jobs.sqlite").stat().st_size < 2 * 400_000
    await jobs.close()


async def test_a_job_that_ends_the_process_again_and_again_is_given_up(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[Event]:
        yield Started((), 1, Rule.MATCH)
        await asyncio.Event().wait()

    def make() -> Jobs:
        return Jobs(lambda *_: endless(), one_at_a_time, kept(tmp_path))  # type: ignore[arg-type,return-value]

    jobs = make()
    job_id, _ = await jobs.submit(Request("x"))
    for _ in range(MAX_ATTEMPTS):
        await jobs.close()
        jobs = make()
        jobs.start(Access().returning)
        await asyncio.sleep(0)
        assert not (await jobs.poll(messages.PollGenerationRequest(job_id=job_id))).finished
    await jobs.close()
    jobs = make()
    jobs.start(Access().returning)
    await eventually(lambda: _is_over(jobs, job_id))
    polled = await jobs.poll(messages.PollGenerationRequest(job_id=job_id))
    assert polled.error.reason == "PEER_UNAVAILABLE" and "restarts" in polled.error.message
    await jobs.close()


@pytest.mark.fault(
    "others",
    "The orchestrator restarts while jobs of a token with limits are in flight (`--state`)",
    before="they counted for nobody afterwards: the token had all its limits once more",
    now="they count as before the restart, and are never refused for that",
)
async def test_jobs_count_for_their_token_after_a_restart_too(tmp_path: Path) -> None:
    limits = TokenLimits(generations=2, tokens_per_minute=60)
    alice = Caller(Grant(name="alice", digest=b"", limits=limits))

    def make(access: Access) -> Jobs:
        async def held() -> AsyncIterator[Event]:
            yield Started((1,) * 100, 1, Rule.MATCH)  # more than its tokens of a minute
            await asyncio.Event().wait()

        def generate(*_: object) -> Any:
            return counted(held(), access, current_caller(), 1)

        return Jobs(generate, one_at_a_time, kept(tmp_path))

    first = make(Access())
    work_for(Caller(replace(alice.grant, limits=NO_LIMITS)))
    await asyncio.gather(*(first.submit(Request(text), owner="alice") for text in "xy"))
    await first.close()
    access = Access(lambda: [alice.grant])
    again = make(access)
    work_for(ANYONE)
    again.start(access.returning)

    def are_limits_used() -> set[str]:
        used = set[str]()
        for count in (0, 1):  # tokens alone, and of generations first
            try:
                with access.generation(alice, count):
                    pass
            except LimitReached as refused:
                used.add(refused.metadata["limit"])
        return used

    await eventually(lambda: are_limits_used() == {"generations", "tokens_per_minute"})
    assert not any(each.is_over for each in again._log.entries.values())
    await again.close()


# --- a disk that takes nothing ---


@pytest.mark.fault(
    "restart",
    "The disk that jobs are kept on is full, or turns read-only, while they run",
    before="Nothing was kept on a disk.",
    now="One line in the log, the reason in each poll, and nothing that came is lost.",
)
@pytest.mark.parametrize(
    ("breaks", "mends", "words"),
    [
        ("PRAGMA query_only = 1", "PRAGMA query_only = 0", "readonly"),
        ("PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1000000", "full"),
    ],
)
async def test_a_disk_that_takes_nothing_is_one_clear_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, breaks: str, mends: str, words: str
) -> None:
    go_on = asyncio.Event()

    async def held() -> AsyncIterator[Event]:
        stream = responses(200, 1000)
        yield await anext(stream)
        await go_on.wait()
        async for each in stream:
            yield each

    log = kept(tmp_path)
    store = file_of(log)
    jobs = Jobs(lambda *_: held(), one_at_a_time, log)  # type: ignore[arg-type,return-value]
    job_id, _ = await jobs.submit(Request("x"))
    await store.read(breaks)
    go_on.set()
    await eventually(lambda: bool(store.failure))
    with pytest.raises(StateUnavailable, match=words):
        await jobs.poll(messages.PollGenerationRequest(job_id=job_id))
    with pytest.raises(StateUnavailable, match=words):
        await jobs.submit(Request("x"))
    await asyncio.sleep(2.5)  # it was tried again meanwhile
    lines = [each for each in caplog.records if each.name == "outrider.state"]
    assert len(lines) == 1 and words in lines[0].fields["detail"]  # type: ignore[attr-defined]
    await store.read(mends)
    await eventually(lambda: not store.failure)
    await until_over(jobs, job_id)
    await jobs.close()
    assert kept(tmp_path).entries[job_id].end == 201


def refusal(folder: Path) -> str:
    """Return what is said of a folder that cannot be used."""
    with pytest.raises(InvalidConfig) as refused:
        kept(folder)
    message = str(refused.value)
    assert message.startswith("state: ") and "\n" not in message
    return message


def test_a_folder_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in refusal(tmp_path / "file" / "state")
    (tmp_path / "jobs.sqlite").write_bytes(b"no database at all" * 1000)
    assert "damaged" in refusal(tmp_path)


async def test_a_damaged_file_is_one_clear_line(tmp_path: Path) -> None:
    jobs = jobs_of(kept(tmp_path), 200, 1000)
    job_id, _ = await jobs.submit(Request("x"))
    await until_over(jobs, job_id)
    await jobs.close()
    path = tmp_path / "jobs.sqlite"
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[4096 * page : 4096 * page + 64] = b"\xff" * 64
    path.write_bytes(data)
    assert "damaged" in refusal(tmp_path)


async def test_a_folder_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store._LOCK_SECONDS", 0.1)
    log = kept(tmp_path)
    assert "another orchestrator uses it" in refusal(tmp_path)
    await log.close()
    await kept(tmp_path).close()


async def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    await kept(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as file:
        file.execute("PRAGMA user_version = 99")
    assert "newer version" in refusal(tmp_path)


async def test_nobody_else_may_read_what_is_kept(tmp_path: Path) -> None:
    await kept(tmp_path / "state").close()
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    assert (tmp_path / "state" / "jobs.sqlite").stat().st_mode & 0o077 == 0


async def test_a_cancelled_job_stays_cancelled(tmp_path: Path) -> None:
    async with running(ModelProcess(TARGET, target)) as service:
        orchestrator = OrchestratorProcess(service.address, state=tmp_path)
        async with running(orchestrator):
            asked = request(token_limit=-1)
            asked.overflow.shift = True
            client = Client(await submit(orchestrator.stub, asked))
            await client.poll(orchestrator.stub)
            cancelling = messages.CancelGenerationRequest(job_id=client.job_id)
            await orchestrator.stub.CancelGeneration(cancelling, timeout=PATIENCE)
        async with running(orchestrator):
            [completion] = await client.to_the_end(orchestrator.stub)
    assert completion.finished is not None and completion.finished.reason == CANCELLED
    assert completion.statistics.generated_token_count == len(completion.token_ids)


async def test_a_job_is_cancelled_after_a_restart(tmp_path: Path) -> None:
    async with running(ModelProcess(TARGET, target)) as service:
        gate = Gate(service.model, passes=6)
        orchestrator = OrchestratorProcess(service.address, state=tmp_path)
        async with running(orchestrator):
            client = Client(await submit(orchestrator.stub, request()))
            await gate.reached()
        async with running(orchestrator):
            cancelling = messages.CancelGenerationRequest(job_id=client.job_id)
            await orchestrator.stub.CancelGeneration(cancelling, timeout=PATIENCE)
            await gate.open()
            [completion] = await client.to_the_end(orchestrator.stub)
    assert completion.finished is not None and completion.finished.reason == CANCELLED
    assert completion.token_ids == written_alone(target(), request())[: len(completion.token_ids)]


async def test_an_unknown_job_is_not_found_with_a_state_either(tmp_path: Path) -> None:
    jobs = jobs_of(kept(tmp_path))
    with pytest.raises(NotFound):
        await jobs.poll(messages.PollGenerationRequest(job_id="nobody"))
    with pytest.raises(NotFound):
        await jobs.cancel("nobody")
    await jobs.close()
