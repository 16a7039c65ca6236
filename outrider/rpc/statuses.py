"""Turns our errors into gRPC statuses at the servers' edge, and back at the clients'."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from outrider import logs, request_scope
from outrider.access import said
from outrider.errors import EngineBusy, InvalidRequest, OutriderError
from outrider.rpc.channel import UNREACHABLE
from outrider.rpc.interceptor import Interceptor, served, serving

DOMAIN = "outrider"

_RICH_STATUS = "grpc-status-details-bin"


class _Malformed:
    """Stands for a request that is not valid protobuf."""


_MALFORMED = _Malformed()


class ErrorInterceptor(Interceptor):
    """Answers every OutriderError with its status and ErrorInfo, malformed bytes included.

    Anything else is a bug: it is logged with an id, and the peer gets the id
    alone, because an exception's text may hold a prompt.
    """

    def wrap(self, handler: Any, method: str) -> Any:
        read = _well_formed_each if handler.request_streaming else _well_formed
        # A method that streams for one request yields; all others are awaited.
        yields = handler.response_streaming and not handler.request_streaming
        call = (_yielding if yields else _awaited)(served(handler), read)
        return serving(handler, call, _tolerant(handler.request_deserializer))


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _MALFORMED

    return read


def _well_formed(request: Any) -> Any:
    if request is _MALFORMED:
        raise InvalidRequest("request", "is not a valid protobuf message")
    return request


async def _well_formed_each(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _well_formed(request)


def _awaited(method: Callable[..., Any], read: Callable[[Any], Any]) -> Callable[..., Any]:
    async def call(request: Any, context: Any) -> Any:
        try:
            return await method(read(request), context)
        except Exception as error:
            await _abort(context, error)

    return call


def _yielding(method: Callable[..., Any], read: Callable[[Any], Any]) -> Callable[..., Any]:
    async def call(request: Any, context: Any) -> Any:
        try:
            async for response in method(read(request), context):
                yield response
        except Exception as error:
            await _abort(context, error)

    return call


async def _abort(context: Any, error: Exception) -> None:
    # grpc.aio raises a bare exception class of its own from abort().
    if isinstance(error, grpc.aio.AbortError):
        raise error
    await context.abort_with_status(rpc_status.to_status(to_status(error)))


def to_status(error: Exception) -> status_pb2.Status:
    """Return the rich status of an error."""
    if not isinstance(error, OutriderError):
        error = logs.internal_error("outrider.rpc", error)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    if (scope := request_scope.current()) is not None:
        info.metadata["requestId"] = scope.id
    code = code_pb2.Code.Value(error.status)
    status = status_pb2.Status(code=code, message=said(error))
    status.details.add().Pack(info)
    if isinstance(error, EngineBusy):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(int(error.retry_seconds * 1000))
        status.details.add().Pack(retry)
    if isinstance(error, InvalidRequest):
        bad = error_details_pb2.BadRequest()
        bad.field_violations.add(field=error.field, description=str(error))
        status.details.add().Pack(bad)
    return status


def read_error_info(trailing: Any) -> error_details_pb2.ErrorInfo | None:
    """Return the ErrorInfo in a call's trailing metadata; None if nothing there can be read."""
    rich, info = status_pb2.Status(), error_details_pb2.ErrorInfo()
    try:
        rich.ParseFromString(dict(trailing or ()).get(_RICH_STATUS, b""))
        found = any(detail.Unpack(info) for detail in rich.details)
    except DecodeError:
        return None
    return info if found else None


_ENDS = (  # what gRPC 1.80 writes by itself, and what happened; the first that fits
    *UNREACHABLE,
    ("Cancelling all calls", "it is stopping"),
    ("Socket closed", "the connection was closed"),
    ("Connection reset", "the connection was closed"),
    ("Broken pipe", "the connection was closed"),
    ("Stream removed", "the connection was closed"),
    ("GOAWAY", "the connection was closed"),
    ("ping timeout", "the connection is dead"),
    ("keepalive watchdog timeout", "the connection is dead"),
    ("failed to connect", "no connection can be made"),
    ("Deadline Exceeded", "it did not answer in time"),
    ("Method not found", "it does not know this call"),
    ("larger than max", "a message is larger than one may be"),
)


def describe(error: grpc.aio.AioRpcError) -> str:
    """Return in words why a call failed, for an operator."""
    return describe_end(error.code(), error.details())


def describe_end(code: grpc.StatusCode, details: str | None) -> str:
    """Return what happened to a call, or its status where the peer says that itself."""
    said = details or "no details"
    return next((meaning for words, meaning in _ENDS if words in said), f"{code.name}: {said}")
