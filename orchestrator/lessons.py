"""Sends a draft the vocabulary of a target whose ids are other ones, once."""

from __future__ import annotations

import asyncio
from typing import Protocol

from orchestrator.peers import Hosted
from outrider import handshake, logs
from outrider.backoff import Backoff
from outrider.core.health import LONGEST_EJECTION
from outrider.descriptions import check_learned, level_of
from outrider.errors import InvalidRequest, VocabularyMismatch
from outrider.request_scope import nobodys
from outrider.v1.draft_service_pb2 import LearnVocabularyResponse
from outrider.vocabulary_pieces import vocabulary_key


class Pupil(Protocol):
    """A draft that can learn a vocabulary."""

    async def teach(self, key: bytes, target: Hosted) -> LearnVocabularyResponse:
        """Send it a target's vocabulary."""


class Lesson:
    """Whether a draft has the target's ids, or else knows how to translate to them."""

    def __init__(self, draft: Pupil, same_vocabulary: bool) -> None:
        self._draft = draft
        self._same_vocabulary = same_vocabulary
        self.key = b""
        """Of the vocabulary that the draft translates to; empty where its ids are the target's."""
        self.learned: LearnVocabularyResponse | None = None
        """What the draft said once it had learned that."""
        self.obstacle = ""
        """Why the draft cannot be used yet; empty where it can."""
        self.is_under_way = False
        """The draft is being sent the vocabulary, and no call has failed."""
        self._task: asyncio.Task[None] | None = None
        self._refused_by = b""  # the draft, as it was, that answered what it would again

    def begin(self, its: Hosted, target: Hosted) -> None:
        """Compare two vocabularies; where they differ, send the draft the target's.

        Raises VocabularyMismatch where a draft with other ids is not wanted, or does not translate.
        """
        try:
            if handshake.check_vocabularies(target.model.vocabulary, its.model.vocabulary):
                handshake.check_names(target.vocabulary.names, its.vocabulary.names)
        except VocabularyMismatch as error:
            if self._same_vocabulary or not its.model.translates:
                self._stop()
                raise
            self._send(its, target, error)
        else:
            self._stop()

    def close(self) -> None:
        """Send nothing more: the draft or the target is no longer there."""
        self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task, self.key, self.learned, self.obstacle = None, b"", None, ""
        self.is_under_way, self._refused_by = False, b""

    def _send(self, its: Hosted, target: Hosted, why: VocabularyMismatch) -> None:
        key = vocabulary_key(target.model.vocabulary, target.vocabulary)
        is_known = self.learned is not None and key in its.model.known_vocabulary_keys
        is_busy = self._task is not None and not self._task.done()
        is_refused = self._refused_by == _process(its)
        if key == self.key and (is_known or is_busy or is_refused):
            return
        self._stop()
        self.key = key
        self.obstacle = f"the draft is sent the target's vocabulary, since {why}"
        self.is_under_way = True
        self._task = asyncio.create_task(self._teach(its, target), context=nobodys())

    async def _teach(self, its: Hosted, target: Hosted) -> None:
        backoff = Backoff(LONGEST_EJECTION)
        while True:
            try:
                learned = await self._draft.teach(self.key, target)
                check_learned(learned)
            except Exception as error:  # a peer may answer anything; the pair is still watched
                self.obstacle = f"the draft does not learn the target's vocabulary: {error}"
                self.is_under_way = False
                logs.warning("outrider.orchestrator", "draft cannot translate", detail=str(error))
                if isinstance(error, InvalidRequest):  # so it would end again
                    self._refused_by = _process(its)
                    return
                await asyncio.sleep(backoff.next())
            else:
                break
        # The description is of before; what the draft says of itself next has it too.
        if self.key not in its.model.known_vocabulary_keys:
            its.model.known_vocabulary_keys.append(self.key)
        self.learned, self.obstacle, self.is_under_way = learned, "", False
        logs.event(
            "outrider.orchestrator",
            "draft translates",
            translation=level_of(learned),
            shared_tokens=learned.shared_token_count,
            shared_mass=round(learned.shared_mass, 3),
            differences=learned.differences,
        )


def _process(its: Hosted) -> bytes:
    return its.model.identity + its.model.service_version.encode()
