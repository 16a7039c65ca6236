"""Whose request each one is, over HTTP: ids in and out, and one line of the log when it is over."""

from __future__ import annotations

import time
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider import logs, request_scope, tracing
from outrider.request_scope import CARRIED, REQUEST_ID, TRACE_RESPONSE, RequestScope
from outrider.tracing import NOTHING, TracedKind, TraceSpan

_SEEN_ELSEWHERE = frozenset({"/health", "/v1/health", "/livez", "/metrics", "/status"})
"""What is asked for again and again by machines; a line only where it fails."""
_HANGING_UP = 499  # status of a request whose client hung up, as nginx logs it
_MOST_METHOD = 16  # characters of an HTTP method that logs and traces hold
_ANTHROPIC = "/v1/messages"
_WARNING = "Outrider-Warning"
_MOST_WARNINGS = 8  # a head may have some kilobytes everywhere


def note_route(path: str) -> None:
    """Say which route answers the request that this task works for, by its path's pattern."""
    if (scope := request_scope.current()) is not None:
        scope.route = path


class RequestScopes:
    """Gives every request its id: the one in `X-Request-Id`, or a new one; and sends it back.

    `paths` are those of the routes, as any other may be what a user wrote.
    """

    def __init__(self, app: ASGIApp, paths: Collection[str]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        mine = _read(scope)
        mine.route = scope["path"] if scope["path"] in self._paths else ""
        begin = time.perf_counter()
        with request_scope.entered(mine):
            span = _begin_span(scope["method"], mine)
            answer = _Answer(send, mine, span)
            try:
                await self._app(scope, receive, answer.send)
            finally:
                _end_span(span, mine, answer)
                if answer.status >= 400 or mine.route not in _SEEN_ELSEWHERE:
                    _log(scope["method"], mine, answer, time.perf_counter() - begin)


class _Answer:
    """What goes back to the client of a request. `status`: 499 as long as it got nothing."""

    def __init__(self, send: Send, scope: RequestScope, span: TraceSpan) -> None:
        self._send = send
        self._scope = scope
        names = [REQUEST_ID]
        if scope.route.startswith(_ANTHROPIC):
            names.append("request-id")  # where its clients look for it
        self._headers = [(name.encode(), scope.id.encode()) for name in names]
        if span.trace_parent:
            self._headers.append((TRACE_RESPONSE.encode(), span.trace_parent.encode()))
        self.status = _HANGING_UP
        self.is_whole = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), *self._headers, *_warnings(self._scope)]
            message = {**message, "headers": headers}
        elif not message.get("more_body", False):
            self.is_whole = True
        await self._send(message)


def _warnings(scope: RequestScope) -> list[tuple[bytes, bytes]]:
    found = scope.passed_over
    if not found:
        return []
    more = f"; and {len(found) - _MOST_WARNINGS} more" if len(found) > _MOST_WARNINGS else ""
    said = f"passed over: {'; '.join(found[:_MOST_WARNINGS])}{more}"
    return [(_WARNING.encode(), said.encode())]


def _begin_span(method: str, mine: RequestScope) -> TraceSpan:
    """Begin the span of a request, which what is done for it is part of."""
    if mine.route in _SEEN_ELSEWHERE or not tracing.is_on():
        return NOTHING
    name = f"{method[:_MOST_METHOD]} {mine.route}".strip()
    span = tracing.begin(name, TracedKind.SERVER, request_id=mine.id)
    span.note(http__request__method=method[:_MOST_METHOD])
    mine.trace_parent = span.trace_parent
    return span


def _end_span(span: TraceSpan, mine: RequestScope, answer: _Answer) -> None:
    span.note(http__route=mine.route, http__response__status_code=answer.status)
    span.end(error=str(answer.status) if answer.status >= 500 else "")


def _read(scope: Scope) -> RequestScope:
    names = [(name.decode("latin-1"), value) for name, value in scope["headers"]]
    return request_scope.read_scope((name, value) for name, value in names if name in CARRIED)


def _log(method: str, mine: RequestScope, answer: _Answer, seconds: float) -> None:
    counts = {"prompt_tokens": mine.prompt_tokens, "tokens": mine.tokens}
    logs.event(
        "outrider.access",
        "request",
        over="http",
        method=method[:_MOST_METHOD],
        route=mine.route or "none",
        status=answer.status,
        **({} if answer.is_whole else {"cut_off": True}),
        **{name: count for name, count in counts.items() if count},
        seconds=round(seconds, 6),
    )
