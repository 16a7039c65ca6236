"""Continues copying after an edit: where a text copies an earlier part of itself and departs. Pure.

A suffix has nothing to match after a token that was exchanged. But where the text was copied from
is known, and it mostly returns to a place near there. So that place is kept for some tokens,
and the newest ones are looked for around it. What was exchanged for what is kept too: a name
that was exchanged once is likely to be so again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.drafters.source import NOTHING, Proposal, confidence

_GRAM = 8  # tokens in a row that are taken for a copy
_STRIDE = 4  # every so many places one is kept, by the gram that ends there: less memory
_BACK, _AHEAD = 2, 24  # tokens around where a copy ended, in which it is found again
_LOST_AFTER = 24  # tokens without a copy after which it is over
_GUESSED = 4  # tokens after which nothing is proposed until one of a copy came
_AGREEING = 6  # tokens by which places around it are compared
_SURE = 3  # tokens in a row after which a copy continues and an edit is over
_EDIT, _EDITS = 8, 32  # tokens of an edit at most, and the latest edits that are kept
_FACTOR, _MODULUS = 1_103_515_245, (1 << 61) - 1
_OLDEST = pow(_FACTOR, _GRAM, _MODULUS)

_RUNS = (1, 2, 3, 4, 8, 16)  # tokens copied in a row since an edit, by which chances differ
_BY_RUN = bytes(map(confidence, (0.1, 0.3, 0.45, 0.58, 0.68, 0.8, 0.92)))
_REPEATED_EDIT = confidence(0.2)
"""Of an edit that was seen once. Each of these has a bin of its own where chances are learned."""


@dataclass(slots=True)
class _Edit:
    """Tokens that stand in a copy in place of others, and how often they did and did not."""

    old: Sequence[int]
    new: Sequence[int]
    seen: int = 1
    missed: int = 0

    @property
    def is_usual(self) -> bool:
        return self.seen > self.missed


class CopySource:
    """Proposes how what the text was copying continues, the prompt included.

    A token takes a few steps, and one after an edit some dozens, for any text.
    """

    reads_prompt = True

    def __init__(self) -> None:
        self._text = array("i")
        self._places: dict[int, int] = {}  # the latest end of a gram, by its hash; one in `_STRIDE`
        self._hash = 0  # of the last gram
        self._edits: OrderedDict[int, _Edit] = OrderedDict()  # by the first old token
        self._position = -1  # of what comes next in what is copied; -1: nothing is
        self._into = 0  # tokens of the edit at that place which stand in the text already
        self._run = 0  # tokens in a row as expected
        self._anchor = 0  # the position where the text was surely copied last
        self._since = 0  # tokens of the text since then

    @property
    def size_bytes(self) -> int:
        """The memory that it holds, about."""
        return 5 * len(self._text) + 140 * len(self._places) + 700 * len(self._edits) + 1000

    def append(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if self._position >= 0:
                self._follow(token_id)
            self._text.append(token_id)
            self._note_gram(token_id)

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        """Return what follows; beyond `after` only where that is what was expected."""
        if self._position < 0 or (not self._run and self._since > _GUESSED):
            return NOTHING
        token_ids, confidences = self._line(count + len(after))
        if token_ids[: len(after)] != [*after]:
            return NOTHING
        return Proposal(token_ids[len(after) :], bytes(confidences[len(after) :]))

    def _line(self, count: int) -> tuple[list[int], bytearray]:
        text, position, into, run = self._text, self._position, self._into, self._run
        token_ids: list[int] = []
        confidences = bytearray()
        while len(token_ids) < count and position < len(text):
            sure = _BY_RUN[bisect_right(_RUNS, run)]
            edit = self._edit_at(position)
            if edit is None:
                token_ids.append(text[position])
                position += 1
            else:
                if not into and edit.seen == 1:
                    sure = min(sure, _REPEATED_EDIT)
                token_ids.append(edit.new[into])
                into += 1
                if into == len(edit.new):
                    position, into = position + len(edit.old), 0
            confidences.append(sure)
            run += 1
        return token_ids, confidences

    def _edit_at(self, position: int) -> _Edit | None:
        """Return what is likely to stand in place of what is copied from there."""
        edit = self._edits.get(self._text[position])
        if edit is None or not edit.is_usual:
            return None
        is_there = self._text[position : position + len(edit.old)] == edit.old
        return edit if is_there else None

    def _follow(self, token_id: int) -> None:
        """Take in a token, which the text does not have yet."""
        text, position = self._text, self._position
        edit = self._edit_at(position) if position < len(text) else None
        self._since += 1
        if edit is not None and edit.new[self._into] == token_id:
            self._run += 1
            self._into += 1
            if self._into == len(edit.new):
                self._position, self._into = position + len(edit.old), 0
                edit.seen += 1
                self._anchor, self._since = self._position, 0
        elif not self._into and position < len(text) and text[position] == token_id:
            if edit is not None:
                edit.missed += 1
            self._position += 1
            self._run += 1
        else:
            self._find(token_id)
            return
        if self._run >= _SURE and not self._into:
            self._settle(token_id)

    def _settle(self, token_id: int) -> None:
        """The text is surely copied again: learn what was exchanged since it last was."""
        begin = self._position - self._run  # where it is copied from again
        count = self._since - self._run
        if 0 < count <= _EDIT and 0 < begin - self._anchor <= _EDIT:
            written = [*self._text[len(self._text) + 1 - self._since :], token_id]
            self._learn(self._text[self._anchor : begin], written[:count])
        self._anchor, self._since = self._position, 0

    def _learn(self, old: array[int], new: Sequence[int]) -> None:
        known = self._edits.pop(old[0], None)
        if known is not None and known.old == old and [*known.new] == [*new]:
            known.seen += 1
        else:
            known = _Edit(old, new)
        self._edits[old[0]] = known
        if len(self._edits) > _EDITS:
            self._edits.popitem(last=False)

    def _find(self, token_id: int) -> None:
        """Look for the newest tokens around where the copy ended; else as if as many were new."""
        self._run = self._into = 0
        if self._since > _LOST_AFTER:
            self._position = -1
            return
        text, guess = self._text, self._anchor + self._since
        best = (0, 0, 0)
        end = min(len(text), self._anchor + _AHEAD)
        for place in range(max(0, self._anchor - _BACK), end):
            if text[place] == token_id:
                found = self._agreement(place), -abs(place + 1 - guess), place + 1
                best = max(best, found)
        self._run, _, self._position = best if best[0] else (0, 0, min(len(text), guess))

    def _agreement(self, place: int) -> int:
        """Return how many tokens end as the text with its newest one, which stands at `place`."""
        text, length = self._text, 1
        while length < min(_AGREEING, place + 1) and text[place - length] == text[-length]:
            length += 1
        return length

    def _note_gram(self, token_id: int) -> None:
        """Find where the last gram stood before, unless a copy is followed, and keep its place."""
        text = self._text
        length = len(text)
        oldest = text[length - 1 - _GRAM] + 1 if length > _GRAM else 0
        self._hash = (self._hash * _FACTOR + token_id + 1 - oldest * _OLDEST) % _MODULUS
        if length < _GRAM:
            return
        if self._run < _GRAM and self._into == 0:
            place = self._places.get(self._hash, 0)
            if place and place != self._position and text[place - _GRAM : place] == text[-_GRAM:]:
                self._position, self._run, self._into = place, _GRAM, 0
                self._anchor, self._since = place, 0
        if not length % _STRIDE:
            self._places[self._hash] = length
