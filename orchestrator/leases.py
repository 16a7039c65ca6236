"""The peers of a pool, whatever their role: whether they are used, and which texts lease them."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

from orchestrator.peers import Peer
from outrider import logs
from outrider.core.health import Health, State
from outrider.core.route import HeldTexts, RankedPeer


class PooledPeer:
    """A draft or a target in a pool, dialled or joined."""

    def __init__(self, peer: Peer, health: Health | None = None) -> None:
        self.peer = peer
        self.health = health or Health()
        """Whether it is used; that of a draft outlives its connection."""
        self.held = HeldTexts()
        """What it probably holds; kept where there are several of its role."""
        self.leases: set[PeerLease[PooledPeer]] = set()
        """Of the texts that are there now."""
        self.passed_over = 0  # leases of others since its own last one

    @property
    def address(self) -> str:
        """Where it is, for people."""
        return self.peer.address

    @property
    def session_count(self) -> int:
        """Sessions that it can hold at the same time."""
        return self.peer.model.session_count if self.peer.model is not None else 1

    @property
    def generation_count(self) -> int:
        """Generations that lease it now."""
        return len(self.leases)

    @property
    def is_ejected(self) -> bool:
        """Whether it gets nothing for a while."""
        return self.health.state(time.monotonic()) is State.OPEN

    def note_failure(self, reason: str) -> None:
        """It sent what cannot be, decoded nothing, or lost a text though it serves."""
        role, detail = self.peer.role, {"address": self.address, "detail": reason}
        logs.warning("outrider.orchestrator", f"{role} failed", **detail)
        self.health.note_failure(time.monotonic(), reason)

    @property
    def is_full(self) -> bool:
        """Whether another text would cost one that it holds."""
        return self.generation_count >= self.session_count

    def ranked(self, seconds: float) -> RankedPeer:
        """Return what its role says of it for a text, and what is known of any peer."""
        return RankedPeer(
            seconds=seconds,
            text_count=self.generation_count,
            is_full=self.is_full,
            passed_over=self.passed_over,
        )

    def misfit(self) -> str:
        """Return why it cannot be used however well it does, in one line; empty where it can."""
        raise NotImplementedError

    def obstacle(self) -> str:
        """Return why nothing new comes here, in one line; empty where it may."""
        if not self.peer.ready:
            return self.peer.detail
        seconds = self.health.seconds_left(time.monotonic())
        ejected = f"ejected for {seconds:.0f} s: {self.health.reason}" if seconds else ""
        return self.misfit() or ejected


P_co = TypeVar("P_co", bound=PooledPeer, covariant=True)


class PeerLease(Generic[P_co]):
    """A text at one peer: from when it goes there until it ends, or continues elsewhere."""

    def __init__(self, leased: P_co, text: tuple[bytes, ...] = (), token_count: int = 0) -> None:
        """`text` is what it begins with, by digests; none where there is no other peer."""
        self.leased = leased
        self.text = text
        self.unread_count = max(0, token_count - leased.held.count(text))
        """Tokens that the peer has to read of it, as far as is known; 0 once it has."""
        self.is_read = False
        leased.passed_over = 0
        leased.leases.add(self)
        leased.held.note(text, leased.session_count)

    def note_read(self, held_count: int) -> None:
        """The peer has read the text, of which it held so many tokens."""
        self.unread_count, self.is_read = 0, True
        self.leased.held.correct(self.text, held_count)
        self.leased.held.note(self.text, self.leased.session_count)

    def end(self, text: tuple[bytes, ...] = ()) -> None:
        """Give the peer back, which holds `text` now."""
        self.leased.leases.discard(self)
        self.leased.held.note(text, self.leased.session_count)
