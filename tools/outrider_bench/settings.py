"""What a benchmark is to run, as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outrider.errors import InvalidRequest
from outrider.sampling import SamplingParameters
from outrider_bench.prompts import Tasks
from outrider_bench.variants import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to run, for every pair."""

    variants: tuple[Variant, ...]
    lengths: tuple[Variant, ...]  # the sweep of draft lengths, for the first number of users
    users: tuple[int, ...]
    round_trips_ms: tuple[float, ...]  # to the draft
    target_round_trips_ms: tuple[float, ...] = ()  # from the orchestrator, the draft beside it
    numerics: tuple[str, ...] = ()  # more numerics of the target, beside what its options say
    cores: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By role, as on separate machines; where it is empty all share all."""
    repetitions: int
    token_limit: int
    prompt_tokens: int
    prompt_file: Path | None
    tasks: Tasks | None = None  # in place of random prompts
    sampling: SamplingParameters
    seed: int
    peer: Path | None = None
    peer_variants: tuple[Variant, ...] = ()
    peer_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tasks is None and any(variant.predicts for variant in self.variants):
            raise InvalidRequest("variants", "predict only texts that are known: see --tasks")
