"""What the sampling parameters refuse, and the distribution they give a row of logits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.distribution import Distribution, distribution_of
from outrider.errors import InvalidRequest
from outrider.sampling import GREEDY, SamplingParameters

NAN, INFINITY = float("nan"), float("inf")
FREE = SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def free(
    *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> SamplingParameters:
    """Return parameters that cut nothing but what is named."""
    return SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


def logits(*probabilities: float) -> NDArray[np.float32]:
    return np.array([math.log(probability) for probability in probabilities], np.float32)


def listed(distribution: Distribution) -> dict[int, float]:
    weights = distribution.weights / distribution.total
    return dict(zip(distribution.token_ids.tolist(), weights.tolist(), strict=True))


# Ranges


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY, -0.1, -1e-300, 1000.1])
def test_a_temperature_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParameters(temperature=value)
    assert refused.value.field == "temperature"
    assert refused.value.metadata == {"field": "temperature"}


@pytest.mark.parametrize("value", [-1, 2**31])
def test_a_top_k_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParameters(top_k=value)
    assert refused.value.field == "top_k"


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY, -0.1, 1.0001])
def test_a_top_p_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParameters(top_p=value)
    assert refused.value.field == "top_p"


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY, -0.1, 1.0001])
def test_a_min_p_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParameters(min_p=value)
    assert refused.value.field == "min_p"


def test_the_ends_of_the_ranges_are_allowed() -> None:
    SamplingParameters(temperature=0.0, top_k=0, top_p=0.0, min_p=0.0)
    SamplingParameters(temperature=1000.0, top_k=2**31 - 1, top_p=1.0, min_p=1.0)


def test_a_refusal_names_the_field_the_range_and_the_value() -> None:
    with pytest.raises(InvalidRequest, match=r"^temperature: must be in \[0, 1000\], not -2\.5$"):
        SamplingParameters(temperature=-2.5)


# Greedy


def test_temperature_0_always_gives_the_largest_logit() -> None:
    assert listed(distribution_of(logits(0.2, 0.5, 0.3), GREEDY)) == {1: 1.0}
    assert GREEDY.greedy


def test_equal_logits_give_the_lowest_id_when_greedy() -> None:
    assert listed(distribution_of(logits(0.2, 0.4, 0.4), GREEDY)) == {1: 1.0}
    assert listed(distribution_of(np.zeros(5, np.float32), GREEDY)) == {0: 1.0}


def test_a_greedy_distribution_ignores_the_cuts() -> None:
    parameters = SamplingParameters(temperature=0.0, top_k=1, top_p=0.1, min_p=1.0)
    assert listed(distribution_of(logits(0.2, 0.5, 0.3), parameters)) == {1: 1.0}


@pytest.mark.parametrize("temperature", [5e-324, 1e-50, 1e-38, 1e-20, 1e-6, 1e-5, 1e-4])
def test_a_tiny_temperature_gives_the_largest_logit_and_no_overflow(temperature: float) -> None:
    row = np.array([-60.0, 80.0, 79.0], np.float32)
    for shift in (-200.0, 0.0, 200.0):
        distribution = distribution_of(row + np.float32(shift), free(temperature=temperature))
        assert distribution.probability(1) == 1.0
        assert np.isfinite(distribution.weights).all()


# Cuts


def test_without_cuts_the_distribution_is_the_softmax() -> None:
    assert listed(distribution_of(logits(0.2, 0.5, 0.3), FREE)) == pytest.approx(
        {1: 0.5, 2: 0.3, 0: 0.2}
    )


def test_a_distribution_lists_the_most_likely_first_and_equal_ones_by_lowest_id() -> None:
    distribution = distribution_of(logits(0.1, 0.3, 0.1, 0.4, 0.1), FREE)
    assert distribution.token_ids.tolist() == [3, 1, 0, 2, 4]
    assert distribution.token_ids.dtype == np.int32


def test_top_k_keeps_the_k_most_likely() -> None:
    assert listed(distribution_of(logits(0.2, 0.5, 0.3), free(top_k=2))) == pytest.approx(
        {1: 0.625, 2: 0.375}
    )


def test_equal_logits_at_the_edge_of_top_k_keep_the_lowest_ids() -> None:
    assert sorted(listed(distribution_of(logits(0.2, 0.2, 0.4, 0.2), free(top_k=3)))) == [0, 1, 2]
    many = np.arange(1000, dtype=np.float32) % 2
    assert list(listed(distribution_of(many, free(top_k=700)))) == [
        *range(1, 1000, 2),
        *range(0, 400, 2),
    ]


@pytest.mark.parametrize("top_k", [3, 4, 2**31 - 1])
def test_a_top_k_of_the_vocabulary_or_more_cuts_nothing(top_k: int) -> None:
    assert len(listed(distribution_of(logits(0.2, 0.5, 0.3), free(top_k=top_k)))) == 3


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-9, [1]), (0.49, [1]), (0.51, [1, 2]), (0.79, [1, 2]), (0.81, [1, 2, 0]), (1.0, [1, 2, 0])],
)
def test_top_p_keeps_the_fewest_that_reach_the_mass(top_p: float, kept: Sequence[int]) -> None:
    assert list(listed(distribution_of(logits(0.2, 0.5, 0.3), free(top_p=top_p)))) == kept


@pytest.mark.parametrize(
    ("min_p", "kept"),
    [(1e-9, [1, 2, 0]), (0.39, [1, 2, 0]), (0.41, [1, 2]), (0.59, [1, 2]), (0.61, [1]), (1.0, [1])],
)
def test_min_p_keeps_what_reaches_its_share_of_the_best(min_p: float, kept: Sequence[int]) -> None:
    assert list(listed(distribution_of(logits(0.2, 0.5, 0.3), free(min_p=min_p)))) == kept


def test_a_min_p_of_1_keeps_every_equal_best() -> None:
    assert list(listed(distribution_of(logits(0.4, 0.2, 0.4), free(min_p=1.0)))) == [0, 2]


def test_top_p_counts_the_mass_of_what_top_k_left() -> None:
    # Of the whole row, .5 is less than .6; of the two that are left it is .625.
    assert list(listed(distribution_of(logits(0.2, 0.5, 0.3), free(top_k=2, top_p=0.6)))) == [1]
    assert list(listed(distribution_of(logits(0.2, 0.5, 0.3), free(top_p=0.6)))) == [1, 2]


def test_the_temperature_comes_after_the_cuts() -> None:
    flat = listed(distribution_of(logits(0.2, 0.5, 0.3), free(temperature=1000.0, top_p=0.6)))
    assert flat == pytest.approx({1: 0.5, 2: 0.5}, abs=1e-3)


def test_a_temperature_raises_probabilities_to_its_inverse() -> None:
    assert listed(distribution_of(logits(0.2, 0.8), free(temperature=0.5))) == pytest.approx(
        {1: 16 / 17, 0: 1 / 17}
    )


def test_a_forbidden_token_has_no_probability() -> None:
    row = np.array([1, -np.inf, 1, -np.inf], np.float32)
    for parameters in (FREE, SamplingParameters(), free(temperature=1000.0)):
        distribution = distribution_of(row, parameters)
        assert [distribution.probability(i) for i in range(4)] == [0.5, 0.0, 0.5, 0.0]


def test_a_distribution_leaves_the_row_as_it_is() -> None:
    row = logits(0.2, 0.5, 0.3)
    before = row.copy()
    distribution_of(row, SamplingParameters())
    assert row.tolist() == before.tolist()


def reference_distribution(
    row: Sequence[float], parameters: SamplingParameters
) -> dict[int, float]:
    """Return the same distribution by lists and the textbook definitions."""
    ranked = sorted(range(len(row)), key=lambda i: (-row[i], i))
    ranked = ranked[: parameters.top_k or len(row)]
    mass = {i: math.exp(row[i]) for i in ranked}
    nucleus = []
    for i in ranked:
        nucleus.append(i)
        if sum(mass[j] for j in nucleus) / sum(mass.values()) >= parameters.top_p:
            break
    kept = [i for i in nucleus if mass[i] >= parameters.min_p * mass[ranked[0]]]
    sharpened = {i: mass[i] ** (1 / parameters.temperature) for i in kept}
    return {i: weight / sum(sharpened.values()) for i, weight in sharpened.items()}


@pytest.mark.parametrize(
    "parameters",
    [
        SamplingParameters(),
        *(
            free(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
            for temperature, top_k, top_p, min_p in itertools.product(
                (0.5, 1.3), (0, 1, 7), (0.33, 0.9, 1.0), (0.0, 0.043, 0.3)
            )
        ),
    ],
    ids=lambda p: f"T{p.temperature}-k{p.top_k}-p{p.top_p}-m{p.min_p}",
)
def test_the_distribution_equals_the_textbook_on_random_rows(
    parameters: SamplingParameters,
) -> None:
    rng = np.random.default_rng(6)
    for _ in range(5):
        row = rng.normal(0.0, 2.0, 30).astype(np.float32)
        expected = reference_distribution(row.tolist(), parameters)
        assert listed(distribution_of(row, parameters)) == pytest.approx(expected, rel=1e-5)
