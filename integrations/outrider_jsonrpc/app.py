"""The methods at /rpc over HTTP: one route, behind what stands before the gateway's."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.access_log import RequestScopes
from gateway.config import HttpConfig
from gateway.event_streams import ClientGone, until_gone
from gateway.http_errors import HttpFailure
from gateway.middleware import BodyBounds, BodyLimit, KnownHost
from gateway.rights import Rights
from outrider import logs, request_scope
from outrider.access import Access, current_caller
from outrider_jsonrpc.methods import Caller, LibraryRpc
from outrider_jsonrpc.protocol import CODES, MAX_BODY_BYTES, OTHER_CODE, answer

PATH = "/rpc"
_LARGE_BYTES = 64 * 1024  # a body that is read in another thread, as it takes milliseconds


def create_app(library: LibraryRpc, config: HttpConfig, refuses_pages: bool = False) -> Starlette:
    """Return the application.

    `refuses_pages`: web pages are refused unless `config` names them, for a browser sends here what
    any page asks it to, and only keeps the answer from it.
    """

    async def rpc(request: Request) -> Response:
        page = request.headers.get("Origin")
        if refuses_pages and page is not None and page not in config.cors_origins:
            message = f"with --allow-init, --cors must name the web page's origin, {page}"
            return refusal(PATH, HttpFailure(403, message))
        headers = request.headers
        caller = Caller(
            name=headers.get("Outrider-Client", ""),
            token=current_caller().own_name,
            idempotency_key=headers.get("Idempotency-Key", ""),
        )
        methods = library.methods(caller)
        body = await request.body()
        beside = asyncio.to_thread if len(body) > _LARGE_BYTES else None
        try:
            reply = await until_gone(request.receive, answer(body, methods, _report, beside=beside))
        except ClientGone:
            return Response(status_code=499)
        except asyncio.CancelledError:
            return refusal(PATH, HttpFailure(503, "the server is stopping", reason="DRAINING"))
        if reply is None:
            return Response(status_code=204)
        return Response(reply, media_type="application/json")

    app = Starlette(routes=[Route(PATH, rpc, methods=["POST"])])
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(
        BodyLimit, bounds=BodyBounds(MAX_BODY_BYTES, config.body_seconds), refusal=refusal
    )
    access = Access(config.let_in())
    if access.is_guarded:
        app.add_middleware(Rights, access=access, paths=[PATH], refusal=refusal)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    if config.hosts is not None:
        app.add_middleware(KnownHost, hosts=config.hosts, refusal=refusal)
    app.add_middleware(RequestScopes, paths=[PATH])
    return app


def refusal(path: str, failure: HttpFailure) -> Response:
    """Return the answer to calls that were refused before they were read."""
    reason = failure.reason or ("UNAUTHENTICATED" if failure.status == 401 else "")
    error: dict[str, Any] = {"code": CODES.get(reason, OTHER_CODE), "message": failure.message}
    if reason:
        scope = request_scope.current()
        its = {"requestId": scope.id} if scope is not None else {}
        error["data"] = {"reason": reason, "metadata": {**(failure.metadata or {}), **its}}
    body = {"jsonrpc": "2.0", "error": error, "id": None}
    return JSONResponse(body, status_code=failure.status, headers=failure.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(request.url.path, HttpFailure(error.status_code, str(error.detail)))


def _report(method: str, error: Exception) -> str:
    return logs.internal_error("outrider.jsonrpc", error).metadata["errorId"]
