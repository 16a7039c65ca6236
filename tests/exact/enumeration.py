"""Computes the exact distribution of what a round emits, by running the real code on every case.

The code under test asks for its randomness through `u(purpose, i)`. As a
function of one such number its answer only changes at a few breakpoints, so
one run for each cell between them, weighted by the cell's width, integrates
the number out. `integrate` checks that no answer changes inside a cell: the
breakpoints are hints, the distribution is the code's own.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from outrider.core.acceptance import (
    DraftToken,
    Uniform,
    Verdict,
    block_verification,
    prefix_shares,
    token_verification,
)
from outrider.distribution import Distribution, excess, residual
from outrider.noise import Purpose
from tests.support.lazy import Lazy

stats = Lazy("scipy.stats")

Context = tuple[int, ...]
TextDistribution = Mapping[Context, float]
"""The probability of every token sequence."""
Model = Callable[[Context], Distribution]
Round = Callable[[Context], TextDistribution]
"""The distribution of what one round emits after a context."""
Breakpoints = Callable[[Purpose, int], Iterable[float]]
"""Where an answer may change with `u(purpose, i)`."""
Verify = Callable[[Sequence[DraftToken], Sequence[Distribution], Uniform], Verdict]

EDGE = 1e-14
"""How near to both ends of a cell an answer is checked. Wider than the rounding of one
product or sum, and narrow enough for a total variation of 1e-12 to mean something."""

Question = tuple[Purpose, int]
Cell = tuple[float, float]
Outcome = TypeVar("Outcome", bound=Hashable)


# Integration


class _Unanswered(Exception):
    def __init__(self, question: Question) -> None:
        self.question = question


def integrate(
    decide: Callable[[Uniform], Outcome], breakpoints: Breakpoints
) -> dict[Outcome, float]:
    """Return the distribution of `decide` where what it asks for is independent and uniform."""
    distribution: defaultdict[Outcome, float] = defaultdict(float)
    boxes: list[dict[Question, Cell]] = [{}]
    while boxes:
        box = boxes.pop()
        try:
            outcome = decide(_inside(box, _middle))
        except _Unanswered as unanswered:
            question = unanswered.question
            boxes += [{**box, question: cell} for cell in _cells(breakpoints(*question))]
        else:
            for place in (_bottom, _top):
                answer = decide(_inside(box, place))
                assert answer == outcome, f"{outcome} becomes {answer} inside {box}"
            distribution[outcome] += float(np.prod([high - low for low, high in box.values()]))
    return dict(distribution)


def _inside(box: Mapping[Question, Cell], place: Callable[[Cell], float]) -> Uniform:
    def u(purpose: Purpose, i: int) -> float:
        if (purpose, i) not in box:
            raise _Unanswered((purpose, i))
        return place(box[purpose, i])

    return u


def _middle(cell: Cell) -> float:
    return (cell[0] + cell[1]) / 2


def _bottom(cell: Cell) -> float:
    return cell[0] + EDGE


def _top(cell: Cell) -> float:
    return cell[1] - EDGE


def _cells(breakpoints: Iterable[float]) -> list[Cell]:
    edges = [0.0]
    for point in sorted(breakpoints):
        # Nearer than this they are one breakpoint, computed in two ways.
        if edges[-1] + 4 * EDGE < point < 1.0 - 4 * EDGE:
            edges.append(point)
    return list(zip(edges, [*edges[1:], 1.0], strict=True))


# Where answers change


def draw_breakpoints(row: Distribution) -> list[float]:
    """Return where `row.draw(u)` may go over to the next id."""
    sums = np.cumsum(row.weights)
    return [float(share) for share in sums / sums[-1]]


def coin_breakpoints(token: DraftToken, p: Distribution) -> list[float]:
    """Return where the coin for `token` turns: at p/q."""
    q = token.distribution.probability(token.token_id)
    return [p.probability(token.token_id) / q] if q > 0 else []


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to verify a draft, and where its answers may change."""

    verify: Verify
    breakpoints: Callable[[Sequence[DraftToken], Sequence[Distribution]], Breakpoints]


def token_breakpoints(draft: Sequence[DraftToken], targets: Sequence[Distribution]) -> Breakpoints:
    """Return where `token_verification` may change its answer."""

    def breakpoints(purpose: Purpose, i: int) -> list[float]:
        if i == len(draft):
            return draw_breakpoints(targets[i])
        if purpose is Purpose.ACCEPT:
            return coin_breakpoints(draft[i], targets[i])
        return draw_breakpoints(residual(targets[i], draft[i].distribution))

    return breakpoints


def block_breakpoints(draft: Sequence[DraftToken], targets: Sequence[Distribution]) -> Breakpoints:
    """Return where `block_verification` may change its answer."""
    shares = prefix_shares(draft, targets)

    def breakpoints(purpose: Purpose, i: int) -> list[float]:
        if purpose is Purpose.NEXT:
            if i == len(draft):
                return draw_breakpoints(targets[i])
            return draw_breakpoints(residual(targets[i], draft[i].distribution, shares[i]))
        share = shares[i + 1]
        if i + 1 == len(draft):
            return [share]
        left = float(excess(targets[i + 1], draft[i + 1].distribution, share).sum())
        return [left / (left + (1.0 - share))] if left > 0 else []

    return breakpoints


TOKEN = Rule(token_verification, token_breakpoints)
BLOCK = Rule(block_verification, block_breakpoints)


# Rounds


def _never(context: Context, token_id: int) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A target, a drafter of up to `length` tokens and a rule between them.

    The drafter draws from `sampled` and sends `sent`. `withholds(context,
    token_id)` looks at a drawn token and ends the draft before it.
    """

    target: Model
    sampled: Model
    sent: Model
    length: int
    rule: Rule = TOKEN
    withholds: Callable[[Context, int], bool] = _never

    def round_distribution(self, context: Context) -> TextDistribution:
        """Return the distribution of what one round emits after `context`."""
        distribution: defaultdict[Context, float] = defaultdict(float)
        for draft, probability in self._drafts(context, ()):
            for verdict, share in self.verdict_distribution(context, draft).items():
                emitted = (*draft[: verdict.accepted_count], verdict.next_token_id)
                distribution[emitted] += probability * share
        return dict(distribution)

    def verdict_distribution(self, context: Context, draft: Context) -> dict[Verdict, float]:
        """Return the distribution of the verdict about one draft."""
        prefixes = [context + draft[:i] for i in range(len(draft) + 1)]
        targets = [self.target(prefix) for prefix in prefixes]
        tokens = [
            DraftToken(token_id, self.sent(prefix))
            for token_id, prefix in zip(draft, prefixes, strict=False)
        ]
        return integrate(
            lambda u: self.rule.verify(tokens, targets, u), self.rule.breakpoints(tokens, targets)
        )

    def _drafts(self, context: Context, draft: Context) -> Iterator[tuple[Context, float]]:
        if len(draft) == self.length:
            yield draft, 1.0
            return
        here = context + draft
        for token_id, probability in draw_distribution(self.sampled(here)).items():
            if self.withholds(here, token_id):
                yield draft, probability
            else:
                for longer, share in self._drafts(context, (*draft, token_id)):
                    yield longer, probability * share


def drawing(model: Model) -> Callable[[Context, float], int]:
    """Return what draws a model's next token. Of one number it is asked once: boxes share them."""
    return functools.cache(lambda context, u: model(context).draw(u))


def draw_distribution(row: Distribution) -> dict[int, float]:
    """Return the distribution of `row.draw`, computed from its own answers."""
    return integrate(
        lambda u: row.draw(u(Purpose.DRAFT, 0)), lambda purpose, i: draw_breakpoints(row)
    )


def emitted_distribution(
    speculative: Round, target: Model, count: int, rounds: int = 1
) -> TextDistribution:
    """Return the distribution of the first `count` tokens: some rounds, then the target alone."""
    distribution: defaultdict[Context, float] = defaultdict(float)
    speculate = functools.cache(speculative)

    @functools.cache
    def alone(context: Context) -> TextDistribution:
        return {
            (token_id,): share for token_id, share in draw_distribution(target(context)).items()
        }

    def extend(context: Context, probability: float, rounds_left: int) -> None:
        if len(context) >= count:
            distribution[context[:count]] += probability
            return
        emitted = speculate(context) if rounds_left else alone(context)
        for token_ids, share in emitted.items():
            extend(context + token_ids, probability * share, max(rounds_left - 1, 0))

    extend((), 1.0, rounds)
    return dict(distribution)


def target_distribution(target: Model, count: int) -> TextDistribution:
    """Return the distribution of the target's own first `count` tokens, by the product rule."""
    distribution: dict[Context, float] = {(): 1.0}
    for _ in range(count):
        distribution = {
            (*context, int(token_id)): probability * target(context).probability(int(token_id))
            for context, probability in distribution.items()
            for token_id in target(context).token_ids
        }
    return distribution


def total_variation(a: TextDistribution, b: TextDistribution) -> float:
    """Return half the summed difference, after checking that both are whole distributions."""
    for distribution in (a, b):
        assert abs(sum(distribution.values()) - 1.0) < 1e-12
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in {*a, *b}) / 2


def chi_square_p_value(outcomes: Sequence[Context], distribution: TextDistribution) -> float:
    """Return how likely outcomes at least this unlike `native` are, if they follow it."""
    counts = Counter(outcomes)
    assert set(counts) <= set(distribution)
    expected = np.array(list(distribution.values())) * len(outcomes)
    assert expected.min() >= 5
    return float(stats.chisquare([counts[key] for key in distribution], expected).pvalue)


# Models


def random_model(seed: int, vocabulary: int, zeros: float = 0.0) -> Model:
    """Return a model whose every row is random: ids in no order, weights of no scale.

    A share `zeros` of the tokens is impossible: in half of the rows they are
    listed with weight 0, in the other half they are missing.
    """

    @functools.cache
    def model(context: Context) -> Distribution:
        rng = np.random.default_rng([seed, *(token_id + 1 for token_id in context)])
        weights = rng.gamma(0.7, size=vocabulary) + 1e-3
        weights[rng.random(vocabulary) < zeros] = 0.0
        if not weights.any():
            weights[rng.integers(vocabulary)] = 1.0
        token_ids = rng.permutation(vocabulary).astype(np.int32)
        listed = (weights > 0) | bool(rng.random() < 0.5)
        return Distribution(token_ids[listed], weights[listed])

    return model


def rewritten(model: Model, rewrite: Callable[[Distribution], Distribution]) -> Model:
    """Return the model with every row rewritten."""
    return functools.cache(lambda context: rewrite(model(context)))


def softened(row: Distribution) -> Distribution:
    """Return the row half way to even odds, so that no text is too rare to be counted."""
    return Distribution(row.token_ids, row.weights + row.total / len(row.weights))


def mixture(a: Model, b: Model, share: float) -> Model:
    """Return `share` of `a` and the rest of `b`."""

    @functools.cache
    def model(context: Context) -> Distribution:
        p, q = a(context), b(context)
        token_ids = np.union1d(p.token_ids, q.token_ids).astype(np.int32)[::-1]
        weights = [share * p.probability(i) + (1 - share) * q.probability(i) for i in token_ids]
        return Distribution(token_ids, np.array(weights))

    return model
