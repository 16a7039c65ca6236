"""What a student's drafts are worth on texts that it never learned from, by what was kept of them.

Greedy: a draft goes on while the student's likeliest token is the target's. At a temperature both
race with the same noise, as Outrider lets them, so that they choose a token the more often the
nearer their distributions are. Chains follow the texts: a draft's next token counts where the text
has what was drafted before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from outrider.kept_rows import KeptText
from outrider_teach.acceptance import LENGTH, POSITIONS, Acceptance, Judgement
from outrider_teach.batches import Batch, batch_of, packed, windows_of
from outrider_teach.student import Step, Student

TEMPERATURE = 0.8
_SIZE = 4096  # learned rows of a batch
_LOGITS = 1 << 23  # that are in memory at once: 32 MiB


@dataclass(frozen=True, slots=True)
class _Drafts:
    """Drafts that start one after the other along a text: [drafts, positions] each."""

    right: NDArray[np.float32]
    """1 where the student's likeliest token is the target's."""
    same: NDArray[np.float32]
    """How likely both choose the same token."""
    follows: NDArray[np.float32]
    """How likely the student chooses the text's token where the target does."""


@torch.no_grad()
def judge(student: Student, texts: Sequence[KeptText], embeddings: Tensor) -> Judgement:
    """Return what a student's drafts along these texts are worth."""
    windows = windows_of(texts, student.before)
    found: list[_Drafts] = []
    order = np.argsort([window.learned for window in windows], kind="stable")
    for part in packed(windows, order, _SIZE):
        batch = batch_of(texts, part, str(embeddings.device), student.lag)
        found += _drafts(student, batch, embeddings)
    right, same = (np.concatenate([getattr(d, n) for d in found]) for n in ("right", "same"))
    follows = np.concatenate([d.follows for d in found])
    return Judgement(
        greedy=Acceptance(by_position(right, right), in_rounds([d.right for d in found])),
        sampled=Acceptance(by_position(same, follows), expected(same, follows)),
        tokens=sum(window.learned for window in windows),
    )


def _drafts(student: Student, batch: Batch, embeddings: Tensor) -> list[_Drafts]:
    """Return the drafts in each window of a batch of which every position can be judged."""
    steps = [
        torch.cat([_figures(student, batch, step, at) for at in _parts(step, student)])
        for step in student.steps(batch, embeddings, POSITIONS)
    ]
    found = batch.grid.by_window(torch.stack(steps, 1).cpu().numpy())
    if len(steps) == 1:
        found = [_followed(each[:, 0]) for each in found if len(each) >= POSITIONS]
    known = [each[np.isfinite(each).all((1, 2))] for each in found]
    return [_Drafts(each[..., 0], each[..., 1], each[..., 2]) for each in known]


def _followed(figures: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return figures of drafts whose later steps are the first ones of drafts that start later."""
    return sliding_window_view(figures, POSITIONS, 0).swapaxes(1, 2)


def _parts(step: Step, student: Student) -> list[slice]:
    size = max(1, _LOGITS // len(student.drafted))
    return [slice(at, at + size) for at in range(0, len(step.at), size)]


def _figures(student: Student, batch: Batch, step: Step, part: slice) -> Tensor:
    """Return right, same and follows, not a number where the target's distribution is unknown."""
    at = step.at[part]
    ids = batch.top_ids[at]
    logits, drafted = student.logits(step.own[part]).float(), student.drafted
    right = drafted[logits.argmax(-1)] == ids[:, 0]
    p = torch.softmax(batch.top_logprobs[at].float() / TEMPERATURE, -1)
    places = torch.searchsorted(drafted, ids).clamp(max=len(drafted) - 1)
    is_drafted = drafted[places] == ids
    q = torch.softmax(logits / TEMPERATURE, -1).gather(1, places) * is_drafted
    both = chosen_by_both(p, q)
    is_text = ids == batch.following[at][:, None]
    follows = (both / p.clamp(min=1e-9) * is_text).sum(-1)
    found = torch.stack([right.float(), both.sum(-1), follows], -1)
    is_known = (ids[:, 0] >= 0) & step.is_inside[part]
    return torch.where(is_known[:, None], found, torch.nan)


def chosen_by_both(p: Tensor, q: Tensor) -> Tensor:
    """Return how likely two distributions choose each token, both, in a race with one noise.

    p [n, top] has all its tokens, q those of them alone: the rest of q is elsewhere. With times of
    an exponential distribution divided by p, and by q, i is first in both with the chance
    1 / sum_j max(p_j / p_i, q_j / q_i).
    """
    ratio = p / q.clamp(min=1e-20)
    others = torch.maximum(p[:, None], q[:, None] * ratio[..., None]).sum(-1)
    others = others + ratio * (1 - q.sum(-1, keepdim=True)).clamp(min=0)
    return p / others.clamp(min=1e-20) * (q > 0) * (p > 0)


def by_position(figures: NDArray[np.float32], follows: NDArray[np.float32]) -> tuple[float, ...]:
    """Return the mean at each position over drafts that came so far."""
    before = _before(follows)
    reached = np.maximum(before.sum(0), 1e-9)
    return tuple(float(x) for x in (before * figures).sum(0) / reached)


def expected(same: NDArray[np.float32], follows: NDArray[np.float32]) -> float:
    """Return what is accepted of all that is drafted, of drafts that start anywhere."""
    return float((_before(follows) * same)[:, :LENGTH].mean())


def _before(follows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return how likely a draft has the text's tokens before each position."""
    before = np.pad(follows[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    return np.cumprod(before, 1, dtype=np.float32)


def in_rounds(windows: Sequence[NDArray[np.float32]]) -> float:
    """Return what is accepted of drafts in rounds: each starts after what the last one wrote."""
    accepted = drafted = 0
    for right in windows:
        at = 0
        while at < len(right):
            count = int(np.cumprod(right[at, :LENGTH]).sum())
            accepted, drafted, at = accepted + count, drafted + LENGTH, at + count + 1
    return accepted / max(1, drafted)
