"""What stays the same over a generation. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.core.control import Control
from outrider.core.health import TIMEOUT
from outrider.core.text import ends_inside_character
from outrider.drafters.source import Source
from outrider.messages import MAX_FINISHING, FinishReason, Form, SessionParameters

MakeSources = Callable[[Sequence[int]], Mapping[str, Source]]
"""Makes the sources without a model, by name, for one text after a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What stays the same over a generation."""

    opening: SessionParameters
    prompt: Sequence[int]
    control: Control
    form: Form
    rollback_calls: bool  # call Rollback after every rejection, as in the textbook
    target_context: int
    limit_reason: FinishReason = FinishReason.TOKEN_LIMIT  # what reaching the token limit means
    token_texts: Sequence[bytes] = ()  # by id
    finishes_character: bool = False  # with some tokens beyond the limit; needs `token_texts`
    control_names: Mapping[int, str] = field(default_factory=dict)  # those to report, by id
    mirostat_mu: float | None = None  # to begin with; None is mirostat's own start
    beam_count: int = 1  # more: the target searches the text, and nothing is drafted
    whole_count: int = 0  # tokens of the prompt, its middle included where that is left out
    sources: Mapping[str, Source] = field(default_factory=dict)  # those without a model, by name
    make_sources: MakeSources = lambda _: {}  # for another text after a prompt
    clock: Callable[[], float] = float  # seconds, for what the sources cost; by default none pass
    is_watched: bool = False  # every round is reported: each decode is a commit of its own
    target_seconds: float = TIMEOUT  # at least, before a target that decodes nothing is left
    keep_count: int = -1  # tokens at the start that stay when a full context shifts; -1: it ends

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The ids that end the text."""
        return self.opening.end_token_ids

    @property
    def repeats(self) -> bool:
        """Whether a text can only be continued by writing all of it again.

        A search has no state but its beams, and mirostat's is not in the text.
        """
        return self.beam_count > 1 or bool(self.opening.sampling.mirostat)

    @property
    def is_truncated(self) -> bool:
        """Whether the middle of the prompt is left out."""
        return self.opening.prompt_count < self.whole_count

    def remaining(self, length: int) -> int:
        """Return the tokens that may still follow a text of `length` tokens."""
        opening = self.opening
        length += len(opening.dropped.token_ids)
        return opening.prompt_count + opening.token_limit - length

    def is_long_enough(self, text: Sequence[int]) -> bool:
        """Return whether the limit is reached, and no character is to be finished there."""
        left = self.remaining(len(text))
        if left > 0:
            return False
        if not self.finishes_character:
            return True
        texts, room = self.token_texts, self.target_context - len(text)
        if not texts or not left > -MAX_FINISHING or room <= 0:
            return True
        begin = self.opening.prompt_count - len(self.opening.dropped.token_ids)
        written = max(len(text) - MAX_FINISHING - 1, begin, 0)
        return not ends_inside_character(b"".join(texts[i] for i in text[written:]))
