"""A collector of traces: takes spans in by OTLP, over gRPC and HTTP, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as stubs


@dataclass(frozen=True, slots=True)
class Seen:
    """A span as it came. Times are in seconds."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    begin: float
    end: float
    attributes: dict[str, Any]
    is_error: bool
    state: str

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end - self.begin


@dataclass(slots=True)
class Collector:
    """What came so far, and where more may come."""

    endpoint: str
    spans: list[Seen] = field(default_factory=list)

    def take(self, data: bytes) -> None:
        """Take in a request of either wire."""
        for of_service in messages.ExportTraceServiceRequest.FromString(data).resource_spans:
            about = {each.key: _value(each.value) for each in of_service.resource.attributes}
            for scope in of_service.scope_spans:
                self.spans += [_read(about["service.name"], span) for span in scope.spans]

    def named(self, name: str) -> list[Seen]:
        """Return the spans of a name, in the order of their beginnings."""
        return sorted((s for s in self.spans if s.name == name), key=lambda s: s.begin)

    def below(self, span: Seen) -> list[Seen]:
        """Return the spans that are part of one."""
        return [each for each in self.spans if each.parent_id == span.span_id]

    def parent(self, span: Seen) -> Seen:
        """Return what a span is part of."""
        [found] = [each for each in self.spans if each.span_id == span.parent_id]
        return found


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def _read(service: str, span: Any) -> Seen:
    return Seen(
        span.name,
        service,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9,
        {each.key: _value(each.value) for each in span.attributes},
        span.status.code == span.status.STATUS_CODE_ERROR,
        span.trace_state,
    )


TIMES = ("draft_wait", "queue", "decode", "sample", "own_draft", "network")


def explained(collector: Collector, generation: Seen) -> float:
    """Return the share of a generation's time that its trace says what it went to.

    That is its plan, and of each round what it waited for; not what was between two of them.
    """
    [plan] = [each for each in collector.below(generation) if each.name == "plan"]
    [completion] = [each for each in collector.below(generation) if each.name == "completion"]
    names = ("prompt", "round", "rounds")
    steps = [each for each in collector.below(completion) if each.name in names]
    known = sum(step.attributes[f"outrider.{name}_seconds"] for step in steps for name in TIMES)
    return float((plan.seconds + known) / generation.seconds)


@contextmanager
def collecting(scheme: str) -> Iterator[Collector]:
    """Give a collector that listens, over "grpc" or "http"."""
    with _over_grpc() if scheme == "grpc" else _over_http() as collector:
        yield collector


@contextmanager
def _over_grpc() -> Iterator[Collector]:
    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    collector = Collector(f"grpc://127.0.0.1:{port}")

    class Servicer(stubs.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> messages.ExportTraceServiceResponse:
            collector.take(request.SerializeToString())
            return messages.ExportTraceServiceResponse()

    stubs.add_TraceServiceServicer_to_server(Servicer(), server)
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


@contextmanager
def _over_http() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                collector.take(body)
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
