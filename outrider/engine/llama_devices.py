"""The GPUs that this build of llama.cpp can use, as ggml lists them."""

from __future__ import annotations

import ctypes
from typing import Any

from outrider.engine.footprint import Gpu
from outrider.engine.llama_library import init_backend, library_function

_GPU, _INTEGRATED_GPU = 1, 2  # of ggml_backend_dev_type


def gpus() -> list[Gpu]:
    """Return the GPUs that a model is put on: integrated ones only where there are no others."""
    init_backend()
    count = library_function("ggml_backend_dev_count", ctypes.c_size_t)()
    get = library_function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    kind = library_function("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    devices = [get(i) for i in range(count)]
    kinds = [kind(device) for device in devices]
    wanted = _GPU if _GPU in kinds else _INTEGRATED_GPU
    return [_describe(device) for device, its in zip(devices, kinds, strict=True) if its == wanted]


def _describe(device: Any) -> Gpu:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    sizes = ctypes.POINTER(ctypes.c_size_t)
    library_function("ggml_backend_dev_memory", None, ctypes.c_void_p, sizes, sizes)(
        device, ctypes.byref(free), ctypes.byref(total)
    )
    name, card = (
        library_function(f"ggml_backend_dev_{what}", ctypes.c_char_p, ctypes.c_void_p)(device)
        for what in ("name", "description")
    )
    return Gpu(_text(name), _text(card), free.value, total.value)


def _text(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "replace").strip()
