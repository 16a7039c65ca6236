"""The draft's line as the orchestrator received it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.line_part import LinePart
from outrider.distribution import Distribution
from outrider.messages import Candidates, Frame, RunnerUp


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
    its position. Where it was foreseen, the text goes on with a runner-up line; `after` are
    the confidences of its tokens that the text has already, behind the correction.
    """

    decided: Sequence[int] = ()
    mismatch: int | None = None
    is_news: bool = True  # False for a frame of a line that is over
    foreseen: bool = False
    after: Sequence[int] = ()


_MOST_LINES = 64
"""Lines of a base that are kept, the newest ones: those before were contradicted long ago."""


class ReceivedLine:
    """Tokens from `start` on, of the newest base, and the lines that leave them.

    The text decides which of the lines goes on: the others are kept until it contradicts them.
    """

    def __init__(self) -> None:
        self.base = -1  # the text that the line continues, by its length; -1 before the first frame
        self.may_fork = False  # the draft was asked for runner-up lines: it may have changed over
        self._part = LinePart(
            0
        )  # of the line that the text goes on with; empty where there is none
        self._number = 0  # of that line
        self._parts: dict[int, LinePart] = {0: self._part}  # of all lines, by number
        self._dead = -1  # frames of this base or an older one are of a line that was left
        self._is_lost = False  # no line is known that the text goes on with, but one may come

    @property
    def start(self) -> int:
        """The position of the first token that is kept."""
        return self._part.start

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self._part.end

    @property
    def token_ids(self) -> list[int]:
        """The tokens from `start` on, without a gap."""
        return self._part.token_ids

    @property
    def confidences(self) -> list[int]:
        """One for each of them."""
        return self._part.confidences

    @property
    def line_count(self) -> int:
        """Lines that are kept, those that were contradicted lately included."""
        return len(self._parts)

    def add(self, frame: Frame, committed: Sequence[int]) -> Compared:
        """Take in a frame; older bases, repeats and dropped lines change nothing."""
        if frame.base <= self._dead or frame.base < self.base or frame.base > len(committed):
            return Compared(is_news=False)
        if frame.base > self.base:
            self.base = frame.base
            self._begin(frame.position)
        part = self._parts.setdefault(frame.line, LinePart(frame.position))
        part.add(frame.position, frame.token_ids, frame.confidences, frame.candidates, frame.rows)
        for piece in frame.runner_ups:
            self._add_runner_up(piece)
        while len(self._parts) > _MOST_LINES:
            del self._parts[min(number for number in self._parts if number != self._number)]
        if self._is_lost:
            return Compared(self._find(committed) or (), is_news=not self._is_lost)
        return self.compare(committed)

    def _add_runner_up(self, piece: RunnerUp) -> None:
        """Take in a piece of a runner-up line; nobody knows where an unknown one comes from."""
        part = self._parts.get(piece.line)
        if part is None:
            if not (self.may_fork and piece.parent in self._parts):
                return
            part = LinePart(piece.position, piece.fork, self._parts[piece.parent])
            self._parts[piece.line] = part
        part.add(piece.position, piece.token_ids, piece.confidences, piece.candidates)

    def _begin(self, position: int) -> None:
        """Begin with a line of the base, or with none."""
        self._number, self._part = 0, LinePart(position)
        self._parts = {0: self._part}
        self._is_lost = False

    def compare(self, committed: Sequence[int]) -> Compared:
        """Go over to a runner-up line at the line's first mismatch with the text.

        Where there is none, and none may come, the line is dropped, and its base for good.
        """
        decided, mismatch = self._part.compare(committed)
        if mismatch is None:
            return Compared(decided)
        if not self.may_fork:
            self.drop()
            return Compared(decided, mismatch)
        self._is_lost, self._part = True, LinePart(self.start)
        after = self._find(committed)
        return Compared(decided, mismatch, foreseen=after is not None, after=after or ())

    def _find(self, committed: Sequence[int]) -> Sequence[int] | None:
        """Take the line that the text goes on with, if there is one.

        Returns the confidences of its tokens that the text has. Of two that agree with it, the
        one was the draft's first choice where the other leaves it. What the text contradicts is
        forgotten; what leaves such a line before that keeps hold of it.
        """
        length = len(committed)
        parts = {n: p for n, p in self._parts.items() if p.agrees(committed, length)}
        found = min((n for n, p in parts.items() if p.fork < length < p.end + 1), default=None)
        if found is None:
            return None
        self._parts = parts
        self._number, self._part, self._is_lost = found, parts[found], False
        self._part.parent = None
        decided, _ = self._part.compare(committed)
        return decided

    def drop(self) -> None:
        """Forget the line; later frames of its base are ignored."""
        self._dead = max(self._dead, self.base)
        self._begin(self.start)

    def agreed(self, committed: Sequence[int], sent: int) -> int:
        """Return how much of the committed text the draft has, by what it was sent and drafted.

        Behind a gap in its frames nobody knows what it drafted, nor with which of its lines it
        went on behind what it was sent.
        """
        if self.may_fork or self.start > sent:
            return sent
        return max(sent, min(len(committed), self.end))

    def after(self, length: int) -> slice:
        """Return where the guesses for positions `length` and later are."""
        return slice(max(0, length - self.start), None) if self.start <= length else slice(0, 0)

    def line_after(self, length: int) -> Line:
        """Return the guesses for positions `length` and later."""
        part, known = self.after(length), self._part
        return Line(
            known.token_ids[part], known.confidences[part], known.rows[part], known.candidates[part]
        )
