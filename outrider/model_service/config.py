"""How a model service runs its model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.engine.model import Numerics
from outrider.errors import InvalidConfig

NUMERICS = ("", "auto", "exact", "native")
NUMA = ("", "distribute", "isolate", "numactl")
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

KV_CACHES = ("", "auto", "pool", "streams")
FLASH_ATTENTION = ("", "auto", "on", "off")

LEAST_BATCH = 68
"""Rows of a verify of the longest draft, its pending token and the padding of `exact`."""

_MOST_GPUS = 16  # of llama.cpp


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """How a model service runs its model. Zero means: choose.

    The `exact` profile holds for one setting of all this; the check at load finds
    what breaks it and the service is then `native`. Threads broke nothing where it
    was measured: 1 to 4 gave equal bits, flash attention on or off (AVX-512 CPU).
    """

    model: Path
    alias: str = ""  # the name that others see; the file's name if empty
    n_gpu_layers: int = -1  # every layer where this build of llama.cpp has a GPU, else none
    main_gpu: int = 0  # above 0: the one GPU to use
    tensor_split: str = ""  # shares of the layers such as 3,1, GPU by GPU; else by free memory
    threads: int = 0  # the smaller of affinity and quota
    threads_batch: int = 0  # of a decode of more than one row; as `threads`
    batch: int = 512  # rows of a decode; a cancelled prompt waits for one
    context: int = 0  # tokens of one session; the model's training context, at most 4096
    sessions: int = 4  # caches at the same time; each costs the memory of a whole context
    numa: str = ""  # how threads are bound to nodes; not at all
    mmap: bool | None = None  # map the file: shared with other processes; else read it
    mlock: bool = False  # keep the weights in memory; refused where the limits forbid it
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"  # a quantised one needs flash attention, which is then on
    kv_cache: str = ""  # auto, pool or streams; pool: all sessions take cells from one
    flash_attention: str = ""  # auto, on or off
    cpu_kernels: str = ""  # the plug-in to compute with; empty: the best that is right for the file
    swa_full: bool = False  # sliding windows keep every cell, as exact numerics always have them
    snapshots: int = 4  # states for rollback, of each session; each is as large as the state
    nice: int = 0  # 19 takes what others leave
    numerics: str = ""  # auto, exact or native; a target chooses (auto), a draft is native
    embeddings: bool = False

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("n-gpu-layers", self.n_gpu_layers, -1, 2**16),
            ("main-gpu", self.main_gpu, 0, _MOST_GPUS - 1),
            ("threads", self.threads, 0, 512),
            ("threads-batch", self.threads_batch, 0, 512),
            ("batch", self.batch, LEAST_BATCH, 2**14),
            ("ctx", self.context, 0, 2**24),
            ("sessions", self.sessions, 1, 256),
            ("snapshots", self.snapshots, 0, 64),
            ("nice", self.nice, 0, 19),
        ):
            if not low <= value <= high:
                raise InvalidConfig(name, f"must be in [{low}, {high}], not {value}")
        if self.numerics == "law":
            raise InvalidConfig("numerics", "law is called native now")
        for name, word, known in (
            ("numa", self.numa, NUMA),
            ("numerics", self.numerics, NUMERICS),
            ("kv-cache", self.kv_cache, KV_CACHES),
            ("flash-attention", self.flash_attention, FLASH_ATTENTION),
            ("cache-type-k", self.cache_type_k, CACHE_TYPES),
            ("cache-type-v", self.cache_type_v, CACHE_TYPES),
        ):
            if word not in known:
                raise InvalidConfig(name, f"must be one of {', '.join(filter(None, known))}")
        if self.kv_cache == "pool" and self.numerics == "exact":
            raise InvalidConfig("kv-cache", "must be streams for exact numerics")
        if read_tensor_split(self.tensor_split) and self.main_gpu:
            raise InvalidConfig("main-gpu", "uses one GPU alone; leave tensor-split out")

    def profile(self, default: str) -> Numerics | None:
        """Return the numerics profile to run; None lets the costs decide."""
        asked = self.numerics or default
        return None if asked == "auto" else Numerics(asked)


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
