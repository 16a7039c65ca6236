"""How many threads compute a model: on a GPU, beside one, and without; measured where it counts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from outrider.engine import llama_loading
from outrider.engine.calibrate import token_seconds
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_library import ll
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, ModelDescription, Row
from outrider.engine.model_draft import ModelDraft
from outrider.engine.thread_choice import (
    describe_threads,
    quickest,
    thread_choices,
    use_quickest,
)
from outrider.model_service import run
from outrider.model_service.config import ModelConfig
from tests.support.tiny_gguf import Shape, write_model
from tests.support.toy import ToyModel


@pytest.mark.parametrize(
    ("cores", "on_gpu", "beside_gpu", "expected"),
    [
        (16, False, False, (16,)),
        (16, True, False, (1,)),
        (16, False, True, (14, 8, 4)),
        (8, False, True, (6, 4, 2)),
        (4, False, True, (2, 1)),
        (3, False, True, (1,)),
        (1, False, True, (1,)),
        (2, False, False, (2,)),
    ],
)
def test_the_threads_to_choose_from(
    cores: int, on_gpu: bool, beside_gpu: bool, expected: tuple[int, ...]
) -> None:
    assert thread_choices(cores, on_gpu, beside_gpu) == expected


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        # Tokens a second of a draft of .8B on an idle machine of 16 cores, and beside others.
        ({2: 22, 4: 44, 8: 87, 16: 162}, 16),
        ({4: 49, 8: 93, 16: 27}, 8),
        ({14: 30, 8: 30, 4: 31}, 4),
        ({}, 8),
    ],
)
def test_a_token_is_soonest_with_the_threads_that_are_chosen(
    rates: Mapping[int, float], expected: int
) -> None:
    choices = tuple(rates) or (8, 4, 2)
    assert quickest(choices, {count: 1.0 / rate for count, rate in rates.items()}) == expected


class Timed(ToyModel):
    """A toy on a clock of its own, on which each of its tokens takes what is given in turn."""

    def __init__(self, seconds: Mapping[int, Sequence[float]]) -> None:
        super().__init__(thread_choices=tuple(seconds))
        self.now = 0.0
        self._next: dict[int, Iterator[float]] = {
            count: cycle(each) for count, each in seconds.items()
        }

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        self.now += next(self._next[self.thread_count])
        return super().decode(chunks)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({14: [0.007], 8: [0.0115], 4: [0.023]}, 14),
        # Others use the core of one thread, every other token.
        ({14: [0.007, 0.040], 8: [0.0115], 4: [0.023]}, 8),
        ({6: [0.5], 4: [0.6], 2: [1.0]}, 6),
        # The first token with other threads waits for them to start.
        ({6: [9.0, *100 * [0.001]], 4: [0.002], 2: [0.003]}, 6),
    ],
)
def test_each_number_of_threads_is_tried_and_the_quickest_stays(
    seconds: Mapping[int, Sequence[float]], expected: int
) -> None:
    model = Timed(seconds)
    measured = token_seconds(model, lambda: model.now)
    assert list(measured) == list(seconds)
    use_quickest(model, measured)
    assert (model.thread_count, model.held(0)) == (expected, ())


def test_without_a_choice_nothing_is_measured() -> None:
    for choices in ((), (2,)):
        model = ToyModel(thread_choices=choices)
        assert token_seconds(model, iter([]).__next__) == {}
        use_quickest(model, {})
        assert model.decode_count == 0


class Sleeping(ToyModel):
    """A toy that is quickest with eight threads."""

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        time.sleep(0.0005 if self.thread_count == 8 else 0.003)
        return super().decode(chunks)


def test_a_draft_in_the_process_of_its_target_chooses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Sleeping(thread_choices=(14, 8, 4))
    monkeypatch.setattr(run, "load_llama", lambda _: lambda: draft)
    config = ModelConfig(model=Path("draft.gguf"), n_gpu_layers=0, is_draft=True)
    own = run.own_draft_loader(config)(ToyModel())
    assert isinstance(own, ModelDraft) and own.model is draft
    assert draft.thread_count == 8


def described(count: int, choices: tuple[int, ...], on_gpu: bool = False) -> ModelDescription:
    model = ToyModel(thread_choices=choices)
    if choices:
        model.use_threads(count)
    return replace(model.describe(), is_on_gpu=on_gpu)


def test_one_line_says_how_many_and_why() -> None:
    seconds = {14: 1 / 147, 8: 1 / 87, 4: 1 / 44}
    line = "14 threads: 147 tokens/s, 87 with 8, 44 with 4"
    assert describe_threads(described(14, (14, 8, 4)), seconds) == line
    on_gpu = described(1, (1,), on_gpu=True)
    assert describe_threads(on_gpu, {}) == "1 thread: a GPU computes all layers"
    assert describe_threads(described(2, (2,)), {}) == ""
    # What somebody asked for was not chosen, and what is kept may be of another machine.
    assert describe_threads(described(1, (), on_gpu=True), {}) == ""
    assert describe_threads(described(6, (6, 4, 2)), {3: 0.1}) == ""


# llama.cpp's contexts


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", shape=Shape(layers=4))


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let llama.cpp say that it has a GPU; 16 cores are there for everything else."""
    monkeypatch.setattr(ll, "llama_supports_gpu_offload", lambda: True)
    monkeypatch.setattr(llama_loading, "gpu_layers_of", lambda config: config.gpu_layers)
    monkeypatch.setattr(llama_loading, "available_threads", lambda: 16)


def load(path: Path, **options: Any) -> LlamaModel:
    usual: dict[str, Any] = {"context": 64, "sequence_count": 1, "thread_count": 0}
    return LlamaModel(LlamaConfig(path=path, pad_multiple=1, **usual | options))


def threads(model: LlamaModel) -> tuple[int, int]:
    """Return the threads of llama.cpp's context: of one row, and of several."""
    context = model._ctx
    return ll.llama_n_threads(context), ll.llama_n_threads_batch(context)


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize(
    ("options", "expected", "choices", "on_gpu"),
    [
        ({}, (1, 1), (1,), True),
        ({"gpu_layers": 99}, (1, 1), (1,), True),
        ({"gpu_layers": 5}, (1, 1), (1,), True),  # four layers and the output
        ({"gpu_layers": 4}, (16, 16), (16,), False),
        ({"gpu_layers": 0}, (16, 16), (16,), False),
        ({"thread_count": 3}, (3, 3), (), True),
        ({"batch_thread_count": 4}, (1, 4), (1,), True),
        ({"is_draft": True}, (1, 1), (1,), True),
        ({"is_draft": True, "gpu_layers": 0}, (14, 14), (14, 8, 4), False),
        ({"is_draft": True, "gpu_layers": 0, "thread_count": 16}, (16, 16), (), False),
        ({"is_draft": True, "gpu_layers": 2}, (16, 16), (16,), False),
    ],
)
def test_llama_cpp_gets_the_threads_of_where_a_model_is(
    path: Path,
    options: dict[str, Any],
    expected: tuple[int, int],
    choices: tuple[int, ...],
    on_gpu: bool,
) -> None:
    model = load(path, **options)
    description = model.describe()
    assert threads(model) == expected
    assert (description.thread_count, description.is_on_gpu) == (expected[0], on_gpu)
    assert description.thread_choices == choices
    model.close()


@pytest.mark.parametrize("is_draft", [False, True])
def test_without_a_gpu_every_model_takes_all_cores(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_draft: bool
) -> None:
    monkeypatch.setattr(ll, "llama_supports_gpu_offload", lambda: False)
    monkeypatch.setattr(llama_loading, "available_threads", lambda: 3)
    for layers in (-1, 0):
        model = load(path, is_draft=is_draft, gpu_layers=layers)
        assert (threads(model), model.describe().thread_choices) == ((3, 3), (3,))
        model.close()


@pytest.mark.usefixtures("a_gpu")
def test_other_threads_keep_the_text_and_every_context_that_is_opened_has_them(path: Path) -> None:
    model = load(path, is_draft=True, gpu_layers=0)
    chunk = Chunk(0, 0, [1, 2, 3], 1)
    [[before]] = model.decode([chunk])
    expected = before.argmax()
    model.use_threads(4)
    assert (threads(model), model.describe().thread_count) == ((4, 4), 4)
    model.truncate(0, 2)
    [[row]] = model.decode([Chunk(0, 2, [3], 1)])
    assert row.argmax() == expected
    model.open(model.describe().layouts[0])
    assert (threads(model), model.describe().thread_count) == ((4, 4), 4)
    model.close()


@pytest.mark.usefixtures("a_gpu")
def test_beside_a_gpu_no_thread_is_kept_on_a_core(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[Sequence[int]] = []
    monkeypatch.setattr("outrider.engine.llama.pinned_threads", pinned.append)
    monkeypatch.setattr("outrider.engine.llama_loading.available_cores", lambda: set(range(16)))
    for is_draft in (True, False):
        config = {"gpu_layers": 0, "thread_count": 16, "pins_threads": True}
        load(path, is_draft=is_draft, **config).close()
    assert pinned == [[], list(range(16))]
