"""What processes, and all others on the machine, take of its CPUs. Linux reports most of it."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY_FIELDS = (1, 2, 3, 6, 7)  # of /proc/stat: user, nice, system, irq, softirq


def cpu_seconds(pid: int, proc: Path = Path("/proc")) -> float | None:
    """Return the CPU time that a process has taken, in steps of a hundredth; None if it is gone."""
    # The name in parentheses may hold anything.
    fields = read_file(proc / str(pid) / "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS if len(fields) > 12 else None


class OthersClock:
    """The share of all cores' time that neither we, our ended children, nor `pids` take."""

    def __init__(self, pids: Collection[int] = ()) -> None:
        self._pids = pids
        self._before = _busy_seconds(), self._own_seconds(), time.monotonic()

    def share(self) -> float | None:
        """Return the share since the start; None where the system does not say."""
        busy, own, now = _busy_seconds(), self._own_seconds(), time.monotonic()
        if busy is None or self._before[0] is None:
            return None
        others = busy - self._before[0] - (own - self._before[1])
        return max(0.0, others / ((now - self._before[2]) * (os.cpu_count() or 1)))

    def _own_seconds(self) -> float:
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ours = sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)
        return ours + sum(cpu_seconds(pid) or 0.0 for pid in self._pids)


def _busy_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """Return the time that all cores together spent on processes since the start."""
    fields = read_file(stat).partition("\n")[0].split()
    if len(fields) <= max(_BUSY_FIELDS):
        return None
    return sum(int(fields[i]) for i in _BUSY_FIELDS) / _TICKS


def read_file(path: Path) -> str:
    """Return the text of a file of the kernel; nothing where it has none such."""
    try:
        return path.read_text()
    except OSError:
        return ""
