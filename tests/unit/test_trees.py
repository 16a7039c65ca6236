"""Trees of draft tokens, all small ones: paths, cuts, and what samples accept of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from outrider.trees import MAX_LEAVES, ROOT, NoTree, Tree

FEW = 4


def all_parents(count: int) -> Iterator[tuple[int, ...]]:
    """Give every shape of `count` nodes."""
    return itertools.product(*(range(ROOT, node) for node in range(count)))


def all_trees(count: int, vocabulary: int) -> Iterator[Tree]:
    """Give every tree of `count` nodes over a few tokens."""
    for parents in all_parents(count):
        for token_ids in itertools.product(range(vocabulary), repeat=count):
            if len(set(zip(parents, token_ids, strict=True))) == count:
                yield Tree(token_ids, parents)


TREES = [tree for count in range(FEW + 1) for tree in all_trees(count, 2)]
FORK = Tree([5, 6, 7, 8, 9], [ROOT, 0, 0, ROOT, 2])
"""5 with 6 and 7 after it, 9 after 7, and 8 beside 5."""


def test_there_are_trees_to_try() -> None:
    assert len(TREES) > 100
    assert any(len(tree.leaves) == 3 for tree in TREES)


@pytest.mark.parametrize(
    ("token_ids", "parents", "why"),
    [
        ([5, 6], [ROOT], "1 parents of 2"),
        ([5], [0], "node 0 follows node 0"),
        ([5, 6], [1, ROOT], "node 0 follows node 1"),
        ([5, 6], [ROOT, -2], "node 1 follows node -2"),
        ([5, 5], [ROOT, ROOT], "twice"),
        (range(MAX_LEAVES + 1), [ROOT] * (MAX_LEAVES + 1), "9 leaves, at most 8"),
    ],
)
def test_what_is_no_tree_is_refused(token_ids: list[int], parents: list[int], why: str) -> None:
    with pytest.raises(NoTree, match=why):
        Tree.checked(token_ids, parents)


def test_what_is_a_tree_is_taken() -> None:
    for tree in TREES:
        assert Tree.checked(tree.token_ids, tree.parents) == tree
    assert len(Tree.checked(range(MAX_LEAVES), [ROOT] * MAX_LEAVES).leaves) == MAX_LEAVES


def test_a_chain_is_a_tree_with_one_leaf() -> None:
    for count in range(FEW):
        chain = Tree.chain([7] * count)
        assert chain.is_chain and len(chain) == count
        assert chain.leaves == ([count - 1] if count else [])
        assert chain.path(count - 1) == list(range(count))
    assert [tree for tree in TREES if tree.is_chain] == [
        tree for tree in TREES if tree.depths == list(range(1, len(tree) + 1))
    ]


def test_a_fork_as_it_is_read() -> None:
    assert FORK.leaves == [1, 3, 4]
    assert FORK.depths == [1, 2, 2, 1, 3]
    assert FORK.path(4) == [0, 2, 4] and FORK.tokens(FORK.path(4)) == [5, 7, 9]
    assert FORK.below(0) == [1, 2, 4] and FORK.below(3) == []
    assert FORK.subtree(0) == Tree([6, 7, 9], [ROOT, ROOT, 1])
    assert FORK.node_after([5, 7]) == 2
    assert FORK.node_after([5, 8]) is None and FORK.node_after([8, 8, 8]) is None
    assert FORK.line([]) == [0, 1] and FORK.line([0, 2]) == [0, 2, 4] and FORK.line([3]) == [3]


def test_the_first_nodes_of_a_tree_are_a_tree() -> None:
    for tree in TREES:
        for count in range(len(tree) + 1):
            first = tree.first(count)
            Tree.checked(first.token_ids, first.parents)
            assert all(first.path(node) == tree.path(node) for node in range(count))


def test_a_tree_is_cut_to_a_number_of_leaves_and_no_further() -> None:
    for tree, leaves in itertools.product(TREES, (1, 2, 3)):
        cut = tree.within(leaves)
        assert cut == tree.first(len(cut)) and len(cut.leaves) <= leaves
        longer = tree.first(len(cut) + 1)
        assert cut == tree or len(longer.leaves) > leaves


def test_a_subtree_has_the_paths_of_its_tree() -> None:
    for tree in TREES:
        for node in range(ROOT, len(tree)):
            subtree, start = tree.subtree(node), tree.tokens(tree.path(node))
            Tree.checked(subtree.token_ids, subtree.parents)
            below = [tree.tokens(tree.path(each)) for each in tree.below(node)]
            its = [subtree.tokens(subtree.path(each)) for each in range(len(subtree))]
            assert [start + each for each in its] == below
            assert tree.node_after(start) == node


def test_a_walk_accepts_the_longest_path_that_the_samples_say() -> None:
    """Against all texts: what is accepted is the longest path that the target's text has."""
    for tree in TREES:
        for sampled in itertools.product(range(3), repeat=len(tree) + 1):
            walk = tree.walk(sampled)
            paths = [tree.path(node) for node in range(len(tree))]
            agreeing = [
                path
                for path in [[], *paths]
                if all(
                    tree.token_ids[node] == sampled[before + 1]
                    for before, node in zip([ROOT, *path], path, strict=False)
                )
            ]
            longest = max(agreeing, key=len)
            assert [len(each) for each in agreeing].count(len(longest)) == 1
            assert walk.nodes == longest
            assert walk.next_token_id == sampled[(longest or [ROOT])[-1] + 1]


def test_a_line_begins_with_what_was_walked_and_ends_at_a_leaf() -> None:
    for tree in TREES:
        for node in range(ROOT, len(tree)):
            path = tree.path(node)
            line = tree.line(path)
            assert line[: len(path)] == path and line == tree.path((line or [ROOT])[-1])
            assert not tree.parents or line[-1] in tree.leaves
