"""A vocabulary that comes, and goes, in pieces of thousands of tokens. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from outrider.errors import InvalidRequest
from outrider.texts import longest_token
from outrider.translation import TokenTable
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as draft

LESSON_BYTES = 64 << 20
"""Of all that a draft is sent of a vocabulary, at most."""

LESSON_TOKENS = 1 << 20
"""Of a vocabulary that a draft is sent, at most."""

KEY_BYTES = 32  # bytes of a SHA-256

_TOKENS_PER_MESSAGE = 4096  # tokens of one message of a vocabulary


@dataclass(frozen=True)
class PeerVocabulary:
    """A peer's token table: what each id adds to a text, and what it is named."""

    texts: list[bytes]
    names: list[bytes]
    control_ids: Mapping[str, int]
    """Of the tokens that add nothing, by name."""
    longest: int
    """The most bytes of a text that one token can stand for."""

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of all texts and names."""
        return hashlib.sha256(_digest(self.texts) + _digest(self.names)).digest()


class VocabularyReader:
    """Puts a vocabulary of `count` tokens together from its pieces, of `most_bytes` at most."""

    def __init__(self, count: int, most_bytes: int) -> None:
        self._count = count
        self._left = most_bytes  # that may still come
        self._texts: list[bytes] = []  # by id, as the names
        self._names: list[bytes] = []

    @property
    def is_complete(self) -> bool:
        """Whether all tokens came."""
        return len(self._texts) == len(self._names) == self._count

    def add(self, piece: common.ListVocabularyResponse) -> None:
        """Take in a piece. Raises InvalidRequest when more come than were announced."""
        self._left -= piece.ByteSize()
        self._texts += piece.token_texts
        self._names += piece.token_names
        if self._left < 0 or max(len(self._texts), len(self._names)) > self._count:
            wrong = f"more than {self._count} tokens of usual length"
            raise InvalidRequest("vocabulary", wrong)

    def finish(self) -> PeerVocabulary:
        """Return the whole. Raises InvalidRequest unless all tokens came."""
        texts, names = self._texts, self._names
        if not self.is_complete:
            wrong = f"{len(texts)} texts and {len(names)} names of {self._count} tokens"
            raise InvalidRequest("vocabulary", wrong)
        silent = [(name, i) for i, name in enumerate(names) if not texts[i]]
        control_ids = {name.decode("utf-8", "replace"): i for name, i in silent}
        return PeerVocabulary(texts, names, control_ids, longest_token(texts, names))


def vocabulary_key(described: common.Vocabulary, vocabulary: PeerVocabulary) -> bytes:
    """Return what names a vocabulary to drafts; another one has another.

    All of it is in there: a draft that was taught by one caller is asked by others.
    """
    written = described.SerializeToString(deterministic=True)
    return hashlib.sha256(b"outrider vocabulary" + vocabulary.digest + written).digest()


def _digest(parts: Sequence[bytes]) -> bytes:
    lengths = np.array([len(part) for part in parts], "<u4").tobytes()
    return hashlib.sha256(lengths + b"".join(parts)).digest()


def lesson(
    key: bytes, described: common.Vocabulary, vocabulary: PeerVocabulary
) -> Iterator[draft.LearnVocabularyRequest]:
    """Yield the messages that a vocabulary is sent in."""
    introduction = draft.VocabularyIntroduction(key=key, vocabulary=described)
    yield draft.LearnVocabularyRequest(introduction=introduction)
    texts, names = vocabulary.texts, vocabulary.names
    for first in range(0, len(texts), _TOKENS_PER_MESSAGE):
        end = first + _TOKENS_PER_MESSAGE
        tokens = common.ListVocabularyResponse(
            first_token_id=first, token_texts=texts[first:end], token_names=names[first:end]
        )
        yield draft.LearnVocabularyRequest(tokens=tokens)


def token_table(described: common.Vocabulary, vocabulary: PeerVocabulary) -> TokenTable:
    """Return a vocabulary as a translation takes it."""

    def known(token_id: int) -> int | None:
        return token_id if token_id >= 0 else None

    return TokenTable(
        texts=vocabulary.texts,
        names=vocabulary.names,
        type=described.type,
        bos=known(described.bos_token_id),
        eos=known(described.eos_token_id),
        eot=known(described.eot_token_id),
        adds_bos=described.adds_bos,
        end_token_ids=tuple(described.end_token_ids),
    )
