"""What drafts answer that keep nothing of a text between two streams: none of it was read here."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import outrider
from draft_service.servicer import Write, read_order
from outrider import wire
from outrider.errors import EngineBusy
from outrider.messages import MAX_DRAFT, ModelReference, Order, SessionParameters
from outrider.model_service.servicer import ModelCalls, Ownership, run_stream
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as messages
from outrider.v1 import draft_service_pb2_grpc as stubs

MOST_SESSIONS = 256
"""With an open stream at the same time; what is known of a text ends with its stream."""


class CachelessDraft(ModelCalls, stubs.DraftServiceServicer):
    """DraftService but for what drafts. A new stream is sent the whole text anyway."""

    @abstractmethod
    def reference(self) -> ModelReference:
        """Return what calls and sessions have to mean. Raises PeerUnavailable before that."""

    @abstractmethod
    async def draft(
        self,
        opening: SessionParameters,
        orders: AsyncIterator[Order],
        write: Write,
    ) -> None:
        """Carry out the orders of one stream, until they end."""

    def check_opening(self, opening: SessionParameters) -> None:
        """Raise what is wrong with a session, if anything is."""

    async def roll_back(self, request: common.RollbackRequest) -> common.RollbackResponse:
        """Answer that nothing is held: an order says what the text is."""
        wire.read_session_id(request.session_id)
        wire.at_least("token_count", request.token_count, 0)
        return common.RollbackResponse()

    async def CloseSession(
        self, request: common.CloseSessionRequest, _: Any
    ) -> common.CloseSessionResponse:
        wire.read_session_id(request.session_id)
        return common.CloseSessionResponse()

    async def Draft(
        self, request_iterator: AsyncIterator[messages.DraftRequest], context: Any
    ) -> None:
        await self.serve(request_iterator, context.write)

    async def serve(self, requests: AsyncIterator[messages.DraftRequest], write: Write) -> None:
        """Serve one session, whichever side opened the stream. Ends when `requests` do."""
        opening, rest = await self.read_opening(requests)
        self.check_opening(opening)
        if len(self._owners) >= MOST_SESSIONS and opening.session_id not in self._owners:
            raise EngineBusy(f"{MOST_SESSIONS} sessions are open")
        owner = self._owners.take(opening.session_id, opening.attempt)
        orders = _orders(rest, opening, owner)
        try:
            await run_stream(owner, self.draft(opening, orders, write))
        finally:
            self._owners.release(opening.session_id, owner)

    def note_sessions(self, response: common.GetModelResponse) -> common.GetModelResponse:
        """Write how many sessions are open into a description, and return it."""
        response.activity.session_count = len(self._owners)
        response.activity.open_session_count = len(self._owners)
        return response

    def require_model(self, meant: common.ModelReference) -> None:
        wire.read_reference(meant).check(self.reference())


def describe(milliseconds: float, **facts: Any) -> common.GetModelResponse:
    """Return what a draft says of itself; a token takes it about so long. `facts` are fields."""
    response = common.GetModelResponse(
        protocol_version=outrider.PROTOCOL_VERSION,
        service_version=outrider.__version__,
        rollback_capability=common.ROLLBACK_CAPABILITY_FULL,
        round_draft_token_limit=MAX_DRAFT,
        **facts,
    )
    response.decode_costs.add(row_count=1, milliseconds=milliseconds)
    return response


async def _orders(
    requests: AsyncIterator[messages.DraftRequest], opening: SessionParameters, owner: Ownership
) -> AsyncIterator[Order]:
    """Yield the orders of a stream, each once."""
    async for request in requests:
        order = read_order(request, opening, opening.vocabulary)
        if order.number > owner.last:
            owner.last = order.number
            yield order
