"""Where the tokens of a chunk that ends in a tree stand, and in which sequences. Pure.

Every leaf of the tree has a sequence: the first leaf the chunk's own, each other one of its
`branches`. A token is in the sequences of all leaves that stand below it, so that each sequence
holds the text and one path. llama.cpp asks for no more: positions of a sequence that rise one by
one, and sequences that hold the same when a token is to be in several of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.engine.model import Chunk
from outrider.trees import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Branch:
    """What one sequence holds of a tree after the decode: the tokens that lead to a leaf."""

    sequence: int
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Place:
    """A token's position, and the sequences that it is in."""

    position: int
    sequences: Sequence[int]


def tree_of(chunk: Chunk) -> Tree:
    """Return the tree that a chunk ends in; one without nodes for a chunk that has none."""
    return Tree(chunk.token_ids[stem_count(chunk) :], chunk.parents)


def stem_count(chunk: Chunk) -> int:
    """Return how many of a chunk's tokens come before its tree."""
    return len(chunk.token_ids) - len(chunk.parents)


def branches_of(chunk: Chunk) -> list[Branch]:
    """Return what every sequence of a chunk holds of its tree, the chunk's own first."""
    tree = tree_of(chunk)
    leaves = tree.leaves or [ROOT]
    sequences = [chunk.sequence, *chunk.branches]
    return [
        Branch(sequence, tree.tokens(tree.path(leaf)))
        for sequence, leaf in zip(sequences, leaves, strict=True)
    ]


def ends_of(chunk: Chunk) -> list[tuple[int, int]]:
    """Return how many tokens every sequence of a chunk holds after it, the chunk's own first."""
    if not chunk.parents:
        return [(chunk.sequence, chunk.position + len(chunk.token_ids))]
    stem = chunk.position + stem_count(chunk)
    return [(each.sequence, stem + len(each.token_ids)) for each in branches_of(chunk)]


def places_of(chunk: Chunk, width: int) -> list[Place]:
    """Return where each token of a chunk stands, and where rows are that pad it to a width.

    Those follow the last token: nothing else does.
    """
    tree, stem = tree_of(chunk), stem_count(chunk)
    sequences = [chunk.sequence, *chunk.branches]
    places = [Place(chunk.position + i, sequences) for i in range(stem)]
    paths = [set(tree.path(leaf)) for leaf in tree.leaves]
    for node, depth in enumerate(tree.depths):
        own = [each for each, path in zip(sequences, paths, strict=True) if node in path]
        places.append(Place(chunk.position + stem + depth - 1, own))
    last = places[-1]
    pads = range(1, width - len(places) + 1)
    return places + [Place(last.position + i, last.sequences[:1]) for i in pads]


def check_tree(chunk: Chunk, held: Sequence[int]) -> None:
    """Assert that a chunk's tree can be decoded; `held` are the tokens of every sequence."""
    count = len(chunk.parents)
    assert count <= len(chunk.token_ids), f"{count} parents of {len(chunk.token_ids)} tokens"
    assert all(ROOT <= parent < i for i, parent in enumerate(chunk.parents)), "no tree"
    leaves = len(tree_of(chunk).leaves)
    assert leaves == 1 + len(chunk.branches), f"{leaves} leaves, {len(chunk.branches)} branches"
    assert len(set(chunk.branches)) == len(chunk.branches), "a branch twice"
    for branch in chunk.branches:
        assert 0 <= branch < len(held), f"sequence {branch}"
        assert held[branch] == 0, f"sequence {branch} holds {held[branch]} tokens"
