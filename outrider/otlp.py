"""Sends spans to a collector by OTLP. The only file that imports OpenTelemetry."""

from __future__ import annotations

import os
import socket
import threading
import time
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace.span import TraceState

import outrider
from outrider.tracing import TracedKind, Value

_KINDS = {
    TracedKind.INTERNAL: SpanKind.INTERNAL,
    TracedKind.SERVER: SpanKind.SERVER,
    TracedKind.CLIENT: SpanKind.CLIENT,
}
_CLOCK_STEP = 50_000_000
"""Nanoseconds that the clock of the day may differ from what it was thought to be."""


class OtlpTracer:
    """Makes spans, and sends those that are over in batches from a thread of its own.

    What the collector does not take in time is dropped; nobody waits for it. The sampler, headers
    and certificates are those of OpenTelemetry's own environment variables.
    """

    def __init__(self, endpoint: str, service: str) -> None:
        about = {
            "service.name": service,
            "service.version": outrider.__version__,
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        }
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(endpoint)))
        self._tracer = self._provider.get_tracer("outrider", outrider.__version__)
        self._clock = _DayClock()

    def begin(
        self,
        name: str,
        kind: TracedKind,
        parent: tuple[str, str],
        at: float | None,
        attributes: dict[str, Value],
    ) -> _OtlpSpan:
        """Begin a span of a parent, W3C's trace parent and state, both empty for none."""
        above = None if not parent[0] else set_span_in_context(NonRecordingSpan(_context(*parent)))
        span = self._tracer.start_span(
            name, above, _KINDS[kind], _named(attributes), start_time=self._clock.nanoseconds(at)
        )
        return _OtlpSpan(span, self._clock)

    def stop(self, seconds: float) -> None:
        """Send what was not sent yet, but no longer than so."""
        # OpenTelemetry waits as long as its exporter tries again, which may be half a minute.
        last = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        last.start()
        last.join(seconds)


class _OtlpSpan:
    """A span of OpenTelemetry's."""

    def __init__(self, span: Span, clock: _DayClock) -> None:
        self._span = span
        self._clock = clock
        self._is_over = False

    @property
    def trace_parent(self) -> str:
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0xFF:02x}"

    @property
    def is_recorded(self) -> bool:
        return self._span.is_recording()

    def note(self, **attributes: Value) -> None:
        if not self._is_over:
            self._span.set_attributes(_named(attributes))

    def end(self, at: float | None = None, error: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(self._clock.nanoseconds(at))


class _DayClock:
    """Turns times of the performance counter into times of the day, whose clock may be set."""

    def __init__(self) -> None:
        self._zero = self._measure()  # the time of the day when the counter was 0

    def _measure(self) -> int:
        return time.time_ns() - time.perf_counter_ns()

    def nanoseconds(self, at: float | None) -> int:
        """Return a time of the day, of now where there is none."""
        zero = self._measure()
        if abs(zero - self._zero) > _CLOCK_STEP:
            self._zero = zero
        return self._zero + (time.perf_counter_ns() if at is None else int(at * 1e9))


def _named(attributes: dict[str, Value]) -> dict[str, Value]:
    """Return attributes by OpenTelemetry's names: those with `__` are its own, the others ours."""
    return {
        name.replace("__", ".") if "__" in name else f"outrider.{name}": value
        for name, value in attributes.items()
    }


def _context(parent: str, state: str) -> SpanContext:
    _, trace_id, span_id, flags = parent.split("-")
    return SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16)),
        trace_state=TraceState.from_header([state]) if state else None,
    )


def _exporter(endpoint: str) -> SpanExporter:
    parts = urlsplit(endpoint)
    if parts.scheme.startswith("grpc"):
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=parts.netloc, insecure=parts.scheme == "grpc")
    from opentelemetry.exporter.otlp.proto.http import trace_exporter

    if parts.path in ("", "/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    return trace_exporter.OTLPSpanExporter(endpoint=endpoint)
