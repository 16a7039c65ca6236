"""On a virtual clock: what a bad hour taught about a draft is unlearned within some texts."""

from __future__ import annotations

import pytest

from outrider.core.rates import AcceptanceRate
from outrider.core.target_costs import Pair
from outrider.costs import CostTable
from outrider.messages import Rule
from outrider.speculation import Speculation
from tests.support.simulation import Models, Simulation, known_pair

TOKENS = 96
MODELS = Models(
    costs=CostTable([(1, 0.030), (4, 0.0304), (8, 0.031), (64, 0.0552)]),
    overhead=0.0015,
    draft_token=0.004,
    draft_round_trip=0.02,
    acceptance=0.85,
)


def pair_of(latency: float, token_time: float) -> Pair:
    """Return what is known of a draft that had these times for an hour, and was seldom tried."""
    known = known_pair(MODELS)
    known.rates.acceptance[Rule.MATCH] = acceptance = AcceptanceRate()
    for mean, value in ((known.rates.latency, latency), (known.rates.token_time, token_time)):
        for _ in range(50):
            mean.note(value)
    for i in range(20):
        acceptance.note([250, 250, 250, 250], 4 if i % 3 else 2)
    known.rates.retry.after, known.rates.retry.unused = 128, 40
    return known


def rate(pair: Pair, texts: range) -> float:
    seconds = 0.0
    for seed in texts:
        text = Simulation(MODELS, Speculation(), tokens=TOKENS, seed=seed, pair=pair)
        seconds += text.run().seconds
    return TOKENS * len(texts) / seconds


@pytest.mark.parametrize(("latency", "token_time"), [(0.85, 0.004), (0.01, 0.1)])
def test_a_draft_that_was_slow_or_far_away_for_an_hour_is_used_again_soon_after(
    latency: float, token_time: float
) -> None:
    """A text as short as this has one probe at most, answered by the first frame of a new stream,
    of which nothing was learned: for thousands of tokens the draft was left alone."""
    pair = pair_of(latency, token_time)
    plain = 1.0 / (0.030 + 0.0015)
    assert rate(pair, range(1)) < 1.1 * plain, "it is not used yet"
    rate(pair, range(1, 9))
    assert rate(pair, range(10, 13)) > 1.7 * plain
