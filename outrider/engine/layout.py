"""Chooses how a model's cache is laid out: by the seconds that typical requests take.

They are computed from decodes after a text, alone and of several sessions at once, while the others
hold as much: in a pool every row looks over everybody's cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outrider.costs import NOISE
from outrider.engine.calibrate import history, hold, repeat
from outrider.engine.model import Chunk, Layout, Model, NoRoom
from outrider.errors import DecodeFailed, InvalidConfig

TEXT = 1024
"""Tokens that each session holds: the middle of a request. On an Intel CPU flash attention is the
sooner one after 128, and takes twice as long after 1,400 (docs/decisions/0019)."""

_READ_ROWS = 64
"""Rows of a decode that reads: from 64 on flash attention is another kernel (decisions/0021)."""

_READING_SECONDS = 1.0  # s; tokens are read for so long where cells cannot be repeated
_REPEATS = 2  # of a decode, in each of as many rounds; one that reads is long, and taken once
SESSIONS = 4  # sessions that are measured together, at most
_VERIFIED = 4  # rows of a decode that verifies three draft tokens
_ACCEPTANCE = 0.6
"""Of a draft token, given those before it: about what pairs of one family reach."""

PROMPT, TURN, WRITTEN = 1500, 500, 300
"""Tokens of a long prompt, of that of one of several users, and of any answer."""

_MIXED = [4, 2, 1, 1]  # rows of each session in a decode of several rounds
_REQUESTS = ("a long prompt", "several users")

Clock = Callable[[], float]


class Decodes(NamedTuple):
    """Seconds of decodes in one layout, after a text of every session."""

    token: float
    """A row of one session."""
    verify: float
    """`_VERIFIED` rows of one session."""
    read: float
    """A row of a prompt, `_READ_ROWS` at once, all but one without logits."""
    tokens: float = 0.0
    """A row of each of several sessions."""
    verifies: float = 0.0
    """Different numbers of rows of each, as rounds have them: `_MIXED`."""


@dataclass(frozen=True, slots=True)
class LayoutSeconds:
    """What typical requests take in a layout, in the order of `_REQUESTS`."""

    layout: Layout
    requests: Sequence[float]


def writing_seconds(plain: float, verify: float, rows: Sequence[int] = (_VERIFIED,)) -> float:
    """Return the seconds of a token: half of them by plain decodes, half by those that verify.

    `rows` are those of each session in a decode that verifies, which writes what is accepted and
    one token more.
    """
    written = sum(_ACCEPTANCE**place for count in rows for place in range(count)) / len(rows)
    return (plain + verify / written) / 2.0


def request_seconds(decodes: Decodes, sessions: int = 1) -> list[float]:
    """Return the seconds of a long prompt with its answer, and of a turn of several users.

    Half of what is written is written plainly and half by decodes that verify. One session has no
    second kind of request.
    """
    long = PROMPT * decodes.read + WRITTEN * writing_seconds(decodes.token, decodes.verify)
    if sessions == 1:
        return [long]
    writing = writing_seconds(decodes.tokens, decodes.verifies, _MIXED[:sessions])
    return [long, sessions * TURN * decodes.read + WRITTEN * writing]


def candidates(layouts: Sequence[Layout], sessions: int) -> list[Layout]:
    """Return what is worth measuring: a pool shares nothing where there is one session."""
    streams = [each for each in layouts if not each.is_pool]
    return streams if streams and sessions == 1 else list(layouts)


def relative_seconds(measured: LayoutSeconds, first: LayoutSeconds) -> float:
    """Return the time of the requests over that in another layout, as a geometric mean.

    So each kind of request counts as much as the others, however long it takes.
    """
    pairs = zip(measured.requests, first.requests, strict=True)
    logs = [math.log(mine / other) for mine, other in pairs]
    return math.exp(sum(logs) / len(logs))


def choose_layout(measured: Sequence[LayoutSeconds]) -> Layout:
    """Return the layout that takes clearly less time than llama.cpp's own choice, else that one."""
    own = usual_layout([each.layout for each in measured])
    usual = next(each for each in measured if each.layout == own)
    best = min(measured, key=lambda each: relative_seconds(each, usual))
    is_better = relative_seconds(best, usual) < 1.0 - NOISE
    return best.layout if is_better else usual.layout


def usual_layout(layouts: Sequence[Layout]) -> Layout:
    """Return what llama.cpp takes by itself: streams with flash attention, where allowed."""
    return max(layouts, key=lambda each: (not each.is_pool, each.flash_attention))


def describe_layout(layout: Layout, measured: Sequence[LayoutSeconds]) -> str:
    """Return a layout in words, and the seconds of requests in those that were measured."""
    if not measured:
        return _words(layout)
    names = ", ".join(_REQUESTS[: len(measured[0].requests)])
    seconds = [
        f"{_words(each.layout)} {', '.join(f'{request:.3g}' for request in each.requests)}"
        for each in measured
    ]
    return f"{_words(layout)}; expected seconds of {names}: {'; '.join(seconds)}"


def _words(layout: Layout) -> str:
    kind = "pool" if layout.is_pool else "streams"
    return f"{kind} with flash attention" if layout.flash_attention else kind


# --- measuring ---


def measure_layouts(model: Model, clock: Clock) -> list[LayoutSeconds]:
    """Return what requests take in each candidate, the first layout first; none without a choice.

    A layout that cannot be opened is left out. The model is left opened with the first one.
    """
    first = model.describe().layouts[0]
    model.open(first)
    description = model.describe()
    sessions = min(SESSIONS, description.sequence_count)
    layouts = candidates(description.layouts, sessions)
    # A pool has room for as much in all sessions as fewer streams would have.
    cells = description.pool_cells or sessions * description.context
    room = min(description.context, cells // sessions) - _READ_ROWS
    if len(layouts) < 2 or room < _READ_ROWS:
        return []
    ids = history(model, min(TEXT, room))
    ids = ids[: hold(model, clock, ids, _READING_SECONDS)]
    measured: dict[Layout, Decodes] = {}
    for layout in layouts * _REPEATS:  # in turn: what disturbs a machine for a while disturbs all
        try:
            model.open(layout)
            seconds = _measure(model, clock, ids, sessions)
        except (InvalidConfig, DecodeFailed, NoRoom):  # this build or device cannot
            continue
        measured[layout] = Decodes(*map(min, seconds, measured.get(layout, seconds)))
    model.open(first)
    return [LayoutSeconds(each, request_seconds(measured[each], sessions)) for each in measured]


def _measure(model: Model, clock: Clock, ids: Sequence[int], sessions: int) -> Decodes:
    """Return the seconds of decodes of every kind; the sequences are left empty."""
    read_rows = min(_READ_ROWS, model.describe().batch_rows)
    hold(model, clock, ids, math.inf)
    for other in range(1, sessions):
        model.duplicate(0, other)
    kinds = [[1], [_VERIFIED], [read_rows]]
    if sessions > 1:
        kinds += [[1] * sessions, _MIXED[:sessions]]
    seconds = [_decode_seconds(model, clock, len(ids), rows) for rows in kinds]
    seconds[2] /= read_rows
    for sequence in range(sessions):
        model.truncate(sequence, 0)
    return Decodes(*seconds)


def _decode_seconds(model: Model, clock: Clock, position: int, rows: Sequence[int]) -> float:
    """Return the least time of a few decodes of so many rows of each session, or of a long one."""
    chunks = [
        # With a row each, as only then a decode is over when it returns.
        Chunk(number, position, [number + 3] * count, count if count <= _VERIFIED else 1)
        for number, count in enumerate(rows)
    ]
    least = math.inf
    for each in chunks:
        model.checkpoint(each.sequence)
    for _ in range(_REPEATS if max(rows) <= _VERIFIED else 1):
        before = clock()
        model.decode(chunks)
        least = min(least, clock() - before)
        for each in chunks:
            model.truncate(each.sequence, position)
    return max(least, 1e-9)


# --- a start that is soon over ---


class Look(NamedTuple):
    """Seconds of decodes, by their rows, after a text of `token_count`; empty without one."""

    token_count: int
    seconds: dict[int, float]


def draft_layouts(layouts: Sequence[Layout], session_count: int) -> list[Layout]:
    """Return how a target's own draft may keep its cells, for `open_quickly`.

    Sessions' rows differ in number after every round: a pool computes them at once.
    """
    pools = [each for each in layouts if each.is_pool]
    return pools if pools and session_count > 1 else candidates(layouts, 1)


def open_quickly(model: Model, clock: Clock, layouts: Sequence[Layout]) -> Look:
    """Open one of these layouts, and return what was seen of it.

    It is what llama.cpp takes by itself, unless another one writes clearly sooner after a text: a
    few decodes in each say that. Nothing is seen where cells cannot be repeated, nor on a GPU, as
    the first decodes of a context build its graphs.
    """
    usual, opened = usual_layout(layouts), model.describe().layout
    looks: dict[Layout, Look] = {}
    looked_at = [] if model.describe().is_on_gpu else layouts
    for layout in sorted(looked_at, key=lambda each: each != opened):
        try:
            if layout != opened:
                model.open(layout)
                opened = layout
            look = _look(model, clock)
        except (InvalidConfig, DecodeFailed):  # this build or device cannot
            continue
        if not look.seconds:
            break
        looks[layout] = look
    best = min(looks, key=lambda each: _score(looks[each], each == usual), default=usual)
    if best != opened:
        try:
            model.open(best)
        except InvalidConfig:
            model.open(model.describe().layouts[0])
    return looks.get(best, Look(0, {}))


def _look(model: Model, clock: Clock) -> Look:
    ids = history(model, min(TEXT, model.describe().context - _VERIFIED))
    try:
        if len(ids) < _READ_ROWS or repeat(model, ids) < len(ids):
            return Look(0, {})
        seconds = {rows: _decode_seconds(model, clock, len(ids), [rows]) for rows in (1, _VERIFIED)}
        return Look(len(ids), seconds)
    finally:
        model.truncate(0, 0)


def _score(look: Look, is_usual: bool) -> float:
    """Return the seconds of a token, in favour of the usual layout."""
    seconds = writing_seconds(look.seconds[1], look.seconds[_VERIFIED])
    return seconds * (1.0 - NOISE if is_usual else 1.0)
