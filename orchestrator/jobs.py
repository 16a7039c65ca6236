"""Generations that continue by themselves: submitted, polled, cancelled, kept for a while."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from hashlib import sha256

from orchestrator.admission import Pace, next_turn
from orchestrator.completions import Responses, Turn
from orchestrator.job_logs import JobLog, MemoryLog, StoredLog
from orchestrator.job_store import JobStore, StoredJob
from orchestrator.reporting import in_pages
from orchestrator.resuming import (
    NOTHING_REPORTED,
    Reported,
    check_prompt,
    continuation,
    counted,
    repeatable,
    reported_of,
)
from orchestrator.submissions import Submissions
from outrider import logs
from outrider.errors import (
    EngineBusy,
    InvalidRequest,
    NotFound,
    OutriderError,
    PeerUnavailable,
    StateUnavailable,
)
from outrider.v1 import orchestrator_service_pb2 as messages

MAX_RESPONSES = 1 << 16
"""A job ends when so many responses wait to be taken."""

MAX_WAITING_BYTES = 128 * 2**20
"""And when they are as large as this; on disk, with those that were taken."""

MAX_ATTEMPTS = 5
"""Restarts after which a job is continued: it may be what ends the process."""

Generate = Callable[[messages.GenerateRequest, Turn, Mapping[int, Reported]], Responses]


class _Job:
    """One job: what it brings goes into its log."""

    def __init__(
        self,
        job_id: str,
        caller: str,
        owner: str,
        started: messages.GenerationStarted,
        log: JobLog,
        note: str = "",
        key: bytes = b"",
    ) -> None:
        self.job_id = job_id
        self.caller = caller
        self.owner = owner  # the name of the token that it was submitted with; may be empty
        self.started = started
        self.log = log
        self.note = note
        self.key = key  # that it was submitted with, as `Submissions` know it; empty without one
        self._counted = counted(started, NOTHING_REPORTED)
        # Of the latest look at it; what it brought is kept from there.
        self.last_use = time.monotonic()
        self.settled = asyncio.Event()
        """Set once nobody waits for it any more: its end was taken, or it was cancelled."""
        self.task: asyncio.Task[None] | None = None  # that fills it; None until it is started
        self.is_left = False  # its end is for the next process to bring

    def note_response(self, response: messages.GenerateResponse) -> None:
        """Take a response."""
        self.log.append(response)
        origins = list(response.delta.origins)
        self._counted.generated_token_count += len(origins)
        self._counted.accepted_token_count += origins.count(messages.TOKEN_ORIGIN_DRAFTED)

    def resume(self, reported: Mapping[int, Reported]) -> None:
        """Count what it brought before a restart."""
        self._counted = counted(self.started, reported)

    async def run(self, stream: Responses, check_room: Callable[[], None]) -> None:
        """Take everything that comes; the last message always says how it ended.

        `check_room` raises EngineBusy where nothing more can be kept.
        """
        error = None
        try:
            async with aclosing(stream):
                async for response in stream:
                    if response.HasField("started"):  # again, after a restart
                        check_prompt(self.started, response.started)
                        continue
                    self.note_response(response)
                    waiting = self.log.waiting > MAX_RESPONSES
                    if waiting or self.log.byte_count > MAX_WAITING_BYTES:
                        raise EngineBusy("nobody takes what the job brings", 0.0)
                    check_room()
        except asyncio.CancelledError:
            if self.is_left:
                return
            self.log.append(self._cancelled())
        except OutriderError as failure:
            error = _write_error(failure)
        except Exception as failure:
            error = _write_error(logs.internal_error("outrider.orchestrator", failure))
        self.log.close(error)

    def _cancelled(self) -> messages.GenerateResponse:
        """Return the last message of a job that was ended early, with what is known of it."""
        finished = messages.GenerationFinished(reason=messages.FINISH_REASON_CANCELLED)
        finished.statistics.CopyFrom(self._counted)
        return messages.GenerateResponse(finished=finished)

    async def wait(self, cursor: int, seconds: float) -> None:
        """Wait until there is something after the cursor, or the end."""
        log, deadline = self.log, time.monotonic() + seconds
        while log.end <= cursor and not log.is_over and time.monotonic() < deadline:
            log.news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(log.news.wait(), deadline - time.monotonic())


class _Turns:
    """Lets so many jobs run at a time as `share` says; the others wait, callers taking turns.

    `_running` counts the jobs that run by their callers, and `_waiting` has
    those that do not, in order of arrival.
    """

    def __init__(self, share: Callable[[], int]) -> None:
        self._share = share
        self._running: Counter[str] = Counter()  # by caller; `share` at most in all
        # Callers and their turns, oldest first.
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self.pace = Pace()

    @asynccontextmanager
    async def take(self, caller: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the context is left."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((caller, turn))
        self._start()
        begin = time.monotonic()
        try:
            await turn  # cancelled with the task that waits for it
            begin = time.monotonic()
            yield
        finally:
            if not turn.cancelled():
                self._running[caller] -= 1
                self.pace.note(time.monotonic() - begin)
            self._start()

    def wait_seconds(self) -> float:
        """Return when one of those that run is expected to end."""
        return self.pace.wait_seconds(self._running.total())

    def _start(self) -> None:
        self._running += Counter()  # drops callers of whom nothing runs
        self._waiting = [each for each in self._waiting if not each[1].cancelled()]
        while self._waiting and self._running.total() < self._share():
            callers = [caller for caller, _ in self._waiting]
            caller, turn = self._waiting.pop(next_turn(callers, self._running))
            self._running[caller] += 1
            turn.set_result(None)


class Jobs:
    """The jobs of one orchestrator. Results are kept `keep_seconds` after the last look at them.

    As many run as `share` says; a quarter of `capacity` may be of one caller.
    With a `store` they outlive the process.
    """

    def __init__(
        self,
        generate: Generate,
        share: Callable[[], int],
        capacity: int,
        keep_seconds: float,
        store: JobStore | None = None,
    ) -> None:
        self._generate = generate
        self._turns = _Turns(share)
        self.reconfigure(capacity, keep_seconds)
        self._store = store
        self._jobs: dict[str, _Job] = {}  # by id, those that are over and kept included
        # By caller: jobs that are not among `_jobs` yet, and count as if.
        self._starting: Counter[str] = Counter()
        self._interrupted: list[tuple[_Job, StoredJob]] = []  # not continued yet
        self._submissions = Submissions()  # of the jobs with a key
        if store is not None:
            self._restore(store)

    def __len__(self) -> int:
        self._forget_old()
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def reconfigure(self, capacity: int, keep_seconds: float) -> None:
        """Keep so many jobs from now on, for so long."""
        self._capacity = capacity
        self._caller_capacity = max(1, capacity // 4)
        self._keep_seconds = keep_seconds

    def _restore(self, store: JobStore) -> None:
        """Take over the jobs of the process before this one."""
        for stored in store.found:
            log = StoredLog.of(store, stored)
            whose = stored.caller, stored.owner
            job = _Job(stored.job_id, *whose, stored.started, log, stored.note, stored.key_name)
            self._jobs[job.job_id] = job
            if job.key:
                known = job.key, stored.key_request, (job.job_id, job.started)
                self._submissions.restore(*known)
            if not stored.is_over:
                self._interrupted.append((job, stored))
        store.found.clear()

    def start(self) -> None:
        """Continue what a restart interrupted; without a store that is nothing."""
        interrupted, self._interrupted = self._interrupted, []
        for job, stored in interrupted:
            assert self._store is not None
            self._store.note_attempt(stored.key)
            rest = self._continued(job, stored)
            job.task = asyncio.create_task(job.run(rest, self._check_room))

    def notes(self) -> dict[str, str]:
        """Return the notes of all jobs, by id, those of the oldest first."""
        return {job.job_id: job.note for job in self._jobs.values() if job.note}

    async def recall(
        self, job_id: str
    ) -> tuple[messages.GenerationStarted, list[messages.GenerateResponse]]:
        """Return how a job began, and what of it was taken. Raises NotFound, StateUnavailable."""
        job = self._find(job_id)
        taken: list[messages.GenerateResponse] = []
        if isinstance(job.log, StoredLog):
            while page := await job.log.page(len(taken), job.log.first):
                taken += page
        return job.started, taken

    async def take(self, job_id: str, cursor: int) -> None:
        """Note that what is before a cursor was taken, for good if the disk takes it. NotFound."""
        job = self._find(job_id)
        job.log.take_until(cursor)
        with suppress(StateUnavailable):
            await job.log.settle()

    async def _continued(self, job: _Job, stored: StoredJob) -> Responses:
        """Yield the rest of a job that a restart interrupted."""
        assert self._store is not None
        if stored.attempts >= MAX_ATTEMPTS:
            raise PeerUnavailable(f"the job was begun anew after {MAX_ATTEMPTS} restarts")
        responses: list[messages.GenerateResponse] = []
        while page := await job.log.page(len(responses), stored.end):
            responses += page
        reported = reported_of(responses)
        job.resume(reported)
        turn = self._turns.take(job.caller)
        async with aclosing(self._generate(continuation(stored.request), turn, reported)) as rest:
            async for response in rest:
                yield response

    def owner(self, job_id: str) -> str:
        """Return the name of the token that a job was submitted with. Raises NotFound."""
        return self._find(job_id).owner

    async def submit(
        self,
        request: messages.GenerateRequest,
        caller: str = "",
        note: str = "",
        owner: str = "",
        key: bytes = b"",
    ) -> tuple[str, messages.GenerationStarted]:
        """Start a job, or find the one that was started with the key; `key` is empty for none.

        Returns its id and how the prompt was read. Raises what is wrong with the request,
        KeyReused, EngineBusy when too many jobs, of all callers or of this one, run or wait, and
        StateUnavailable where it cannot be kept.
        """
        if not key:
            return await self._submit(request, caller, note, owner)
        self._forget_old()
        digest = sha256(request.SerializeToString(deterministic=True)).digest()
        start = partial(self._submit, request, caller, note, owner, key, digest)
        job_id, started = await self._submissions.start_once(key, digest, start)
        if job_id in self._jobs:
            self._jobs[job_id].last_use = time.monotonic()
        return job_id, started

    async def _submit(
        self,
        request: messages.GenerateRequest,
        caller: str,
        note: str,
        owner: str,
        key: bytes = b"",
        digest: bytes = b"",
    ) -> tuple[str, messages.GenerationStarted]:
        """Start a job; return its id and how the prompt was read."""
        self._check_place(caller)
        if self._store is not None:
            self._store.file.check()
        stream = self._generate(request, self._turns.take(caller), NOTHING_REPORTED)
        self._starting[caller] += 1
        try:
            first, *rest = in_pages(await anext(stream))
        finally:
            self._starting[caller] -= 1
        job_id = secrets.token_hex(16)
        log: JobLog = MemoryLog()
        kept_note = ""  # nobody asks for it without a restart
        if self._store is not None:
            same = repeatable(request, first.started)
            log = StoredLog(
                self._store,
                *self._store.add(job_id, caller, owner, note, same, first.started, (key, digest)),
            )
            kept_note = note
        job = _Job(job_id, caller, owner, first.started, log, kept_note, key)
        self._jobs[job_id] = job
        for response in rest:
            job.note_response(response)
        job.task = asyncio.create_task(job.run(stream, self._check_room))
        await asyncio.sleep(0)  # a task that has not begun would not notice its end
        try:
            await log.settle()
        except StateUnavailable:
            job.task.cancel()
            self._forget(job)
            raise
        return job_id, first.started

    def _check_room(self) -> None:
        """Make room on the disk where that is needed. Raises EngineBusy when there is none."""
        store = self._store
        while store is not None and store.byte_count > store.most_bytes:
            if not self._drop_one_that_is_over():
                message = f"the jobs that are kept take {store.most_bytes} bytes"
                raise EngineBusy(message, self._turns.wait_seconds())

    def _check_place(self, caller: str) -> None:
        """Raise EngineBusy when there is no place for another job of a caller."""
        self._forget_old()
        its = [job for job in self._jobs.values() if job.caller == caller and not job.log.is_over]
        its_count = len(its) + self._starting[caller]
        if its_count >= self._caller_capacity:
            message = f"{its_count} jobs of this caller are in flight"
            raise EngineBusy(message, self._turns.wait_seconds())
        count = len(self._jobs) + self._starting.total()
        if count >= self._capacity and not self._drop_one_that_is_over():
            raise EngineBusy(f"{count} jobs are in flight", self._turns.wait_seconds())

    async def poll(
        self, request: messages.PollGenerationRequest
    ) -> messages.PollGenerationResponse:
        """Return what came after the cursor, and forget what came before it.

        Raises NotFound for a job that is not known, or not any more, InvalidRequest for a cursor
        after which nothing can come, and StateUnavailable where it cannot be kept or read.
        """
        job = self._find(request.job_id)
        log = job.log
        seconds = request.wait_duration.ToMilliseconds() / 1e3
        if not 0 <= seconds <= 30:
            raise InvalidRequest("wait_duration", f"must be in [0, 30] seconds, not {seconds}")
        cursor = request.cursor or log.first
        if not log.first <= cursor <= log.end:
            raise InvalidRequest("cursor", f"must be in [{log.first}, {log.end}], not {cursor}")
        await job.wait(cursor, seconds)
        job.last_use = time.monotonic()
        log.take_until(cursor)
        page = await log.page(cursor, log.end)
        next_cursor = cursor + len(page)
        is_last = log.is_over and next_cursor == log.end
        if is_last:
            job.settled.set()
        elif not page:
            log.check()
        return messages.PollGenerationResponse(
            responses=page,
            next_cursor=next_cursor,
            finished=is_last,
            error=log.error if is_last else None,
        )

    async def cancel(self, job_id: str) -> None:
        """End a job and wait until it is over. Raises NotFound and StateUnavailable."""
        job = self._find(job_id)
        job.settled.set()
        if job.task is not None:
            job.task.cancel()
            await asyncio.wait([job.task])
            await job.log.settle()

    async def until_settled(self) -> None:
        """Wait until the jobs that run now are over, and their ends were polled.

        Those that outlive the process are not waited for.
        """
        if self._store is not None:
            return
        for job in [each for each in self._jobs.values() if not each.log.is_over]:
            await job.settled.wait()

    async def end_all(self) -> None:
        """End all jobs; what they brought is kept."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """End all jobs, or leave them to the next process where they are stored."""
        for job in self._jobs.values():
            job.is_left = self._store is not None
        await self.end_all()
        if self._store is not None:
            await self._store.file.close()

    def _find(self, job_id: str) -> _Job:
        self._forget_old()
        if job_id not in self._jobs:
            raise unknown_job(job_id)
        return self._jobs[job_id]

    def _forget_old(self) -> None:
        """Forget what is over and was not looked at for long."""
        oldest = time.monotonic() - self._keep_seconds
        for job in list(self._jobs.values()):
            if job.log.is_over and job.last_use < oldest:
                self._forget(job)

    def _drop_one_that_is_over(self) -> bool:
        """Make room: forget the job over that nobody looked at for longest; say if there is one."""
        over = [job for job in self._jobs.values() if job.log.is_over]
        if over:
            self._forget(min(over, key=lambda job: job.last_use))
        return bool(over)

    def _forget(self, job: _Job) -> None:
        job.log.drop()
        self._submissions.forget(job.key)
        del self._jobs[job.job_id]


def unknown_job(job_id: str) -> NotFound:
    """Return the refusal of a job that is not there for the caller."""
    return NotFound("job_id", f"{job_id!r} is no job, or is forgotten by now")


def _write_error(error: OutriderError) -> messages.JobError:
    return messages.JobError(reason=error.reason, message=str(error), metadata=error.metadata)
