"""A draft without a model of its own: a llama-server writes what it proposes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from draft_service.cacheless import CachelessDraft, describe
from draft_service.servicer import Write, check_dropped, outcome
from draft_service.translations import VocabularyLesson
from outrider.errors import ModelChanged, PeerUnavailable
from outrider.messages import ModelReference, Order, SessionParameters
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as messages
from outrider_llama_server.answers import Said, Served
from outrider_llama_server.session import Session
from outrider_llama_server.upstream import Upstream
from outrider_llama_server.vocabularies import Vocabularies

_UNSAID_MILLISECONDS = 10.0  # of a token, where llama-server did not say: a guess, soon replaced
_PER_MESSAGE = 4096


class LlamaServerServicer(CachelessDraft):
    """DraftService over a llama-server.

    Its ids are taken to be others than any target's until they were compared: a target's
    vocabulary is sent once, as to a draft that translates, and held against what llama-server
    makes of each id.
    """

    def __init__(self, upstream: Upstream, alias: str) -> None:
        super().__init__()
        self._upstream = upstream
        self._alias = alias
        self._vocabularies = Vocabularies(upstream)

    def _served(self) -> Served:
        """Return what it serves. Raises PeerUnavailable before that is known."""
        if self._upstream.served is None:
            raise PeerUnavailable(self._upstream.detail)
        return self._upstream.served

    def description(self) -> common.GetModelResponse:
        response = _describe(self._served(), self._alias, self._upstream.token_milliseconds)
        response.known_vocabulary_keys[:] = self._vocabularies.keys
        return self.note_sessions(response)

    def vocabulary_pieces(self) -> Iterator[common.ListVocabularyResponse]:
        """Yield as many ids as there are, and no names.

        llama-server has no call that lists them; what they are is asked of those of a target.
        """
        left = self._served().vocabulary
        for first in range(0, left, _PER_MESSAGE):
            nameless = [b""] * min(_PER_MESSAGE, left - first)
            yield common.ListVocabularyResponse(
                first_token_id=first, token_texts=nameless, token_names=nameless
            )

    def lesson(self) -> VocabularyLesson:
        """Return what takes in the messages of a vocabulary."""
        self._served()
        return VocabularyLesson(self._vocabularies)

    def reference(self) -> ModelReference:
        return _reference(self._served())

    async def LearnVocabulary(
        self, request_iterator: AsyncIterator[messages.LearnVocabularyRequest], _: Any
    ) -> messages.LearnVocabularyResponse:
        return await self.lesson().take(request_iterator)

    def check_opening(self, opening: SessionParameters) -> None:
        if opening.vocabulary_key:
            check_dropped(opening, self._vocabularies.get(opening.vocabulary_key).size)

    async def draft(
        self, opening: SessionParameters, orders: AsyncIterator[Order], write: Write
    ) -> None:
        served = self._served()

        async def ask(text: Any, count: int) -> list[Said]:
            return await self._ask(text, count, opening, served)

        await Session(opening, served, ask, outcome).run(orders, write)

    async def _ask(
        self, text: list[int], count: int, opening: SessionParameters, served: Served
    ) -> list[Said]:
        """Raises PeerUnavailable, and ModelChanged where another model is served by now."""
        now = self._served()
        if now != served:
            raise ModelChanged(str(_reference(served)), str(_reference(now)))
        if not self._upstream.is_up:
            raise PeerUnavailable(self._upstream.detail)
        return await self._upstream.complete(text, count, opening, served)


def _reference(served: Served) -> ModelReference:
    return ModelReference(served.identity, served.name)


def _describe(served: Served, alias: str, token_milliseconds: float) -> common.GetModelResponse:
    return describe(
        token_milliseconds or _UNSAID_MILLISECONDS,
        model_name=alias or served.name or "llama-server",
        identity=served.identity,
        description="a llama-server's model",
        weight_byte_count=served.byte_count,
        parameter_count=served.parameter_count,
        context_token_count=served.context,
        session_count=served.slots,
        vocabulary=common.Vocabulary(
            type=served.vocabulary_type,
            token_count=served.vocabulary,
            bos_token_id=-1,
            eos_token_id=-1,
            eot_token_id=-1,
        ),
        translates=True,
        rough_decode_costs=True,
    )
