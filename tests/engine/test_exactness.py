"""The `exact` profile on the bundled pair: how a row was batched does not change its bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.engine.calibrate import exact_padding
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, ModelDescription
from tests.support.thorough import THOROUGH
from tests.support.tiny_gguf import Shape, write_model

MODELS = Path(__file__).parents[2] / "models"
CONTEXT = 608
TAIL = 12
"""Tokens at the end of a text whose rows are compared."""

LENGTHS = [32, 257, 600]
"""Past 256 cells, where careless batching shows, and up to what was measured."""

Logits = NDArray[np.float32]


def load(path: Path, thread_count: int = 1) -> LlamaModel:
    """Load a model, with one thread: two wait for each other wherever the machine is busy."""
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=CONTEXT,
            sequence_count=3,
            thread_count=thread_count,
            pad_multiple=4,
        )
    )


@pytest.fixture(scope="module", params=[1, 2] if THOROUGH else [1])
def target(request: pytest.FixtureRequest) -> Iterator[LlamaModel]:
    model = load(MODELS / "stdlib-target-q8_0.gguf", request.param)
    assert exact_padding(model) == model.pad_multiple
    yield model
    model.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """Return a model of random weights: how the padding is looked for is the same for all."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    model = load(write_model(path, shape=Shape(context=CONTEXT)))
    yield model
    model.close()


@pytest.fixture(autouse=True)
def nothing_held(target: LlamaModel) -> None:
    for sequence in range(3):
        target.truncate(sequence, 0)


SOURCE = '''
def read_config(path):
    """Return the options of a file as a dictionary."""
    options = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            key, separator, value = line.partition("=")
            if not separator:
                raise ValueError(f"{path}:{number}: expected KEY=VALUE")
            options[key.strip()] = value.strip()
    return options
'''


@pytest.fixture(scope="module")
def text(target: LlamaModel) -> list[int]:
    """Return real text, so that the logits are those of use."""
    ids: list[int] = []
    while len(ids) < CONTEXT:
        ids += target.tokenize(SOURCE.encode(), add_special=not ids, parse_special=False)
    return ids[:CONTEXT]


def fill(model: LlamaModel, sequence: int, text: Sequence[int], chunk: int, start: int = 0) -> None:
    """Append a text in chunks without asking for rows."""
    for at in range(start, len(text), chunk):
        model.decode([Chunk(sequence, at, text[at : min(at + chunk, len(text))], 0)])


def tail(model: LlamaModel, sequence: int, text: Sequence[int], sizes: Sequence[int]) -> Logits:
    """Append the last TAIL tokens in pieces of the given sizes; return copies of their rows."""
    rows: list[Logits] = []
    for size in sizes:
        at = len(text) - TAIL + len(rows)
        [new] = model.decode([Chunk(sequence, at, text[at : at + size], size)])
        rows += [row.copy() for row in new]
    assert len(rows) == TAIL
    return np.array(rows)


def reference(model: LlamaModel, text: Sequence[int]) -> Logits:
    """Return the rows of the last tokens, the plainest way; sequence 0 holds the text after it."""
    model.truncate(0, 0)
    fill(model, 0, text[:-TAIL], 512)
    return tail(model, 0, text, [TAIL])


@pytest.mark.parametrize("length", LENGTHS)
def test_the_bits_of_a_row_do_not_depend_on_the_row_count(
    target: LlamaModel, text: list[int], length: int
) -> None:
    expected = reference(target, text[:length])
    for sizes in ([1] * TAIL, [3, 5, 4], [8, 2, 2], [11, 1]):
        target.truncate(0, length - TAIL)
        np.testing.assert_array_equal(tail(target, 0, text[:length], sizes), expected)


def test_the_bits_of_a_row_do_not_depend_on_how_many_rows_of_a_chunk_are_wanted(
    target: LlamaModel, text: list[int]
) -> None:
    length = 257
    expected = reference(target, text[:length])
    for wanted in (1, 2, 5, 8, 11):
        target.truncate(0, length - TAIL)
        piece = text[length - TAIL : length]
        [rows] = target.decode([Chunk(0, length - TAIL, piece, wanted)])
        np.testing.assert_array_equal(rows, expected[-wanted:])


@pytest.mark.parametrize(("length", "chunk"), [(300, 7), (600, 61), (600, 128), (600, 509)])
def test_the_bits_of_a_row_do_not_depend_on_the_chunks_of_the_prompt(
    target: LlamaModel, text: list[int], length: int, chunk: int
) -> None:
    expected = reference(target, text[:length])
    target.truncate(0, 0)
    fill(target, 0, text[: length - TAIL], chunk)
    np.testing.assert_array_equal(tail(target, 0, text[:length], [TAIL]), expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_bits_of_a_row_do_not_depend_on_other_sessions(
    target: LlamaModel, text: list[int], length: int
) -> None:
    expected = reference(target, text[:length])
    others = {1: text[40:], 2: text[::-1]}
    fill(target, 1, others[1][:333], 512)
    fill(target, 2, others[2][:90], 512)
    target.truncate(0, length - TAIL)
    rows: list[Logits] = []
    for i, size in enumerate([1, 4, 2, 5]):
        at = length - TAIL + len(rows)
        mine = Chunk(0, at, text[at : at + size], size)
        first = Chunk(1, 333 + 3 * i, others[1][333 + 3 * i : 336 + 3 * i], 3)
        second = Chunk(2, 90 + 60 * i, others[2][90 + 60 * i : 150 + 60 * i], i % 2)
        rows += [row.copy() for row in target.decode([first, mine, second])[1]]
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize(("length", "kept"), [(300, 0), (300, 31), (600, 400), (600, 600 - TAIL)])
def test_the_bits_of_a_row_survive_a_rollback(
    target: LlamaModel, text: list[int], length: int, kept: int
) -> None:
    expected = reference(target, text[:length])
    for _ in range(2):
        target.truncate(0, kept)
        wrong = text[::-1][: min(40, CONTEXT - kept)]
        target.decode([Chunk(0, kept, wrong, 1)])
        target.truncate(0, kept)
        fill(target, 0, text[: length - TAIL], 512, start=kept)
        np.testing.assert_array_equal(tail(target, 0, text[:length], [5, 7]), expected)


def test_the_bits_of_a_row_survive_an_eviction_and_a_refill_elsewhere(
    target: LlamaModel, text: list[int]
) -> None:
    expected = reference(target, text[:600])
    target.truncate(0, 0)
    fill(target, 0, text[::-1][:300], 512)
    fill(target, 2, text[: 600 - TAIL], 130)
    np.testing.assert_array_equal(tail(target, 2, text[:600], [3, 5, 4]), expected)


@pytest.mark.parametrize("kept", [255, 402])
def test_the_bits_of_a_row_survive_a_copied_start(
    target: LlamaModel, text: list[int], kept: int
) -> None:
    expected = reference(target, text[:600])
    fill(target, 1, text[::-1][:50], 512)
    target.copy_prefix(0, 1, kept)
    target.truncate(0, 0)
    fill(target, 1, text[: 600 - TAIL], 512, start=kept)
    np.testing.assert_array_equal(tail(target, 1, text[:600], [TAIL]), expected)


@pytest.mark.parametrize("thread_count", [1, 2])
def test_the_bundled_draft_is_found_to_be_exact(thread_count: int) -> None:
    model = load(MODELS / "stdlib-draft-q8_0.gguf", thread_count)
    assert exact_padding(model) == model.pad_multiple
    model.close()


class Blurred:
    """A model whose bits depend on the row count of a decode below some number of rows."""

    def __init__(self, model: LlamaModel, least: int) -> None:
        self._model = model
        self._least = least

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def pad_multiple(self) -> int:
        return self._model.pad_multiple

    @pad_multiple.setter
    def pad_multiple(self, multiple: int) -> None:
        self._model.pad_multiple = multiple

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Logits]]:
        rows = self._model.decode(chunks)
        few = min(self._model.padded(len(chunk.token_ids)) for chunk in chunks) < self._least
        return [[row * np.float32(1.0 + 2**-20 * few) for row in own] for own in rows]


class WithoutItsOwnKernels(Blurred):
    """A model of a build that says it treats one row as it treats others."""

    def describe(self) -> ModelDescription:
        return replace(self._model.describe(), system_info="CPU : AVX2 = 1 |")


def test_one_row_is_tried_only_where_the_build_has_no_kernels_of_its_own_for_it(
    tiny: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "LLAMAFILE = 1" in tiny.describe().system_info
    # Rows that are padded behind the check's back: one is then as good as four.
    monkeypatch.setattr(LlamaModel, "padded", lambda self, count: -(-count // 4) * 4)
    assert exact_padding(WithoutItsOwnKernels(tiny, 0)) == 1
    assert exact_padding(Blurred(tiny, 0)) == 2


def test_rows_padded_further_keep_their_bits(target: LlamaModel, text: list[int]) -> None:
    expected = reference(target, text[:400])
    for pad_to in (2, 4, 6, 8, 16):
        position = 400 - TAIL
        target.truncate(0, position)
        rows = []
        while position < 400:
            chunk = Chunk(0, position, text[position : position + 1], 1, pad_to)
            rows.append(target.decode([chunk])[0][0].copy())
            position += 1
        np.testing.assert_array_equal(np.array(rows), expected)


@pytest.mark.parametrize(("least", "padding"), [(1, 2), (2, 2), (3, 4), (4, 4), (5, None)])
def test_the_least_padding_that_helps_is_found(
    tiny: LlamaModel, least: int, padding: int | None
) -> None:
    assert exact_padding(Blurred(tiny, least)) == padding
