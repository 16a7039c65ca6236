"""How the commands say numbers, sizes, times, numerics profiles and kinds of memory. Pure."""

from __future__ import annotations

_LIMITS = {
    "full": "rejected drafts cost nothing",
    "window": "rejected drafts cost nothing; no trees, pool or exact numerics (--swa-full)",
    "snapshots": "up to {snapshots} rejected tokens cost nothing, more a checkpoint{cost} and "
    "decoding again; no trees, pool or exact numerics",
    "checkpoints": "a draft costs a checkpoint{cost}, a rejection decoding again what was "
    "accepted; no trees, pool or exact numerics",
    "none": "a session can only be emptied, so that nothing is drafted",
}


def plural(number: int, noun: str) -> str:
    """Return a number of things."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def show_size(count: int) -> str:
    """Return a number of bytes for people."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def show_time(seconds: float) -> str:
    """Return a duration for people."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def show_profile(profile: str, native_ms: float, exact_ms: float) -> str:
    """Return the profile that runs, and what a plain token costs under each; 0 is not known."""
    costs = {"native": native_ms, "exact": exact_ms}
    known = [f"{ms:.1f} ms {name}" for name, ms in costs.items() if ms > 0.0]
    return f"{profile} (a plain token: {', '.join(known)})" if known else profile


def show_kernels(kernels: str) -> str:
    """Return what computes on the CPU, to follow other facts; nothing where that is not known."""
    return f", CPU kernels: {kernels}" if kernels else ""


def show_layout(layout: str) -> str:
    """Return how a cache is laid out, to follow other facts; nothing where that is not known."""
    return f", cache: {layout}" if layout else ""


def show_memory(kind: str, snapshots: int = 0, checkpoint_ms: float = 0.0) -> str:
    """Return the kind and what it limits; empty for a kind that is not known.

    `kind` is a RollbackCapability in lower case; `checkpoint_ms` is 0 where that was not measured.
    """
    if kind not in _LIMITS:
        return ""
    cost = f" ({checkpoint_ms:.1f} ms)" if checkpoint_ms >= 0.05 else ""
    return f"{kind}: {_LIMITS[kind].format(snapshots=snapshots, cost=cost)}"
