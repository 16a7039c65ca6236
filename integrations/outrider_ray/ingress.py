"""What clients talk to: HTTP and gRPC, passed on to the replica that should end a text first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from outrider.v1 import orchestrator_service_pb2 as messages
from outrider_ray.calls import (
    GrpcEnd,
    GrpcRequest,
    HttpHead,
    HttpRequest,
    ProcessLost,
    forwarded,
)
from outrider_ray.repeating import Differs, SeenText
from outrider_ray.routing import Route, digests_of, job_name, prompt_of, read_job_name, salt_of
from outrider_ray.serving import REPLICA

MOST_BYTES = 16 * 1024 * 1024
"""Of a request's body; the gateway's own limit is below."""

_MOST_WORDS = 200  # characters of a reason of Serve's
_PAUSES = (0.1, 0.2, 0.5, *[1.0] * 60)
"""Seconds between attempts at a replica that lives: Serve takes a while to replace one."""
_LOST = "the replica that served this request is lost; send it again"
_LOST_EVENT = (
    b'data: {"error":{"message":"%b","type":"server_error","param":null,'
    b'"code":"peer_unavailable"}}\n\n' % _LOST.encode()
)


_GONE = (RayActorError, ProcessLost)
"""What a call raises when its replica, or the orchestrator there, goes away."""
_LOST_END = GrpcEnd("UNAVAILABLE", _LOST, (), "")


class Lost(Exception):
    """One replica after the other went away."""


class RawMessage:
    """A message that nobody here has read, in the shape that Serve sends."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:
        """Return the message."""
        return self._data


async def _first(call: Any) -> tuple[Any, Any]:
    """Start a call and return its first item and the rest; at another replica if one is lost.

    Nothing of it was seen by anybody yet. Raises Lost.
    """
    for pause in _PAUSES:
        rest = call()
        try:
            first = await anext(rest)
            if not (isinstance(first, GrpcEnd) and first.is_lost):
                return first, rest
        except _GONE:
            pass
        except RayServeException as error:
            raise Lost(_unavailable(error).details) from None
        await asyncio.sleep(pause)
    raise Lost(_LOST)


def _unary(name: str) -> Any:
    async def call(self: Ingress, request: Any, grpc_context: Any) -> Any:
        return await self.ask(name, Route(), request, grpc_context)

    return call


class Ingress:
    """Takes HTTP on any path and the calls of OrchestratorService."""

    def __init__(self, serving: Any, *others: Any) -> None:
        """`others` are deployments that are part of the application, and not called from here."""
        self._serving = serving.options(stream=True)

    # --- HTTP ---

    async def __call__(self, request: Request) -> Response:
        """Answer as the gateway of a replica does."""
        try:
            body = await _read(request)
        except ClientDisconnect:
            return Response(status_code=499)
        if body is None:
            return _refusal(413, f"the body has more than {MOST_BYTES} bytes", "invalid_request")
        target = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1")
        root = request.scope.get("root_path", "")
        target = target.removeprefix(root) or "/"
        if request.url.query:
            target += f"?{request.url.query}"
        headers = tuple(
            (key.decode("latin-1"), value.decode("latin-1")) for key, value in request.headers.raw
        )
        passed = HttpRequest(request.method, target, headers, body)
        route = _http_route(request, body)
        try:
            head, rest = await _first(lambda: self._serving.http.remote(route, passed))
        except Lost as error:
            return _refusal(503, str(error), "peer_unavailable")
        return _Streamed(head, rest)

    # --- gRPC ---

    async def Generate(self, request: Any, grpc_context: Any) -> AsyncIterator[Any]:
        """Stream a generation; when its replica is lost, continue with what another one writes."""
        metadata = forwarded(grpc_context.invocation_metadata())
        route = _generate_route(request, metadata)
        seen, wanted, end = SeenText(), request, _LOST_END
        for pause in _PAUSES:
            passed = GrpcRequest("Generate", wanted.SerializeToString(), metadata)
            call = self._serving.grpc.remote(route, passed)
            end = _LOST_END
            try:
                async for item in call:
                    if isinstance(item, GrpcEnd):
                        end = item
                    elif new := seen.take(messages.GenerateResponse.FromString(item)):
                        yield new
            except Differs:  # where texts need not be the same, as near-ties may part them
                call.cancel()
                break
            except _GONE:
                pass
            except RayServeException as error:
                end = _unavailable(error)
                break
            if not end.is_lost:
                break
            if seen.finished_count == max(1, request.completion_count):
                return
            wanted = seen.repeat(request)
            await asyncio.sleep(pause)
        if end.code != "OK":
            _set_status(grpc_context, end)
            raise CallEnded(end.details)

    async def ask(self, name: str, route: Route, request: Any, grpc_context: Any) -> Any:
        """Return the answer to a call that has one."""
        answer, end = await self._answer(name, route, request, grpc_context)
        if end.code != "OK":
            # Serve loses trailers of calls that raise; with a status the answer is not looked at.
            _set_status(grpc_context, end)
        return RawMessage(answer)

    async def _answer(
        self, name: str, route: Route, request: Any, grpc_context: Any
    ) -> tuple[bytes, GrpcEnd]:
        metadata = forwarded(grpc_context.invocation_metadata())
        passed = GrpcRequest(name, request.SerializeToString(), metadata)
        try:
            first, rest = await _first(lambda: self._serving.grpc.remote(route, passed))
            if isinstance(first, GrpcEnd):
                return b"", first
            return first, await anext(rest)
        except (Lost, *_GONE, RayServeException) as error:
            return b"", _unavailable(error)

    async def SubmitGeneration(self, request: Any, grpc_context: Any) -> Any:
        """Start a job; its name says where it is."""
        metadata = forwarded(grpc_context.invocation_metadata())
        route = _generate_route(request.request, metadata)
        answer, end = await self._answer("SubmitGeneration", route, request, grpc_context)
        if end.code != "OK":
            _set_status(grpc_context, end)
            return RawMessage(b"")
        response = messages.SubmitGenerationResponse.FromString(answer)
        response.job_id = job_name(response.job_id, end.replica)
        return response

    async def PollGeneration(self, request: Any, grpc_context: Any) -> Any:
        """Ask a job's replica what it has brought."""
        request.job_id, replica = read_job_name(request.job_id)
        return await self.ask("PollGeneration", Route(replica=replica), request, grpc_context)

    async def CancelGeneration(self, request: Any, grpc_context: Any) -> Any:
        """End a job at its replica."""
        request.job_id, replica = read_job_name(request.job_id)
        return await self.ask("CancelGeneration", Route(replica=replica), request, grpc_context)

    Tokenize = _unary("Tokenize")
    Detokenize = _unary("Detokenize")
    ApplyTemplate = _unary("ApplyTemplate")
    Embed = _unary("Embed")
    GetStatus = _unary("GetStatus")


def _unavailable(error: Exception) -> GrpcEnd:
    """Return the end of a call that Serve refused, or whose replica was lost."""
    why = str(error).partition("\n")[0][:_MOST_WORDS]
    return (
        GrpcEnd("UNAVAILABLE", why, (), "") if isinstance(error, RayServeException) else _LOST_END
    )


class CallEnded(Exception):
    """A call ended with a status, which Serve's context has."""


def _set_status(grpc_context: Any, end: GrpcEnd) -> None:
    grpc_context.set_code(grpc.StatusCode[end.code])
    grpc_context.set_details(end.details or end.code)
    grpc_context.set_trailing_metadata([*end.trailers])


class _Streamed(StreamingResponse):
    """An answer whose body comes in pieces."""

    def __init__(self, head: HttpHead, rest: Any) -> None:
        super().__init__(_body(head, rest), head.status)
        self.raw_headers = [
            (key.encode("latin-1"), value.encode("latin-1")) for key, value in head.headers
        ]


async def _body(head: HttpHead, rest: Any) -> AsyncIterator[bytes]:
    try:
        async for chunk in rest:
            yield chunk
    except (*_GONE, RayServeException):
        kind = dict(head.headers).get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise  # the connection breaks off: what came is not the whole answer
        yield _LOST_EVENT


async def _read(request: Request) -> bytes | None:
    """Return the body; None if it is too long."""
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            return None
    return b"".join(parts)


def _refusal(status: int, message: str, code: str) -> Response:
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status)


def _http_route(request: Request, body: bytes) -> Route:
    replica = request.headers.get(REPLICA, "")
    if request.method != "POST":
        return Route(replica=replica)
    whose = request.headers.get("authorization", "").encode("latin-1") + b"\0" + salt_of(body)
    return Route(digests_of(prompt_of(body), whose), replica)


def _generate_route(request: Any, metadata: tuple[tuple[str, str], ...]) -> Route:
    """Return the route of a GenerateRequest."""
    shown = dict(metadata).get("authorization", "")
    whose = shown.encode() + b"\0" + request.cache_salt.encode()
    kind = request.WhichOneof("prompt")
    if kind == "prompt_text":
        prompt = request.prompt_text.encode()
    elif kind == "prompt_tokens":
        prompt = np.asarray(request.prompt_tokens.token_ids, np.int32).tobytes()
    else:
        prompt = b"".join(part.SerializeToString() for part in request.prompt_parts.parts)
    return Route(digests_of(prompt, whose))
