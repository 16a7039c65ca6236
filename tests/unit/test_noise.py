"""What the noise promises: the normative numbers, one per decision, uniform and unrelated.

The statistical tests have fixed seeds. With fresh ones, each would raise a
false alarm at most once in a million runs.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider import noise
from outrider.noise import Purpose, position_key, uniform
from tests.support.lazy import Lazy

stats = Lazy("scipy.stats")

LOWEST_HASH_SEED = 12303145506925197115  # hash 0 at stream 0, position 0, id 0
HIGHEST_HASH_SEED = 14853680589019784570  # hash 2**64 - 1 at stream 0, position 0, id 0


def uniforms(
    seed: int, stream: int, position: int, token_ids: NDArray[np.int32]
) -> NDArray[np.float64]:
    return noise.uniforms(position_key(seed, stream, position), token_ids)


def ids(*token_ids: int) -> NDArray[np.int32]:
    return np.array(token_ids, np.int32)


def assert_uniform(numbers: NDArray[np.float64]) -> None:
    counts = np.bincount((numbers * 256).astype(np.int64), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6


def assert_uncorrelated(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    correlation = float(np.corrcoef(a.ravel(), b.ravel())[0, 1])
    assert abs(correlation) * np.sqrt(a.size) < stats.norm.isf(0.5e-6)


@pytest.mark.parametrize(
    ("position", "token_id", "number"),
    [
        (0, 0, 0.131222678651),
        (0, 1, 0.185690254312),
        (0, 151935, 0.732472215964),
        (7, 0, 0.426768408413),
        (7, 1, 0.853620581644),
        (7, 151935, 0.151804278905),
    ],
)
def test_shared_noise_gives_the_normative_numbers(
    position: int, token_id: int, number: float
) -> None:
    [u] = uniforms(42, 0, position, ids(token_id))
    assert u == pytest.approx(number, abs=1e-12)


@pytest.mark.parametrize(
    ("purpose", "choice", "number"),
    [
        (Purpose.DRAFT, 0, 0.078398387613),
        (Purpose.DRAFT, 1, 0.666588757215),
        (Purpose.ACCEPT, 0, 0.150485087965),
        (Purpose.ACCEPT, 1, 0.183722281930),
        (Purpose.NEXT, 0, 0.481661039154),
        (Purpose.NEXT, 1, 0.686368572710),
    ],
)
def test_the_rejection_rule_gets_the_normative_numbers(
    purpose: Purpose, choice: int, number: float
) -> None:
    assert uniform(42, choice, purpose, 7, 9) == pytest.approx(number, abs=1e-12)


@pytest.mark.parametrize("seed", [0, 42, -1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("purpose", Purpose)
def test_one_number_equals_the_same_number_among_many(seed: int, purpose: Purpose) -> None:
    many = uniforms(seed, (purpose << 32) | 3, 1000, ids(1000, 1001, 1002, 1003))
    assert [uniform(seed, 3, purpose, 1000, 1000 + i) for i in range(4)] == many.tolist()


def test_a_number_does_not_depend_on_its_neighbours_or_their_order() -> None:
    whole = uniforms(42, 0, 7, np.arange(100, dtype=np.int32))
    assert uniforms(42, 0, 7, ids(50, 3, 99)).tolist() == whole[[50, 3, 99]].tolist()


def test_no_ids_give_no_numbers() -> None:
    assert uniforms(42, 0, 7, ids()).shape == (0,)


def test_seeds_streams_positions_and_ids_give_different_numbers() -> None:
    numbers = [
        u
        for seed, stream, position in itertools.product(range(10), range(10), range(10))
        for u in uniforms(seed, stream, position, np.arange(10, dtype=np.int32))
    ]
    assert len(set(numbers)) == 10_000


def test_choices_purposes_rounds_and_positions_give_different_numbers() -> None:
    numbers = [
        uniform(42, choice, purpose, first, first + i)
        for choice, purpose, first, i in itertools.product(range(8), Purpose, range(16), range(8))
    ]
    assert len(set(numbers)) == 8 * len(Purpose) * 16 * 8


def test_a_position_drafted_again_gets_new_numbers() -> None:
    assert uniform(42, 0, Purpose.DRAFT, 10, 12) != uniform(42, 0, Purpose.DRAFT, 11, 12)


def test_shared_noise_of_any_choice_never_meets_the_rejection_rules_numbers() -> None:
    positions = np.arange(50, dtype=np.int32)
    shared = {u for choice in (0, 1, 2, 3, 2**32 - 1) for u in uniforms(42, choice, 5, positions)}
    ruled = {uniform(42, 0, purpose, 5, i) for purpose in Purpose for i in range(50)}
    assert not shared & ruled


def test_shared_noise_is_uniform_and_unrelated_to_its_neighbours() -> None:
    token_ids = np.arange(400, dtype=np.int32)
    grid = np.stack([uniforms(7, 0, position, token_ids) for position in range(400)])
    assert_uniform(grid.ravel())
    assert_uncorrelated(grid[1:], grid[:-1])
    assert_uncorrelated(grid[:, 1:], grid[:, :-1])
    assert_uncorrelated(grid[1:, 1:], grid[:-1, :-1])


def test_neighbouring_seeds_and_streams_are_unrelated() -> None:
    token_ids = np.arange(100_000, dtype=np.int32)
    here = uniforms(7, 0, 3, token_ids)
    assert_uncorrelated(here, uniforms(8, 0, 3, token_ids))
    assert_uncorrelated(here, uniforms(7, 1, 3, token_ids))


def test_the_rejection_rules_numbers_are_uniform_and_its_purposes_unrelated() -> None:
    drawn = {
        purpose: np.array([uniform(seed, 0, purpose, 3, 4) for seed in range(10_000)])
        for purpose in Purpose
    }
    for numbers in drawn.values():
        assert_uniform(numbers)
    for a, b in itertools.combinations(Purpose, 2):
        assert_uncorrelated(drawn[a], drawn[b])


@pytest.mark.parametrize("seed", [-1, -42, -(2**63), 0, 2**63 - 1])
def test_a_signed_seed_is_its_64_bits(seed: int) -> None:
    assert (
        uniforms(seed, 0, 7, ids(0, 1)).tolist() == uniforms(seed % 2**64, 0, 7, ids(0, 1)).tolist()
    )
    assert uniform(seed, 0, Purpose.NEXT, 7, 9) == uniform(seed % 2**64, 0, Purpose.NEXT, 7, 9)


@pytest.mark.parametrize("position", [2**31 - 1, 2**40, 2**63, 2**64 - 1])
def test_large_positions_and_ids_have_numbers_of_their_own(position: int) -> None:
    here = uniforms(42, 0, position, ids(0, 1, 2**31 - 1)).tolist()
    before = uniforms(42, 0, position - 1, ids(0, 1, 2**31 - 1)).tolist()
    ruled = [uniform(42, 0, Purpose.NEXT, position, position + i) for i in range(2)]
    assert len({*here, *before, *ruled}) == 8
    assert all(0.0 < u < 1.0 for u in [*here, *before, *ruled])


def test_the_lowest_hash_gives_a_number_above_0() -> None:
    [u] = uniforms(LOWEST_HASH_SEED, 0, 0, ids(0))
    assert 0.0 < u < 1e-15


def test_the_highest_hash_gives_a_number_below_1() -> None:
    [u] = uniforms(HIGHEST_HASH_SEED, 0, 0, ids(0))
    assert 1.0 - 1e-15 < u < 1.0
