"""Spans of what is done for a request, for a collector of traces; nothing where that is off.

Off is the default, imports nothing and costs a comparison. `outrider/otlp.py` is what it turns on.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol
from urllib.parse import urlsplit

from outrider import request_scope
from outrider.errors import InvalidConfig
from outrider.extensions import installing

Value = str | bool | int | float
"""Of an attribute: counts, seconds, names of our own making; never text of users."""

SCHEMES = ("grpc", "grpcs", "http", "https")

_FIRST = 8  # repetitions that are all recorded; of later ones the 16th, the 32nd and so on


class TracedKind(Enum):
    """Which side of a call a span is, if it is one."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class TraceSpan(Protocol):
    """Something that takes time, until `end`."""

    @property
    def trace_parent(self) -> str:
        """W3C's name of it, for what is part of it; empty where nothing is traced."""

    @property
    def is_recorded(self) -> bool:
        """Whether it will be sent; what would be noted of others need not be found out."""

    def note(self, **attributes: Value) -> None:
        """Say something of it."""

    def end(self, at: float | None = None, error: str = "") -> None:
        """Let it be over, now or at a time of the performance counter. Once; later ones count not.

        With an `error` it failed.
        """


class Tracer(Protocol):
    """Makes spans."""

    def begin(
        self,
        name: str,
        kind: TracedKind,
        parent: tuple[str, str],
        at: float | None,
        attributes: dict[str, Value],
    ) -> TraceSpan:
        """Begin a span of a parent, W3C's trace parent and state, both empty for none."""

    def stop(self, seconds: float) -> None:
        """Send what was not sent yet, but no longer than so."""


class _Nothing:
    trace_parent = ""
    is_recorded = False

    def note(self, **attributes: Value) -> None:
        """Nobody wants to know."""

    def end(self, at: float | None = None, error: str = "") -> None:
        """There is nothing to end."""


NOTHING: TraceSpan = _Nothing()
"""The span where nothing is traced."""

_tracer: Tracer | None = None


def begin(
    name: str,
    kind: TracedKind = TracedKind.INTERNAL,
    *,
    parent: TraceSpan | None = None,
    at: float | None = None,
    **attributes: Value,
) -> TraceSpan:
    """Begin a span, now or at a time of the performance counter.

    Without a `parent` it is part of what this task's request is part of, or the root of a trace.
    """
    if _tracer is None:
        return NOTHING
    scope = request_scope.current()
    state = "" if scope is None else scope.trace_state
    if parent is not None:
        above = parent.trace_parent
    else:
        above = "" if scope is None else scope.trace_parent
    return _tracer.begin(name, kind, (above, state), at, attributes)


def is_on() -> bool:
    """Return whether anything is traced."""
    return _tracer is not None


def is_sampled(number: int) -> bool:
    """Return whether the span of a repeated step is worth one: the first, then ever fewer."""
    return number <= _FIRST or number & (number - 1) == 0


def check_endpoint(endpoint: str) -> None:
    """Raise InvalidConfig unless traces could be sent there."""
    try:
        parts = urlsplit(endpoint)
        is_fit = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fit = False
    if not is_fit:
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise InvalidConfig("traces", f"must be a URL of one of {schemes}, not {endpoint!r}")


def start(endpoint: str, service: str) -> None:
    """Trace from now on, and send the spans to a collector. Raises InvalidConfig.

    `endpoint` is `grpc://HOST:PORT`, `http://HOST:PORT` or the same with TLS.
    """
    global _tracer  # noqa: PLW0603 - the process has one, as a log
    check_endpoint(endpoint)
    try:
        from outrider.otlp import OtlpTracer
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        message = f"sending them needs OpenTelemetry: {installing('traces')}"
        raise InvalidConfig("traces", message) from None
    _tracer = OtlpTracer(endpoint, service)


def stop(seconds: float = 2.0) -> None:
    """Send what was not sent yet, but no longer than so, and trace nothing any more."""
    global _tracer
    tracer, _tracer = _tracer, None
    if tracer is not None:
        tracer.stop(seconds)
