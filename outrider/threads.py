"""How many threads this process may use: the smaller of its affinity and its cgroup's quota."""

from __future__ import annotations

import os
from pathlib import Path

_V2 = Path("/sys/fs/cgroup/cpu.max")
_V1 = Path("/sys/fs/cgroup/cpu")
_TOPOLOGY = Path("/sys/devices/system/cpu")


def available_cores() -> set[int]:
    """Return the cores that this process may use, also where a thread of it is kept on fewer."""
    return os.sched_getaffinity(os.getpid())


def physical_cores() -> int:
    """Return on how many cores the available ones are hardware threads; 0 where nobody says so."""
    cores = set()
    for number in available_cores():
        path = _TOPOLOGY / f"cpu{number}" / "topology" / "thread_siblings_list"
        try:
            cores.add(path.read_text().strip())
        except OSError:
            return 0
    return len(cores)


def available_threads() -> int:
    """Return at least 1; llama.cpp by itself would count cores that the quota forbids."""
    affinity = len(available_cores())
    quota = _read_quota()
    return max(1, affinity if quota is None else min(affinity, int(quota)))


def _read_quota() -> float | None:
    """Return the cgroup's quota in cores, version 2 or 1, or None without one."""
    try:
        limit, period = _V2.read_text().split()[:2]
    except (OSError, ValueError):
        try:
            limit = (_V1 / "cpu.cfs_quota_us").read_text().strip()
            period = (_V1 / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not limit.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(limit) / int(period)
