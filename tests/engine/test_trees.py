"""Trees in one decode: every node's logits are those of its path as a chain, and nothing is left.

On a tiny model, in a pool of cells with and without flash attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Layout, Model, NoRoom
from outrider.errors import DecodeFailed
from outrider.trees import MAX_LEAVES, ROOT, Tree
from tests.support.tiny_gguf import Shape, write_model
from tests.support.toy import ToyModel
from tests.unit.test_trees import FORK

import llama_cpp as ll  # isort: skip  (outrider.engine.llama sets its environment first)

TOLERANCE = 0.02
"""Of a logit; that of a text with another token 30 places before is 1 away."""
CONTEXT = 256
FREE = 6, 7, 8, 9, 10, 11, 12, 13
"""Sequences that no session of these tests has."""

Rows = NDArray[np.float32]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_model(folder / "tiny.gguf", shape=Shape(layers=2))


def load(path: Path, **options: object) -> LlamaModel:
    values: dict[str, object] = {
        "path": path,
        "context": CONTEXT,
        "sequence_count": 2,
        "thread_count": 1,
        "pad_multiple": 1,
        "batch_rows": 128,
        "pool": True,
        "flash_attention": False,
    }
    return LlamaModel(LlamaConfig(**values | options))  # type: ignore[arg-type]


@pytest.fixture(params=[False, True], ids=["plain", "flash"])
def pool(path: Path, request: pytest.FixtureRequest) -> Iterator[LlamaModel]:
    model = load(path, flash_attention=request.param)
    yield model
    model.close()


def text_of(number: int, length: int) -> list[int]:
    return [3 + (7 * i + 31 * number) % 290 for i in range(length)]


def random_tree(dice: Random, count: int, leaf_limit: int = MAX_LEAVES) -> Tree:
    """Return a tree of so many nodes; their tokens all differ."""
    parents: list[int] = []
    while len(parents) < count:
        parent = dice.randrange(ROOT, len(parents))
        if len(Tree(range(len(parents) + 1), [*parents, parent]).leaves) <= leaf_limit:
            parents.append(parent)
    return Tree(dice.sample(range(3, 290), count), parents)


def chunk_of(
    sequence: int, held: int, stem: Sequence[int], tree: Tree, branches: Sequence[int], pad: int = 0
) -> Chunk:
    """Return what decodes a tree behind the rest of a text, with a row for each node and one."""
    ids = [*stem, *tree.token_ids]
    return Chunk(sequence, held, ids, len(tree) + 1, pad, tree.parents, branches)


def read(model: Model, sequence: int, text: Sequence[int]) -> None:
    for start in range(0, len(text), 64):
        model.decode([Chunk(sequence, start, text[start : start + 64], 0)])


def chains(model: Model, text: Sequence[int], tree: Tree) -> list[Rows]:
    """Return the row after a text and after the path to every node, each read as a chain."""
    rows = []
    for node in range(ROOT, len(tree)):
        model.truncate(0, 0)
        read(model, 0, text)
        path = tree.tokens(tree.path(node))
        if path:
            [row] = model.decode([Chunk(0, len(text), path, 1)])[0]
        else:
            model.truncate(0, len(text) - 1)
            [row] = model.decode([Chunk(0, len(text) - 1, text[-1:], 1)])[0]
        rows.append(row.copy())
    model.truncate(0, 0)
    return rows


def distance(rows: Sequence[Rows], others: Sequence[Rows]) -> float:
    assert len(rows) == len(others)
    return max(float(np.abs(one - other).max()) for one, other in zip(rows, others, strict=True))


def test_the_rows_of_a_fork_are_those_of_its_paths(pool: LlamaModel) -> None:
    text = text_of(1, 40)
    expected = chains(pool, text, FORK)
    read(pool, 0, text[:-1])
    [rows] = pool.decode([chunk_of(0, 39, text[-1:], FORK, FREE[:2])])
    assert distance(rows, expected) < TOLERANCE
    # A node's row is not that of its neighbour's path.
    assert all(
        np.abs(expected[i] - expected[j]).max() > 10 * TOLERANCE for i in range(6) for j in range(i)
    )


@pytest.mark.parametrize("pad", [0, 12])
def test_trees_of_several_sessions_in_one_decode(pool: LlamaModel, pad: int) -> None:
    """Beside a plain chain, and padded: every node has the row of its own session's path."""
    dice = Random(5)
    trees = [random_tree(dice, count, 3) for count in (9, 4, 7)]
    texts = [text_of(number, length) for number, length in enumerate((33, 60, 18))]
    expected = [chains(pool, text, tree) for text, tree in zip(texts, trees, strict=True)]
    free = iter((*FREE, *pool.describe().branch_sequences))
    chunks = []
    for session, (text, tree) in enumerate(zip(texts, trees, strict=True), start=1):
        read(pool, session, text[:-5])
        branches = [next(free) for _ in tree.leaves[1:]]
        chunks.append(chunk_of(session, len(text) - 5, text[-5:], tree, branches, pad))
    chain = text_of(9, 20)
    chunks.insert(1, Chunk(0, 0, chain, 3, pad))
    rows = [[row.copy() for row in its] for its in pool.decode(chunks)]
    for i, its in zip((0, 2, 3), expected, strict=True):
        assert distance(rows[i], its) < TOLERANCE
    pool.truncate(0, 0)
    [whole] = pool.decode([Chunk(0, 0, chain, 3)])
    assert distance(rows[1], whole) < TOLERANCE


@pytest.mark.parametrize("seed", range(4))
def test_what_is_kept_of_a_tree_is_what_a_fresh_prefill_holds(pool: LlamaModel, seed: int) -> None:
    """Of two sessions at once, each keeping a path of its own up to any node."""
    dice = Random(seed)
    texts = [text_of(seed, 30), text_of(seed + 9, 22)]
    trees = [random_tree(dice, 8, 4), random_tree(dice, 6, 4)]
    free = iter((*FREE, *pool.describe().branch_sequences))
    chunks = []
    for session, (text, tree) in enumerate(zip(texts, trees, strict=True)):
        read(pool, session, text[:-2])
        branches = [next(free) for _ in tree.leaves[1:]]
        chunks.append(chunk_of(session, len(text) - 2, text[-2:], tree, branches))
    pool.decode(chunks)
    for session, (text, tree, chunk) in enumerate(zip(texts, trees, chunks, strict=True)):
        node = dice.randrange(ROOT, len(tree))
        path = tree.path(node)
        leaf = next(i for i, each in enumerate(tree.leaves) if tree.path(each)[: len(path)] == path)
        length = len(text) + len(path)
        if leaf:
            assert pool.copy_prefix(chunk.branches[leaf - 1], session, length) == length
        assert pool.truncate(session, length) == length
        for branch in chunk.branches:
            pool.truncate(branch, 0)
        texts[session] = [*text, *tree.tokens(path)]
    after = [row.copy() for [row] in pool.decode([Chunk(i, len(texts[i]), [5], 1) for i in (0, 1)])]
    assert cells_in_use(pool) == sum(map(len, texts)) + 2
    for session, text in enumerate(texts):
        pool.truncate(session, 0)
        read(pool, session, text)
    fresh = [row.copy() for [row] in pool.decode([Chunk(i, len(texts[i]), [5], 1) for i in (0, 1)])]
    assert distance(after, fresh) < TOLERANCE


def cells_in_use(model: LlamaModel) -> int:
    """Return the positions that all sequences hold, as llama.cpp counts them."""
    memory = model._memory
    count = model.describe().sequence_count + len(model.describe().branch_sequences)
    ends = [ll.llama_memory_seq_pos_max(memory, sequence) + 1 for sequence in range(count)]
    return sum(ends)


def test_a_tree_that_finds_no_room_leaves_everything_as_it_was(path: Path) -> None:
    model = load(path, sequence_count=1)
    cells = model.describe().pool_cells
    assert cells is not None
    long, text = text_of(1, 200), text_of(2, cells - 200 - 4)
    read(model, 1, long)
    read(model, 0, text)
    tree = random_tree(Random(1), 8, 3)
    branches = model.describe().branch_sequences[: len(tree.leaves) - 1]
    held = cells_in_use(model)
    with pytest.raises(NoRoom):
        model.decode([chunk_of(0, len(text), [9], tree, branches)])
    assert cells_in_use(model) == held
    model.truncate(1, 0)
    [its] = model.decode([chunk_of(0, len(text), [9], tree, branches)])
    rows = [row.copy() for row in its]
    assert distance(rows, chains_after(model, [*text, 9], tree, branches)) < TOLERANCE
    model.close()


def chains_after(
    model: LlamaModel, text: Sequence[int], tree: Tree, branches: Sequence[int]
) -> list[Rows]:
    for sequence in (0, *branches):
        model.truncate(sequence, 0)
    return chains(model, text, tree)


def test_a_model_that_computes_no_numbers_keeps_no_branches(path: Path) -> None:
    model = load(path)
    text = text_of(1, 10)
    read(model, 0, text)
    model._logits = lambda count: np.full((count, 320), np.nan, np.float32)  # type: ignore[method-assign]
    with pytest.raises(DecodeFailed, match="computes no numbers"):
        model.decode([chunk_of(0, 10, [9], FORK, FREE[:2])])
    assert cells_in_use(model) == 10
    model.close()


# --- who asks wrongly ---


def test_streams_decode_no_trees(path: Path) -> None:
    model = load(path, pool=False)
    assert model.describe().branch_sequences == ()
    with pytest.raises(AssertionError, match="in a pool only"):
        model.decode([Chunk(0, 0, [5, 6, 7], 3, 0, [ROOT, ROOT], [1])])
    model.close()


@pytest.mark.parametrize("make", ["tiny", "toy"])
@pytest.mark.parametrize(
    ("parents", "branches", "why"),
    [
        ([ROOT, 1], [6], "no tree|not before it"),
        ([ROOT, ROOT], [], "leaves"),
        ([ROOT, 0], [6], "leaves"),
        ([ROOT, ROOT], [1], "holds 3 tokens|not empty"),
        ([ROOT, ROOT], [99], "sequence 99"),
        ([ROOT, ROOT], [0], "one chunk per sequence|not distinct"),
    ],
)
def test_what_would_abort_llama_is_refused_before_it(
    path: Path, make: str, parents: list[int], branches: list[int], why: str
) -> None:
    model: Model = load(path) if make == "tiny" else ToyModel(layouts=(Layout(is_pool=True),))
    model.decode([Chunk(1, 0, [5, 6, 7], 1)])
    with pytest.raises((AssertionError, ValueError), match=why):
        model.decode([Chunk(0, 0, [5, 6, 7], 3, 0, parents, branches)])
    model.close()


# --- the toy does the same ---


def test_the_rows_of_a_tree_of_the_toy_are_those_of_its_paths() -> None:
    for seed in range(5):
        model = ToyModel(order=64, layouts=(Layout(is_pool=True),), vocabulary_size=300)
        tree = random_tree(Random(seed), 9, 4)
        text = text_of(seed, 12)
        expected = chains(model, text, tree)
        read(model, 0, text[:-2])
        free = model.describe().branch_sequences
        [rows] = model.decode([chunk_of(0, 10, text[-2:], tree, free[: len(tree.leaves) - 1])])
        assert distance(rows, expected) == 0.0
        for sequence, leaf in zip((0, *free), tree.leaves, strict=False):
            assert list(model.held(sequence)) == [*text, *tree.tokens(tree.path(leaf))]
