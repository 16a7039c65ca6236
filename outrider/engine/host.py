"""The one thread that owns the model, and its inbox: everybody else's door to the engine.

What comes in is carried out between two decodes; the runner runs the jobs of it. While nobody
wants anything, the thread measures what is not known of the model yet.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from outrider.engine.core_lock import CoreLock, NoCoreLock
from outrider.engine.hosting import Counters, HostOptions, Loaded
from outrider.engine.job import Job, Ticket
from outrider.engine.measurements import Measurements
from outrider.engine.model import Model, ModelDescription
from outrider.engine.own_draft import OwnDraft
from outrider.engine.preparation import Preparation, Prepared
from outrider.engine.row_keeper import RowKeeper
from outrider.engine.runner import JobRunner
from outrider.errors import Draining, EngineBusy, OutriderError, RoundSuperseded

T = TypeVar("T")

_STOPPING = "the engine is stopping"
_POLL_SECONDS = 0.01
"""s; between two looks whether another thread still uses the model that is to be freed."""


class EngineHost:
    """Owns the thread. Every public method may be called from any thread.

    `loaded` resolves when the model is ready; `died` fails if the thread does.
    """

    def __init__(
        self,
        load: Callable[[], Model],
        options: HostOptions,
        find_core_lock: Callable[[ModelDescription], CoreLock] = lambda _: NoCoreLock(),
        measurements: Measurements | None = None,
        load_draft: Callable[[Model], OwnDraft | None] | None = None,
        make_keeper: Callable[[Model], RowKeeper] | None = None,
    ) -> None:
        """`load_draft` loads what drafts for the model, in its thread; None: it does not fit.

        `make_keeper` makes what writes down what is decoded, after that.
        """
        self._load = load
        self._load_draft, self._make_keeper = load_draft, make_keeper
        self._find_core_lock = find_core_lock
        self._measurements = measurements  # None: every start measures
        self._options = options
        # Other threads put actions here; the engine's own carries them out between two decodes.
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._places = threading.Semaphore(options.queue_limit)  # of jobs that wait to start
        self._stopping = False  # never false again; what comes after is refused
        self._in_use = threading.Lock()  # while another thread uses the model, which stays
        self.loaded: Future[Loaded] = Future()  # or why there is no model
        # Has an exception once the thread failed; never a result.
        self.died: Future[None] = Future()
        self.on_prepared: Callable[[Prepared], None] = lambda _: None
        """Called in the engine's thread when something was measured after the load."""
        self.counters = Counters()  # written by the thread; any other's read may be a decode late
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        # From here on the thread's own; they are there once `loaded` has a result.
        self._model: Model
        self._runner: JobRunner
        self._core_lock: CoreLock
        self._preparation: Preparation
        self._used_time = 0.0  # when something was asked for last
        self._idle_seconds = options.first_quiet_seconds  # without a request until it measures

    def start(self) -> Future[Loaded]:
        """Start to load the model.

        The future fails with what the loader raises, or MemoryError where no thread can start.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            self.loaded.set_exception(MemoryError(str(error)))
        return self.loaded

    def stop(self) -> None:
        """Finish the decode in flight, fail everything else, free the model."""
        self._inbox.put(self._begin_stop)
        self._thread.join()
        self._refuse_all()

    def _refuse_all(self) -> None:
        """Answer what came too late for the thread."""
        self._stopping = True
        self._receive(0.0)

    # --- the door: actions that the thread carries out between two decodes ---

    def submit(
        self,
        session_id: bytes,
        job: Job,
        wanted: Sequence[int] = (),
        salt: bytes = b"",
        room: int | None = None,
        is_modest: bool = False,
    ) -> Ticket:
        """Queue a job; jobs of one session run one after the other.

        `wanted` is what the session is about to hold: it helps to choose
        whose cache to copy, among the sessions of its `salt`. `room` are the tokens that it will
        hold at most, which a pool reserves; a whole context where that is not known. A modest job
        evicts only what was idle for long. Raises EngineBusy when the queue is full.
        """
        self._check_running()
        if not self._places.acquire(blocking=False):
            raise EngineBusy("the engine's queue is full", self._options.room_seconds)
        ticket = Ticket(session_id, job, wanted, perf_counter(), salt, room, is_modest)
        self._inbox.put(lambda: self._queue(ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End a job before its next decode; its future fails with RoundSuperseded."""
        self._inbox.put(lambda: self._runner.cancel(ticket))

    def cancel_unstarted(self, ticket: Ticket) -> None:
        """End a job that has not started; its future fails with RoundSuperseded."""
        self._inbox.put(lambda: self._runner.cancel_unstarted(ticket))

    def pin(self, session_id: bytes, pinned: bool) -> None:
        """Say whether a stream of the session is open: it is then evicted last."""
        self._inbox.put(lambda: self._pin(session_id, pinned))

    def truncate(self, session_id: bytes, token_count: int) -> Future[int]:
        """Cancel the session's jobs and cut it; the result is the tokens it holds."""
        return self._ask(lambda: self._runner.truncate(session_id, token_count))

    def held_count(self, session_id: bytes) -> Future[int]:
        """Return the tokens that a session holds; 0 for an unknown one."""
        return self._ask(lambda: self._runner.held_count(session_id))

    def forget(self, session_id: bytes) -> Future[None]:
        """Cancel the session's jobs and drop it."""
        return self._ask(lambda: self._runner.forget(session_id))

    def session_count(self) -> int:
        """Return how many sessions are known; a decode in flight is not waited for."""
        return len(self._runner.cache)

    def cached_count(self, token_ids: Sequence[int], salt: bytes) -> int:
        """Return how many tokens a new session of this text and salt need not decode, at once."""
        self._check_running()
        return self._runner.cache.cached_count(token_ids, salt, self._model.copied_count)

    def embed(self, token_ids: Sequence[int]) -> Future[NDArray[np.float32]]:
        """Return the embedding of a text; nothing else is decoded meanwhile."""
        return self._ask(lambda: self.counters.embed(self._model, token_ids, self._runner.is_open))

    def replace_draft(self, load: Callable[[Model], Callable[[], OwnDraft]]) -> OwnDraft:
        """Let another draft take the place of the engine's own one, and return it.

        `load` runs beside decodes, in the caller's thread. What it returns is called between two of
        them, in the engine's. Raises what either does, and Draining: the one before stays then.
        """
        with self._in_use:
            self._check_running()
            make = load(self._model)
            taken = self._ask(lambda: self._runner.replace_draft(make))
            either: list[Future[Any]] = [taken, self.died]
            wait(either, return_when=FIRST_COMPLETED)
            if not taken.done():
                raise Draining(_STOPPING)
            draft, before = taken.result()
            if before is not None:
                before.close()
            return draft

    def _check_running(self) -> None:
        if self._stopping:
            raise Draining(_STOPPING)

    def _ask(self, action: Callable[[], T]) -> Future[T]:
        self._check_running()
        future: Future[T] = Future()

        def answer() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    self._check_running()  # the model may be closed by now
                    future.set_result(action())
                except Exception as error:
                    future.set_exception(error)

        self._inbox.put(answer)
        return future

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._prepare()
        except Exception as error:
            self.loaded.set_exception(error)
            return
        try:
            self._serve()
        except BaseException as error:
            # A bug: the process cannot continue, and must not look as if it could.
            self.died.set_exception(error)
            raise
        self._close()

    def _close(self) -> None:
        """Free the model once no other thread uses it."""
        while not self._in_use.acquire(timeout=_POLL_SECONDS):
            self._receive(0.0)  # it may wait for an answer
        self._runner.close()
        self._in_use.release()

    def _serve(self) -> None:
        while not self._stopping:
            self._receive(0.0)
            if self._stopping:
                break
            self._runner.start_jobs()
            now = perf_counter()
            wake = self._wake_time(now)
            quiet = self._quiet_time()
            if quiet is not None and quiet <= now:
                self._measure()
            elif wake > now:
                self._receive((wake if quiet is None else min(wake, quiet)) - now)
            elif self._runner.scheduler.has_active:
                # What comes while others decode joins the next decode.
                if pause := self._core_lock.take(now):
                    self._receive(pause)
                else:
                    self._runner.decode(now)

    def _prepare(self) -> None:
        """Load the model and find out what has to be known of it."""
        begin = perf_counter()
        self._model = model = self._load()
        self._core_lock = self._find_core_lock(model.describe())
        self._runner = runner = JobRunner(
            model, self._options, self._core_lock, self.counters, self._places, self._cancelled
        )
        self._preparation = Preparation(
            model, self._options.numerics, self._measurements, self._core_lock
        )
        prepared = self._preparation.begin()
        runner.begin_anew(prepared)
        if self._load_draft is not None:
            runner.own_draft = self._load_draft(model)
        if self._make_keeper is not None:
            runner.keeper = self._make_keeper(model)
        spent = perf_counter() - begin
        self.loaded.set_result(Loaded(model, prepared, spent, self._core_lock, runner.own_draft))

    def _quiet_time(self) -> float | None:
        """Return when to measure what is due, if nothing comes before; None: not now."""
        runner = self._runner
        if not self._preparation.is_due or runner.is_open or runner.scheduler.busy_sessions:
            return None
        return self._used_time + self._idle_seconds

    def _measure(self) -> None:
        """Measure while nobody wants anything; what is cached is lost once that begins."""
        runner = self._runner
        look = runner.spare_lease().try_decode
        prepared = self._preparation.measure(look, runner.forget_all, self._is_asked)
        self._used_time = perf_counter()
        if prepared is not None:
            runner.begin_anew(prepared)
            self.on_prepared(prepared)
        else:  # others were at work, or somebody came: they may do so again
            self._idle_seconds = max(2.0 * self._idle_seconds, self._options.quiet_seconds)

    def _is_asked(self) -> bool:
        return not self._inbox.empty()

    def _receive(self, seconds: float) -> None:
        """Carry out what is in the inbox; wait at most `seconds` for the first."""
        if seconds <= 0.0 and self._inbox.empty():
            return
        try:
            action = self._inbox.get(timeout=seconds) if seconds > 0 else self._inbox.get_nowait()
            self._used_time = perf_counter()
            while True:
                action()
                action = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _wake_time(self, now: float) -> float:
        """Return when to decode next, or to look for room or expired sessions again."""
        scheduler = self._runner.scheduler
        if scheduler.has_active:
            return scheduler.decode_time(now)
        waiting_since = scheduler.first_submit_time()
        if waiting_since is not None:
            return min(now + 0.01, waiting_since + self._options.room_seconds)
        return now + self._runner.expire(now)

    # --- actions ---

    def _queue(self, ticket: Ticket) -> None:
        if self._stopping:
            self._places.release()
            ticket.fail(Draining(_STOPPING))
            return
        # What is cached is worth something from now on.
        self._idle_seconds = max(self._idle_seconds, self._options.quiet_seconds)
        self._runner.queue(ticket)

    def _cancelled(self) -> OutriderError:
        return Draining(_STOPPING) if self._stopping else RoundSuperseded("cancelled")

    def _pin(self, session_id: bytes, pinned: bool) -> None:
        if not self._stopping:
            self._runner.pin(session_id, pinned)

    def _begin_stop(self) -> None:
        if self._stopping:
            return  # the thread ended before it came to this
        self._stopping = True
        self._runner.cancel_all()
