"""The lines that a draft writes in case its own is wrong: where they leave it, which last. Pure.

Every drafted token has runner-ups. Those that are likely enough to be the target's, given that all
before them are, wait for a line of their own; of what waits and what may be extended the likeliest
comes first, so that the time that a draft has to spare goes where a miss is likeliest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.core.line_worth import HOPELESS
from outrider.messages import MAX_LINES, RunnerUp

_MOST_LINES = 63
"""Runner-up lines that are kept: those that are likeliest to continue."""

_MOST_WAITING = 128
"""Runner-ups without a line, of which the likeliest are kept."""

Chances = Sequence[tuple[int, float]]
"""A drafted token and its runner-ups, each with the chance to be right if all before it are."""


@dataclass(slots=True, eq=False)
class RunnerUpLine:
    """A runner-up line: the text, what it shares with its parent, and its own tokens."""

    number: int
    parent: int
    fork: int
    token_ids: list[int]
    chances: list[float]  # of its tokens from the base on, each if those before it are right
    unsent: list[tuple[int, int]]  # its last tokens, each with its confidence
    survival: float  # the chance of all its tokens that the text has not decided
    is_over: bool = False  # nothing is to follow it
    is_taken: bool = False  # it is being extended


@dataclass(slots=True, eq=False)
class _RunnerUp:
    """A runner-up without a line."""

    parent: int
    position: int
    token_id: int
    token_ids: Sequence[int]  # before it, from the base on
    chances: Sequence[float]  # with its own
    survival: float


@dataclass(slots=True)
class RunnerUps:
    """The runner-up lines of one line, which starts over at `base`."""

    split_chance: float = 0.0  # from which a runner-up gets a line
    base: int = 0
    number: int = 0  # of the line itself
    adopted: RunnerUpLine | None = None  # what the line continues with, if that is not number 0
    _before: list[int] = field(default_factory=list)  # the text up to the base
    _chances: list[float] = field(default_factory=list)  # of its tokens from the base on
    _branches: list[RunnerUpLine] = field(default_factory=list)
    _waiting: list[_RunnerUp] = field(default_factory=list)
    _length: int = 0  # of the committed text
    _newest: int = 0  # number

    # --- the text ---

    def start_over(self, text: Sequence[int]) -> None:
        """Forget everything: the line starts over after a text, which is its base."""
        self._before = list(text)
        self.base = self._length = len(text)
        self.number = self._newest = 0
        self._chances, self._branches, self._waiting, self.adopted = [], [], [], None

    def follow(self, text: Sequence[int]) -> None:
        """Forget what the text contradicts, while the line itself agrees with it."""
        length = self._length = len(text)
        after = list(text[self.base :])  # all lines agree before that; a text may be long
        self._branches = [b for b in self._branches if b.token_ids[self.base : length] == after]
        live = {self.number, *(each.number for each in self._branches)}
        self._waiting = [
            each for each in self._waiting if each.position >= length and each.parent in live
        ]
        undecided: list[RunnerUpLine | _RunnerUp] = [*self._branches, *self._waiting]
        for item in undecided:
            item.survival = self._survival(item.chances)

    def adopt(self, text: Sequence[int]) -> RunnerUpLine | None:
        """Return the runner-up line that a text continues with, which becomes the line itself."""
        length, after = len(text), list(text[self.base :])
        if list(text[: self.base]) != self._before[:length]:
            return None
        its = (b for b in self._branches if b.token_ids[self.base : length] == after)
        if (found := next(its, None)) is not None:
            self.number, self._chances, self.adopted = found.number, found.chances, found
            self._branches.remove(found)
            self.follow(text)
        return found

    # --- growing ---

    def note(self, token_ids: Sequence[int], chances: Chances) -> None:
        """The line was extended by its last token; these are its chances, if they are known."""
        self._wait(self.number, token_ids, self._chances, chances[1:])
        self._chances.append(_own(chances))

    def _wait(
        self, line: int, token_ids: Sequence[int], before: list[float], runner_ups: Chances
    ) -> None:
        """Let the runner-ups of a line's last token wait; `before` are the chances before it."""
        for token_id, chance in runner_ups:
            if chance < self.split_chance or token_id == token_ids[-1]:
                continue
            chances = [*before, chance]
            if (survival := self._survival(chances)) >= HOPELESS:
                position = len(token_ids) - 1
                waiting = _RunnerUp(
                    line, position, token_id, token_ids[self.base : -1], chances, survival
                )
                self._waiting.append(waiting)
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.sort(key=lambda each: -each.survival)
            del self._waiting[_MOST_WAITING:]

    def extend(
        self, branch: RunnerUpLine, token_id: int, confidence: int, chances: Chances
    ) -> None:
        """Add a token to a runner-up line, unless that was contradicted or taken over meanwhile."""
        branch.is_taken = False
        if branch not in self._branches:
            return
        branch.token_ids.append(token_id)
        branch.unsent.append((token_id, confidence))
        self._wait(branch.number, branch.token_ids, branch.chances, chances[1:])
        own = _own(chances)
        branch.chances.append(own)
        branch.survival *= own

    def take(self, until: int) -> RunnerUpLine | None:
        """Return the runner-up line to extend next, at most to `until` tokens; None: no more pays.

        A runner-up that was waiting gets its line now; that costs a decode like any token.
        """
        best = max(self._work(until), key=lambda each: each.survival, default=None)
        if isinstance(best, _RunnerUp):
            best = self._begin(best)
        if best is not None:
            best.is_taken = True
        return best

    def work_count(self, until: int) -> int:
        """Return how many runner-up lines could be extended at once, at most to `until` tokens."""
        return len(self._work(until))

    def _work(self, until: int) -> list[RunnerUpLine | _RunnerUp]:
        """Return what may be extended and is likely enough."""
        free: list[RunnerUpLine | _RunnerUp] = [
            each
            for each in self._branches
            if not (each.is_over or each.is_taken) and len(each.token_ids) < until
        ]
        free += [each for each in self._waiting if each.position < until - 1]
        return [each for each in free if each.survival > HOPELESS]

    def _begin(self, waiting: _RunnerUp) -> RunnerUpLine:
        self._waiting.remove(waiting)
        self._newest += 1
        branch = RunnerUpLine(
            number=self._newest,
            parent=waiting.parent,
            fork=waiting.position,
            token_ids=[*self._before, *waiting.token_ids, waiting.token_id],
            chances=list(waiting.chances),
            unsent=[(waiting.token_id, int(255 * waiting.chances[-1]))],
            survival=waiting.survival,
        )
        self._branches.append(branch)
        if len(self._branches) > _MOST_LINES:
            free = [each for each in self._branches if not each.is_taken and each is not branch]
            self._branches.remove(min(free, key=lambda each: each.survival))
        return branch

    def _survival(self, chances: Sequence[float]) -> float:
        """Return the chance of a token that is not decided yet, with all before it."""
        return math.prod(chances[self._length - self.base :])

    # --- sending ---

    @property
    def unsent_count(self) -> int:
        """Tokens of runner-up lines that were not sent."""
        return sum(len(each.unsent) for each in self._branches)

    def take_unsent(self) -> list[RunnerUp]:
        """Return what was not sent of the lines, parents first, as sent now."""
        pieces = []
        for branch in self._branches:
            if branch.unsent:
                position = len(branch.token_ids) - len(branch.unsent)
                piece, branch.unsent = branch.unsent[:MAX_LINES], branch.unsent[MAX_LINES:]
                ids = [token_id for token_id, _ in piece]
                confidences = bytes(confidence for _, confidence in piece)
                pieces.append(
                    RunnerUp(branch.number, branch.parent, branch.fork, position, ids, confidences)
                )
        return pieces


def _own(chances: Chances) -> float:
    """Return the chance of a drafted token; one of which none is said was taken as a sure one."""
    return chances[0][1] if chances else 1.0
