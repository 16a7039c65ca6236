"""Which cores each service runs on, so that those of one machine compute as on several."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence


def cores_apart(available: Sequence[int]) -> dict[str, list[int]] | None:
    """Share cores out to the roles: one for the draft, one for the orchestrator, the rest to the
    target. With two, draft and orchestrator share one; None for fewer.
    """
    cores = sorted(available)
    if len(cores) < 2:
        return None
    own = 1 if len(cores) == 2 else 2
    return {"target": cores[:-own], "draft": cores[-1:], "orchestrator": cores[-own:][:1]}


def own_cores() -> dict[str, list[int]] | None:
    """Share out the cores of this process. None where they are too few."""
    return cores_apart(sorted(os.sched_getaffinity(0)))


def why_not_apart() -> str | None:
    """Say why services cannot be pinned here, or return None."""
    if not hasattr(os, "sched_getaffinity") or shutil.which("taskset") is None:
        return "pinning needs Linux and the command `taskset`"
    return None if own_cores() else "there is one core only"


def pinned(command: Sequence[str], cores: Mapping[str, Sequence[int]], role: str) -> list[str]:
    """Return the command line that runs a role on its cores; as it is where it has none."""
    if role not in cores:
        return [*command]
    return ["taskset", "--cpu-list", ",".join(map(str, cores[role])), *command]
