"""How the commands show what kind a model's memory is, and what that limits. Pure."""

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


def show_memory(kind: str, snapshots: int = 0, checkpoint_ms: float = 0.0) -> str:
    """Return the kind and what it limits; empty for a kind that is not known.

    `kind` is a RollbackCapability in lower case; `checkpoint_ms` is 0 where that was not measured.
    """
    if kind not in _LIMITS:
        return ""
    cost = f" ({checkpoint_ms:.1f} ms)" if checkpoint_ms >= 0.05 else ""
    return f"{kind}: {_LIMITS[kind].format(snapshots=snapshots, cost=cost)}"
