"""Which of several targets of equal weights writes a text: where it should end first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_BUSY = 3
"""Answers in a row that a target has no room, after which a text continues at another one."""

MOST_PASSED_OVER = 256
"""Leases of others after which an idle target is tried again, since what is known may be old."""

_TEXT_TOKENS = 128
"""Tokens that a text is taken to have, where what they cost is compared with reading its prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOffer:
    """What is known of a target that a text could be written at."""

    session_count: int  # that it can hold at the same time
    generation_count: int  # that are there now
    unread_count: int  # tokens of their prompts that it has still to read
    prompt_count: int  # tokens of the text before it is continued
    cached_count: int  # of these, what it probably holds
    read_seconds: float  # of each token that it reads
    token_seconds: float  # of each token that it writes, as many texts as now and this one at once
    is_busy: bool = False  # it said lately that it has no room
    passed_over: int = 0  # leases of others since its own last one

    @property
    def queue_seconds(self) -> float:
        """The time until it begins to read: prompts before it, and texts that have to end."""
        waiting = self.generation_count - self.session_count + 1
        ends = max(0, waiting) * _TEXT_TOKENS * self.token_seconds / self.session_count
        return self.unread_count * self.read_seconds + ends

    @property
    def expected_seconds(self) -> float:
        """The time until the text is written."""
        reading = max(1, self.prompt_count - self.cached_count) * self.read_seconds
        return self.queue_seconds + reading + _TEXT_TOKENS * self.token_seconds


def choose_target(offers: Sequence[TargetOffer]) -> int:
    """Return the index of the target to lease; of equal ones that with the fewest generations."""
    return min(range(len(offers)), key=lambda i: _rank(offers[i]))


def _rank(offer: TargetOffer) -> tuple[bool, bool, float, int]:
    is_forgotten = offer.passed_over >= MOST_PASSED_OVER and not offer.generation_count
    return offer.is_busy, not is_forgotten, offer.expected_seconds, offer.generation_count


def weights_served(current: bytes, hosted: Sequence[bytes]) -> bytes:
    """Return the identity of the weights that a pool serves, empty before any is known.

    `current` is what was written with, empty before there was a text; `hosted` is what each target
    hosts, or hosted last, in their order. Weights stay for as long as any target has them: one that
    comes with others does not write, rather than that one chat were written by two models.
    """
    if current and current in hosted:
        return current
    return next((identity for identity in hosted if identity), current)
