"""What travels between ingress and serving replicas, and calls of the orchestrator as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from outrider.errors import OutriderError
from outrider.rpc import health_check
from outrider.rpc.channel import open_channel
from outrider.rpc.security import ClientSecurity, metadata_of
from outrider.v1 import orchestrator_service_pb2 as messages

SERVICE = "outrider.v1.OrchestratorService"

_DETAILS = "grpc-status-details-bin"
_FORWARDED = ("authorization", "x-request-id", "traceparent", "tracestate")
_STATUS_SECONDS = 5.0
_READY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request for the gateway of a replica."""

    method: str
    target: str  # path and query, as they came
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpHead:
    """How an answer begins; its body follows in pieces."""

    status: int
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GrpcRequest:
    """A call of the orchestrator of a replica."""

    name: str  # of the method
    message: bytes
    metadata: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GrpcEnd:
    """How a call ended, after its messages."""

    code: str  # the name of a gRPC status
    details: str
    trailers: tuple[tuple[str, Any], ...]
    replica: str

    @property
    def is_lost(self) -> bool:
        """Whether the orchestrator went away; one that refuses says why in `_DETAILS`."""
        return self.code == "UNAVAILABLE" and _DETAILS not in dict(self.trailers)


class ProcessLost(Exception):
    """The orchestrator of a replica went away; Serve replaces the replica."""


def forwarded(metadata: Sequence[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Return what of a call's metadata is the orchestrator's to know."""
    return tuple((key, value) for key, value in metadata if key in _FORWARDED)


class OrchestratorCalls:
    """Calls one orchestrator, without reading what is sent and received."""

    def __init__(self, address: str, security: ClientSecurity, replica: str) -> None:
        self._address = address
        self._security = security
        self._replica = replica
        self._metadata = metadata_of(security)
        self._channel: Any = open_channel(address)

    async def wait_until_ready(self) -> None:
        """Return once the orchestrator serves, its target loaded."""
        while True:
            try:
                if await health_check.check(self._address, self._security) == "serving":
                    return
            except OutriderError:
                pass  # it is only starting; if it ends, another task notices
            await asyncio.sleep(_READY_SECONDS)

    async def load(self) -> int | None:
        """Return the generations in flight; None where it does not say."""
        call = self._channel.unary_unary(
            f"/{SERVICE}/GetStatus",
            response_deserializer=messages.GetStatusResponse.FromString,
        )
        try:
            status = await call(b"", metadata=self._metadata(), timeout=_STATUS_SECONDS)
        except grpc.aio.AioRpcError:
            return None
        return int(status.active_generation_count)

    async def call(self, request: GrpcRequest) -> AsyncIterator[bytes | GrpcEnd]:
        """Yield the messages of the answer, then how it ended. A cancelled reader cancels it."""
        path = f"/{SERVICE}/{request.name}"
        try:
            if request.name == "Generate":
                stream = self._channel.unary_stream(path)(
                    request.message, metadata=request.metadata
                )
                try:
                    async for message in stream:
                        yield message
                finally:
                    stream.cancel()
            else:
                yield await self._channel.unary_unary(path)(
                    request.message, metadata=request.metadata
                )
            yield GrpcEnd("OK", "", (), self._replica)
        except grpc.aio.AioRpcError as error:
            trailers = tuple(tuple(each) for each in error.trailing_metadata() or ())
            yield GrpcEnd(error.code().name, error.details() or "", trailers, self._replica)
