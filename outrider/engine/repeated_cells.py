"""Makes the saved state of a sequence longer by repeating its cells. Pure.

The form is llama.cpp's (`llama_kv_cache::state_write`) of memory that is attention over a whole
text. What does not fit it to the byte is refused: another version's form, M-RoPE's, a hybrid's.
"""

from __future__ import annotations

import struct

import numpy as np

_MAGIC = 0xAF143CD8
"""`io_magic`, at the start of a state since llama.cpp has versions of it (llama-context.cpp)."""


class _OtherForm(Exception):
    """The state is not of the form that is known."""


class _StateReader:
    """Takes a state apart, from its start."""

    def __init__(self, state: bytes) -> None:
        self._state = memoryview(state)
        self._place = 0

    @property
    def left(self) -> int:
        """The bytes that are not taken yet."""
        return len(self._state) - self._place

    def take(self, count: int) -> memoryview:
        """Return the next bytes."""
        if count > self.left:
            raise _OtherForm
        self._place += count
        return self._state[self._place - count : self._place]

    def numbers(self, form: str) -> tuple[int, ...]:
        """Return the next numbers, little-endian and without gaps."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))


def repeat_cells(state: bytes, token_count: int) -> bytearray | None:
    """Return the state of a sequence that holds `token_count` tokens in the same cells, repeated.

    None where the state has no cells, more than that, or another form than the known one.
    """
    try:
        return _repeat(_StateReader(state), token_count)
    except _OtherForm:
        return None


def _repeat(state: _StateReader, token_count: int) -> bytearray:
    magic, sequence, streams = state.numbers("IiI")
    if magic != _MAGIC:
        raise _OtherForm
    before = 0  # empty streams before the one that has the cells
    while (held := state.numbers("I")[0]) == 0:
        before += 1
    if before >= streams or held > token_count:
        raise _OtherForm
    after = 4 * (streams - before - 1)  # bytes of the empty streams after it
    _check_cells(state, held, sequence)
    head = struct.pack("<IiI", magic, sequence, streams) + bytes(4 * before)
    pieces = [head, struct.pack("<I", token_count), _cells(token_count, sequence)]
    is_transposed, layers = state.numbers("II")
    if is_transposed > 1:
        raise _OtherForm
    pieces.append(struct.pack("<II", is_transposed, layers))
    for _ in range(layers):
        pieces += _rows(state, held, token_count)
    for _ in range(layers):  # a layer may have keys alone
        if state.left > after:
            values = _columns if is_transposed else _rows
            pieces += values(state, held, token_count)
    if state.left != after or any(state.take(after)):
        raise _OtherForm
    return bytearray().join([*pieces, bytes(after)])


def _cells(token_count: int, sequence: int) -> bytes:
    """Return what is written of cells at the positions from 0 on that are of one sequence."""
    cells = np.empty((token_count, 3), "<i4")  # position, number of sequences, the sequence
    cells[:, 0], cells[:, 1], cells[:, 2] = np.arange(token_count), 1, sequence
    return cells.tobytes()


def _check_cells(state: _StateReader, held: int, sequence: int) -> None:
    if held * 12 > state.left or state.take(held * 12) != _cells(held, sequence):
        raise _OtherForm


def _rows(state: _StateReader, held: int, token_count: int) -> list[bytes]:
    """Return a layer's keys or values, in which each cell has a row."""
    kind, size = state.numbers("iQ")
    rows = np.frombuffer(state.take(held * size), np.uint8).reshape(held, size)
    longer = rows[np.arange(token_count) % held]
    return [struct.pack("<iQ", kind, size), longer.tobytes()]


def _columns(state: _StateReader, held: int, token_count: int) -> list[bytes]:
    """Return a layer's values, in which each number of a cell is in a row of all cells'."""
    kind, size, width = state.numbers("iII")
    values = np.frombuffer(state.take(width * held * size), np.uint8).reshape(width, held, size)
    longer = values[:, np.arange(token_count) % held]
    return [struct.pack("<iII", kind, size, width), longer.tobytes()]
