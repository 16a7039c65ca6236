"""What a controller learns of a round, and what it answers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.messages import ServiceTime


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
    drafted: int  # tokens that were verified
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
