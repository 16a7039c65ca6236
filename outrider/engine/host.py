"""The one thread that owns the model: runs jobs of many sessions and shares their decodes.

It carries out what the scheduler decides: which jobs start, whose steps join a decode, how long
to wait for more. Then it hands each job its rows.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from outrider.costs import CostTable
from outrider.engine.batching import limits_of
from outrider.engine.cache import Session, SessionCache
from outrider.engine.core_lock import CoreLock, NoCoreLock
from outrider.engine.hosting import Counters, HostOptions, Loaded
from outrider.engine.job import Job, Lease, Ticket, counts_of
from outrider.engine.measurements import Measurements
from outrider.engine.model import MAX_PADDED, Chunk, Model, NoRoom, Row
from outrider.engine.moving import Moved, exchange
from outrider.engine.own_draft import DraftLine, OwnDraft
from outrider.engine.preparation import Preparation, Prepared
from outrider.engine.quiet import QuietTries
from outrider.engine.scheduler import Scheduler
from outrider.engine.workers import Work, Workers
from outrider.errors import (
    DecodeFailed,
    Draining,
    EngineBusy,
    RoundSuperseded,
)

T = TypeVar("T")


class EngineHost:
    """Owns the thread. Every public method may be called from any thread.

    `loaded` resolves when the model is ready; `died` fails if the thread does.
    """

    def __init__(
        self,
        load: Callable[[], Model],
        options: HostOptions,
        find_core_lock: Callable[[], CoreLock] = NoCoreLock,
        measurements: Measurements | None = None,
        load_draft: Callable[[Model], Model | None] | None = None,
    ) -> None:
        """`load_draft` loads what drafts for the model, in its thread; None: it does not fit."""
        self._load = load
        self._load_draft = load_draft
        self._find_core_lock = find_core_lock
        self._measurements = measurements  # None: every start measures
        self._options = options
        # Other threads put actions here; the engine's own carries them out between two decodes.
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._places = threading.Semaphore(options.queue_limit)  # of jobs that wait to start
        self._stopping = False  # never false again; what comes after is refused
        self.loaded: Future[Loaded] = Future()  # or why there is no model
        # Has an exception once the thread failed; never a result.
        self.died: Future[None] = Future()
        self.on_prepared: Callable[[Prepared], None] = lambda _: None
        """Called in the engine's thread when something was measured after the load."""
        self.counters = Counters()  # written by the thread; any other's read may be a decode late
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        # From here on the thread's own; they are there once `loaded` has a result.
        self._model: Model
        self._cache: SessionCache
        self._scheduler: Scheduler
        self._core_lock: CoreLock
        self._preparation: Preparation
        self._own_draft: OwnDraft | None = None
        self._workers: Workers[Ticket]  # with the work of jobs that wait for it; none in a decode
        self._used_time = 0.0  # when something was asked for last
        self._quiet = QuietTries(options.first_quiet_seconds, options.quiet_seconds)
        self._capacity = 0  # tokens that a session can hold
        self._decode_seconds = 0.0  # of the newest decode
        self._open: set[bytes] = set()  # sessions with an open stream

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
        evicts nobody. Raises EngineBusy when the queue is full.
        """
        self._check_running()
        if not self._places.acquire(blocking=False):
            raise EngineBusy("the engine's queue is full", self._options.room_seconds)
        ticket = Ticket(session_id, job, wanted, perf_counter(), salt, room, is_modest)
        self._inbox.put(lambda: self._queue(ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End a job before its next decode; its future fails with RoundSuperseded."""
        self._inbox.put(lambda: self._cancel(ticket))

    def cancel_unstarted(self, ticket: Ticket) -> None:
        """End a job that has not started; its future fails with RoundSuperseded."""
        self._inbox.put(lambda: self._cancel_unstarted(ticket))

    def pin(self, session_id: bytes, pinned: bool) -> None:
        """Say whether a stream of the session is open: it is then evicted last."""
        self._inbox.put(lambda: self._pin(session_id, pinned))

    def truncate(self, session_id: bytes, token_count: int) -> Future[int]:
        """Cancel the session's jobs and cut it; the result is the tokens it holds."""
        return self._ask(lambda: self._truncate(session_id, token_count))

    def held_count(self, session_id: bytes) -> Future[int]:
        """Return the tokens that a session holds; 0 for an unknown one."""
        return self._ask(lambda: self._held_count(session_id))

    def forget(self, session_id: bytes) -> Future[None]:
        """Cancel the session's jobs and drop it."""
        return self._ask(lambda: self._forget(session_id))

    def session_count(self) -> int:
        """Return how many sessions are known; a decode in flight is not waited for."""
        return len(self._cache)

    def cached_count(self, token_ids: Sequence[int], salt: bytes) -> int:
        """Return how many tokens a new session of this text and salt need not decode, at once."""
        self._check_running()
        return self._cache.cached_count(token_ids, salt, self._model.copied_count)

    def embed(self, token_ids: Sequence[int]) -> Future[NDArray[np.float32]]:
        """Return the embedding of a text; nothing else is decoded meanwhile."""
        return self._ask(lambda: self.counters.embed(self._model, token_ids, bool(self._open)))

    def _check_running(self) -> None:
        if self._stopping:
            raise Draining("the engine is stopping")

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
        self._workers.stop()
        self._model.close()
        if self._own_draft is not None:
            self._own_draft.close()

    def _serve(self) -> None:
        while not self._stopping:
            self._receive(0.0)
            if self._stopping:
                break
            self._start_jobs()
            now = perf_counter()
            wake = self._wake_time(now)
            quiet = self._quiet_time()
            if quiet is not None and quiet <= now:
                self._measure()
            elif wake > now:
                self._receive((wake if quiet is None else min(wake, quiet)) - now)
            elif self._scheduler.has_active:
                # What comes while others decode joins the next decode.
                if pause := self._core_lock.take(now):
                    self._receive(pause)
                    continue
                before = self.counters.decodes
                self._draft(self._scheduler.asking())
                free, held = self._cache.free_sequences, self._cache.held_count
                self._decode(self._scheduler.next_decode(now, free, held))
                # Right after a decode no copy is pending, see Model.exchange.
                if self.counters.decodes > before and (
                    pair := self._scheduler.exchange_due(perf_counter())
                ):
                    self._exchange(*pair)

    def _prepare(self) -> None:
        """Load the model and find out what has to be known of it."""
        begin = perf_counter()
        self._model = model = self._load()
        description = model.describe()
        self._core_lock = self._find_core_lock()
        self._workers = Workers(self._options.count_helpers())
        self._preparation = Preparation(
            model, self._options.numerics, self._measurements, self._core_lock
        )
        prepared = self._preparation.begin()
        self._capacity = description.context
        self._begin_anew(prepared)
        if self._load_draft is not None and (draft := self._load_draft(model)) is not None:
            self._own_draft = OwnDraft(draft, target=model)
        spent = perf_counter() - begin
        self.loaded.set_result(Loaded(model, prepared, spent, self._core_lock, self._own_draft))

    def _begin_anew(self, prepared: Prepared) -> None:
        """Forget every session, and run as is prepared. Nothing is queued or active."""
        self._forget_all()
        description = self._model.describe()
        cost = CostTable(prepared.costs)
        self._scheduler = Scheduler(cost, limits_of(description), self._model.padded)

    def _forget_all(self) -> None:
        """Forget every session. Nothing is queued or active."""
        description = self._model.describe()
        cells = math.inf if description.pool_cells is None else description.pool_cells
        idle = math.inf if description.pool_cells is None else description.context
        self._cache = SessionCache(description.sequence_count, cells, idle)
        for sequence in range(description.sequence_count):
            self._model.truncate(sequence, 0)

    def _quiet_time(self) -> float | None:
        """Return when to measure what is due, if nothing comes before; None: not now."""
        if not self._preparation.is_due or self._open or self._scheduler.busy_sessions:
            return None
        return self._quiet.due(self._used_time)

    def _measure(self) -> None:
        """Measure while nobody wants anything; what is cached is lost once that begins."""
        look = Lease(self._cache.spare(), self._model, self._capacity).try_decode
        prepared = self._preparation.measure(look, self._forget_all, self._is_asked)
        self._used_time = perf_counter()
        if prepared is not None:
            self._begin_anew(prepared)
            self.on_prepared(prepared)
        else:
            self._quiet.note_failure()

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
        if self._scheduler.has_active:
            return self._scheduler.decode_time(now)
        waiting_since = self._scheduler.first_submit_time()
        if waiting_since is not None:
            return min(now + 0.01, waiting_since + self._options.room_seconds)
        return now + self._expire(now)

    def _expire(self, now: float) -> float:
        """Forget sessions that were idle for long; return when to look again."""
        self._cache.expire(now - self._options.idle_seconds, self._scheduler.busy_sessions)
        return min(60.0, self._options.idle_seconds / 2)

    # --- starting jobs ---

    def _queue(self, ticket: Ticket) -> None:
        if self._stopping:
            self._places.release()
            ticket.fail(Draining("the engine is stopping"))
            return
        self._quiet.note_work()
        self._scheduler.queue(ticket)
        self._give_way(ticket.session_id)

    def _give_way(self, session_id: bytes) -> None:
        """End a session's active job if that gives way and another one waits."""
        active = self._scheduler.active_job(session_id)
        if active and active.gives_way and len(self._scheduler.jobs_of(session_id)) > 1:
            assert active.generator is not None
            active.generator.close()
            self._end(active)
            active.resolve(None)

    def _start_jobs(self) -> None:
        for ticket in self._scheduler.startable():
            session = self._cache.enter(ticket.session_id, perf_counter())
            room = self._room(ticket)
            if not self._has_place(session, room) and not self._place(session, ticket, room):
                continue
            self._leave_lane(ticket)
            self._start(ticket, session)
        for sequence in self._cache.take_left():
            self._model.truncate(sequence, 0)

    def _room(self, ticket: Ticket) -> int:
        """Return the tokens to reserve for a job, pad rows included."""
        most = self._capacity
        return most if ticket.room is None else min(most, ticket.room + MAX_PADDED)

    def _has_place(self, session: Session, room: int) -> bool:
        return session.sequence is not None and session.reserved >= room

    def _place(self, session: Session, ticket: Ticket, room: int) -> bool:
        """Give the session a sequence and room; fail the ticket that waited too long for them."""
        idle_since = perf_counter() - self._options.stream_idle_seconds
        is_modest, busy = ticket.is_modest, self._scheduler.busy_sessions
        kept = self._cache.session_ids() if is_modest else busy
        placement = self._cache.place(session, ticket.wanted, kept, ticket.salt, idle_since, room)
        if placement is None:
            if perf_counter() - ticket.submit_time > self._options.room_seconds:
                self._leave_lane(ticket)
                message = "the sessions that are open leave no room"
                ticket.fail(EngineBusy(message, self._options.room_seconds))
            return False
        if placement.donor not in (None, placement.sequence):
            held = self._model.copy_prefix(placement.donor, placement.sequence, placement.count)
        else:
            held = self._model.truncate(placement.sequence, placement.count)
        del session.token_ids[held:]
        return True

    def _leave_lane(self, ticket: Ticket) -> None:
        self._scheduler.leave_lane(ticket)
        self._places.release()

    def _start(self, ticket: Ticket, session: Session) -> None:
        now = perf_counter()
        ticket.lease = Lease(session, self._model, self._capacity)
        ticket.lease.spent.queue = now - ticket.submit_time
        ticket.generator = ticket.job(ticket.lease)
        self._scheduler.start(ticket, now)
        self._advance(ticket, None)

    # --- running jobs ---

    def _advance(self, ticket: Ticket, received: Any, is_shared: bool = False) -> None:
        """Run a job up to its next step or its end; where others do as well, up to its work."""
        try:
            step = ticket.advance(received, does_work=not is_shared)
            if isinstance(step, Work):
                self._workers.add(ticket, step)
                return
            ticket.take(step, perf_counter())
            self._scheduler.begin_step(ticket)
        except StopIteration as end:
            self._finish(ticket, end.value)
        except Exception as error:
            self._end(ticket)
            ticket.fail(error)
        else:
            self._give_way(ticket.session_id)

    def _work(self) -> None:
        """Do the work of jobs that share a decode, side by side; then continue them in order."""
        for ticket, outcome in self._workers.outcomes():
            self._advance(ticket, outcome)

    def _finish(self, ticket: Ticket, result: Any) -> None:
        self._end(ticket)
        session = self._cache.get(ticket.session_id)
        if session is not None and session.pinned and session.sequence is not None:
            self._scheduler.expect(ticket, session.sequence, perf_counter())
        ticket.resolve(result)

    def _end(self, ticket: Ticket) -> None:
        self._scheduler.end(ticket)
        self._cache.end_work(ticket.session_id, perf_counter())
        self._keep_if_idle(ticket.session_id)

    def _keep_if_idle(self, session_id: bytes) -> None:
        """Let a session without a stream come back to its text: a chat continues from there."""
        session = self._cache.get(session_id)
        if session is not None and not session.pinned and session.sequence is not None:
            self._model.checkpoint(session.sequence)

    # --- decoding ---

    def _exchange(self, first: int, second: int) -> None:
        """Let two sequences change owners, unless their cells cannot follow."""
        begin = perf_counter()
        moved = exchange(self._model, self._cache, first, second)
        if moved is Moved.NOTHING:
            return
        seconds = perf_counter() - begin if moved is Moved.BOTH else None
        awaited = self._scheduler.awaited_sessions
        places = {session: self._cache.sequence_of(session) for session in awaited}
        self._scheduler.note_exchange(places, seconds)

    def _draft(self, asking: list[Ticket]) -> None:
        """Let the engine's own draft answer the jobs that ask it, all of them at once.

        It reads a text no longer than a decode takes: who waits for tokens gets them meanwhile.
        """
        if not asking:
            return
        begin = perf_counter()
        lines = [DraftLine(t.session_id, t.salt, t.ask) for t in asking if t.ask is not None]
        if self._own_draft is not None:
            self._own_draft.draft(lines, self._decode_seconds)
        spent = perf_counter() - begin
        for ticket, line in zip(asking, lines, strict=True):
            assert ticket.lease is not None
            ticket.lease.spent.draft += spent
            self._advance(ticket, line.guesses)

    def _decode(self, entries: list[tuple[Ticket, Chunk]]) -> None:
        """Decode the chunks at once, or where that fails each alone: one must not fail others."""
        if not entries:  # every job that asked the draft is over
            self._core_lock.give()
            return
        begin = perf_counter()
        self.counters.decoding = sum(len(chunk.token_ids) for _, chunk in entries)
        try:
            try:
                rows = self._model.decode([chunk for _, chunk in entries])
            finally:
                self.counters.decoding = 0
                # Who reads the rows needs the interpreter, and may have to wait for it.
                self._core_lock.give()
        except (NoRoom, DecodeFailed) as error:
            self._decode_apart(entries, error)
            return
        spent = perf_counter() - begin
        self._scheduler.note_decode(spent, [chunk for _, chunk in entries])
        self._decode_seconds = spent
        self.counters.note_decode(begin, spent, bool(self._open))
        shared = counts_of([chunk for _, chunk in entries], self._model.padded)
        is_shared = len(entries) > 1 and self._workers.most > 0
        for (ticket, chunk), its_rows in zip(entries, rows, strict=True):
            assert ticket.lease is not None
            ticket.lease.spent.count(shared)
            ticket.lease.spent.steps += bool(its_rows)
            self._deliver(ticket, chunk, its_rows, begin, is_shared)
        if is_shared:
            self._work()

    def _decode_apart(self, entries: list[tuple[Ticket, Chunk]], error: Exception) -> None:
        """Decode in halves what failed together; fail what fails alone."""
        if len(entries) == 1:
            self._fail_decode(entries[0][0], error)
            return
        whole = []
        for ticket, chunk in entries:
            assert ticket.lease is not None
            try:
                ticket.lease.recover()
                whole.append((ticket, chunk))
            except (NoRoom, DecodeFailed) as failure:
                self._fail_decode(ticket, failure)
        half = len(whole) // 2
        self._decode(whole[:half])
        self._decode(whole[half:])

    def _fail_decode(self, ticket: Ticket, error: Exception) -> None:
        assert ticket.lease is not None
        ticket.lease.recall()
        self._end(ticket)
        no_room = EngineBusy("llama.cpp found no room", self._options.room_seconds)
        ticket.fail(no_room if isinstance(error, NoRoom) else error)

    def _deliver(
        self, ticket: Ticket, chunk: Chunk, rows: list[Row], begin: float, is_shared: bool
    ) -> None:
        assert ticket.lease is not None
        spent = self._decode_seconds
        ticket.lease.extend(chunk)
        ticket.lease.spent.queue += max(0.0, begin - ticket.ready_time)
        ticket.lease.spent.decode += spent
        self.counters.chunks += 1
        self.counters.tokens += len(chunk.token_ids)
        ticket.tokens = ticket.tokens[len(chunk.token_ids) :]
        ticket.ready_time = begin + spent
        if not ticket.tokens:
            self._advance(ticket, rows, is_shared)
        else:
            self._scheduler.put_last(ticket)

    # --- actions ---

    def _cancel(self, ticket: Ticket) -> None:
        if self._scheduler.is_active(ticket):
            assert ticket.generator is not None
            ticket.generator.close()
            self._end(ticket)
        elif self._scheduler.is_waiting(ticket):
            self._leave_lane(ticket)
        else:
            return
        stopping = Draining("the engine is stopping")
        ticket.fail(stopping if self._stopping else RoundSuperseded("cancelled"))

    def _cancel_unstarted(self, ticket: Ticket) -> None:
        if not self._scheduler.is_active(ticket):
            self._cancel(ticket)

    def _cancel_all(self, session_id: bytes) -> None:
        for ticket in self._scheduler.jobs_of(session_id):
            self._cancel(ticket)

    def _pin(self, session_id: bytes, pinned: bool) -> None:
        if self._stopping:
            return
        self.counters.count_open(perf_counter(), bool(self._open))
        (self._open.add if pinned else self._open.discard)(session_id)
        if pinned:
            self._cache.enter(session_id, perf_counter()).pinned = True
            return
        self._scheduler.expect_no_more(session_id)
        session = self._cache.get(session_id)
        if session is not None:
            session.pinned = False
            if session_id not in self._scheduler.busy_sessions:
                session.reserved = 0
                self._keep_if_idle(session_id)
                if session.sequence is None:
                    self._cache.forget(session_id)

    def _truncate(self, session_id: bytes, token_count: int) -> int:
        self._cancel_all(session_id)
        if session := self._cache.get(session_id):
            Lease(session, self._model, self._capacity).keep(token_count)
        return self._held_count(session_id)

    def _held_count(self, session_id: bytes) -> int:
        session = self._cache.get(session_id)
        return len(session.token_ids) if session else 0

    def _forget(self, session_id: bytes) -> None:
        self._cancel_all(session_id)
        self._cache.forget(session_id)  # first, as an idle session would be saved
        self._pin(session_id, False)
        if self._own_draft is not None:
            self._own_draft.forget(session_id)

    def _begin_stop(self) -> None:
        if self._stopping:
            return  # the thread ended before it came to this
        self._stopping = True
        for session_id in self._scheduler.busy_sessions:
            self._cancel_all(session_id)
