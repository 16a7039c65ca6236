"""How a model service runs its model: every option is checked, and those of llama.cpp reach it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.engine.calibrate import exact_padding
from outrider.engine.llama import LlamaModel
from outrider.engine.model import Chunk
from outrider.errors import InvalidConfig
from outrider.model_service.config import CACHE_TYPES, LEAST_BATCH, ModelConfig, read_tensor_split
from outrider.model_service.run import LoadingLog, load_llama
from tests.support.tiny_gguf import Shape, write_model

import llama_cpp as ll  # isort: skip  (outrider.engine.llama sets its environment first)

TEXT = [0, 70, 260, 300, 71, 72, 261, 90, 91, 92, 301, 302]
ROOT = Path(__file__).parents[2]
needs_no_gpu = pytest.mark.skipif(ll.llama_supports_gpu_offload(), reason="a build for GPUs")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", shape=Shape(layers=2))


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose heads are half a block of the quantised types."""
    folder = tmp_path_factory.mktemp("models")
    return write_model(folder / "narrow.gguf", shape=Shape(layers=2, heads=4))


def load(path: Path, **options: Any) -> LlamaModel:
    model = load_llama(ModelConfig(model=path, threads=1, **options))()
    assert isinstance(model, LlamaModel)
    return model


def last_row(path: Path, **options: Any) -> np.ndarray[Any, Any]:
    model = load(path, **options)
    [[row]] = model.decode([Chunk(0, 0, TEXT, 1)])
    row = row.copy()
    model.close()
    return row


# what is refused


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n_gpu_layers": -2}, "n-gpu-layers: must be in [-1, 65536], not -2"),
    ({"main_gpu": -2}, "main-gpu: must be in [-1, 15], not -2"),
    ({"main_gpu": 16}, "main-gpu: must be in [-1, 15], not 16"),
    ({"threads": 513}, "threads: must be in [0, 512], not 513"),
    ({"threads_batch": -1}, "threads-batch: must be in [0, 512], not -1"),
    ({"batch": LEAST_BATCH - 1}, "batch: must be in [68, 16384], not 67"),
    ({"context": -1}, "ctx: must be in [0, 16777216], not -1"),
    ({"sessions": 257}, "sessions: must be in [1, 256], not 257"),
    ({"nice": 20}, "nice: must be in [-1, 19], not 20"),
    ({"numa": "mirror"}, "numa: must be one of distribute, isolate, numactl"),
    ({"cache_type_k": "q8_1"}, "cache-type-k: must be one of f32, f16, bf16, q8_0"),
    ({"cache_type_v": ""}, "cache-type-v: must be one of f32, f16, bf16, q8_0"),
    ({"tensor_split": "3;1"}, "tensor-split: must be numbers such as 3,1, not '3;1'"),
    ({"tensor_split": "3,"}, "tensor-split: must be numbers such as 3,1"),
    ({"tensor_split": "3,-1"}, "tensor-split: must be in [0, 1e6] and not all zero"),
    ({"tensor_split": "1,nan"}, "tensor-split: must be in [0, 1e6] and not all zero"),
    ({"tensor_split": "inf"}, "tensor-split: must be in [0, 1e6] and not all zero"),
    ({"tensor_split": "0,0"}, "tensor-split: must be in [0, 1e6] and not all zero"),
    ({"tensor_split": ",".join("1" * 17)}, "tensor-split: at most 16 GPUs, not 17"),
    ({"tensor_split": "1,1", "main_gpu": 0}, "main-gpu: uses one GPU alone"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_an_impossible_option_is_refused_by_its_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        ModelConfig(model=Path("m.gguf"), **options)
    assert str(caught.value).startswith(said)


def test_proportions_are_read() -> None:
    assert read_tensor_split("") == ()
    assert read_tensor_split("3,1") == (3.0, 1.0)
    assert read_tensor_split(" 0, 0.5") == (0.0, 0.5)


@needs_no_gpu
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"n_gpu_layers": 1}, "n-gpu-layers"),
        ({"main_gpu": 0}, "main-gpu"),
        ({"tensor_split": "3,1"}, "tensor-split"),
    ],
)
def test_what_needs_a_gpu_is_refused_without_one(
    path: Path, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidConfig, match="finds no GPU") as caught:
        load(path, **options)
    assert caught.value.field == name


@needs_no_gpu
@pytest.mark.parametrize("layers", [-1, 0])
def test_no_layer_is_offloaded_without_a_gpu(path: Path, layers: int) -> None:
    assert np.isfinite(last_row(path, n_gpu_layers=layers)).all()


@pytest.mark.parametrize("kind", ["key", "value"])
def test_a_quantised_cache_is_refused_where_it_does_not_fit_the_heads(
    narrow: Path, kind: str
) -> None:
    option = f"cache_type_{kind[0]}"
    with pytest.raises(InvalidConfig, match="heads of a multiple of 32; the model's are of 16"):
        load(narrow, **{option: "q4_0"})
    assert np.isfinite(last_row(narrow, **{option: "bf16"})).all()


def test_a_context_that_no_32_bits_count_is_refused(path: Path) -> None:
    with pytest.raises(InvalidConfig, match="ctx: 4294967296 cells in all sessions"):
        load(path, context=2**24, sessions=256)


def test_weights_that_cannot_be_locked_are_refused(path: Path) -> None:
    program = f"""
import resource
from pathlib import Path
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import load_llama
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
try:
    load_llama(ModelConfig(model=Path({str(path)!r}), mlock=True))()
    print("locked")
except Exception as error:
    print(error)
"""
    said = output_of(program)
    # Root may lock whatever the limit says.
    assert said == "locked" or said.startswith("mlock: failed to mlock")


def output_of(program: str) -> str:
    """Run a program in a process of its own; return what it printed."""
    return subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    ).stdout.strip()


# what reaches llama.cpp


@pytest.mark.parametrize("options", [{"mmap": False}, {"batch": 4096}, {"threads_batch": 2}])
def test_an_option_of_speed_changes_no_bit(path: Path, options: dict[str, Any]) -> None:
    np.testing.assert_array_equal(last_row(path, **options), last_row(path))


@pytest.mark.parametrize(
    ("pages", "memory", "mmap", "is_mapped"),
    [
        ("always", 1 << 40, None, False),
        ("never", 1 << 40, None, True),  # nothing is gained
        ("always", 1 << 10, None, True),  # it does not fit twice
        ("always", 1 << 40, True, True),
        ("never", 1 << 40, False, False),
    ],
)
def test_a_file_is_read_where_memory_is_in_huge_pages_and_there_is_enough(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pages: str,
    memory: int,
    mmap: bool | None,
    is_mapped: bool,
) -> None:
    monkeypatch.setattr("outrider.engine.llama_loading.huge_pages", lambda: pages)
    monkeypatch.setattr(
        "outrider.engine.llama_loading.available_memory", lambda: (memory, "machine")
    )
    model = load(path, mmap=mmap)
    assert (str(path) in Path("/proc/self/maps").read_text()) is is_mapped
    model.close()


def test_the_batch_is_the_rows_of_a_decode(path: Path) -> None:
    model = load(path, batch=100, context=256)
    assert model.describe().batch_rows == 100
    assert len(model.decode([Chunk(0, 0, [5] * 100, 1)])[0]) == 1
    with pytest.raises(AssertionError, match="rows in one decode"):
        model.decode([Chunk(1, 0, [5] * 101, 1)])
    model.close()


def test_the_least_batch_holds_the_longest_verify(path: Path) -> None:
    model = load(path, batch=LEAST_BATCH, sessions=256, context=96)
    assert len(model.decode([Chunk(0, 0, [5] * 65, 65)])[0]) == 65
    model.close()


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
def test_every_cache_type_works_and_can_be_exact(path: Path, cache_type: str) -> None:
    model = load(path, cache_type_k=cache_type, cache_type_v=cache_type)
    assert exact_padding(model)
    [[row]] = model.decode([Chunk(0, 0, TEXT, 1)])
    # Quantised caches differ from the exact one, but not by much.
    expected = last_row(path, cache_type_k="f32", cache_type_v="f32")
    assert np.corrcoef(row, expected)[0, 1] > 0.9
    model.close()


def test_the_cache_types_of_keys_and_values_are_told_apart(path: Path) -> None:
    plain, keys, values = (
        last_row(path, **options)
        for options in ({}, {"cache_type_k": "q4_0"}, {"cache_type_v": "q4_0"})
    )
    assert not np.array_equal(plain, keys)
    assert not np.array_equal(keys, values)


@pytest.mark.parametrize("strategy", ["distribute", "isolate", "numactl"])
def test_a_numa_strategy_is_told_once(path: Path, strategy: str) -> None:
    # For the whole process, so in one of its own.
    program = f"""
from pathlib import Path
from outrider.engine.model import Chunk
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import load_llama
for _ in range(2):
    model = load_llama(ModelConfig(model=Path({str(path)!r}), threads=1, numa={strategy!r}))()
    print(len(model.decode([Chunk(0, 0, [5], 1)])))
"""
    assert output_of(program) == "1\n1"


# progress


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    return [(record.message, record.__dict__["fields"]) for record in caplog.records]


def test_a_start_is_logged_with_what_runs_what(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    load(path).close()
    [(message, fields)] = events(caplog)
    assert message == "starting"
    assert fields["file"] == str(path) and fields["bytes"] == path.stat().st_size
    assert str(fields["system"]).startswith("llama.cpp ")
    assert {"outrider", "python", "grpc", "llama_cpp_python", "pid"} <= fields.keys()


def test_nothing_is_logged_before_a_file_is_found_sound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "text.gguf").write_text("GGML, almost")
    with pytest.raises(InvalidConfig):
        load(tmp_path / "text.gguf")
    assert events(caplog) == []


def test_a_long_load_says_every_two_seconds_how_far_it_is(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    times = iter([10.0, 11.0, 12.0, 13.9, 14.1, 14.2, 16.5])
    log = LoadingLog(ModelConfig(model=path), lambda: next(times))
    for share in (0.0, 0.1, 0.25, 0.4, 0.509, 0.6, 1.0):
        log(share)
    said = [(message, fields.get("percent")) for message, fields in events(caplog)]
    assert said == [("starting", None), ("loading", 25), ("loading", 50)]
