"""A head that drafts blocks as a target's draft: it reads whole texts, since that costs it little.

Of a token it keeps what two small matrices make of the target's row. So rows are not dropped, but
put in its cache when they leave the window (`hidden_rows.py`). As they belong to a sequence of the
target, so does what it holds: what is decoded from a position on takes the place of what was there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Protocol, cast

import numpy as np

from outrider.engine.cache import Session
from outrider.engine.head_draft import Head, HeadDraft, HeadTarget
from outrider.engine.hidden_rows import Rows
from outrider.engine.own_draft import DraftLine
from outrider.row_window import HIDDEN_ROWS


class BlockHead(Head, Protocol):
    """A head that drafts blocks."""

    def read(self, sequence: int, position: int, rows: Rows) -> None:
        """Append rows of the target to a sequence. Raises DecodeFailed."""
        ...


class BlockDraft(HeadDraft):
    """A head that drafts blocks as a draft. Implements `RowReader`."""

    def __init__(
        self, head: BlockHead, target: HeadTarget, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._blocks = head
        # Sequences of the head by the target's, the one that was used last at the end.
        self._places: dict[int, int] = {}
        self._drafted: dict[bytes, int] = {}  # the target's sequence of each session
        super().__init__(head, target, clock)

    def _keep_rows(self) -> None:
        self._target.keep_rows(self._head.target_layers, self)

    # --- what is decoded ---

    def note(self, sequence: int, position: int, rows: Rows, first: int, kept: Rows) -> None:
        if not self.is_usable:
            return
        try:
            self._note(sequence, position, rows, first, kept)
        except Exception:  # of any kind: the target's decode goes on
            self._failures += 1
            self.clear()

    def _note(self, sequence: int, position: int, rows: Rows, first: int, kept: Rows) -> None:
        end = position + len(rows)
        if sequence in self._places:
            place = self._places[sequence]
            if self._head.held(place).stop > position:
                self._head.truncate(place, position)
        if not first <= position <= first + len(kept):
            first, kept = position, kept[:0]
        if end - first <= 2 * HIDDEN_ROWS and len(rows) <= HIDDEN_ROWS:
            return  # all of them stay where they are
        place = self._place_of(sequence)
        begin = self._head.held(place).stop
        if begin < first:
            self._head.truncate(place, 0)  # the rows before are lost
            begin = first
        known = np.concatenate([kept[: position - first], rows])
        if begin < end - HIDDEN_ROWS:
            self._blocks.read(place, begin, known[begin - first : end - HIDDEN_ROWS - first])

    def copy(self, source: int, destination: int) -> None:
        held = self._head.held(self._places[source]) if source in self._places else range(0)
        if held.stop:
            place = self._place_of(destination)
            if source in self._places:
                self._head.copy_prefix(self._places[source], place, held.stop)
        elif destination in self._places:
            self._head.truncate(self._places[destination], 0)

    def exchange(self, first: int, second: int) -> None:
        mine, its = self._places.pop(first, None), self._places.pop(second, None)
        if mine is not None:
            self._places[second] = mine
        if its is not None:
            self._places[first] = its

    def clear(self) -> None:
        for place in self._places.values():
            self._head.truncate(place, 0)
        self._places.clear()

    def _place_of(self, sequence: int) -> int:
        """Return where the text of a sequence is read, if need be in place of the oldest."""
        place = self._places.pop(sequence, None)
        if place is None:
            place = len(self._places)
            if place == self._head.sequence_count:
                place = self._places.pop(next(iter(self._places)))
            elif place in self._places.values():
                [place, *_] = set(range(self._head.sequence_count)) - set(self._places.values())
            self._head.truncate(place, 0)
        self._places[sequence] = place
        return place

    # --- what is drafted ---

    def draft(self, lines: Sequence[DraftLine], read_seconds: float) -> None:
        super().draft(lines[: self._head.sequence_count], read_seconds)

    def _follow(self, line: DraftLine, busy: Collection[bytes], deadline: float) -> Session | None:
        found = self._rows_of(line)
        if found is None or line.sequence is None:
            return None
        (first, rows), end = found, len(line.tokens) - 1
        place = self._place_of(line.sequence)
        self._drafted[line.session_id] = line.sequence
        begin = min(self._head.held(place).stop, end)
        if begin < first:
            begin = 0  # the rows before are lost
        self._head.truncate(place, begin)
        begin = max(begin, first)
        if (late := end - HIDDEN_ROWS) > begin:
            self._blocks.read(place, begin, rows[begin - first : late - first])
            begin = late
        self._next_rows[line.session_id] = rows[begin - first : end - first]
        return Session(line.session_id, 0.0, place)

    def forget(self, session_id: bytes) -> None:
        sequence = self._drafted.pop(session_id, None)
        if sequence in self._places:
            self._head.truncate(self._places[sequence], 0)


def draft_of(head: Head | BlockHead, target: HeadTarget) -> HeadDraft:
    """Return a head as its target's draft. Raises DecodeFailed, and closes it, as it does."""
    return HeadDraft(head, target) if head.lag else BlockDraft(cast(BlockHead, head), target)
