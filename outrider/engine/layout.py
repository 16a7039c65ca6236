"""Chooses how a model's cache is laid out: by the seconds that typical requests take.

They are computed from decodes after two lengths of text, alone and of several sessions at once,
while the others hold as much: in a pool every row looks over everybody's cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outrider.engine.calibrate import LONG, history, hold, repeat
from outrider.engine.model import Chunk, Layout, Model, NoRoom
from outrider.errors import DecodeFailed, InvalidConfig

_LEAST = 128
"""Tokens of the longer text at least: llama.cpp attends to 256 cells at a time, so that layouts
hardly differ by less."""

_SHORTER = 8  # the longer text over the shorter one: 256 tokens fill the fewest cells

_QUICK = 1024
"""Tokens after which a start looks at a few decodes: as many as a common prompt has, and half the
memory and time of LONG."""

_READING_SECONDS = 1.0  # s; tokens are read for so long where cells cannot be repeated
_READ_ROWS = 64
"""Rows of a decode that reads: from 64 on flash attention is another kernel (decisions/0021)."""

_SESSIONS = 4  # sessions that are measured together, at most
_REPEATS = 2  # of a decode, in each of as many rounds; one that reads is long, and taken once
_VERIFIED = 4  # rows of a decode that verifies three draft tokens
_ALONE = (1, _VERIFIED)  # rows of the decodes of one session that writes
_ACCEPTANCE = 0.6
"""Of a draft token, given those before it: about what pairs of one family reach."""

PROMPT, WRITTEN = 1500, 300  # tokens of a long prompt, and of any answer
_TURN, _CHAT = 500, 4000  # tokens of the prompt of a turn or of one of several users; of a chat
_REQUESTS = ("a long prompt", "a chat", "several users")

_CLEARLY_LESS = 0.95
"""Times what llama.cpp's own choice takes: less may be noise."""

Clock = Callable[[], float]


class Line(NamedTuple):
    """Seconds of one kind of decode, by the tokens that each session holds before it."""

    base: float
    slope: float  # for each of those tokens

    def at(self, token_count: float) -> float:
        """Return the seconds of a decode after so many tokens."""
        return self.base + self.slope * token_count


@dataclass(frozen=True, slots=True)
class Lines:
    """What the decodes of one layout take."""

    token: Line
    """A row of one session."""
    verify: Line
    """`_VERIFIED` rows of one session."""
    read: Line
    """`_READ_ROWS` rows of one session, all but one without logits."""
    tokens: Line | None = None
    """A row of each of several sessions; None where there is one."""
    verifies: Line | None = None
    """Different numbers of rows of each, as rounds have them: `_mixed`."""


@dataclass(frozen=True, slots=True)
class LayoutSeconds:
    """What typical requests take in a layout, in the order of `request_seconds`."""

    layout: Layout
    requests: Sequence[float]


def request_seconds(lines: Lines, context: int, sessions: int = 1) -> list[float]:
    """Return the seconds of a long prompt with its answer, of a chat, and of several users.

    Half of what is written is written plainly and half by decodes that verify. A prompt has 1,500
    tokens and an answer 300. A chat has turns of 500 and 300 until there are 4,000, of which each
    reads what is new; with several sessions, so many users have such a turn at once. They are
    shorter in proportion where `context` is too small.
    """
    verified = _tokens_of(_VERIFIED)
    prompt, answer = _fitting(PROMPT, context)
    long = _read(lines.read, 0, prompt)
    long += _write(lines.token, lines.verify, verified, prompt, answer)
    turn, answer = _fitting(_TURN, context)
    chat = 0.0
    for number in range(max(1, min(context, _CHAT) // (turn + answer))):
        start = number * (turn + answer)
        chat += _read(lines.read, start, turn)
        chat += _write(lines.token, lines.verify, verified, start + turn, answer)
    if lines.tokens is None or lines.verifies is None:
        return [long, chat]
    rows = _mixed(sessions)
    verified = sum(map(_tokens_of, rows)) / sessions
    users = sessions * _read(lines.read, 0, turn)
    users += _write(lines.tokens, lines.verifies, verified, turn, answer)
    return [long, chat, users]


def _fitting(prompt: int, context: int) -> tuple[int, int]:
    """Return the tokens of a prompt and of its answer, less of both where a context is small."""
    share = min(1.0, context / (prompt + WRITTEN))
    return max(1, int(share * prompt)), max(1, int(share * WRITTEN))


def _read(read: Line, start: int, token_count: int) -> float:
    return token_count / _READ_ROWS * read.at(start + token_count / 2.0)


def _write(plain: Line, verify: Line, verified: float, start: int, token_count: int) -> float:
    """Return the seconds of writing after `start` tokens: half of it by `verified` at a time."""
    middle = start + token_count / 2.0
    return token_count / 2.0 * (plain.at(middle) + verify.at(middle) / verified)


def _tokens_of(rows: int) -> float:
    """Return the tokens that a decode of a round writes: those accepted, and one more."""
    return sum(_ACCEPTANCE**count for count in range(rows))


def _mixed(sessions: int) -> list[int]:
    """Return the rows of each session in a decode of several rounds."""
    return [4, 2, 1, 1][:sessions]


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
    is_better = relative_seconds(best, usual) < _CLEARLY_LESS
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
    sessions = min(_SESSIONS, description.sequence_count)
    layouts = candidates(description.layouts, sessions)
    # A pool has room for as much in all sessions as fewer streams would have.
    cells = description.pool_cells or sessions * description.context
    room = min(description.context, cells // sessions) - _READ_ROWS
    if len(layouts) < 2 or room < _LEAST:
        return []
    ids = history(model, min(LONG, room))
    long = hold(model, clock, ids, _READING_SECONDS)
    lengths = (long // _SHORTER, long)
    measured: dict[Layout, list[float]] = {}
    for layout in layouts * _REPEATS:  # in turn: what disturbs a machine for a while disturbs all
        try:
            model.open(layout)
            seconds = _measure(model, clock, ids, lengths, sessions)
        except (InvalidConfig, DecodeFailed, NoRoom):  # this build or device cannot
            continue
        measured[layout] = list(map(min, seconds, measured.get(layout, seconds)))
    model.open(first)
    return [
        LayoutSeconds(
            layout, request_seconds(_lines(seconds, lengths), description.context, sessions)
        )
        for layout, seconds in measured.items()
    ]


def _measure(
    model: Model, clock: Clock, ids: Sequence[int], lengths: Sequence[int], sessions: int
) -> list[float]:
    """Return the seconds of every kind of decode after the one length, then after the other."""
    read_rows = min(_READ_ROWS, model.describe().batch_rows)
    together = [[1] * sessions, _mixed(sessions)] if sessions > 1 else []
    seconds: list[float] = []
    for length in lengths:
        hold(model, clock, ids[:length], math.inf)
        for other in range(1, sessions):
            model.duplicate(0, other)
        seconds += [_decode_seconds(model, clock, length, [rows]) for rows in _ALONE]
        reading = _decode_seconds(model, clock, length, [read_rows])
        seconds.append(reading * _READ_ROWS / read_rows)
        seconds += [_decode_seconds(model, clock, length, rows) for rows in together]
        for sequence in range(sessions):
            model.truncate(sequence, 0)
    return seconds


def _lines(seconds: Sequence[float], lengths: Sequence[int]) -> Lines:
    """Return the lines through what `_measure` returned."""
    kinds = len(seconds) // 2
    short, long = lengths
    lines = []
    for before, after in zip(seconds[:kinds], seconds[kinds:], strict=True):
        slope = max(0.0, after - before) / (long - short)
        lines.append(Line(max(0.0, after - slope * long), slope))
    return Lines(*lines)


def _decode_seconds(model: Model, clock: Clock, position: int, rows: Sequence[int]) -> float:
    """Return the least time of a few decodes of so many rows of each session."""
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
    ids = history(model, min(_QUICK, model.describe().context - _VERIFIED))
    try:
        if len(ids) < _LEAST or repeat(model, ids) < len(ids):
            return Look(0, {})
        seconds = {rows: _decode_seconds(model, clock, len(ids), [rows]) for rows in _ALONE}
        return Look(len(ids), seconds)
    finally:
        model.truncate(0, 0)


def _score(look: Look, is_usual: bool) -> float:
    """Return the seconds of a token, written plainly and by rounds, in favour of the usual."""
    plain, verify = (Line(look.seconds[rows], 0.0) for rows in _ALONE)
    seconds = _write(plain, verify, _tokens_of(_VERIFIED), 0, 1)
    return seconds * (_CLEARLY_LESS if is_usual else 1.0)
