"""A saved state is made longer as llama.cpp would write it, or refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest

from outrider.engine.repeated_cells import repeat_cells

WIDTHS = (3, 0, 5)
"""Of the cells of each layer: bytes of keys, numbers of values. One has no values."""


def state(
    token_ids: Sequence[int],
    *,
    transposed: bool = False,
    streams: tuple[int, int] = (0, 0),  # empty ones before and after the one with the cells
    magic: int = 0xAF143CD8,
    first: int = 0,
) -> bytes:
    """Return the state of sequence 1, whose cells hold what follows from their tokens."""
    count, before, after = len(token_ids), *streams
    parts = [struct.pack("<IiI", magic, 1, before + 1 + after), bytes(4 * before)]
    parts += [struct.pack("<I", count)]
    parts += [struct.pack("<iIi", first + position, 1, 1) for position in range(count)]
    parts += [struct.pack("<II", transposed, len(WIDTHS))]
    for width in WIDTHS:
        keys = [bytes([token + i for i in range(width + 1)]) for token in token_ids]
        parts += [struct.pack("<iQ", 8, width + 1), *keys]
    for width in filter(None, WIDTHS):
        values = np.array([[token * 7 + i for i in range(width)] for token in token_ids], "<u2")
        head = ("<iII", 1, 2, width) if transposed else ("<iQ", 1, 2 * width)
        parts += [struct.pack(*head), (values.T if transposed else values).tobytes()]
    return b"".join(parts) + bytes(4 * after)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("streams", [(0, 0), (2, 0), (0, 3), (1, 1)])
def test_a_state_is_repeated_as_it_would_be_written(
    transposed: bool, streams: tuple[int, int]
) -> None:
    short = state([5, 6, 7], transposed=transposed, streams=streams)
    for count in (3, 4, 7):
        expected = state([5 + i % 3 for i in range(count)], transposed=transposed, streams=streams)
        assert repeat_cells(short, count) == expected


def test_what_is_of_another_form_is_left_alone() -> None:
    known = state([5, 6, 7], streams=(1, 1))
    assert repeat_cells(known, 2) is None, "fewer than it has"
    assert repeat_cells(state([5, 6], magic=1), 4) is None
    assert repeat_cells(state([5, 6], first=1), 4) is None, "its start is gone"
    assert repeat_cells(state([]), 4) is None, "nothing to repeat"
    assert repeat_cells(known + b"\0", 4) is None
    assert repeat_cells(known + known, 4) is None, "two memories"
    for end in range(len(known)):
        assert repeat_cells(known[:end], 4) is None


def test_no_damage_raises() -> None:
    known = state([5, 6, 7], streams=(1, 1), transposed=True)
    for place in range(len(known)):
        for byte in (0, 1, 127, 255):
            damaged = known[:place] + bytes([byte]) + known[place + 1 :]
            repeat_cells(damaged, 4)


def test_cells_that_know_more_than_their_position_are_left_alone() -> None:
    # M-RoPE: three numbers more for each cell.
    known = state([5, 6, 7])
    cells = known[16 : 16 + 3 * 12]
    longer = b"".join(cells[i : i + 8] + bytes(12) + cells[i + 8 : i + 12] for i in (0, 12, 24))
    assert repeat_cells(known[:16] + longer + known[16 + 3 * 12 :], 4) is None
