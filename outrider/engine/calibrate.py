"""Measures a loaded model: what a decode of n rows costs, and whether bits depend on batching."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from outrider.costs import NOISE, CostTable, Point, RejectionCost
from outrider.engine.model import MAX_MULTIPLE, Chunk, Model, ModelDescription, Rollback

ROW_COUNTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
HISTORY = 272
"""Tokens before the measured ones: past 256 cells, where careless batching shows."""

TAIL = 16
"""Tokens whose rows are compared."""

PADDINGS = (1, 2, MAX_MULTIPLE)
"""Multiples to try. One row is tried only in builds that have no kernels of its own for it:
rounding hides those in most places."""

_UNDISTURBED = 0.75  # of the processor's time; alone it is .9 and more
_ODD_CHUNK = 37
LONG = 2048
"""Tokens of a text to measure after, such as people have: after 1,400 flash attention took twice as
long on an Intel CPU, after 128 it looked better (docs/decisions/0019)."""
_SLOPE_ROW_COUNTS = (1, 4, 16)  # that are measured after a text too
_QUICK_ROW_COUNTS = (1, 2, 3, 4, 8, 32)  # of a start; the last one says what reading costs
REPEATS = 3  # of a decode that is measured: the quickest counts
_PIECES = ([1] * TAIL, [3, 1, 2, 10], [2] * (TAIL // 2), [8, 8], [5, 3, 2, 6], [11, 5])

_THREAD_SECONDS = 0.1
"""s of decodes with each number of threads: some 15 tokens of a draft of .8B on 14 cores."""

PRICED = (Rollback.SNAPSHOTS, Rollback.CHECKPOINTS)
"""Kinds of memory whose rejections cost something."""

Clock = Callable[[], float]


def history(model: Model, count: int) -> list[int]:
    """Return ids to measure with: spread over the vocabulary, the same every time."""
    size = model.describe().vocabulary.token_count
    return [(7 + i * 2654435761) % size for i in range(count)]


def token_seconds(model: Model, clock: Clock) -> dict[int, float]:
    """Return what a token takes with each number of threads; nothing where there is one alone.

    On average: while others use the core of one thread, all of them wait. Sequence 0 is used and
    left empty.
    """
    choices = model.describe().thread_choices
    seconds: dict[int, float] = {}
    for count in choices if len(choices) > 1 else ():
        model.use_threads(count)
        spent: list[float] = []
        end = clock() + _THREAD_SECONDS
        while len(spent) < 2 or clock() < end:
            before = clock()
            model.decode([Chunk(0, 0, history(model, 1), 1)])
            spent.append(clock() - before)
            model.truncate(0, 0)
        seconds[count] = fmean(spent[1:])  # the first one starts threads
    return seconds


def decode_costs(
    model: Model, clock: Clock, row_counts: Sequence[int] = ROW_COUNTS, budget: float = 3.0
) -> list[Point]:
    """Return what decodes of one session cost, by rising rows, and what a text before them adds.

    Each is the quickest of up to three, taken in turn with the others, and of some
    more where it looks more expensive than a larger one: what disturbs a machine for a while
    must not make one row count look expensive for good. Sequence 0 is used and left empty.
    Ends early when `budget` seconds are spent, or twice that where much was disturbed. Decodes of
    some row counts after a text take a third of it more, and reading that text a sixth.
    """
    description = model.describe()
    limit = min(description.batch_rows, description.context // 2)
    counts = [c for c in row_counts if c <= limit and model.padded(c) == c]
    most = counts[-1]
    ids = history(model, min(LONG + most, description.context))
    after_none: dict[int, float] = {}
    begin = clock()
    for _ in range(REPEATS):
        _time(model, clock, ids, 0, counts, begin + budget, after_none)
    for _ in range(REPEATS):
        _time(model, clock, ids, 0, _doubtful(after_none), begin + 2.0 * budget, after_none)
    some = [c for c in after_none if c in _SLOPE_ROW_COUNTS] or counts[:1]
    length = hold(model, clock, ids[:-most], budget / 6.0)
    after_text: dict[int, float] = {}
    begin = clock()
    for _ in range(REPEATS):
        _time(model, clock, ids, length, some, begin + budget / 3.0, after_text)
    model.truncate(0, 0)
    points = [Point(count, seconds) for count, seconds in sorted(after_none.items())]
    return with_slopes(points, length, after_text)


def quick_costs(model: Model, clock: Clock, budget: float = 0.3) -> list[Point]:
    """Return roughly what decodes cost with nothing before them: for a start that is soon over.

    Each row count is looked at once, and again within `budget` seconds, and so are many rows where
    that fits in: what reading costs. Sequence 0 is used and left empty.
    """
    description = model.describe()
    limit = min(description.batch_rows, description.context // 2)
    *few, many = _QUICK_ROW_COUNTS
    counts = [c for c in few if c <= limit and model.padded(c) == c] or [1]
    ids, quickest = history(model, min(limit, many)), dict[int, float]()
    end = clock() + budget
    _time(model, clock, ids, 0, counts, math.inf, quickest)
    largest = counts[-1]
    if limit >= many and clock() + many / largest * quickest[largest] < end:
        counts = [*counts, many]
    for _ in range(REPEATS - 1):
        _time(model, clock, ids, 0, counts, end, quickest)
    return [Point(count, seconds) for count, seconds in sorted(quickest.items())]


def repeat(model: Model, ids: Sequence[int]) -> int:
    """Let sequence 0 hold as many tokens as `ids` by reading a few; return how many it holds."""
    model.truncate(0, 0)
    _fill(model, 0, 0, ids[:1], model.describe().batch_rows)
    return model.repeat_cells(0, len(ids))


def hold(model: Model, clock: Clock, ids: Sequence[int], seconds: float) -> int:
    """Let sequence 0 hold as many tokens as `ids`; return how many it holds.

    Where cells cannot be repeated `HISTORY` of them are read, and more of them as far as it takes
    `seconds` or less.
    """
    held = repeat(model, ids)
    if held > 1:
        return held
    rows = model.describe().batch_rows
    begin, length = clock(), min(HISTORY, len(ids))
    _fill(model, 0, held, ids[:length], rows)
    while length < len(ids) and (clock() - begin) * (length + rows) <= seconds * length:
        more = ids[length : length + rows]
        _fill(model, 0, length, ids[: length + rows], rows)
        length += len(more)
    return length


def _time(
    model: Model,
    clock: Clock,
    ids: Sequence[int],
    position: int,
    counts: Sequence[int],
    end: float,
    quickest: dict[int, float],
) -> None:
    """Decode so many of the ids after those before `position`; note the quickest of each count.

    Rows of a token are those of a text without a draft, each decode after another like it:
    llama.cpp keeps the graph of the last decode, and building another one costs a small model as
    much as a token. Drafts have other lengths each time.
    """
    for count in counts:
        if quickest and clock() > end:
            return
        _go_back(model, ids, position)
        begin = position
        if count == model.padded(1) and begin + 2 * count <= len(ids):
            model.decode([Chunk(0, begin, ids[begin : begin + count], count)])
            begin += count
        before = clock()
        model.decode([Chunk(0, begin, ids[begin : begin + count], count)])
        quickest[count] = min(clock() - before, quickest.get(count, math.inf))
    _go_back(model, ids, position)


def _go_back(model: Model, ids: Sequence[int], position: int) -> None:
    """Let sequence 0 hold the first ids, and find that again where it cannot be cut."""
    held = model.truncate(0, position)
    _fill(model, 0, held, ids[:position], model.describe().batch_rows)
    model.checkpoint(0)


def with_slopes(
    points: Sequence[Point], token_count: int, after_text: Mapping[int, float]
) -> list[Point]:
    """Return the costs of decodes with nothing before them, with the slopes that a text shows.

    `after_text` are the seconds of some of their row counts after so many tokens. The slopes of the
    others are on lines through those. What may be noise is left to service to learn.
    """
    grown = [
        Point(count, base, max(0.0, after_text[count] - (1.0 + NOISE) * base) / token_count)
        for count, base, _ in points
        if count in after_text
    ]
    if not grown:
        return list(points)
    slopes = CostTable(grown)
    return [each._replace(slope=slopes.point(each.rows).slope) for each in points]


def _doubtful(quickest: Mapping[int, float]) -> list[int]:
    """Return the row counts that took longer than a larger one."""
    counts = sorted(quickest)
    return [
        count
        for i, count in enumerate(counts)
        if any(quickest[larger] < quickest[count] for larger in counts[i + 1 :])
    ]


def was_disturbed(seconds: float, processor_seconds: float, threads: int) -> bool:
    """Say whether others used the processor while `threads` of ours measured: costs look high.

    Threads that wait for each other spin, so that undisturbed ones are busy all the time.
    """
    return processor_seconds < _UNDISTURBED * seconds * threads


def warm_up(model: Model) -> None:
    """Decode once, so that the weights are in memory when somebody waits. Uses sequence 0."""
    model.decode([Chunk(0, 0, history(model, 1), 1)])
    model.truncate(0, 0)


def rejection_cost(model: Model, clock: Clock) -> RejectionCost:
    """Return what a checkpoint and going back to it take, the quickest of a few.

    Nothing where a decode can always be taken back. Sequence 0 is used and left empty.
    """
    description = model.describe()
    if description.rollback not in PRICED:
        return RejectionCost()
    saving = restoring = math.inf
    ids = history(model, 3)
    for _ in range(REPEATS):
        # With a row each, as only then a decode is over when it returns.
        model.decode([Chunk(0, 0, ids[:2], 1)])
        times = [clock()]
        model.checkpoint(0)
        times.append(clock())
        model.decode([Chunk(0, 2, ids[2:], 1)])
        before = clock()
        model.truncate(0, 2)
        restoring = min(restoring, clock() - before)
        saving = min(saving, times[1] - times[0])
        model.truncate(0, 0)
    # It is there, however quick: 0 says that none is made.
    return RejectionCost(max(saving, 1e-9), restoring, description.snapshot_count)


def can_be_exact(description: ModelDescription) -> bool:
    """Return whether a model, with its cache as it is, may run under `exact` at all.

    In a pool bits depend on what others hold; in a small window on where its cells were written
    before; and the rows that pad a decode are to be cut off again.
    """
    return not description.layout.is_pool and description.rollback is Rollback.FULL


def exact_padding(model: Model) -> int | None:
    """Return the least padding with which equal tokens get equal bits; None if none does.

    The same tokens are decoded in pieces of all sizes, after a history that
    was read in other chunks, and beside other sessions. The model is left with
    this padding, or with the largest; sequences 0 and up are used and emptied.
    """
    description = model.describe()
    ids = history(model, min(HISTORY, description.context - 4))
    model.pad_multiple = PADDINGS[-1]
    _fill(model, 0, 0, ids[:-TAIL], description.batch_rows)
    expected = _tail(model, ids, [TAIL])
    found = None
    first = 0 if _treats_one_row_alike(model) else 1
    for multiple in PADDINGS[first:]:
        model.pad_multiple = multiple
        if _is_exact(model, ids, expected):
            found = multiple
            break
        # A failed check may leave cells that were computed otherwise.
        model.pad_multiple = PADDINGS[-1]
        _read_end_again(model, ids, description.batch_rows)
    for sequence in range(min(description.sequence_count, 3)):
        model.truncate(sequence, 0)
    return found


def _treats_one_row_alike(model: Model) -> bool:
    """Say whether llama.cpp was built without the kernels that leave single rows to others."""
    return "LLAMAFILE = 1" not in model.describe().system_info


def _is_exact(model: Model, ids: list[int], expected: NDArray[np.float32]) -> bool:
    """Say whether every way to decode the last tokens gives the expected bits, cheap ones first."""
    if not all(np.array_equal(_tail(model, ids, counts), expected) for counts in _PIECES):
        return False
    # One wanted row alone takes another kernel in the last layer of some models.
    model.truncate(0, len(ids) - TAIL)
    [[last]] = model.decode([Chunk(0, len(ids) - TAIL, ids[-TAIL:], 1)])
    if not np.array_equal(last, expected[-1]):
        return False
    _read_end_again(model, ids, _ODD_CHUNK)
    if not np.array_equal(_tail(model, ids, [7, 9]), expected):
        return False
    if not all(
        np.array_equal(rows, expected[-len(rows) :]) for rows in _rows_beside_others(model, ids)
    ):
        return False
    return _survives_exchanges(model, ids, expected)


def _survives_exchanges(model: Model, ids: list[int], expected: NDArray[np.float32]) -> bool:
    """Say whether a sequence that was moved away and back gives the same bits."""
    description = model.describe()
    if description.sequence_count < 2 or not description.can_exchange:
        return True
    for _ in range(2):
        model.exchange(0, 1)
    return np.array_equal(_tail(model, ids, [TAIL]), expected)


def _fill(model: Model, sequence: int, position: int, ids: Sequence[int], chunk: int) -> None:
    """Decode the ids from a position on, so many at once."""
    for start in range(position, len(ids), chunk):
        model.decode([Chunk(sequence, start, ids[start : start + chunk], 0)])


def _read_end_again(model: Model, ids: list[int], chunk: int) -> None:
    """Decode the last of the history anew, in chunks of so many tokens."""
    start = max(0, len(ids) - TAIL - 2 * _ODD_CHUNK)
    _fill(model, 0, model.truncate(0, start), ids[:-TAIL], chunk)


def _tail(model: Model, ids: list[int], counts: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits of the last tokens, decoded in pieces of `counts` after the rest."""
    position = len(ids) - sum(counts)
    model.truncate(0, position)
    rows = []
    for count in counts:
        piece = ids[position : position + count]
        rows += [row.copy() for row in model.decode([Chunk(0, position, piece, count)])[0]]
        position += count
    return np.array(rows)


def _rows_beside_others(model: Model, ids: list[int]) -> Iterator[NDArray[np.float32]]:
    """Yield the logits of sequence 0's last tokens, decoded in batches with other sessions."""
    description = model.describe()
    others = []
    for sequence in range(1, min(description.sequence_count, 3)):
        # The same start, which is read already, and an end of its own.
        start = len(ids) // (sequence + 1)
        held = model.copy_prefix(0, sequence, start)
        _fill(model, sequence, held, ids[:start], description.batch_rows)
        others.append((sequence, start, ids[:-6:-1]))
    for own, theirs in ((3, 5), (1, 1), (1, 4), (5, 1)) if others else ():
        for order in (1, -1):
            model.truncate(0, len(ids) - own)
            chunks = [Chunk(0, len(ids) - own, ids[-own:], own)]
            for sequence, start, last in others:
                model.truncate(sequence, start)
                chunks.append(Chunk(sequence, start, last[:theirs], theirs))
            rows = model.decode(chunks[::order])[::order]
            yield np.array(rows[0])
