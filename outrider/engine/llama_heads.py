"""Heads by llama.cpp, and its functions that they need, which its C headers do not have.

Those are C++ and exported, so that they are found under the names that compilers for Linux and
macOS give them. Nobody promises them: each is looked up, and what misses one says so.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from outrider.engine.branches import stem_count
from outrider.engine.gguf_check import check_draft
from outrider.engine.head_draft import Pairs
from outrider.engine.heads import Beside, Head, fault_beside, feeds_mtp
from outrider.engine.hidden_rows import HiddenRows, Rows
from outrider.engine.llama_batch import Batch, matrix
from outrider.engine.llama_library import (
    init_backend,
    last_error,
    library_function,
    ll,
    logits_address,
    recent_errors,
)
from outrider.engine.llama_loading import (
    LlamaConfig,
    architecture_of,
    asked_context,
    cells_of,
    context_params,
    load_model,
)
from outrider.engine.llama_vocabulary import Vocabulary
from outrider.engine.model import Chunk, Layout, Row
from outrider.errors import DecodeFailed, InvalidConfig
from outrider.speculation import HeadKind
from outrider.threads import available_threads

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

_STREAMS = Layout()
_ROWS = ("llama_set_embeddings_nextn", "llama_get_embeddings_nextn")
_BLOCKS = ("llama_set_nextn_layer_offset",)
_LAYERS = (
    *("llama_set_embeddings_layer_inp", "llama_get_embeddings_layer_inp"),
    *("llama_model_target_layer_ids", "llama_model_target_layer_ids_n"),
)
_NEEDED = {
    HeadKind.MTP: (*_ROWS, *_BLOCKS),
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


def unusable(head: Head | None, path: Path) -> str:
    """Return why the head that a model's file carries is not used; empty where it is."""
    if head is None:
        return ""
    return f"{path} {head.fault}" if head.fault else missing_functions(head.kind)


def head_bytes(tensor_bytes: Mapping[str, int]) -> int:
    """Return the weights that an MTP head reads for a token: a block, and the output matrix."""
    blocks = tuple(
        {f"{name.partition('.nextn.')[0]}." for name in tensor_bytes if ".nextn." in name}
    )
    own = [size for name, size in tensor_bytes.items() if name.startswith(blocks)]
    output = tensor_bytes.get("output.weight") or tensor_bytes["token_embd.weight"]
    return sum(own) // max(1, len(blocks)) + output


def _output(context: Any, of_wanted: bool = False) -> Callable[[Any], int]:
    """Turn on hidden rows, of all or of the wanted tokens; return what says where they are."""
    functions = head_functions()
    functions["llama_set_embeddings_nextn"](context, True, of_wanted)
    found: Callable[[Any], int] = functions["llama_get_embeddings_nextn"]
    return found


class HiddenOutput:
    """The hidden rows of a target's sequences, taken from its context once a head reads them."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers: tuple[int, ...] | None = None  # whose inputs are kept; () the last row
        self._rows: HiddenRows | None = None

    @property
    def last_row_width(self) -> int:
        """Numbers of a row that MTP heads read; 0: none is kept, or others are."""
        return self._columns if self._layers == () else 0

    def open(self, context: Any, sequence_count: int) -> None:
        """Take rows from this context, of sequences that are empty."""
        self._context, self._count = context, sequence_count
        if self._layers is not None:
            self.keep(self._layers)

    def keep(self, layers: tuple[int, ...]) -> None:
        """Keep the rows of what is decoded from now on."""
        self._layers = layers
        self._columns = int(ll.llama_model_n_embd_out(self._model))
        self._address = _output(self._context)
        self._rows = HiddenRows(self._count, self._columns)

    def take(self, chunks: Sequence[Chunk], widths: Sequence[int]) -> None:
        """Keep the rows of what was just decoded; of a tree's nodes, which may go, none."""
        if self._rows is None:
            return
        rows, begin = matrix(self._address(self._context), sum(widths), self._columns), 0
        for chunk, width in zip(chunks, widths, strict=True):
            count = stem_count(chunk) if chunk.parents else len(chunk.token_ids)
            self._rows.note(chunk.sequence, chunk.position, rows[begin : begin + count])
            begin += width

    def of(self, sequence: int) -> tuple[int, Rows]:
        """Return the position of the first row that is kept of a sequence, and the rows."""
        assert self._rows is not None, "no rows are kept"
        return self._rows.of(sequence)

    def copy(self, source: int, destination: int) -> None:
        """Let a sequence have the rows of another."""
        if self._rows is not None:
            self._rows.copy(source, destination)

    def exchange(self, first: int, second: int) -> None:
        """Give each of two sequences the rows of the other."""
        if self._rows is not None:
            self._rows.exchange(first, second)


class LlamaHead:
    """The MTP head of a loaded model, in a context of its own. Implements `Head`."""

    target_layers: tuple[int, ...] = ()

    def __init__(
        self,
        model: Any,
        head: Head,
        config: LlamaConfig,
        layout: Layout,
        cells: int,
        capacity: int,
        weight_bytes: int,
    ) -> None:
        """Open a context with streams as the target's, which is to be closed before the model is.

        What is alone in its model frees that, too. Raises InvalidConfig where there is no memory.
        """
        self.model = model  # llama.cpp's
        self._own_model = model if head.is_alone else None
        self.name, self.kind = config.path.stem, head.kind
        self.weight_bytes = weight_bytes
        self.sequence_count, self.context = config.sequence_count, capacity
        self.batch_rows, self.block_count = config.batch_rows, head.block_count
        params = context_params(config, model, layout, cells, self.sequence_count)
        params.ctx_type, params.n_rs_seq = ll.LLAMA_CONTEXT_TYPE_MTP, 0
        params.swa_full = True  # a window is cut freely, too
        recent_errors.clear()
        self.context_pointer = ll.llama_init_from_model(model, params)
        if not self.context_pointer:
            raise InvalidConfig("own-draft", f"no context for the MTP head: {last_error()}")
        self.vocabulary = Vocabulary(model)
        self.width = int(ll.llama_model_n_embd_out(model))
        self._size = self.vocabulary.size
        self._memory = ll.llama_get_memory(self.context_pointer)
        self._gives_wanted = head.gives_wanted
        self._address = _output(self.context_pointer, self._gives_wanted)
        self._batch = Batch(self.batch_rows, self.width)
        # Of each sequence, the position after what each block has read. A cell has a part of each
        # block, so a block that reads again what another has read finds the same cells.
        self._read = np.zeros((self.sequence_count, self.block_count), np.int64)

    def decode(self, pairs: Sequence[Pairs], block: int = 0) -> list[tuple[Row, Rows]]:
        # llama.cpp computes streams together only where their numbers rise.
        order = sorted(range(len(pairs)), key=lambda i: pairs[i].sequence)
        rising = [pairs[i] for i in order]
        counts = [len(each.token_ids) for each in rising]
        assert sum(counts) <= self.batch_rows, f"{sum(counts)} rows in one decode"
        for each in rising:
            assert 0 <= each.sequence < self.sequence_count, f"sequence {each.sequence}"
            assert 0 < len(each.token_ids) == len(each.rows), f"{len(each.rows)} rows"
            assert each.position + len(each.token_ids) <= self.context, "context overflow"
            assert min(each.token_ids) >= 0 and max(each.token_ids) < self._size, "token id"
            self._read[each.sequence, block] = each.position + len(each.token_ids)
            if self.block_count > 1:
                ll.llama_memory_seq_rm(self._memory, each.sequence, each.position, -1)
        if self.block_count > 1:
            head_functions()["llama_set_nextn_layer_offset"](self.context_pointer, block)
        chunks = [Chunk(each.sequence, each.position, each.token_ids, 1) for each in rising]
        self._batch.fill(chunks, counts, [1] * len(chunks))
        np.concatenate([each.rows for each in rising], out=self._batch.rows[: sum(counts)])
        code = ll.llama_decode(self.context_pointer, self._batch.struct)
        if code != 0:
            raise DecodeFailed(f"the head's llama_decode returned {code}: {last_error()}")
        logits = matrix(logits_address(self.context_pointer), len(rising), self._size)
        if not math.isfinite(np.maximum.reduce(logits, axis=None)):
            raise DecodeFailed(
                f"the head in {self.name} computes no numbers: its weights may be damaged"
            )
        ends = np.cumsum([1] * len(counts) if self._gives_wanted else counts)
        hidden = matrix(self._address(self.context_pointer), ends[-1], self.width)
        found = {i: (logits[n], hidden[ends[n] - 1 : ends[n]]) for n, i in enumerate(order)}
        return [found[i] for i in range(len(pairs))]

    def held(self, sequence: int, block_count: int = 1) -> range:
        first = int(ll.llama_memory_seq_pos_min(self._memory, sequence))
        return range(max(0, first), int(self._read[sequence, :block_count].min()))

    def truncate(self, sequence: int, token_count: int) -> int:
        np.minimum(self._read[sequence], token_count, out=self._read[sequence])
        ll.llama_memory_seq_rm(self._memory, sequence, token_count or -1, -1)
        return token_count

    def copy_prefix(self, source: int, destination: int, token_count: int) -> int:
        ll.llama_memory_seq_rm(self._memory, destination, -1, -1)
        # Between streams llama.cpp copies whole sequences only.
        ll.llama_memory_seq_cp(self._memory, source, destination, -1, -1)
        self._read[destination] = self._read[source]
        return self.truncate(destination, token_count)

    def close(self) -> None:
        """Free the context, and a model of its own."""
        ll.llama_free(self.context_pointer)
        if self._own_model is not None:
            ll.llama_model_free(self._own_model)


def check_feeds_mtp(path: Path, architecture: str) -> None:
    """Raise InvalidConfig where a model has no hidden rows for MTP heads."""
    fault = missing_functions(HeadKind.MTP)
    if not feeds_mtp(architecture):
        fault = f"{path} is of {architecture}, for which no MTP head drafts"
    if fault:
        raise InvalidConfig("hidden-rows", fault)


def beside(model: Any, names: Sequence[bytes]) -> Beside:
    """Return what a head must fit that drafts for a loaded model with tokens of these names."""
    architecture = architecture_of(model)
    layers, width = ll.llama_model_n_layer(model), ll.llama_model_n_embd_out(model)
    return Beside(architecture, int(layers), int(width), names)


def config_beside(file: LlamaConfig, target: LlamaConfig, capacity: int) -> LlamaConfig:
    """Return how to load a head for a target whose sequences hold so many tokens."""
    return replace(
        file,
        context=capacity,
        sequence_count=target.sequence_count,
        thread_count=file.thread_count or target.thread_count,
    )


def open_head_file(
    config: LlamaConfig, layout: Layout = _STREAMS, target: Beside | None = None
) -> LlamaHead:
    """Return the head in a file of its own, for a target in this process or in another one.

    Its sequences hold the tokens of the configured context. Raises InvalidConfig with one line that
    says what is wrong.
    """
    init_backend()
    checked, path = check_draft(config.path), config.path
    head = checked.head
    if head is None or not head.is_alone:
        raise InvalidConfig("draft-model", f"{path} is no head in a file of its own")
    fault = head.fault or (fault_beside(head, target) if target is not None else "")
    if fault:
        raise InvalidConfig("draft-model", f"{path} {fault}")
    if fault := missing_functions(head.kind):
        raise InvalidConfig("draft-model", fault)
    config = replace(config, thread_count=config.thread_count or available_threads())
    model = load_model(config, checked.files, with_mtp=True)
    try:
        if target is not None and Vocabulary(model).names() != target.names:
            raise InvalidConfig("draft-model", f"{path} has other tokens than the target")
        context = asked_context(config, ll.llama_model_n_ctx_train(model), None)
        opening = layout, cells_of(context), context, head_bytes(checked.tensor_bytes)
        return LlamaHead(model, head, config, *opening)
    except InvalidConfig:
        ll.llama_model_free(model)
        raise
