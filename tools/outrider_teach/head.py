"""An EAGLE-3 head, as llama.cpp computes it.

It reads at a position the token there and what three of the target's layers read at the one before,
joined by one matrix into a row g of the head's width; its logits are of the token after. Chained,
it reads its own hidden row in place of g. Attention looks back over earlier pairs, and rotates
pairs of neighbouring values, as llama.cpp does for EAGLE-3 however the target does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.errors import InvalidConfig
from outrider_teach.batches import OVERLAP, Batch
from outrider_teach.student import Step, Student


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """The sizes of a head. Its width is its target's, whose token embeddings it borrows."""

    width: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    rope_base: float
    epsilon: float
    layers: tuple[int, ...]
    """Of the target, whose inputs it reads: three."""
    norm_before_residual: bool = False
    """Whether what it adds to is g after its norm, in place of g."""

    @property
    def row_width(self) -> int:
        """Numbers that it reads of the target at a token."""
        return len(self.layers) * self.width


class Norm(nn.Module):
    """RMS norm over the last axis."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self._epsilon)


@dataclass(frozen=True, slots=True)
class Seen:
    """What pairs leave for later ones: [..., kv heads, head size] each."""

    keys: Tensor
    values: Tensor


class EagleHead(Student):
    """The head's own weights; parameters are named as its file's tensors are."""

    lag, before = 1, OVERLAP

    def __init__(self, shape: HeadShape, drafted: Tensor) -> None:
        super().__init__()
        self.shape = shape
        width, size = shape.width, shape.head_size
        self.fc = linear(shape.row_width, width)
        self.attn_norm = Norm(width, shape.epsilon)
        self.attn_norm_2 = Norm(width, shape.epsilon)
        self.attn_q = linear(2 * width, shape.heads * size)
        self.attn_k = linear(2 * width, shape.kv_heads * size)
        self.attn_v = linear(2 * width, shape.kv_heads * size)
        self.attn_output = linear(shape.heads * size, width)
        self.ffn_norm = Norm(width, shape.epsilon)
        self.ffn_gate = linear(width, shape.feed_forward)
        self.ffn_up = linear(width, shape.feed_forward)
        self.ffn_down = linear(shape.feed_forward, width)
        self.output_norm = Norm(width, shape.epsilon)
        self.output = linear(width, len(drafted))
        self.register_buffer("drafted", drafted.long())
        self.register_buffer("row_scale", torch.ones(shape.row_width))

    row_scale: Tensor
    """What each number of a row is multiplied with before `fc`: their sizes differ by thousands."""

    @torch.no_grad()
    def begin_as(self, other: EagleHead) -> None:
        """Take the weights of another head, whose drafted tokens and scale may differ.

        Raises InvalidConfig where its sizes do.
        """
        if self.shape != other.shape:
            raise InvalidConfig("head", "it reads other layers, or is of other sizes")
        its = dict(other.named_parameters())
        for name, parameter in self.named_parameters():
            if name == "output.weight":
                places = torch.searchsorted(other.drafted, self.drafted)
                places = places.clamp(max=len(other.drafted) - 1)
                is_shared = other.drafted[places] == self.drafted
                parameter[is_shared] = its[name][places[is_shared]]
            elif name == "fc.weight":
                parameter.copy_(its[name] * (other.row_scale / self.row_scale))
            else:
                parameter.copy_(its[name])

    def steps(self, batch: Batch, embeddings: Tensor, count: int) -> Iterator[Step]:
        """Yield steps as it drafts in service, each on its own last rows: training-time test.

        A draft sees the target's rows up to its start, and its own after.
        """
        fused = self.fused(batch.rows)
        embedded = embeddings[batch.tokens].to(fused.dtype)
        joined, residual = self.joined(embedded, fused)
        grid = batch.grid
        first = _padded(self.seen(joined, batch.positions), grid.pairs)
        at = grid.starts
        joined, residual = joined[at], residual[at]
        chained: list[Seen] = []
        for lag in range(1, count + 1):
            queries = self.queries(joined, batch.positions[at])[grid.drafts]
            found = attended(queries, first, chained, grid.is_visible).flatten(0, 1)
            step = Step(self.finished(residual, found[grid.places]), at, grid.is_inside(lag - 1))
            yield step
            if lag == count:
                return
            at = grid.read(lag)
            joined, residual = self.joined(embedded[at], step.own)
            chained.append(_padded(self.seen(joined, batch.positions[at]), grid.drafts))

    def fused(self, rows: Tensor) -> Tensor:
        """Return g of the target's rows: [n, row width] -> [n, width]."""
        return self.fc(rows * self.row_scale)

    def joined(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return what attention reads of tokens and of g, [n, 2 width], and what is added to it.

        Chained, `hidden` is the head's own rows in place of g.
        """
        normed = self.attn_norm_2(hidden)
        joined = torch.cat([self.attn_norm(embedded), normed], -1)
        return joined, normed if self.shape.norm_before_residual else hidden

    def seen(self, joined: Tensor, positions: Tensor) -> Seen:
        """Return the keys and values of pairs at these positions."""
        split = (len(joined), self.shape.kv_heads, self.shape.head_size)
        keys = rotated(self.attn_k(joined).view(split), positions, self.shape.rope_base)
        return Seen(keys, self.attn_v(joined).view(split))

    def queries(self, joined: Tensor, positions: Tensor) -> Tensor:
        """Return [n, heads, head size]."""
        split = (len(joined), self.shape.heads, self.shape.head_size)
        return rotated(self.attn_q(joined).view(split), positions, self.shape.rope_base)

    def finished(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return the head's own rows of what it read and what attention found: [n, width]."""
        x = residual + self.attn_output(attended)
        normed = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(normed)) * self.ffn_up(normed))

    def output_rows(self, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        return self.drafted, self.output.weight

    def normed(self, own: Tensor) -> Tensor:
        return self.output_norm(own)

    def logits(self, own: Tensor) -> Tensor:
        return self.output(self.output_norm(own))


def _padded(seen: Seen, at: Tensor) -> Seen:
    return Seen(seen.keys[at], seen.values[at])


def linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0.5 * inputs**-0.5)
    return layer


def rotated(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Return x [n, heads, size] with each two neighbouring values turned by its position."""
    size = x.shape[-1]
    steps = torch.arange(0, size, 2, device=x.device, dtype=torch.float32) / size
    angles = positions.float()[:, None] * base**-steps
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1)
    return turned.flatten(-2).to(x.dtype)


def attended(queries: Tensor, first: Seen, chained: Sequence[Seen], is_visible: Tensor) -> Tensor:
    """Return what attention finds for drafts in windows: [windows, drafts, heads * head size].

    queries are [windows, drafts, heads, head size]. Each sees of `first`, the target's pairs
    [windows, pairs, ...], those that `is_visible` says, [windows, drafts, pairs], and the pair that
    its own draft had in every chained step, [windows, drafts, ...] each.
    """
    windows, count, heads, size = queries.shape
    length, groups = first.keys.shape[1:3]
    grouped = queries.view(windows, count, groups, heads // groups, size) * size**-0.5
    scores = torch.einsum("wqgsd,wkgd->wgsqk", grouped, first.keys)
    scores = scores.masked_fill(~is_visible[:, None, None], -torch.inf)
    own = [torch.einsum("wqgsd,wqgd->wgsq", grouped, each.keys)[..., None] for each in chained]
    weights = torch.softmax(torch.cat([scores, *own], -1), -1)
    found = torch.einsum("wgsqk,wkgd->wqgsd", weights[..., :length], first.values)
    for i, each in enumerate(chained):
        share = weights[..., length + i].permute(0, 3, 1, 2)[..., None]
        found = found + share * each.values[:, :, :, None]
    return found.reshape(windows, count, heads * size)
