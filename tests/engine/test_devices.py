"""What llama.cpp says of GPUs, and which options the number of them forbids; the GPUs are fakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.engine import llama_devices, llama_loading
from outrider.engine.footprint import Gpu
from outrider.engine.llama_devices import gpus
from outrider.engine.llama_loading import LlamaConfig, load_model
from outrider.errors import InvalidConfig

import llama_cpp as ll  # isort: skip  (outrider.engine sets its environment first)

CPU, GPU, INTEGRATED, ACCELERATOR = range(4)
CARDS = (
    (CPU, b"CPU", b"A processor", 1, 2),
    (GPU, b"CUDA0", b"NVIDIA H200 ", 130 << 30, 139 << 30),
    (INTEGRATED, b"Vulkan0", b"Beside the processor", 3, 4),
    (ACCELERATOR, b"BLAS", b"", 5, 6),
    (GPU, b"CUDA1", b"NVIDIA H200", 0, 0),
)


def registry(devices: tuple[tuple[int, bytes, bytes, int, int], ...]) -> Callable[..., Any]:
    """Return ggml's functions for devices that are (kind, name, card, free, total).

    The handle of a device is its place and one, since that of none is 0.
    """

    def memory(device: int, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = devices[device - 1][3:]

    functions = {
        "ggml_backend_dev_count": lambda: len(devices),
        "ggml_backend_dev_get": lambda i: i + 1,
        "ggml_backend_dev_type": lambda device: devices[device - 1][0],
        "ggml_backend_dev_name": lambda device: devices[device - 1][1],
        "ggml_backend_dev_description": lambda device: devices[device - 1][2],
        "ggml_backend_dev_memory": memory,
    }
    return lambda name, *_: functions[name]


@pytest.mark.skipif(ll.llama_supports_gpu_offload(), reason="a build for GPUs")
def test_a_build_for_the_cpu_has_no_gpu() -> None:
    assert gpus() == []


def test_the_cards_are_those_that_a_model_is_put_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_devices, "library_function", registry(CARDS))
    assert gpus() == [
        Gpu("CUDA0", "NVIDIA H200", 130 << 30, 139 << 30),
        Gpu("CUDA1", "NVIDIA H200", 0, 0),
    ]
    monkeypatch.setattr(llama_devices, "library_function", registry((CARDS[0], CARDS[2])))
    assert [gpu.name for gpu in gpus()] == ["Vulkan0"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"main_gpu": 2}, "main-gpu: needs 3 GPUs; this build of llama.cpp finds CUDA0, CUDA1"),
        ({"tensor_split": (1.0, 1.0, 0.0)}, "tensor-split: needs 3 GPUs; this build of llama.cpp"),
    ],
)
def test_more_cards_than_there_are_is_refused_by_the_options_name(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(llama_devices, "library_function", registry(CARDS))
    monkeypatch.setattr(ll, "llama_supports_gpu_offload", lambda: True)
    with pytest.raises(InvalidConfig) as caught:
        load(**options)
    assert str(caught.value).startswith(said)


def test_the_first_card_alone_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_devices, "library_function", registry(CARDS))
    monkeypatch.setattr(ll, "llama_supports_gpu_offload", lambda: True)
    asked: list[Any] = []
    monkeypatch.setattr(llama_loading, "load_file", lambda path, params: asked.append(params))
    load()
    load(main_gpu=0)
    load(tensor_split=(3.0, 1.0))
    both, first, shared = asked
    assert both.split_mode == shared.split_mode == ll.LLAMA_SPLIT_MODE_LAYER
    assert (first.split_mode, first.main_gpu) == (ll.LLAMA_SPLIT_MODE_NONE, 0)
    assert [shared.tensor_split[i] for i in range(2)] == [3.0, 1.0]


def test_values_that_need_flash_attention_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(InvalidConfig, match="flash-attention: must be on for a cache of q8_0"):
        load(cache_type_v="q8_0", flash_attention=False)


def load(**options: Any) -> None:
    path = Path("there is no such file")
    config = LlamaConfig(
        path=path, context=64, sequence_count=1, thread_count=1, pad_multiple=1, **options
    )
    load_model(config, [])
