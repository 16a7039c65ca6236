"""What went wrong at the targets of one text since it last grew, and when that is enough. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

from orchestrator.core.routing import MOST_BUSY

_MOST_MISSING = 16
"""Answers in a row that a target does not hold the text: each is sent the whole of it again."""

_MOST_DROPPED = 64
"""Answers that bring nothing of a round, not even a reason to wait, since the text grew."""

_MOST_IDLE = 2048
"""Messages that say nothing new: what a target had written on by itself, and all of it twice."""

_IDLE_FORGIVEN = 32
"""Of them, by each message that makes the text grow."""

MOST_FAULTS = 4
"""Answers of no sense, or refusals, after which a text ends where no other target may write it."""

MOST_FAILURES = 10
"""Faults after which it ends where one may, and failures that may pass by themselves."""

T = TypeVar("T")


class TargetFaults(Generic[T]):
    """Counts what targets do that they should not; what is committed is right all the same."""

    def __init__(self) -> None:
        self.distrusted: list[T] = []
        """Those that sent what makes no sense, or refused the text, since it last grew."""
        self._count = 0  # of such faults
        self._length = -1  # of the text at the newest of them
        self._missing = 0  # answers since the text grew that say it is not held
        self._dropped = 0  # answers since the text grew that bring nothing
        self._idle = 0  # messages that said nothing new, and are not forgiven
        self._refusals = 0  # of the text, each by a target that blamed who asks for it
        self._busy = (0, 0)  # answers that say there is no room, after so many rounds

    def note_growth(self) -> None:
        """A target made the text grow."""
        self._missing = self._dropped = 0
        self._idle = max(0, self._idle - _IDLE_FORGIVEN)

    def note_idle(self) -> bool:
        """A target said nothing new; return whether it does so without end."""
        self._idle += 1
        return self._idle > _MOST_IDLE

    def note_missing(self, is_asked_again: bool) -> bool:
        """A target does not hold the text; return whether it will never do so.

        It counts where a round is asked again for it: others may have rested on the same loss.
        """
        self._missing += is_asked_again
        return self._missing > _MOST_MISSING

    def note_dropped(self) -> bool:
        """A target let a round fall, or said so; return whether it does nothing else."""
        self._dropped += 1
        return self._dropped > _MOST_DROPPED

    def doubts(self, is_changed: bool) -> bool:
        """A target refused the text for good, where another one may take it; return if it may.

        It may where the first one hosts another model by now; else what both refuse is refused.
        """
        self._refusals += not is_changed
        return is_changed or self._refusals < 2

    def note_busy(self, rounds: int) -> bool:
        """A target has no room after so many rounds; return whether another one should write."""
        before, count = self._busy
        self._busy = rounds, count + 1 if rounds == before else 1
        return not rounds or self._busy[1] >= MOST_BUSY

    def forget_busy(self, rounds: int) -> None:
        """Another target writes from now on."""
        self._busy = rounds, 0

    def note_fault(self, target: T, length: int) -> int:
        """A target made no sense after a text of `length` tokens; return how many have there."""
        if length != self._length:
            self.distrusted, self._count, self._length = [], 0, length
        if target not in self.distrusted:
            self.distrusted.append(target)
        self._count += 1
        self._missing = self._dropped = self._idle = 0
        return self._count
