"""Whose request a task works for: its id, where it stands in a trace, and what it brought so far.

Tasks inherit it from the one that started them, so all that happens for a request, at any depth,
logs its id and hands it on to the services that it calls.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, replace

REQUEST_ID = "x-request-id"
TRACE_PARENT = "traceparent"
TRACE_STATE = "tracestate"
TRACE_RESPONSE = "traceresponse"
"""W3C's too: says to a caller which span its request became."""
CARRIED = (REQUEST_ID, TRACE_PARENT, TRACE_STATE)
"""Headers over HTTP, metadata over gRPC."""

MOST_ID = 128  # characters of a request's id
_MOST_STATE = 512  # characters of `tracestate`, as W3C has it

_ID = re.compile(rf"[!-~]{{1,{MOST_ID}}}")
_STATE = re.compile(rf"[ -~]{{1,{_MOST_STATE}}}")
# Version 00 alone: what later ones add, nobody here could hand on unharmed.
_PARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(slots=True, eq=False)
class RequestScope:
    """A request while it is served. Tasks that work for it share this one object."""

    id: str
    is_given: bool = False  # the caller named it
    trace_parent: str = ""  # W3C's, of the span that calls made now are part of; empty: of none
    trace_state: str = ""  # goes with it, unread
    route: str = ""  # what was called, without anything that a user wrote
    prompt_tokens: int = 0
    tokens: int = 0  # written so far, of all completions
    passed_over: tuple[str, ...] = ()  # of what was asked for, in printable ASCII

    def carried(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of calls that are made for it."""
        values = zip(CARRIED, (self.id, self.trace_parent, self.trace_state), strict=True)
        return tuple((name, value) for name, value in values if value)


_current: ContextVar[RequestScope | None] = ContextVar("request", default=None)


def current() -> RequestScope | None:
    """Return the request that this task works for; None where it works for none."""
    return _current.get()


def carried(trace_parent: str = "") -> tuple[tuple[str, str], ...]:
    """Return the metadata that a call made now carries on; its own span's, if it has one."""
    scope = _current.get()
    if scope is None:
        return ()
    return (replace(scope, trace_parent=trace_parent) if trace_parent else scope).carried()


@contextmanager
def entered(scope: RequestScope) -> Iterator[RequestScope]:
    """Let this task work for a request; those that it starts meanwhile do, too."""
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


def nobodys() -> Context:
    """Return the context of a task that outlives the request it happens to be started in."""
    return Context()


def read_scope(headers: Mapping[str, str] | Iterable[tuple[str, str | bytes]]) -> RequestScope:
    """Return the scope of a request by its headers or metadata, with names in lower case.

    What is too long, or holds anything but printable ASCII, counts as not sent. An id that is
    missing is made.
    """
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    # Of a name that is sent twice neither counts: nobody could say which is meant.
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in CARRIED:
            text = value if isinstance(value, str) else value.decode("latin-1")
            found[name] = "" if name in found else text
    given = _whole(_ID, found.get(REQUEST_ID, ""))
    parent = _whole(_PARENT, found.get(TRACE_PARENT, ""))
    state = _whole(_STATE, found.get(TRACE_STATE, "")) if parent else ""
    return RequestScope(given or secrets.token_hex(16), bool(given), parent, state)


def _whole(pattern: re.Pattern[str], text: str) -> str:
    return text if pattern.fullmatch(text) else ""
