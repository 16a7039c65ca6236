"""Copies between streams, which llama.cpp carries out with the next decode, beside checkpoints.

Until then a sequence's numbers say that it holds a prefix, and its tensors are still another's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from outrider.engine.cache import SessionCache
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Rollback, Row
from outrider.engine.moving import Moved, exchange
from tests.support.thorough import THOROUGH
from tests.support.tiny_architectures import WINDOWED, write_architecture

SEQUENCES = 3
CONTEXT = 1024  # four times the cells of the smallest window cache
STEPS = 600 if THOROUGH else 60
TOLERANCE = 0.3  # as in test_rollback.py; the state of another text differs by more than 1
BATCH = 32


def load(path: Path, sequences: int = SEQUENCES, full_window: bool = False) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=CONTEXT,
            sequence_count=sequences,
            thread_count=1,
            pad_multiple=1,
            batch_rows=BATCH,
            full_window=full_window,
        )
    )


@pytest.fixture(scope="module", params=sorted(WINDOWED))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = request.param
    return write_architecture(tmp_path_factory.mktemp("copies") / f"{name}.gguf", name)


@pytest.fixture(scope="module")
def loaded(path: Path) -> Iterator[LlamaModel]:
    model = load(path)
    assert model.describe().rollback is Rollback.WINDOW
    yield model
    model.close()


@pytest.fixture
def model(loaded: LlamaModel) -> LlamaModel:
    loaded.open(loaded.describe().layout)
    return loaded


@pytest.fixture(scope="module")
def fresh(path: Path) -> Iterator[LlamaModel]:
    model = load(path, sequences=1, full_window=True)
    yield model
    model.close()


def tokens(seed: int, count: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 300) for _ in range(count)]


def read(model: LlamaModel, text: list[int], sequence: int, held: int) -> Row:
    """Read a text from what is held of it on; return its last row."""
    row: Row | None = None
    for start in range(held, len(text), BATCH):
        piece = text[start : start + BATCH]
        [[row]] = model.decode([Chunk(sequence, start, piece, 1)])
    assert row is not None
    return row.copy()


def check(model: LlamaModel, fresh: LlamaModel, text: list[int], sequence: int, held: int) -> None:
    """Assert that a text is right that is read from what a sequence holds of it on."""
    row = read(model, text, sequence, held)
    fresh.truncate(0, 0)
    assert np.abs(row - read(fresh, text, 0, 0)).max() < TOLERANCE


@pytest.mark.fault(
    "text",
    "A session of a target with a sliding window begins with the start of another one's text",
    before="a checkpoint was saved or restored before llama.cpp had carried out the copy, and the "
    "text that followed, of either session, was that of another state",
    now="until the next decode neither of the two is saved or restored, and what a cut would not "
    "bring back is copied at once",
)
def test_a_prefix_before_the_window_of_its_source_is_right(
    model: LlamaModel, fresh: LlamaModel
) -> None:
    first = tokens(1, 800)
    read(model, first, 0, 0)
    second = [*first[:320], *tokens(2, 40)]
    held = model.copy_prefix(0, 1, 320)
    assert 0 < held <= 320, "it comes from a checkpoint"
    check(model, fresh, second, 1, held)
    check(model, fresh, [*first, 7, 9], 0, 800)


def test_a_copy_that_is_cut_far_back_after_its_first_decodes_is_right(
    model: LlamaModel, fresh: LlamaModel
) -> None:
    first = tokens(3, 310)
    for start in range(0, 310, BATCH):  # without rows, so that no checkpoint is made
        model.decode([Chunk(0, start, first[start : start + BATCH], 0)])
    assert model.copy_prefix(0, 1, 310) == 310
    read(model, [*first, *tokens(4, 300)], 1, 310)
    held = model.truncate(1, 312)
    check(model, fresh, [*first, *tokens(5, 40)], 1, held)


def test_a_source_that_is_cut_far_back_before_the_copy_is_made_is_right_and_so_is_the_copy(
    model: LlamaModel, fresh: LlamaModel
) -> None:
    first = tokens(6, 800)
    read(model, first, 0, 0)
    copied = model.copy_prefix(0, 1, 800)
    assert copied == 800
    held = model.truncate(0, 300)
    check(model, fresh, [*first, *tokens(7, 20)], 1, copied)
    check(model, fresh, [*first[:300], *tokens(8, 20)], 0, held)


def test_a_session_that_was_moved_is_right_after_it_was_cut_far_back(
    model: LlamaModel, fresh: LlamaModel
) -> None:
    first = tokens(9, 310)
    cache = SessionCache(SEQUENCES)
    session = cache.enter(b"a", 0.0)
    assert cache.place(session, first, ()) is not None
    for start in range(0, 310, BATCH):
        model.decode([Chunk(0, start, first[start : start + BATCH], 0)])
    session.token_ids = list(first)
    assert exchange(model, cache, 0, 2) is Moved.ONE
    read(model, [*first, *tokens(10, 300)], 2, 310)
    held = model.truncate(2, 311)
    check(model, fresh, [*first[:311], *tokens(11, 40)], 2, held)


def test_random_partial_copies_give_the_logits_of_a_fresh_context(
    model: LlamaModel, fresh: LlamaModel
) -> None:
    draw = random.Random(12)
    held: list[list[int]] = [[] for _ in range(SEQUENCES)]
    checked = 0
    for step in range(STEPS):
        sequence = draw.randrange(SEQUENCES)
        for _ in range(draw.randrange(3)):  # before the same decode
            first, second = draw.sample(range(SEQUENCES), 2)
            if draw.random() < 0.5 and held[first]:
                count = draw.randint(1, len(held[first]))
                held[second] = held[first][: model.copy_prefix(first, second, count)]
            elif held[first]:
                del held[first][model.truncate(first, draw.randrange(len(held[first]))) :]
            if draw.random() < 0.3:
                model.checkpoint(draw.randrange(SEQUENCES))
        text = held[sequence]
        more = draw.choice((1, 5, 40, 200))
        if len(text) + more > CONTEXT - BATCH:
            del text[model.truncate(sequence, 100) :]
        before = len(text)
        text += [draw.randrange(3, 300) for _ in range(more)]
        if step % 2:
            check(model, fresh, text, sequence, before)
            checked += 1
        else:
            read(model, text, sequence, before)
    assert checked == STEPS // 2
