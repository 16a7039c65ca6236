"""The newest hidden rows of a model's sequences, from which a head drafts. Pure."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.row_window import HIDDEN_ROWS, RowWindow

Rows = NDArray[np.float32]
"""float32[rows, width]: of tokens at positions that follow each other."""


_MOST = float(np.finfo(np.float16).max)


def pack(first: int, rows: Rows) -> RowWindow:
    """Return rows as they are sent, the newest of them; what float16 cannot say is cut."""
    packed = np.clip(rows[-HIDDEN_ROWS:], -_MOST, _MOST).astype("<f2")
    position = first + len(rows) - len(packed)
    return RowWindow(position, tuple(row.tobytes() for row in packed)).newest()


def unpack(window: RowWindow, width: int) -> Rows:
    """Return rows that were sent, which have this width.

    What is no number is 0: in a cache it would spoil whatever attends over it.
    """
    rows = np.frombuffer(b"".join(window.rows), "<f2").reshape(-1, width).astype(np.float32)
    return np.nan_to_num(rows, copy=False, nan=0.0, posinf=0.0, neginf=0.0)


class RowReader(Protocol):
    """What reads the rows of sequences before they are dropped."""

    def note(self, sequence: int, position: int, rows: Rows, first: int, kept: Rows) -> None:
        """Take note of a decode from a position on; `kept` are rows from `first` on, before it."""
        ...

    def copy(self, source: int, destination: int) -> None:
        """Let a sequence have what was read of another."""
        ...

    def exchange(self, first: int, second: int) -> None:
        """Give each of two sequences what was read of the other."""
        ...

    def clear(self) -> None:
        """Forget all, as sequences begin anew."""
        ...


class HiddenRows:
    """The rows of each sequence, without a gap and up to the newest that was decoded.

    Of a text that was left, rows stay until others come in their place: who reads takes none beyond
    its own text, and those before it are of that.
    """

    def __init__(self, sequence_count: int, width: int, reader: RowReader | None = None) -> None:
        """A reader is shown the rows of each decode before they are kept."""
        self._width, self._reader = width, reader
        if reader is not None:
            reader.clear()
        # Of each sequence: position of its first row, their number, and where they are. There is
        # room for twice as many as count, so that not every decode moves them.
        self._first = [0] * sequence_count
        self._count = [0] * sequence_count
        self._rows: list[Rows | None] = [None] * sequence_count

    def note(self, sequence: int, position: int, rows: Rows) -> None:
        """Copy the rows of a decode, in place of those from its position on."""
        if self._reader is not None:
            self._reader.note(sequence, position, rows, *self.of(sequence))
        self._note(sequence, position, rows)

    def _note(self, sequence: int, position: int, rows: Rows) -> None:
        position += len(rows) - len(rows[-HIDDEN_ROWS:])
        rows = rows[-HIDDEN_ROWS:]
        held = self._rows[sequence]
        if held is None:
            held = self._rows[sequence] = np.empty((2 * HIDDEN_ROWS, self._width), np.float32)
        kept = position - self._first[sequence]
        if not 0 <= kept <= self._count[sequence]:
            kept, self._first[sequence] = 0, position
        if kept + len(rows) > len(held):
            surplus = kept + len(rows) - HIDDEN_ROWS
            held[: kept - surplus] = held[surplus:kept]
            kept -= surplus
            self._first[sequence] += surplus
        held[kept : kept + len(rows)] = rows
        self._count[sequence] = kept + len(rows)

    def of(self, sequence: int) -> tuple[int, Rows]:
        """Return the position of the first row, and a view of the rows."""
        held, count = self._rows[sequence], self._count[sequence]
        if held is None:
            return 0, np.empty((0, self._width), np.float32)
        skipped = max(0, count - HIDDEN_ROWS) if self._reader is None else 0
        return self._first[sequence] + skipped, held[skipped:count]

    def copy(self, source: int, destination: int) -> None:
        """Let a sequence have the rows of another."""
        first, rows = self.of(source)
        self._count[destination] = 0
        if len(rows):
            self._note(destination, first, rows[:HIDDEN_ROWS])
            self._note(destination, first + len(rows[:HIDDEN_ROWS]), rows[HIDDEN_ROWS:])
        if self._reader is not None:
            self._reader.copy(source, destination)

    def exchange(self, first: int, second: int) -> None:
        """Give each of two sequences the rows of the other."""
        mine = self._first[first], self._count[first], self._rows[first]
        its = self._first[second], self._count[second], self._rows[second]
        self._first[first], self._count[first], self._rows[first] = its
        self._first[second], self._count[second], self._rows[second] = mine
        if self._reader is not None:
            self._reader.exchange(first, second)


def rows_bytes(width: int) -> int:
    """Return the bytes that the rows of one sequence take."""
    return 2 * HIDDEN_ROWS * width * np.dtype(np.float32).itemsize
