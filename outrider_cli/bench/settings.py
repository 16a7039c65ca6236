"""What a benchmark is to run, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.sampling import SamplingParameters
from outrider_cli.bench.variants import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to run, for every pair."""

    variants: tuple[Variant, ...]
    lengths: tuple[Variant, ...]  # the sweep of draft lengths, for the first number of users
    users: tuple[int, ...]
    round_trips_ms: tuple[float, ...]
    repetitions: int
    token_limit: int
    prompt_tokens: int
    prompt_file: Path | None
    sampling: SamplingParameters
    seed: int
    peer: Path | None
    peer_lengths: tuple[int, ...]
    peer_options: tuple[str, ...]
