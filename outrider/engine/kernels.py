"""llama.cpp's kernels for the CPU: which plug-ins there are, and which of them this processor runs.

A build with plug-ins has a `libggml-cpu-NAME.so` for each kind of processor beside its library, and
a process loads one of them. Other builds have one set of kernels, which is part of the library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from pathlib import Path

AMX = frozenset({"sapphirerapids"})
"""Plug-ins whose kernels use AMX. What they compute is wrong for some models, so a file is tried
with them first (`kernel_trial.py`)."""

LLAMA_CMAKE = Path(__file__).parent.parent / "llama_build" / "llama.cmake"
"""What CMake reads to build llama.cpp with plug-ins; for CMAKE_PROJECT_llama_cpp_INCLUDE."""

_PREFIX = "libggml-cpu-"


def plugins(folder: Path) -> dict[str, Path]:
    """Return the plug-ins in a folder that this processor can run, by name, the best first.

    They say so themselves (`ggml_backend_score`); none where the kernels are part of the library.
    """
    scores: dict[str, int] = {}
    paths = {path.stem.removeprefix(_PREFIX): path for path in folder.glob(f"{_PREFIX}*.so")}
    for name, path in paths.items():
        try:
            scores[name] = ctypes.CDLL(str(path)).ggml_backend_score()
        except (OSError, AttributeError):  # of another architecture, or no plug-in
            continue
    names = sorted(scores, key=lambda name: (-scores[name], name))
    return {name: paths[name] for name in names if scores[name] > 0}


_FEATURES = {  # of a processor, as Linux names them, and what llama.cpp calls its kernels for them
    "avx2": "AVX2",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
}


def unused_features(flags: Collection[str], system_info: str, names: Collection[str]) -> list[str]:
    """Return what this processor has and llama.cpp has no kernels for, in llama.cpp's words.

    `flags` are the processor's, `system_info` is what llama.cpp says of the kernels in use, and
    `names` are the plug-ins that could be loaded instead. Pure.
    """
    missing = [its for flag, its in _FEATURES.items() if flag in flags]
    missing = [its for its in missing if f"{its} = 1" not in system_info]
    has_amx = any(name in AMX for name in names)
    return [its for its in missing if not (names and (its != "AMX_INT8" or has_amx))]


def processor_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the processor's abilities as Linux names them; none where it does not say."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(words.split())
    return frozenset()
