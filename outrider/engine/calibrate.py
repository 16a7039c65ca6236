"""Measures a loaded model: what a decode of n rows costs, and whether bits depend on batching."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.engine.model import Chunk, Model, Numerics

ROW_COUNTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
HISTORY = 272
"""Tokens before the measured ones: past 256 cells, where careless batching shows."""

TAIL = 16
"""Tokens whose rows are compared."""

Clock = Callable[[], float]


def history(model: Model, count: int) -> list[int]:
    """Return ids to measure with: spread over the vocabulary, the same every time."""
    size = model.describe().vocabulary.token_count
    return [(7 + i * 2654435761) % size for i in range(count)]


def decode_costs(
    model: Model, clock: Clock, row_counts: Sequence[int] = ROW_COUNTS, budget: float = 3.0
) -> list[tuple[int, float]]:
    """Return (rows, seconds) of one decode behind a history, medians of three, rising rows.

    Sequence 0 is used and left empty. Stops early when `budget` seconds are spent.
    """
    description = model.describe()
    limit = min(description.batch_rows, description.context // 2)
    start = min(HISTORY, description.context - limit)
    ids = history(model, start + limit)
    _fill(model, 0, ids[:start], description.batch_rows)
    begin, points = clock(), []
    for count in (c for c in row_counts if c <= limit and model.padded(c) == c):
        times = []
        for _ in range(3):
            before = clock()
            model.decode([Chunk(0, start, ids[start : start + count], count)])
            times.append(clock() - before)
            model.truncate(0, start)
        points.append((count, statistics.median(times)))
        if clock() - begin > budget:
            break
    model.truncate(0, 0)
    return points


def numerics(model: Model) -> Numerics:
    """Return EXACT when row counts, chunkings and a neighbour give equal bits.

    The same tokens are decoded in one piece, in small odd pieces, one by one,
    and beside another session; every row of the last ones is compared.
    Sequences 0 and 1 are used and left empty.
    """
    description = model.describe()
    count = min(HISTORY, description.context - 4)
    ids, chunk = history(model, count), description.batch_rows
    whole = _last_rows(model, ids, chunk, [TAIL])
    same = all(
        np.array_equal(whole, _last_rows(model, ids, fill, counts))
        for fill, counts in ((60, [5, 3, 2, 6]), (chunk, [8, 8]), (chunk, [1] * TAIL))
    )
    if same and description.sequence_count > 1:
        same = np.array_equal(whole[-3:], _last_rows_beside(model, ids, chunk))
    model.truncate(0, 0)
    return Numerics.EXACT if same else Numerics.LAW


def _fill(model: Model, sequence: int, ids: list[int], chunk: int) -> None:
    for start in range(0, len(ids), chunk):
        model.decode([Chunk(sequence, start, ids[start : start + chunk], 0)])


def _last_rows(
    model: Model, ids: list[int], chunk: int, counts: Sequence[int]
) -> NDArray[np.float32]:
    """Return the logits of the last tokens, decoded in pieces of `counts` behind the rest."""
    model.truncate(0, 0)
    position = len(ids) - sum(counts)
    _fill(model, 0, ids[:position], chunk)
    rows = []
    for count in counts:
        piece = ids[position : position + count]
        rows += [row.copy() for row in model.decode([Chunk(0, position, piece, count)])[0]]
        position += count
    return np.array(rows)


def _last_rows_beside(model: Model, ids: list[int], chunk: int) -> NDArray[np.float32]:
    """Return the logits of the last three tokens, decoded in one batch with another session."""
    other = ids[::-1][: len(ids) // 2]
    model.truncate(0, 0)
    _fill(model, 0, ids[:-3], chunk)
    _fill(model, 1, other[:-5], chunk)
    chunks = [Chunk(1, len(other) - 5, other[-5:], 5), Chunk(0, len(ids) - 3, ids[-3:], 3)]
    rows = np.array(model.decode(chunks)[1])
    model.truncate(1, 0)
    return rows
