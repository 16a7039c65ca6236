"""A tiny model of each kind of architecture: what runs, and with which limits: docs/models.md.

With `REWRITE_MODELS=1` the table at the end of the page is written anew.
"""

from __future__ import annotations

import ctypes
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_library import init_backend, ll
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, ModelDescription, Rollback
from tests.support import tiny_gguf
from tests.support.tiny_architectures import (
    ARCHITECTURES,
    PLAIN,
    RECURRENT,
    write_architecture,
)
from tests.support.tiny_gguf import Shape, write_model

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
TOLERANCE = 0.2
"""Of a logit; their standard deviation is 3. With room: docs/decisions/0026."""

WEIGHTS = [
    *("BF16", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "Q2_K", "Q3_K_M", "Q4_K_S", "Q4_K_M", "Q5_K_M"),
    *("Q6_K", "IQ4_NL", "IQ4_XS", "TQ2_0"),
]
"""Those that `llama_model_quantize` makes without a table of what matters."""

HEAD = "| architecture | example | rollback | pool | `exact` may run |\n|---|---|---|---|---|\n"


def load(path: Path, full_window: bool = False) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=128,
            sequence_count=2,
            thread_count=1,
            pad_multiple=1,
            batch_rows=64,
            full_window=full_window,
        )
    )


def row_of(name: str, architecture: str, small: ModelDescription, full: ModelDescription) -> str:
    pool = "yes" if any(each.is_pool for each in small.layouts) else "no"
    exact = "yes" if small.rollback is Rollback.FULL else "no"
    if exact == "no" and full.rollback is Rollback.FULL:
        exact = "with a full window, which it implies"
    return f"| {architecture} | {name} | {small.rollback.value} | {pool} | {exact} |\n"


def check_rejection(model: LlamaModel, name: str) -> None:
    """Reject drafts in the middle of a text, and read it at once: the logits agree."""
    text = [3 + 7 * i % 290 for i in range(40)]
    model.decode([Chunk(0, 0, text[:20], 1)])
    held = 20
    for end in range(22, 41, 2):
        model.decode([Chunk(0, held, [*text[held:end], 5, 6, 7], 4)])
        held = model.truncate(0, end)
        assert held >= 20, name
    last = model.decode([Chunk(0, held, [*text[held:], 9], 1)])[0][0].copy()
    model.truncate(0, 0)
    [[expected]] = model.decode([Chunk(0, 0, [*text, 9], 1)])
    assert np.abs(last - expected).max() < TOLERANCE, name


def check_repeated_cells(model: LlamaModel, name: str) -> None:
    """Repeat cells where that can be done; afterwards the logits are those of before."""
    text = [3 + 7 * i % 290 for i in range(20)]
    expected = model.decode([Chunk(0, 0, text, 1)])[0][0].copy()
    held = model.repeat_cells(0, 100)
    assert held == 20 or (held == 100 and model.describe().rollback is Rollback.FULL), name
    assert np.isfinite(model.decode([Chunk(0, held, text, 1)])).all(), name
    model.truncate(0, 0)
    np.testing.assert_array_equal(model.decode([Chunk(0, 0, text, 1)])[0][0], expected, name)
    model.truncate(0, 0)


def test_every_kind_of_model_runs_and_the_page_says_with_which_limits(tmp_path: Path) -> None:
    known = PLAIN | ARCHITECTURES | RECURRENT
    rows = []
    for name, (architecture, *_) in sorted(known.items()):
        path = write_architecture(tmp_path / f"{name}.gguf", name)
        model = load(path)
        check_repeated_cells(model, name)
        check_rejection(model, name)
        small = model.describe()
        model.close()
        full = load(path, full_window=True)
        check_repeated_cells(full, name)
        rows.append(row_of(name, architecture, small, full.describe()))
        full.close()
    text, _, table = PAGE.read_text(encoding="utf-8").partition(HEAD)
    if os.environ.get("REWRITE_MODELS"):
        PAGE.write_text(text + HEAD + "".join(rows), encoding="utf-8")
    else:
        assert table == "".join(rows), "REWRITE_MODELS=1 writes it anew"


@pytest.mark.parametrize("weights", ["F32", "F16", "Q8_0"])
def test_every_type_of_weights_that_the_writer_has_runs(tmp_path: Path, weights: str) -> None:
    path = write_model(tmp_path / "m.gguf", weight_type=GGMLQuantizationType[weights])
    model = load(path)
    check_rejection(model, weights)
    model.close()


@pytest.fixture(scope="module")
def unquantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in F32 whose widths are whole blocks of every type."""
    shape = Shape(embedding=256, layers=2, heads=4, feed_forward=256)
    path = tmp_path_factory.mktemp("zoo") / "f32.gguf"
    return write_model(path, shape=shape, weight_type=GGMLQuantizationType.F32)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_common_type_of_weights_runs(tmp_path: Path, unquantised: Path, weights: str) -> None:
    path = tmp_path / f"{weights}.gguf"
    options = ll.llama_model_quantize_default_params()
    options.nthread = 1
    options.ftype = getattr(ll, f"LLAMA_FTYPE_MOSTLY_{weights}")
    init_backend()
    code = ll.llama_model_quantize(bytes(unquantised), bytes(path), ctypes.byref(options))
    assert code == 0, weights
    model = load(path)
    check_rejection(model, weights)
    assert model.describe().file_type.startswith(weights.split("_", maxsplit=1)[0]), (
        model.describe().file_type
    )
    model.close()


def test_a_model_in_several_files_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts = partial(GGUFWriter, split_max_tensors=12)
    monkeypatch.setattr(tiny_gguf, "GGUFWriter", in_parts)
    write_model(tmp_path / "m.gguf")
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) > 2
    model = load(parts[0])
    check_rejection(model, "shards")
    model.close()
