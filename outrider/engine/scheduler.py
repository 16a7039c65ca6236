"""Which jobs run, which decode joins whom, whom to wait for. No thread and no clock of its own.

The runner reports what happened, with the time, and carries out what is decided here.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from outrider.costs import NOISE, CostTable
from outrider.engine.batching import (
    Awaited,
    Limits,
    Offer,
    Pending,
    allot,
    apart_seconds,
    exchange_to_adjoin,
    fillers,
    fits_whole,
    gains_that_pay,
    nodes_within,
    reads,
    split_seconds,
    wait_until,
    widths,
)
from outrider.engine.job import Ticket
from outrider.engine.model import MAX_PADDED, Chunk
from outrider.engine.reading import PROMISED_ROUNDS, Reading, Share

_FIRST_TURNAROUND = 0.001
"""Seconds until a session is back of which nothing is known: too little, and those of a closed loop
never meet; 20 decodes in place of 40 (tests/unit/test_scheduler.py)."""

_IN_FLIGHT = 2.0
"""Seconds without a decode, from an answer: until then its session is taken to generate."""

_GATHERING = 0.02
"""Of the time in which the prompts at hand are read: for so long the first waits for others that
come at about the same time. Four prompts of 256 tokens sent at once took 9 % longer without it."""

_FIRST_EXCHANGE = 0.005
"""Seconds that an exchange of sequences is taken to cost before there was one: two texts of 190
tokens of a 1.1B take 3 ms, and a decode of four users who are apart 25 ms more."""


class Scheduler:
    """The jobs of one engine.

    A job waits in its session's lane, then it is active: at most one of a session, and its ticket
    has a lease. Times are seconds of the runner's clock. Turnarounds are counted without the time
    in which anything is decoded, so they are differences of the clock less `_decoding`.
    """

    def __init__(self, cost: CostTable, limits: Limits, padded: Callable[[int], int]) -> None:
        self.cost = cost
        self._limits = limits
        self._padded = padded  # the rows that a chunk of so many tokens takes
        self._lanes: dict[bytes, deque[Ticket]] = {}  # by session, in order of arrival; never empty
        self._active: OrderedDict[bytes, Ticket] = OrderedDict()  # by session; next to decode first
        self._awaited: dict[bytes, Awaited] = {}  # sessions just answered, likely back with a job
        self._turnarounds: dict[bytes, float] = {}  # of sessions with a stream, smoothed
        self._lost_apart = 0.0  # seconds that adjacent sequences would have saved since an exchange
        self._exchange_seconds = _FIRST_EXCHANGE  # what the last exchange took
        self._decoding = 0.0  # seconds of all decodes
        self._reading = Reading(cost, limits, padded)
        self._is_bounded = False  # the last decode read a part of a prompt while others generate
        self._since_round = 0  # decodes like that, since one without a prompt

    # --- jobs ---

    @property
    def has_active(self) -> bool:
        """Whether there is something to decode."""
        return bool(self._active)

    @property
    def busy_sessions(self) -> set[bytes]:
        """The sessions with a job, waiting or active."""
        return self._lanes.keys() | self._active.keys()

    def queue(self, ticket: Ticket) -> None:
        """Let a job wait until those of its session before it are over."""
        self._lanes.setdefault(ticket.session_id, deque()).append(ticket)

    def startable(self) -> list[Ticket]:
        """Return the first waiting job of each session that has none active."""
        return [lane[0] for session, lane in self._lanes.items() if session not in self._active]

    def leave_lane(self, ticket: Ticket) -> None:
        """Let a job wait no more."""
        lane = self._lanes[ticket.session_id]
        lane.remove(ticket)
        if not lane:
            del self._lanes[ticket.session_id]

    def is_waiting(self, ticket: Ticket) -> bool:
        """Return whether a job waits in its lane."""
        return ticket in self._lanes.get(ticket.session_id, ())

    def has_waiting(self, session_id: bytes) -> bool:
        """Return whether a job of a session waits."""
        return session_id in self._lanes

    def is_active(self, ticket: Ticket) -> bool:
        """Return whether a job is active."""
        return self.active_job(ticket.session_id) is ticket

    def active_job(self, session_id: bytes) -> Ticket | None:
        """Return the active job of a session, if it has one."""
        return self._active.get(session_id)

    def jobs_of(self, session_id: bytes) -> list[Ticket]:
        """Return all jobs of a session, the waiting ones first."""
        active = self.active_job(session_id)
        return [*self._lanes.get(session_id, ()), *([active] if active else [])]

    def start(self, ticket: Ticket, now: float) -> None:
        """Make a job active, which has left its lane, and learn from when it came."""
        self._note_turnaround(ticket.session_id, now)
        self._active[ticket.session_id] = ticket

    def put_last(self, ticket: Ticket) -> None:
        """Let the other active jobs decode before this one."""
        self._active.move_to_end(ticket.session_id)

    def end(self, ticket: Ticket) -> None:
        """Make a job inactive."""
        self._active.pop(ticket.session_id, None)

    # --- waiting for sessions ---

    def expect(self, ticket: Ticket, sequence: int, now: float) -> None:
        """A session with a stream was just answered: its next job is likely to come."""
        turnaround = self._turnarounds.get(ticket.session_id, _FIRST_TURNAROUND)
        rows = self._padded(max(1, ticket.row_count))
        awaited = Awaited(now - self._decoding, turnaround, rows, sequence, _held_count(ticket))
        self._awaited[ticket.session_id] = awaited

    def expect_no_more(self, session_id: bytes) -> None:
        """A session's stream is closed."""
        self._awaited.pop(session_id, None)
        self._turnarounds.pop(session_id, None)

    def _note_turnaround(self, session_id: bytes, now: float) -> None:
        """Learn how long a session takes to come back after an answer.

        Only time in which nothing is decoded counts: the others' decodes may keep its draft
        from the cores, and are no reason not to wait for it.
        """
        awaited = self._awaited.pop(session_id, None)
        if awaited is None:
            return
        seconds = now - self._decoding - awaited.answer_time
        if seconds < _IN_FLIGHT:
            before = self._turnarounds.get(session_id, _FIRST_TURNAROUND)
            self._turnarounds[session_id] = 0.7 * before + 0.3 * seconds

    def decode_time(self, now: float) -> float:
        """Return when to decode what is active: now, or later where waiting for more pays."""
        ready = now
        if self._awaited:
            idle, awaited = now - self._decoding, list(self._awaited.values())
            ready = self._decoding + wait_until(
                idle, self._ready_rows(), awaited, self.cost, self._limits.is_pool
            )
        return max(ready, self._gathering_ends())

    def _gathering_ends(self) -> float:
        """Return until when prompts wait for others; long ago where anything else is ready."""
        active = self._active.values()
        if not all(reads(len(t.tokens), t.row_count) for t in active):
            return 0.0
        count = sum(len(ticket.tokens) for ticket in active)
        if count >= self._limits.rows:
            return 0.0
        first = min((ticket.submit_time for ticket in active), default=0.0)
        return first + _GATHERING * self._reading.seconds((), Share(count))

    def first_submit_time(self) -> float | None:
        """Return when the oldest of the waiting jobs' lanes was first submitted to."""
        for lane in self._lanes.values():
            return lane[0].submit_time
        return None

    def _ready_rows(self) -> dict[int, int]:
        """Return the rows that could be decoded now, by sequence."""
        return {
            ticket.lease.session.sequence: self._padded(ticket.row_count)
            for ticket in self._active.values()
            if ticket.lease is not None and ticket.lease.session.sequence is not None
        }

    # --- decoding ---

    def asking(self) -> list[Ticket]:
        """Return the jobs that want tokens of the engine's own draft before they can decode."""
        return [ticket for ticket in self._active.values() if ticket.ask is not None]

    def next_decode(
        self,
        now: float,
        free: Sequence[int] = (),
        held: Callable[[int], int] = lambda _: 0,
    ) -> list[tuple[Ticket, Chunk]]:
        """Return what joins the next decode; nobody asks for drafts any more.

        No session has the `free` sequences, which are empty; `held` are the tokens of any one.
        """
        tickets = list(self._active.values())
        assert all(ticket.ask is None for ticket in tickets)
        if len(tickets) == 1 and (chunk := self._alone(tickets[0])) is not None:
            return [(tickets[0], chunk)]
        spare = [*self._limits.branches, *free] if self._limits.branches else []
        takes = self._takes(tickets, len(spare), now)
        taking = [(t, take) for t, take in zip(tickets, takes, strict=True) if take]
        rows = [self._padded(take) for _, take in taking]
        pads = widths(rows, self._limits, self.cost)
        unused = iter(spare)
        entries = [
            (ticket, _chunk(ticket, take, min(pad, MAX_PADDED), unused))
            for (ticket, take), pad in zip(taking, pads, strict=True)
        ]
        return self._filled(entries, held) if set(pads) == {1} else entries

    def _takes(self, tickets: list[Ticket], spare_count: int, now: float) -> list[int]:
        """Return how many tokens of each job join; shorten what they offer to what pays and fits.

        Nothing is to be decided where each of them has one token, as most decodes of many users.
        """
        most = min(self._limits.rows, self._limits.rows_out) // self._padded(1)
        if len(tickets) <= most and all(len(t.tokens) == t.row_count == 1 for t in tickets):
            return [1] * len(tickets)
        if len(tickets) > 1:  # a job alone keeps what it offers: its controller has weighed that
            self._leave_out(tickets)
        self._fit(tickets, spare_count)
        pending = [Pending(len(t.tokens), t.row_count) for t in tickets]
        return allot(pending, self._read_rows(tickets, now), self._limits, self._padded)

    def _filled(
        self, entries: list[tuple[Ticket, Chunk]], held: Callable[[int], int]
    ) -> list[tuple[Ticket, Chunk]]:
        """Return a decode of one row of each session with rows that make it quicker, if any do."""
        sequences = {chunk.sequence for _, chunk in entries}
        if not (added := fillers(sequences, self._limits, self.cost, held)):
            return entries
        ticket, chunk = entries[0]
        return [(ticket, replace(chunk, fillers=added)), *entries[1:]]

    def _alone(self, ticket: Ticket) -> Chunk | None:
        """Return all tokens of the only job; None where it reads, branches, or has too many.

        Nothing else is to be decided then, and every plain token waits for it.
        """
        count = len(ticket.tokens)
        fits = count == 1 or fits_whole(
            Pending(count, ticket.row_count), self._limits, self._padded
        )
        if ticket.parents or not fits:
            return None
        [pad] = widths([self._padded(count)], self._limits, self.cost)
        return _chunk(ticket, count, min(pad, MAX_PADDED), iter(()))

    def _read_rows(self, tickets: Sequence[Ticket], now: float) -> int:
        """Return how many rows of prompts may join: all where nobody generates meanwhile."""
        reading, present = _parted(
            (Pending(len(t.tokens), t.row_count), _held_count(t)) for t in tickets
        )
        if not reading:
            return 0
        missing = {
            session: Share(each.row_count, each.length)
            for session, each in self._awaited.items()
            if now - self._decoding - each.answer_time < _IN_FLIGHT
        }
        self._is_bounded = bool(present or missing)
        if not self._is_bounded:
            return self._limits.rows
        self._since_round += 1
        if present and self._since_round >= PROMISED_ROUNDS:  # to see what a round takes now
            return 0
        return self._reading.rows(
            present, list(missing.values()), max(each.length for each in reading)
        )

    def _leave_out(self, tickets: list[Ticket]) -> None:
        """Shorten what the jobs offer to what pays when they share the decode."""
        offers = [
            Offer(min(len(t.tokens), 64) - len(t.gains), t.gains, len(t.lease.held))
            for t in tickets
            if t.lease is not None
        ]
        keeps = gains_that_pay(offers, self._limits, self.cost, self._padded)
        for ticket, keep in zip(tickets, keeps, strict=True):
            ticket.leave_out(len(ticket.gains) - keep)

    def _fit(self, tickets: Sequence[Ticket], spare_count: int) -> None:
        """Shorten trees until there are sequences for their leaves."""
        trees = [(ticket, ticket.tree) for ticket in tickets if ticket.parents]
        counts = nodes_within([tree for _, tree in trees], spare_count)
        for (ticket, tree), count in zip(trees, counts, strict=True):
            ticket.leave_out(len(tree) - count)

    def note_decode(self, seconds: float, chunks: Sequence[Chunk] = ()) -> None:
        """Something was decoded."""
        self._decoding += seconds
        if not any(reads(len(c.token_ids), c.row_count) for c in chunks):
            self._since_round = 0
            self._reading.note_round([(len(c.token_ids), c.position) for c in chunks], seconds)
            return
        reading, others = _parted(
            (Pending(len(c.token_ids), c.row_count), c.position) for c in chunks
        )
        count = sum(each.row_count for each in reading)
        if self._is_bounded:
            prompts = Share(count, max(each.length for each in reading))
            self._reading.note(others, prompts, seconds)

    # --- adjacent sequences ---

    def exchange_due(self, now: float) -> tuple[int, int] | None:
        """Return two sequences to exchange, once that would have cost less than split batches did.

        Sessions come and go, and those that stay may have any sequence. llama.cpp computes
        together only those whose numbers follow each other. Call it once after every decode.
        """
        if self._limits.is_pool or len(self._active) + len(self._awaited) < 2:
            return None
        rows = self._ready_rows()
        for session in self._awaited.values():
            if session.answer_time + 2 * session.turnaround > now - self._decoding:
                rows.setdefault(session.sequence, session.row_count)
        if rows and max(rows) - min(rows) < len(rows):
            self._lost_apart = 0.0  # they follow each other
            return None
        apart = apart_seconds(rows, self.cost)
        together = split_seconds(list(rows.values()), self.cost)
        if apart < (1.0 + NOISE) * together:
            self._lost_apart = 0.0
            return None
        self._lost_apart += apart - together
        return exchange_to_adjoin(rows) if self._lost_apart >= self._exchange_seconds else None

    def note_exchange(
        self, sequences: Mapping[bytes, int | None], seconds: float | None = None
    ) -> None:
        """Sessions have these sequences now; an exchange that moved both took `seconds`."""
        self._lost_apart = 0.0
        if seconds is not None:
            self._exchange_seconds = seconds
        for session_id, sequence in sequences.items():
            if sequence is not None and session_id in self._awaited:
                awaited = self._awaited[session_id]
                self._awaited[session_id] = replace(awaited, sequence=sequence)

    @property
    def awaited_sessions(self) -> Iterable[bytes]:
        """The sessions that were just answered."""
        return self._awaited.keys()


def _held_count(ticket: Ticket) -> int:
    return len(ticket.lease.held) if ticket.lease is not None else 0


def _parted(jobs: Iterable[tuple[Pending, int]]) -> tuple[list[Share], list[Share]]:
    """Return the shares of those that read and of all others; each job has tokens before it."""
    reading, others = list[Share](), list[Share]()
    for job, held in jobs:
        (reading if job.reads else others).append(Share(job.token_count, held))
    return reading, others


def _chunk(ticket: Ticket, take: int, pad_to: int, unused: Iterator[int]) -> Chunk:
    """Return a job's part in a decode; the leaves of its tree take unused sequences."""
    assert ticket.lease is not None and ticket.lease.session.sequence is not None
    is_last = take == len(ticket.tokens)
    rows, parents = (ticket.row_count, ticket.parents) if is_last else (0, ())
    branches = list(islice(unused, max(0, len(ticket.tree.leaves) - 1))) if parents else ()
    sequence, held = ticket.lease.session.sequence, len(ticket.lease.held)
    tokens, certain = ticket.tokens[:take], ticket.certain
    return Chunk(sequence, held, tokens, rows, pad_to, parents, branches, certain)
