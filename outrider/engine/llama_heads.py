"""Heads by llama.cpp, and its functions that they need, which its C headers do not have.

Those are C++ and exported, so that they are found under the names that compilers for Linux and
macOS give them. Nobody promises them: each is looked up, and what misses one says so.
"""

from __future__ import annotations

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from outrider.engine.branches import stem_count
from outrider.engine.head_draft import Pairs
from outrider.engine.heads import Head, feeds_layers, feeds_mtp, taught_layers
from outrider.engine.hidden_rows import HiddenRows, RowReader, Rows
from outrider.engine.llama_batch import Batch, RowBatch, matrix
from outrider.engine.llama_library import (
    last_error,
    library_function,
    ll,
    logits_address,
    recent_errors,
)
from outrider.engine.llama_loading import LlamaConfig, architecture_of, context_params
from outrider.engine.llama_vocabulary import Vocabulary
from outrider.engine.model import MAX_ROWS_OUT, Chunk, Layout, Row
from outrider.errors import DecodeFailed, InvalidConfig
from outrider.kept_rows import KeptSource
from outrider.row_window import HIDDEN_ROWS
from outrider.speculation import HeadKind

_Type = tuple[str, Any]  # how a name is mangled by it, and what ctypes takes

_CONTEXT: _Type = "P13llama_context", ll.llama_context_p_ctypes
_BOOL: _Type = "b", ctypes.c_bool
_INT: _Type = "i", ctypes.c_int32
_UINT: _Type = "j", ctypes.c_uint32
_ADDRESS = ctypes.c_void_p  # of floats: a pointer object for every decode would take longer

_FUNCTIONS: dict[str, tuple[Any, list[_Type]]] = {
    "llama_set_embeddings_nextn": (None, [_CONTEXT, _BOOL, _BOOL]),
    "llama_set_nextn_layer_offset": (None, [_CONTEXT, _INT]),
    "llama_get_embeddings_nextn": (_ADDRESS, [_CONTEXT]),
    "llama_set_embeddings_layer_inp": (None, [_CONTEXT, _UINT, _BOOL]),
    "llama_get_embeddings_layer_inp": (_ADDRESS, [_CONTEXT, _UINT]),
}
"""What each returns, and takes."""

_ROWS = ("llama_set_embeddings_nextn", "llama_get_embeddings_nextn")
_BLOCKS = ("llama_set_nextn_layer_offset",)
_LAYERS = ("llama_set_embeddings_layer_inp", "llama_get_embeddings_layer_inp")
_NEEDED = {
    HeadKind.MTP: (*_ROWS, *_BLOCKS),
    HeadKind.EAGLE3: (*_ROWS, *_LAYERS),
    HeadKind.DFLASH: _LAYERS,
    HeadKind.DSPARK: _LAYERS,
}
_ENCODED = 32  # rows that an encoder takes at once: it has room for the logits of as many


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


def last_rows(context: Any, of_wanted: bool = False) -> Callable[[], int]:
    """Turn on hidden rows, of all or of the wanted tokens; return what says where they are."""
    functions = head_functions()
    functions["llama_set_embeddings_nextn"](context, True, of_wanted)
    return partial(functions["llama_get_embeddings_nextn"], context)


def layer_input(context: Any, layer: int) -> Callable[[], int]:
    """Turn on what a layer reads of every token; return what says where that of a decode is.

    llama.cpp ends the process at the next decode where its graph does not keep it.
    """
    functions = head_functions()
    functions["llama_set_embeddings_layer_inp"](context, layer, True)
    return partial(functions["llama_get_embeddings_layer_inp"], context, layer)


_Context = TypeVar("_Context", bound="HeadContext")


class HiddenOutput:
    """The hidden rows of a target's sequences, taken from its context once a head reads them."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers: tuple[int, ...] | None = None  # whose inputs are kept; () the last row
        self._rows: HiddenRows | None = None
        self._reader: RowReader | None = None
        self._are_written = False  # for who teaches a head, too

    @property
    def last_row_width(self) -> int:
        """Numbers of a row that MTP heads read; 0: none is kept, or others are."""
        return self._columns if self._layers == () else 0

    def open(self, context: Any, sequence_count: int) -> None:
        """Take rows from this context, of sequences that are empty."""
        self._context, self._count = context, sequence_count
        if self._layers is not None:
            self._begin()

    def keep(self, layers: tuple[int, ...], reader: RowReader | None) -> None:
        """Keep the rows of what is decoded from now on, and show them to a reader.

        Those that are kept stay for another head that reads the same.
        """
        if layers != self._layers or reader is not None or self._reader is not None:
            self._layers, self._reader = layers, reader
            self._begin()

    def _begin(self) -> None:
        """Turn the rows on, and begin without any."""
        assert self._layers is not None
        self._columns = int(ll.llama_model_n_embd_out(self._model))
        last = int(ll.llama_model_n_layer(self._model))  # whose input is the last row
        self._sources = [
            layer_input(self._context, layer) if layer < last else last_rows(self._context)
            for layer in self._layers or (last,)
        ]
        self._rows = HiddenRows(self._count, len(self._sources) * self._columns, self._reader)

    def fitting(self, head: _Context) -> _Context:
        """Return a head; close it, and raise InvalidConfig, if it reads other rows than others."""
        are_others = self._are_written or self._layers == ()  # or are sent to draft services
        if are_others and head.target_layers != self._layers:
            head.close()
            wrong = f"{head.name} reads other rows than the target keeps for others"
            raise InvalidConfig("draft-model", wrong)
        return head

    def source(self, weights: str) -> KeptSource:
        """Return whose rows are kept, of these weights; where none are, those that teach a head.

        Of a model that does not show them no layers are kept. Raises InvalidConfig where its head
        reads others.
        """
        layers = taught_layers(int(ll.llama_model_n_layer(self._model)))
        if not feeds_layers(architecture_of(self._model)) or missing_functions(HeadKind.EAGLE3):
            layers = ()
        if layers:
            if self._layers is None:
                self.keep(layers, None)
            layers = self._layers or ()
            if len(layers) != 3:
                fault = "its own draft reads other rows than EAGLE-3: add --no-own-draft"
                raise InvalidConfig("keep-rows", fault)
            self._are_written = True
        width = int(ll.llama_model_n_embd_out(self._model))
        size = int(ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self._model)))
        return KeptSource(model=weights, layers=layers, width=width, vocabulary=size)

    def take(self, chunks: Sequence[Chunk], widths: Sequence[int]) -> None:
        """Keep the rows of what was just decoded; of a tree's nodes, which may go, none."""
        if self._rows is None:
            return
        found = [matrix(address(), sum(widths), self._columns) for address in self._sources]
        begin = 0
        for chunk, width in zip(chunks, widths, strict=True):
            count = stem_count(chunk) if chunk.parents else len(chunk.token_ids)
            first = max(0, count - HIDDEN_ROWS) if self._reader is None else 0
            rows = [each[begin + first : begin + count] for each in found]
            joined = np.concatenate(rows, axis=1) if len(rows) > 1 else rows[0]
            self._rows.note(chunk.sequence, chunk.position + first, joined)
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


@dataclass(frozen=True, slots=True)
class Opening:
    """A loaded head, and how its context is made."""

    model: Any
    head: Head
    config: LlamaConfig
    layout: Layout
    cells: int
    capacity: int
    """Tokens that a sequence can hold."""
    weight_bytes: int
    lender: Any = None
    """A context of the target's model, whose matrices a head without its own uses."""


class HeadContext(ABC):
    """A head in a context of its own, which is to be closed before the target's model is.

    A head that is alone in its file frees what was loaded for it, too.
    """

    first_token = 0

    def __init__(self, opening: Opening) -> None:
        """Raises InvalidConfig where there is no memory for it."""
        config, model, head = opening.config, opening.model, opening.head
        self._opening, self.model = opening, model  # llama.cpp's
        self.name, self.kind = config.path.stem, head.kind
        self.weight_bytes, self.target_layers = opening.weight_bytes, head.target_layers
        self.sequence_count, self.context = config.sequence_count, opening.capacity
        self.batch_rows, self.block_count = config.batch_rows, head.block_count
        cells, count = opening.cells, self.sequence_count
        params = context_params(config, model, opening.layout, cells, count)
        params.n_rs_seq, params.ctx_other = 0, opening.lender
        params.swa_full = True  # a window is cut freely, too
        if head.kind is HeadKind.MTP:
            params.ctx_type = ll.LLAMA_CONTEXT_TYPE_MTP
        recent_errors.clear()
        self.context_pointer = ll.llama_init_from_model(model, params)
        if not self.context_pointer:
            words = head.kind.words.partition(" ")[2]
            raise InvalidConfig("own-draft", f"no context for the {words}: {last_error()}")
        self.vocabulary = Vocabulary(model)
        self._size = self.vocabulary.size
        self._memory = ll.llama_get_memory(self.context_pointer)
        # Of each sequence, the position after what each block has read. A cell has a part of each
        # block, so a block that reads again what another has read finds the same cells.
        self._read = np.zeros((self.sequence_count, self.block_count), np.int64)

    def decode(self, pairs: Sequence[Pairs], block: int = 0) -> list[tuple[Sequence[Row], Rows]]:
        # llama.cpp computes streams together only where their numbers rise.
        order = sorted(range(len(pairs)), key=lambda i: pairs[i].sequence)
        rows = self._decode_rising([pairs[i] for i in order], block)
        found = dict(zip(order, rows, strict=True))
        return [found[i] for i in range(len(pairs))]

    @abstractmethod
    def _decode_rising(
        self, rising: Sequence[Pairs], block: int
    ) -> list[tuple[Sequence[Row], Rows]]:
        """Decode pairs of rising sequences."""

    def _decode(self, batch: Batch) -> None:
        code = ll.llama_decode(self.context_pointer, batch.struct)
        if code != 0:
            raise DecodeFailed(f"the head's llama_decode returned {code}: {last_error()}")

    def _logits(self, count: int) -> Rows:
        """Return a view of the logits of a decode: float32[count, vocabulary]."""
        logits = matrix(logits_address(self.context_pointer), count, self._size)
        if not math.isfinite(np.maximum.reduce(logits, axis=None)):
            raise DecodeFailed(
                f"the head in {self.name} computes no numbers: its weights may be damaged"
            )
        return logits

    def check(self, sequence: int, position: int, token_ids: Sequence[int], rows: int) -> None:
        """Assert what would end the process in C."""
        assert 0 <= sequence < self.sequence_count, f"sequence {sequence}"
        assert 0 <= position <= self.context - rows, "context overflow"
        assert min(token_ids) >= 0 and max(token_ids) < self._size, "token id"

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
        """Free the context, and what was loaded for it."""
        ll.llama_free(self.context_pointer)
        if self._opening.lender is not None:
            ll.llama_free(self._opening.lender)
        if self._opening.head.is_alone:
            ll.llama_model_free(self.model)


def check_feeds_mtp(path: Path, architecture: str) -> None:
    """Raise InvalidConfig where a model has no hidden rows for MTP heads."""
    fault = missing_functions(HeadKind.MTP)
    if not feeds_mtp(architecture):
        fault = f"{path} is of {architecture}, for which no MTP head drafts"
    if fault:
        raise InvalidConfig("hidden-rows", fault)


class LlamaHead(HeadContext):
    """A head that is chained on its own rows: MTP or EAGLE-3. Implements `Head`.

    EAGLE-3 reads the target's rows through its encoder. It is at the position of the token, where
    llama.cpp's driver has the one before: attention only sees distances.
    """

    lag, size = 1, 1

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        head = opening.head
        self.width = self.row_width = int(ll.llama_model_n_embd_out(opening.model))
        self._gives_wanted = head.gives_wanted
        self._address = last_rows(self.context_pointer, self._gives_wanted)
        self._batch = Batch(self.batch_rows, self.width)
        self._encoder: RowBatch | None = None
        if head.kind is HeadKind.EAGLE3:
            self.row_width, self.first_token = head.row_width, 1
            self._encoder = RowBatch(_ENCODED, self.row_width)

    def _decode_rising(
        self, rising: Sequence[Pairs], block: int
    ) -> list[tuple[Sequence[Row], Rows]]:
        if self._encoder is None:
            outs = [1] * len(rising)
        else:
            rising = self._encoded(rising)
            outs = [len(each.token_ids) for each in rising]  # its graph computes all of them
            if sum(outs) > MAX_ROWS_OUT:
                firsts = [each.part(0, -1) for each in rising if len(each.token_ids) > 1]
                self._run(firsts, [0] * len(firsts), block)
                rising, outs = [each.part(-1, None) for each in rising], [1] * len(rising)
        counts = self._run(rising, outs, block)
        ends = np.cumsum(outs if self._gives_wanted else counts)
        logits = self._logits(sum(outs))
        hidden = matrix(self._address(), ends[-1], self.width)
        lasts = np.cumsum(outs) - 1
        return [
            ([logits[last]], hidden[end - 1 : end]) for last, end in zip(lasts, ends, strict=True)
        ]

    def _run(self, pairs: Sequence[Pairs], outs: Sequence[int], block: int) -> list[int]:
        """Decode pairs, of which so many rows are wanted; return how many there are of each."""
        counts = [len(each.token_ids) for each in pairs]
        assert sum(counts) <= self.batch_rows, f"{sum(counts)} rows in one decode"
        for each, count in zip(pairs, counts, strict=True):
            assert 0 < count == len(each.rows), f"{len(each.rows)} rows"
            self.check(each.sequence, each.position, each.token_ids, count)
            self._read[each.sequence, block] = each.position + count
            if self.block_count > 1:
                ll.llama_memory_seq_rm(self._memory, each.sequence, each.position, -1)
        if self.block_count > 1:
            head_functions()["llama_set_nextn_layer_offset"](self.context_pointer, block)
        chunks = [Chunk(each.sequence, each.position, each.token_ids, 0) for each in pairs]
        self._batch.fill(chunks, counts, outs)
        np.concatenate([each.rows for each in pairs], out=self._batch.rows[: sum(counts)])
        self._decode(self._batch)
        return counts

    def _encoded(self, pairs: Sequence[Pairs]) -> list[Pairs]:
        """Return pairs with what the encoder makes of the target's rows."""
        if pairs[0].is_chained:
            return list(pairs)
        assert self._encoder is not None
        rows = np.concatenate([each.rows for each in pairs])
        found = np.empty((len(rows), self.width), np.float32)
        # It uses no positions, but llama.cpp wants such as could follow in the cache.
        position = int(ll.llama_memory_seq_pos_max(self._memory, 0)) + 1
        for first in range(0, len(rows), _ENCODED):
            part = rows[first : first + _ENCODED]
            self._encoder.put([Chunk(0, position, [0] * len(part), 0)], part)
            code = ll.llama_encode(self.context_pointer, self._encoder.struct)
            if code != 0:
                raise DecodeFailed(f"the head's llama_encode returned {code}: {last_error()}")
            found[first : first + len(part)] = matrix(self._address(), len(part), self.width)
        parts = np.split(found, np.cumsum([len(each.rows) for each in pairs])[:-1])
        return [replace(each, rows=part) for each, part in zip(pairs, parts, strict=True)]
