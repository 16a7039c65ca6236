"""A draft without a model: local sources alone propose, for whichever target it is paired with."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import outrider
from draft_service.drafter import Drafter
from draft_service.local_sources import ALONE, LocalSources, calibrations
from draft_service.servicer import Write, outcome, read_order
from draft_service.translations import Lesson
from outrider import wire
from outrider.errors import ContextExhausted, EngineBusy, PositionPastCache, VocabularyMismatch
from outrider.messages import MAX_DRAFT, Frame, SessionParameters
from outrider.model_service.servicer import (
    Owners,
    Ownership,
    after_opening,
    first_opening,
    run_stream,
)
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as messages
from outrider.v1 import draft_service_pb2_grpc as stubs

CONTEXT = 1 << 17
"""Tokens of a session at most; the sources take 300 to 400 bytes for each."""

MOST_SESSIONS = 256
"""With an open stream at the same time; what the sources know of a text ends with its stream."""

_RETRY_SECONDS = 1.0
_TOKEN_MILLISECONDS = 0.02
"""What a token takes that is read or proposed: about the slowest of both, on a usual core."""


@dataclass(frozen=True, slots=True)
class _NoCache:
    """What a session holds where no model has read anything."""

    capacity: int = CONTEXT
    held: Sequence[int] = ()

    def reconcile(self, wanted: list[int], row_count: int) -> list[int]:
        """Return what is left to decode: nothing ever is."""
        return []


class LookupServicer(stubs.DraftServiceServicer):
    """DraftService over local sources, on the event loop: a token takes them microseconds.

    Nothing is kept between the streams of a session. A new one is sent the whole text anyway.
    """

    def __init__(self, alias: str, drafters: Sequence[str]) -> None:
        self._calibrations = calibrations(drafters)
        self._owners = Owners()
        self._response = _describe(alias, drafters)

    def description(self) -> common.GetModelResponse:
        """Return what GetModel answers now."""
        response = common.GetModelResponse()
        response.CopyFrom(self._response)
        response.activity.session_count = len(self._owners)
        response.activity.open_session_count = len(self._owners)
        return response

    def vocabulary_pieces(self) -> Iterator[common.ListVocabularyResponse]:
        """Yield what ListVocabulary streams: it has no vocabulary."""
        return iter(())

    def lesson(self) -> Lesson:
        """Refuse: without a model there is nothing to translate. Raises VocabularyMismatch."""
        raise VocabularyMismatch("a draft without a model has no vocabulary")

    async def GetModel(self, request: common.GetModelRequest, _: Any) -> common.GetModelResponse:
        return self.description()

    async def ListVocabulary(
        self, request: common.ListVocabularyRequest, _: Any
    ) -> AsyncIterator[common.ListVocabularyResponse]:
        self._check(request.model)
        for piece in self.vocabulary_pieces():
            yield piece

    async def Rollback(self, request: common.RollbackRequest, _: Any) -> common.RollbackResponse:
        return await self.roll_back(request)

    async def roll_back(self, request: common.RollbackRequest) -> common.RollbackResponse:
        """Answer that nothing is held: there is no cache, and an order says what the text is."""
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
        """Serve one session, whoever opened the stream. Ends when `requests` do."""
        asked = await first_opening(requests)
        self._check(asked.model)
        opening = wire.read_opening(asked)
        if len(self._owners) >= MOST_SESSIONS and opening.session_id not in self._owners:
            raise EngineBusy(f"{MOST_SESSIONS} sessions are open", _RETRY_SECONDS)
        owner = self._owners.take(opening.session_id, opening.attempt)
        orders = after_opening(requests, asked)
        try:
            await run_stream(owner, self._carry_out(orders, opening, owner, write))
        finally:
            self._owners.release(opening.session_id, owner)

    async def _carry_out(
        self,
        requests: AsyncIterator[messages.DraftRequest],
        opening: SessionParameters,
        owner: Ownership,
        write: Write,
    ) -> None:
        """Carry out one order after the other; none takes long enough to be replaced."""
        local = LocalSources(opening, self._calibrations, ALONE)
        drafter = Drafter(opening, None, opening.end_token_ids, time.perf_counter, local)
        async for request in requests:
            order = read_order(request, opening, opening.vocabulary)
            if order.number <= owner.last:
                continue
            owner.last = order.number
            begin = time.perf_counter()
            frames: list[Frame] = []
            try:
                for _ in drafter.draft(_NoCache(), order, frames.append):
                    await asyncio.sleep(0)  # the other sessions' turn
            except (PositionPastCache, ContextExhausted) as error:
                await write(outcome(order.number, error))
                continue
            spent = time.perf_counter() - begin
            for frame in frames:
                message = wire.write_frame(frame)
                if frame.completed:
                    message.service_time.CopyFrom(wire.write_time(0.0, 0.0, spent, steps=0))
                await write(message)

    def _check(self, meant: common.ModelReference) -> None:
        """Raise ModelChanged if another model is meant."""
        wire.read_reference(meant).check(wire.hosted_model(self._response))


def _describe(alias: str, drafters: Sequence[str]) -> common.GetModelResponse:
    names = ", ".join(drafters)
    response = common.GetModelResponse(
        protocol_version=outrider.PROTOCOL_VERSION,
        service_version=outrider.__version__,
        model_name=alias or "lookup",
        identity=hashlib.sha256(f"outrider lookup {names}".encode()).digest(),
        description=f"no model: {names}",
        context_token_count=CONTEXT,
        session_count=MOST_SESSIONS,
        vocabulary=common.Vocabulary(fits_any=True),
        rollback_capability=common.ROLLBACK_CAPABILITY_FULL,
        round_draft_token_limit=MAX_DRAFT,
    )
    response.decode_costs.add(row_count=1, milliseconds=_TOKEN_MILLISECONDS)
    return response
