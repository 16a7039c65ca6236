"""The draft's line as the orchestrator received it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.distribution import Distribution
from outrider.messages import Candidates, Frame


@dataclass(frozen=True, slots=True)
class Line:
    """Draft tokens for a round. What came with them has an entry for each of them, or none."""

    token_ids: Sequence[int] = ()
    confidences: Sequence[int] = ()
    rows: Sequence[Distribution] = ()
    candidates: Sequence[Candidates] = ()
    sources: Sequence[str] = ()  # who proposed each; none: the draft model

    def first(self, count: int) -> Line:
        """Return its first tokens."""
        return Line(
            self.token_ids[:count],
            self.confidences[:count],
            self.rows[:count],
            self.candidates[:count],
            self.sources[:count],
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of comparing the line with the text.

    `decided` are the confidences of the tokens compared for the first time.
    All of them agree, but for the last one if there is a `mismatch`, which is
    its position.
    """

    decided: Sequence[int] = ()
    mismatch: int | None = None
    is_news: bool = True  # False for a frame of a line that is over


class ReceivedLine:
    """Tokens from `start` on, of the newest base."""

    def __init__(self) -> None:
        self.base = -1  # the text that the line continues, by its length; -1 before the first frame
        self.start = 0  # the position of the first token that is kept
        # From `start` on without a gap; the lists below have one entry each.
        self.token_ids: list[int] = []
        self.confidences: list[int] = []
        self.rows: list[Distribution] = []
        self.candidates: list[Candidates] = []
        self._dead = -1  # frames of this base or an older one are of a line that was left
        self._compared = 0  # the position up to which it was compared with the text
        self._early: dict[int, int] = {}  # by position: tokens before a gap, not yet compared

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.token_ids)

    def add(self, frame: Frame, committed: Sequence[int]) -> Compared:
        """Take in a frame; older bases, repeats and dropped lines change nothing."""
        if frame.base <= self._dead or frame.base < self.base or frame.base > len(committed):
            return Compared(is_news=False)
        if frame.base > self.base:
            self.base = frame.base
            self._early.clear()
            self._begin(frame.position)
        if frame.position > self.end:
            # A frame between was lost: what follows it stands as long as what came before does.
            self._early.update(enumerate(self.token_ids, self.start))
            self._begin(frame.position)
        self._early.update(zip(range(frame.position, self.start), frame.token_ids, strict=False))
        fresh = max(0, self.end - frame.position)
        count = len(frame.token_ids)
        self.token_ids += frame.token_ids[fresh:]
        known = frame.confidences[:count]
        self.confidences += [*known, *bytes(count - len(known))][fresh:]
        self.rows += frame.rows[fresh:]
        self.candidates += frame.candidates[fresh:]
        return self.compare(committed)

    def _begin(self, position: int) -> None:
        self.start = position
        self.token_ids, self.confidences = [], []
        self.rows, self.candidates = [], []
        self._compared = position

    def compare(self, committed: Sequence[int]) -> Compared:
        """Drop the line, and its base for good, at its first mismatch with the text."""
        for position in sorted(self._early):
            if position < len(committed) and self._early.pop(position) != committed[position]:
                self.drop()
                return Compared(mismatch=position)
        first = self._compared - self.start
        self._compared = max(self._compared, min(self.end, len(committed)))
        for i in range(first, self._compared - self.start):
            if self.token_ids[i] != committed[self.start + i]:
                decided = self.confidences[first : i + 1]
                self.drop()
                return Compared(decided, self.start + i)
        return Compared(self.confidences[first : self._compared - self.start])

    def drop(self) -> None:
        """Forget the line; later frames of its base are ignored."""
        self._dead = max(self._dead, self.base)
        self._early.clear()
        self._begin(self.start)

    def agreed(self, committed: Sequence[int], sent: int) -> int:
        """Return how much of the committed text the draft has, by what it was sent and drafted.

        Behind a gap in its frames nobody knows what it drafted.
        """
        return sent if self.start > sent else max(sent, min(len(committed), self.end))

    def after(self, length: int) -> slice:
        """Return where the guesses for positions `length` and later are."""
        return slice(max(0, length - self.start), None) if self.start <= length else slice(0, 0)

    def line_after(self, length: int) -> Line:
        """Return the guesses for positions `length` and later."""
        part = self.after(length)
        return Line(
            self.token_ids[part], self.confidences[part], self.rows[part], self.candidates[part]
        )
