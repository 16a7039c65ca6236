"""What was received of one line of the draft, from where it leaves another one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.distribution import Distribution
from outrider.messages import Candidates


class LinePart:
    """Tokens from `start` on without a gap; what came with them has an entry for each.

    A runner-up line starts at its `fork`, with another token than its `parent` has there.
    """

    def __init__(
        self, start: int, fork: int = 0, parent: LinePart | None = None, number: int = 0
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
        self, root: LinePart, position: int
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
