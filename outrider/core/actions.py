"""What a generation asks its driver to do, and what its text is made of. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.messages import Candidates, DraftEnd, FinishReason, Logprobs, Order, Origin, Round


@dataclass(frozen=True, slots=True)
class Wake:
    """Ask for the next actions again at this time, if nothing happens before."""

    time: float


@dataclass(frozen=True, slots=True)
class RollBack:
    """Call Rollback at both services and wait for it."""

    token_count: int
    round: int
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one round verified and what came of it, for a caller who wants to watch."""

    round: int  # from 1, repeats not counted
    committed_count: int  # before the round
    draft: Sequence[int]
    accepted_count: int
    next_token_id: int
    draft_end: DraftEnd
    sources: Sequence[str] = ()  # who proposed each draft token; none: the draft model
    line_numbers: Sequence[int] = ()  # of the draft's line that each is of; none: its first line
    target_candidates: Sequence[Candidates] = ()
    draft_candidates: Sequence[Candidates] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of a token's probability, and of the most probable tokens there."""

    value: float
    alternatives: Logprobs


@dataclass(frozen=True, slots=True)
class Commit:
    """These tokens are now part of the text; `logprobs` are there if they were asked for."""

    token_ids: Sequence[int]
    origins: Sequence[Origin]
    report: Report | None = field(default=None, compare=False, repr=False)
    logprobs: Sequence[TokenLogprob] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class End:
    """The generation is over."""

    reason: FinishReason


Action = Order | Round | Wake | RollBack | Commit | End
"""An order is to be sent to the draft, a round to the target."""
