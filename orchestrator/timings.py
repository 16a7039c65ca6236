"""Where the seconds of a generation went."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from outrider.core.round_times import RoundTimes
from outrider.messages import Answer
from outrider.v1 import common_pb2 as common
from outrider.wire_checks import at_least, within

_MOST_STEPS = 2**31 - 1
"""That a statistic can hold."""
_MOST_STEPS_AT_ONCE = 1 << 16
"""Decodes with rows for one session that a message may report: far more than it has tokens."""


@dataclass(slots=True)
class EngineSeconds:
    """A model service's own time over a generation."""

    queue: float = 0.0
    decode: float = 0.0
    sample: float = 0.0
    own_draft: float = 0.0  # of the target's own draft
    prompt: float = 0.0  # of the decoding, what the first answer took
    rows: int = 0  # of the decodes, other sessions' included
    attended: int = 0  # tokens that these rows attended to, summed over the rows
    sessions: int = 0  # that generated in the decodes, summed over those
    runner_ups: float = 0.0  # beside `decode`: of a draft's runner-up lines without its line
    steps: int | None = None  # decodes that gave rows for this one; None: no service has said so

    def add(self, spent: common.ServiceTime) -> None:
        """Add the time that came with one answer. Raises InvalidRequest for none there can be."""
        _check(spent)
        self.queue += spent.queue_us / 1e6
        self.decode += spent.decode_us / 1e6
        self.sample += spent.sample_us / 1e6
        self.own_draft += spent.own_draft_us / 1e6
        self.runner_ups += spent.runner_up_us / 1e6
        self.rows += spent.decoded_row_count
        self.attended += spent.attended_token_count
        self.sessions += spent.generating_session_count
        self._add_steps(spent.step_count if spent.HasField("step_count") else None)
        self.prompt = self.prompt or self.decode

    def merge(self, later: EngineSeconds) -> None:
        """Add the time of a later part of the same completion."""
        self.queue += later.queue
        self.decode += later.decode
        self.sample += later.sample
        self.own_draft += later.own_draft
        self.runner_ups += later.runner_ups
        self.rows += later.rows
        self.attended += later.attended
        self.sessions += later.sessions
        self._add_steps(later.steps)
        self.prompt = self.prompt or later.prompt

    def _add_steps(self, more: int | None) -> None:
        if more is not None:
            self.steps = min(_MOST_STEPS, (self.steps or 0) + more)

    @property
    def work(self) -> float:
        """What the service did for this generation, waiting left out."""
        return self.decode + self.sample + self.own_draft

    @property
    def total(self) -> float:
        """All of it."""
        return self.queue + self.work


class Trace(Protocol):
    """Takes in how long each answer of a target took, for who looks at this generation alone."""

    def current(self) -> AbstractContextManager[None]:
        """Let the calls that are made meanwhile be a part of it."""

    def note_answer(
        self, draft_wait: float, spent: EngineSeconds, waited: float, answer: Answer, is_first: bool
    ) -> None:
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
    target: EngineSeconds = field(default_factory=EngineSeconds)
    draft: EngineSeconds = field(default_factory=EngineSeconds)

    def traced(self) -> AbstractContextManager[None]:
        """Let the calls that are made meanwhile be a part of this generation's trace."""
        return nullcontext() if self.trace is None else self.trace.current()

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
        self.target.merge(more.target)
        self.draft.merge(more.draft)


def _check(spent: common.ServiceTime) -> None:
    """Raise InvalidRequest for a service's own time that no service can have taken."""
    least = min(
        spent.queue_us,
        spent.decode_us,
        spent.sample_us,
        spent.decoded_row_count,
        spent.attended_token_count,
        spent.own_draft_us,
        spent.runner_up_us,
        spent.generating_session_count,
    )
    at_least("service_time", least, 0)
    within("step_count", spent.step_count, 0, _MOST_STEPS_AT_ONCE)
