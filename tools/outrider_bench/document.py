"""Everything about a benchmark as one object for json.dumps, every trial included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from outrider_bench.machine import Machine
from outrider_bench.report import Measured
from outrider_bench.run import PairResult
from outrider_bench.settings import Settings


def document(
    command: Sequence[str],
    machine: Machine,
    settings: Settings,
    pairs: Sequence[tuple[PairResult, Sequence[Measured]]],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the whole benchmark. Times are in seconds; an estimate has value, low and high."""
    return {
        "command": list(command),
        "machine": {**asdict(machine), "warnings": machine.warnings()},
        "settings": _settings_object(settings),
        "notes": list(notes),
        "pairs": [_pair_object(result, blocks) for result, blocks in pairs],
    }


def _settings_object(settings: Settings) -> dict[str, Any]:
    variants = (*settings.variants, *settings.lengths)
    apart = ("variants", "lengths", "peer_variants")
    others = {k: v for k, v in asdict(settings).items() if k not in apart}
    return {
        "variants": {variant.name: _plain(variant.changes) for variant in variants},
        "peer_variants": [variant.name for variant in settings.peer_variants],
        **_plain(others),
    }


def _plain(value: Any) -> Any:
    """Return what JSON can hold: the value of an enum, the text of a path."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    value = getattr(value, "value", value)
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _pair_object(result: PairResult, blocks: Sequence[Measured]) -> dict[str, Any]:
    return {
        "target": str(result.target),
        "draft": str(result.draft),
        "models": {role: asdict(model) for role, model in result.models.items()},
        "blocks": [
            {
                "user_count": each.block.user_count,
                "round_trip_ms": each.block.round_trip_ms,
                "far": each.block.far,
                "variants": [asdict(summary) for summary in each.summaries],
                "turns": [_turn_object(asdict(turn)) for turn in each.block.turns],
            }
            for each in blocks
        ],
    }


def _turn_object(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {**turn, "trials": list(turn["trials"])}
