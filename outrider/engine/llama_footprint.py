"""What a model takes of every device's memory, by a dry run of llama.cpp's own load.

With `no_alloc` llama.cpp lays out weights, caches and graphs and allocates nothing: that takes
some 10 ms and no memory, whatever the model's size. It says in its log what is where.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from outrider.engine.gguf_check import check_gguf
from outrider.engine.llama_devices import gpus
from outrider.engine.llama_library import init_backend, last_error, ll, log_lines
from outrider.engine.llama_loading import (
    LlamaConfig,
    asked_context,
    cells_of,
    context_params,
    layouts_of,
    load_file,
    model_params,
    sequences_of,
)
from outrider.errors import InvalidConfig

CPU = "CPU"
"""Where what is on no GPU is: the machine's memory."""

_LAYER = re.compile(r"load_tensors: layer +(\d+) assigned to device (\S+),")
_CACHE = re.compile(r"layer +\d+: dev = (\S+)")
_CACHE_SIZE = re.compile(r": size = +([\d.]+) MiB \(")  # of the layers before it
_COMPUTE = re.compile(r": +(\S+) compute buffer size = +([\d.]+) MiB")
_SPLITS = re.compile(r"splits = (?:\d+ / )?(\d+)")  # of a prompt's graph, and of a token's
_BLOCK = re.compile(r"blk\.(\d+)\.")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a model has on one device, in bytes."""

    device: str  # ggml's name, such as CUDA0; or CPU
    layers: int  # the output counts as one, as in --n-gpu-layers
    weights: int
    caches: int  # of all sessions
    compute: int  # that a decode needs for what it computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Where a model's parts are."""

    shares: tuple[Share, ...]
    split_count: int
    """The parts of a token's graph, each on one device: one for a device, where each can compute
    all of its layers. Where it cannot, the CPU does that between two parts, in every layer."""


def footprint(config: LlamaConfig) -> Footprint:
    """Return what a model would take, without loading it. Raises InvalidConfig."""
    init_backend()
    checked = check_gguf(config.path)
    params = model_params(config)
    params.no_alloc, params.load_mode = True, ll.LLAMA_LOAD_MODE_NONE
    with log_lines() as lines:
        model = load_file(config.path, params)
        try:
            trained = ll.llama_model_n_ctx_train(model)
            cells = cells_of(asked_context(config, trained, checked.position_count))
            layout = layouts_of(config, can_pool=False)[0]
            context = ll.llama_init_from_model(
                model, context_params(config, model, layout, cells, sequences_of(config, layout))
            )
            if not context:
                raise InvalidConfig("ctx", f"no context of {cells} cells: {last_error()}")
            ll.llama_free(context)
        finally:
            ll.llama_model_free(model)
    return read_footprint(lines, checked.tensor_bytes, {gpu.name for gpu in gpus()})


def read_footprint(
    lines: Iterable[str], tensor_bytes: Mapping[str, int], gpu_names: Collection[str]
) -> Footprint:
    """Return what llama.cpp said of a dry run. Pure."""
    layers: dict[int, str] = {}
    caches, compute, split_count = Counter[str](), Counter[str](), 1
    waiting: list[str] = []  # devices of layers whose cache's size is said next
    for line in lines:
        if found := _LAYER.search(line):
            layers[int(found[1])] = _place(found[2], gpu_names)
        elif found := _CACHE.search(line):
            waiting.append(_place(found[1], gpu_names))
        elif waiting and (found := _CACHE_SIZE.search(line)):
            for device in waiting:
                caches[device] += round(float(found[1]) * _MIB / len(waiting))
            waiting = []
        elif found := _COMPUTE.search(line):
            compute[_place(found[1], gpu_names)] += round(float(found[2]) * _MIB)
        elif found := _SPLITS.search(line):
            split_count = int(found[1])
    weights = _weights(layers, tensor_bytes)
    counts = Counter(layers.values())
    devices = dict.fromkeys([*sorted(gpu_names), CPU])
    return Footprint(
        shares=tuple(
            Share(
                device=each,
                layers=counts[each],
                weights=weights[each],
                caches=caches[each],
                compute=compute[each],
            )
            for each in devices
            if weights[each] or caches[each] or compute[each]
        ),
        split_count=split_count,
    )


def _place(name: str, gpu_names: Collection[str]) -> str:
    """Return the GPU of this name, or else the CPU: what is pinned for a GPU is there, too."""
    return name if name in gpu_names else CPU


def _weights(layers: Mapping[int, str], tensor_bytes: Mapping[str, int]) -> Counter[str]:
    """Return the bytes of weights by device; the last layer is the output's."""
    output = layers[max(layers)] if layers else CPU
    weights = Counter[str]()
    for name, size in tensor_bytes.items():
        if block := _BLOCK.match(name):
            weights[layers.get(int(block[1]), CPU)] += size
        else:  # a token's embedding is looked up on the CPU
            weights[CPU if "embd" in name else output] += size
    if "output.weight" not in tensor_bytes and output != CPU:
        weights[output] += tensor_bytes.get("token_embd.weight", 0)  # which is there twice
    return weights
