"""Takes in whose request a call is, and logs one line when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc

from outrider import logs, tracing
from outrider.request_scope import REQUEST_ID, TRACE_RESPONSE, RequestScope, entered, read_scope
from outrider.rpc.interceptor import Interceptor, served, serving
from outrider.tracing import NOTHING, TracedKind, TraceSpan

_ORCHESTRATOR = "/outrider.v1.OrchestratorService/"
_SEEN_ELSEWHERE = frozenset({f"{_ORCHESTRATOR}GetStatus", f"{_ORCHESTRATOR}PollGeneration"})
"""What is called again and again while something else continues; a line only where it fails."""


class RequestInterceptor(Interceptor):
    """Gives every call its request's id: the one in its metadata, or a new one.

    It stands outside all others, of which the one against stalls makes every handler a coroutine.
    Calls of clients get the id back in their initial metadata.
    """

    def wrap(self, handler: Any, method: str) -> Any:
        return serving(handler, _scoped(served(handler), method, handler.response_streaming))


def _scoped(method: Callable[..., Any], name: str, is_stream: bool) -> Callable[..., Any]:
    is_clients = name.startswith(_ORCHESTRATOR)

    async def call(request: Any, context: Any) -> Any:
        scope = read_scope(context.invocation_metadata() or ())
        scope.route = name
        begin, outcome = time.perf_counter(), "CANCELLED"
        with entered(scope):
            span = _begin_span(scope, is_clients)
            try:
                if is_clients:
                    await context.send_initial_metadata(_shown(scope, span))
                answer = await method(request, context)
                outcome = "OK"
                return answer
            except Exception:
                outcome = _status(context)
                raise
            finally:
                span.note(rpc__grpc__status_code=_number(outcome))
                span.end(error="" if outcome == "OK" else outcome)
                if _is_logged(scope, is_stream, outcome):
                    _log(scope, outcome, time.perf_counter() - begin)

    return call


def _begin_span(scope: RequestScope, is_clients: bool) -> TraceSpan:
    """Begin the span of a call, which what is done for it is part of.

    Services that only orchestrators call begin no trace by themselves: they are asked for their
    state every few seconds.
    """
    is_traced = scope.route not in _SEEN_ELSEWHERE if is_clients else bool(scope.trace_parent)
    if not is_traced or not tracing.is_on():
        return NOTHING
    service, _, method = scope.route[1:].partition("/")
    span = tracing.begin(scope.route[1:], TracedKind.SERVER, request_id=scope.id)
    span.note(rpc__system="grpc", rpc__service=service, rpc__method=method)
    scope.trace_parent = span.trace_parent
    return span


def _shown(scope: RequestScope, span: TraceSpan) -> tuple[tuple[str, str], ...]:
    """Return what a client is shown of its request before the first message."""
    if not span.trace_parent:
        return ((REQUEST_ID, scope.id),)
    return ((REQUEST_ID, scope.id), (TRACE_RESPONSE, span.trace_parent))


def _number(outcome: str) -> int:
    """Return the number of a status."""
    return int(grpc.StatusCode[outcome].value[0])


def _status(context: Any) -> str:
    """Return the status that a call was aborted with."""
    code = context.code()
    with suppress(ValueError, KeyError):
        return next(each.name for each in grpc.StatusCode if code in (each, each.value[0]))
    return "UNKNOWN"


def _is_logged(scope: RequestScope, is_stream: bool, outcome: str) -> bool:
    """Of services that only orchestrators call, each text of a request is a line, and what fails.

    They are asked for other things all the time.
    """
    if outcome not in ("OK", "CANCELLED"):
        return True
    if scope.route.startswith(_ORCHESTRATOR):
        return scope.route not in _SEEN_ELSEWHERE
    return is_stream and scope.is_given


def _log(scope: RequestScope, outcome: str, seconds: float) -> None:
    counts = {"prompt_tokens": scope.prompt_tokens, "tokens": scope.tokens}
    logs.event(
        "outrider.access",
        "request",
        over="grpc",
        route=scope.route,
        status=outcome,
        **{name: count for name, count in counts.items() if count},
        seconds=round(seconds, 6),
    )
