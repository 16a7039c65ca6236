"""Runs the jobs of many sessions on one model, in the engine's thread, and shares their decodes.

It carries out what the scheduler decides: which jobs start, whose steps join a decode, how long
to wait for more. Then it hands each job its rows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

from outrider.costs import CostTable
from outrider.engine.batching import limits_of
from outrider.engine.cache import Session, SessionCache
from outrider.engine.core_lock import CoreLock
from outrider.engine.hosting import Counters, HostOptions
from outrider.engine.job import Lease, Ticket, counts_of
from outrider.engine.model import MAX_PADDED, Chunk, Model, NoRoom, Row
from outrider.engine.moving import Moved, exchange
from outrider.engine.own_draft import DraftLine, OwnDraft
from outrider.engine.preparation import Prepared
from outrider.engine.row_keeper import RowKeeper
from outrider.engine.scheduler import Scheduler
from outrider.engine.workers import Work, Workers
from outrider.errors import DecodeFailed, EngineBusy, OutriderError

_TURN_SECONDS = 0.05
"""s; that a draft waits for others' decodes at most before it is timed: beside them it looks slow,
and who writes waits, too."""


class JobRunner:
    """What the engine's thread does for jobs. Nothing here may be called from another thread."""

    def __init__(
        self,
        model: Model,
        options: HostOptions,
        core_lock: CoreLock,
        counters: Counters,
        places: threading.Semaphore,
        cancelled: Callable[[], OutriderError],
    ) -> None:
        """A job that starts, or never will, gives back its place of those that wait.

        `cancelled` returns what a job fails with that is cancelled. There are no sessions before
        `begin_anew`.
        """
        self._model = model
        self._options = options
        self._core_lock = core_lock
        self._counters = counters
        self._places = places
        self._cancelled = cancelled
        self.cache: SessionCache
        self.scheduler: Scheduler
        self.own_draft: OwnDraft | None = None
        """What drafts for the model, in the same thread; None: nothing does."""
        self.keeper: RowKeeper | None = None
        """Who writes down what is decoded; None: nobody does."""
        # With the work of jobs that wait for it; none in a decode.
        self._workers = Workers[Ticket](options.count_helpers(model.describe()))
        self._capacity = model.describe().context  # tokens that a session can hold
        self._decode_seconds = 0.0  # of the newest decode
        self._open: set[bytes] = set()  # sessions with an open stream

    @property
    def is_open(self) -> bool:
        """Whether there is an open stream."""
        return bool(self._open)

    def close(self) -> None:
        """Free the model, and what drafts for it."""
        self._workers.stop()
        if self.keeper is not None:
            self.keeper.close()
        if self.own_draft is not None:  # first: a head is a part of the model
            self.own_draft.close()
        self._model.close()

    def replace_draft(self, make: Callable[[], OwnDraft]) -> tuple[OwnDraft, OwnDraft | None]:
        """Draft with what is made; return it, and the draft before, which is to be closed.

        Raises what `make` does: nothing is changed then.
        """
        self._core_lock.wait(_TURN_SECONDS)
        try:
            draft = make()
        finally:
            self._core_lock.give()
        before, self.own_draft = self.own_draft, draft
        return draft, before

    def begin_anew(self, prepared: Prepared) -> None:
        """Forget every session, and run as is prepared. Nothing is queued or active."""
        self.forget_all()
        description = self._model.describe()
        cost = CostTable(prepared.costs)
        self.scheduler = Scheduler(cost, limits_of(description), self._model.padded)

    def forget_all(self) -> None:
        """Forget every session. Nothing is queued or active."""
        description = self._model.describe()
        cells = math.inf if description.pool_cells is None else description.pool_cells
        idle = math.inf if description.pool_cells is None else description.context
        self.cache = SessionCache(description.sequence_count, cells, idle)
        for sequence in range(description.sequence_count):
            self._model.truncate(sequence, 0)

    def expire(self, now: float) -> float:
        """Forget sessions that were idle for long; return when to look again."""
        self.cache.expire(now - self._options.idle_seconds, self.scheduler.busy_sessions)
        return min(60.0, self._options.idle_seconds / 2)

    def spare_lease(self) -> Lease:
        """Return a lease of a session of nobody's, to see how long a decode takes now."""
        return self._lease(self.cache.spare())

    def _lease(self, session: Session) -> Lease:
        return Lease(session, self._model, self._capacity)

    # --- starting jobs ---

    def queue(self, ticket: Ticket) -> None:
        """Let a job wait for its turn among those of its session."""
        self.scheduler.queue(ticket)
        self._give_way(ticket.session_id)

    def _give_way(self, session_id: bytes) -> None:
        """End a session's active job if that gives way and another one waits."""
        active = self.scheduler.active_job(session_id)
        if active and active.gives_way and self.scheduler.has_waiting(session_id):
            assert active.generator is not None
            active.generator.close()
            self._end(active)
            active.resolve(None)

    def start_jobs(self) -> None:
        """Start what may start and has room; clear what sessions that are gone have left."""
        for ticket in self.scheduler.startable():
            session = self.cache.enter(ticket.session_id, perf_counter())
            room = self._room(ticket)
            if not self._has_place(session, room) and not self._place(session, ticket, room):
                continue
            self._leave_lane(ticket)
            self._start(ticket, session)
        for sequence in self.cache.take_left():
            self._model.truncate(sequence, 0)

    def _room(self, ticket: Ticket) -> int:
        """Return the tokens to reserve for a job, pad rows included."""
        most = self._capacity
        return most if ticket.room is None else min(most, ticket.room + MAX_PADDED)

    def _has_place(self, session: Session, room: int) -> bool:
        return session.sequence is not None and session.reserved >= room

    def _place(self, session: Session, ticket: Ticket, room: int) -> bool:
        """Give the session a sequence and room; fail the ticket that waited too long for them."""
        now, options, kept = perf_counter(), self._options, self.scheduler.busy_sessions
        idle_since = now - options.stream_idle_seconds
        if ticket.is_modest:
            kept = {*kept, *self.cache.lately_used(now - options.modest_idle_seconds)}
        placement = self.cache.place(session, ticket.wanted, kept, ticket.salt, idle_since, room)
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
        self.scheduler.leave_lane(ticket)
        self._places.release()

    def _start(self, ticket: Ticket, session: Session) -> None:
        now = perf_counter()
        ticket.lease = self._lease(session)
        ticket.lease.spent.queue = now - ticket.submit_time
        ticket.generator = ticket.job(ticket.lease)
        self.scheduler.start(ticket, now)
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
            self.scheduler.put_last(ticket)
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
        session = self.cache.get(ticket.session_id)
        if session is not None and session.pinned and session.sequence is not None:
            self.scheduler.expect(ticket, session.sequence, perf_counter())
        ticket.resolve(result)

    def _end(self, ticket: Ticket) -> None:
        self.scheduler.end(ticket)
        self.cache.end_work(ticket.session_id, perf_counter())
        self._keep_if_idle(ticket.session_id)

    def _keep_if_idle(self, session_id: bytes) -> None:
        """Let a session without a stream come back to its text: a chat continues from there."""
        session = self.cache.get(session_id)
        if session is not None and not session.pinned and session.sequence is not None:
            self._model.checkpoint(session.sequence)

    # --- decoding ---

    def decode(self, now: float) -> None:
        """Let the own draft draft and decode what is ready; then move sequences where that pays."""
        before = self._counters.decodes
        self._draft(self.scheduler.asking())
        free, held = self.cache.free_sequences, self.cache.held_count
        self._decode(self.scheduler.next_decode(now, free, held))
        # Right after a decode no copy is pending, see Model.exchange.
        if self._counters.decodes > before and (
            pair := self.scheduler.exchange_due(perf_counter())
        ):
            self._exchange(*pair)

    def _exchange(self, first: int, second: int) -> None:
        """Let two sequences change owners, unless their cells cannot follow."""
        begin = perf_counter()
        moved = exchange(self._model, self.cache, first, second)
        if moved is Moved.NOTHING:
            return
        seconds = perf_counter() - begin if moved is Moved.BOTH else None
        awaited = self.scheduler.awaited_sessions
        places = {session: self.cache.sequence_of(session) for session in awaited}
        self.scheduler.note_exchange(places, seconds)

    def _draft(self, asking: list[Ticket]) -> None:
        """Let the engine's own draft answer the jobs that ask it, all of them at once.

        It reads a text no longer than a decode takes: who waits for tokens gets them meanwhile.
        """
        if not asking:
            return
        begin = perf_counter()
        lines = []
        for ticket in asking:
            assert ticket.ask is not None and ticket.lease is not None
            sequence = ticket.lease.session.sequence
            lines.append(DraftLine(ticket.session_id, ticket.salt, ticket.ask, sequence))
        if self.own_draft is not None:
            self.own_draft.draft(lines, self._decode_seconds)
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
        self._counters.decoding = sum(len(chunk.token_ids) for _, chunk in entries)
        try:
            try:
                rows = self._model.decode([chunk for _, chunk in entries])
            finally:
                self._counters.decoding = 0
                # Who reads the rows needs the interpreter, and may have to wait for it.
                self._core_lock.give()
        except (NoRoom, DecodeFailed) as error:
            self._decode_apart(entries, error)
            return
        spent = perf_counter() - begin
        self.scheduler.note_decode(spent, [chunk for _, chunk in entries])
        self._decode_seconds = spent
        self._counters.note_decode(begin, spent, self.is_open)
        shared = counts_of([chunk for _, chunk in entries], self._model.padded)
        is_shared = len(entries) > 1
        for (ticket, chunk), its_rows in zip(entries, rows, strict=True):
            assert ticket.lease is not None
            if self.keeper is not None and ticket.lease.session.pinned:
                self.keeper.note(ticket.lease.session, chunk, its_rows)
            ticket.lease.spent.add(shared)
            ticket.lease.spent.add_step(bool(its_rows))
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
        self._counters.chunks += 1
        self._counters.tokens += len(chunk.token_ids)
        ticket.tokens = ticket.tokens[len(chunk.token_ids) :]
        ticket.ready_time = begin + spent
        if not ticket.tokens:
            self._advance(ticket, rows, is_shared)
        else:
            self.scheduler.put_last(ticket)

    # --- what others ask for ---

    def cancel(self, ticket: Ticket) -> None:
        """End a job, if it is not over."""
        if self.scheduler.is_active(ticket):
            assert ticket.generator is not None
            ticket.generator.close()
            self._end(ticket)
        elif self.scheduler.is_waiting(ticket):
            self._leave_lane(ticket)
        else:
            return
        ticket.fail(self._cancelled())

    def cancel_unstarted(self, ticket: Ticket) -> None:
        """End a job that has not started."""
        if not self.scheduler.is_active(ticket):
            self.cancel(ticket)

    def cancel_all(self) -> None:
        """End every job."""
        for session_id in self.scheduler.busy_sessions:
            self._cancel_session(session_id)

    def _cancel_session(self, session_id: bytes) -> None:
        for ticket in self.scheduler.jobs_of(session_id):
            self.cancel(ticket)

    def pin(self, session_id: bytes, pinned: bool) -> None:
        """Take note that a stream of the session is open, or none is."""
        self._counters.count_open(perf_counter(), self.is_open)
        (self._open.add if pinned else self._open.discard)(session_id)
        if pinned:
            self.cache.enter(session_id, perf_counter()).pinned = True
            return
        self.scheduler.expect_no_more(session_id)
        if self.keeper is not None:
            self.keeper.end(session_id)
        session = self.cache.get(session_id)
        if session is not None:
            session.pinned = False
            if session_id not in self.scheduler.busy_sessions:
                session.reserved = 0
                self._keep_if_idle(session_id)
                if session.sequence is None:
                    self.cache.forget(session_id)

    def truncate(self, session_id: bytes, token_count: int) -> int:
        """Cancel the session's jobs and cut it; return the tokens that it holds."""
        self._cancel_session(session_id)
        if session := self.cache.get(session_id):
            self._lease(session).keep(token_count)
        return self.held_count(session_id)

    def held_count(self, session_id: bytes) -> int:
        """Return the tokens that a session holds; 0 for an unknown one."""
        session = self.cache.get(session_id)
        return len(session.token_ids) if session else 0

    def forget(self, session_id: bytes) -> None:
        """Cancel the session's jobs and drop it."""
        self._cancel_session(session_id)
        self.cache.forget(session_id)  # first, as an idle session would be saved
        self.pin(session_id, False)
        if self.own_draft is not None:
            self.own_draft.forget(session_id)
