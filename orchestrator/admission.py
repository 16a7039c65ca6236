"""Who may generate next, and when to ask again. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

_WEIGHT = 0.2  # of the newest generation in the mean
_LEAST_WAIT = 1.0
_LONGEST_WAIT = 600.0
_SILENCE, _GAPS = 1.0, 4.0
"""Seconds without a row, and times the time between its last two, after which a text is not being
written: it is read, or waits for its client or for a sequence."""
_LONGEST_GAP = 10.0


def job_share(session_count: int) -> int:
    """Return how many of the target's sessions jobs may take at a time.

    A quarter, at least one, is left to requests that somebody waits for.
    """
    return max(1, session_count - max(1, session_count // 4))


def next_turn(waiting: Sequence[str], running: Mapping[str, int]) -> int:
    """Return which of the callers that wait, in order of arrival, is next.

    The one of whom the least runs, and of several such the first.
    """
    return min(range(len(waiting)), key=lambda i: running.get(waiting[i], 0))


@dataclass(slots=True)
class Pace:
    """How long generations take, from those that are over; `mean_seconds` is 0 before the first."""

    mean_seconds: float = 0.0

    def note(self, seconds: float) -> None:
        """Take in how long a generation took."""
        if self.mean_seconds:
            self.mean_seconds += _WEIGHT * (seconds - self.mean_seconds)
        else:
            self.mean_seconds = seconds

    def wait_seconds(self, running_count: int) -> float:
        """Return when one of so many that run is expected to end, in [1, 600]."""
        expected = self.mean_seconds / max(1, running_count)
        return min(max(expected, _LEAST_WAIT), _LONGEST_WAIT)


@dataclass(slots=True)
class Writers:
    """The texts that are being written now, by when their newest rows came.

    Others in flight take no part in decodes, and no drafts should be shorter because of them.
    """

    _last: dict[Hashable, tuple[float, float]] = field(default_factory=dict)

    def note(self, text: Hashable, now: float) -> None:
        """A text begins, or rows of it came."""
        before = self._last.get(text, (now, 0.0))[0]
        self._last[text] = now, max(_SILENCE, _GAPS * min(_LONGEST_GAP, now - before))

    def remove(self, text: Hashable) -> None:
        """A text is over."""
        self._last.pop(text, None)

    def count(self, now: float) -> int:
        """Return how many are being written."""
        return sum(now - last <= silence for last, silence in self._last.values())
