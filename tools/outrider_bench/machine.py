"""What a benchmark ran on, and what else the machine did meanwhile. Linux reports most of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import outrider
from outrider_cli.cpu_time import cpu_seconds, read_file

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
    for line in read_file(cpuinfo).splitlines():
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
