"""The orchestrator's gRPC edge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from orchestrator.joined_drafts import DraftRegistry
from orchestrator.metering import for_client
from orchestrator.reporting import pages_of
from orchestrator.service import Orchestrator
from outrider import wire
from outrider.access import current_caller, note_peer
from outrider.grants import Right
from outrider.rpc.authorization import peer_of
from outrider.v1 import draft_registry_service_pb2 as registry_messages
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.draft_registry_service_pb2_grpc import (
    DraftRegistryServiceServicer,
    add_DraftRegistryServiceServicer_to_server,
)
from outrider.v1.orchestrator_service_pb2_grpc import (
    OrchestratorServiceServicer,
    add_OrchestratorServiceServicer_to_server,
)
from outrider.wire_requests import read_chat, read_request

Context = grpc.aio.ServicerContext[Any, Any]

_MARGIN_SECONDS = 0.2
"""s, or a tenth of the time; before a client's deadline the answer says that it passed, which
reaches a client over a slow link too."""


def register(orchestrator: Orchestrator, server: grpc.aio.Server) -> None:
    """Let a server answer for an orchestrator, and to drafts that join if it accepts them."""
    add_OrchestratorServiceServicer_to_server(OrchestratorServicer(orchestrator), server)
    if orchestrator.registry is not None:
        registry = DraftRegistryServicer(orchestrator.registry)
        add_DraftRegistryServiceServicer_to_server(registry, server)


def _answered_by(work: Callable[[Orchestrator, Any], Awaitable[Any]]) -> Any:
    """Return the handler of a call whose answer depends on its request alone."""

    async def handle(self: OrchestratorServicer, request: Any, context: Context) -> Any:
        return await work(self.orchestrator, request)

    return handle


class OrchestratorServicer(OrchestratorServiceServicer):
    """OrchestratorService over an orchestrator."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self.orchestrator = orchestrator

    async def Generate(
        self, request: messages.GenerateRequest, context: Context
    ) -> AsyncIterator[messages.GenerateResponse]:
        note_peer(peer_of(context))
        asked = read_request(request).separated(_credentials(context))
        async with aclosing(self.orchestrator.generate(asked, _seconds(context))) as stream:
            async for event in stream:
                for page in await pages_of(event):
                    yield page

    async def SubmitGeneration(
        self, request: messages.SubmitGenerationRequest, context: Context
    ) -> messages.SubmitGenerationResponse:
        note_peer(peer_of(context))
        credentials = _credentials(context)
        asked = read_request(request.request).separated(credentials)
        caller = context.peer().rpartition(":")[0]
        return await self.orchestrator.submit(asked, caller, credentials, request.idempotency_key)

    PollGeneration = _answered_by(Orchestrator.poll)
    CancelGeneration = _answered_by(Orchestrator.cancel)
    Tokenize = _answered_by(Orchestrator.tokenize)
    Detokenize = _answered_by(Orchestrator.detokenize)
    Embed = _answered_by(Orchestrator.embed)

    async def ApplyTemplate(
        self, request: messages.ApplyTemplateRequest, context: Context
    ) -> messages.ApplyTemplateResponse:
        prompt, model = await self.orchestrator.apply_template(read_chat(request))
        return messages.ApplyTemplateResponse(prompt=prompt, model=wire.write_reference(model))

    async def GetStatus(
        self, request: messages.GetStatusRequest, context: Context
    ) -> messages.GetStatusResponse:
        status = self.orchestrator.status()
        is_operator = current_caller().grant.allows(Right.OPERATOR)
        return status if is_operator else for_client(status)


class DraftRegistryServicer(DraftRegistryServiceServicer):
    """DraftRegistryService over the drafts of an orchestrator."""

    def __init__(self, registry: DraftRegistry) -> None:
        self._registry = registry

    async def Join(
        self, request_iterator: AsyncIterator[registry_messages.JoinRequest], context: Context
    ) -> None:
        await self._registry.join(request_iterator, context.write, peer_of(context))

    async def Attend(
        self, request_iterator: AsyncIterator[registry_messages.AttendRequest], context: Context
    ) -> None:
        await self._registry.attend(request_iterator, context.write)


def _credentials(context: Context) -> bytes:
    """Return what a caller has shown to be let in: a token, a certificate's names, or nothing."""
    shown = [
        value.encode() if isinstance(value, str) else value
        for key, value in context.invocation_metadata() or ()
        if key == "authorization"
    ]
    names = context.peer_identities() or ()
    return b"\0".join([each.removeprefix(b"Bearer ") for each in shown] + sorted(names))


def _seconds(context: Context) -> float | None:
    """Return how long a call may take: a little less than the client allows."""
    left = context.time_remaining()
    return None if left is None else max(0.0, left - min(_MARGIN_SECONDS, 0.1 * left))
