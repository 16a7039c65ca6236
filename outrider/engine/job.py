"""What a job is: a generator over steps, its hold on a session, the ticket that stands for it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from outrider.engine.batching import reads
from outrider.engine.branches import Branch, branches_of, stem_count
from outrider.engine.cache import Session, common_prefix, tokens_to_keep
from outrider.engine.model import MAX_PADDED, Chunk, Model, Rollback
from outrider.engine.own_draft import DraftAsk
from outrider.engine.workers import Work, WorkResult
from outrider.errors import ContextExhausted
from outrider.messages import ServiceTime
from outrider.trees import Tree


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens, at least one, to append to the session; the last `row_count` rows are wanted.

    The last `len(gains)` tokens may be left out, from the end: `gains` are
    what each of them is expected to add, in tokens, never rising. Fewer rows
    come back then. A job whose step `gives_way` is over as soon as its session
    has another, unless the step is being decoded.

    The last `len(parents)` tokens are a tree (`outrider.trees`), where there are any. Nodes may
    be left out of it as well, from the end, for want of sequences. Then `Lease.follow` says what
    of it to hold on to, before the next step.

    `certain` are the session's tokens that stay in any case; None: all up to the first row.
    """

    token_ids: Sequence[int]
    row_count: int
    gains: Sequence[float] = ()
    gives_way: bool = False
    parents: Sequence[int] = ()
    certain: int | None = None


def counts_of(chunks: Sequence[Chunk], padded: Callable[[int], int]) -> ServiceTime:
    """Return the rows of a decode, what they attended to, and the sessions that generate in it.

    Rows that only fill it are nobody's, and do not make it more expensive.
    """
    rows, attended, sessions = 0, 0, 0
    for chunk in chunks:
        count = padded(len(chunk.token_ids))
        rows += count
        attended += count * chunk.position
        sessions += not reads(len(chunk.token_ids), chunk.row_count)
    return ServiceTime(rows=rows, attended=attended, sessions=sessions)


class Lease:
    """A running job's hold on its session: what the cache has, and how to cut it."""

    def __init__(self, session: Session, model: Model, capacity: int) -> None:
        self.session = session
        self.capacity = capacity
        self.spent = ServiceTime(steps=0)
        self._model = model
        self._resume_time = 0.0
        # What the sequences of the newest step's tree hold of it, the session's own first, and
        # the tokens before it; nothing once it was followed.
        self._branches: Sequence[Branch] = ()
        self._stem = 0

    @property
    def held(self) -> Sequence[int]:
        """The tokens that the cache holds."""
        return self.session.token_ids

    @property
    def shares_cells(self) -> bool:
        """Whether taking over a prefix copies nothing."""
        return self._model.describe().layout.is_pool

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the session goes back to a checkpoint where it cannot be cut."""
        return self._model.describe().rollback is not Rollback.FULL

    def keep(self, token_count: int) -> int:
        """Cut the session to its first `token_count` tokens, at most; return what it holds."""
        held = self.session.token_ids
        if token_count < len(held):
            assert self.session.sequence is not None
            del held[self._model.truncate(self.session.sequence, token_count) :]
        return len(held)

    def recall(self) -> list[int]:
        """Take note of what the session still holds after a decode that failed; return the rest."""
        held = self.session.token_ids
        assert self.session.sequence is not None
        count = self._model.truncate(self.session.sequence, len(held))
        lost = held[count:]
        del held[count:]
        return lost

    def recover(self) -> None:
        """Hold again what the session held before a decode that failed.

        Memory that cannot be cut goes back to a checkpoint then, in all sessions of the decode.
        Raises NoRoom and DecodeFailed.
        """
        if not (lost := self.recall()):
            return
        assert self.session.sequence is not None
        rows = self._model.describe().batch_rows
        for first in range(0, len(lost), rows):
            piece = lost[first : first + rows]
            self._model.decode([Chunk(self.session.sequence, len(self.held), piece, 0)])
            self.session.token_ids += piece
        self._model.checkpoint(self.session.sequence)  # the next decode may fail, too

    def try_decode(self) -> None:
        """Decode a token after what is held and cut it off again. Raises NoRoom and DecodeFailed.

        Memory that cannot be cut goes back to a checkpoint, or is empty afterwards.
        """
        assert self.session.sequence is not None
        position = self.keep(self.capacity - MAX_PADDED)
        try:
            self._model.decode([Chunk(self.session.sequence, position, [0], 1)])
        finally:
            self.recall()

    def reconcile(self, wanted: list[int], row_count: int) -> list[int]:
        """Cut the session to what it shares with a text; return what is left to decode of it.

        That includes the last `row_count` tokens, whose rows are wanted.
        """
        return wanted[self.keep(tokens_to_keep(self.held, wanted, row_count)) :]

    def take_prefix(self, other: Lease, wanted: Sequence[int]) -> None:
        """Hold what another session of the same text holds of `wanted`, where that is more.

        In a pool both share the cells, and nothing is copied.
        """
        mine, theirs = self.session, other.session
        count = common_prefix(theirs.token_ids, wanted)
        if mine is theirs or mine.sequence is None or theirs.sequence is None:
            return
        if mine.salt == theirs.salt and count > common_prefix(mine.token_ids, wanted):
            held = self._model.copy_prefix(theirs.sequence, mine.sequence, count)
            mine.token_ids[:] = wanted[:held]

    def extend(self, chunk: Chunk) -> None:
        """Take note of what was decoded."""
        held = self.session.token_ids
        if not chunk.parents:
            held.extend(chunk.token_ids)
            return
        held.extend(chunk.token_ids[: stem_count(chunk)])
        self._stem, self._branches = len(held), branches_of(chunk)
        held.extend(self._branches[0].token_ids)

    def follow(self, token_ids: Sequence[int]) -> None:
        """Of the newest step's tree hold these tokens, a path from its root, and nothing else."""
        wanted, length = list(token_ids), self._stem + len(token_ids)
        own = self._branches[0]
        branch = next(b for b in self._branches if list(b.token_ids[: len(wanted)]) == wanted)
        if branch is not own:
            self._model.copy_prefix(branch.sequence, own.sequence, length)
            self.session.token_ids[self._stem :] = wanted
        else:
            self.keep(length)
        self.drop_branches()

    def drop_branches(self) -> None:
        """Empty the sequences that the newest step's tree took beside the session's own."""
        for branch in self._branches[1:]:
            self._model.truncate(branch.sequence, 0)
        self._branches = ()

    def resume(self) -> None:
        """Start to count the job's own work, which is sampling."""
        self._resume_time = perf_counter()

    def pause(self) -> None:
        """Add the work since it was counted last."""
        now = perf_counter()
        self.spent.sample += now - self._resume_time
        self._resume_time = now

    def take_spent(self) -> ServiceTime:
        """Return the time spent since the last call; called by the job, or after its end."""
        spent, self.spent = self.spent, ServiceTime(steps=0)
        return spent


JobSteps = Generator[Step | DraftAsk | Work, Any, Any]
"""What a job does: a `Step` receives its rows, a `DraftAsk` its guesses, a `Work` what it returns.

The return value is the result. Rows are valid until the next step.
"""

Job = Callable[[Lease], JobSteps]
"""Called when the job starts, so that it reconciles with what is held then."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One submitted job. `future` resolves on the engine's thread.

    While the job runs, `tokens` is what its current step has left to decode.
    """

    session_id: bytes
    job: Job
    wanted: Sequence[int]
    submit_time: float
    salt: bytes = b""  # whose cache it may see
    room: int | None = None  # tokens that its session will hold at most; None: a whole context
    is_modest: bool = False  # it takes what is free, or was idle for long
    future: Future[Any] = field(default_factory=Future)
    replaced: bool = False  # its own stream cancelled it: nobody waits for the result
    lease: Lease | None = None
    generator: JobSteps | None = None
    ask: DraftAsk | None = None  # while its current step is one; then `tokens` is empty
    tokens: Sequence[int] = ()
    row_count: int = 0
    gains: Sequence[float] = ()
    gives_way: bool = False
    parents: Sequence[int] = ()
    certain: int | None = None
    ready_time: float = 0.0

    def advance(self, received: Any, does_work: bool = True) -> Step | DraftAsk | Work:
        """Run the job up to its next step, and return that; its work only where that is not done.

        Raises StopIteration with the result, or what ends the job without one.
        """
        assert self.generator is not None and self.lease is not None
        step = None
        self.lease.resume()
        try:
            if isinstance(received, WorkResult):
                self.lease.spent.sample += received.seconds
                step = received.give_to(self.generator)
            else:
                step = self.generator.send(received)
            while does_work and isinstance(step, Work):
                step = step.run_in(self.generator)
        finally:
            if not isinstance(step, Work):  # what is read may be a tree, and is followed then
                self.lease.drop_branches()
            self.lease.pause()
        if isinstance(step, Step):
            assert len(step.token_ids) >= max(1, step.row_count)
            needed = len(self.lease.held) + len(step.token_ids)
            if needed > self.lease.capacity:
                raise ContextExhausted(needed, self.lease.capacity)
        return step

    def take(self, step: Step | DraftAsk, now: float) -> None:
        """Begin with a step of the job."""
        self.gives_way, self.ready_time = step.gives_way, now
        self.parents, self.certain = (), None
        if isinstance(step, DraftAsk):
            # It is about to have so many rows.
            self.ask, self.tokens, self.gains, self.row_count = step, (), (), step.count + 1
        else:
            self.ask, self.tokens, self.row_count = None, step.token_ids, step.row_count
            self.gains, self.parents, self.certain = step.gains, step.parents, step.certain

    def resolve(self, result: Any) -> None:
        """Give the result to who waits for it."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Say that there is no result, and why."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    @property
    def tree(self) -> Tree:
        """What the current step's tokens end in; it has no nodes where they are a chain."""
        return Tree(self.tokens[len(self.tokens) - len(self.parents) :], self.parents)

    def leave_out(self, count: int) -> None:
        """Shorten the current step by its last tokens, whose rows are wanted."""
        if count:
            self.tokens = self.tokens[:-count]
            self.row_count -= count
            self.gains = self.gains[:-count]
            self.parents = self.parents[: max(0, len(self.parents) - count)]
