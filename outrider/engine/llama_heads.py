"""The functions of llama.cpp that heads need, which its C headers do not have.

They are C++ and exported, so that they are found under the names that compilers for Linux and
macOS give them. Nobody promises them: each is looked up, and what misses one says so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from typing import Any

from outrider.engine.heads import HeadKind
from outrider.engine.llama_library import library_function, ll

_Type = tuple[str, Any]  # how a name is mangled by it, and what ctypes takes

_CONTEXT: _Type = "P13llama_context", ll.llama_context_p_ctypes
_MODEL: _Type = "PK11llama_model", ll.llama_model_p_ctypes
_BOOL: _Type = "b", ctypes.c_bool
_INT: _Type = "i", ctypes.c_int32
_UINT: _Type = "j", ctypes.c_uint32
_FLOATS: _Type = "Pf", ctypes.c_void_p
_ADDRESS = ctypes.c_void_p  # of floats: a pointer object for every decode would take longer

_FUNCTIONS: dict[str, tuple[Any, list[_Type]]] = {
    "llama_set_embeddings_nextn": (None, [_CONTEXT, _BOOL, _BOOL]),
    "llama_set_nextn_layer_offset": (None, [_CONTEXT, _INT]),
    "llama_get_embeddings_nextn": (_ADDRESS, [_CONTEXT]),
    "llama_get_embeddings_nextn_ith": (_ADDRESS, [_CONTEXT, _INT]),
    "llama_set_embeddings_layer_inp": (None, [_CONTEXT, _UINT, _BOOL]),
    "llama_get_embeddings_layer_inp": (_ADDRESS, [_CONTEXT, _UINT]),
    "llama_get_ctx_other": (ll.llama_context_p_ctypes, [_CONTEXT]),
    "llama_model_dflash_selector_top_k": (ctypes.c_int32, [_MODEL]),
    "llama_model_target_layer_ids": (ctypes.POINTER(ctypes.c_int32), [_MODEL]),
    "llama_model_target_layer_ids_n": (ctypes.c_uint32, [_MODEL]),
    "llama_model_get_tok_embd": (ctypes.c_uint32, [_MODEL, _FLOATS]),
}
"""What each returns, and takes."""

_ROWS = ("llama_set_embeddings_nextn", "llama_get_embeddings_nextn")
_LAYERS = (
    *("llama_set_embeddings_layer_inp", "llama_get_embeddings_layer_inp"),
    *("llama_model_target_layer_ids", "llama_model_target_layer_ids_n"),
)
_NEEDED = {
    HeadKind.MTP: _ROWS,
    HeadKind.EAGLE3: (*_ROWS, *_LAYERS),
    HeadKind.DFLASH: _LAYERS,
    HeadKind.DSPARK: (*_ROWS, *_LAYERS),
}


def mangled(name: str) -> str:
    """Return the name of a function under which a C++ compiler exports it."""
    _, taken = _FUNCTIONS[name]
    return f"_Z{len(name)}{name}" + "".join(code for code, _ in taken)


@cache
def head_functions() -> dict[str, Any]:
    """Return those of the functions that llama.cpp has here, by their plain names."""
    return {name: found for name in _FUNCTIONS if (found := _find(name)) is not None}


def _find(name: str) -> Any:
    returned, taken = _FUNCTIONS[name]
    for exported in (name, mangled(name)):
        try:
            return library_function(exported, returned, *(kind for _, kind in taken))
        except AttributeError:
            continue
    return None


def missing_functions(kind: HeadKind, found: Iterable[str] | None = None) -> str:
    """Return why this llama.cpp cannot run a kind of head; empty where it can."""
    names = set(head_functions() if found is None else found)
    missing = [name for name in _NEEDED[kind] if name not in names]
    if not missing:
        return ""
    return f"this llama.cpp cannot run {kind.words}: it has no {', '.join(missing)}"
