"""How long the phases of rounds take, counted by duration. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, fields

BUCKET_LIMITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Durations up to one of these, in seconds, and above the one before are counted together."""


@dataclass(slots=True)
class Durations:
    """Some durations; `counts` has one more entry than BUCKET_LIMITS, for longer ones."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_LIMITS) + 1))
    seconds: float = 0.0  # all of them together

    def note(self, seconds: float, count: int = 1) -> None:
        """Count one duration, or `count` equal ones."""
        self.counts[bisect_left(BUCKET_LIMITS, seconds)] += count
        self.seconds += seconds * count

    def add(self, more: Durations) -> None:
        """Count those of another one too."""
        self.counts = [a + b for a, b in zip(self.counts, more.counts, strict=True)]
        self.seconds += more.seconds


@dataclass(slots=True)
class RoundTimes:
    """The phases of rounds that were answered; every round is counted in every phase."""

    draft: Durations = field(default_factory=Durations)  # waited for it, the target idle
    verify: Durations = field(default_factory=Durations)  # waited for the target
    network: Durations = field(default_factory=Durations)  # of both, beyond the services' own time
    queue: Durations = field(default_factory=Durations)  # the target's own time
    decode: Durations = field(default_factory=Durations)
    sample: Durations = field(default_factory=Durations)

    def add(self, more: RoundTimes) -> None:
        """Count the rounds of another one too."""
        for phase in fields(self):
            getattr(self, phase.name).add(getattr(more, phase.name))
