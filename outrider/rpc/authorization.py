"""Lets calls in by what their tokens may, before anything of them is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import grpc
from grpc_status import rpc_status

from outrider.access import Access, Caller, work_for
from outrider.errors import OutriderError, PermissionDenied, Unauthenticated
from outrider.grants import Right
from outrider.rpc.interceptor import served, serving
from outrider.rpc.security import BEARER, HEADER
from outrider.rpc.statuses import to_status
from outrider.tasks import first_of

_ORCHESTRATOR = "/outrider.v1.OrchestratorService/"
_COUNTED = tuple(
    _ORCHESTRATOR + name
    for name in (
        *("Generate", "SubmitGeneration", "PollGeneration", "CancelGeneration"),
        "Embed",
    )
)
_UNCOUNTED = tuple(
    _ORCHESTRATOR + name
    for name in (
        *("Tokenize", "Detokenize", "ApplyTemplate"),
        "GetStatus",  # of which a client is shown a part
    )
)
"""What the limit of requests by the minute leaves out: no model computes for it."""

_RIGHTS = dict.fromkeys(_COUNTED + _UNCOUNTED, Right.CLIENT) | {
    "/outrider.v1.DraftRegistryService/Join": Right.DRAFT,
    "/outrider.v1.DraftRegistryService/Attend": Right.DRAFT,
}
_FREE_PREFIXES = ("/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/")
"""What any token may, and what is not counted as a request."""

_LASTING = ("/grpc.health.v1.Health/Watch", "/outrider.v1.DraftRegistryService/Join")
"""Streams that last as long as both sides do, and by which a peer counts as there. All others end
with what they are for, and may do so."""
_LOOK_SECONDS = 1.0
"""Between two looks at whether the caller of such a stream would still be let in."""

_SHOWN_PREFIXES = ("/outrider.v1.", *_FREE_PREFIXES)
_MOST_CHARACTERS = 96


def right_for(method: str) -> Right | None:
    """Return the right that a method needs; None: any token will do.

    What is not listed is for operators: all of a model service, and what does not exist.
    """
    if method.startswith(_FREE_PREFIXES):
        return None
    return _RIGHTS.get(method, Right.OPERATOR)


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls through whose token is known, has the right, and has requests left.

    A method that does not exist is refused like one that does.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method, caller = handler_call_details.method, None
        try:
            caller = self._access.admit(_shown(handler_call_details.invocation_metadata))
            right = right_for(method)
            if right is not None:
                caller.grant.check(right)
                if method not in _UNCOUNTED:
                    self._access.count_request(caller)
        except OutriderError as error:
            return self._refusal(method, caller, error)
        work_for(caller)
        handler = await continuation(handler_call_details)
        if handler is None or method not in _LASTING:
            return handler
        return self._ending(handler, method, caller, right)

    def _ending(self, handler: Any, method: str, caller: Caller, right: Right | None) -> Any:
        """Return a handler whose stream ends once the token of its caller is let in no more."""
        serve = served(handler)

        async def call(request: Any, context: Any) -> None:
            try:
                await first_of(serve(request, context), self._until_shut_out(caller, right))
            except (Unauthenticated, PermissionDenied) as error:
                self._access.audit.refused(caller.name, peer_of(context), method, error)
                await context.abort_with_status(rpc_status.to_status(to_status(error)))

        return serving(handler, call)

    async def _until_shut_out(self, caller: Caller, right: Right | None) -> None:
        """Raise Unauthenticated or PermissionDenied once that is what a new call would get."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = self._access.admit([caller.credentials])
            if right is not None:
                now.grant.check(right)

    def _refusal(self, method: str, caller: Caller | None, error: OutriderError) -> Any:
        """Return what stands for the method; a stream that is never read fits every kind."""
        name = caller.name if caller else ""
        shown = method if method.startswith(_SHOWN_PREFIXES) else "an unknown method"

        async def refuse(requests: AsyncIterator[Any], context: Any) -> None:
            peer = peer_of(context)
            self._access.audit.refused(name, peer, shown[:_MOST_CHARACTERS], error)
            await context.abort_with_status(rpc_status.to_status(to_status(error)))

        return grpc.stream_stream_rpc_method_handler(refuse)


def peer_of(context: Any) -> str:
    """Return where a call comes from: an address and a port."""
    return unquote(context.peer() or "").removeprefix("ipv4:").removeprefix("ipv6:")


def _shown(metadata: Any) -> list[bytes]:
    """Return the token that a call carries; none where it carries more than one."""
    given = [_encode(value) for key, value in metadata or () if key == HEADER]
    bearer = BEARER.encode()
    if len(given) != 1 or not given[0].startswith(bearer):
        return []
    return [given[0].removeprefix(bearer)]


def _encode(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
