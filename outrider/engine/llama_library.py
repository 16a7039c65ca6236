"""llama.cpp's library as this process uses it: the one file that imports llama_cpp."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from outrider.engine import kernels
from outrider.engine.cuda_driver import driver_advice
from outrider.errors import InvalidConfig

# libgomp reads these once, at load. Spinning for .5 to 1.5 ms bridges the time that an event loop
# takes one of the cores; longer, two engines on the same cores would starve each other.
if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "30000"

# What llama.cpp asserts is one line; with a debugger installed it would start that for a backtrace.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

import llama_cpp as ll

__all__ = [
    "cpu_plugins",
    "gpu_fault",
    "has_untried_amx",
    "init_backend",
    "kernels_in_use",
    "last_error",
    "library_function",
    "library_state",
    "ll",
    "log_lines",
    "logits_address",
    "offloads",
    "recent_errors",
    "system_info",
    "unused_features",
    "use_kernels",
]

_address = ctypes.cast(ll.llama_get_logits, ctypes.c_void_p).value or 0
logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, ll.llama_context_p_ctypes)(_address)
"""llama_get_logits, as a number: a pointer object for every decode would take longer."""

_ERROR_LEVEL = 4
recent_errors: deque[str] = deque(maxlen=4)
"""What llama.cpp complained of, oldest first; a loader clears it before it begins."""

# llama.cpp continues without the lock and only warns, even where it was asked for one.
_NOT_LOCKED = (b"failed to mlock", b"mlock not supported")


_listeners: list[list[str]] = []
"""Who hears all that llama.cpp says."""


@ll.llama_log_callback  # type: ignore[untyped-decorator]
def _hear(level: int, text: bytes, _: Any) -> None:
    for heard in _listeners:
        heard.append(text.decode("utf-8", "replace"))
    fatal = level == _ERROR_LEVEL or any(words in text for words in _NOT_LOCKED)
    if fatal and text.strip(b".\n "):
        recent_errors.append(text.decode("utf-8", "replace").strip().splitlines()[0])


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """Collect what llama.cpp says meanwhile, of which most is for those who debug it."""
    heard: list[str] = []
    _listeners.append(heard)
    try:
        yield heard
    finally:
        _listeners.remove(heard)


_LIBRARIES = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(ll.__file__).parent / "lib")
"""Where the binding loads llama.cpp from, and what is beside it."""

_kernels: dict[str, str] = {}
"""The plug-in for the CPU that this process computes with, and why it is that one; none before
`init_backend`, and where kernels are part of the library."""

_gpu_faults: list[str] = []
"""What llama.cpp complained of while it loaded plug-ins for GPUs."""


def system_info() -> str:
    """Return the version of llama.cpp and what this build of it uses of the machine."""
    init_backend()
    return f"llama.cpp {ll.llama_version().decode()} | {_features()}"


def _features() -> str:
    return str(ll.llama_print_system_info().decode("utf-8", "replace").strip())


def library_state() -> str:
    """Return what is another once llama.cpp's libraries are: their names, sizes and times."""
    libraries = sorted([*_LIBRARIES.rglob("*.so*"), *_LIBRARIES.rglob("*.dylib")])
    states = [(path.name, path.stat()) for path in libraries]
    return repr([(name, state.st_size, state.st_mtime_ns) for name, state in states])


@cache
def cpu_plugins() -> dict[str, Path]:
    """Return the kernels for the CPU that can be chosen here, the best first; see `kernels.py`."""
    return kernels.plugins(_LIBRARIES)


@cache
def init_backend() -> None:
    """Start llama.cpp, with the best kernels that are right for every model."""
    ll.llama_log_set(_hear, ctypes.c_void_p(0))
    ll.llama_backend_init()
    if not cpu_plugins():
        return
    for path in sorted(_LIBRARIES.glob("libggml-*.so")):
        if not path.name.startswith(("libggml-base", "libggml-cpu")):
            recent_errors.clear()
            _plugin_loader()(os.fsencode(path))  # of a GPU
            _gpu_faults.extend(recent_errors)
    right = [name for name in cpu_plugins() if name not in kernels.AMX]
    _load_kernels((right or list(cpu_plugins()))[0])


def use_kernels(name: str, reason: str = "") -> None:
    """Compute with these kernels, by the name of their plug-in. No model may be loaded.

    Raises InvalidConfig for kernels that are not there.
    """
    init_backend()
    if name not in cpu_plugins():
        known = ", ".join(cpu_plugins()) or "no plug-ins: kernels are part of its library"
        raise InvalidConfig("cpu-kernels", f"llama.cpp has {known} here, and not {name}")
    if name not in _kernels:
        library_function("ggml_backend_unload", None, ctypes.c_void_p)(
            library_function("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p)(b"CPU")
        )
        _kernels.clear()
        _load_kernels(name)
    _kernels[name] = reason


def kernels_in_use() -> str:
    """Return the plug-in that this process computes with, and why; in words, for people."""
    init_backend()
    unused = unused_features()
    words = _words_of_kernels() or "those of its library"
    if unused:
        words += f", none for {', '.join(unused)} of this processor: see outrider doctor"
    if has_untried_amx():
        words += ", with AMX, which nobody tried for this file: see outrider doctor"
    return words


def has_untried_amx() -> bool:
    """Return whether this library computes every file with AMX, as it has nothing else."""
    return not cpu_plugins() and "AMX_INT8 = 1" in _features()


def unused_features() -> list[str]:
    """Return what this processor has and llama.cpp has no kernels for."""
    return kernels.unused_features(kernels.processor_flags(), _features(), cpu_plugins())


def _words_of_kernels() -> str:
    return "".join(f"{name}: {reason}" if reason else name for name, reason in _kernels.items())


def _load_kernels(name: str) -> None:
    path = cpu_plugins()[name]
    if not _plugin_loader()(os.fsencode(path)):
        raise InvalidConfig("cpu-kernels", f"{path.name} cannot be loaded: {last_error()}")
    _kernels[name] = ""


def _plugin_loader() -> Any:
    return library_function("ggml_backend_load", ctypes.c_void_p, ctypes.c_char_p)


def library_function(name: str, returned: Any, *taken: Any) -> Any:
    """Return a function that the binding leaves out, of llama.cpp's libraries as they are loaded.

    With the types of what it returns and takes. Raises AttributeError where there is none.
    """
    try:
        function = ll.llama_cpp._lib[name]  # libllama's, or of what it is linked to
    except AttributeError:
        if not _kernels:
            raise
        [loaded] = _kernels
        function = ctypes.CDLL(str(cpu_plugins()[loaded]))[name]
    function.argtypes, function.restype = taken, returned
    return function


def last_error() -> str:
    return recent_errors[0] if recent_errors else "no reason given"


def offloads() -> bool:
    """Return whether this build of llama.cpp has a GPU to use."""
    init_backend()
    return bool(ll.llama_supports_gpu_offload())


def gpu_fault() -> str:
    """Return why a build with a plug-in for GPUs finds none; empty where it does, or has none."""
    if offloads() or not _gpu_faults:
        return ""
    return driver_advice(_gpu_faults[0]) or _gpu_faults[0]
