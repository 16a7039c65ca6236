"""Where the seconds of a generation went."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from outrider.core.round_times import RoundTimes
from outrider.messages import Answer, ServiceTime


class Trace(Protocol):
    """Takes in how long each answer of a target took, for who looks at this generation alone."""

    def current(self) -> AbstractContextManager[None]:
        """Let the calls that are made meanwhile be a part of it."""

    def note_answer(self, draft_wait: float, waited: float, answer: Answer, is_first: bool) -> None:
        """An answer came just now that was waited for so long, and before that for the draft."""


@dataclass(slots=True)
class Timings:
    """Where a generation's seconds went."""

    begin: float
    trace: Trace | None = None  # takes in single answers, where somebody wants to see them
    first_token: float = 0.0
    last_token: float = 0.0
    prompt: float = 0.0
    draft_wait: float = 0.0
    verify_wait: float = 0.0
    draft_network: float = 0.0  # of the waiting, what the service's own time does not explain
    verify_network: float = 0.0
    plain: float = 0.0  # the rounds after the prompt's, as if without drafts
    plain_rounds: int = 0
    rounds: RoundTimes = field(default_factory=RoundTimes)
    target: ServiceTime = field(default_factory=ServiceTime)  # the services' own time
    draft: ServiceTime = field(default_factory=ServiceTime)
    target_prompt: float = 0.0  # of its decoding, what its first answer took
    draft_prompt: float = 0.0

    def traced(self) -> AbstractContextManager[None]:
        """Let the calls that are made meanwhile be a part of this generation's trace."""
        return nullcontext() if self.trace is None else self.trace.current()

    def note_target(self, spent: ServiceTime) -> None:
        """Count the target's time for an answer."""
        self.target.add(spent)
        self.target_prompt = self.target_prompt or self.target.decode

    def note_draft(self, spent: ServiceTime) -> None:
        """Count the draft's time for a frame."""
        self.draft.add(spent)
        self.draft_prompt = self.draft_prompt or self.draft.decode

    def note_commit(self, now: float) -> None:
        """Count tokens that are committed now."""
        self.last_token = now
        self.first_token = self.first_token or now

    def add(self, more: Timings) -> None:
        """Count what a later part of the same completion took."""
        self.last_token = more.last_token or self.last_token
        self.first_token = self.first_token or more.first_token
        for name in ("draft_wait", "verify_wait", "draft_network", "verify_network", "plain"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.plain_rounds += more.plain_rounds
        self.rounds.add(more.rounds)
        self.prompt = self.prompt or more.prompt
        self.target.add(more.target)
        self.draft.add(more.draft)
        self.target_prompt = self.target_prompt or more.target_prompt
        self.draft_prompt = self.draft_prompt or more.draft_prompt
