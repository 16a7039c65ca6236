"""Keeps each of llama.cpp's threads on a core of its own, where they are as many as the cores.

What wakes on such a machine takes a core from one of them. Left alone, the kernel then often
puts that one beside another on the same core, for a time slice in which all of them wait at the
next barrier, some hundreds of times a decode.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from typing import Any

from outrider.engine.llama_library import library_function

_MOST_THREADS = 512  # GGML_MAX_N_THREADS


class _Params(ctypes.Structure):
    """ggml_threadpool_params."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * _MOST_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
        ("unknown", ctypes.c_uint8 * 1024),  # what another version may write after these
    )


def cores_of_their_own(thread_counts: Collection[int], cores: Collection[int]) -> list[int]:
    """Return the cores for threads of decodes, one each; none where the kernel places them better.

    That is where some core is left for others, or where threads share cores anyway.
    """
    fits = all(count == len(cores) for count in thread_counts)
    is_known = all(core < _MOST_THREADS for core in cores)
    return sorted(cores) if fits and is_known and len(cores) > 1 else []


class PinnedThreads:
    """A thread pool of llama.cpp's whose threads each have one core."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def attach(self, context: Any) -> None:
        """Let a context decode with these threads from now on."""
        pointers = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
        attach = library_function("llama_attach_threadpool", None, *pointers)
        attach(context, self._pool, self._pool)

    def close(self) -> None:
        """Free the pool; no context that it is attached to may be left."""
        library_function("ggml_threadpool_free", None, ctypes.c_void_p)(self._pool)


def pinned_threads(cores: Collection[int]) -> PinnedThreads | None:
    """Return threads on these cores; None for no cores, or where llama.cpp cannot do that here."""
    if not cores:
        return None
    params = _Params()
    pointer = ctypes.c_void_p
    try:
        init = library_function("ggml_threadpool_params_init", None, pointer, ctypes.c_int)
        make = library_function("ggml_threadpool_new", pointer, pointer)
    except AttributeError:
        return None
    init(ctypes.byref(params), len(cores))
    if (params.n_threads, params.strict_cpu, params.paused) != (len(cores), False, False):
        return None  # another version's
    for core in cores:
        params.cpumask[core] = True
    params.strict_cpu = True
    pool = make(ctypes.byref(params))
    return PinnedThreads(pool) if pool else None
