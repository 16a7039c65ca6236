"""Stands before every route: who calls, whether they may, and whether a request is left to them."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import page
from gateway.http_errors import HttpFailure, failure_of
from gateway.middleware import Refusal
from outrider.access import Access, Caller, work_for
from outrider.errors import OutriderError, Unauthenticated
from outrider.grants import Right

OPEN_PATHS = frozenset(
    {"/", "/health", "/v1/health", "/livez", *(f"/page/{name}" for name in page.PARTS)}
)
"""What needs no token: the page, which has nothing in it, and whether the server is well."""

OPERATORS_PATHS = frozenset({"/metrics", "/slots"})
"""What shows everybody's work. All others are for clients, and some show an operator more."""

UNCOUNTED_PATHS = OPERATORS_PATHS | {
    *("/status", "/props", "/models", "/v1/models"),
    *("/apply-template", "/tokenize", "/detokenize", "/v1/messages/count_tokens"),
    *("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"),
    *("/api/tags", "/api/ps", "/api/version", "/api/show"),
}
"""What the limit of requests by the minute leaves out: no model computes for it."""

_KEY_HEADERS = (b"authorization", b"x-api-key")


class Rights:
    """Lets requests through whose token is known, as `Authorization: Bearer` or `X-Api-Key`.

    The token must have the path's right, and a request left to it. The page and the health are
    open. A refused request is noted with its path if that is one of `paths`: others may hold
    anything.
    """

    def __init__(
        self, app: ASGIApp, access: Access, paths: Collection[str], refusal: Refusal
    ) -> None:
        self._app = app
        self._access = access
        self._paths = paths
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            failure = self._obstacle(scope)
            if failure is not None:
                await self._refusal(scope["path"], failure)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _obstacle(self, scope: Scope) -> HttpFailure | None:
        """Return why a request is refused; None, with this task working for its caller, if not."""
        peer = _peer(scope)
        caller: Caller | None = None
        try:
            caller = self._access.admit(_shown(scope), peer)
            path = scope["path"]
            caller.grant.check(Right.OPERATOR if path in OPERATORS_PATHS else Right.CLIENT)
            if path not in UNCOUNTED_PATHS:
                self._access.count_request(caller)
        except OutriderError as error:
            name = caller.name if caller else ""
            self._access.audit.refused(name, peer, self._what(scope), error)
            return _failure(error)
        work_for(caller)
        return None

    def _what(self, scope: Scope) -> str:
        path = scope["path"]
        return f"{scope['method']} {path if path in self._paths else 'another path'}"


def _failure(error: OutriderError) -> HttpFailure:
    if isinstance(error, Unauthenticated):
        return HttpFailure(401, "invalid API key: send it as Authorization: Bearer KEY")
    return failure_of(error)


def _shown(scope: Scope) -> list[bytes]:
    """Return what a request shows."""
    return [
        (value.removeprefix(b"Bearer ") if name == b"authorization" else value).strip()
        for name, value in scope["headers"]
        if name in _KEY_HEADERS
    ]


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""
