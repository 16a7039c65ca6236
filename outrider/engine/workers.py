"""Threads beside the engine's own, in which several sessions sample the rows of one decode."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter, thread_time
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_LEAST_SECONDS = 2e-4
"""s; of each work, for other threads to take some: quicker ones mostly hold the interpreter. With
one thread more, 8 rows of top-k 40 (.04 ms each) took 1.1 to 1.4 of their time, of top-p alone (.4
and 1.9 ms) .67 and .57 (`make bench-rows`). Beside decodes a row takes twice as long as there."""


@dataclass(slots=True)
class Work:
    """What a job makes of its rows; it may run in any thread, beside the work of other jobs.

    It touches the rows and what is its session's alone. The job receives what `run` returns, or
    what it raises is raised where the job waits for it.
    """

    run: Callable[[], Any]
    finish: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    """Makes of what `run` returned what the job receives, for several jobs at once; it is the same
    for all that have one, and raises nothing."""

    def run_in(self, job: Generator[T, Any, Any]) -> T:
        """Run it at once, and continue the job up to its next step; return that."""
        try:
            value = self.run()
            if self.finish is not None:
                [value] = self.finish([value])
        except BaseException as error:
            return job.throw(error)
        return job.send(value)


@dataclass(slots=True)
class WorkResult:
    """What came of a work: its value, or why there is none."""

    value: Any
    error: BaseException | None
    seconds: float  # beside other threads without those in which it waited for the interpreter

    def give_to(self, job: Generator[T, Any, Any]) -> T:
        """Continue the job that waits for it, up to its next step; return that."""
        return job.throw(self.error) if self.error is not None else job.send(self.value)


class Workers(Generic[T]):
    """Runs the works that were added, each for its owner. The engine's thread does its part.

    Every method is called from that thread.
    """

    def __init__(self, most: int) -> None:
        """`most` is of the threads that it starts, once they are needed."""
        self.most = most
        self._added: list[tuple[T, Work]] = []  # not begun
        self._threads: list[threading.Thread] = []
        self._inbox: SimpleQueue[_Batch | None] = SimpleQueue()  # None ends one thread
        self._seconds = 0.0  # that the newest work took

    def add(self, owner: T, work: Work) -> None:
        """Let a work run with the next ones."""
        self._added.append((owner, work))

    def outcomes(self) -> Iterator[tuple[T, WorkResult]]:
        """Run what was added; yield what came of it, in that order, once all of it is over."""
        added, self._added = self._added, []
        works = [work for _, work in added]
        helpers = self._wanted(len(works))
        if helpers:
            outcomes = self._together(works, helpers)
        else:
            outcomes = [_outcome(work, perf_counter) for work in works]
        _finish(works, outcomes)
        for (owner, _), outcome in zip(added, outcomes, strict=True):
            self._seconds = outcome.seconds
            yield owner, outcome

    def _wanted(self, count: int) -> int:
        """Return how many threads pay for so many works; they run by then."""
        if count < 2 or self._seconds < _LEAST_SECONDS:
            return 0
        wanted = min(self.most, count - 1)
        try:
            while len(self._threads) < wanted:
                thread = threading.Thread(target=self._serve, name="rows", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError:  # the process may have no more of them
            self.most = wanted = len(self._threads)
        return wanted

    def _together(self, works: Sequence[Work], helpers: int) -> list[WorkResult]:
        batch = _Batch(works)
        for _ in range(helpers):
            self._inbox.put(batch)
        return batch.finish()

    def _serve(self) -> None:
        while (batch := self._inbox.get()) is not None:
            batch.help()

    def stop(self) -> None:
        """End the threads; no work is in flight."""
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


class _Batch:
    """Works that several threads take from, one at a time."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._todo = deque(enumerate(works))
        self._count = len(works)
        self._done: SimpleQueue[tuple[int, WorkResult]] = SimpleQueue()  # by others than the owner

    def help(self) -> None:
        """Run works until all have begun. A thread that wakes late finds none."""
        for each in self._begun():
            self._done.put(each)

    def finish(self) -> list[WorkResult]:
        """Run works, and wait for those of others; return what came of all, in their order."""
        outcomes = dict(self._begun())
        while len(outcomes) < self._count:
            number, outcome = self._done.get()
            outcomes[number] = outcome
        return [outcomes[number] for number in range(self._count)]

    def _begun(self) -> Iterator[tuple[int, WorkResult]]:
        while True:
            try:
                number, work = self._todo.popleft()
            except IndexError:
                return
            yield number, _outcome(work)


def _finish(works: Sequence[Work], outcomes: Sequence[WorkResult]) -> None:
    """Let outcomes be what the jobs receive, of the works that are finished together."""
    begin = perf_counter()
    pairs = zip(works, outcomes, strict=True)
    done = [(work.finish, each) for work, each in pairs if work.finish and each.error is None]
    if not done:
        return
    values = done[0][0]([each.value for _, each in done])
    seconds = (perf_counter() - begin) / len(done)
    for (_, each), value in zip(done, values, strict=True):
        each.value, each.seconds = value, each.seconds + seconds


def _outcome(work: Work, clock: Callable[[], float] = thread_time) -> WorkResult:
    begin = clock()
    try:
        value, error = work.run(), None
    except BaseException as raised:  # of any kind: the engine's thread is to see it
        value, error = None, raised
    return WorkResult(value, error, clock() - begin)
