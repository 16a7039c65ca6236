"""What was measured of a model, kept on disk for its next start on the same machine."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from outrider.costs import Point
from outrider.engine import calibrate
from outrider.engine.kept import KeptFiles
from outrider.engine.model import ModelDescription

_KEPT = KeptFiles("measurements", most=256)
_TUNED_BY = ("GGML_", "GOMP_", "KMP_", "OMP_")  # of the environment: threads and kernels


@dataclass(frozen=True, slots=True)
class Measured:
    """What holds for a model under its settings, until the machine or its libraries change."""

    padding: (
        int | None
    )  # the least with which bits do not depend on batching; None: not wanted, or none
    costs: Sequence[Point]  # of one unpadded decode, by rising rows
    is_disturbed: bool  # the costs were measured beside other work, and may be too high
    day: str = ""  # when it was measured, as 2026-11-23; empty for now


class Measurements:
    """Finds what was measured under the same conditions.

    `settings` has all options of the engine, and `library` says, once the model is loaded, which
    build of llama.cpp this is.
    """

    def __init__(self, settings: str, library: Callable[[], str]) -> None:
        self._settings = settings
        self._library = library

    def find(self, model: ModelDescription) -> Measured | None:
        """Return what is known of a model that is loaded."""
        content = _KEPT.find(self._key(model))
        return None if content is None else read(content)

    def keep(self, model: ModelDescription, measured: Measured) -> None:
        """Keep what was measured of it today."""
        record = {
            "padding": measured.padding,
            "costs": measured.costs,
            "disturbed": measured.is_disturbed,
            "day": date.today().isoformat(),
        }
        _KEPT.keep(self._key(model), json.dumps(record).encode())

    def _key(self, model: ModelDescription) -> str:
        """Return everything that bits and costs may depend on, how they are measured included."""
        method = hashlib.sha256(Path(calibrate.__file__).read_bytes()).hexdigest()
        sizes = (model.context, model.sequence_count, model.batch_rows, model.thread_count)
        conditions = (method, self._settings, self._library(), model.system_info, processor())
        tuning = sorted(each for each in os.environ.items() if each[0].startswith(_TUNED_BY))
        return repr((model.identity, sizes, conditions, tuning))


def read(content: bytes) -> Measured | None:
    """Return what a kept record says; None for one that is damaged."""
    try:
        record = json.loads(content)
        padding, day, disturbed = record["padding"], record["day"], record["disturbed"]
        costs = [Point(rows, float(base), float(slope)) for rows, base, slope in record["costs"]]
    except (ValueError, KeyError, TypeError):
        return None
    rows = [each.rows for each in costs]
    sensible = (
        (padding is None or padding in calibrate.PADDINGS)
        and isinstance(day, str)
        and isinstance(disturbed, bool)
        and bool(costs)
        and all(isinstance(each, int) and each > 0 for each in rows)
        and rows == sorted(set(rows))
        and all(0.0 < each.seconds < math.inf and 0.0 <= each.slope < math.inf for each in costs)
    )
    return Measured(padding, costs, disturbed, day) if sensible else None


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
