"""Prints the table of measured figures in README.md from the results in `tools/benchmarks/results`.

    python -m benchmarks.readme_figures

`benchmarks.beside_llama_server` writes the results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from outrider.engine.kernels import AMX

RESULTS = Path(__file__).resolve().parent / "results"

OUTRIDER, LLAMA_SERVER = "outrider", "llama-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What one way to write made of the prompts of a row: a list has an entry per repetition."""

    program: str  # OUTRIDER or LLAMA_SERVER
    draft_tokens: int | None  # of a draft at most; 0: no drafts; None: as many as it decides
    flash_attention: str  # llama-server's option: auto, on or off; of Outrider "default"
    tokens_per_second: list[float]  # all users, after the first token
    first_token_seconds: list[float]  # the median of the users
    drafted: int  # tokens
    accepted: int  # of those


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
    disturbed: int = 0  # measurements of all arms during which other processes computed, too


def write_result(result: Result, path: Path) -> None:
    """Write a result as JSON."""
    path.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")


def read_result(path: Path) -> Result:
    """Return what `write_result` wrote."""
    values = json.loads(path.read_text(encoding="utf-8"))
    rows = [Row(**{**row, "arms": [Arm(**arm) for arm in row["arms"]]}) for row in values["rows"]]
    return Result(**{**values, "rows": rows})


# --- the table ---

_TITLES = (
    "machine",
    "model and request",
    "llama-server",
    "with drafts",
    "Outrider without drafts",
    "Outrider",
    "over llama-server's best",
    "first token, ms",
)


def table(results: Iterable[Result]) -> str:
    """Return the figures as a Markdown table, and below it what they are."""
    listed = list(results)
    lines = [_line(_TITLES), _line("---" for _ in _TITLES)]
    lines += [_line(_cells(result, row)) for result in listed for row in result.rows]
    return "\n".join([*lines, "", _legend(listed)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(result: Result, row: Row) -> Iterator[str]:
    alone = fastest(_of(row, LLAMA_SERVER, drafts=False))
    drafted = fastest(_of(row, LLAMA_SERVER, drafts=True))
    plain = fastest(_of(row, OUTRIDER, drafts=False))
    ours, best = _compared(row)
    yield _machine(result)
    yield _request(result, row)
    yield _rate(alone)
    yield f"{_rate(drafted)} (of {drafted.draft_tokens})"
    yield _rate(plain)
    yield _rate(ours)
    yield _verdict(_ratios(ours, best))
    yield f"{_first_token(best)} / {_first_token(ours)}"


def _compared(row: Row) -> tuple[Arm, Arm]:
    """Return Outrider with drafts, and llama-server at its best with drafts or without."""
    best = fastest(each for each in row.arms if each.program == LLAMA_SERVER)
    return fastest(_of(row, OUTRIDER, drafts=True)), best


def _of(row: Row, program: str, *, drafts: bool) -> list[Arm]:
    return [
        each for each in row.arms if each.program == program and drafts == (each.draft_tokens != 0)
    ]


def fastest(arms: Iterable[Arm]) -> Arm:
    """Return the arm with the highest median rate."""
    return max(arms, key=lambda arm: median(arm.tokens_per_second))


def _request(result: Result, row: Row) -> str:
    temperature = f"temperature {row.temperature:g}" if row.temperature else "greedy"
    users = f", {row.users} users" if row.users > 1 else ""
    link = f", draft {result.round_trip_ms:g} ms away" if result.round_trip_ms is not None else ""
    return f"{result.name}, {temperature}{users}{link}"


def _machine(result: Result) -> str:
    """Return what computes, in a few words."""
    machine = result.machine
    if machine["gpus"]:
        return ", ".join(machine["gpus"])
    parts = 1 if result.round_trip_ms is None else 2
    cores = machine["core_count"] // parts
    counted = f"{cores} core{'' if cores == 1 else 's'}{'' if parts == 1 else ' each'}"
    amx = " (AMX)" if machine["kernels"] in AMX else ""
    return f"{machine['cpu']}, {counted}{amx}"


def _rate(arm: Arm) -> str:
    middle = median(arm.tokens_per_second)
    return f"{middle:.0f}" if middle >= 100 else f"{middle:.1f}"


def _first_token(arm: Arm) -> int:
    """Return the median time to the first token in whole milliseconds, as it is shown."""
    return round(1e3 * median(arm.first_token_seconds))


def _ratios(ours: Arm, best: Arm) -> list[float]:
    """Return our rate over theirs, prompt by prompt."""
    rates = zip(ours.tokens_per_second, best.tokens_per_second, strict=True)
    return [mine / theirs for mine, theirs in rates]


def _is_faster(ratios: Sequence[float]) -> bool:
    return min(ratios) > 1.0


def _is_slower(ratios: Sequence[float]) -> bool:
    return max(ratios) < 1.0


def _verdict(ratios: Sequence[float]) -> str:
    """Return the ratios, and in words who is faster if any is."""
    if _is_slower(ratios):
        return f"{_ranged(ratios, 2)}: llama-server is faster"
    if _is_faster(ratios):
        return f"**{_ranged(ratios, 2)}**"
    return f"{_ranged(ratios, 2)}: no clear difference"


def _ranged(values: Sequence[float], digits: int) -> str:
    """Return the median, and the least and most in brackets."""
    middle, low, high = (
        f"{value:.{digits}f}" for value in (median(values), min(values), max(values))
    )
    return f"{middle} [{low}, {high}]"


def _summary(rows: Sequence[Row]) -> str:
    """Return in how many rows who is faster, and in how many our first token comes later."""
    pairs = [_compared(row) for row in rows]
    ratios = [_ratios(*pair) for pair in pairs]
    faster, slower = sum(map(_is_faster, ratios)), sum(map(_is_slower, ratios))
    later = sum(_first_token(ours) > _first_token(best) for ours, best in pairs)
    return (
        f"Of {len(pairs)} rows Outrider is faster in {faster} and llama-server in {slower}; "
        f"{len(pairs) - faster - slower} show no clear difference. "
        f"Outrider's first token comes later in {later}."
    )


def _legend(results: Sequence[Result]) -> str:
    arms = [arm for result in results for row in result.rows for arm in row.arms]
    counts = sorted({len(arm.tokens_per_second) for arm in arms})
    lengths = sorted({arm.draft_tokens for arm in arms if arm.draft_tokens})
    flash = sorted({arm.flash_attention for arm in arms if arm.program == LLAMA_SERVER})
    tokens = sorted({result.tokens for result in results})
    prompts = sorted({row.prompt_tokens for result in results for row in result.rows})
    made = sorted({(each.date, each.commit) for each in results})
    lines = [
        f"{_summary([row for result in results for row in result.rows])} The rates are tokens per "
        f"second after the first, of all users together: medians over {_either(counts)} random "
        f"prompts of {_either(prompts)} tokens, each continued by {_either(tokens)}. Ratios are of "
        f"the same prompt, with [least, most]. llama-server ran with drafts of {_either(lengths)} "
        f"tokens by the same draft model or head, and with flash attention {_either(flash)}; its "
        "columns show the fastest. First token: llama-server's best / Outrider. "
        f"Measured {_either([f'{date} at {commit}' for date, commit in made])}.",
        "`python -m benchmarks.beside_llama_server` measures and `python -m "
        "benchmarks.readme_figures` prints this.",
    ]
    if disturbed := sum(result.disturbed for result in results):
        count = sum(len(arm.tokens_per_second) for arm in arms)
        lines.append(f"Other processes computed, too, during {disturbed} of {count} measurements.")
    lines += [f"Left out: {each}." for result in results for each in result.left_out]
    return "\n".join(lines)


def _either(values: Sequence[object]) -> str:
    """Return "1", "1 or 3", "1, 3 or 8"."""
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last


def main() -> None:
    """Print the table of all committed results."""
    print(table(map(read_result, sorted(RESULTS.glob("*.json")))))


if __name__ == "__main__":
    main()
