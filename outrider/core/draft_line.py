"""The draft's line as the orchestrator received it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from outrider.distribution import Distribution
from outrider.messages import Candidates, Frame, RunnerUp

T = TypeVar("T")


class NumberedLine:
    """Tokens from `start` on without a gap; what came with them has an entry for each.

    A runner-up line starts at its `fork`, with another token than its `parent` has there.
    """

    def __init__(
        self, start: int, fork: int = 0, parent: NumberedLine | None = None, number: int = 0
    ) -> None:
        self.start = start
        self.number = number  # as the draft counts its lines; 0 is the one it started over with
        self.token_ids: list[int] = []
        self.confidences: list[int] = []
        self.rows: list[Distribution] = []
        self.candidates: list[Candidates] = []
        self.fork = fork
        self.parent = parent
        # The position up to which it was compared with the text. A runner-up line is looked at
        # where the text has its first token, which says nothing of what the draft thinks best.
        self._compared = start if parent is None else fork + 1
        self._early: dict[int, int] = {}  # by position: tokens before a gap, not yet compared

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.token_ids)

    def add(
        self,
        position: int,
        token_ids: Sequence[int],
        confidences: bytes,
        candidates: Sequence[Candidates] = (),
        rows: Sequence[Distribution] = (),
    ) -> None:
        """Take in a piece; what is known already changes nothing."""
        if position > self.end:
            # A piece between was lost: what follows it stands as long as what came before does.
            self._early.update(enumerate(self.token_ids, self.start))
            self.start = position
            self.token_ids, self.confidences = [], []
            self.rows, self.candidates = [], []
            self._compared = max(position, self.fork + 1) if self.parent else position
        self._early.update(zip(range(position, self.start), token_ids, strict=False))
        fresh, count = max(0, self.end - position), len(token_ids)
        self.token_ids += token_ids[fresh:]
        known = confidences[:count]
        self.confidences += [*known, *bytes(count - len(known))][fresh:]
        self.rows += rows[fresh:]
        self.candidates += candidates[fresh:]

    def compare(self, committed: Sequence[int]) -> tuple[Sequence[int], int | None]:
        """Return the confidences of the tokens compared for the first time, and a mismatch.

        All of these agree but for the last one where there is a mismatch, which is its position.
        """
        for position in sorted(self._early):
            if position < len(committed) and self._early.pop(position) != committed[position]:
                return (), position
        first = max(0, self._compared - self.start)
        self._compared = max(self._compared, min(self.end, len(committed)))
        for i in range(first, self._compared - self.start):
            if self.token_ids[i] != committed[self.start + i]:
                return self.confidences[first : i + 1], self.start + i
        return self.confidences[first : max(first, self._compared - self.start)], None

    def agrees(self, committed: Sequence[int], until: int) -> bool:
        """Return whether it and what it leaves agree with the text before a position."""
        end = min(self.end, until, len(committed))
        own = self.token_ids[: max(0, end - self.start)]
        if own != list(committed[self.start : self.start + len(own)]):
            return False
        return self.parent is None or self.parent.agrees(committed, min(self.fork, until))

    def confidence(self, position: int) -> int:
        """Return how sure the draft was of its token at a position; 0 where that is not known."""
        index = position - self.start
        return self.confidences[index] if 0 <= index < len(self.confidences) else 0

    def path_from(
        self, root: NumberedLine, position: int
    ) -> tuple[list[int], list[int], list[int]] | None:
        """Return the tokens from a position on of what leads here from a root.

        And beside them their confidences, and the number of the line that each is of.

        None where it leaves that before the position, or not at all, and where there is a gap.
        """
        if self is root:
            if position < self.start:
                return None
            ids = self.token_ids[position - self.start :]
            confidences = self.confidences[position - self.start :]
            return ids, confidences, [self.number] * len(ids)
        if self.parent is None or not position <= self.fork == self.start:
            return None
        before = self.parent.path_from(root, position)
        count = self.fork - position
        if before is None or len(before[0]) < count or not self.token_ids:
            return None
        ids, confidences, numbers = (each[:count] for each in before)
        own = [self.number] * len(self.token_ids)
        return ids + self.token_ids, confidences + self.confidences, numbers + own


@dataclass(frozen=True, slots=True)
class Line:
    """Draft tokens for a round. What came with them has an entry for each of them, or none."""

    token_ids: Sequence[int] = ()
    confidences: Sequence[int] = ()
    rows: Sequence[Distribution] = ()
    candidates: Sequence[Candidates] = ()
    sources: Sequence[str] = ()  # who proposed each; none: the draft model
    numbers: Sequence[int] = ()  # of the draft's line that each is of; none: its first line

    def first(self, count: int) -> Line:
        """Return its first tokens."""
        return Line(
            self.token_ids[:count],
            self.confidences[:count],
            self.rows[:count],
            self.candidates[:count],
            self.sources[:count],
            self.numbers[:count],
        )

    def picked(self, places: Sequence[int]) -> Line:
        """Return its tokens at these places, one after the other."""

        def at(values: Sequence[T]) -> Sequence[T]:
            return [values[place] for place in places] if values else ()

        return Line(
            at(self.token_ids),
            at(self.confidences),
            at(self.rows),
            at(self.candidates),
            at(self.sources),
            at(self.numbers),
        )


@dataclass(frozen=True, slots=True)
class ForkedLine:
    """A line of the draft after the text, which leaves another one within it.

    Of the token where it leaves that it has `fork`, its index, and `share`: what the draft gives
    it of the chance that it gives none of the lines before.
    """

    line: Line
    fork: int
    share: float


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of comparing the line with the text.

    `decided` are the confidences of the tokens compared for the first time.
    All of them agree, but for the last one if there is a `mismatch`, which is
    its position. Where it was foreseen, the text continues with a runner-up line; `after` are
    the confidences of its tokens that the text has already, after the correction.
    """

    decided: Sequence[int] = ()
    mismatch: int | None = None
    is_news: bool = True  # False for a frame of a line that is over
    foreseen: bool = False
    after: Sequence[int] = ()
    left: Sequence[int] = ()  # and of those that follow the text


_MOST_LINES = 64
"""Lines of a base that are kept at most."""


_MOST_GONE = 256


class ReceivedLine:
    """Tokens from `start` on, of the newest base, and the lines that leave them.

    The text decides which of the lines continues: the others are kept until it contradicts them.
    """

    def __init__(self) -> None:
        self.base = -1  # the text that the line continues, by its length; -1 before the first frame
        self.may_fork = False  # the draft was asked for runner-up lines: it may have changed over
        # The one that the text continues with; empty where there is none.
        self._line = NumberedLine(0)
        self._number = 0  # of that line
        self._lines: dict[int, NumberedLine] = {0: self._line}  # of all lines, by number
        self._gone: dict[int, None] = {}  # numbers of lines that were contradicted, the latest ones
        self._dead = -1  # frames of this base or an older one are of a line that was left
        self._is_lost = False  # no line is known that the text continues with, but one may come

    @property
    def start(self) -> int:
        """The position of the first token that is kept."""
        return self._line.start

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self._line.end

    @property
    def token_ids(self) -> list[int]:
        """The tokens from `start` on, without a gap."""
        return self._line.token_ids

    @property
    def confidences(self) -> list[int]:
        """One for each of them."""
        return self._line.confidences

    def add(self, frame: Frame, committed: Sequence[int]) -> Compared:
        """Take in a frame; older bases, repeats and dropped lines change nothing."""
        if frame.base <= self._dead or frame.base < self.base or frame.base > len(committed):
            return Compared(is_news=False)
        if frame.base > self.base:
            self.base = frame.base
            self._begin(frame.position)
        part = self._line_of(frame, committed)
        part.add(frame.position, frame.token_ids, frame.confidences, frame.candidates, frame.rows)
        for piece in frame.runner_ups:
            self._add_runner_up(piece, committed)
        if self._is_lost:
            return Compared(self._find(committed) or (), is_news=not self._is_lost)
        return self.compare(committed)

    def _line_of(self, frame: Frame, committed: Sequence[int]) -> NumberedLine:
        """Return the line that a frame's tokens are of; one that nobody spoke of is a new one."""
        if frame.line not in self._lines:
            if len(self._lines) >= _MOST_LINES:
                self._forget_contradicted(committed)
            if frame.line in self._gone or len(self._lines) >= _MOST_LINES:
                return NumberedLine(frame.position)
            self._lines[frame.line] = NumberedLine(frame.position, number=frame.line)
        return self._lines[frame.line]

    def _add_runner_up(self, piece: RunnerUp, committed: Sequence[int]) -> None:
        """Take in a piece of a runner-up line.

        A new one is ignored without its first token, where too many are known, and where its parent
        is not: unless the text has decided where it leaves that, which may be why nobody does.
        """
        part = self._lines.get(piece.line)
        if part is None:
            if len(self._lines) >= _MOST_LINES:
                self._forget_contradicted(committed)
            parent = self._lines.get(piece.parent)
            is_known = parent is not None or piece.fork < len(committed)
            is_known &= piece.position == piece.fork and piece.line not in self._gone
            if not (self.may_fork and is_known) or len(self._lines) >= _MOST_LINES:
                return
            part = NumberedLine(piece.position, piece.fork, parent, piece.line)
            self._lines[piece.line] = part
        part.add(piece.position, piece.token_ids, piece.confidences)

    def _begin(self, position: int) -> None:
        """Begin with a line of the base, or with none."""
        self._number, self._line = 0, NumberedLine(position)
        self._lines, self._gone = {0: self._line}, {}
        self._is_lost = False

    def compare(self, committed: Sequence[int]) -> Compared:
        """Go over to a runner-up line at the line's first mismatch with the text.

        Where there is none, and none may come, the line is dropped, and its base for good.
        """
        decided, mismatch = self._line.compare(committed)
        if mismatch is None:
            return Compared(decided)
        if not self.may_fork:
            self.drop()
            return Compared(decided, mismatch)
        self._is_lost, self._line = True, NumberedLine(self.start)
        after = self._find(committed)
        left = self.confidences[self.after(len(committed))] if after is not None else ()
        return Compared(decided, mismatch, True, after is not None, after or (), left)

    def _find(self, committed: Sequence[int]) -> Sequence[int] | None:
        """Take the line that the text continues with, if there is one.

        Returns the confidences of its tokens that the text has. Of two that agree with it, the
        one was the draft's first choice where the other leaves it. What the text contradicts is
        forgotten; what leaves such a line before that keeps hold of it.
        """
        length = len(committed)
        near = sorted(n for n, part in self._lines.items() if part.fork < length <= part.end)
        found = next((n for n in near if self._lines[n].agrees(committed, length)), None)
        if found is None:
            return None
        self._forget_contradicted(committed)
        self._number, self._line, self._is_lost = found, self._lines[found], False
        self._line.parent = None
        decided, _ = self._line.compare(committed)
        return decided

    def _forget_contradicted(self, committed: Sequence[int]) -> None:
        """Forget the lines that the text contradicts; what still comes of them is ignored."""
        length = len(committed)
        over = [n for n, part in self._lines.items() if not part.agrees(committed, length)]
        for number in over:
            del self._lines[number]
        self._gone = dict.fromkeys([*self._gone, *over][-_MOST_GONE:])

    def drop(self) -> None:
        """Forget the line; later frames of its base are ignored."""
        self._dead = max(self._dead, self.base)
        self._begin(self.start)

    def agreed(self, committed: Sequence[int], sent: int) -> int:
        """Return how much of the committed text the draft has, by what it was sent and drafted.

        After a gap in its frames nobody knows what it drafted, nor with which of its lines it
        continued after what it was sent.
        """
        if self.may_fork or self.start > sent:
            return sent
        return max(sent, min(len(committed), self.end))

    def after(self, length: int) -> slice:
        """Return where the guesses for positions `length` and later are."""
        return slice(max(0, length - self.start), None) if self.start <= length else slice(0, 0)

    def forks_after(self, length: int) -> list[ForkedLine]:
        """Return the runner-up lines that leave the line, or one another, after `length` tokens."""
        forks: list[ForkedLine] = []
        left: dict[tuple[int, ...], float] = {}  # by tokens: the chance of what may follow them
        for part in self._lines.values():
            parent = part.parent
            path = part.path_from(self._line, length)
            if parent is None or path is None:
                continue
            ids, confidences, numbers = path
            fork = part.fork - length
            before = tuple(ids[:fork])
            own, its = (confidences[fork] / 255, parent.confidence(part.fork) / 255)
            chance = left.get(before, 1.0 - its)
            forks.append(
                ForkedLine(
                    Line(ids, confidences, numbers=numbers), fork, min(1.0, own / max(0.01, chance))
                )
            )
            left[before] = chance - own
        return forks

    def line_after(self, length: int) -> Line:
        """Return the guesses for positions `length` and later."""
        part, known = self.after(length), self._line
        ids = known.token_ids[part]
        numbers = [known.number] * len(ids) if known.number else ()
        return Line(
            ids, known.confidences[part], known.rows[part], known.candidates[part], (), numbers
        )
