"""Generations that continue by themselves: submitted, polled, cancelled, kept for a while."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress

from orchestrator.admission import Pace, next_turn
from orchestrator.completions import Responses, Turn
from orchestrator.reporting import in_pages, leading
from outrider import logs
from outrider.errors import EngineBusy, InvalidRequest, NotFound, OutriderError
from outrider.v1 import orchestrator_service_pb2 as messages

MAX_RESPONSES = 1 << 16
"""A job ends when so many responses wait to be taken."""

MAX_WAITING_BYTES = 128 * 2**20
"""And when they are as large as this."""


class _Job:
    """One job: the responses that are not forgotten yet, the first of them with index `first`."""

    def __init__(self, started: messages.GenerationStarted, caller: str, owner: str) -> None:
        self.caller = caller
        self.owner = owner  # the name of the token that it was submitted with; may be empty
        self._counted = messages.GenerationStatistics(
            prompt_token_count=len(started.prompt_token_ids),
            cached_token_count=started.cached_token_count,
        )
        self.job_id = secrets.token_hex(16)
        self.first = 0  # the cursor of the first response that is kept; it only grows
        self.responses: list[messages.GenerateResponse] = []  # that were not taken yet
        self.waiting_bytes = 0  # of these responses
        self.error: OutriderError | None = None  # what ended it, where that was a failure
        self.is_over = False  # nothing is added any more
        # Of the latest look at it; what it brought is kept from there.
        self.last_use = time.monotonic()
        self.settled = asyncio.Event()
        """Set once nobody waits for it any more: its end was taken, or it was cancelled."""
        self.task: asyncio.Task[None] | None = None  # that fills it; None until it is started
        self._news = asyncio.Event()  # set when there is more than there was, or the end

    @property
    def end(self) -> int:
        """The cursor after everything that came."""
        return self.first + len(self.responses)

    def note(self, response: messages.GenerateResponse | None) -> None:
        """Take a response; None is the end."""
        if response is None:
            self.is_over = True
        else:
            self.responses.append(response)
            self.waiting_bytes += response.ByteSize()
            origins = list(response.delta.origins)
            self._counted.generated_token_count += len(origins)
            accepted = origins.count(messages.TOKEN_ORIGIN_DRAFTED)
            self._counted.accepted_token_count += accepted
        self._news.set()

    async def run(self, stream: Responses) -> None:
        """Take everything that comes; the last message says how it ended, whatever happens."""
        try:
            async with aclosing(stream):
                async for response in stream:
                    self.note(response)
                    if (
                        len(self.responses) > MAX_RESPONSES
                        or self.waiting_bytes > MAX_WAITING_BYTES
                    ):
                        raise EngineBusy("nobody takes what the job brings", 0.0)
        except asyncio.CancelledError:
            self.note(self._cancelled())
        except OutriderError as error:
            self.error = error
        except Exception as error:
            self.error = logs.internal_error("outrider.orchestrator", error)
        finally:
            self.note(None)

    def _cancelled(self) -> messages.GenerateResponse:
        """Return the last message of a job that was ended early, with what is known of it."""
        finished = messages.GenerationFinished(reason=messages.FINISH_REASON_CANCELLED)
        finished.statistics.CopyFrom(self._counted)
        return messages.GenerateResponse(finished=finished)

    def take_until(self, cursor: int) -> None:
        """Forget what came before the cursor."""
        taken = self.responses[: cursor - self.first]
        self.waiting_bytes -= sum(each.ByteSize() for each in taken)
        del self.responses[: len(taken)]
        self.first += len(taken)

    def page(self) -> list[messages.GenerateResponse]:
        """Return the first of what is left, as much as goes into one answer; at least one."""
        return self.responses[: leading(self.responses)]

    async def wait(self, cursor: int, seconds: float) -> None:
        """Wait until there is something after the cursor, or the end."""
        deadline = time.monotonic() + seconds
        while self.end <= cursor and not self.is_over and time.monotonic() < deadline:
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), deadline - time.monotonic())


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
    """

    def __init__(
        self,
        generate: Callable[[messages.GenerateRequest, Turn], Responses],
        share: Callable[[], int],
        capacity: int,
        keep_seconds: float,
    ) -> None:
        self._generate = generate
        self._turns = _Turns(share)
        self._capacity = capacity
        self._caller_capacity = max(1, capacity // 4)
        self._keep_seconds = keep_seconds
        self._jobs: dict[str, _Job] = {}  # by id, those that are over and kept included
        # By caller: jobs that are not among `_jobs` yet, and count as if.
        self._starting: Counter[str] = Counter()

    def __len__(self) -> int:
        self._forget_old()
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def owner(self, job_id: str) -> str:
        """Return the name of the token that a job was submitted with. Raises NotFound."""
        return self._find(job_id).owner

    async def submit(
        self, request: messages.GenerateRequest, caller: str = "", owner: str = ""
    ) -> tuple[str, messages.GenerationStarted]:
        """Start a job; return its id and how the prompt was read.

        Raises what is wrong with the request, and EngineBusy when too many
        jobs, of all callers or of this one, run or wait.
        """
        self._check_place(caller)
        stream = self._generate(request, self._turns.take(caller))
        self._starting[caller] += 1
        try:
            first, *rest = in_pages(await anext(stream))
        finally:
            self._starting[caller] -= 1
        job = _Job(first.started, caller, owner)
        for response in rest:
            job.note(response)
        self._jobs[job.job_id] = job
        job.task = asyncio.create_task(job.run(stream))
        await asyncio.sleep(0)  # a task that has not begun would not notice its end
        return job.job_id, first.started

    def _check_place(self, caller: str) -> None:
        """Raise EngineBusy when there is no place for another job of a caller."""
        self._forget_old()
        its = [job for job in self._jobs.values() if job.caller == caller and not job.is_over]
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

        Raises NotFound for a job that is not known, or not any more, and
        InvalidRequest for a cursor after which nothing can come.
        """
        job = self._find(request.job_id)
        seconds = request.wait_duration.ToMilliseconds() / 1e3
        if not 0 <= seconds <= 30:
            raise InvalidRequest("wait_duration", f"must be in [0, 30] seconds, not {seconds}")
        cursor = request.cursor or job.first
        if not job.first <= cursor <= job.end:
            raise InvalidRequest("cursor", f"must be in [{job.first}, {job.end}], not {cursor}")
        await job.wait(cursor, seconds)
        job.last_use = time.monotonic()
        job.take_until(cursor)
        page = job.page()
        next_cursor = cursor + len(page)
        is_last = job.is_over and next_cursor == job.end
        if is_last:
            job.settled.set()
        return messages.PollGenerationResponse(
            responses=page,
            next_cursor=next_cursor,
            finished=is_last,
            error=_write_error(job.error) if is_last else None,
        )

    async def cancel(self, job_id: str) -> None:
        """End a job and wait until it is over. Raises NotFound."""
        job = self._find(job_id)
        job.settled.set()
        if job.task is not None:
            job.task.cancel()
            await asyncio.wait([job.task])

    async def until_settled(self) -> None:
        """Wait until the jobs that run now are over, and their ends were polled."""
        for job in [each for each in self._jobs.values() if not each.is_over]:
            await job.settled.wait()

    async def close(self) -> None:
        """End all jobs; what they brought is kept."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _find(self, job_id: str) -> _Job:
        self._forget_old()
        if job_id not in self._jobs:
            raise unknown_job(job_id)
        return self._jobs[job_id]

    def _forget_old(self) -> None:
        """Forget what is over and was not looked at for long."""
        oldest = time.monotonic() - self._keep_seconds
        for job in list(self._jobs.values()):
            if job.is_over and job.last_use < oldest:
                del self._jobs[job.job_id]

    def _drop_one_that_is_over(self) -> bool:
        """Make room: forget the job over that nobody looked at for longest; say if there is one."""
        over = [job for job in self._jobs.values() if job.is_over]
        if over:
            del self._jobs[min(over, key=lambda job: job.last_use).job_id]
        return bool(over)


def unknown_job(job_id: str) -> NotFound:
    """Return the refusal of a job that is not there for the caller."""
    return NotFound("job_id", f"{job_id!r} is no job, or is forgotten by now")


def _write_error(error: OutriderError | None) -> messages.JobError | None:
    if error is None:
        return None
    return messages.JobError(reason=error.reason, message=str(error), metadata=error.metadata)
