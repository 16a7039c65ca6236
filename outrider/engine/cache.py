"""Who owns which sequence and what it holds: sessions, reuse, eviction. Pure.

A token history is the truth and a cache a hint: a session may lose its
sequence whenever it is idle, and is then sent everything again.

With streams each sequence has room for a whole context of its own, so giving a session a
sequence reserves its prompt and its token limit at once. A pool's sequences take from one number
of cells: a session is given a sequence and the room that its job may need together, and what idle
sessions hold counts until they are evicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

SHARED_PREFIX_MINIMUM = 16
"""Copying another session's cache is worth it from this many tokens on."""


@dataclass(slots=True, eq=False)
class Session:
    """One session's place in the cache.

    `token_ids` is what the sequence holds; empty while there is none.
    `salt` is whose that is: no session of another salt may see or copy it.
    `pinned` means that a stream is open: the session stays known, and loses its sequence only
    when room is short and nothing was asked on the stream for a while.
    `reserved` are the tokens it may grow to while it is pinned or has a job; 0 without a sequence.
    """

    session_id: bytes
    used_time: float
    sequence: int | None = None
    token_ids: list[int] = field(default_factory=list)
    salt: bytes = b""
    pinned: bool = False
    reserved: int = 0

    @property
    def room(self) -> int:
        """Tokens that are taken by what it holds and may come to hold."""
        return max(self.reserved, len(self.token_ids))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a session was put: first copy `count` tokens from `donor`, if there is one."""

    sequence: int
    donor: int | None
    count: int


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many leading tokens are equal."""
    limit = min(len(left), len(right))
    # Compare big slices: histories are long and mostly equal.
    if left[:limit] == right[:limit]:
        return limit
    equal, differs = 0, limit  # so many are equal, and among the first of so many one is not
    while differs - equal > 1:
        middle = (equal + differs) // 2
        if left[equal:middle] == right[equal:middle]:
            equal = middle
        else:
            differs = middle
    return equal


def tokens_to_keep(held: Sequence[int], wanted: Sequence[int], row_count: int) -> int:
    """Return how many held tokens stay so that `wanted` can be decoded with its last rows.

    Keeps what agrees, but never a position whose row is wanted, so that a
    repeated request yields its rows again.
    """
    return min(common_prefix(held, wanted), len(wanted) - row_count)


class SessionCache:
    """All sessions of one engine. Times are seconds of any one clock.

    `cells` are what the sessions hold together at most; without end where each sequence has its
    own. `idle_cells` of them are kept for sessions without stream or work: in a pool every row of
    the others looks over them.
    """

    def __init__(
        self, sequence_count: int, cells: float = math.inf, idle_cells: float = math.inf
    ) -> None:
        self._sessions: dict[bytes, Session] = {}
        self._free = list(range(sequence_count))
        self._cells = cells
        self._idle_cells = idle_cells
        self._left: set[int] = set()  # free sequences whose cells were not emptied yet

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: bytes) -> Session | None:
        """Return the session, if it is known."""
        return self._sessions.get(session_id)

    def lately_used(self, since: float) -> set[bytes]:
        """Return the sessions that have a stream or were used since then."""
        its = self._sessions.values()
        return {each.session_id for each in its if each.pinned or each.used_time >= since}

    def sequence_of(self, session_id: bytes) -> int | None:
        """Return the sequence of a session, if it has one."""
        session = self._sessions.get(session_id)
        return session.sequence if session is not None else None

    def spare(self) -> Session:
        """Return where a token may be decoded that is cut off again: nobody's sequence at best.

        Else that of the session that was not used for the longest time, after what it holds.
        """
        if self._free:
            return Session(b"", 0.0, self._free[0])
        holding = (each for each in self._sessions.values() if each.sequence is not None)
        return min(holding, key=lambda session: session.used_time)

    def enter(self, session_id: bytes, now: float) -> Session:
        """Return the session, made if need be, and note that it was used."""
        session = self._sessions.setdefault(session_id, Session(session_id, now))
        session.used_time = now
        return session

    def forget(self, session_id: bytes) -> None:
        """Drop the session and free its sequence."""
        session = self._sessions.pop(session_id, None)
        if session is not None and session.sequence is not None:
            self._let_go(session.sequence)
            session.sequence, session.token_ids = None, []  # for those who still know it

    def take_left(self) -> set[int]:
        """Return the sequences that were left since the last call and are free: empty them."""
        left, self._left = self._left, set()
        return left

    def cached_count(
        self,
        wanted: Sequence[int],
        salt: bytes,
        copied_count: Callable[[int, int], int] = lambda sequence, count: count,
    ) -> int:
        """Return how many tokens a new session of this text and salt need not decode.

        `copied_count` says how many of its first tokens a copy of a sequence has. From any thread:
        it looks at copies, so that what the owner of the cache does meanwhile is only not seen.
        """
        held = [(s.token_ids[: len(wanted)], s.sequence) for s in self._holders(salt)]
        shared = [(common_prefix(ids, wanted), sequence) for ids, sequence in held]
        count, sequence = max(shared, key=lambda each: each[0], default=(0, None))
        if sequence is None or count < SHARED_PREFIX_MINIMUM:
            return 0
        return copied_count(sequence, min(count, len(wanted) - 1))

    def place(
        self,
        session: Session,
        wanted: Sequence[int],
        busy: Collection[bytes],
        salt: bytes = b"",
        idle_since: float = -math.inf,
        room: int = 0,
    ) -> Placement | None:
        """Give the session a sequence and room for so many tokens; None where there is too little.

        `wanted` is what it is about to hold: the session of its salt with the
        longest common start lends it. `busy` sessions are never evicted. Idle ones
        go in the order of their last use, those with an open stream last, and only
        if they were not used after `idle_since`; the one that is taken over may
        itself be the donor, and then nothing is copied.
        """
        donor = self._donor(session, wanted, salt) if session.sequence is None else None
        source = donor.sequence if donor else None  # the donor may be evicted below
        count = common_prefix(donor.token_ids, wanted) if donor else len(session.token_ids)
        victims = self._victims(session, busy, donor, idle_since, max(room, len(session.token_ids)))
        if victims is None:
            return None
        session.reserved = room
        if session.sequence is not None:
            for victim in victims:
                self._evict(victim)
            return Placement(session.sequence, None, count)
        was_free = bool(self._free)
        for victim in victims:
            self._evict(victim)
        sequence = self._nearest_free() if was_free else self._free[-1]
        self._free.remove(sequence)
        self._left.discard(sequence)
        session.salt = salt
        session.sequence = sequence
        session.token_ids = list(wanted[:count])
        return Placement(sequence, source, count)

    def end_work(self, session_id: bytes, now: float) -> None:
        """Note that a session's job ended: without a stream it needs what it holds, no more."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.used_time = now
            if not session.pinned:
                session.reserved = 0

    @property
    def free_sequences(self) -> Sequence[int]:
        """The sequences that no session has."""
        return self._free

    def is_free(self, sequence: int) -> bool:
        """Return whether no session has the sequence."""
        return sequence in self._free

    def held_count(self, sequence: int) -> int:
        """Return how many tokens the owner of a sequence holds there; 0 for a free one."""
        owners = [s for s in self._sessions.values() if s.sequence == sequence]
        return len(owners[0].token_ids) if owners else 0

    def exchange(self, first: int, second: int) -> None:
        """Let two sequences change owners; either may have none."""
        other = {first: second, second: first}
        for session in self._sessions.values():
            if session.sequence is not None:
                session.sequence = other.get(session.sequence, session.sequence)
        self._free = [other.get(sequence, sequence) for sequence in self._free]
        self._left = {other.get(sequence, sequence) for sequence in self._left}

    def _nearest_free(self) -> int:
        """Return the free sequence nearest to those in use: adjacent ones share their work."""
        used = [s.sequence for s in self._sessions.values() if s.pinned and s.sequence is not None]

        def gap(free: int) -> int:
            return min((abs(free - sequence) for sequence in used), default=0)

        return min(self._free, key=lambda free: (gap(free), free))

    def _holders(self, salt: bytes) -> list[Session]:
        """Return the sessions of a salt that hold a sequence."""
        sessions = self._sessions.copy().values()  # others may come and go meanwhile
        return [s for s in sessions if s.sequence is not None and s.salt == salt]

    def _donor(self, session: Session | None, wanted: Sequence[int], salt: bytes) -> Session | None:
        """Return the session of the same salt that shares the longest useful start."""
        others = [each for each in self._holders(salt) if each is not session]
        best = max(others, key=lambda s: common_prefix(s.token_ids, wanted), default=None)
        if best is None or common_prefix(best.token_ids, wanted) < SHARED_PREFIX_MINIMUM:
            return None
        return best

    def _victims(
        self,
        session: Session,
        busy: Collection[bytes],
        donor: Session | None,
        idle_since: float,
        room: int,
    ) -> list[Session] | None:
        """Return the idle sessions to evict so that another fits; None where those do not do.

        So go those that hold more than is kept for the idle.

        The least recently used first, the donor late, and after all others those with an open
        stream.
        """
        others = [s for s in self._sessions.values() if s is not session]
        missing = sum(s.room for s in others) + room - self._cells
        needs_sequence = session.sequence is None and not self._free
        idle = [
            s
            for s in others
            if s.sequence is not None
            and s.session_id not in busy
            and (not s.pinned or s.used_time < idle_since)
        ]
        excess = sum(len(s.token_ids) for s in idle if not s.pinned) - self._idle_cells
        victims: list[Session] = []
        for victim in sorted(idle, key=lambda s: (s.pinned, s is donor, s.used_time)):
            is_excess = excess > 0 and not victim.pinned
            if needs_sequence or is_excess or (missing > 0 and victim.room):
                victims.append(victim)
                missing -= victim.room
                excess -= len(victim.token_ids)
                needs_sequence = False
        return victims if missing <= 0 and not needs_sequence else None

    def _evict(self, victim: Session) -> None:
        """Take the sequence from a session; it stays known while its stream is open."""
        assert victim.sequence is not None
        self._let_go(victim.sequence)
        victim.sequence = None
        victim.token_ids = []
        victim.reserved = 0
        if not victim.pinned:
            del self._sessions[victim.session_id]

    def _let_go(self, sequence: int) -> None:
        self._free.append(sequence)
        self._left.add(sequence)

    def expire(self, before: float, busy: Collection[bytes]) -> int:
        """Forget the idle sessions last used before a time; return how many."""
        old = [
            s.session_id
            for s in self._sessions.values()
            if not s.pinned and s.session_id not in busy and s.used_time < before
        ]
        for session_id in old:
            self.forget(session_id)
        return len(old)
