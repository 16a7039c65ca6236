"""Who may generate next, and when to ask again. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.core.rates import Mean
from outrider.errors import RETRY_SECONDS

_MOST_WAIT_SECONDS = 600.0

_IDLE_SECONDS = 1.0
"""s; a text is being written for so long after a row, or for twice as long as the row took: after
that it waits for its client or for a sequence. No row that is not of a prompt takes as long;
`tests/services/test_stalled_readers.py` has a reader that stands still."""


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
    """How long generations take, from those that are over; 0 before the first."""

    seconds: Mean = field(default_factory=lambda: Mean(0.0))

    def note(self, seconds: float) -> None:
        """Take in how long a generation took."""
        self.seconds.note(seconds)

    def wait_seconds(self, running_count: int) -> float:
        """Return when one of so many that run is expected to end, in [1, 600]."""
        expected = self.seconds.value / max(1, running_count)
        return min(max(expected, RETRY_SECONDS), _MOST_WAIT_SECONDS)


@dataclass(slots=True)
class Writers:
    """The texts that are being written, or whose prompt is read, by when their newest rows came.

    Others in flight take no part in decodes, and no drafts should be shorter because of them.
    """

    _last: dict[Hashable, tuple[float, float]] = field(default_factory=dict)

    def note(self, text: Hashable, now: float) -> None:
        """A text begins, or rows of it came."""
        before = self._last.get(text)
        longest = math.inf if before is None else max(_IDLE_SECONDS, 2.0 * (now - before[0]))
        self._last[text] = now, longest

    def remove(self, text: Hashable) -> None:
        """A text is over."""
        self._last.pop(text, None)

    def count(self, now: float) -> int:
        """Return how many are being written."""
        return sum(now - last <= longest for last, longest in self._last.values())
