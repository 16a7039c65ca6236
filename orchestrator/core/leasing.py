"""Which of several drafts a generation leases. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_DRAFT_LENGTH = 4
"""Tokens over which the way to a draft is spread: about what one order brings."""

_TEXT_TOKENS = 128
"""Accepted tokens over which the time is spread in which a draft reads the text before them."""

MOST_PASSED_OVER = 32
"""Leases of others after which a draft is tried again, since what is known of it may be old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What is known of a draft that could be leased."""

    token_seconds: float  # its own time for one token
    latency_seconds: float  # from an order to its first token, what its own time does not explain
    acceptance: float  # the chance that one of its tokens is accepted
    session_count: int  # that it can hold at the same time
    generation_count: int = 0  # that lease it now
    passed_over: int = 0  # leases of others since its own last one
    unread_seconds: float = 0.0  # until it has read of the text what it does not hold

    @property
    def is_full(self) -> bool:
        """Whether another session would cost one of those that it holds."""
        return self.generation_count >= self.session_count

    @property
    def accepted_seconds(self) -> float:
        """The time that one accepted token takes; those who lease it share its engine."""
        drafting = self.token_seconds * (self.generation_count + 1)
        seconds = (self.latency_seconds / _DRAFT_LENGTH + drafting) / max(self.acceptance, 0.01)
        return seconds + self.unread_seconds / _TEXT_TOKENS


def choose(offers: Sequence[Offer]) -> int:
    """Return the index of the draft to lease: the quickest with room, the first of equal ones."""
    return min(range(len(offers)), key=lambda i: _rank(offers[i]))


def _rank(offer: Offer) -> tuple[bool, bool, float]:
    is_forgotten = offer.passed_over >= MOST_PASSED_OVER
    return offer.is_full, not is_forgotten, offer.accepted_seconds
