"""Runs a head over kept texts as it drafts in service: step by step, each on its own last rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from outrider_teach.batches import Batch
from outrider_teach.head import EagleHead, Seen, attended


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the drafts that start at every learned pair of a batch."""

    own: Tensor
    """The head's own rows: [drafts, width]."""
    at: Tensor
    """int64[drafts]: the pair within the batch whose token was read."""
    is_inside: Tensor
    """bool[drafts]: whether that is in the draft's window; past its end a row says nothing."""


def steps_of(head: EagleHead, batch: Batch, embeddings: Tensor, count: int) -> Iterator[Step]:
    """Yield the steps of drafts of `count` tokens along the texts, as training-time test has them.

    A draft sees the target's rows up to its start, and its own after. `embeddings` are those of the
    target: [vocabulary, width].
    """
    fused = head.fused(batch.rows)
    embedded = embeddings[batch.tokens].to(fused.dtype)
    joined, residual = head.joined(embedded, fused)
    grid = batch.grid
    first = _padded(head.seen(joined, batch.positions), grid.pairs)
    at = grid.starts
    joined, residual = joined[at], residual[at]
    chained: list[Seen] = []
    for lag in range(1, count + 1):
        queries = head.queries(joined, batch.positions[at])[grid.drafts]
        found = attended(queries, first, chained, grid.is_visible).flatten(0, 1)
        step = Step(head.finished(residual, found[grid.places]), at, grid.is_inside(lag - 1))
        yield step
        if lag == count:
            return
        at = grid.read(lag)
        joined, residual = head.joined(embedded[at], step.own)
        chained.append(_padded(head.seen(joined, batch.positions[at]), grid.drafts))


def _padded(seen: Seen, at: Tensor) -> Seen:
    return Seen(seen.keys[at], seen.values[at])
