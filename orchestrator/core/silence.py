"""When a target that leaves a round unanswered has had enough time, by what it still does. Pure.

The link to it is alive: one that is not ends its streams by itself. So its engine may be stuck, and
then nothing is decoded for anybody. Or it works, and this round is queued, or was lost on the way.
Slow is neither: an engine that decodes is waited for, several times as long as its queue, the whole
text and a hundred tokens should take, and then it is only asked once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

LEAST_SECONDS = 20.0
"""A target that decodes nothing has at least this long, unless something else is configured."""

LOOK_SECONDS = 1.0
"""Between two looks of a generation at what it waits for."""

BATCH_TOKENS = 512
"""Of the longest decode, unless a target is started with more: until it ends, nothing shows."""

_SEVERAL = 8.0  # times what is expected: a machine that others use, or that is hot, is slow
_MOST_GAP = 10.0  # seconds that one pair of looks may count: this process may have been stopped
_LEAST_TO_ASK = 3.0  # times the least time, before a target that works is asked once more


class EngineSigns:
    """For how long an engine was not seen to decode anything, by what it counts. In seconds."""

    def __init__(self) -> None:
        self.still = 0.0
        """Up to the newest look. An idle engine is still, too."""
        self._counts: Sequence[int] = ()  # of the newest look that was answered
        self._time: float | None = None  # of the newest look; None before the first

    def note_look(self, now: float, counts: Sequence[int]) -> None:
        """It says that it has done so much."""
        if tuple(counts) != self._counts:
            self._counts, self._time, self.still = tuple(counts), now, 0.0
        else:
            self.note_silent(now)

    def note_silent(self, now: float) -> None:
        """It did not even say what it does, though there is a connection."""
        self.still += _gap(self._time, now)
        self._time = now

    def note_blind(self, now: float) -> None:
        """Nothing is known of the time since the look before."""
        self._time = now


class RoundWait:
    """How long a generation has waited for its target's next word, in seconds.

    What passes while this process does not run, or nobody takes the text, hardly counts: what the
    target said meanwhile was not read yet.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.asked_again = 0
        """How often a target was asked once more, since rows came."""
        self._time: float | None = None  # of the newest look; None where nothing was in flight

    def note_look(self, now: float, is_waiting: bool) -> None:
        """The time is `now`; a round is in flight, or none is."""
        if is_waiting:
            self.seconds += min(_gap(self._time, now), 2.0 * LOOK_SECONDS)
            self._time = now
        else:
            self.seconds, self._time = 0.0, None

    def note_word(self) -> None:
        """The target said something of the round."""
        self.seconds = 0.0

    def note_rows(self) -> None:
        """The target answered."""
        self.seconds, self.asked_again = 0.0, 0

    def note_asked_again(self) -> None:
        """The round goes out once more."""
        self.seconds, self.asked_again = 0.0, self.asked_again + 1


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of a target that has a round to answer, in seconds."""

    decode: float  # the longest decode that there may be, of a prompt
    answer: float  # until the answer: its queue, the whole text to read, and some tokens
    is_full: bool = False  # more texts are open there than it has room for: some wait for others


class Fate(Enum):
    """What becomes of a round that waits."""

    WAIT = auto()
    ASK_AGAIN = auto()  # the target works, and may have lost it
    GIVE_UP = auto()  # the target's engine is stuck


def is_stuck(wait: RoundWait, still: float, least: float, expected: Expected) -> bool:
    """Say whether an engine that was `still` for so many seconds is so for too long."""
    return min(wait.seconds, still) > max(least, _SEVERAL * expected.decode)


def is_late(wait: RoundWait, least: float, expected: Expected | None) -> bool:
    """Say whether another target is worth asking, if there is one: this one may be only slow.

    `expected` is None for what no engine has to answer.
    """
    enough = _enough(least, expected) if expected is not None else least
    return wait.seconds > enough * 2.0**wait.asked_again


def judge(wait: RoundWait, still: float, least: float, expected: Expected) -> Fate:
    """Say what becomes of a round, at a target whose engine was `still` for so many seconds."""
    if is_stuck(wait, still, least, expected):
        return Fate.GIVE_UP
    enough = _enough(least, expected) * 2.0**wait.asked_again
    if wait.seconds > enough and still < least and not expected.is_full:
        return Fate.ASK_AGAIN
    return Fate.WAIT


def _enough(least: float, expected: Expected) -> float:
    return max(_LEAST_TO_ASK * least, _SEVERAL * expected.answer)


def _gap(before: float | None, now: float) -> float:
    return 0.0 if before is None else min(max(0.0, now - before), _MOST_GAP)
