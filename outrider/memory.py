"""What memory this machine leaves to a process, and whether what malloc gives is in huge pages.

A decode reads all weights. Where those are in pages of 4 KiB, looking up their addresses takes some
3 to 11 % of it (docs/decisions/0032): on Linux memory that `malloc` gives can be in pages of 2 MiB.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_TUNABLES, _TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
_LEAST_GLIBC = (2, 35)  # the first that has it
_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes a number near 2**63


def huge_pages(path: Path = HUGE_PAGES) -> str:
    """Return for whom the kernel has huge pages: `always`, `madvise` (who asks) or `never`."""
    words = _read(path).split()
    return next((word.strip("[]") for word in words if word.startswith("[")), "never")


def tunables_for_huge_pages(environment: Mapping[str, str], mode: str, libc: str) -> str | None:
    """Return what `GLIBC_TUNABLES` has to be at the start of a process that wants huge pages.

    None where nothing is to be done: the kernel has them for all or for nobody (`mode`), the
    variable says it already, or the C library (`libc`, such as `glibc 2.36`) does not read it.
    """
    before = environment.get(_TUNABLES, "")
    if mode != "madvise" or _TUNABLE in before or not _reads_tunable(libc):
        return None
    return f"{before}:{_TUNABLE}=1" if before else f"{_TUNABLE}=1"


def _reads_tunable(libc: str) -> bool:
    name, _, version = libc.partition(" ")
    numbers = version.split(".")
    if name != "glibc" or len(numbers) < 2 or not all(each.isdecimal() for each in numbers[:2]):
        return False
    return (int(numbers[0]), int(numbers[1])) >= _LEAST_GLIBC


def libc_version() -> str:
    """Return the C library and its version, such as `glibc 2.36`; nothing where it does not say."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ""


def environment_with_huge_pages(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Return the environment that a process on this machine begins anew with; None: it need not."""
    tunables = tunables_for_huge_pages(environment, huge_pages(), libc_version())
    return None if tunables is None else {**environment, _TUNABLES: tunables}


def has_huge_pages(environment: Mapping[str, str], mode: str) -> bool:
    """Return whether what malloc gives to a process that began with this environment is in them."""
    asks = f"{_TUNABLE}=1" in environment.get(_TUNABLES, "").split(":")
    return mode == "always" or (mode == "madvise" and asks)


def available_memory(
    proc: Path = Path("/proc"), cgroups: Path = _CGROUPS
) -> tuple[int, str] | None:
    """Return the bytes that a new process could take, and what limits them: `machine` or `cgroup`.

    None where the system does not say.
    """
    found = []
    machine = _field(proc / "meminfo", "MemAvailable:")
    if machine is not None:
        found.append((1024 * machine, "machine"))
    for folder in _memory_folders(proc, cgroups):
        left = _left(folder)
        if left is not None:
            found.append((left, "cgroup"))
    return min(found, default=None)


def _memory_folders(proc: Path, cgroups: Path) -> list[Path]:
    """Return the folders of this process's cgroup and those above it, versions 1 and 2."""
    folders = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names in ("", "memory"):
            top = cgroups / names
            own = top / path.strip("/")
            # In a container the path is often the host's, and only the top is there.
            folders += [f for f in (own, *own.parents) if f == top or top in f.parents]
    return folders


def _left(folder: Path) -> int | None:
    """Return the bytes until the limit of one cgroup, not counting files it could drop."""
    for limit, usage, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, used = _read(folder / limit).strip(), _read(folder / usage).strip()
        if most.isdecimal() and used.isdecimal() and int(most) < _NO_LIMIT:
            dropped = _field(folder / "memory.stat", idle) or 0
            return max(0, int(most) - int(used) + dropped)
    return None


def _field(path: Path, name: str) -> int | None:
    """Return the number after a name in a file of such lines."""
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
