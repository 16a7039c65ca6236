"""Every kind of attention memory, against a fresh context as the oracle.

Sequences are cut, copied, exchanged and decoded at random; whatever a sequence then claims to
hold, the logits after it must be those of a context that reads the same text for the first time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from outrider.engine.cache import Session
from outrider.engine.calibrate import exact_padding
from outrider.engine.job import Lease
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Layout, Row
from tests.support.thorough import THOROUGH
from tests.support.tiny_architectures import ARCHITECTURES, WINDOW, WINDOWED, write_architecture

SEQUENCES = 4
CONTEXT = 160  # several windows
STEPS = 3000 if THOROUGH else 60
SEED = 13
TOLERANCE = 0.02
"""Of a logit, where bits depend on batching. Kernels of other shapes change these models' logits by
less than 0.005, a lost cell by more than 0.05:
see `test_the_oracle_sees_the_cells_that_an_exchange_loses`."""


ELSEWHERE = 0.1
"""Of a mean logit, where two layouts are compared; all of them differ by more than 1 else."""


def load(path: Path, sequences: int = SEQUENCES) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=CONTEXT,
            sequence_count=sequences,
            thread_count=1,
            pad_multiple=4,
            batch_rows=128,
        )
    )


def opened(path: Path, name: str) -> LlamaModel:
    """Return a model that is opened with a layout, or skip where its memory has none like it."""
    model = load(path)
    wanted = [each for each in model.describe().layouts if layout_name(each) == name]
    if not wanted:
        model.close()
        pytest.skip("this memory cannot be one pool")
    model.open(wanted[0])
    return model


def layout_name(layout: Layout) -> str:
    return ("pool" if layout.is_pool else "streams") + (" flash" if layout.flash_attention else "")


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = request.param
    return write_architecture(tmp_path_factory.mktemp("memories") / f"{name}.gguf", name)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LlamaModel]:
    model = load(path)
    yield model
    model.close()


@pytest.fixture(scope="module")
def padding(model: LlamaModel) -> int | None:
    """What a chunk is padded to, so that bits do not depend on batching; None: they always do."""
    found = exact_padding(model)
    if found is None:
        model.pad_multiple = 4
    return found


@pytest.fixture(scope="module")
def fresh(path: Path, model: LlamaModel, padding: int | None) -> Iterator[LlamaModel]:
    fresh = load(path, sequences=1)
    fresh.pad_multiple = model.pad_multiple
    yield fresh
    fresh.close()


@pytest.fixture(autouse=True)
def nothing_held(model: LlamaModel) -> None:
    for sequence in range(SEQUENCES):
        model.truncate(sequence, 0)


def prefill(model: LlamaModel, text: list[int], sequence: int = 0) -> Row:
    """Return the last row of a text that is read at once."""
    model.truncate(sequence, 0)
    for start in range(0, len(text), 64):
        piece = text[start : start + 64]
        [rows] = model.decode([Chunk(sequence, start, piece, 1)])
    row: Row = rows[0].copy()
    return row


@pytest.mark.parametrize("count", [30, 90])
def test_a_token_that_is_tried_after_a_text_leaves_the_text(
    model: LlamaModel, fresh: LlamaModel, count: int
) -> None:
    """As an engine does to see whether others use the cores, where no sequence is free."""
    text = [3 + 7 * i % 290 for i in range(count)]
    prefill(model, text)
    model.checkpoint(0)
    session = Session(bytes(16), 0.0, sequence=0, token_ids=list(text))
    lease = Lease(session, model, CONTEXT)
    for _ in range(3):
        lease.try_decode()
    assert list(lease.held) == text
    [[row]] = model.decode([Chunk(0, count, [5], 1)])
    assert np.abs(row - prefill(fresh, [*text, 5])).max() < TOLERANCE


class RandomUse:
    """What an engine may do with the sequences of a model, drawn at random.

    `held` is what every sequence claims to hold; it is always what the model says.
    """

    def __init__(self, model: LlamaModel, seed: int) -> None:
        self.held: list[list[int]] = [[] for _ in range(SEQUENCES)]
        self._model = model
        self._random = random.Random(seed)
        self._has_copied = False  # since the last decode

    def step(self) -> list[tuple[int, Row]]:
        """Do something; return the sequences that were decoded, each with its last row."""
        act = self._random.choices(
            (self._decode, self._cut, self._copy, self._exchange), (6, 3, 1, 1)
        )[0]
        return act() or []

    def _decode(self) -> list[tuple[int, Row]]:
        chosen = self._random.sample(range(SEQUENCES), self._random.randint(1, SEQUENCES))
        chunks = []
        for sequence in chosen:
            room = CONTEXT - 16 - len(self.held[sequence])
            count = min(room, self._random.choice((1, 1, 2, 3, 5, 8, 24)))
            if count > 0:
                tokens = [self._random.randrange(3, 300) for _ in range(count)]
                rows = self._random.randint(1, count)
                chunks.append(Chunk(sequence, len(self.held[sequence]), tokens, rows))
        if not chunks:
            return []
        rows_of = self._model.decode(chunks)
        self._has_copied = False
        for chunk in chunks:
            self.held[chunk.sequence] += chunk.token_ids
        return [(c.sequence, rows[-1].copy()) for c, rows in zip(chunks, rows_of, strict=True)]

    def _cut(self) -> None:
        sequence = self._random.randrange(SEQUENCES)
        most = len(self.held[sequence])
        count = self._random.choice((0, most // 2, max(0, most - 8), max(0, most - 1)))
        del self.held[sequence][self._model.truncate(sequence, count) :]

    def _copy(self) -> None:
        source, destination = self._random.sample(range(SEQUENCES), 2)
        count = self._random.randint(0, len(self.held[source]))
        kept = self._model.copy_prefix(source, destination, count)
        self.held[destination] = self.held[source][:kept]
        self._has_copied = True

    def _exchange(self) -> None:
        first, second = self._random.sample(range(SEQUENCES), 2)
        if self._model.describe().can_exchange and not self._has_copied:
            self._model.exchange(first, second)
            self.held[first], self.held[second] = self.held[second], self.held[first]


def test_whatever_was_done_before_the_logits_are_those_of_a_fresh_context(
    model: LlamaModel, fresh: LlamaModel, padding: int | None
) -> None:
    use = RandomUse(model, SEED)
    checked = 0
    most = TOLERANCE if padding is None else 0.0
    for _ in range(STEPS):
        for sequence, row in use.step():
            text = use.held[sequence]
            if checked < STEPS and text:
                checked += 1
                expected = prefill(fresh, text)
                assert np.abs(row - expected).max() <= most, f"{len(text)} tokens"
    assert checked > STEPS // 3


@pytest.mark.parametrize("name", ["pool", "pool flash"])
def test_whatever_was_done_in_another_layout_the_logits_are_those_of_a_fresh_context(
    path: Path, name: str
) -> None:
    model = opened(path, name)
    fresh = load(path, sequences=1)
    fresh.open(Layout(flash_attention=model.describe().layout.flash_attention))
    use = RandomUse(model, SEED)
    of_a_row: list[float] = []
    for _ in range(STEPS):
        for sequence, row in use.step():
            expected = prefill(fresh, use.held[sequence])
            of_a_row.append(float(np.abs(row - expected).mean()))
    model.close()
    fresh.close()
    assert len(of_a_row) > STEPS // 3
    # Flash attention rounds differently for every shape, which may choose other experts.
    differs = np.median(of_a_row) if "flash" in name else max(of_a_row)
    assert differs < ELSEWHERE


def test_a_memory_with_a_window_is_never_one_pool(model: LlamaModel, path: Path) -> None:
    pools = [each.is_pool for each in model.describe().layouts]
    assert any(pools) is (path.stem not in WINDOWED and path.stem != "phi3")


@pytest.mark.fault(
    "text",
    "A target with a sliding window (gemma 2 and 3, gpt-oss) serves several users",
    before="an exchange of sequences lost the cells outside the window, and later texts were wrong",
    now="llama.cpp is asked what a sequence holds; those with a window are copied, not exchanged",
)
def test_the_oracle_sees_the_cells_that_an_exchange_loses(
    model: LlamaModel,
    fresh: LlamaModel,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert model.describe().can_exchange is (path.stem not in WINDOWED)
    text = [3 + 7 * i % 290 for i in range(4 * WINDOW)]
    prefill(model, text)
    expected = prefill(fresh, text[: 3 * WINDOW + 1])
    monkeypatch.setattr(model, "_window", 0)
    monkeypatch.setattr(model._sequences, "_can_cut", lambda sequence, count: True)
    model.exchange(0, 1)
    model.truncate(1, 3 * WINDOW)
    [[row]] = model.decode([Chunk(1, 3 * WINDOW, [text[3 * WINDOW]], 1)])
    differs = np.abs(row - expected).max() > 2.0 * TOLERANCE
    assert differs == (path.stem in WINDOWED)


def test_a_sequence_that_lost_what_it_needs_says_that_it_is_empty(
    model: LlamaModel, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path.stem not in WINDOWED:
        pytest.skip("only a window lets go of cells")
    prefill(model, [3 + 7 * i % 290 for i in range(4 * WINDOW)])
    with monkeypatch.context() as patched:
        patched.setattr(model, "_window", 0)
        patched.setattr(model._sequences, "_can_cut", lambda sequence, count: True)
        model.exchange(0, 1)
    assert model.truncate(1, 4 * WINDOW - 1) in (0, 4 * WINDOW - 1)
    assert model.truncate(1, 2 * WINDOW) == 0


def test_the_check_at_load_covers_every_operation(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: set[str] = set()
    for name in ("decode", "truncate", "copy_prefix", "exchange"):
        real = getattr(model, name)

        def noted(*arguments: object, name: str = name, real: object = real) -> object:
            done.add(name)
            return real(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(model, name, noted)
    found = exact_padding(model)
    expected = {"decode", "truncate", "copy_prefix"}
    if found is not None and model.describe().can_exchange:  # the last thing that is tried
        expected.add("exchange")
    assert expected <= done
