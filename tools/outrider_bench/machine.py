"""What a benchmark ran on, and what else the machine did meanwhile. Linux reports most of it."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import outrider

_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY_FIELDS = (1, 2, 3, 6, 7)  # of /proc/stat: user, nice, system, irq, softirq
_TELLING = ("OMP_", "GOMP_", "GGML_")
_QUIET_LOAD = 0.5
QUIET_SHARE = 0.05
"""Of all cores' time; what other processes may take before figures are not to be trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a benchmark ran."""

    cpu: str
    core_count: int  # that this process may use
    system: str
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)  # that changes how threads wait
    load_before: float | None = None  # the average of the last minute
    load_after: float | None = None
    others_share: float | None = None  # of all cores' time, what other processes took meanwhile

    def warnings(self) -> list[str]:
        """Return why its figures are not to be trusted."""
        found = []
        if self.load_before is not None and self.load_before >= _QUIET_LOAD:
            found.append(f"the load average was {self.load_before:.2f} before the run")
        if self.others_share is not None and self.others_share >= QUIET_SHARE:
            found.append(f"other processes took {100 * self.others_share:.0f} % of the CPUs")
        return found


def describe_machine() -> Machine:
    """Return what does not change during a run."""
    return Machine(
        cpu=_cpu_name(),
        core_count=len(os.sched_getaffinity(0)),
        system=platform.platform(),
        versions={
            "outrider": outrider.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in ("llama-cpp-python", "grpcio", "numpy")},
        },
        environment={k: v for k, v in os.environ.items() if k.startswith(_TELLING)},
    )


def load_average() -> float | None:
    """Return the processes that ran or waited on average over the last minute."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    for line in _read(cpuinfo).splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


# --- clocks ---


def cpu_seconds(pid: int, proc: Path = Path("/proc")) -> float | None:
    """Return the CPU time that a process has taken, in steps of a hundredth; None if it is gone."""
    # The name in parentheses may hold anything.
    fields = _read(proc / str(pid) / "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS if len(fields) > 12 else None


class CpuClock:
    """CPU seconds of several processes, from the first `start` to `stop`."""

    def __init__(
        self, pids: Mapping[str, int], read: Callable[[int], float | None] = cpu_seconds
    ) -> None:
        self._pids = pids
        self._read = read
        self._before: dict[str, float | None] | None = None

    def start(self) -> None:
        """Begin; later calls do nothing."""
        if self._before is None:
            self._before = self._now()

    def stop(self) -> dict[str, float]:
        """Return what each process took; nothing of one that ended."""
        before, after = self._before or {}, self._now()
        taken = {}
        for name, begin in before.items():
            end = after[name]
            if begin is not None and end is not None:
                taken[name] = end - begin
        return taken

    def _now(self) -> dict[str, float | None]:
        return {name: self._read(pid) for name, pid in self._pids.items()}


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
    fields = _read(stat).partition("\n")[0].split()
    if len(fields) <= max(_BUSY_FIELDS):
        return None
    return sum(int(fields[i]) for i in _BUSY_FIELDS) / _TICKS


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
