"""Whether a llama-server's ids are a target's, by what it makes of each of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from outrider import logs
from outrider.errors import InvalidRequest, PeerUnavailable, VocabularyMismatch
from outrider.handshake import FIRST_COMPARED_ID
from outrider.messages import VOCABULARY_SLACK
from outrider.v1 import draft_service_pb2 as messages
from outrider.vocabulary_pieces import PeerVocabulary, VocabularyReader, vocabulary_key
from outrider_llama_server.answers import Served
from outrider_llama_server.upstream import Upstream

MOST_KNOWN = 4
"""Vocabularies that are kept: those that were used last."""

_LARGEST_PART = 256
_FEWEST_PARTS = 16
_LEAST_SHARE = 0.9
"""Of the parts that have to be equal: what servers of another age call a few control tokens may
differ, and of two vocabularies hardly any part is equal."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A target's vocabulary, whose ids the llama-server has."""

    size: int
    equal_count: int
    share: float
    """Of the parts that were equal."""

    def answer(self) -> messages.LearnVocabularyResponse:
        """Return what the orchestrator is answered."""
        return messages.LearnVocabularyResponse(
            level=messages.TRANSLATION_LEVEL_TOKENS,
            shared_token_count=self.equal_count,
            shared_mass=self.share,
            differences=f"{self.equal_count} ids mean the same, by llama-server's /detokenize",
        )


class Vocabularies:
    """Those of targets that were compared. Another model at the llama-server: all anew."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._known: OrderedDict[bytes, Compared] = OrderedDict()
        self._served: Served | None = None  # of whom they are known
        self._comparing = asyncio.Lock()

    @property
    def keys(self) -> Sequence[bytes]:
        """Of the vocabularies that are known."""
        if self._served != self._upstream.served:
            self._known.clear()
            self._served = self._upstream.served
        return list(self._known)

    def get(self, key: bytes) -> Compared:
        """Return one that is known. Raises VocabularyMismatch for another."""
        if key not in self.keys:
            raise VocabularyMismatch("the target's vocabulary is not known here (any more)")
        self._known.move_to_end(key)
        return self._known[key]

    async def learn(self, key: bytes, reader: VocabularyReader, introduction: object) -> Compared:
        """Compare a vocabulary. Raises InvalidRequest, VocabularyMismatch, PeerUnavailable."""
        async with self._comparing:
            if key in self.keys:
                return self.get(key)
            assert isinstance(introduction, messages.VocabularyIntroduction)
            vocabulary = await asyncio.to_thread(reader.finish)
            if key != vocabulary_key(introduction.vocabulary, vocabulary):
                raise InvalidRequest("key", "is not that of these tokens")
            served = self._upstream.served
            if served is None:
                raise PeerUnavailable(self._upstream.detail)
            compared = await self._compare(vocabulary, served)
            if served == self._served:
                self._known[key] = compared
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        logs.event("outrider.draft", "vocabulary compared", equal_tokens=compared.equal_count)
        return compared

    async def _compare(self, target: PeerVocabulary, served: Served) -> Compared:
        size = len(target.texts)
        if abs(size - served.vocabulary) > VOCABULARY_SLACK:
            raise VocabularyMismatch(
                f"vocabulary sizes differ by more than {VOCABULARY_SLACK}: "
                f"target {size}, llama-server {served.vocabulary}",
                rule="size",
            )
        first, end = FIRST_COMPARED_ID, min(size, served.vocabulary)
        step = max(1, min(_LARGEST_PART, (end - first) // _FEWEST_PARTS))
        equal, parts, differing = 0, 0, ""
        for start in range(first, end, step):
            ids = range(start, min(start + step, end))
            said = await self._upstream.detokenize(ids)
            expected = b"".join(target.texts[i] or target.names[i] for i in ids)
            is_equal = _without_broken(said) == _without_broken(expected.decode("utf-8", "replace"))
            if not is_equal and not differing:
                differing = f"{ids.start} to {ids.stop - 1}"
            equal, parts = equal + is_equal * len(ids), parts + 1
        share = equal / max(1, end - first)
        if parts and share < _LEAST_SHARE:
            raise VocabularyMismatch(
                f"the ids {differing} mean something else to the llama-server, "
                f"and so do {1.0 - share:.0%} of all",
                rule="token text",
            )
        return Compared(size, equal, share if parts else 1.0)


def _without_broken(text: str) -> str:
    """Return a text without what stands for bytes that are no character.

    How many such signs there are for some bytes is everyone's own choice.
    """
    return text.replace("\ufffd", "")
