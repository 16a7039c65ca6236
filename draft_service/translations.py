"""The vocabularies that a draft was sent, and how well it can translate to each."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from outrider import logs
from outrider.descriptions import MOST_DIFFERENCES, check_vocabulary
from outrider.engine.host import EngineHost
from outrider.engine.job import Lease, Step
from outrider.engine.model import Model, Row
from outrider.engine.translating import SAMPLE, mean_shared_mass, sample_ids, translation_to
from outrider.errors import (
    ContextExhausted,
    EngineBusy,
    InvalidRequest,
    RoundSuperseded,
    VocabularyMismatch,
)
from outrider.translation import LEAST_SHARE, Level, Translation
from outrider.v1 import draft_service_pb2 as messages
from outrider.vocabularies import compare
from outrider.vocabulary_pieces import (
    KEY_BYTES,
    LESSON_BYTES,
    LESSON_TOKENS,
    VocabularyReader,
    token_table,
    vocabulary_key,
)

MOST_KNOWN = 4
"""Vocabularies that are kept: those of open sessions, and those that were used last."""

_MEASURING = b"what is translated"  # no session id: those have 16 bytes

_LEVELS = {
    Level.TOKENS: messages.TRANSLATION_LEVEL_TOKENS,
    Level.STRINGS: messages.TRANSLATION_LEVEL_STRINGS,
}


@dataclass(frozen=True, slots=True)
class LearnedTranslation:
    """A translation, and the level at which it is used for rules that compare ids."""

    translation: Translation
    level: Level
    shared_mass: float
    """Of shared tokens, the smaller of two shares on a sample of text: of the draft's probability
    mass, and of the tokens in the target's encoding."""
    differences: str
    """What differs, in one line."""

    def answer(self) -> messages.LearnVocabularyResponse:
        """Return what the orchestrator is answered."""
        return messages.LearnVocabularyResponse(
            level=_LEVELS[self.level],
            shared_token_count=self.translation.shared_count,
            shared_mass=self.shared_mass,
            differences=self.differences,
        )


class TranslationAnswer(Protocol):
    """What came of a vocabulary."""

    def answer(self) -> messages.LearnVocabularyResponse:
        """Return what the orchestrator is answered."""


class Learner(Protocol):
    """What a lesson is for."""

    @property
    def keys(self) -> Sequence[bytes]:
        """Of the vocabularies that are known."""

    async def learn(
        self, key: bytes, reader: VocabularyReader, introduction: object
    ) -> TranslationAnswer:
        """Take in a vocabulary."""


class Translations:
    """What a draft service learned. Bounded; an unused one is forgotten and sent again."""

    def __init__(self, host: EngineHost, model: Model) -> None:
        self._host = host
        self._model = model
        self._known: OrderedDict[bytes, LearnedTranslation] = OrderedDict()
        self._open: Counter[bytes] = Counter()  # sessions, by key
        self._learning = asyncio.Lock()  # one at a time takes the processor long enough

    @property
    def keys(self) -> Sequence[bytes]:
        """Of the vocabularies that are known."""
        return list(self._known)

    @contextmanager
    def use(self, key: bytes) -> Iterator[LearnedTranslation]:
        """Keep what was learned for as long as a session is open. Raises VocabularyMismatch."""
        learned = self.get(key)
        self._open[key] += 1
        try:
            yield learned
        finally:
            self._open[key] -= 1
            self._open += Counter()  # without those that are 0

    def get(self, key: bytes) -> LearnedTranslation:
        """Return what was learned of a vocabulary. Raises VocabularyMismatch for an unknown one."""
        learned = self._known.get(key)
        if learned is None:
            raise VocabularyMismatch("the target's vocabulary is not known here (any more)")
        self._known.move_to_end(key)
        return learned

    async def learn(
        self, key: bytes, reader: VocabularyReader, introduction: object
    ) -> LearnedTranslation:
        """Take in a vocabulary. Raises InvalidRequest, EngineBusy."""
        async with self._learning:
            if key in self._known:
                return self.get(key)
            self._forget_one()
            assert isinstance(introduction, messages.VocabularyIntroduction)
            self._known[key] = learned = await self._learned(key, reader, introduction)
        return learned

    def _forget_one(self) -> None:
        """Make a place. Raises EngineBusy where open sessions use all that are known."""
        if len(self._known) < MOST_KNOWN:
            return
        unused = next((key for key in self._known if not self._open[key]), None)
        if unused is None:
            raise EngineBusy("open sessions use all vocabularies that are known")
        del self._known[unused]

    async def _learned(
        self, key: bytes, reader: VocabularyReader, introduction: messages.VocabularyIntroduction
    ) -> LearnedTranslation:
        described = introduction.vocabulary

        def translate() -> tuple[Translation, float, str]:
            vocabulary = reader.finish()
            if key != vocabulary_key(described, vocabulary):
                raise InvalidRequest("key", "is not that of these tokens")
            translation = translation_to(self._model, token_table(described, vocabulary))
            differences = compare(translation).sentence()[:MOST_DIFFERENCES]
            return translation, translation.covered_share(SAMPLE), differences

        translation, covered, differences = await asyncio.to_thread(translate)
        mass = min(covered, await self._shared_mass(translation, covered))
        level = Level.TOKENS if mass >= LEAST_SHARE else Level.STRINGS
        logs.event(
            "outrider.draft",
            "vocabulary learned",
            translation=level.value,
            shared_tokens=translation.shared_count,
            shared_mass=round(mass, 3),
        )
        return LearnedTranslation(translation, level, mass, differences)

    async def _shared_mass(self, translation: Translation, covered: float) -> float:
        """Return the share of the draft's probability mass that shared tokens have on a sample.

        Where the engine has no room for that, it is taken to be their share of the text's tokens.
        """
        if not translation.shared_count:
            return 0.0
        ids = await asyncio.to_thread(sample_ids, self._model)

        def measure(lease: Lease) -> Generator[Step, list[Row], float]:
            rows = yield Step(lease.reconcile(ids, len(ids)), len(ids))
            return mean_shared_mass(translation, rows)

        try:
            # Idle sessions give way to it: their caches stay full while nobody else comes.
            ticket = self._host.submit(_MEASURING, measure, room=len(ids))
            mass: float = await asyncio.wrap_future(ticket.future)
        except (EngineBusy, RoundSuperseded, ContextExhausted):
            return covered
        self._host.forget(_MEASURING)
        return mass


class VocabularyLesson:
    """Takes in the messages of one vocabulary."""

    def __init__(self, translations: Learner) -> None:
        self._translations = translations
        self._introduction: messages.VocabularyIntroduction | None = None
        self._reader = VocabularyReader(0, 0)
        self._is_known = False  # already when it was introduced

    @property
    def is_complete(self) -> bool:
        """Whether all tokens came, or none are needed since the vocabulary is known."""
        return self._introduction is not None and (self._is_known or self._reader.is_complete)

    def add(self, message: messages.LearnVocabularyRequest) -> None:
        """Take in a message. Raises InvalidRequest for one that does not belong there."""
        kind = message.WhichOneof("message")
        if (kind == "introduction") != (self._introduction is None):
            raise InvalidRequest("message", "the first one introduces, all others list tokens")
        if kind == "tokens":
            if not self._is_known:
                self._reader.add(message.tokens)
            return
        introduction = message.introduction
        if len(introduction.key) != KEY_BYTES:
            raise InvalidRequest("key", f"{len(introduction.key)} bytes, not {KEY_BYTES}")
        check_vocabulary(introduction.vocabulary)
        if introduction.vocabulary.fits_any:
            raise InvalidRequest("vocabulary.fits_any", "is no vocabulary to translate to")
        if introduction.vocabulary.token_count > LESSON_TOKENS:
            raise InvalidRequest("vocabulary.token_count", f"at most {LESSON_TOKENS}")
        self._introduction = introduction
        self._is_known = introduction.key in self._translations.keys
        self._reader = VocabularyReader(introduction.vocabulary.token_count, LESSON_BYTES)

    async def take(
        self, requests: AsyncIterator[messages.LearnVocabularyRequest]
    ) -> messages.LearnVocabularyResponse:
        """Take in messages until they are enough, learn it, and say how well."""
        async for request in requests:
            self.add(request)
            if self.is_complete:
                break
        return await self.finish()

    async def finish(self) -> messages.LearnVocabularyResponse:
        """Learn it, and say how well. Raises InvalidRequest unless all tokens came."""
        if self._introduction is None:
            raise InvalidRequest("message", "the first one introduces the vocabulary")
        key = self._introduction.key
        learned = await self._translations.learn(key, self._reader, self._introduction)
        return learned.answer()
