"""A head of the target as its draft: it reads the target's hidden rows.

One that is chained (MTP, EAGLE-3) reads at a position the token there and the hidden row of the one
before, then its own; its row of logits is of the token after. One that drafts blocks (DFlash,
DSpark) holds the rows of the target at their positions, and drafts after the newest token all
others in one pass. So what either holds of a text follows from the text, like any cache.
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
from outrider.engine.hidden_rows import RowReader, Rows
from outrider.engine.model import MAX_ROWS_OUT, Model, Row
from outrider.engine.own_draft import DraftCosts, DraftLine, DraftMemory, OwnDraft
from outrider.errors import DecodeFailed
from outrider.row_window import HIDDEN_ROWS
from outrider.speculation import HeadKind

_TIMED_TOKENS = 4
"""Of a block, which is drafted in one pass that takes little longer for more of them: a token is
said to cost its share of that."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The end of a text, and what is read with its tokens.

    That is the hidden row of the token before each, or of each but the last: see `Head.lag`.
    """

    sequence: int
    position: int
    token_ids: Sequence[int]
    rows: Rows
    is_chained: bool = False
    """Whether the rows are the head's own, and not the target's."""
    count: int = 1
    """Tokens to draft."""

    def part(self, first: int, stop: int | None) -> Pairs:
        """Return some of the pairs; `first` may count from the end."""
        position = self.position + range(len(self.token_ids))[first]
        token_ids, rows = self.token_ids[first:stop], self.rows[first:stop]
        return Pairs(self.sequence, position, token_ids, rows, self.is_chained)


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
    block_count: int
    """Blocks that draft one token each, as each reads the text itself; one drafts any number."""
    target_layers: tuple[int, ...]
    """Whose inputs it reads of the target, one after the other; without any, the last row."""
    row_width: int
    """Numbers of what it reads of the target at a token."""
    lag: int
    """Tokens between one and the row that is read with it: 1 where it is chained, else 0."""
    first_token: int
    """Of a text, that it reads: 0, where it is chained with zeros before it, or 1."""
    size: int
    """Tokens that it drafts in a decode at most; 1 where it is chained."""

    def decode(self, pairs: Sequence[Pairs], block: int = 0) -> list[tuple[Sequence[Row], Rows]]:
        """Append pairs of distinct sequences, all of them chained or none.

        Return of each the logits of the tokens that are drafted, and the hidden row of its last
        token for the next pair: float32[1, width], or none where it drafts several at once, of
        which nothing stays. A block may read again from a position on what others have read, as far
        or farther. All are valid until the next decode. Raises DecodeFailed.
        """
        ...

    def held(self, sequence: int, block_count: int = 1) -> range:
        """Return the positions of the tokens that the first blocks have read of a sequence."""
        ...


class HeadTarget(Model, Protocol):
    """A model that keeps its hidden rows."""

    def keep_rows(self, layers: tuple[int, ...], reader: RowReader | None = None) -> None:
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
        chained = max(head.block_count - 1, head.size - 1)  # that a decode reads besides
        self._most_read = min(HIDDEN_ROWS, head.batch_rows - chained)
        rows_out = MAX_ROWS_OUT // (head.size + 1 - head.lag)
        at_once = max(1, min(rows_out, head.batch_rows // (self._most_read + chained)))
        cache = SessionCache(head.sequence_count)
        super().__init__(target, head, cache, head.context, at_once, clock)
        self.name, self.head_kind, self.weight_bytes = head.name, head.kind, head.weight_bytes
        most = max(head.block_count, head.size)
        self.most_tokens = most if most > 1 else 0
        self._head, self._target = head, target
        # Of each session that is drafted for: what its next tokens read; with several blocks, of
        # which each reads them all, since the draft's first. Empty between drafts.
        self._next_rows: dict[bytes, Rows] = {}
        try:
            self.costs = self._time()
        except DecodeFailed:
            head.close()
            raise
        self._keep_rows()

    def _keep_rows(self) -> None:
        """Have the target keep the rows that the head reads."""
        self._target.keep_rows(self._head.target_layers)

    def _time(self) -> DraftCosts:
        """Return what decodes cost here; sequence 0 is used and left empty.

        Reading costs nothing for each token of a text: its last ones go with the first drafted one.
        """
        count, seconds = min(_TIMED_TOKENS, self._head.size), math.inf
        rows = np.zeros((self._head.lag, self._head.row_width), np.float32)
        for _ in range(REPEATS):
            begin = self._clock()
            self._head.decode([Pairs(0, 0, [0], rows, count=count)])
            seconds = min(seconds, self._clock() - begin)
            self._head.truncate(0, 0)
        return DraftCosts(token=seconds / count, read=0.0)

    def draft(self, lines: Sequence[DraftLine], read_seconds: float) -> None:
        super().draft(lines, read_seconds)
        self._next_rows.clear()

    def _follow(self, line: DraftLine, busy: Collection[bytes], deadline: float) -> Session | None:
        found = self._rows_of(line)
        if found is None:
            return None
        (first, rows), text = found, line.tokens
        session = self._enter(line, busy)
        if session is None:
            return None
        assert session.sequence is not None
        # The first token of all, with none before it, reads zeros.
        lag, least = self._head.lag, self._head.first_token
        least = max(first + lag if first else least, len(text) - self._most_read)
        held = self._head.held(session.sequence, min(line.ask.count, self._head.block_count))
        kept = min(common_prefix(session.token_ids, text), held.stop, len(text) - 1)
        if kept < least or not held.start < kept:
            self._head.truncate(session.sequence, 0)
            kept = least  # the tokens before are not there
        else:  # with what was chained on the head's own rows
            self._head.truncate(session.sequence, kept)
        session.token_ids[:] = text[:kept]
        before = rows[max(0, kept - lag - first) : len(text) - 1 - first]
        if kept < lag:
            before = np.concatenate([np.zeros((1, self._head.row_width), np.float32), before])
        self._next_rows[line.session_id] = before
        return session

    def _rows_of(self, line: DraftLine) -> tuple[int, Rows] | None:
        """Return the rows of a line's text; None where it may not begin."""
        text = line.tokens
        if line.sequence is None or len(text) < 2 or len(text) + line.ask.count > self._capacity:
            return None
        first, rows = self._target.hidden_rows(line.sequence)
        is_read = first < len(text) - 1 <= first + len(rows)  # by the target
        return (first, rows) if is_read else None

    def _even_out(self, lines: Sequence[tuple[DraftLine, Session]]) -> None:
        """Let all lines read as many tokens, those that have fewer to read some once more.

        Of streams with other numbers of tokens llama.cpp computes parts one after the other.
        """
        lag, most = self._head.lag, max(len(self._next_rows[each.session_id]) for each, _ in lines)
        for line, session in lines:
            assert line.sequence is not None and session.sequence is not None
            first, rows = self._target.hidden_rows(line.sequence)
            begin = len(line.tokens) + lag - 1 - most
            is_known = self._head.held(session.sequence).start < begin and first <= begin - lag
            if begin < len(session.token_ids) and is_known:
                self._head.truncate(session.sequence, begin)
                del session.token_ids[begin:]
                before = rows[begin - lag - first : len(line.tokens) - 1 - first]
                self._next_rows[line.session_id] = before

    def _step(self, lines: Sequence[tuple[DraftLine, Session]]) -> None:
        blocks, reads = self._head.block_count, self._head.lag - 1  # 0, or all but the last token
        if blocks == 1 and self._head.lag and not lines[0][0].guesses:
            self._even_out(lines)
        pairs = []
        for line, session in lines:
            assert session.sequence is not None
            rows, is_chained = self._next_rows[line.session_id], bool(line.guesses)
            position = len(line.tokens) + reads - len(rows)
            tokens = line.tokens[position:]
            pairs.append(
                Pairs(session.sequence, position, tokens, rows, is_chained, line.ask.count)
            )
        block = len(lines[0][0].guesses) if blocks > 1 else 0  # as all lines begin together
        found = self._head.decode(pairs, block)
        for (line, session), pair, (logits, hidden) in zip(lines, pairs, found, strict=True):
            held = len(line.ask.text) + reads
            session.token_ids.extend(line.ask.text[len(session.token_ids) : held])
            before = [pair.rows] if blocks > 1 else []
            self._next_rows[line.session_id] = np.concatenate([*before, hidden])
            for row in logits:
                if not line.is_over:
                    line.take(row)
            line.is_over |= not len(hidden) or len(line.guesses) == blocks > 1
