"""What a sparse distribution promises: exact draws, fair races, residuals by id, rows to send.

The statistical tests have fixed seeds. With fresh ones, each would raise a
false alarm at most once in a million runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider import noise
from outrider.distribution import (
    MAX_WEIGHT,
    Distribution,
    certain,
    from_logits,
    largest,
    logprobs,
    most_probable,
    quantised,
    ranked,
    residual,
    softmax,
    winners,
)
from tests.support.lazy import Lazy

special, stats = Lazy("scipy.special"), Lazy("scipy.stats")

SMALLEST_U = 2.0**-54
LARGEST_U = 1.0 - 2.0**-53


def row(weights: Mapping[int, float]) -> Distribution:
    """Return the distribution of these weights, listed in this order."""
    return Distribution(np.array(list(weights), np.int32), np.array(list(weights.values()), float))


def probabilities(distribution: Distribution) -> dict[int, float]:
    """Return the ids that can come out, with their probabilities."""
    return {
        int(token_id): float(weight / distribution.weights.sum())
        for token_id, weight in zip(distribution.token_ids, distribution.weights, strict=True)
        if weight > 0
    }


def random_row(rng: np.random.Generator, vocabulary: int) -> Distribution:
    """Return random weights on some ids, in no order, some of them 0."""
    count = int(rng.integers(1, vocabulary + 1))
    weights = rng.gamma(0.5, size=count) * (rng.random(count) < 0.8)
    weights[rng.integers(count)] = 1.0
    return Distribution(rng.permutation(vocabulary)[:count].astype(np.int32), weights)


# Probability


def test_a_probability_is_the_weight_over_the_sum() -> None:
    distribution = row({7: 1, 3: 2, 5: 1})
    assert [distribution.probability(i) for i in (3, 5, 7)] == [0.5, 0.25, 0.25]
    assert distribution.total == 4.0


def test_an_id_that_is_not_listed_has_probability_0() -> None:
    assert row({7: 1, 3: 2}).probability(4) == 0.0


def test_certain_gives_one_id_always() -> None:
    distribution = certain(9)
    assert distribution.probability(9) == 1.0
    assert {distribution.draw(u) for u in (SMALLEST_U, 0.5, LARGEST_U)} == {9}
    assert distribution.race(seed=1, stream=0, position=2) == (9, float("inf"))


# Draws


def test_a_draw_walks_the_ids_in_the_listed_order() -> None:
    distribution = row({7: 1, 3: 2, 5: 1})
    assert [distribution.draw(u) for u in (0.1, 0.3, 0.7, 0.9)] == [7, 3, 3, 5]


def test_a_draw_at_a_boundary_belongs_to_the_later_id() -> None:
    distribution = row({7: 1, 3: 2, 5: 1})
    assert [distribution.draw(u) for u in (0.25, 0.75)] == [3, 5]
    assert [distribution.draw(float(np.nextafter(u, 0))) for u in (0.25, 0.75)] == [7, 3]


def test_integer_weights_are_drawn_in_exactly_their_proportions() -> None:
    distribution = row({4: 65, 1: 1, 9: 300, 2: 17})
    drawn = [distribution.draw((r + 0.5) / 383) for r in range(383)]
    assert drawn == [4] * 65 + [1] * 1 + [9] * 300 + [2] * 17


def test_the_largest_weights_still_leave_a_weight_of_1_its_exact_share() -> None:
    distribution = Distribution(np.arange(65536, dtype=np.int32), np.full(65536, 65535.0))
    distribution.weights[0] = 1.0
    share = 1.0 / distribution.total
    assert distribution.draw(share * (1 - 1e-9)) == 0
    assert distribution.draw(share * (1 + 1e-9)) == 1


def test_a_weight_of_0_is_never_drawn() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        inner = random_row(rng, 12)
        ids = np.array([20, *inner.token_ids, 21], np.int32)
        distribution = Distribution(ids, np.array([0.0, *inner.weights, 0.0]))
        sums = np.cumsum(distribution.weights) / distribution.weights.sum()
        for u in (SMALLEST_U, LARGEST_U, *sums[(sums > 0) & (sums < 1)], *rng.random(5)):
            assert distribution.probability(distribution.draw(float(u))) > 0


# Races


def flat_noise(_: np.uint64, token_ids: NDArray[np.int32]) -> NDArray[np.float64]:
    return np.full(len(token_ids), 0.5)


def test_a_tie_goes_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "uniforms", flat_noise)
    assert row({7: 2, 3: 2, 5: 2, 1: 1}).race(42, 0, 0) == (3, 0.0)


def test_races_that_are_run_at_once_are_won_as_each_by_itself() -> None:
    rng = np.random.default_rng(4)
    rows = [random_row(rng, 1 + i % 9) for i in range(60)]
    for count in (0, 1, 7, 60):
        races = [(each, i % 3, i % 2, 40 + i) for i, each in enumerate(rows[:count])]
        assert winners(races) == [each.race(*key)[0] for each, *key in races]


def test_with_equal_noise_the_heaviest_id_wins_by_its_log_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noise, "uniforms", flat_noise)
    winner, margin = row({3: 1, 7: 8, 5: 2}).race(42, 0, 0)
    assert winner == 7
    assert margin == pytest.approx(np.log(4))


def test_a_race_adds_gumbel_noise_of_the_id_to_the_log_weight() -> None:
    distribution = row({7: 1, 3: 2, 5: 1})
    for position in range(50):
        u = noise.uniforms(noise.position_key(42, 1, position), np.arange(8, dtype=np.int32))
        scores = {i: np.log(distribution.probability(i)) - np.log(-np.log(u[i])) for i in (7, 3, 5)}
        third, second, first = sorted(scores, key=scores.__getitem__)
        winner, margin = distribution.race(42, 1, position)
        assert winner == first
        assert margin == pytest.approx(scores[first] - scores[second], abs=1e-12)
        assert scores[second] >= scores[third]


def test_a_race_does_not_depend_on_the_order_of_the_ids_nor_on_the_scale() -> None:
    here, there = row({7: 1, 3: 2, 5: 1}), row({5: 3, 7: 3, 3: 6})
    for position in range(50):
        winner, margin = here.race(42, 0, position)
        other, other_margin = there.race(42, 0, position)
        assert winner == other
        assert margin == pytest.approx(other_margin, abs=1e-12)


def test_leaving_out_a_loser_does_not_change_the_winner() -> None:
    for position in range(50):
        winner, _ = row({7: 1, 3: 2, 5: 1}).race(42, 0, position)
        [loser, _] = sorted({7, 3, 5} - {winner})
        fewer = {i: w for i, w in {7: 1, 3: 2, 5: 1}.items() if i != loser}
        assert row(fewer).race(42, 0, position)[0] == winner


def test_a_weight_of_0_never_wins_a_race() -> None:
    distribution = row({0: 0, 7: 1, 3: 0, 5: 1e-3, 9: 0})
    assert {distribution.race(42, 0, position)[0] for position in range(300)} <= {7, 5}


def test_the_only_id_with_weight_wins_by_an_infinite_margin() -> None:
    assert row({0: 0, 7: 1, 3: 0}).race(42, 0, 0) == (7, float("inf"))


def test_races_have_the_distribution_of_the_weights() -> None:
    distribution = row({7: 5, 3: 2, 11: 1, 5: 4, 0: 3})
    winners = [distribution.race(42, 0, position)[0] for position in range(20_000)]
    counts = [winners.count(i) for i in distribution.token_ids]
    assert stats.chisquare(counts, distribution.weights / distribution.total * 20_000).pvalue > 1e-6


def test_races_of_two_choices_are_independent() -> None:
    distribution = row({7: 5, 3: 2, 5: 4})
    counts = np.zeros((3, 3))
    for position in range(8_000):
        pair = [distribution.race(42, stream, position)[0] for stream in (0, 1)]
        counts[[7, 3, 5].index(pair[0]), [7, 3, 5].index(pair[1])] += 1
    assert stats.chi2_contingency(counts).pvalue > 1e-6


def test_two_races_meet_with_the_probability_of_the_closed_form() -> None:
    p, q = row({7: 5, 3: 2, 11: 1, 5: 4}), row({3: 1, 5: 6, 7: 2, 8: 2})
    expected = 0.0
    for i in (3, 5, 7):
        ratios = [
            max(p.probability(j) / p.probability(i), q.probability(j) / q.probability(i))
            for j in (3, 5, 7, 8, 11)
        ]
        expected += 1 / sum(ratios)
    count = 10_000
    met = sum(p.race(42, 0, t)[0] == q.race(42, 0, t)[0] for t in range(count))
    assert stats.binomtest(met, count, expected).pvalue > 1e-6


# Softmax


def test_from_logits_is_the_softmax_in_float64() -> None:
    logits = np.random.default_rng(2).normal(0, 5, 50).astype(np.float32)
    distribution = from_logits(np.arange(50, dtype=np.int32), logits)
    assert distribution.weights.dtype == np.float64
    assert distribution.weights / distribution.total == pytest.approx(
        special.softmax(logits.astype(np.float64)), rel=1e-12
    )


def test_from_logits_leaves_the_logits_as_they_are() -> None:
    logits = np.array([1, 2, 3], np.float32)
    from_logits(np.arange(3, dtype=np.int32), logits)
    assert logits.tolist() == [1, 2, 3]


@pytest.mark.parametrize("shift", [-3e38, -1000.0, 0.0, 1000.0, 3e38])
def test_huge_logits_do_not_overflow(shift: float) -> None:
    distribution = from_logits(np.arange(2, dtype=np.int32), np.full(2, shift, np.float32))
    assert probabilities(distribution) == {0: 0.5, 1: 0.5}


def test_a_forbidden_token_has_probability_0() -> None:
    distribution = from_logits(np.arange(3, dtype=np.int32), np.array([1, -np.inf, 1], np.float32))
    assert probabilities(distribution) == {0: 0.5, 2: 0.5}


# Residuals


def test_a_residual_is_what_p_has_more_than_q() -> None:
    left = residual(row({0: 5, 1: 3, 2: 2}), row({0: 2, 1: 6, 2: 2}))
    assert probabilities(left) == pytest.approx({0: 1.0})


def test_a_residual_compares_ids_and_not_places() -> None:
    left = residual(row({9: 0.5, 2: 0.3, 5: 0.2}), row({5: 0.6, 9: 0.1, 7: 0.3}))
    assert probabilities(left) == pytest.approx({9: 0.4 / 0.7, 2: 0.3 / 0.7})


def test_a_residual_of_disjoint_laws_is_p() -> None:
    assert probabilities(residual(row({9: 1, 2: 3}), row({5: 1, 100: 1, 0: 1}))) == {
        9: 0.25,
        2: 0.75,
    }


def test_a_residual_does_not_depend_on_the_scale_of_the_weights() -> None:
    left = residual(row({0: 50, 1: 30, 2: 20}), row({1: 1, 0: 1}))
    assert probabilities(left) == pytest.approx({2: 1.0})


def test_a_residual_equals_the_dictionary_difference_on_random_rows() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        p, q = random_row(rng, 12), random_row(rng, 12)
        p_of, q_of = probabilities(p), probabilities(q)
        more = {i: w - q_of.get(i, 0.0) for i, w in p_of.items() if w > q_of.get(i, 0.0)}
        expected = {i: w / sum(more.values()) for i, w in more.items()}
        assert probabilities(residual(p, q)) == pytest.approx(expected, abs=1e-9)


def test_an_empty_residual_is_p() -> None:
    p = row({9: 1, 2: 2, 5: 1})
    assert residual(p, row({5: 3, 2: 6, 9: 3})) is p


def test_a_residual_that_rounding_empties_is_p() -> None:
    p = row({0: 1.0, 1: 1e-20})
    assert residual(p, row({0: 1.0, 1: 1e-19})) is p


def test_a_tiny_residual_is_not_taken_for_an_empty_one() -> None:
    assert probabilities(residual(row({0: 1.0, 1: 1e-20}), certain(0))) == {1: 1.0}


def test_a_residual_leaves_its_arguments_as_they_are() -> None:
    p, q = row({9: 5, 2: 3}), row({2: 6, 9: 1})
    residual(p, q)
    assert (p.weights.tolist(), q.weights.tolist()) == ([5, 3], [6, 1])


# Rows to send


def test_a_quantised_row_has_integer_weights_largest_first() -> None:
    sent = quantised(row({7: 0.2, 3: 0.5, 5: 0.3}), support=8, tail=0.0)
    assert sent.token_ids.tolist() == [3, 5, 7]
    assert sent.weights.tolist() == [65535, 39321, 26214]


def test_a_quantised_row_keeps_at_most_the_support() -> None:
    sent = quantised(row({7: 0.2, 3: 0.5, 5: 0.3}), support=2, tail=0.0)
    assert sent.token_ids.tolist() == [3, 5]


@pytest.mark.parametrize(("tail", "kept"), [(0.0, 4), (0.1, 4), (0.125, 3), (0.2, 3), (0.25, 2)])
def test_a_quantised_row_drops_at_most_the_tail(tail: float, kept: int) -> None:
    distribution = row({1: 0.125, 2: 0.5, 3: 0.25, 4: 0.125})
    assert quantised(distribution, support=8, tail=tail).token_ids.tolist() == [2, 3, 1, 4][:kept]


def test_equal_weights_keep_their_listed_order() -> None:
    assert quantised(row({9: 1, 4: 1, 6: 1}), support=2, tail=0.0).token_ids.tolist() == [9, 4]
    many = row({i: 1 + i % 2 for i in range(999, -1, -1)})
    kept = quantised(many, support=700, tail=0.0).token_ids.tolist()
    assert kept == [*range(999, 0, -2), *range(998, 598, -2)]


def test_a_weight_too_small_to_write_is_written_as_1() -> None:
    sent = quantised(row({0: 1.0, 1: 1e-9, 2: 1e-12}), support=8, tail=0.0)
    assert sent.weights.tolist() == [65535, 1, 1]


def test_an_impossible_token_is_not_sent() -> None:
    sent = quantised(row({4: 0.0, 0: 1.0, 1: 0.5, 2: 0.0}), support=8, tail=0.0)
    assert sent.token_ids.tolist() == [0, 1]


def test_a_certain_row_stays_certain() -> None:
    assert probabilities(quantised(certain(5), support=8, tail=0.005)) == {5: 1.0}


@pytest.mark.parametrize("tail", [0.0, 0.005, 0.3])
@pytest.mark.parametrize("support", [1, 3, 64])
def test_random_rows_keep_every_promise_of_the_sent_form(support: int, tail: float) -> None:
    rng = np.random.default_rng(4)
    for _ in range(100):
        distribution = random_row(rng, 20)
        sent = quantised(distribution, support, tail)
        assert sent.weights.tolist() == np.rint(sent.weights).tolist()
        assert sent.weights.max() == MAX_WEIGHT
        assert sent.weights.min() >= 1
        assert len(set(sent.token_ids.tolist())) == len(sent.token_ids) <= support
        before = probabilities(distribution)
        assert set(sent.token_ids.tolist()) <= set(before)
        dropped = 1.0 - sum(before[int(i)] for i in sent.token_ids)
        assert dropped <= tail + 1e-12 or len(sent.token_ids) == support


def test_quantising_a_sent_row_again_changes_nothing() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        sent = quantised(random_row(rng, 20), support=8, tail=0.01)
        again = quantised(sent, support=8, tail=0.0)
        assert again.token_ids.tolist() == sent.token_ids.tolist()
        assert again.weights.tolist() == sent.weights.tolist()


@pytest.mark.parametrize("size", [1, 63, 64, 65, 640, 5000])
@pytest.mark.parametrize("values", [2, 50, 10**9])
def test_the_largest_values_are_found_without_an_order(size: int, values: int) -> None:
    rng = np.random.default_rng(size * values)
    row = rng.integers(0, values, size).astype(np.float64)
    for count in (0, 1, 3, 40, size, size + 7):
        found = largest(row, count)
        order = np.argsort(-row, kind="stable")[:count]
        assert set(order) <= set(found)
        assert list(found) == sorted(found)
        assert list(found[np.argsort(-row[found], kind="stable")][:count]) == list(order)


def test_values_that_differ_by_little_are_found_too() -> None:
    row = np.arange(1.0, 1001.0)
    row[7] = 1000.0 * (1 - 1e-12)
    assert set(largest(row, 1, within=1e-9)) >= {7, 999}


def test_candidates_and_logarithms_are_those_of_a_full_order() -> None:
    rng = np.random.default_rng(5)
    row = (rng.standard_normal(3000) * 3).astype(np.float32).round(1)
    whole = softmax(row)
    order = np.lexsort((whole.token_ids, -whole.weights))
    assert [i for i, _ in most_probable(whole, 16)] == list(order[:16])
    listed = logprobs(whole, 20, [order[2999], order[3], 7])
    assert [i for i, _ in listed][:20] == list(order[:20])
    values = np.log(whole.weights / whole.total)
    assert dict(listed) == pytest.approx({i: values[i] for i, _ in listed})
    assert {7, int(order[2999])} <= dict(listed).keys()


@pytest.mark.parametrize(
    "values", [[], [0.5], [0.0, -0.0, 0.0], [1e-30, -1e-30, -2.5, 3.0, -np.inf]]
)
def test_logits_are_ranked_largest_first_and_equal_ones_in_their_order(values: list[float]) -> None:
    logits = np.array(values, np.float32)
    assert ranked(logits).tolist() == np.argsort(-logits, kind="stable").tolist()


def test_many_logits_with_ties_are_ranked_as_a_stable_sort_ranks_them() -> None:
    logits = np.random.default_rng(1).normal(scale=3.0, size=5000).round(1).astype(np.float32)
    assert ranked(logits).tolist() == np.argsort(-logits, kind="stable").tolist()
