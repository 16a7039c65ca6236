"""What a model takes of every device's memory, read from what llama.cpp says of it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

CPU = "CPU"
"""Where what is on no GPU is: the machine's memory."""

_LAYER = re.compile(r"load_tensors: layer +(\d+) assigned to device (\S+),")
_CACHE = re.compile(r"layer +\d+: dev = (\S+)")
_CACHE_SIZE = re.compile(r": size = +([\d.]+) MiB \(")  # of the layers before it
_COMPUTE = re.compile(r": +(\S+) compute buffer size = +([\d.]+) MiB")
_UNUSED = re.compile(r"unused tensor (\S+) ")  # of a head that is not loaded
_SPLITS = re.compile(r"splits = (?:\d+ / )?(\d+)")  # of a prompt's graph, and of a token's
_FILE_TYPE = re.compile(r"print_info: file type += (?:\(guessed\) )?(.+)")
_BLOCK = re.compile(r"blk\.(\d+)\.")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card; llama.cpp's options count them from 0, in this order."""

    name: str  # ggml's, such as CUDA0
    card: str  # what the driver calls it
    free_bytes: int  # of its memory; 0 where the driver does not say, as is `total_bytes`
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """What a model has on one device, in bytes."""

    device: str  # ggml's name, such as CUDA0; or CPU
    layers: int  # the output counts as one, as in --n-gpu-layers
    weights: int
    caches: int  # of all sessions, a head's and its hidden rows among them
    compute: int  # that a decode needs for what it computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Where a model's parts are."""

    shares: tuple[DeviceShare, ...]
    split_count: int
    """The parts of a token's graph, each on one device: one for a device, where each can compute
    all of its layers. Where it cannot, the CPU does that between two parts, in every layer."""
    file_type: str = ""  # of the weights, as llama.cpp calls it

    @property
    def gpu_layers(self) -> int:
        """The layers on all GPUs."""
        return sum(share.layers for share in self.shares if share.device != CPU)

    @property
    def is_on_gpu(self) -> bool:
        """Whether all layers are on GPUs."""
        return 0 < self.gpu_layers == sum(share.layers for share in self.shares)


def read_footprint(
    lines: Iterable[str],
    tensor_bytes: Mapping[str, int],
    gpu_names: Collection[str],
    row_bytes: int = 0,
) -> Footprint:
    """Return what llama.cpp said of a dry run, of a model and then of its head. Pure.

    `row_bytes` are of the hidden rows that all sessions keep beside it.
    """
    layers: dict[int, str] = {}
    caches, compute, split_count, file_type = Counter({CPU: row_bytes}), Counter[str](), 0, ""
    unused = set[str]()
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
            split_count = split_count or int(found[1])
        elif found := _UNUSED.search(line):
            unused.add(found[1])
        elif found := _FILE_TYPE.search(line):
            file_type = found[1].strip()
    loaded = {name: size for name, size in tensor_bytes.items() if name not in unused}
    weights = _weights(layers, loaded)
    counts = Counter(layers.values())
    devices = dict.fromkeys([*sorted(gpu_names), CPU])
    return Footprint(
        shares=tuple(
            DeviceShare(
                device=each,
                layers=counts[each],
                weights=weights[each],
                caches=caches[each],
                compute=compute[each],
            )
            for each in devices
            if weights[each] or caches[each] or compute[each]
        ),
        split_count=max(1, split_count),
        file_type=file_type,
    )


def _place(name: str, gpu_names: Collection[str]) -> str:
    """Return the GPU of this name, or else the CPU: what is pinned for a GPU is there, too."""
    return next((gpu for gpu in gpu_names if name == gpu or name.startswith(f"{gpu}_")), CPU)


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
