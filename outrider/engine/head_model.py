"""A head as a model of its own, for a draft service: its target's hidden rows are sent to it.

It reads a text when a row of logits is wanted, and of that only what it has hidden rows for: those
it was given, and after them its own. So it drafts like any model, and a long prompt costs it one
decode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.engine.head_draft import Head, Pairs
from outrider.engine.hidden_rows import Rows, unpack
from outrider.engine.model import Chunk, Layout, ModelDescription, Row, Sampler
from outrider.errors import InvalidRequest
from outrider.row_window import HIDDEN_ROWS, NO_ROWS, RowWindow
from outrider.sampling import SamplingParameters


class HeadWords(Protocol):
    """The vocabulary that a head writes in; `Model` says what each does."""

    def token_texts(self) -> list[bytes]: ...

    def token_names(self) -> list[bytes]: ...

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]: ...

    def sampler(
        self, parameters: SamplingParameters, seed: int = 0, choice: int = 0
    ) -> Sampler: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Sequence:
    """A text, and how much of it is in the head's cache."""

    token_ids: list[int] = field(default_factory=list)
    read: int = 0  # the cache ends here; what is missing is read when a row is wanted
    sure: int = 0  # what is before was read with the target's rows; at most `read`
    given: RowWindow = NO_ROWS  # the target's
    own: dict[int, Rows] = field(default_factory=dict)  # by position: float32[1, width]

    def cut(self, count: int) -> None:
        """Hold the first tokens alone."""
        del self.token_ids[count:]
        self.read, self.sure = min(self.read, count), min(self.sure, count)
        self.own = {position: row for position, row in self.own.items() if position < count}

    def has_row(self, position: int) -> bool:
        """Return whether there is a row of a token; before the first token it is of zeros."""
        return position < 0 or position in self.own or self.is_given(position)

    def is_given(self, position: int) -> bool:
        """Return whether the row of a token is the target's."""
        return self.given.position <= position < self.given.end


class HeadModel:
    """A head behind the `Model` seam. Rows are wanted of one token of a chunk, its last.

    Where several are wanted, to see what they cost, all are that one's.
    """

    pad_multiple = 1

    def __init__(self, head: Head, words: HeadWords, description: ModelDescription) -> None:
        """Take a head and its vocabulary; they are closed with it, the vocabulary first."""
        self._head, self._words, self._description = head, words, description
        self.width = head.row_width
        self._most_read = min(2 * HIDDEN_ROWS, head.batch_rows)
        self._sequences = [_Sequence() for _ in range(head.sequence_count)]

    # --- what it reads ---

    def give_rows(self, sequence: int, rows: RowWindow) -> None:
        """Read a sequence with these rows of the target from now on, and with no other."""
        self._sequences[sequence].given = rows

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        for chunk in chunks:
            held = self._sequences[chunk.sequence]
            assert chunk.position == len(held.token_ids), f"position {chunk.position}"
            held.token_ids += chunk.token_ids
        found: dict[int, Row] = {}
        for pairs in self._parted([chunk.sequence for chunk in chunks if chunk.row_count]):
            for each, ([row], hidden) in zip(pairs, self._head.decode(pairs), strict=True):
                self._note_read(each, hidden)
                found[each.sequence] = row.copy()  # there may be another decode
        return [
            [found[chunk.sequence]] * chunk.row_count if chunk.row_count else [] for chunk in chunks
        ]

    def _parted(self, sequences: Sequence[int]) -> Iterator[list[Pairs]]:
        """Yield what sequences have to read, as much as fits a decode."""
        pairs: list[Pairs] = []
        for sequence in sequences:
            more = self._unread(sequence)
            count = sum(len(each.token_ids) for each in [*pairs, more])
            if pairs and count > self._head.batch_rows:
                yield pairs
                pairs = []
            pairs.append(more)
        if pairs:
            yield pairs

    def _unread(self, sequence: int) -> Pairs:
        """Return what a sequence has to read up to its end; its cache ends there.

        What was read with the head's own rows is read again where the target's came.
        """
        held = self._sequences[sequence]
        end = len(held.token_ids)
        least = end - 1
        while least > max(0, end - self._most_read) and held.has_row(least - 2):
            least -= 1
        begin = held.sure if held.is_given(held.sure - 1) or not held.sure else held.read
        cells = self._head.held(sequence)
        if begin < least or not cells.start < begin <= cells.stop:
            begin = least  # the tokens before are not there
            self._head.truncate(sequence, 0)
        else:
            self._head.truncate(sequence, begin)
        rows = [self._row(held, position - 1) for position in range(begin, end)]
        return Pairs(sequence, begin, held.token_ids[begin:], np.concatenate(rows))

    def _row(self, held: _Sequence, position: int) -> Rows:
        if held.is_given(position):
            return unpack(held.given.since(position).until(position + 1), self.width)
        return held.own.get(position, np.zeros((1, self.width), np.float32))

    def _note_read(self, pairs: Pairs, hidden: Rows) -> None:
        """Take note of what the cache holds now, and of the head's own row at its end."""
        held = self._sequences[pairs.sequence]
        end = len(held.token_ids)
        is_sure = not pairs.position or held.is_given(pairs.position - 1)
        held.sure = min(end, held.given.end + 1) if is_sure else min(held.sure, pairs.position)
        held.read = end
        held.own[end - 1] = hidden.copy()
        if len(held.own) > self._most_read:
            del held.own[min(held.own)]

    # --- what it holds ---

    def truncate(self, sequence: int, token_count: int) -> int:
        held = self._sequences[sequence]
        held.cut(token_count)
        self._head.truncate(sequence, held.read)
        return len(held.token_ids)

    def copy_prefix(self, source: int, destination: int, token_count: int) -> int:
        theirs, mine = self._sequences[source], _Sequence()
        mine.token_ids, mine.own = list(theirs.token_ids), dict(theirs.own)
        mine.read, mine.sure = theirs.read, theirs.sure
        mine.cut(token_count)
        self._sequences[destination] = mine
        self._head.copy_prefix(source, destination, mine.read)
        return token_count

    def copied_count(self, source: int, token_count: int) -> int:
        return token_count

    def duplicate(self, source: int, destination: int) -> None:
        self.copy_prefix(source, destination, len(self._sequences[source].token_ids))

    def open(self, layout: Layout) -> None:
        for sequence in range(len(self._sequences)):
            self.truncate(sequence, 0)

    # --- what there is one way to do ---

    def padded(self, row_count: int) -> int:
        return row_count

    def checkpoint(self, sequence: int) -> None:
        """Make none: it is cut to any length."""

    def repeat_cells(self, sequence: int, token_count: int) -> int:
        return len(self._sequences[sequence].token_ids)

    def use_threads(self, count: int) -> NoReturn:
        raise AssertionError("a head has no choice of threads")

    def exchange(self, first: int, second: int) -> NoReturn:
        raise AssertionError("sequences of a head are not exchanged")

    def embed(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        raise InvalidRequest("embeddings", "a head embeds nothing")

    # --- its vocabulary ---

    def describe(self) -> ModelDescription:
        return self._description

    def token_texts(self) -> list[bytes]:
        return self._words.token_texts()

    def token_names(self) -> list[bytes]:
        return self._words.token_names()

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        return self._words.tokenize(text, add_special, parse_special)

    def sampler(self, parameters: SamplingParameters, seed: int = 0, choice: int = 0) -> Sampler:
        return self._words.sampler(parameters, seed, choice)

    def close(self) -> None:
        self._words.close()
        self._head.close()
