"""Decides how much of a draft to accept. Knows tokens and probabilities, nothing else.

Sources: Leviathan et al. 2211.17192, Chen et al. 2302.01318 (`token_verification`), Sun et al.
2403.10444 (`block_verification`); equality of samples (`match`) is llama.cpp's rule and, with
shared noise on both sides, Daliri et al. 2408.07978.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.distribution import Distribution, excess, residual
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


def token_verification(
    draft: Sequence[DraftToken], targets: Sequence[Distribution], u: Uniform
) -> Verdict:
    """Accept the longest prefix of tokens that stand one by one, each with chance min(1, p/q).

    `targets[i]` is the target's distribution p where `draft[i]` would stand; one more
    follows the whole draft. Each draft token must have been drawn from
    exactly the row it carries, for every value of it: then what is emitted is
    distributed as `targets`. Raises ValueError for another number of rows.
    """
    for i, (token, p) in enumerate(zip(draft, targets[:-1], strict=True)):
        q = token.distribution
        # Accept with probability min(1, p/q), without dividing.
        if u(Purpose.ACCEPT, i) * q.probability(token.token_id) >= p.probability(token.token_id):
            return Verdict(i, residual(p, q).draw(u(Purpose.NEXT, i)))
    return Verdict(len(draft), targets[-1].draw(u(Purpose.NEXT, len(draft))))


def block_verification(
    draft: Sequence[DraftToken], targets: Sequence[Distribution], u: Uniform
) -> Verdict:
    """Accept the longest prefix of which the coin says so; the coins of shorter ones do not matter.

    Takes and raises what `token_verification` does, and emits the same distribution. A prefix is
    kept with a chance that is never less, and the same where all of the draft's rows are certain.
    """
    shares = prefix_shares(draft, targets)
    count = _accepted_count(draft, targets, shares, u)
    if count == len(draft):
        return Verdict(count, targets[-1].draw(u(Purpose.NEXT, count)))
    left = residual(targets[count], draft[count].distribution, shares[count])
    return Verdict(count, left.draw(u(Purpose.NEXT, count)))


def verdict_of(
    judge: Callable[[Sequence[DraftToken], Sequence[Distribution], Uniform], Verdict],
    draft: Sequence[DraftToken],
    targets: Sequence[Distribution],
    u: Uniform,
) -> Verdict:
    """Apply `token_verification` or `block_verification`, perhaps to fewer targets.

    Nothing may follow the draft token after the last of them. Where that token is accepted, the
    text ends with it so far.
    """
    count = len(targets)
    # Both are exact for any later rows. What they make of these is left out.
    verdict = judge(draft, [*targets, *[targets[-1]] * (len(draft) + 1 - count)], u)
    if verdict.accepted_count < count:
        return verdict
    return Verdict(count - 1, draft[count - 1].token_id)


def block_samples(
    draft: Sequence[DraftToken], targets: Sequence[Distribution], u: Uniform
) -> list[int]:
    """Return samples of which `match` accepts what `block_verification` does, one per target row.

    Takes what `verdict_of` does. So what a target judged is read like what it sampled; those
    after the token that follows are draws that nobody looks at.
    """
    verdict = verdict_of(block_verification, draft, targets, u)
    count = verdict.accepted_count
    rest = range(count + 1, len(targets))
    return [
        *(token.token_id for token in draft[:count]),
        verdict.next_token_id,
        *(targets[i].draw(u(Purpose.NEXT, i)) for i in rest),
    ]


def prefix_shares(draft: Sequence[DraftToken], targets: Sequence[Distribution]) -> list[float]:
    """Return the chance with which each prefix of a draft is kept, in [0, 1]; 1 for none of it.

    The product of p/q, never more than 1 on the way: a token that p has more of makes up for
    earlier ones that it has less of, but not for later ones. Raises ValueError as the rules do.
    """
    shares = [1.0]
    for token, p in zip(draft, targets[:-1], strict=True):
        q = token.distribution.probability(token.token_id)
        share = shares[-1] * p.probability(token.token_id)
        # Exactly 1 where nothing is lost; 0 for what p forbids, with any q.
        shares.append(share / q if share < q else float(share > 0.0))
    return shares


def _accepted_count(
    draft: Sequence[DraftToken],
    targets: Sequence[Distribution],
    shares: Sequence[float],
    u: Uniform,
) -> int:
    """Return the length of the longest prefix of which the coin says that it is kept.

    The longest is looked at first, so that rows before it need not be summed.
    """
    count = len(draft)
    if not draft or u(Purpose.ACCEPT, count - 1) < shares[count]:
        return count
    for i in range(count - 1, 0, -1):
        left = float(excess(targets[i], draft[i].distribution, shares[i]).sum())
        # The chance is left / (left + (1 - share)), without dividing. The brackets matter: where
        # the share is 1 the chance is too, and left + 1 - share would round that away.
        if u(Purpose.ACCEPT, i - 1) * (left + (1.0 - shares[i])) <= left:
            return i
    return 0


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
