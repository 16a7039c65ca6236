"""A head of the target as its draft: it reads the target's hidden rows, and chains on its own.

At a position it reads the token there and the hidden row of the token before, and its row of logits
is of the token after. So what it holds of a text follows from the text, like any cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from outrider.engine.cache import Session, SessionCache, common_prefix
from outrider.engine.calibrate import REPEATS
from outrider.engine.hidden_rows import Rows
from outrider.engine.model import MAX_ROWS_OUT, Model, Row
from outrider.engine.own_draft import DraftCosts, DraftLine, DraftMemory, OwnDraft
from outrider.errors import DecodeFailed
from outrider.row_window import HIDDEN_ROWS
from outrider.speculation import HeadKind


@dataclass(frozen=True, slots=True)
class Pairs:
    """Tokens to append to a sequence, and the hidden row of the one before each of them."""

    sequence: int
    position: int
    token_ids: Sequence[int]
    rows: Rows


class Head(DraftMemory, Protocol):
    """A head in a context of its own. A sequence may begin at any position."""

    name: str
    kind: HeadKind
    weight_bytes: int
    sequence_count: int
    context: int
    """Tokens that a sequence can hold."""
    batch_rows: int
    """Tokens of one decode at most."""
    width: int
    """Of a hidden row."""
    block_count: int
    """Blocks that draft one token each, as each reads the text itself; one drafts any number."""
    target_layers: tuple[int, ...]
    """Whose inputs it reads of the target; without any, the last row."""

    def decode(self, pairs: Sequence[Pairs], block: int = 0) -> list[tuple[Row, Rows]]:
        """Append pairs of distinct sequences; return logits and hidden row of the last of each.

        A block may read again from a position on what others have read, as far or farther.

        Both are valid until the next decode; a hidden row is float32[1, width]. Raises
        DecodeFailed.
        """
        ...

    def held(self, sequence: int, block_count: int = 1) -> range:
        """Return the positions of the tokens that the first blocks have read of a sequence."""
        ...


class HeadTarget(Model, Protocol):
    """A model that keeps its hidden rows."""

    def keep_rows(self, layers: tuple[int, ...]) -> None:
        """Keep the rows of what is decoded from now on: of these layers' inputs, or the last."""
        ...

    def hidden_rows(self, sequence: int) -> tuple[int, Rows]:
        """Return the position of the first row that is kept of a sequence, and the rows."""
        ...


class HeadDraft(OwnDraft):
    """A head as a draft. What of a text it has no rows for it does without."""

    def __init__(
        self, head: Head, target: HeadTarget, clock: Callable[[], float] = perf_counter
    ) -> None:
        """Take the head of a target; its sequences are this draft's alone.

        Raises DecodeFailed, and closes it, where it computes nothing.
        """
        chained = head.block_count - 1  # that the last block reads besides
        self._most_read = min(HIDDEN_ROWS, head.batch_rows - chained)
        at_once = max(1, min(MAX_ROWS_OUT, head.batch_rows // (self._most_read + chained)))
        cache = SessionCache(head.sequence_count)
        super().__init__(target, head, cache, head.context, at_once, clock)
        self.name, self.head_kind, self.weight_bytes = head.name, head.kind, head.weight_bytes
        self._head, self._target = head, target
        # Of each session that is drafted for: what its next tokens read; with several blocks, of
        # which each reads them all, since the draft's first. Empty between drafts.
        self._next_rows: dict[bytes, Rows] = {}
        try:
            self.costs = self._time()
        except DecodeFailed:
            head.close()
            raise
        target.keep_rows(head.target_layers)

    def _time(self) -> DraftCosts:
        """Return what decodes cost here; sequence 0 is used and left empty.

        Reading costs nothing for each token of a text: its last ones go with the first drafted one.
        """
        row, seconds = np.zeros((1, self._head.width), np.float32), math.inf
        for _ in range(REPEATS):
            begin = self._clock()
            self._head.decode([Pairs(0, 0, [0], row)])
            seconds = min(seconds, self._clock() - begin)
            self._head.truncate(0, 0)
        return DraftCosts(token=seconds, read=0.0)

    def draft(self, lines: Sequence[DraftLine], read_seconds: float) -> None:
        super().draft(lines, read_seconds)
        self._next_rows.clear()

    def _follow(self, line: DraftLine, busy: Collection[bytes], deadline: float) -> Session | None:
        text = line.tokens
        if line.sequence is None or len(text) < 2 or len(text) + line.ask.count > self._capacity:
            return None
        first, rows = self._target.hidden_rows(line.sequence)
        if not first < len(text) - 1 <= first + len(rows):
            return None  # the target has not read the text
        session = self._enter(line, busy)
        if session is None:
            return None
        assert session.sequence is not None
        # The first token of all, with none before it, reads zeros.
        least = max(first + 1 if first else 0, len(text) - self._most_read)
        held = self._head.held(session.sequence, min(line.ask.count, self._head.block_count))
        kept = min(common_prefix(session.token_ids, text), held.stop, len(text) - 1)
        if kept < least or not held.start < kept:
            self._head.truncate(session.sequence, 0)
            kept = least  # the tokens before are not there
        else:  # with what was chained on the head's own rows
            self._head.truncate(session.sequence, kept)
        session.token_ids[:] = text[:kept]
        before = rows[max(0, kept - 1 - first) : len(text) - 1 - first]
        if not kept:
            before = np.concatenate([np.zeros((1, self._head.width), np.float32), before])
        self._next_rows[line.session_id] = before
        return session

    def _step(self, lines: Sequence[tuple[DraftLine, Session]]) -> None:
        blocks, pairs = self._head.block_count, []
        for line, session in lines:
            assert session.sequence is not None
            rows = self._next_rows[line.session_id]
            position = len(line.tokens) - len(rows)
            pairs.append(Pairs(session.sequence, position, line.tokens[position:], rows))
        block = len(lines[0][0].guesses) if blocks > 1 else 0  # as all lines begin together
        found = self._head.decode(pairs, block)
        for (line, session), pair, (row, hidden) in zip(lines, pairs, found, strict=True):
            session.token_ids.extend(line.ask.text[len(session.token_ids) :])
            before = [pair.rows] if blocks > 1 else []
            self._next_rows[line.session_id] = np.concatenate([*before, hidden])
            line.take(row)
            line.is_over |= len(line.guesses) == blocks > 1
