"""Generations that continue by themselves: submitted, polled, cancelled, kept for a while.

What each was asked for and brought is an entry of the log (`orchestrator/log.py`): its opening is
`GenerationStarted`, its events are the responses after it, its error is a `JobError`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from orchestrator.admission import Pace, next_turn
from orchestrator.completions import Events, Turn
from orchestrator.log import Entry, Log, Retention, digest_of
from orchestrator.reporting import pages_of
from orchestrator.resuming import (
    NOTHING_REPORTED,
    Reported,
    check_prompt,
    repeatable,
    reported_of,
)
from outrider import logs
from outrider.access import Caller, said, work_for
from outrider.errors import (
    EngineBusy,
    InvalidRequest,
    NotFound,
    OutriderError,
    PeerUnavailable,
)
from outrider.messages import FinishReason, Origin
from outrider.request import Request
from outrider.response import Delta, Finished, Started, Statistics
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.wire_requests import read_request, write_request
from outrider.wire_responses import (
    leading,
    read_event,
    read_started,
    write_event,
)

# Bytes of all jobs. The bundled pair's take 15 for each token, 380 with 20 log probabilities.
STATE_BYTES = 2**30
# Without a process, by the machine's clock: after a day nobody comes back for a text.
MOST_AWAY_SECONDS = 24 * 3600.0

MAX_RESPONSES = 1 << 16  # that wait to be taken; a job that brings more ends: nobody reads it
MAX_WAITING_BYTES = 128 * 2**20  # of one job, with those that were taken where it is on disk
MAX_ATTEMPTS = 5  # restarts after which a job is continued: it may be what ends the process
MOST_RESPONSES = 4096
"""Responses in one answer at most: more would keep the event loop for longer than 10 ms."""
MAX_WAIT_SECONDS = 30.0  # of one poll: less than proxies wait for an answer

Generate = Callable[[Request, Turn, Mapping[int, Reported]], Events]


def job_log(count: int, seconds: float, folder: Path | None = None) -> Log:
    """Return the log of so many jobs, kept so long after their last use. Raises InvalidConfig."""
    retention = Retention(seconds, count, STATE_BYTES, MOST_AWAY_SECONDS)
    return Log(retention, folder and folder / "jobs.sqlite")


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
    """The jobs of one orchestrator, kept in `log`: with a file they outlive the process.

    As many run as `share` says; a quarter of those that are kept may be of one caller in flight.
    """

    def __init__(self, generate: Generate, share: Callable[[], int], log: Log) -> None:
        self._generate = generate
        self._turns = _Turns(share)
        self._log = log
        self._interrupted = [each for each in log.entries.values() if not each.is_over]
        self._opening: dict[Entry, asyncio.Task[None]] = {}  # jobs with a key, not started yet

    def __len__(self) -> int:
        self._log.forget_old()
        return len(self._log.entries)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._log.entries

    def reconfigure(self, count: int, seconds: float) -> None:
        """Keep so many jobs from now on, for so long."""
        self._log.retention = replace(self._log.retention, count=count, seconds=seconds)

    def start(self, returning: Callable[[str], Caller]) -> None:
        """Continue what a restart interrupted; without a file that is nothing.

        `returning` says for whom, by the name of the token that it came with.
        """
        interrupted, self._interrupted = self._interrupted, []
        for entry in interrupted:
            entry.attempts += 1
            self._log.note(entry)
            origins = Counter[Origin]()
            rest = self._continued(entry, origins, returning(entry.owner))
            entry.task = asyncio.create_task(self._run(entry, rest, origins))

    async def _continued(self, entry: Entry, origins: Counter[Origin], caller: Caller) -> Events:
        """Yield the rest of a caller's job that a restart interrupted.

        Count what it brought before.
        """
        if entry.attempts > MAX_ATTEMPTS:
            raise PeerUnavailable(f"the job was begun anew after {MAX_ATTEMPTS} restarts")
        brought = await self._log.read(entry)
        events = map(read_event, map(messages.GenerateResponse.FromString, brought))
        reported = reported_of(events)
        for its in reported.values():
            origins.update(its.origins)
        request = read_request(messages.GenerateRequest.FromString(entry.request))
        turn = self._turns.take(entry.caller)
        work_for(caller)  # as the task did that this one continues
        async with aclosing(self._generate(request, turn, reported)) as rest:
            async for event in rest:
                yield event

    async def submit(
        self,
        request: Request,
        caller: str = "",
        owner: str = "",
        key: bytes = b"",
    ) -> tuple[str, Started]:
        """Start a job, or find the one that was started with the key; `key` is empty for none.

        Returns its id and how the prompt was read. Raises what is wrong with the request,
        KeyReused, EngineBusy when too many jobs, of all callers or of this one, run or wait, and
        StateUnavailable where it cannot be kept.
        """
        digest = digest_of(write_request(request).SerializeToString(deterministic=True))
        entry = self._log.repeated(key, digest, "idempotency_key")
        if entry is None:
            self._log.check()
            self._check_place(caller)
            entry = self._log.begin(digest, key, caller=caller, owner=owner)
            opening = self._open(entry, request)
            if key:
                # The start belongs to the key, not to a call: it continues when that is cut off.
                self._opening[entry] = asyncio.create_task(opening)
            else:
                await opening
        entry.last_use = time.monotonic()
        if entry in self._opening:
            await asyncio.shield(self._opening[entry])
        return entry.id, _started(entry)

    async def _open(self, entry: Entry, request: Request) -> None:
        """Start a job, and return once it is kept. Where that fails it is forgotten."""
        try:
            stream = self._generate(request, self._turns.take(entry.caller), NOTHING_REPORTED)
            started = await anext(stream)
            assert isinstance(started, Started)
            first, *rest = await pages_of(started)
            again = write_request(repeatable(request, started)).SerializeToString()
            self._log.keep(entry, again, first.started.SerializeToString())
            for page in rest:
                self._log.append(entry, page.SerializeToString())
            entry.task = asyncio.create_task(self._run(entry, stream, Counter()))
            await asyncio.sleep(0)  # a task that has not begun would not notice its end
            await self._log.settle()
        except BaseException:
            if entry.task is not None:
                entry.task.cancel()
            self._log.forget(entry)
            raise
        finally:
            self._opening.pop(entry, None)

    async def _run(self, entry: Entry, stream: Events, origins: Counter[Origin]) -> None:
        """Log everything that comes; the last event always says how it ended.

        `origins` are those of the tokens that were brought.
        """
        error = b""
        try:
            async with aclosing(stream):
                async for event in stream:
                    if isinstance(event, Started):  # again, after a restart
                        check_prompt(_started(entry), event)
                        continue
                    self._log.append(entry, write_event(event).SerializeToString())
                    if isinstance(event, Delta):
                        origins.update(event.origins)
                    self._check_room(entry)
        except asyncio.CancelledError:
            started = _started(entry)
            statistics = Statistics(
                prompt_token_count=len(started.prompt_token_ids),
                cached_token_count=started.cached_token_count,
                generated_token_count=origins.total(),
                accepted_token_count=origins[Origin.DRAFTED],
            )
            last = write_event(Finished(FinishReason.CANCELLED, statistics))
            self._log.append(entry, last.SerializeToString())
        except OutriderError as failure:
            error = _write_error(failure)
        except Exception as failure:
            error = _write_error(logs.internal_error("outrider.orchestrator", failure))
        self._log.finish(entry, error)

    def _check_room(self, entry: Entry) -> None:
        """Raise EngineBusy when there is no room for more of a job."""
        if len(entry.events) > MAX_RESPONSES or entry.byte_count > MAX_WAITING_BYTES:
            raise EngineBusy("nobody takes what the job brings", 0.0)
        if not self._log.make_room():
            most = self._log.retention.byte_count
            message = f"the jobs that are kept take {most} bytes"
            raise EngineBusy(message, self._turns.wait_seconds())

    def _check_place(self, caller: str) -> None:
        """Raise EngineBusy when there is no place for another job of a caller."""
        entries = self._log.entries.values()
        its_count = sum(each.caller == caller and not each.is_over for each in entries)
        if its_count >= max(1, self._log.retention.count // 4):
            message = f"{its_count} jobs of this caller are in flight"
            raise EngineBusy(message, self._turns.wait_seconds())
        if not self._log.make_room(more=1):
            raise EngineBusy(f"{len(entries)} jobs are in flight", self._turns.wait_seconds())

    async def poll(
        self, request: messages.PollGenerationRequest
    ) -> messages.PollGenerationResponse:
        """Return what came after the cursor, and forget what came before it.

        Raises NotFound for a job that is not known, or not any more, InvalidRequest for a cursor
        after which nothing can come, and StateUnavailable where what comes cannot be kept.
        """
        entry = self._find(request.job_id)
        seconds = request.wait_duration.ToMilliseconds() / 1e3
        if not 0 <= seconds <= MAX_WAIT_SECONDS:
            message = f"must be in [0, {MAX_WAIT_SECONDS:g}] seconds, not {seconds}"
            raise InvalidRequest("wait_duration", message)
        cursor = request.cursor or entry.first
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while entry.stored == cursor and not entry.is_over:
                    await entry.news.wait()
        if not entry.first <= cursor <= entry.stored:
            message = f"must be in [{entry.first}, {entry.stored}], not {cursor}"
            raise InvalidRequest("cursor", message)
        entry.last_use = time.monotonic()
        self._log.take(entry, cursor)
        page = entry.events[: min(MOST_RESPONSES, entry.stored - cursor)]
        page = page[: leading(map(len, page))]
        next_cursor = cursor + len(page)
        is_last = entry.is_over and next_cursor == entry.stored
        if is_last:
            self._settle(entry)
        elif not page:
            self._log.check()
        return messages.PollGenerationResponse(
            responses=map(messages.GenerateResponse.FromString, page),
            next_cursor=next_cursor,
            finished=is_last,
            error=messages.JobError.FromString(entry.error) if is_last and entry.error else None,
        )

    async def cancel(self, job_id: str) -> None:
        """End a job and wait until it is over. Raises NotFound and StateUnavailable."""
        entry = self._find(job_id)
        self._settle(entry)
        if entry.task is not None:
            entry.task.cancel()
            await asyncio.wait([entry.task])
            await self._log.settle()

    def _settle(self, entry: Entry) -> None:
        """Nobody waits for a job any more: its end was polled, or it was cancelled."""
        entry.is_settled = True
        entry.wake()

    async def until_settled(self) -> None:
        """Wait until the jobs that run now are over, and their ends were polled.

        Those that outlive the process are not waited for.
        """
        for entry in [each for each in self._log.entries.values() if not each.is_over]:
            while entry.opening and not (entry.is_settled or entry.is_kept):
                await entry.news.wait()

    async def close(self) -> None:
        """End all jobs; those that are on disk are left to the next process as they are."""
        await self._log.close()
        tasks = [entry.task for entry in self._log.entries.values() if entry.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def owner(self, job_id: str) -> str:
        """Return the name of the token that a job was submitted with. Raises NotFound."""
        return self._find(job_id).owner

    def _find(self, job_id: str) -> Entry:
        self._log.forget_old()
        if job_id not in self._log.entries:
            raise unknown_job(job_id)
        return self._log.entries[job_id]


def unknown_job(job_id: str) -> NotFound:
    """Return the refusal of a job that is not there for the caller."""
    return NotFound("job_id", f"{job_id!r} is no job, or is forgotten by now")


def _started(entry: Entry) -> Started:
    return read_started(messages.GenerationStarted.FromString(entry.opening))


def _write_error(error: OutriderError) -> bytes:
    failure = messages.JobError(reason=error.reason, message=said(error), metadata=error.metadata)
    return failure.SerializeToString()
