"""Runs a head over kept texts as it drafts in service: step by step, each on its own last rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_teach.batches import Batch
from outrider_teach.head import EagleHead, Seen, attended


@dataclass(frozen=True, slots=True)
class Step:
    """One step of drafts that start at every learned pair of a batch.

    The nth row of a window in it belongs to the draft that starts at its nth learned pair, whatever
    the step; a draft that would pass the window's end is not in it.
    """

    own: Tensor
    """The head's own rows: [drafts, width]."""
    at: Tensor
    """int64[drafts]: the pair within the batch whose token was read."""
    counts: list[int]
    """Drafts of each window."""


def steps_of(head: EagleHead, batch: Batch, embeddings: Tensor, count: int) -> Iterator[Step]:
    """Yield the steps of drafts of `count` tokens along the texts, as training-time test has them.

    A draft sees the target's rows up to its start, and its own after. `embeddings` are those of the
    target: [vocabulary, width].
    """
    fused = head.fused(batch.rows)
    embedded = embeddings[batch.tokens].to(fused.dtype)
    joined, residual = head.joined(embedded, fused)
    lengths = [span.stop - span.start for span in batch.spans]
    first = _by_window(head.seen(joined, batch.positions), lengths)
    at, counts = _learned(batch, 0)
    joined, residual = joined[at], residual[at]
    chained: list[list[Seen]] = []
    for lag in range(count):
        queries = head.queries(joined, batch.positions[at]).split(counts)
        found = [
            attended(query, first[i], [_part(each[i], len(query)) for each in chained], lag)
            for i, query in enumerate(queries)
            if len(query)
        ]
        step = Step(head.finished(residual, torch.cat(found)), at, counts)
        yield step
        at, counts = _learned(batch, lag + 1)
        if not len(at):
            return
        hidden = step.own[_without_lasts(step.counts, at.device)]
        joined, residual = head.joined(embedded[at], hidden)
        chained.append(_by_window(head.seen(joined, batch.positions[at]), counts))


def _learned(batch: Batch, lag: int) -> tuple[Tensor, list[int]]:
    """Return the learned pairs of all windows but so many first ones of each, and their counts."""
    parts = [torch.arange(min(s.begin + lag, s.stop), s.stop) for s in batch.spans]
    return torch.cat(parts).to(batch.rows.device), [len(part) for part in parts]


def _without_lasts(counts: list[int], device: torch.device) -> Tensor:
    """Return the places of all rows but the last of each window."""
    ends = torch.tensor(counts).cumsum(0) - 1
    stays = torch.ones(sum(counts), dtype=torch.bool)
    stays[ends[torch.tensor(counts) > 0]] = False
    return stays.nonzero()[:, 0].to(device)


def _by_window(seen: Seen, counts: list[int]) -> list[Seen]:
    pairs = zip(seen.keys.split(counts), seen.values.split(counts), strict=True)
    return [Seen(keys, values) for keys, values in pairs]


def _part(seen: Seen, count: int) -> Seen:
    return Seen(seen.keys[:count], seen.values[:count])
