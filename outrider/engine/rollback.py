"""How a sequence of each kind of memory is cut back, and which checkpoints that takes. Pure.

llama.cpp cuts some kinds of memory never, some only within the newest decode, and some without a
word although what the next token looks at is gone. Nothing that is not right reaches it from here:
what cannot be cut is restored from a checkpoint, and then holds fewer tokens than was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outrider.costs import MOST_REDONE
from outrider.engine.model import Chunk, Rollback
from outrider.errors import DecodeFailed

MOST_CHECKPOINTS = 4
"""Of one sequence."""

MOST_BYTES = 1 << 30
"""Of all checkpoints of a model. The newest of a sequence in use is kept beyond that, as it may be
needed next; one of an idle sequence is a hint like any cache."""

_IDLE_DECODES = 64
"""Decodes of others after which a sequence counts as idle."""

_TOKENS_BETWEEN = 256
"""Tokens that are read or written until a checkpoint is made although nothing can be rejected."""


class Memory(Protocol):
    """What llama.cpp offers for the sequences of a context."""

    def cut(self, sequence: int, token_count: int) -> bool:
        """Remove the tokens from `token_count` on; return whether llama.cpp did. 0 always works."""
        ...

    def first_position(self, sequence: int) -> int:
        """Return the first position that every part of the memory has; -1 where it is empty."""
        ...

    def save(self, sequence: int) -> Any:
        """Return a copy of what a cut cannot bring back: bytes that have a length."""
        ...

    def restore(self, sequence: int, saved: Any) -> bool:
        """Put a copy in place of what is there; return whether llama.cpp took it."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A copy of a sequence's state after its first `token_count` tokens."""

    token_count: int
    saved: Any


def certain_count(chunk: Chunk) -> int:
    """Return how many tokens of the sequence no answer to this chunk's rows takes back."""
    if chunk.certain is not None:
        return chunk.certain
    return chunk.position + len(chunk.token_ids) - max(0, chunk.row_count - 1)


class RollbackMemory:
    """The sequences of one context: what they hold, and how they come to hold less.

    `held` are the tokens of each sequence. `window` is that of sliding attention, 0 without;
    `reach` are the tokens that WINDOW memory can always take back.
    """

    def __init__(
        self,
        memory: Memory,
        kind: Rollback,
        sequence_count: int,
        window: int = 0,
        reach: int = 0,
        snapshot_count: int = 0,
    ) -> None:
        self.kind = kind
        # Whether checkpoints help: not where every cut works, nor where no state can be saved.
        self.keeps_checkpoints = kind not in (Rollback.FULL, Rollback.RESTART)
        # Whether rows that only pad a decode can be cut off after it.
        self.cuts_freely = kind in (Rollback.FULL, Rollback.WINDOW)
        self.held = [0] * sequence_count
        self._memory = memory
        self._window = window
        self._reach = reach
        self._snapshots = snapshot_count
        self._last_rows = [0] * sequence_count  # of the newest decode; 0 once that was cut
        # Of each sequence, by rising tokens; none of more than it holds.
        self._checkpoints: list[list[Checkpoint]] = [[] for _ in range(sequence_count)]
        self._between = max(_TOKENS_BETWEEN, window)
        # Sequences that the next decode copies from or to. Their numbers are those after it, and
        # their tensors those before it: none of them is saved or restored until then.
        self._copying: set[int] = set()
        self._decodes = 0
        self._used = [0] * sequence_count  # the newest decode of each sequence
        # Of each sequence of WINDOW memory, as it was seen when that changed: `copied_count` is
        # asked for in any thread, while llama.cpp's own state is in the middle of a decode.
        self._first = [-1] * sequence_count

    def checkpoint_counts(self, sequence: int) -> list[int]:
        """Return the tokens of a sequence's checkpoints, rising."""
        return [each.token_count for each in self._checkpoints[sequence]]

    # --- before and after a decode ---

    def lead_count(self, chunk: Chunk) -> int:
        """Return how many tokens of a chunk to decode first, with a checkpoint after them.

        0 where none is needed between its tokens.
        """
        if not self._needs_checkpoint(chunk):
            return 0
        lead = certain_count(chunk) - 1 - chunk.position
        return lead if lead > MOST_REDONE else 0

    def prepare(self, chunk: Chunk) -> None:
        """Make the checkpoint that the tokens of a chunk may need, right before its decode.

        Raises DecodeFailed where there is no memory for it.
        """
        newest = max([0, *self.checkpoint_counts(chunk.sequence)])
        is_old = chunk.row_count > 0 and chunk.position - newest >= self._between
        if not self.keeps_checkpoints:
            return
        if self._needs_checkpoint(chunk):
            self._remember(chunk.sequence, is_needed=True)
        elif is_old:
            self._remember(chunk.sequence)

    def _needs_checkpoint(self, chunk: Chunk) -> bool:
        if not self.keeps_checkpoints:
            return False
        certain = certain_count(chunk)
        count = len(chunk.token_ids)
        depth = chunk.position + count - certain  # of the deepest cut that may follow
        if depth <= self._reach_of(count):
            return False
        if chunk.position < certain:
            return True
        return certain > max([0, *self.checkpoint_counts(chunk.sequence)])

    def _reach_of(self, row_count: int) -> int:
        """Return how deep a decode of so many rows can be cut."""
        if self.kind is Rollback.WINDOW:
            return self._reach
        # Deeper snapshots than the decode has rows are of an older one, and llama.cpp does not say.
        return min(self._snapshots, row_count - 1) if self.kind is Rollback.SNAPSHOTS else 0

    def note(self, sequence: int, token_count: int, row_count: int) -> None:
        """Take note of a decode of so many rows, after which a sequence holds so many tokens."""
        self.held[sequence] = token_count
        self._last_rows[sequence] = row_count
        self._used[sequence] = self._decodes
        self._see(sequence)

    def _see(self, sequence: int) -> None:
        if self.kind is Rollback.WINDOW:
            self._first[sequence] = self._memory.first_position(sequence)

    def note_decoded(self) -> None:
        """Take note of a decode: what was pending is carried out."""
        self._decodes += 1
        self._copying.clear()

    # --- cutting ---

    def truncate(self, sequence: int, token_count: int) -> int:
        """Keep the first `token_count` tokens at most; return how many are held."""
        if token_count >= self.held[sequence]:
            return self.held[sequence]
        is_legal = token_count > 0 and self._can_cut(sequence, token_count)
        if is_legal and self._memory.cut(sequence, token_count):
            self._keep(sequence, token_count)
            return token_count
        return self._restore(sequence, token_count)

    def _can_cut(self, sequence: int, token_count: int) -> bool:
        depth = self.held[sequence] - token_count
        if self.cuts_freely:
            needed = self._needed_position(token_count)
            return 0 <= self._memory.first_position(sequence) <= needed
        return depth <= self._reach_of(self._last_rows[sequence])

    def _needed_position(self, token_count: int) -> int:
        """Return the first position that what follows so many tokens looks at."""
        return max(0, token_count - self._window + 1) if self._window else 0

    def _restore(self, sequence: int, token_count: int) -> int:
        """Go back to the newest checkpoint of at most so many tokens, or to nothing."""
        if sequence in self._copying:
            self.clear(sequence)
            return 0
        while fitting := [c for c in self._checkpoints[sequence] if c.token_count <= token_count]:
            newest = fitting[-1]
            is_back = self._memory.restore(sequence, newest.saved)
            if is_back and self._memory.cut(sequence, newest.token_count):
                self._keep(sequence, newest.token_count)
                return newest.token_count
            self._checkpoints[sequence].remove(newest)
        self.clear(sequence)
        return 0

    def _keep(self, sequence: int, token_count: int) -> None:
        self.held[sequence] = token_count
        self._last_rows[sequence] = 0
        kept = [c for c in self._checkpoints[sequence] if c.token_count <= token_count]
        self._checkpoints[sequence] = kept
        self._see(sequence)

    def clear(self, sequence: int) -> None:
        """Empty a sequence."""
        self._memory.cut(sequence, 0)
        self._keep(sequence, 0)

    # --- checkpoints ---

    def checkpoint(self, sequence: int) -> None:
        """Remember what a sequence holds, unless that is nothing or remembered already."""
        self._remember(sequence)

    def _remember(self, sequence: int, is_needed: bool = False) -> None:
        held, kept = self.held[sequence], self._checkpoints[sequence]
        if not self.keeps_checkpoints or not held or held in self.checkpoint_counts(sequence):
            return
        if sequence in self._copying:
            return
        saved = self._saved(sequence)
        if saved is None:
            if is_needed:
                raise DecodeFailed("there is no memory for a checkpoint")
            return
        kept.append(Checkpoint(held, saved))
        if len(kept) > MOST_CHECKPOINTS:
            del kept[_least_missed([each.token_count for each in kept])]
        while self._byte_count() > MOST_BYTES and self._drop_one(sequence):
            pass

    def _saved(self, sequence: int) -> Any:
        """Return a copy of a sequence's state; None where there is no memory for one."""
        while True:
            try:
                return self._memory.save(sequence)
            except MemoryError:
                if not self._drop_one(sequence):
                    return None

    def _drop_one(self, but: int) -> bool:
        """Drop the checkpoint that is missed least, of another sequence if it is a newest one.

        Return whether there was one to spare.
        """
        most = max(self._checkpoints, key=len)
        if len(most) > 1:
            del most[0]
            return True
        idle = [
            sequence
            for sequence, kept in enumerate(self._checkpoints)
            if kept and sequence != but and self._decodes - self._used[sequence] > _IDLE_DECODES
        ]
        if idle:
            self._checkpoints[min(idle, key=self._used.__getitem__)].clear()
        return bool(idle)

    def _byte_count(self) -> int:
        """Return the bytes of all checkpoints; copies of a sequence share them."""
        every = {id(each.saved): each.saved for kept in self._checkpoints for each in kept}
        return sum(map(len, every.values()))

    # --- moving ---

    def can_copy(self, source: int, token_count: int) -> bool:
        """Return whether a copy of all cells can be cut to so many tokens without a checkpoint."""
        return self.cuts_freely and (
            self.kind is not Rollback.WINDOW or self._can_cut(source, token_count)
        )

    def copied_count(self, source: int, token_count: int) -> int:
        """Return how many of its first tokens a copy of a sequence would hold, asked for so many.

        All of them or, where the memory cannot be cut there, those of a checkpoint. A copy that
        the next decode is about to make is not counted on. May be asked for in any thread.
        """
        held, is_cut = self.held[source], self.cuts_freely
        if self.kind is Rollback.WINDOW:
            is_cut = 0 <= self._first[source] <= self._needed_position(token_count)
        if token_count >= held or is_cut:
            return min(token_count, held)
        if source in self._copying:
            return 0
        fitting = [count for count in self.checkpoint_counts(source) if count <= token_count]
        return max(fitting, default=0)

    @property
    def is_copying(self) -> bool:
        """Whether the next decode copies a sequence."""
        return bool(self._copying)

    def waits_for_copy(self, *sequences: int) -> bool:
        """Return whether the next decode copies from or to one of these sequences."""
        return not self._copying.isdisjoint(sequences)

    def note_pending_copy(self, source: int, destination: int) -> None:
        """Take note of a copy of all that a sequence holds which the next decode carries out."""
        self._copying |= {source, destination}
        self.note_copy(source, destination)

    def note_copy(self, source: int, destination: int) -> None:
        """Take note that a sequence was made to hold all that another one does."""
        self.held[destination] = self.held[source]
        self._last_rows[destination] = 0
        self._checkpoints[destination] = list(self._checkpoints[source])
        self._first[destination] = self._first[source]
        self._used[destination] = self._decodes

    def note_exchange(self, first: int, second: int) -> None:
        """Take note that two sequences were given what the other one held."""
        held, kept = self.held, self._checkpoints
        held[first], held[second] = held[second], held[first]
        kept[first], kept[second] = kept[second], kept[first]
        self._first[first], self._first[second] = self._first[second], self._first[first]
        self._last_rows[first] = self._last_rows[second] = 0

    def drop_incomplete(self, sequence: int) -> int:
        """Empty a sequence that has not every cell which its next token looks at.

        Called after what moves cells; returns the tokens that are held.
        """
        held = self.held[sequence]
        if held and self.cuts_freely and not self._can_cut(sequence, held):
            self.clear(sequence)
        return self.held[sequence]


def _least_missed(counts: Sequence[int]) -> int:
    """Return which checkpoint to drop: the one between adjacent ones that are nearest together."""
    gaps = [counts[i + 1] - counts[i - 1] for i in range(1, len(counts) - 1)]
    return 1 + min(range(len(gaps)), key=lambda i: (gaps[i], i)) if gaps else 0
