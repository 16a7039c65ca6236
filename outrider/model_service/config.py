"""How a model service runs its model."""

from __future__ import annotations

from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from outrider.errors import InvalidConfig
from outrider.option_fields import flag_of, numbers_of, option

NUMERICS = ("", "auto", "exact", "native")
NUMA = ("", "distribute", "isolate", "numactl")
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

KV_CACHES = ("", "auto", "pool", "streams")
FLASH_ATTENTION = ("", "auto", "on", "off")

LEAST_BATCH = 68
"""Rows of a verify of the longest draft, its pending token and the padding of `exact`."""

_MOST_GPUS = 16  # of llama.cpp


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a model is run. Zero and the empty word mean: choose.

    The `exact` profile holds for one setting of all this; the check at load finds
    what breaks it and the service is then `native`. Threads broke nothing where it
    was measured: 1 to 4 gave equal bits, flash attention on or off (AVX-512 CPU).
    """

    alias: str = option("", "The name that others see; else the file's.")
    n_gpu_layers: int = option(
        -1, "Layers on the GPU; -1: all, if llama.cpp was built for one.", low=-1, high=2**16
    )
    main_gpu: int = option(-1, "The one GPU to use; -1: all.", low=-1, high=_MOST_GPUS - 1)
    tensor_split: str = option(
        "", "Shares of the layers, GPU by GPU; else by free memory.", metavar="N,N,..."
    )
    threads: int = option(0, "Threads; 0: as many as affinity and quota allow.", low=0, high=512)
    threads_batch: int = option(
        0, "Threads of a decode of several tokens; 0: the same.", low=0, high=512
    )
    batch: int = option(512, "Tokens of one decode at most.", low=LEAST_BATCH, high=2**14)
    context: int = option(
        0,
        "Tokens of a session; 0: as trained, at most 4096.",
        low=0,
        high=2**24,
        flag="--ctx",
    )
    sessions: int = option(4, "Sessions with a cache at the same time.", low=1, high=256)
    numa: str = option("", "distribute, isolate or numactl.", words=NUMA, metavar="MODE")
    mmap: bool | None = option(
        None, "Map the file, or read it; else what is faster.", flag="--mmap/--no-mmap"
    )
    mlock: bool = option(False, "Keep the weights in memory.")
    cache_type_k: str = option(
        "f16", "Keys of the cache: f16, f32, q8_0, ...", words=CACHE_TYPES, metavar="TYPE"
    )
    cache_type_v: str = option(
        "f16", "Values of the cache: f16, f32, q8_0, ...", words=CACHE_TYPES, metavar="TYPE"
    )
    """A quantised type needs flash attention, which is then on."""
    kv_cache: str = option(
        "", "pool, streams, or auto: as measured.", words=KV_CACHES, metavar="KIND"
    )
    flash_attention: str = option(
        "", "on, off, or auto: as measured.", words=FLASH_ATTENTION, metavar="MODE"
    )
    cpu_kernels: str = option(
        "", "Kernels such as zen4; else the best for the file.", metavar="NAME"
    )
    swa_full: bool = option(False, "Keep all of a sliding window's cache.")
    """Exact numerics always do."""
    snapshots: int = option(
        4, "States kept for rollback, where recurrent.", low=0, high=64, metavar="N"
    )
    nice: int = option(
        -1,
        "Give way to other processes; 19 most, -1: a draft on its target's cores.",
        low=-1,
        high=19,
    )
    embeddings: bool = option(False, "Answer requests for embeddings too.")
    hidden_rows: bool = option(False, "Keep what MTP heads in draft services read.")
    """A target with a head in its file, that it uses, does so in any case."""
    numerics: str = option(
        "",
        "exact: equal bits; native: fastest; auto: exact where free.",
        words=NUMERICS,
        metavar="PROFILE",
    )
    """A target chooses (auto), a draft is native."""

    def leaves_gpu_to(self, target: ModelOptions) -> bool:
        """Return whether these options of a draft keep it off a GPU that may have the target."""
        return self.n_gpu_layers == 0 != target.n_gpu_layers

    def config(self, model: Path, is_draft: bool = False) -> ModelConfig:
        """Return how to run this file. Raises InvalidConfig."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return ModelConfig(model=model, is_draft=is_draft, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(ModelOptions):
    """A model file and how it is run. Raises InvalidConfig for what cannot be."""

    model: Path
    is_draft: bool = False
    """Whether it is a draft: where it is kept off a GPU, its target is taken to compute there."""
    mtp: bool = False
    """Whether it drafts for itself with the MTP head in its file, where it has one."""

    def __post_init__(self) -> None:
        for each in numbers_of(ModelOptions):
            low, high = each.metadata["low"], each.metadata["high"]
            value = getattr(self, each.name)
            if not low <= value <= high:
                raise InvalidConfig(_name(each), f"must be in [{low}, {high}], not {value}")
        for each in fields(ModelOptions):
            words = each.metadata["words"]
            if words and getattr(self, each.name) not in words:
                raise InvalidConfig(_name(each), f"must be one of {', '.join(filter(None, words))}")
        if self.kv_cache == "pool" and self.numerics == "exact":
            raise InvalidConfig("kv-cache", "must be streams for exact numerics")
        if read_tensor_split(self.tensor_split) and self.main_gpu >= 0:
            raise InvalidConfig("main-gpu", "uses one GPU alone; leave tensor-split out")


def _name(one: Field[Any]) -> str:
    return flag_of(one).removeprefix("--")


def read_tensor_split(text: str) -> tuple[float, ...]:
    """Return the shares of the GPUs; () for the empty text. Raises InvalidConfig."""
    try:
        shares = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InvalidConfig("tensor-split", f"must be numbers such as 3,1, not {text!r}") from None
    if len(shares) > _MOST_GPUS:
        raise InvalidConfig("tensor-split", f"at most {_MOST_GPUS} GPUs, not {len(shares)}")
    if shares and not (all(0 <= share <= 1e6 for share in shares) and sum(shares) > 0):
        raise InvalidConfig("tensor-split", f"must be in [0, 1e6] and not all zero, not {text!r}")
    return shares
