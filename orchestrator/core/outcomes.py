"""What a controller learns of a round, what it answers, and what it shows of itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.estimates import ServiceTime


@dataclass(frozen=True, slots=True)
class Choice:
    """Verify this many tokens now, or look again at the time `until` if nothing comes before.

    `worth` is what that is worth, in tokens; infinite for a pinned length.
    """

    count: int
    until: float | None = None
    worth: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One verified round, for the controller to learn from."""

    now: float
    length: int  # of the text before it, in tokens
    sent: float | None  # to a target that waited for it; None where it continued by itself
    confidences: Sequence[int]  # of the draft
    offered: int  # draft tokens that were sent
    drafted: int  # and of them, those that were verified
    accepted: int
    committed: int
    decodes: int = 1  # that it is of: more where none of them has a draft, and each adds one token
    spent: ServiceTime
    draft_busy: bool
    is_prompt: bool
    is_local: bool = False  # its draft is of sources without a model
    is_own: bool = False  # its draft is of the target's own draft
    asks_own: bool = False  # the target's own draft was to draft for it, where it had no other
    beside: int = 0  # rows of the decode that were of other branches than the draft's


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the controller thinks, for the statistics."""

    rate: float  # rho, tokens per second
    plain_rate: float  # expected of rounds without a draft
    alone_rate: float  # of the target without padding and messages; 0 where it is not known
    acceptance: float
    draft_token_seconds: float
    latency_seconds: float
    overhead_seconds: float
    slowdown: float
    run_ahead: bool
    takes_turns: bool
    costs: Sequence[tuple[int, float]]  # (rows, seconds)
    forecast_rate: float = 0.0  # expected of what pays most; 0 where the policy is another


class RecentRate:
    """Tokens per second of the newest rounds of a generation; older ones fade."""

    _KEPT = 0.95  # of what earlier rounds made and took, with each round

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def note(self, tokens: int, seconds: float, rounds: int) -> None:
        """Take in some rounds that took equally long and committed equally many tokens."""
        kept = self._KEPT**rounds
        share = (1.0 - kept) / (1.0 - self._KEPT) / rounds
        self._tokens = kept * self._tokens + share * tokens
        self._seconds = kept * self._seconds + share * seconds

    @property
    def value(self) -> float:
        """The rate; 0 before anything is known."""
        return self._tokens / self._seconds if self._seconds > 0.0 else 0.0
