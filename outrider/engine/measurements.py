"""What was measured of a model, kept on disk for its next start on the same machine."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from outrider.costs import Point
from outrider.engine import calibrate, layout
from outrider.engine.kept import KeptFiles
from outrider.engine.layout import LayoutSeconds
from outrider.engine.model import Layout, ModelDescription

_KEPT = KeptFiles("measurements", most=256)
_TUNED_BY = ("GGML_", "GLIBC_", "GOMP_", "KMP_", "OMP_")  # of the environment: kernels and pages


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """What holds for a model under its settings, until the machine or its libraries change."""

    padding: (
        int | None
    )  # the least with which bits do not depend on batching; None: not wanted, or none
    costs: Sequence[Point]  # of one unpadded decode, by rising rows
    is_disturbed: bool  # the costs were measured beside other work, and may be too high
    layouts: Sequence[LayoutSeconds] = ()  # what each takes; empty where there is no choice
    chosen_costs: Sequence[Point] = ()  # as `costs`, in the chosen layout where it is not the first
    token_seconds: Mapping[int, float] = field(default_factory=dict)  # by threads, where chosen
    day: str = ""  # when it was measured, as 2026-11-23; empty for now


class Measurements:
    """Finds what was measured under the same conditions.

    `settings` has all options of the engine, and `library` says, once the model is loaded, which
    build of llama.cpp this is.
    """

    def __init__(self, settings: str, library: Callable[[], str]) -> None:
        self._settings = settings
        self._library = library

    def find(self, model: ModelDescription) -> MeasuredModel | None:
        """Return what is known of a model that is loaded."""
        content = _KEPT.find(self._key(model))
        return None if content is None else read(content)

    def keep(self, model: ModelDescription, measured: MeasuredModel) -> None:
        """Keep what was measured of it today."""
        record = {
            "padding": measured.padding,
            "costs": measured.costs,
            "layouts": [
                (each.layout.is_pool, each.layout.flash_attention, each.requests)
                for each in measured.layouts
            ],
            "chosen_costs": measured.chosen_costs,
            "token_seconds": list(measured.token_seconds.items()),
            "disturbed": measured.is_disturbed,
            "day": date.today().isoformat(),
        }
        _KEPT.keep(self._key(model), json.dumps(record).encode())

    def _key(self, model: ModelDescription) -> str:
        """Return everything that bits and costs may depend on, how they are measured included."""
        sources = [Path(each).read_bytes() for each in (calibrate.__file__, layout.__file__)]
        method = hashlib.sha256(b"".join(sources)).hexdigest()
        sizes = (model.context, model.sequence_count, model.batch_rows)
        conditions = (method, self._settings, self._library(), model.system_info, processor())
        tuning = sorted(each for each in os.environ.items() if each[0].startswith(_TUNED_BY))
        return repr((model.identity, sizes, conditions, tuning))


def read(content: bytes) -> MeasuredModel | None:
    """Return what a kept record says; None for one that is damaged."""
    try:
        record = json.loads(content)
        padding, day, disturbed = record["padding"], record["day"], record["disturbed"]
        costs, chosen = _read_costs(record["costs"]), _read_costs(record["chosen_costs"])
        layouts = [_read_layout(*each) for each in record["layouts"]]
        tokens = {int(count): float(seconds) for count, seconds in record["token_seconds"]}
    except (ValueError, KeyError, TypeError):
        return None
    sensible = (
        (padding is None or padding in calibrate.PADDINGS)
        and isinstance(day, str)
        and isinstance(disturbed, bool)
        and bool(costs)
        and _are_sensible(costs)
        and _are_sensible(chosen)
        and all(_are_alike(each, layouts[0]) for each in layouts)
        and all(0.0 < seconds < math.inf for seconds in tokens.values())
    )
    known = MeasuredModel(padding, costs, disturbed, layouts, chosen, tokens, day)
    return known if sensible else None


def _read_costs(record: list[list[float]]) -> list[Point]:
    return [Point(rows, float(base), float(slope)) for rows, base, slope in record]  # type: ignore[arg-type]


def _are_sensible(costs: Sequence[Point]) -> bool:
    rows = [each.rows for each in costs]
    return (
        all(isinstance(each, int) and each > 0 for each in rows)
        and rows == sorted(set(rows))
        and all(0.0 < each.seconds < math.inf and 0.0 <= each.slope < math.inf for each in costs)
    )


def _read_layout(is_pool: bool, flash_attention: bool, requests: list[float]) -> LayoutSeconds:
    seconds = [float(each) for each in requests]
    return LayoutSeconds(Layout(bool(is_pool), bool(flash_attention)), seconds)


def _are_alike(one: LayoutSeconds, other: LayoutSeconds) -> bool:
    """Say whether two layouts were measured in the same ways."""
    return len(one.requests) == len(other.requests) > 0 and all(
        0.0 < each < math.inf for each in one.requests
    )


def processor() -> str:
    """Return the processor's model and abilities, as far as the system names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    telling = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    return "\n".join(line for line in lines if line.startswith(telling))


def forget() -> int:
    """Forget all measurements of this user; return how many there were."""
    return _KEPT.forget()
