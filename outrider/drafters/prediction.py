"""Follows a text that the caller expects, around the places where the real one differs. Pure.

OpenAI's `prediction`. After an edit the place in it is found again by how the text ends: of the
places where the last tokens also stand, the one that agrees longest, then the nearest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider.drafters.source import Proposal, confidence

_GRAMS = (8, 3, 1)  # last tokens by which a place is found, the most first
_NEIGHBOURS = 3  # places that are compared, for each of them and on either side
_LONGEST = 16  # tokens by which places are compared
_NEAR = 64  # tokens from where the text surely was: fewer of them have to agree here
_SURE_NEAR, _SURE_FAR = 2, 8  # tokens in a row after which a place is no accident
_CREDIT = 2  # tokens in a row that a prediction is taken to have at its start
_UNSEEN = 0.25  # the chance of a token that only the length of an edit speaks for
_FACTOR, _MODULUS = 1_103_515_245, (1 << 31) - 1


def _hashed(hashed: int, token_id: int) -> int:
    return (hashed * _FACTOR + token_id + 1) % _MODULUS


class _Index:
    """Where each gram of so many tokens ends, and those whose hashes are equal."""

    def __init__(self, token_ids: Sequence[int], size: int) -> None:
        self.size = size
        ids = np.asarray(token_ids, np.int64)
        count = max(0, len(ids) - size + 1)
        hashes = np.zeros(count, np.int64)
        for i in range(size):
            hashes = (hashes * _FACTOR + ids[i : i + count] + 1) % _MODULUS
        keys = np.sort((hashes << 32) | np.arange(size, size + count))
        self._keys = array("q", keys.tobytes())  # by hash, then by place; quicker one by one

    def near(self, gram: Sequence[int], place: int) -> Iterator[int]:
        """Yield the ends closest to a place, a few on either side."""
        hashed = 0
        for token_id in gram:
            hashed = _hashed(hashed, token_id)
        middle = bisect_left(self._keys, (hashed << 32) | place)
        for key in self._keys[max(0, middle - _NEIGHBOURS) : middle + _NEIGHBOURS]:
            if key >> 32 == hashed:
                yield key & 0xFFFF_FFFF


@dataclass(slots=True)
class _Place:
    """Where in the prediction a text has come to."""

    tail: list[int]  # its last tokens
    position: int = 0  # what is expected next
    run: int = _CREDIT  # tokens in a row that agree before it
    new: int = 0  # of them, those found after an edit, until one that was expected comes
    anchor: int = 0  # the position where it surely was last
    since: int = 0  # tokens of the text since then


class PredictionSource:
    """Proposes what comes next in a prediction.

    To make one takes about a microsecond a token, to append one a few dozen comparisons at most.
    """

    reads_prompt = False

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = array("i", prediction)
        self._indexes = [_Index(prediction, size) for size in _GRAMS]
        self._place = _Place([])
        self._is_accepted = bytearray(len(prediction))
        self.accepted_token_count = 0
        """Tokens of the prediction that the text has where they were expected."""

    @property
    def rejected_token_count(self) -> int:
        """Tokens of the prediction that the text does not have, or not yet."""
        return len(self._prediction) - self.accepted_token_count

    @property
    def size_bytes(self) -> int:
        return (5 + 8 * len(self._indexes)) * len(self._prediction) + 1000

    def append(self, token_ids: Sequence[int]) -> None:
        place = self._place
        for token_id in token_ids:
            if self._follow(place, token_id):
                self._accept(place.position - place.new, place.position)
                place.new = 0

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        place = self._place
        if after:
            place = replace(place, tail=place.tail.copy())
            for token_id in after:
                self._follow(place, token_id)
        token_ids = self._prediction[place.position : place.position + count].tolist()
        runs = range(place.run, place.run + len(token_ids))
        chances = ((run + 1) / (run + 2) if run else _UNSEEN for run in runs)
        return Proposal(token_ids, bytes(confidence(chance) for chance in chances))

    def _follow(self, place: _Place, token_id: int) -> bool:
        """Take in a token; return whether it was the one that was expected."""
        place.since += 1
        place.tail.append(token_id)
        if len(place.tail) >= 2 * _LONGEST:
            del place.tail[:-_LONGEST]
        expected = self._prediction[place.position : place.position + 1]
        is_expected = bool(expected) and expected[0] == token_id
        if is_expected:
            place.position += 1
            place.run += 1
            place.new += 1
        else:
            self._find(place)
        is_near = abs(place.position - place.anchor) <= _NEAR
        if place.run >= (_SURE_NEAR if is_near else _SURE_FAR):
            place.anchor, place.since = place.position, 0
        return is_expected

    def _find(self, place: _Place) -> None:
        """Go to where the text may have come to; else as far as if as much had been replaced."""
        for index in self._indexes:
            gram = place.tail[-index.size :]
            if len(gram) < index.size:
                continue
            found = [
                (length, end >= place.anchor, -abs(end - place.anchor), end)
                for end in index.near(gram, place.anchor)
                if (length := self._agreement(place.tail, end)) >= _GRAMS[1]
                or (length and abs(end - place.anchor) <= _NEAR)
            ]
            if found:
                place.run, _, _, place.position = max(found)
                place.new = place.run
                return
        place.position = min(len(self._prediction), place.anchor + place.since)
        place.run = place.new = 0

    def _agreement(self, tail: Sequence[int], end: int) -> int:
        """Return how many tokens before a place are those that the text ends with, 16 at most."""
        prediction = self._prediction
        longest = min(_LONGEST, len(tail), end)
        for length in range(longest):
            if tail[-1 - length] != prediction[end - 1 - length]:
                return length
        return longest

    def _accept(self, start: int, end: int) -> None:
        """Count each token once, even where the text came to it twice."""
        fresh = self._is_accepted.count(0, start, end)
        self._is_accepted[start:end] = b"\1" * (end - start)
        self.accepted_token_count += fresh
