"""How far a head's distribution is from its target's, computed without keeping its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ROWS = 512  # of logits at once: 16 MiB of 8,192, which stays in a CPU's cache


@dataclass(frozen=True, slots=True)
class Wanted:
    """The target's likeliest tokens at n positions, among those that the head drafts."""

    places: Tensor
    """int64[n, top]: among the drafted ids; 0 where the head does not draft it."""
    chances: Tensor
    """float32[n, top]: they sum to 1, or to 0 where it drafts none or nothing is known."""

    def at(self, positions: Tensor, is_known: Tensor) -> Wanted:
        """Return those of some of the positions, of which some are not known after all."""
        return Wanted(self.places[positions], self.chances[positions] * is_known[:, None])


def wanted(top_ids: Tensor, top_logprobs: Tensor, drafted: Tensor) -> Wanted:
    """Return the target's distribution [n, top] over what a head drafts."""
    places = torch.searchsorted(drafted, top_ids).clamp_(max=len(drafted) - 1)
    is_drafted = (drafted[places] == top_ids) & (top_ids[:, :1] >= 0)
    weights = (top_logprobs - top_logprobs[:, :1]).exp() * is_drafted
    total = weights.sum(-1, keepdim=True)
    return Wanted(places * is_drafted, weights / total.clamp(min=1e-20))


class _Distance(torch.autograd.Function):
    """Cross-entropy and total variation, summed over rows; gradients come with the value."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, matrix: Tensor, places: Tensor, chances: Tensor, variation: float
    ) -> Tensor:
        total = rows.new_zeros(())
        is_learned = ctx.needs_input_grad[1]  # a draft model's matrix is its target's
        of_rows = torch.empty_like(rows)
        of_matrix = torch.zeros_like(matrix) if is_learned else None
        for at in range(0, len(rows), _ROWS):
            part, its = slice(at, at + _ROWS), rows[at : at + _ROWS]
            value, slope = _slope(its @ matrix.T, places[part], chances[part], variation)
            total += value
            torch.mm(slope, matrix, out=of_rows[part])
            if of_matrix is not None:
                of_matrix.addmm_(slope.T, its)
        ctx.save_for_backward(of_rows, of_matrix)
        return total

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        of_rows, of_matrix = ctx.saved_tensors
        slope = slopes[0]
        of_matrix = None if of_matrix is None else of_matrix * slope
        return of_rows * slope, of_matrix, None, None, None


def _slope(
    logits: Tensor, places: Tensor, chances: Tensor, variation: float
) -> tuple[Tensor, Tensor]:
    """Return the sum of the distances and their slope by the logits, in the logits' memory."""
    at_tops = logits.gather(1, places)
    scale = logits.logsumexp(-1, keepdim=True)
    known = (chances.sum(-1, keepdim=True) > 0).to(logits.dtype)
    crossed = (known * scale).sum() - (chances * at_tops).sum()
    draft = logits.sub_(scale).exp_()
    at_tops = draft.gather(1, places)
    is_less = ((at_tops < chances) * at_tops).to(logits.dtype)
    overlap = torch.minimum(at_tops, chances).sum()
    value = crossed + variation * (known.sum() - overlap)
    draft.mul_(known * (1 + variation * is_less.sum(-1, keepdim=True)))
    draft.scatter_add_(1, places, -chances - variation * is_less)
    return value, draft


def distance(rows: Tensor, matrix: Tensor, target: Wanted, variation: float) -> Tensor:
    """Return cross-entropy plus `variation` times total variation, the mean over known rows.

    rows [n, width] times matrix [drafted, width] are the head's logits.
    """
    known = (target.chances.sum(-1) > 0).sum().clamp(min=1)
    total: Tensor = _Distance.apply(rows, matrix, target.places, target.chances, variation)
    return total / known
