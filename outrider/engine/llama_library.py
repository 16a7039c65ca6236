"""llama.cpp's library as this process uses it: the one file that imports llama_cpp."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from pathlib import Path
from typing import Any

# libgomp reads these once, at load. Spinning for .5 to 1.5 ms bridges the time that an event loop
# takes one of the cores; longer, two engines on the same cores would starve each other.
if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "30000"

# What llama.cpp asserts is one line; with a debugger installed it would start that for a backtrace.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

import llama_cpp as ll

__all__ = [
    "init_backend",
    "last_error",
    "library_state",
    "ll",
    "logits_address",
    "offloads",
    "recent_errors",
    "system_info",
]

_address = ctypes.cast(ll.llama_get_logits, ctypes.c_void_p).value or 0
logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, ll.llama_context_p_ctypes)(_address)
"""llama_get_logits, as a number: a pointer object for every decode would take longer."""

_ERROR_LEVEL = 4
recent_errors: deque[str] = deque(maxlen=4)
"""What llama.cpp complained of, oldest first; a loader clears it before it begins."""

# llama.cpp continues without the lock and only warns, even where it was asked for one.
_NOT_LOCKED = (b"failed to mlock", b"mlock not supported")


@ll.llama_log_callback  # type: ignore[untyped-decorator]
def _keep_errors(level: int, text: bytes, _: Any) -> None:
    fatal = level == _ERROR_LEVEL or any(words in text for words in _NOT_LOCKED)
    if fatal and text.strip(b".\n "):
        recent_errors.append(text.decode("utf-8", "replace").strip().splitlines()[0])


def system_info() -> str:
    """Return the version of llama.cpp and what this build of it uses of the machine."""
    init_backend()
    features = ll.llama_print_system_info().decode("utf-8", "replace").strip()
    return f"llama.cpp {ll.llama_version().decode()} | {features}"


def library_state() -> str:
    """Return what is another once llama.cpp's libraries are: their names, sizes and times."""
    libraries = sorted(Path(ll.__file__).parent.rglob("*.so*"))
    libraries += sorted(Path(ll.__file__).parent.rglob("*.dylib"))
    states = [(path.name, path.stat()) for path in libraries]
    return repr([(name, state.st_size, state.st_mtime_ns) for name, state in states])


def init_backend() -> None:
    ll.llama_log_set(_keep_errors, ctypes.c_void_p(0))
    ll.llama_backend_init()


def last_error() -> str:
    return recent_errors[0] if recent_errors else "no reason given"


def offloads() -> bool:
    """Return whether this build of llama.cpp has a GPU to use."""
    init_backend()
    return bool(ll.llama_supports_gpu_offload())
