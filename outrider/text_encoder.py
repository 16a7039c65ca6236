"""Encodes bytes as tokens of a vocabulary of which nothing is known but their texts. Pure.

Pairs are merged as in byte-pair encoding (Sennrich et al. 1508.07909), the pair whose token has the
lowest id first: trained vocabularies list their merges in that order, and hold no token that goes
across what their tokenizer splits at. One rule of such splits shows in no token, and is known here:
of several spaces the last one belongs to the word after them. It is a guess of that tokenizer,
which may have other rules.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_KEPT_CHUNKS = 1 << 16  # chunks of text whose tokens are kept
_KEPT_CHUNK_BYTES = 64  # bytes of the longest chunk that is kept

_SPACED_WORD = re.compile(rb"\s [^\s]")


class TextEncoder:
    """Encodes text with tokens of these texts, of which those that are empty are no text.

    What it makes of a text is made of its tokens one by one: any run of them is what it makes of
    the run's own text. For no merge goes across a token's end, so that those on either side are
    made in the same order without the other side.
    """

    def __init__(
        self,
        texts: Sequence[bytes],
        byte_token_ids: Collection[int] = (),
        spaces_lead: bool = False,
    ) -> None:
        """Of two tokens with one text the first is taken, and a byte token only without another.

        `spaces_lead`: the last space of several is split off, where no token speaks against it.
        """
        byte_ids = frozenset(byte_token_ids)
        self._ids: dict[bytes, int] = {}
        for token_id, text in enumerate(texts):
            known = self._ids.get(text)
            if text and (known is None or (known in byte_ids and token_id not in byte_ids)):
                self._ids[text] = token_id
        self._sorted = sorted(self._ids)
        self._longest = max(map(len, self._sorted), default=0)
        self._joins = _adjacent_bytes(self._sorted)
        self._spaces_lead = spaces_lead and not any(map(_SPACED_WORD.search, self._sorted))
        self._kept: dict[bytes, tuple[bytes, ...]] = {}  # pieces of short chunks, by chunk

    def id_of(self, text: bytes) -> int | None:
        """Return the token of a text; None where there is none."""
        return self._ids.get(text)

    def is_made(self, text: bytes) -> bool:
        """Return whether the token of a text may come of a merge, or is where merges begin.

        Any other one was added to the vocabulary: no text is encoded as it.
        """
        return len(text) <= _character_length(text[0]) or any(
            text[:end] in self._ids and text[end:] in self._ids for end in range(1, len(text))
        )

    def encode(self, text: bytes) -> list[int]:
        """Return the ids of a text; what no token has is left out."""
        return [self._ids[piece] for piece in self.pieces(text) if piece in self._ids]

    def pieces(self, text: bytes) -> list[bytes]:
        """Return a text in the pieces that are its tokens; a byte that no token has is one too."""
        return [piece for chunk in self._chunks(text) for piece in self._pieces_of_chunk(chunk)]

    def may_join(self, before: bytes, after: bytes) -> bool:
        """Return whether a token may go across from the end of one text to the start of another."""
        return bool(before and after) and bool(self._joins[before[-1], after[0]])

    def settled(self, text: bytes) -> list[bytes]:
        """Return the first pieces of a text that stay with any text after it.

        A token of the longer text that goes across the end begins where what is left begins a
        token's text, and before it is what the text up to there is encoded as. So what all such
        texts begin with stays.
        """
        if self._spaces_lead:
            text = text.rstrip(b" ")  # how they are split is up to what follows them
        settled = self.pieces(text)
        for start in self._open_starts(text):
            other = self.pieces(text[:start])
            settled = settled[: _common_count(settled, other)]
            if not settled:
                break
        return settled

    def _open_starts(self, text: bytes) -> Iterator[int]:
        """Yield where a token may begin that is longer than what is left of the text."""
        for start in range(len(text) - 1, max(-1, len(text) - self._longest), -1):
            rest = text[start:]
            if len(rest) > 1 and not self._joins[rest[0], rest[1]]:
                return
            index = bisect_right(self._sorted, rest)
            if index < len(self._sorted) and self._sorted[index].startswith(rest):
                yield start

    def _chunks(self, text: bytes) -> Iterator[bytes]:
        """Cut a text where no token goes across."""
        values = np.frombuffer(text, np.uint8)
        ends = (np.flatnonzero(~self._joins[values[:-1], values[1:]]) + 1).tolist()
        if self._spaces_lead:
            ends = sorted({*ends, *(found.end() - 2 for found in _SPACED_WORD.finditer(text))})
        start = 0
        for end in (*ends, len(text)):
            if start < end:
                yield text[start:end]
            start = end

    def _pieces_of_chunk(self, chunk: bytes) -> Sequence[bytes]:
        kept = self._kept.get(chunk)
        if kept is not None:
            return kept
        pieces = tuple(self._merged(list(self._characters(chunk))))
        if len(chunk) <= _KEPT_CHUNK_BYTES:
            if len(self._kept) >= _KEPT_CHUNKS:
                self._kept.clear()
            self._kept[chunk] = pieces
        return pieces

    def _characters(self, text: bytes) -> Iterator[bytes]:
        """Yield what merges begin with: bytes, or a whole character that is a token.

        Where a vocabulary has characters and not their bytes, no merge would lead to them.
        """
        start = 0
        while start < len(text):
            end = start + _character_length(text[start])
            if end == start + 1 or text[start:end] not in self._ids or end > len(text):
                end = start + 1
            yield text[start:end]
            start = end

    def _merged(self, parts: list[bytes]) -> list[bytes]:
        """Merge adjacent pieces until no two are a token together."""
        following = [*range(1, len(parts)), -1]
        before = [-1, *range(len(parts) - 1)]
        heap: list[tuple[int, int, bytes]] = []

        def offer(left: int) -> None:
            if left >= 0 and (right := following[left]) >= 0:
                joined = parts[left] + parts[right]
                if (rank := self._ids.get(joined)) is not None:
                    heapq.heappush(heap, (rank, left, joined))

        for index in range(len(parts)):
            offer(index)
        while heap:
            _, left, joined = heapq.heappop(heap)
            right = following[left]
            if not parts[left] or right < 0 or parts[left] + parts[right] != joined:
                continue  # one of the two was merged meanwhile
            parts[left], parts[right] = joined, b""
            following[left] = following[right]
            if following[right] >= 0:
                before[following[right]] = left
            offer(before[left])
            offer(left)
        return [part for part in parts if part]


class TokenStream:
    """Encodes a text that grows, and gives each token once no more text can change it."""

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self.pending = b""
        """The text after the tokens that were given."""
        self.is_stuck = False
        """Whether a byte came that no token has; nothing is given from there on."""

    def feed(self, text: bytes) -> list[int]:
        """Return the tokens that stay as they are, after those returned before."""
        self.pending += text
        return self._take(self._encoder.settled(self.pending))

    def finish(self) -> list[int]:
        """Return the tokens of all that is left: no text follows."""
        return self._take(self._encoder.pieces(self.pending))

    @property
    def open_count(self) -> int:
        """How many tokens what is pending is now."""
        return len(self._encoder.pieces(self.pending))

    def _take(self, pieces: Sequence[bytes]) -> list[int]:
        taken = []
        for piece in pieces:
            token_id = None if self.is_stuck else self._encoder.id_of(piece)
            if token_id is None:
                self.is_stuck = True
                break
            taken.append(token_id)
            self.pending = self.pending[len(piece) :]
        return taken


def _adjacent_bytes(texts: Sequence[bytes]) -> NDArray[np.bool_]:
    """Return which byte follows which inside a text: bool[256, 256]."""
    values = np.frombuffer(b"".join(texts), np.uint8)
    ends = np.cumsum(np.array([len(text) for text in texts], np.int64))
    inside = np.ones(max(0, len(values) - 1), np.bool_)
    inside[ends[:-1] - 1] = False
    table = np.zeros((256, 256), np.bool_)
    table[values[:-1][inside], values[1:][inside]] = True
    return table


def _character_length(first: int) -> int:
    """Return how many bytes a character has in UTF-8, by its first one; 1 for what is none."""
    return 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2 if first >= 0xC0 else 1


def _common_count(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        count += 1
    return count
