"""A toy whose tokens have other ids: what it writes is the same text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from outrider.engine.model import Chunk, ModelDescription, Row
from tests.support.toy import ToyModel


class Renamed:
    """A `Model` over another one, with ids in a random order."""

    def __init__(self, inner: ToyModel, seed: int = 1) -> None:
        self.inner = inner
        order = np.random.default_rng(seed).permutation(inner.vocabulary_size)
        self._inner_ids: list[int] = order.tolist()  # by id
        self._ids: list[int] = np.argsort(order).tolist()  # by inner id
        self._order = order

    def __getattr__(self, name: str) -> Any:
        """Leave all that has no ids in it to the toy."""
        return getattr(self.inner, name)

    @property
    def pad_multiple(self) -> int:
        """The toy's."""
        return self.inner.pad_multiple

    @pad_multiple.setter
    def pad_multiple(self, value: int) -> None:
        self.inner.pad_multiple = value

    @property
    def step_seconds(self) -> float:
        """The toy's."""
        return self.inner.step_seconds

    @step_seconds.setter
    def step_seconds(self, value: float) -> None:
        self.inner.step_seconds = value

    def describe(self) -> ModelDescription:
        """Return the toy's description, with these ids."""
        described = self.inner.describe()
        its = described.vocabulary
        assert its.bos is not None
        assert its.eos is not None
        renamed = replace(
            its,
            bos=self._ids[its.bos],
            eos=self._ids[its.eos],
            end_token_ids=tuple(self._ids[i] for i in its.end_token_ids),
        )
        identity = described.identity[::-1]
        return replace(described, vocabulary=renamed, identity=identity)

    def token_texts(self) -> list[bytes]:
        """Return the texts by these ids."""
        texts = self.inner.token_texts()
        return [texts[i] for i in self._inner_ids]

    def token_names(self) -> list[bytes]:
        """Return the names by these ids."""
        names = self.inner.token_names()
        return [names[i] for i in self._inner_ids]

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        """Return these ids of a text."""
        return [self._ids[i] for i in self.inner.tokenize(text, add_special, parse_special)]

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        """Decode, and return rows by these ids."""
        inner = [
            replace(chunk, token_ids=[self._inner_ids[i] for i in chunk.token_ids])
            for chunk in chunks
        ]
        return [[row[self._order] for row in rows] for rows in self.inner.decode(inner)]
