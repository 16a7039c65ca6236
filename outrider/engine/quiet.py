"""When to measure what is due: after some quiet, and longer after each try that failed. Pure."""

from __future__ import annotations

_LONGEST = 3600.0  # seconds of quiet that are asked for at most, so that what is due stays possible


class QuietTries:
    """How long nobody must have asked for anything before the next try. Times are seconds."""

    def __init__(self, first: float, later: float) -> None:
        """`first`: of a fresh engine; `later`: once it had work or a try failed."""
        self._later = later
        self._pause = first

    def due(self, used_time: float) -> float:
        """Return when to try, if nothing was asked for since `used_time`, of the same clock."""
        return used_time + self._pause

    def note_work(self) -> None:
        """Note that there was a job: what is cached is worth something from now on."""
        self._pause = max(self._pause, self._later)

    def note_failure(self) -> None:
        """Note that a try found others at work, or somebody came: they may do so again."""
        longest = max(_LONGEST, self._later)
        self._pause = min(longest, max(2.0 * self._pause, self._later))
