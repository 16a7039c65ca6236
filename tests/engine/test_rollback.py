"""Models whose sequences are not simply cut, against a fresh context as the oracle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_library import ll
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Rollback, Row
from tests.support.thorough import THOROUGH
from tests.support.tiny_architectures import RECURRENT, WINDOW, WINDOWED, write_architecture

SEQUENCES = 3
CONTEXT = 448  # longer than the 256 cells of the smallest window cache
STEPS = 2000 if THOROUGH else 60
TOLERANCE = 0.3
"""Of a logit, whose standard deviation is 3. Rejections change nothing themselves, but rows that
share a decode with others are computed by other kernels, which may choose other experts: by .23 at
most (docs/decisions/0026). The state of another text differs by more than 1."""

EXPECTED = dict.fromkeys(RECURRENT, Rollback.CHECKPOINTS) | {"qwen35": Rollback.SNAPSHOTS}
EXPECTED |= dict.fromkeys(WINDOWED, Rollback.WINDOW)


def load(path: Path, sequences: int = SEQUENCES, full_window: bool = False) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=CONTEXT,
            sequence_count=sequences,
            thread_count=1,
            pad_multiple=1,
            batch_rows=32,
            full_window=full_window,
        )
    )


@pytest.fixture(scope="module", params=sorted(EXPECTED))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = request.param
    return write_architecture(tmp_path_factory.mktemp("rollback") / f"{name}.gguf", name)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LlamaModel]:
    model = load(path)
    yield model
    model.close()


@pytest.fixture(scope="module")
def fresh(path: Path) -> Iterator[LlamaModel]:
    model = load(path, sequences=1, full_window=True)
    yield model
    model.close()


@pytest.fixture(autouse=True)
def nothing_held(model: LlamaModel) -> None:
    for sequence in range(SEQUENCES):
        model.truncate(sequence, 0)


def read(model: LlamaModel, text: list[int], sequence: int = 0, held: int = 0) -> Row:
    """Read a text from what is held of it on; return its last row."""
    assert model.truncate(sequence, held) == held
    for start in range(held, len(text), 32):
        [rows] = model.decode([Chunk(sequence, start, text[start : start + 32], 1)])
    row: Row = rows[0].copy()
    return row


def tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, 300) for _ in range(count)]


def test_what_it_can_is_found_out_by_trying(model: LlamaModel, path: Path) -> None:
    description = model.describe()
    assert description.rollback is EXPECTED[path.stem]
    assert (description.snapshot_count > 0) == (description.rollback is Rollback.SNAPSHOTS)
    assert (description.window > 0) == (path.stem in WINDOWED)
    assert not any(each.is_pool for each in description.layouts)
    assert not description.can_exchange and not description.branch_sequences


def test_random_rounds_of_several_sessions_give_the_logits_of_a_fresh_context(
    model: LlamaModel, fresh: LlamaModel
) -> None:
    draw = random.Random(3)
    held: list[list[int]] = [[] for _ in range(SEQUENCES)]
    checked = 0
    for step in range(STEPS):
        chosen = draw.sample(range(SEQUENCES), draw.randint(1, SEQUENCES))
        chunks = []
        for sequence in chosen:
            if len(held[sequence]) > CONTEXT - 24:
                held[sequence].clear()
                model.truncate(sequence, 0)
            count = draw.choice((1, 2, 3, 5, 8))
            rows = draw.randint(1, count)
            chunks.append(Chunk(sequence, len(held[sequence]), tokens(draw, count), rows))
        rows_of = [rows[-1].copy() for rows in model.decode(chunks)]
        for chunk in chunks:
            held[chunk.sequence] += chunk.token_ids
        for chunk, row in zip(chunks, rows_of, strict=True):
            if step % 3 == 0:
                checked += 1
                expected = read(fresh, held[chunk.sequence])
                assert np.abs(row - expected).max() < TOLERANCE, f"{step}"
        for chunk in chunks:
            kept = len(held[chunk.sequence]) - draw.randint(0, max(0, chunk.row_count - 1))
            if draw.random() < 0.05:
                kept = draw.randrange(len(held[chunk.sequence]))
            del held[chunk.sequence][model.truncate(chunk.sequence, kept) :]
        if draw.random() < 0.1:
            model.checkpoint(draw.randrange(SEQUENCES))
        if draw.random() < 0.03:  # evicted
            evicted = draw.randrange(SEQUENCES)
            held[evicted] = held[evicted][: model.truncate(evicted, 0)]
        if draw.random() < 0.02:  # as after a restart
            model.open(model.describe().layout)
            held = [[] for _ in range(SEQUENCES)]
        if draw.random() < 0.1:
            first, second = draw.sample(range(SEQUENCES), 2)
            count = model.copy_prefix(first, second, len(held[first]))
            assert count == len(held[first])
            held[second] = list(held[first])
    assert checked > STEPS // 3


def test_a_text_of_many_windows_is_right_with_rejections_all_along(
    model: LlamaModel, fresh: LlamaModel
) -> None:
    draw = random.Random(11)
    text = tokens(draw, CONTEXT - 16)
    decodes = begun_again = 0
    held = 0
    while held < len(text) - 8:
        wrong = tokens(draw, 3)
        known = text[held : held + 2]
        # Two tokens of the text, and three that are rejected.
        model.decode([Chunk(0, held, [*known, *wrong], 4)])
        decodes += 1
        now = model.truncate(0, held + 2)
        assert now >= held  # at most what this decode added is read again
        if now < held + 2:
            begun_again += 1
            model.decode([Chunk(0, now, text[now : held + 2], 0)])
        held += 2
    row = model.decode([Chunk(0, held, [text[held]], 1)])[0][0].copy()
    assert np.abs(row - read(fresh, text[: held + 1])).max() < TOLERANCE
    if model.describe().rollback is not Rollback.CHECKPOINTS:
        assert begun_again == 0
    assert len(text) > 4 * WINDOW


def test_a_sequence_comes_back_to_the_checkpoint_of_its_text(
    model: LlamaModel, fresh: LlamaModel
) -> None:
    draw = random.Random(17)
    text = tokens(draw, 100)
    read(model, text)
    model.checkpoint(0)
    first = tokens(draw, 300)
    read(model, [*text, *first], held=100)
    assert model.truncate(0, 100) == 100
    second = [*text, *tokens(draw, 20)]
    row = read(model, second, held=100)
    assert np.abs(row - read(fresh, second)).max() < TOLERANCE


def test_a_copied_prefix_is_whole_or_a_checkpoint_or_nothing(model: LlamaModel) -> None:
    text = tokens(random.Random(19), 60)
    read(model, text)
    assert model.copy_prefix(0, 1, 60) == 60
    if model.describe().rollback is not Rollback.WINDOW:
        assert model.copy_prefix(0, 2, 30) == 0
    model.checkpoint(0)
    read(model, [*text, *text], held=60)
    assert model.copy_prefix(0, 2, 70) in (60, 70)


def test_a_full_window_is_cut_to_any_length(path: Path, fresh: LlamaModel) -> None:
    if path.stem not in WINDOWED:
        pytest.skip("it has no window")
    assert fresh.describe().rollback is Rollback.FULL
    read(fresh, tokens(random.Random(23), 400))
    assert fresh.truncate(0, 10) == 10


@pytest.mark.fault(
    "text",
    "A hybrid target with snapshots (Qwen3.5) serves several users",
    before="a decode of the others moved a session's state and not its snapshots, and a rejection "
    "afterwards left it with the state of another text",
    now="each state stays in the cell of its sequence's number, so that none is moved",
)
def test_a_session_is_taken_back_after_others_were_decoded(
    model: LlamaModel, fresh: LlamaModel
) -> None:
    draw = random.Random(29)
    held: list[list[int]] = [tokens(draw, 6) for _ in range(SEQUENCES)]
    for sequence in reversed(range(SEQUENCES)):  # their cells are taken in this order
        model.decode([Chunk(sequence, 0, held[sequence], 1)])
    for cut in range(SEQUENCES):
        others = [each for each in range(SEQUENCES) if each != cut]
        for sequences in ([cut], others):
            chunks = [Chunk(s, len(held[s]), tokens(draw, 3), 3) for s in sequences]
            model.decode(chunks)
            for chunk in chunks:
                held[chunk.sequence] += chunk.token_ids
        del held[cut][model.truncate(cut, len(held[cut]) - 2) :]
        added = tokens(draw, 2)
        [[row]] = model.decode([Chunk(cut, len(held[cut]), added, 1)])
        row, held[cut] = row.copy(), held[cut] + added
        assert np.abs(row - read(fresh, held[cut])).max() < TOLERANCE


def test_a_copy_that_cannot_be_had_costs_nothing_and_one_that_fails_leaves_nothing(
    model: LlamaModel, fresh: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model.describe().rollback is Rollback.WINDOW:
        pytest.skip("it is cut")
    text = tokens(random.Random(31), 60)
    read(model, text)
    model.checkpoint(0)
    more = [*text, *tokens(random.Random(37), 60)]
    read(model, more, held=60)
    with monkeypatch.context() as patched:
        patched.setattr(model, "_state", lambda _: pytest.fail("its state was copied in vain"))
        assert model.copy_prefix(0, 1, 30) == 0
    with monkeypatch.context() as patched:
        patched.setattr(ll, "llama_state_seq_set_data", lambda *_: 0)
        assert model.copy_prefix(0, 1, 70) == 0
    assert np.abs(read(model, text, 1) - read(fresh, text)).max() < TOLERANCE
    assert model.copy_prefix(0, 2, 70) == 60
