"""Chooses how a model's cache is laid out, by what reading and writing take in each layout.

Writing is measured alone and of several sessions at once, after a short and after a longer text,
while the others hold as much: in a pool every row looks over everybody's cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.engine.model import Chunk, Layout, Model
from outrider.errors import DecodeFailed, InvalidConfig

_SHORT = 64
"""Tokens of the short text."""

_LONG = 1024
_READING_SECONDS = 1.0
"""The longer text is what is read in this time, at most _LONG tokens."""

_SESSIONS = 4
_REPEATS = 2  # of a decode, in each of as many rounds
_READING_SHARE = 1.0 / 3.0
"""Of what a service does, beside writing."""

_CLEARLY_LESS = 0.95
"""Times what llama.cpp's own choice takes: less may be noise."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class LayoutSeconds:
    """What was measured of one layout, in the same order as of all others."""

    layout: Layout
    reading: Sequence[float]  # seconds of a token, up to the short and up to the longer text
    writing: Sequence[float]  # seconds of a decode, of every kind after either text


def candidates(layouts: Sequence[Layout], sessions: int) -> list[Layout]:
    """Return what is worth measuring: a pool shares nothing where there is one session."""
    streams = [each for each in layouts if not each.is_pool]
    return streams if streams and sessions == 1 else list(layouts)


def relative_seconds(measured: LayoutSeconds, first: LayoutSeconds) -> float:
    """Return the time that a service takes, over that of another layout (geometric means)."""
    reading = _mean_ratio(measured.reading, first.reading)
    writing = _mean_ratio(measured.writing, first.writing)
    share = _READING_SHARE
    return math.exp(share * math.log(reading) + (1.0 - share) * math.log(writing))


def choose_layout(measured: Sequence[LayoutSeconds]) -> Layout:
    """Return the layout that takes clearly less time than llama.cpp's own choice, else that one."""
    own = usual_layout([each.layout for each in measured])
    usual = next(each for each in measured if each.layout == own)
    best = min(measured, key=lambda each: relative_seconds(each, usual))
    is_better = relative_seconds(best, usual) < _CLEARLY_LESS
    return best.layout if is_better else usual.layout


def usual_layout(layouts: Sequence[Layout]) -> Layout:
    """Return what llama.cpp takes by itself: streams with flash attention, where allowed."""
    return max(layouts, key=lambda each: (not each.is_pool, each.flash_attention))


def draft_layout(layouts: Sequence[Layout], session_count: int) -> Layout:
    """Return how a target's own draft keeps its cells, which nobody measures.

    Sessions' rows differ in number after every round: a pool computes them at once.
    """
    pools = [each for each in layouts if each.is_pool]
    return usual_layout(pools if pools and session_count > 1 else layouts)


def describe_layout(layout: Layout, measured: Sequence[LayoutSeconds]) -> str:
    """Return a layout in words, and what those that were measured take by the first one."""
    words = _words(layout)
    if not measured:
        return words
    first = measured[0]
    others = [
        f"{_words(each.layout)} {relative_seconds(each, first):.2f}"
        f" (reads {_mean_ratio(each.reading, first.reading):.2f},"
        f" writes {_mean_ratio(each.writing, first.writing):.2f})"
        for each in measured[1:]
    ]
    return f"{words}; times of {_words(first.layout)}: {', '.join(others)}"


def _words(layout: Layout) -> str:
    kind = "pool" if layout.is_pool else "streams"
    return f"{kind} with flash attention" if layout.flash_attention else kind


def _mean_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    logs = [math.log(mine / other) for mine, other in zip(values, others, strict=True)]
    return math.exp(sum(logs) / len(logs))


# --- measuring ---


def measure_layouts(model: Model, clock: Clock, token_ids: Sequence[int]) -> list[LayoutSeconds]:
    """Return what each candidate takes, the first layout first; none where there is no choice.

    `token_ids` are what to read. A layout that cannot be opened is left out. The model is left
    opened with the first one.
    """
    description = model.describe()
    first = description.layouts[0]
    model.open(first)
    sessions = min(_SESSIONS, model.describe().sequence_count)
    layouts = candidates(description.layouts, sessions)
    most = min(len(token_ids), _LONG, description.context - 2 * _SESSIONS)
    if len(layouts) < 2 or most < 2 * _SHORT:
        return []
    before = clock()
    _read(model, token_ids[:_SHORT], 0, description.batch_rows)
    in_time = int(_READING_SECONDS * _SHORT / max(clock() - before, 1e-9))
    texts = token_ids[: max(2 * _SHORT, min(most, in_time))]
    measured: dict[Layout, LayoutSeconds] = {}
    for layout in layouts * _REPEATS:  # in turn: what disturbs a machine for a while disturbs all
        try:
            model.open(layout)
            seconds = _measure(model, layout, clock, texts, sessions)
        except (InvalidConfig, DecodeFailed):  # this build or device cannot
            continue
        measured[layout] = _least(seconds, measured.get(layout, seconds))
    model.open(first)
    return list(measured.values())


def _least(one: LayoutSeconds, other: LayoutSeconds) -> LayoutSeconds:
    reading = list(map(min, one.reading, other.reading))
    return LayoutSeconds(one.layout, reading, list(map(min, one.writing, other.writing)))


def _measure(
    model: Model, layout: Layout, clock: Clock, text: Sequence[int], sessions: int
) -> LayoutSeconds:
    chunk = model.describe().batch_rows
    reading: list[float] = []
    writing: list[float] = []
    begin = 0
    for end in (_SHORT, len(text)):
        before = clock()
        _read(model, text[:end], begin, chunk)
        reading.append((clock() - before) / (end - begin))
        for other in range(1, sessions):
            model.duplicate(0, other)
        writing += [_decode_seconds(model, clock, end, rows) for rows in _mixes(sessions)]
        for other in range(1, sessions):
            model.truncate(other, 0)
        begin = end
    for sequence in range(sessions):
        model.truncate(sequence, 0)
    return LayoutSeconds(layout, reading, writing)


def _mixes(sessions: int) -> list[list[int]]:
    """Return the rows of the first sessions in one decode, for all kinds of decodes."""
    alone = [[1], [4]]
    together = [[1] * sessions, [4, 2, 1, 1][:sessions]]
    return alone + (together if sessions > 1 else [])


def _read(model: Model, text: Sequence[int], position: int, chunk: int) -> None:
    for start in range(position, len(text), chunk):
        model.decode([Chunk(0, start, text[start : start + chunk], 0)])


def _decode_seconds(model: Model, clock: Clock, position: int, rows: Sequence[int]) -> float:
    """Return the least time of a few decodes of so many rows of each session."""
    ids = [[number + 3] * count for number, count in enumerate(rows)]
    chunks = [Chunk(number, position, each, len(each)) for number, each in enumerate(ids)]
    least = math.inf
    for each in chunks:
        model.checkpoint(each.sequence)
    for _ in range(_REPEATS):
        before = clock()
        model.decode(chunks)
        least = min(least, clock() - before)
        for each in chunks:
            model.truncate(each.sequence, position)
    return max(least, 1e-9)
