"""The orchestrator's gRPC edge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from orchestrator.reporting import in_pages
from orchestrator.salts import separate
from orchestrator.service import Orchestrator
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceServicer

Context = grpc.aio.ServicerContext[Any, Any]

_MARGIN_SECONDS = 0.2


class OrchestratorServicer(OrchestratorServiceServicer):
    """OrchestratorService over an orchestrator."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator

    async def Generate(
        self, request: messages.GenerateRequest, context: Context
    ) -> AsyncIterator[messages.GenerateResponse]:
        separate(request, _credentials(context))
        async with aclosing(self._orchestrator.generate(request, _seconds(context))) as stream:
            async for response in stream:
                for page in in_pages(response):
                    yield page

    async def SubmitGeneration(
        self, request: messages.SubmitGenerationRequest, context: Context
    ) -> messages.SubmitGenerationResponse:
        separate(request.request, _credentials(context))
        return await self._orchestrator.submit(request, context.peer().rpartition(":")[0])

    async def PollGeneration(
        self, request: messages.PollGenerationRequest, context: Context
    ) -> messages.PollGenerationResponse:
        return await self._orchestrator.poll(request)

    async def CancelGeneration(
        self, request: messages.CancelGenerationRequest, context: Context
    ) -> messages.CancelGenerationResponse:
        return await self._orchestrator.cancel(request)

    async def Tokenize(
        self, request: messages.TokenizeTextRequest, context: Context
    ) -> messages.TokenizeTextResponse:
        return await self._orchestrator.tokenize(request)

    async def Detokenize(
        self, request: messages.DetokenizeRequest, context: Context
    ) -> messages.DetokenizeResponse:
        return await self._orchestrator.detokenize(request)

    async def ApplyTemplate(
        self, request: messages.ApplyTemplateRequest, context: Context
    ) -> messages.ApplyTemplateResponse:
        return await self._orchestrator.apply_template(request)

    async def Embed(
        self, request: messages.EmbedRequest, context: Context
    ) -> messages.EmbedResponse:
        return await self._orchestrator.embed(request)

    async def GetStatus(
        self, request: messages.GetStatusRequest, context: Context
    ) -> messages.GetStatusResponse:
        return self._orchestrator.status()


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
