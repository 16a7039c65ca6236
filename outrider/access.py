"""Whom a process lets in, for what, and how much of it: one `Access` for all of its ports.

A port says who calls (`admit`), which puts the caller where the rest of the work finds it
(`current_caller`): what counts generations need not know which port one came by.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from outrider.audit import Audit
from outrider.errors import OutriderError, Unauthenticated
from outrider.grants import Grant, Right, find
from outrider.limits import NO_LIMITS, Ledger

Grants = Callable[[], Sequence[Grant]]
"""Returns who is let in now; it may be others at the next call."""

HIDDEN = "(hidden)"

_ADDRESS = re.compile(r"(?<![^\s()'\",;])[^\s()'\",;]+:[0-9]+(/[^\s()'\",;]*|(?!\w))")
"""HOST:PORT as services and gRPC write it, a scheme before it or a path after it included.

It begins where a word does: else a long word is searched from each of its characters.
"""

_OPTION = "--"
"""Before the name of a token that an option names: no name in a file begins so."""

THE_TOKEN = f"{_OPTION}token-file"
"""The name of the single token, which has all rights."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: by which grant, from where, and what it showed for it."""

    grant: Grant
    peer: str = ""
    credentials: bytes = b""
    is_admitted: bool = False
    """Whether its work was let in before a restart: that counts, and is not refused."""

    @property
    def name(self) -> str:
        """The name of its token; empty where none is wanted."""
        return self.grant.name

    @property
    def own_name(self) -> str:
        """The name of a token that it need not share with all others; empty without one."""
        return "" if self.name.startswith(_OPTION) else self.name


ANYONE = Caller(Grant(name="", digest=b""))
"""The caller of a port that wants no token."""

_CALLER: ContextVar[Caller] = ContextVar("caller", default=ANYONE)


def current_caller() -> Caller:
    """Return for whom this task works."""
    return _CALLER.get()


def work_for(caller: Caller) -> None:
    """Let this task, and those that it starts from now on, work for a caller."""
    _CALLER.set(caller)


def said(error: OutriderError) -> str:
    """Return an error's text as the caller may read it: addresses of services are for operators.

    What names a field speaks of what the caller sent, and of no service.
    """
    is_shown = "field" in error.metadata or current_caller().grant.allows(Right.OPERATOR)
    return str(error) if is_shown else without_addresses(str(error))


def without_addresses(text: str) -> str:
    """Return a text about services for those who may not know where they are."""
    return _ADDRESS.sub(HIDDEN, text)


def note_peer(peer: str) -> None:
    """Add where the caller calls from, where that is known late."""
    if not current_caller().peer:
        _CALLER.set(replace(current_caller(), peer=peer))


class Access:
    """Who is let in, what they use, and the lines about those who were refused.

    Without `grants` nobody needs a token, and nobody has limits.
    """

    def __init__(
        self,
        grants: Grants | None = None,
        audit: Audit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grants = grants
        self._ledger = Ledger()
        self._clock = clock
        self.audit = audit or Audit()

    @property
    def is_guarded(self) -> bool:
        """Whether a token is needed."""
        return self._grants is not None

    def with_grants(self, grants: Grants | None) -> Access:
        """Return the access of another port of this process, where these are let in."""
        other = Access(grants, self.audit, self._clock)
        other._ledger = self._ledger
        return other

    def admit(self, shown: Sequence[bytes], peer: str = "") -> Caller:
        """Return who shows these tokens. Raises Unauthenticated unless one of them is known."""
        if self._grants is None:
            return replace(ANYONE, peer=peer)
        grants = self._grants()
        for grant, token in [(find(grants, token), token) for token in shown]:
            if grant is not None:
                return Caller(grant, peer, token)
        raise Unauthenticated("every call must carry the token of this service (--token-file)")

    def returning(self, name: str) -> Caller:
        """Return who holds the token of a name, for work that a restart interrupted.

        Where there is no such token any more, nothing limits that work, and it has no rights.
        """
        if not name:  # no token was wanted, or it was the single one
            return replace(ANYONE, is_admitted=True)
        grants = self._grants() if self._grants is not None else ()
        bare = Grant(name=name, digest=b"", rights=frozenset())
        grant = next((each for each in grants if each.name == name), bare)
        return Caller(grant, is_admitted=True)

    def count_request(self, caller: Caller) -> None:
        """Count a request of a caller. Raises LimitReached."""
        self._ledger.count_request(caller.name, caller.grant.limits, self._clock())

    def check_tokens(self, caller: Caller) -> None:
        """Raise LimitReached if the caller's tokens of this minute are used."""
        self._ledger.check_tokens(caller.name, caller.grant.limits, self._clock())

    def spend(self, caller: Caller, token_count: int) -> None:
        """Count tokens of a caller."""
        self._ledger.spend(caller.name, caller.grant.limits, token_count, self._clock())

    @contextmanager
    def generation(self, caller: Caller, completion_count: int) -> Iterator[None]:
        """Count completions of a caller as in flight. Raises LimitReached, noted."""
        limits = NO_LIMITS if caller.is_admitted else caller.grant.limits
        try:
            self._ledger.begin(caller.name, limits, completion_count, self._clock())
        except OutriderError as error:
            self.refused(caller, "a generation", error)
            raise
        try:
            yield
        finally:
            self._ledger.end(caller.name, completion_count)

    def check(self, caller: Caller, right: Right, what: str) -> None:
        """Raise PermissionDenied, noted, unless the caller has a right."""
        try:
            caller.grant.check(right)
        except OutriderError as error:
            self.refused(caller, what, error)
            raise

    def refused(self, caller: Caller, what: str, error: OutriderError) -> None:
        """Note that a caller was refused."""
        self.audit.refused(caller.name, caller.peer, what, error)
