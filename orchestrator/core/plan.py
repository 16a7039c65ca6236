"""What stays the same over a generation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.core.controller import Control
from outrider.messages import FinishReason, Form, SessionParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What stays the same over a generation."""

    opening: SessionParameters
    prompt: Sequence[int]
    control: Control
    form: Form
    rollback_calls: bool  # call Rollback after every rejection, as in the textbook
    end_token_ids: frozenset[int]
    target_context: int
    limit_reason: FinishReason = FinishReason.TOKEN_LIMIT  # what reaching the token limit means
    token_texts: Sequence[bytes] = ()  # by id
    finishes_character: bool = False  # with some tokens beyond the limit; needs `token_texts`
    control_names: Mapping[int, str] = field(default_factory=dict)  # those to report, by id
    mirostat_mu: float | None = None  # to begin with; None is mirostat's own start
    beam_count: int = 1  # more: the target searches the text, and nothing is drafted
    whole_count: int = 0  # tokens of the prompt, its middle included where that is left out
    keep_count: int = -1  # tokens at the start that stay when a full context shifts; -1: it ends

    @property
    def is_truncated(self) -> bool:
        """Whether the middle of the prompt is left out."""
        return self.opening.prompt_count < self.whole_count
