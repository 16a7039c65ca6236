"""Who is there: drafts by their addresses, and how much each orchestrator has to do. Pure.

Replicas say so again and again; who was silent for `LEASE_SECONDS` is gone. A directory that has
just begun knows little, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BEAT_SECONDS = 1.0
LEASE_SECONDS = 15.0
_MOST = 10_000  # replicas of a kind that are remembered


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a directory knows of the drafts."""

    addresses: tuple[str, ...]
    complete: bool  # whether one that is not among them is gone


@dataclass(slots=True)
class Roll:
    """Drafts and orchestrators that were heard of; times are seconds of one clock."""

    begun: float
    _drafts: dict[str, tuple[float, str, str]] = field(default_factory=dict)
    """By replica: when it was heard of, its address, and its node if only that can reach it."""
    _loads: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By replica: when it was heard of, and its generations in flight."""

    def note_draft(self, now: float, replica: str, address: str, node: str = "") -> int:
        """A draft is there; return the generations in flight at all orchestrators."""
        if replica in self._drafts or len(self._drafts) < _MOST:
            self._drafts[replica] = (now, address, node)
        self._forget(now)
        return sum(load for _, load in self._loads.values())

    def note_load(self, now: float, replica: str, load: int, node: str) -> Drafts:
        """An orchestrator has so many generations in flight; return the drafts for it."""
        if replica in self._loads or len(self._loads) < _MOST:
            self._loads[replica] = (now, load)
        self._forget(now)
        reachable = {address for _, address, only in self._drafts.values() if only in ("", node)}
        return Drafts(tuple(sorted(reachable)), now - self.begun >= LEASE_SECONDS)

    def _forget(self, now: float) -> None:
        oldest = now - LEASE_SECONDS
        self._drafts = {name: one for name, one in self._drafts.items() if one[0] > oldest}
        self._loads = {name: one for name, one in self._loads.items() if one[0] > oldest}


def followed(known: tuple[str, ...], drafts: Drafts) -> tuple[str, ...]:
    """Return the drafts to dial, after those that were."""
    if drafts.complete:
        return drafts.addresses
    return tuple(sorted({*known, *drafts.addresses}))
