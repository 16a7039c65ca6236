"""Decides how much of a draft to accept. Knows tokens and probabilities, nothing else.

Sources: Leviathan et al. 2211.17192, Chen et al. 2302.01318 (`rejection`);
equality of samples (`match`) is llama.cpp's rule and, with shared noise on
both sides, Daliri et al. 2408.07978.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.distribution import Distribution, residual
from outrider.messages import Frame, SessionParameters
from outrider.noise import Purpose, draft_seed, uniform

Uniform = Callable[[Purpose, int], float]
"""`u(purpose, i)` is uniform in (0, 1) for the i-th position of the round."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first `accepted_count` draft tokens stand; `next_token_id` follows them."""

    accepted_count: int
    next_token_id: int


@dataclass(frozen=True, slots=True, eq=False)
class DraftToken:
    """A draft token and the row it was drawn from."""

    token_id: int
    distribution: Distribution


def match(draft: Sequence[int], samples: Sequence[int]) -> Verdict:
    """Accept while the target's own samples say the same; its first other one follows.

    `samples` has one id more than `draft`. Exact for any draft: the draft
    never influences a sample, only how many of them are already computed.
    """
    for i, (token_id, sample) in enumerate(zip(draft, samples[:-1], strict=True)):
        if token_id != sample:
            return Verdict(i, sample)
    return Verdict(len(draft), samples[-1])


def rejection(draft: Sequence[DraftToken], targets: Sequence[Distribution], u: Uniform) -> Verdict:
    """Accept the longest prefix that keeps the output distributed as `targets`.

    `targets[i]` is the target's distribution p where `draft[i]` would stand; one more
    follows the whole draft. Each draft token must have been drawn from
    exactly the row it carries, whatever its value.
    """
    for i, (token, p) in enumerate(zip(draft, targets[:-1], strict=True)):
        q = token.distribution
        # Accept with probability min(1, p/q), without dividing.
        if u(Purpose.ACCEPT, i) * q.probability(token.token_id) >= p.probability(token.token_id):
            return Verdict(i, residual(p, q).draw(u(Purpose.NEXT, i)))
    return Verdict(len(draft), targets[-1].draw(u(Purpose.NEXT, len(draft))))


def drew_as_keyed(frame: Frame, opening: SessionParameters) -> bool:
    """Say whether each token of a frame is the draw that its key makes from its row.

    This is what can be checked of a draft under `rejection`. That the row is its model's own, and
    not chosen for the token that it gives, cannot be: there the draft is trusted.
    """
    seed, dropped = draft_seed(opening.seed), len(opening.dropped.token_ids)
    first, position = frame.base + dropped, frame.position + dropped
    return len(frame.rows) == len(frame.token_ids) and all(
        row.draw(uniform(seed, opening.choice, Purpose.DRAFT, first, position + i)) == token_id
        for i, (row, token_id) in enumerate(zip(frame.rows, frame.token_ids, strict=True))
    )
