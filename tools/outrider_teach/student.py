"""What is taught: a module that drafts, seen by those who train and judge it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from outrider_teach.batches import Batch


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the drafts that start at every learned token of a batch."""

    own: Tensor
    """The student's own rows: [drafts, width]."""
    at: Tensor
    """int64[drafts]: the place within the batch of the token that was read."""
    is_inside: Tensor
    """bool[drafts]: whether that is in the draft's window; past its end a row says nothing."""


class Student(nn.Module, ABC):
    """A head, or a draft model."""

    lag: int
    """Tokens before the first one that it reads, whose rows it needs: see `batch_of`."""
    before: int
    """Tokens that a window has before those that are learned."""
    drafted: Tensor
    """int64[drafted]: the ids that it has logits of, in rising order."""

    @abstractmethod
    def steps(self, batch: Batch, embeddings: Tensor, count: int) -> Iterator[Step]:
        """Yield the steps of drafts of `count` tokens along the texts.

        One alone where a later step is the first of a draft that starts there. `embeddings` are
        those of the target: [vocabulary, width].
        """

    @abstractmethod
    def output_rows(self, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return ids to learn, in rising order, and what gives their logits: [ids, width]."""

    @abstractmethod
    def normed(self, own: Tensor) -> Tensor:
        """Return what `output_rows` is multiplied with: [n, width]."""

    @abstractmethod
    def logits(self, own: Tensor) -> Tensor:
        """Return the logits of the drafted ids: [n, drafted]."""
