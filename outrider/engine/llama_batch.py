"""The tokens of one decode, as llama.cpp takes them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.engine.branches import places_of
from outrider.engine.llama_library import ll
from outrider.engine.model import Chunk, Row


class Batch:
    """A llama_batch over numpy memory, checked against its capacity by the caller.

    With a width each token has a row of that many numbers besides, to be put into `rows`.
    """

    def __init__(self, capacity: int, width: int = 0) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(4 * capacity, np.int32)  # of rows without tokens up to four
        self._counts = np.ones(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        first = self._sequences.ctypes.data
        self._own_pointers = np.arange(first, first + 4 * capacity, 4, dtype=np.uintp)
        self._pointers = self._own_pointers.copy()
        self._lists = np.zeros(0, np.int32)  # sequences of the tokens that are in several
        self.struct = ll.llama_batch()
        self.struct.token = _pointer(self._tokens, ctypes.c_int32)
        self.struct.pos = _pointer(self._positions, ctypes.c_int32)
        self.struct.n_seq_id = _pointer(self._counts, ctypes.c_int32)
        self.struct.seq_id = _pointer(self._pointers, ctypes.POINTER(ctypes.c_int32))
        self.struct.logits = _pointer(self._wanted, ctypes.c_int8)
        self.rows = np.zeros((capacity, width), np.float32)
        if width:
            self.struct.embd = _pointer(self.rows, ctypes.c_float)

    def put_token(self, row: int, token_id: int, position: int, sequence: int) -> None:
        """Lay out one token, whose row is wanted, after those of the rows before."""
        self._tokens[row] = token_id
        self._positions[row] = position
        self._sequences[row] = sequence
        self._wanted[row] = 1
        self.struct.n_tokens = row + 1
        if len(self._lists):
            self._branch((), ())

    def fill(
        self,
        chunks: Sequence[Chunk],
        widths: Sequence[int],
        outs: Sequence[int],
    ) -> None:
        """Lay the chunks out one after the other; pad rows repeat the last token.

        Each takes as many rows as its width, the last ones of which are wanted.
        """
        begin = 0
        for chunk, width, out in zip(chunks, widths, outs, strict=True):
            if width == 1:  # as of a plain token: numpy's slices take ten times as long
                self._tokens[begin] = chunk.token_ids[0]
                self._positions[begin] = chunk.position
                self._sequences[begin] = chunk.sequence
                self._wanted[begin] = out
                begin += 1
                continue
            count = len(chunk.token_ids)
            end, stop = begin + count, begin + width
            self._tokens[begin:end] = chunk.token_ids
            self._tokens[end:stop] = chunk.token_ids[-1]
            self._positions[begin:stop] = range(chunk.position, chunk.position + stop - begin)
            self._sequences[begin:stop] = chunk.sequence
            self._wanted[begin:stop] = 0
            self._wanted[stop - out : stop] = 1
            begin = stop
        self.struct.n_tokens = begin
        if len(self._lists) or any(chunk.parents for chunk in chunks):
            self._branch(chunks, widths)

    def _branch(self, chunks: Sequence[Chunk], widths: Sequence[int]) -> None:
        """Put the tokens of chunks that end in a tree where they belong."""
        self._counts[:], self._pointers[:] = 1, self._own_pointers
        starts: list[tuple[int, int]] = []  # of rows, and where their sequences begin in the list
        sequences: list[int] = []
        begin = 0
        for chunk, width in zip(chunks, widths, strict=True):
            stop = begin + width
            if chunk.parents:
                for row, place in enumerate(places_of(chunk, stop - begin), begin):
                    self._positions[row] = place.position
                    self._counts[row] = len(place.sequences)
                    starts.append((row, len(sequences)))
                    sequences += place.sequences
            begin = stop
        self._lists = np.array(sequences, np.int32)
        for row, start in starts:
            self._pointers[row] = self._lists.ctypes.data + 4 * start


_NOTHING: Any = ctypes.POINTER(ctypes.c_int32)()


class RowBatch(Batch):
    """Rows of numbers in the place of tokens."""

    def __init__(self, capacity: int, width: int) -> None:
        super().__init__(capacity, width)
        self.struct.token = _NOTHING

    def put(self, chunks: Sequence[Chunk], rows: NDArray[np.float32]) -> None:
        """Lay rows out, one for each token of the chunks; of no one are logits wanted."""
        count = len(rows)
        self.fill(chunks, [len(chunk.token_ids) for chunk in chunks], [0] * len(chunks))
        self.rows[:count] = rows
        # Of a model with several rotary sections, of which a text has one position in three.
        self._positions[count : 3 * count] = np.tile(self._positions[:count], 2)
        self._positions[3 * count : 4 * count] = 0


def wanted_rows(
    chunks: Sequence[Chunk],
    widths: Sequence[int],
    outs: Sequence[int],
    logits: NDArray[np.float32],
) -> list[list[Row]]:
    """Return the wanted rows of each chunk; those that pad it are the last that were computed."""
    rows, end = [], 0
    for chunk, width, out in zip(chunks, widths, outs, strict=True):
        end += out
        last = end - (width - len(chunk.token_ids)) if out else end
        rows.append([logits[i] for i in range(last - chunk.row_count, last)])
    return rows


def is_token(chunk: Chunk) -> bool:
    """Return whether a chunk is one token with its row, and nothing is to be done beside it."""
    is_one = len(chunk.token_ids) == chunk.row_count == 1
    return is_one and chunk.pad_to <= 1 and not chunk.parents


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


@lru_cache(16)
def matrix(start: int, row_count: int, column_count: int) -> NDArray[np.float32]:
    """Return a view of the memory at an address, float32[row, column]; it owns nothing."""
    memory = (ctypes.c_float * (row_count * column_count)).from_address(start)
    return np.ctypeslib.as_array(memory).reshape(row_count, column_count)
