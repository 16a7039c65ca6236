"""Token bytes to whole characters, and stop sequences that never leak. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Tag = TypeVar("Tag")


def ends_inside_character(data: bytes) -> bool:
    """Return whether the last bytes begin a character that more bytes may finish."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return bool(decoder.getstate()[0])


@dataclass(frozen=True, slots=True)
class Piece(Generic[Tag]):
    """A run of whole characters, or a control token's name; the tag of the last token of it."""

    text: str
    tag: Tag
    control: bool = False


class TextAssembler(Generic[Tag]):
    """Turns tokens into text that may be shown.

    Holds back the bytes of an unfinished character and every text that may
    still become a stop sequence. After a stop sequence nothing more comes.
    """

    def __init__(self, stop_sequences: Sequence[str]) -> None:
        self._stops = tuple(stop_sequences)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[Piece[Tag]] = []  # a text that may become a stop sequence
        self.stopped_by = ""
        """The stop sequence that was found; empty before."""

    @property
    def may_stop(self) -> bool:
        """Whether there are stop sequences: then tokens are added one by one."""
        return bool(self._stops)

    def add(self, token: bytes, tag: Tag) -> list[Piece[Tag]]:
        """Return what can be shown after one more token, or after several of the same tag."""
        return self._show(self._decoder.decode(token), tag)

    def add_control(self, name: str, tag: Tag) -> list[Piece[Tag]]:
        """Return what can be shown after a control token, which no stop sequence looks at."""
        if self.stopped_by:
            return []
        self._held.append(Piece(name, tag, control=True))
        return self._release_certain()

    def finish(self, tag: Tag) -> list[Piece[Tag]]:
        """Return the rest; an unfinished character becomes U+FFFD."""
        pieces = self._show(self._decoder.decode(b"", True), tag)
        if not self.stopped_by:
            pieces += self._held
            self._held = []
        return pieces

    def _show(self, text: str, tag: Tag) -> list[Piece[Tag]]:
        if self.stopped_by or not text:
            return []
        self._held.append(Piece(text, tag))
        pending = self._pending()
        found = [(at, stop) for stop in self._stops if (at := pending.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found, key=lambda each: each[0])
            return self._release(at)
        return self._release_certain()

    def _pending(self) -> str:
        return "".join(piece.text for piece in self._held if not piece.control)

    def _release_certain(self) -> list[Piece[Tag]]:
        pending = self._pending()
        return self._release(len(pending) - _longest_start(pending, self._stops))

    def _release(self, count: int) -> list[Piece[Tag]]:
        """Return the first `count` held characters, tags kept; also control tokens among them."""
        shown = []
        while self._held and (count > 0 or self._held[0].control):
            piece = self._held.pop(0)
            if piece.control:
                shown.append(piece)
                continue
            if len(piece.text) > count:
                self._held.insert(0, Piece(piece.text[count:], piece.tag))
                piece = Piece(piece.text[:count], piece.tag)
            shown.append(piece)
            count -= len(piece.text)
        return shown


def _longest_start(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that starts a stop sequence."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if stop.startswith(text[-length:]):
                longest = length
                break
    return longest
