"""What stands before every route: the host, bodies and their limits, errors. Plain ASGI.

Nothing here comes between a route and its client, so a route sees at once when
the client hangs up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http_errors import HttpFailure

Refusal = Callable[[str, HttpFailure], Response]
"""Makes the answer to a refused request of a path."""

_PORT = re.compile(r":\d*$")


class InternalErrors:
    """Answers what no handler knows, a bug that is, in the shape of the route."""

    def __init__(self, app: ASGIApp, answer: Callable[[str, Exception], Response]) -> None:
        self._app = app
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application."""
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if has_begun:
                raise
            await self._answer(scope["path"], error)(scope, receive, send)


class HeadAsGet:
    """Answers HEAD as GET; the server keeps the body to itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class AnyContentType:
    """Takes every body for JSON, as llama-server does: `curl -d` calls it a form.

    Not what a web page sends. Its JSON is asked for first, see CORS; forms and plain text are not,
    so that any page could have a visitor's browser generate here.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application."""
        if scope["type"] == "http" and scope["method"] == "POST":
            headers = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
            if not any(name == b"origin" for name, _ in headers):
                scope = {**scope, "headers": [*headers, (b"content-type", b"application/json")]}
        await self._app(scope, receive, send)


class KnownHost:
    """Refuses requests whose `Host` is neither loopback's nor one of `hosts`.

    That is what a browser sends for a page whose own name was made to resolve to this address: to
    the browser the page asks its own server, and may read the answer.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], refusal: Refusal) -> None:
        self._app = app
        self._hosts = hosts
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application."""
        named = [value for name, value in scope.get("headers", ()) if name == b"host"]
        if all(is_known_host(value.decode("latin-1"), self._hosts) for value in named):
            await self._app(scope, receive, send)
            return
        failure = HttpFailure(403, "the Host of the request is not this server: see --http-hosts")
        await self._refusal(scope["path"], failure)(scope, receive, send)


def is_known_host(header: str, hosts: Collection[str]) -> bool:
    """Return whether the value of a `Host` header is loopback's or one of `hosts`."""
    name = _PORT.sub("", header).strip("[]").lower().rstrip(".")
    if name in hosts or name == "localhost" or name.endswith(".localhost"):
        return True
    with suppress(ValueError):
        return ip_address(name).is_loopback
    return False


@dataclass(slots=True)
class BodyBounds:
    """What bodies may be; it may change between two requests."""

    most: int  # bytes
    seconds: float  # for all of one to come


class BodyLimit:
    """Refuses bodies beyond some bounds, also those that do not say their length."""

    def __init__(self, app: ASGIApp, bounds: BodyBounds, refusal: Refusal) -> None:
        self._app = app
        self._bounds = bounds
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most, seconds = self._bounds.most, self._bounds.seconds
        reason = f"the body is longer than {most} bytes"
        if _announced_length(scope) > most:
            await self._refusal(scope["path"], HttpFailure(413, reason))(scope, receive, send)
            return
        left, is_read = most, False
        deadline = asyncio.get_running_loop().time() + seconds

        async def counted() -> Message:
            nonlocal left, is_read
            if is_read:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body took more than {seconds:g} s") from None
            is_read = not message.get("more_body", False)
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, reason)
            return message

        await self._app(scope, counted, send)


def _announced_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
