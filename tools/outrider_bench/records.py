"""What a benchmark notes down: a trial is one generation, a turn the trials that ran at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One generation as its client saw it. What the service did not report is None."""

    begin: float  # seconds of a clock that all trials of a turn share
    deltas: tuple[tuple[float, int], ...]  # seconds since `begin`, and tokens that came then
    finish: str
    round_count: int  # decodes of the target after the prompt's
    drafted_count: int = 0  # draft tokens that were verified
    accepted_count: int = 0
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    target_seconds: float | None = None  # inside its decodes after the prompt's
    draft_seconds: float | None = None
    wire_bytes: int | None = None
    alone_rate: float | None = None  # tokens/s of the target in llama.cpp without messages
    forecast_ratio: float | None = None  # over plain tokens/s, as the controller expects it at last
    reported: Mapping[str, Any] = field(
        default_factory=dict
    )  # all that the service said at the end

    @property
    def token_count(self) -> int:
        """Tokens generated."""
        return sum(count for _, count in self.deltas)

    @property
    def first_token_seconds(self) -> float | None:
        """From the request to the first token; None without a token."""
        return self.deltas[0][0] if self.deltas else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens that follow each other, one fewer than there are tokens.

        Tokens of one delta came at once: a delta of m tokens that comes g
        seconds after the one before is one gap of g and m - 1 gaps of 0.
        """
        gaps: list[float] = []
        before: float | None = None
        for seconds, count in self.deltas:
            first = [] if before is None else [seconds - before]
            gaps += [*first, *[0.0] * (count - 1)]
            before = seconds
        return gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The trials of one variant that ran at once in one repetition, one per user."""

    variant: str
    repetition: int
    trials: tuple[Generated, ...]
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    """By process, from the turn's first token to its last."""
    discarded_count: int = 0  # attempts before this one in which a text ended early
    round_trip_seconds: float | None = None  # to what is far, measured before the turn

    @property
    def token_count(self) -> int:
        """Tokens generated, by all users."""
        return sum(trial.token_count for trial in self.trials)

    @property
    def later_token_count(self) -> int:
        """Tokens that came after the turn's first delta."""
        started = [trial for trial in self.trials if trial.deltas]
        first = min(started, key=lambda trial: trial.begin + trial.deltas[0][0], default=None)
        return 0 if first is None else self.token_count - first.deltas[0][1]

    @property
    def later_seconds(self) -> float:
        """From the turn's first token to its last."""
        times = [trial.begin + seconds for trial in self.trials for seconds, _ in trial.deltas]
        return max(times) - min(times) if times else 0.0

    @property
    def token_rate(self) -> float | None:
        """Tokens per second of all users together, after the first one; None without any."""
        seconds = self.later_seconds
        return self.later_token_count / seconds if seconds > 0.0 else None

    @property
    def alone_rate(self) -> float | None:
        """What the target reported at last as the token rate of llama.cpp alone, for one user."""
        known = [trial.alone_rate for trial in self.trials if trial.alone_rate is not None]
        return known[-1] if known else None

    def count_short(self, token_limit: int) -> int:
        """Return how many texts ended before the limit."""
        return sum(trial.token_count < token_limit for trial in self.trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Turns that were interleaved: all variants in every repetition, under equal conditions."""

    user_count: int
    turns: Sequence[Turn]
    round_trip_ms: float | None = None  # asked for; None where all is on this machine
    far: str = "draft"  # what is so far away: `draft`, or `target` from all else

    def of(self, variant: str) -> list[Turn]:
        """Return the turns of one variant, in their order."""
        return [turn for turn in self.turns if turn.variant == variant]
