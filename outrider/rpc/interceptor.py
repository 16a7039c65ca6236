"""What every interceptor of a server begins with: whose handlers it wraps, and how."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import grpc


class Interceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of this project's own methods; those of health and reflection stay."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler, method = await continuation(handler_call_details), handler_call_details.method
        if handler is None or not method.startswith("/outrider."):
            return handler
        return self.wrap(handler, method)

    @abstractmethod
    def wrap(self, handler: Any, method: str) -> Any:
        """Return what stands for the handler of a method."""


def served(handler: Any) -> Callable[..., Any]:
    """Return what a handler calls."""
    return getattr(handler, _kind(handler))  # type: ignore[no-any-return]


def serving(
    handler: Any, call: Callable[..., Any], decode: Callable[[bytes], Any] | None = None
) -> Any:
    """Return a handler of the same kind that calls something else, and reads by `decode`."""
    make = getattr(grpc, f"{_kind(handler)}_rpc_method_handler")
    return make(call, decode or handler.request_deserializer, handler.response_serializer)


def _kind(handler: Any) -> str:
    streams = handler.request_streaming, handler.response_streaming
    return "_".join("stream" if each else "unary" for each in streams)
