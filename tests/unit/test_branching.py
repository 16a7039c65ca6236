"""Which tree is best, by enumeration of all small ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from outrider.core.branching import Chain, best_count, grow
from outrider.costs import CostTable
from outrider.trees import ROOT, Tree

GPU = CostTable([(1, 0.0300), (64, 0.0552)])
RANKS = (0.6, 0.2, 0.1)


def all_shapes(count: int) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(ROOT, node) for node in range(count))))


def expected(parents: Sequence[int], ranks: Sequence[float]) -> float:
    """Return the expected accepted length of a tree: its k-th followers are k-th candidates."""
    survivals: list[float] = []
    for node, parent in enumerate(parents):
        rank = list(parents[:node]).count(parent)
        chance = ranks[rank] if rank < len(ranks) else 0.0
        survivals.append(chance * (1.0 if parent == ROOT else survivals[parent]))
    return sum(survivals)


def test_guesses_that_agree_share_their_nodes() -> None:
    grown = grow([Chain([5, 6, 7], [0.9, 0.8, 0.5]), Chain([5, 8], [0.7, 0.5])], 10)
    assert grown.tree == Tree([5, 6, 7, 8], [ROOT, 0, 1, 0])
    # The second chain has of what the first leaves behind 5: .5 of 1 - .8.
    assert grown.survivals == pytest.approx([0.9, 0.72, 0.36, 0.09])
    assert grown.origins == [(0, 0), (0, 1), (0, 2), (1, 1)]


def test_nodes_come_in_falling_order_and_after_what_they_follow() -> None:
    chains = [
        Chain([1, 2, 3, 4], [0.5, 1.0, 0.9, 0.1]),
        Chain([5, 6, 7], [0.9, 1.0, 0.9]),
        Chain([5, 8], [1.0, 1.0]),
    ]
    grown = grow(chains, 10)
    assert list(grown.survivals) == sorted(grown.survivals, reverse=True)
    Tree.checked(grown.tree.token_ids, grown.tree.parents)
    # What follows one node is never more likely than the node.
    for node in range(ROOT, len(grown.tree)):
        followers = [i for i, parent in enumerate(grown.tree.parents) if parent == node]
        own = 1.0 if node == ROOT else grown.survivals[node]
        assert sum(grown.survivals[i] for i in followers) <= own + 1e-12


@pytest.mark.parametrize("leaf_limit", [1, 2, 3])
def test_a_tree_has_no_more_nodes_or_leaves_than_it_may(leaf_limit: int) -> None:
    chains = [Chain([first, 9, 9, 9], [0.4, 0.9, 0.9, 0.9]) for first in range(5)]
    for most in range(1, 20):
        grown = grow(chains, most, leaf_limit)
        assert len(grown.tree) <= most and len(grown.tree.leaves) <= leaf_limit
    assert len(grow(chains, 4 * leaf_limit, leaf_limit).tree) == 4 * leaf_limit


def test_no_guess_is_no_tree() -> None:
    assert len(grow([], 5).tree) == 0 and len(grow([Chain([], [])], 5).tree) == 0


def test_rows_are_verified_as_far_as_they_pay() -> None:
    survivals = [0.8, 0.5, 0.3, 0.2, 0.1]
    rate = 40.0

    def value(count: int) -> float:
        return 1.0 + sum(survivals[:count]) - rate * GPU.seconds(count + 1)

    count, worth = best_count(survivals, lambda drafted: GPU.seconds(drafted + 1), rate)
    assert worth == pytest.approx(max(map(value, range(6)))) == pytest.approx(value(count))
    steep = CostTable([(1, 0.020), (8, 0.160)])
    assert best_count([0.3], lambda drafted: steep.seconds(drafted + 1), 50.0)[0] == 0
