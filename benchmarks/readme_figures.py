"""Prints the table of measured figures in README.md from the results in `benchmarks/results`.

    python -m benchmarks.readme_figures

`benchmarks.beside_llama_server` writes the results.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"

OUTRIDER, LLAMA_SERVER = "outrider", "llama-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What one way to write made of the prompts of a row: a list has an entry per repetition."""

    program: str  # OUTRIDER or LLAMA_SERVER
    draft_tokens: int | None  # of a draft at most; 0: no drafts; None: as many as it decides
    flash_attention: str  # as llama-server was told: auto, on or off; of Outrider "default"
    tokens_per_second: list[float] = field(default_factory=list)  # all users, after the first token
    first_token_seconds: list[float] = field(default_factory=list)  # the median of the users
    drafted: int = 0  # tokens
    accepted: int = 0  # of those


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting, and what all arms made of the same prompts."""

    temperature: float
    users: int
    prompt_tokens: int
    arms: list[Arm]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run of `benchmarks.beside_llama_server` measured."""

    name: str  # of the pair, such as "1.1B, Q4_0"
    date: str  # such as 2026-11-26
    commit: str
    machine: dict[str, Any]  # cpu, core_count, gpus, kernels
    models: dict[str, dict[str, Any]]  # by role: name, description, parameters, bytes
    threads: int
    round_trip_ms: float | None  # to the draft on a machine of its own; None: all on one machine
    tokens: int  # written after each prompt
    left_out: list[str]  # arms that did not start, and why
    rows: list[Row]


def write_result(result: Result, path: Path) -> None:
    """Write a result as JSON."""
    path.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")


def read_result(path: Path) -> Result:
    """Return what `write_result` wrote."""
    values = json.loads(path.read_text(encoding="utf-8"))
    rows = [Row(**{**row, "arms": [Arm(**arm) for arm in row["arms"]]}) for row in values["rows"]]
    return Result(**{**values, "rows": rows})
