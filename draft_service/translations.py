"""The vocabularies that a draft was sent, and how well it can translate to each."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from outrider import logs
from outrider.descriptions import check_vocabulary
from outrider.engine.host import EngineHost
from outrider.engine.job import Lease, Step
from outrider.engine.model import Model, Row
from outrider.engine.translating import SAMPLE, mean_shared_mass, sample_ids, translation_to
from outrider.errors import EngineBusy, InvalidRequest, RoundSuperseded, VocabularyMismatch
from outrider.translation import LEAST_SHARE, Level, Translation
from outrider.v1 import draft_service_pb2 as messages
from outrider.vocabularies import compare
from outrider.vocabulary_pieces import (
    KEY_BYTES,
    LESSON_BYTES,
    VocabularyReader,
    token_table,
)

MOST_KNOWN = 4
"""Vocabularies that are kept, those that were used last."""

_MOST_DIFFERENCES = 1024
_MEASURING = b"what is translated"  # no session id: those have 16 bytes

_LEVELS = {
    Level.TOKENS: messages.TRANSLATION_LEVEL_TOKENS,
    Level.STRINGS: messages.TRANSLATION_LEVEL_STRINGS,
}


@dataclass(frozen=True, slots=True)
class Learned:
    """A translation, and the level at which it is used for rules that compare ids."""

    translation: Translation
    level: Level
    shared_mass: float
    """Of shared tokens, the smaller of two shares on a sample of text: of the draft's probability
    mass, and of the tokens in the target's encoding."""


class Translations:
    """What a draft service learned. Bounded; an unused one is forgotten and sent again."""

    def __init__(self, host: EngineHost, model: Model) -> None:
        self._host = host
        self._model = model
        self._known: OrderedDict[bytes, Learned] = OrderedDict()

    @property
    def keys(self) -> Sequence[bytes]:
        """Of the vocabularies that are known."""
        return list(self._known)

    def get(self, key: bytes) -> Learned:
        """Return what was learned of a vocabulary. Raises VocabularyMismatch for an unknown one."""
        learned = self._known.get(key)
        if learned is None:
            raise VocabularyMismatch("the target's vocabulary is not known here (any more)")
        self._known.move_to_end(key)
        return learned

    async def learn(self, key: bytes, reader: VocabularyReader, introduction: object) -> Learned:
        """Take in a vocabulary. Raises InvalidRequest, EngineBusy."""
        if key in self._known:
            return self.get(key)
        assert isinstance(introduction, messages.VocabularyIntroduction)
        table = token_table(introduction.vocabulary, reader.finish())
        translation = await asyncio.to_thread(translation_to, self._model, table)
        covered = await asyncio.to_thread(translation.covered_share, SAMPLE)
        mass = min(covered, await self._shared_mass(translation))
        level = Level.TOKENS if mass >= LEAST_SHARE else Level.STRINGS
        self._known[key] = learned = Learned(translation, level, mass)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        logs.event(
            "outrider.draft",
            "vocabulary learned",
            level=level.value,
            shared_tokens=translation.shared_count,
            shared_mass=round(mass, 3),
        )
        return learned

    async def _shared_mass(self, translation: Translation) -> float:
        """Return the share of the draft's probability mass that shared tokens have on a sample."""
        if not translation.shared_count:
            return 0.0
        ids = await asyncio.to_thread(sample_ids, self._model)

        def measure(lease: Lease) -> Generator[Step, list[Row], float]:
            rows = yield Step(lease.reconcile(ids, len(ids)), len(ids))
            return mean_shared_mass(translation, rows)

        while True:
            ticket = self._host.submit(_MEASURING, measure, room=len(ids), is_modest=True)
            try:
                mass: float = await asyncio.wrap_future(ticket.future)
                break
            except (EngineBusy, RoundSuperseded):
                await asyncio.sleep(0.1)
        self._host.forget(_MEASURING)
        return mass


class Lesson:
    """Takes in the messages of one vocabulary."""

    def __init__(self, translations: Translations) -> None:
        self._translations = translations
        self._introduction: messages.VocabularyIntroduction | None = None
        self._reader = VocabularyReader(0, 0)

    @property
    def is_complete(self) -> bool:
        """Whether all tokens came."""
        return self._introduction is not None and self._reader.is_complete

    def add(self, message: messages.LearnVocabularyRequest) -> None:
        """Take in a message. Raises InvalidRequest for one that does not belong there."""
        kind = message.WhichOneof("message")
        if (kind == "introduction") != (self._introduction is None):
            raise InvalidRequest("message", "the first one introduces, all others list tokens")
        if kind == "tokens":
            self._reader.add(message.tokens)
            return
        introduction = message.introduction
        if len(introduction.key) != KEY_BYTES:
            raise InvalidRequest("key", f"{len(introduction.key)} bytes, not {KEY_BYTES}")
        check_vocabulary(introduction.vocabulary)
        if introduction.vocabulary.fits_any:
            raise InvalidRequest("vocabulary.fits_any", "is no vocabulary to translate to")
        self._introduction = introduction
        self._reader = VocabularyReader(introduction.vocabulary.token_count, LESSON_BYTES)

    async def finish(self) -> messages.LearnVocabularyResponse:
        """Learn it, and say how well. Raises InvalidRequest unless all tokens came."""
        if self._introduction is None:
            raise InvalidRequest("message", "the first one introduces the vocabulary")
        key = self._introduction.key
        learned = await self._translations.learn(key, self._reader, self._introduction)
        return messages.LearnVocabularyResponse(
            level=_LEVELS[learned.level],
            shared_token_count=learned.translation.shared_count,
            shared_mass=learned.shared_mass,
            differences=compare(learned.translation).sentence()[:_MOST_DIFFERENCES],
        )
