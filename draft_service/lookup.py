"""A draft without a model: local sources alone propose, for whichever target it is paired with."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from draft_service.cacheless import MOST_SESSIONS, CachelessDraft, describe
from draft_service.drafter import Drafter
from draft_service.local_sources import ALONE, LocalSources, calibrations
from draft_service.servicer import Write, outcome
from draft_service.translations import Lesson
from outrider import wire, wire_drafts
from outrider.errors import ContextExhausted, PositionPastCache, VocabularyMismatch
from outrider.messages import Frame, ModelReference, Order, ServiceTime, SessionParameters
from outrider.v1 import common_pb2 as common

CONTEXT = 1 << 17
"""Tokens of a session at most; the sources take 300 to 400 bytes for each."""

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


class LookupServicer(CachelessDraft):
    """DraftService over local sources, on the event loop: a token takes them microseconds."""

    def __init__(self, alias: str, drafters: Sequence[str]) -> None:
        super().__init__()
        self._calibrations = calibrations(drafters)
        self._response = _describe(alias, drafters)

    def description(self) -> common.GetModelResponse:
        response = common.GetModelResponse()
        response.CopyFrom(self._response)
        return self.note_sessions(response)

    def vocabulary_pieces(self) -> Iterator[common.ListVocabularyResponse]:
        """Yield nothing: it has no vocabulary."""
        return iter(())

    def lesson(self) -> Lesson:
        """Refuse: without a model there is nothing to translate. Raises VocabularyMismatch."""
        raise VocabularyMismatch("a draft without a model has no vocabulary")

    def reference(self) -> ModelReference:
        return wire.hosted_model(self._response)

    async def draft(
        self, opening: SessionParameters, orders: AsyncIterator[Order], write: Write
    ) -> None:
        """Carry out one order after the other; none takes long enough to be replaced."""
        local = LocalSources(opening, self._calibrations, ALONE)
        drafter = Drafter(opening, None, opening.end_token_ids, time.perf_counter, local)
        async for order in orders:
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
                message = wire_drafts.write_frame(frame)
                if frame.completed:
                    message.service_time.CopyFrom(
                        wire.write_time(ServiceTime(sample=spent, steps=0))
                    )
                await write(message)


def _describe(alias: str, drafters: Sequence[str]) -> common.GetModelResponse:
    names = ", ".join(drafters)
    return describe(
        _TOKEN_MILLISECONDS,
        model_name=alias or "lookup",
        identity=hashlib.sha256(f"outrider lookup {names}".encode()).digest(),
        description=f"no model: {names}",
        context_token_count=CONTEXT,
        session_count=MOST_SESSIONS,
        vocabulary=common.Vocabulary(fits_any=True),
    )
