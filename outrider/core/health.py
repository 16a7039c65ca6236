"""Whether a peer is used, and how long an answer of it is waited for. Pure.

A peer is a draft or a target, dialled or joined: the rules are the same. It fails by sending what
cannot be; a target, too, by decoding nothing, or by losing a text while it says that it serves. How
quick it is decides where a text goes, and is no failure. Times are seconds of the caller's clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto

TIMEOUT = 20.0
"""Seconds in which an engine decodes nothing before it is stuck, unless `--target-timeout` says
otherwise. 512 tokens of a prompt are one decode, which takes 7 s at the 70 tokens/s of a slow CPU.
"""

LOOK_SECONDS = 1.0
"""Seconds between two looks at how long an answer has been waited for: 5 % of the timeout."""

FIRST_EJECTION, LONGEST_EJECTION = 5.0, 300.0
"""Seconds; doubled from the one to the other, and short again after twice the longest without a
failure. A trial costs one text a timeout at most, which is 7 % of the longest; Envoy's longest
ejection is of 300 s, too."""

_SLACK = 8.0
"""Times what an answer should take, before it is late. Four rows took 6.8 times as long beside a
busy draft on the same two cores."""

MOST_FAILURES = 8
"""Failures of a text's targets in a row, without a token between them, before the text ends. The
pauses between them are some 8 s together, so that a failure that passes does not end it."""


class State(Enum):
    """Of a circuit breaker."""

    CLOSED = auto()  # used
    OPEN = auto()  # ejected for a while
    HALF_OPEN = auto()  # one text tries whether it works again


class Health:
    """A circuit breaker for one peer, with exponential back-off."""

    def __init__(self) -> None:
        self.reason = ""  # of the newest ejection, for people
        self.ejections = 0  # in a row
        self._until = -math.inf  # the end of the newest ejection
        self._is_tried = False  # it has not brought anything right since then

    def state(self, now: float) -> State:
        """Return whether the peer is used."""
        if now < self._until:
            return State.OPEN
        return State.HALF_OPEN if self._is_tried else State.CLOSED

    def seconds_left(self, now: float) -> float:
        """Return for how many more seconds it is ejected; 0 if it is not."""
        return max(0.0, self._until - now)

    def admits(self, now: float, text_count: int) -> bool:
        """Return whether another text may go there, where so many are."""
        state = self.state(now)
        return state is State.CLOSED or (state is State.HALF_OPEN and not text_count)

    def note_failure(self, now: float, reason: str) -> None:
        """It failed. What it was asked for before it was ejected says nothing new."""
        if now < self._until:
            return
        if now > self._until + 2.0 * LONGEST_EJECTION:
            self.ejections = 0
        self._until = now + doubled(FIRST_EJECTION, self.ejections, LONGEST_EJECTION)
        self.ejections += 1
        self.reason, self._is_tried = reason, True

    def note_success(self) -> None:
        """It brought what it was asked for."""
        self._is_tried = False


def doubled(first: float, times: int, longest: float) -> float:
    """Return seconds doubled so many times, `longest` at most, however many times that is."""
    return min(longest, first * 2.0 ** min(times, 64))  # 2.0**1024 is an error


def admitted(peers: Sequence[tuple[Health, int]], now: float) -> list[int]:
    """Return the indices of those that may get another text, at least half of them.

    `peers` are healths and how many texts each has. However all behave, somebody has to write.
    """
    well = [health.admits(now, text_count) for health, text_count in peers]
    order = sorted(range(len(peers)), key=lambda i: (not well[i], peers[i][0].seconds_left(now)))
    return sorted(order[: max(-(-len(peers) // 2), sum(well))])


# --- silence ---


class Silence:
    """For how many seconds something that is looked at now and then has said nothing.

    What passes while this process is stopped hardly counts: what was said meanwhile is unread.
    """

    def __init__(self, look_seconds: float) -> None:
        """It is looked at about as often."""
        self.seconds = 0.0
        self._most = 2.0 * look_seconds  # that one look may count
        self._time: float | None = None  # of the newest look; None where nobody waits

    def note_look(self, now: float) -> None:
        """It has said nothing since the look before."""
        if self._time is not None:
            self.seconds += min(max(0.0, now - self._time), self._most)
        self._time = now

    def note_unknown(self, now: float) -> None:
        """Nothing is known of the time since the look before."""
        self._time = now

    def note_word(self) -> None:
        """It said something."""
        self.seconds = 0.0

    def end(self) -> None:
        """Nobody waits for it, until it is looked at again."""
        self.seconds, self._time = 0.0, None


class Overdue(Enum):
    """Why an answer is not waited for any longer."""

    STUCK = auto()  # its engine decodes nothing: the peer is ejected, and the text goes elsewhere
    LATE = auto()  # what was asked may be lost: it is asked again, at another peer if there is one


def overdue(
    waited: float, idle: float, timeout: float, *, decode: float, answer: float, tries: int = 0
) -> Overdue | None:
    """Return why an answer that was waited for is overdue; None where it is not.

    `idle` is for how long the engine has decoded nothing, `decode` what its decode in flight should
    take, `answer` the whole answer, its queue included. An engine that works may have the texts
    of others to answer first, so an answer is late only after twice the time in which an idle
    engine is stuck; and after twice as much each of the `tries` before.
    """
    if min(waited, idle) > max(timeout, _SLACK * decode):
        return Overdue.STUCK
    late = doubled(2.0 * max(timeout, _SLACK * answer), tries, math.inf)
    return Overdue.LATE if waited > late else None
