"""What a job brought: kept in memory until it is taken, or on disk until the job is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from orchestrator.job_store import JobStore, StoredJob
from orchestrator.reporting import PAGE_RESPONSES, leading
from outrider.v1 import orchestrator_service_pb2 as messages


class JobLog(Protocol):
    """The responses of one job, each with a number; those before `first` were taken."""

    first: int  # it only grows
    byte_count: int  # of what is kept
    is_over: bool  # nothing is added any more
    error: messages.JobError | None  # what ended the job, where that was a failure
    news: asyncio.Event  # set when there is more than there was, or the end

    @property
    def end(self) -> int:
        """The number after everything that can be read."""
        ...

    @property
    def waiting(self) -> int:
        """The responses that came and were not taken."""
        ...

    def append(self, response: messages.GenerateResponse) -> None:
        """Take a response."""

    def close(self, error: messages.JobError | None) -> None:
        """Take the end."""

    def take_until(self, number: int) -> None:
        """What is before a number was taken."""

    async def page(self, first: int, end: int) -> Sequence[messages.GenerateResponse]:
        """Return what comes from a number on, before another, as much as goes into one answer.

        Raises StateUnavailable.
        """
        ...

    def check(self) -> None:
        """Raise StateUnavailable where what came cannot be kept now."""

    async def settle(self) -> None:
        """Wait until all that came is kept. Raises StateUnavailable."""

    def drop(self) -> None:
        """Forget everything."""


class MemoryLog:
    """A log that ends with the process; what was taken is forgotten."""

    def __init__(self) -> None:
        self.first = 0
        self.byte_count = 0
        self.is_over = False
        self.error: messages.JobError | None = None
        self.news = asyncio.Event()
        self._responses: list[messages.GenerateResponse] = []  # that were not taken yet

    @property
    def end(self) -> int:
        """The number after everything that came."""
        return self.first + len(self._responses)

    @property
    def waiting(self) -> int:
        """The responses that were not taken."""
        return len(self._responses)

    def append(self, response: messages.GenerateResponse) -> None:
        """Take a response."""
        self._responses.append(response)
        self.byte_count += response.ByteSize()
        self.news.set()

    def close(self, error: messages.JobError | None) -> None:
        """Take the end."""
        self.is_over, self.error = True, error
        self.news.set()

    def take_until(self, number: int) -> None:
        """Forget what came before a number."""
        taken = self._responses[: number - self.first]
        self.byte_count -= sum(each.ByteSize() for each in taken)
        del self._responses[: len(taken)]
        self.first += len(taken)

    async def page(self, first: int, end: int) -> Sequence[messages.GenerateResponse]:
        """Return the first of what is left, of what was not taken; at least one."""
        begin = max(first - self.first, 0)
        left = self._responses[begin : min(end - self.first, begin + PAGE_RESPONSES)]
        return left[: leading(left)]

    def check(self) -> None:
        """Memory takes what comes."""

    async def settle(self) -> None:
        """Memory has what came."""

    def drop(self) -> None:
        """Forget everything."""
        self._responses.clear()


class StoredLog:
    """A log on disk. A response can be read once it is stored: nobody sees what could be lost."""

    def __init__(self, store: JobStore, key: int, byte_count: int) -> None:
        self.key = key
        self.first = self.end = 0
        self.byte_count = byte_count
        self.is_over = False
        self.error: messages.JobError | None = None
        self.news = asyncio.Event()
        self._store = store
        self._came = 0  # stored or not

    @classmethod
    def of(cls, store: JobStore, job: StoredJob) -> StoredLog:
        """Return the log of a job that was found on disk."""
        log = cls(store, job.key, job.byte_count)
        log.first, log.end = job.first, job.end
        log.is_over, log.error = job.is_over, job.error
        log._came = job.end
        return log

    @property
    def waiting(self) -> int:
        """The responses that came and were not taken."""
        return self._came - self.first

    def append(self, response: messages.GenerateResponse) -> None:
        """Have a response stored."""
        data, number = response.SerializeToString(), self._came
        self._came += 1
        self.byte_count += len(data)
        self._store.byte_count += len(data)
        row = (self.key, number, data)
        self._store.file.put(
            lambda its: its.execute("INSERT INTO responses VALUES (?, ?, ?)", row),
            lambda _: self._note_stored(number + 1),
        )

    def _note_stored(self, end: int) -> None:
        self.end = end
        self.news.set()

    def close(self, error: messages.JobError | None) -> None:
        """Have the end stored."""
        written = b"" if error is None else error.SerializeToString()
        statement = "UPDATE jobs SET over = 1, error = ? WHERE key = ?"
        self._store.file.put(
            lambda its: its.execute(statement, (written, self.key)),
            lambda _: self._note_over(error),
        )

    def _note_over(self, error: messages.JobError | None) -> None:
        self.is_over, self.error = True, error
        self.news.set()

    def take_until(self, number: int) -> None:
        """Note that what is before a number was taken; it stays on disk until the job goes."""
        if number > self.first:
            self.first = number
            self._store.note_use(self.key, number)

    async def page(self, first: int, end: int) -> Sequence[messages.GenerateResponse]:
        """Return what is stored from a number on, before another. Raises StateUnavailable."""
        if first >= end:
            return ()
        return await self._store.page(self.key, first, end)

    def check(self) -> None:
        """Raise StateUnavailable while nothing can be stored."""
        if self._came > self.end or not self.is_over:
            self._store.file.check()

    async def settle(self) -> None:
        """Wait until all that came is stored. Raises StateUnavailable."""
        await self._store.file.settle()

    def drop(self) -> None:
        """Forget everything."""
        self._store.drop(self.key, self.byte_count)
