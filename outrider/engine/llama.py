"""Hosts a GGUF model with llama.cpp's low-level API.

Nothing reaches C unchecked: llama.cpp aborts the process on an id outside the
vocabulary, a sequence outside its range or a batch over its limits.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.engine.branches import check_tree, ends_of
from outrider.engine.gguf_check import check_gguf
from outrider.engine.hidden_rows import RowReader, Rows
from outrider.engine.identity import FilesDigest, identity_of
from outrider.engine.llama_batch import Batch, is_token, matrix, wanted_rows
from outrider.engine.llama_block_heads import LlamaBlockHead
from outrider.engine.llama_embedder import Embedder
from outrider.engine.llama_head_files import config_beside, open_head_file
from outrider.engine.llama_heads import (
    HiddenOutput,
    LlamaHead,
    Opening,
    check_feeds_mtp,
    head_bytes,
    unusable,
)
from outrider.engine.llama_library import (
    init_backend,
    last_error,
    ll,
    logits_address,
    recent_errors,
)
from outrider.engine.llama_loading import (
    LlamaConfig,
    architecture_of,
    asked_context,
    cells_of,
    check_added_tokens,
    context_params,
    cores_of,
    facts_of,
    is_on_gpu,
    is_recurrent,
    layouts_of,
    load_model,
    sequences_of,
    thread_choices_of,
)
from outrider.engine.llama_memory import LlamaMemory, find_rollback
from outrider.engine.llama_sampling import ChainSampler, Samplers
from outrider.engine.llama_threads import pinned_threads
from outrider.engine.llama_vocabulary import Vocabulary
from outrider.engine.model import (
    MAX_MULTIPLE,
    MAX_PADDED,
    MAX_ROWS_OUT,
    Chunk,
    Layout,
    ModelDescription,
    NoRoom,
    Rollback,
    Row,
)
from outrider.engine.repeated_cells import repeat_cells
from outrider.engine.rollback import RollbackMemory
from outrider.errors import DecodeFailed, InvalidConfig, InvalidRequest
from outrider.kept_rows import KeptSource
from outrider.sampling import SamplingParameters
from outrider.trees import MAX_LEAVES

_MOST_REPEATED = 256 << 20
"""Bytes of a state whose cells are repeated: 2,048 tokens of an 8B of the Llama 3 family (128 KiB
each). It is in memory twice for a moment."""


class LlamaModel:
    """A GGUF model and its context. Implements the `Model` seam.

    Raises InvalidConfig when the file cannot be used.
    """

    def __init__(self, config: LlamaConfig) -> None:
        init_backend()
        self._config = config
        self._ctx: Any = None
        checked = check_gguf(config.path)
        with FilesDigest(checked.files) as files:
            self.head_fault = unusable(checked.head, config.path) if config.mtp else ""
            self._head = checked.head if config.mtp and not self.head_fault else None
            self.has_head = self._head is not None
            self._model = load_model(config, checked.files, with_mtp=self.has_head)
            self._head_bytes = head_bytes(checked.tensor_bytes) if self.has_head else 0
            self._vocabulary = Vocabulary(self._model)
            self._hidden = HiddenOutput(self._model)
            self._size = self._vocabulary.size
            try:
                check_added_tokens(config.path, self._vocabulary.describe())
                self._is_on_gpu = is_on_gpu(config, self._model)
                self._thread_choices = thread_choices_of(config, self._is_on_gpu)
                if self._thread_choices:
                    self._config = config = replace(config, thread_count=self._thread_choices[0])
                trained, learned = ll.llama_model_n_ctx_train(self._model), checked.position_count
                self._cells = cells_of(asked := asked_context(config, trained, learned))
                self._positions = min(self._cells, learned or self._cells)
                self._capacity = min(asked, self._positions - (MAX_MULTIPLE - 1))
                settings = self._capacity, config.cache_type_k, config.cache_type_v
                self._weights = files.digest()
                self._identity = identity_of(self._weights, settings)
                self._window = ll.llama_model_n_swa(self._model)  # tokens it slides over, or 0
                self._is_recurrent = is_recurrent(self._model)
                # Among cells of others, holes in a window would not show; llama.cpp would
                # choose long factors by the size of the whole pool; and a state is a sequence's.
                can_pool = not (self._window or checked.has_long_factors or self._is_recurrent)
                self._layouts = layouts_of(config, can_pool)
                self._rollback = Rollback.RESTART  # until it is found out what it can
                self._batch = Batch(config.batch_rows)  # filled for each decode, never kept
                self.pad_multiple = config.pad_multiple
                self._threads = pinned_threads(cores_of(config))
                self.open(self._layouts[0])
                self._rollback = find_rollback(self, self._expected_rollback())
                self.open_memory(self._rollback)
                if config.hidden_rows:
                    check_feeds_mtp(config.path, architecture_of(self._model))
                    self.keep_rows(())
            except (InvalidConfig, DecodeFailed):
                if self._ctx is not None:
                    ll.llama_free(self._ctx)
                ll.llama_model_free(self._model)
                raise
        self._samplers = Samplers(self._vocabulary.pointer, self._size, self._capacity)
        self._embedder: Embedder | None = None  # made for the first embedding

    def open(self, layout: Layout) -> None:
        assert layout in self._layouts, f"{layout}"
        if self._ctx is not None:
            ll.llama_free(self._ctx)
            self._ctx = None
        self._ctx = self._new_context(layout)
        self._layout = layout
        self._memory = ll.llama_get_memory(self._ctx)
        # Tokens that recurrent memory can be cut by; 0 where llama.cpp has no snapshots of it.
        self.snapshot_count = int(ll.llama_n_rs_seq(self._ctx))
        self._session_count = sequences_of(self._config, layout)
        self.open_memory(self._rollback)

    def use_threads(self, count: int) -> None:
        assert count in self._thread_choices, f"{count} threads"
        self._config = replace(self._config, thread_count=count)
        ll.llama_set_n_threads(self._ctx, count, self._config.batch_thread_count or count)
        self._description = self._describe()

    def _expected_rollback(self) -> Rollback:
        """Return how sequences should come to hold less; whether they do is to be tried."""
        if self._is_recurrent:
            return Rollback.SNAPSHOTS
        return Rollback.WINDOW if self._window and not self._config.full_window else Rollback.FULL

    def open_memory(self, rollback: Rollback) -> None:
        """Begin with empty sequences that come to hold less in this way."""
        count = self._session_count + _branch_count(self._layout)
        for sequence in range(count):
            ll.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._states = LlamaMemory(self._ctx)
        if rollback is Rollback.SNAPSHOTS:
            for first in range(0, count, self._config.batch_rows):
                last = min(count, first + self._config.batch_rows)
                chunks = [Chunk(sequence, 0, [0], 0) for sequence in range(first, last)]
                self._batch.fill(chunks, [1] * len(chunks), [0] * len(chunks))
                if ll.llama_decode(self._ctx, self._batch.struct) != 0:
                    raise DecodeFailed(f"sequences have no states of their own: {last_error()}")
            self._states.keep_cells()
        # Sequences of sessions come first.
        self._sequences = RollbackMemory(
            self._states,
            rollback,
            count,
            window=0 if self._is_recurrent else self._window,
            reach=self._config.batch_rows,
            snapshot_count=self.snapshot_count,
        )
        self._held = self._sequences.held
        # Once, as jobs ask for it between two decodes, and other threads while one is opened.
        self._description = self._describe()

    def _new_context(self, layout: Layout) -> Any:
        count = sequences_of(self._config, layout) + _branch_count(layout)
        params = context_params(self._config, self._model, layout, self._cells, count)
        recent_errors.clear()
        context = ll.llama_init_from_model(self._model, params)
        if not context:
            raise InvalidConfig("ctx", f"no context of {params.n_ctx} cells: {last_error()}")
        if self._threads is not None:
            self._threads.attach(context)
        self._hidden.open(context, count)
        return context

    def open_head(self, file: LlamaConfig | None = None) -> LlamaHead | LlamaBlockHead:
        """Return the head that the model was loaded with, or the one in a file of its own.

        Any thread may open it, and close it, before the model is closed. Raises InvalidConfig where
        it reads other models, or other rows than others do, or there is no memory for it.
        """
        layout = Layout(False, self._layout.flash_attention)
        head: LlamaHead | LlamaBlockHead
        if file is not None:
            its, names = config_beside(file, self._config, self._capacity), self._vocabulary.names()
            head = self._hidden.fitting(open_head_file(its, layout, self._model, names))
        else:
            assert self._head is not None, "loaded without a head"
            mine = self._model, self._head, self._config, layout, self._cells, self._capacity
            head = LlamaHead(Opening(*mine, self._head_bytes))
        if self._threads is not None:
            self._threads.attach(head.context_pointer)
        return head

    def keep_rows(self, layers: tuple[int, ...], reader: RowReader | None = None) -> None:
        """Keep the rows of what is decoded from now on: of these layers' inputs, or the last."""
        self._hidden.keep(layers, reader)
        self._description = replace(self._description, hidden_row_width=self._hidden.last_row_width)

    def kept_source(self) -> KeptSource:
        """Return whose rows are kept, of a head's layers or else chosen ones: `HiddenOutput`."""
        return self._hidden.source(self._weights.hex())

    def hidden_rows(self, sequence: int) -> tuple[int, Rows]:
        """Return the position of the first row that is kept of a sequence, and the rows."""
        return self._hidden.of(sequence)

    # --- description ---

    def describe(self) -> ModelDescription:
        return self._description

    def _describe(self) -> ModelDescription:
        return ModelDescription(
            name=self._config.path.stem,
            identity=self._identity,
            hidden_row_width=self._hidden.last_row_width,
            context=self._capacity,
            sequence_count=self._session_count,
            batch_rows=self._config.batch_rows,
            vocabulary=self._vocabulary.describe(),
            rollback=self._sequences.kind,
            snapshot_count=self.snapshot_count,
            window=self._window,
            can_exchange=not (self._window or self._is_recurrent or self._layout.is_pool),
            thread_count=self._config.thread_count,
            thread_choices=self._thread_choices,
            is_on_gpu=self._is_on_gpu,
            **facts_of(self._model),
            layouts=self._layouts,
            layout=self._layout,
            pool_cells=self._cells * self._config.sequence_count if self._layout.is_pool else None,
            branch_sequences=tuple(range(self._session_count, len(self._held))),
        )

    def token_texts(self) -> list[bytes]:
        return self._vocabulary.texts()

    def token_names(self) -> list[bytes]:
        return self._vocabulary.names()

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        return self._vocabulary.tokenize(text, add_special, parse_special)

    # --- the cache ---

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        if len(chunks) == 1:
            return self._decode_rising(chunks)
        whole = [*chunks, *self._fillers(chunks)]
        # llama.cpp computes streams together only where their numbers rise one by one.
        order = sorted(range(len(whole)), key=lambda i: whole[i].sequence)
        rows = self._decode_rising([whole[i] for i in order])
        for filler in whole[len(chunks) :]:
            self._cut(filler.sequence, filler.position)
            self._sequences.note(filler.sequence, filler.position, 0)
        found = dict(zip(order, rows, strict=True))
        return [found[i] for i in range(len(chunks))]

    def _fillers(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Return a token for each sequence that only fills the decode, where it has room for it."""
        named = [sequence for chunk in chunks for sequence in chunk.fillers]
        assert not named or self._sequences.kind is Rollback.FULL, "what fills a decode is cut"
        places = [(sequence, self._held[sequence]) for sequence in named]
        return [Chunk(s, held, [0], 1) for s, held in places if held < self._capacity]

    def _decode_rising(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        """Decode chunks of rising sequences."""
        pads = self.pad_multiple > 1 or self._sequences.keeps_checkpoints
        are_tokens = not pads and all(map(is_token, chunks))
        return self._decode_tokens(chunks) if are_tokens else self._decode(chunks)

    def _decode_tokens(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        """Decode a token of each as `_decode` does any: most decodes are that, and all wait."""
        assert len(chunks) <= min(self._config.batch_rows, MAX_ROWS_OUT), f"{len(chunks)} rows"
        before = -1
        for row, chunk in enumerate(chunks):
            [token_id], sequence, position = chunk.token_ids, chunk.sequence, chunk.position
            assert before < sequence < len(self._held), f"sequence {sequence} after {before}"
            assert position == self._held[sequence], f"position {position}"
            assert position < self._capacity, "context overflow"
            assert 0 <= token_id < self._size, "token id outside the vocabulary"
            if not position:
                self._states.begin(sequence)
            self._batch.put_token(row, token_id, position, sequence)
            before = sequence
        self._run(chunks, [1] * len(chunks))
        self._sequences.note_decoded()
        for chunk in chunks:
            self._sequences.note(chunk.sequence, chunk.position + 1, 1)
        return [[row] for row in self._rows_of(chunks, len(chunks))]

    def _decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        widths, outs = self._shapes(chunks)
        self._check(chunks, widths, outs)
        if self._sequences.keeps_checkpoints:
            chunks = self._decode_leads(chunks)
            widths, outs = self._shapes(chunks)
        for chunk in chunks:
            for branch in chunk.branches:
                self.copy_prefix(chunk.sequence, branch, chunk.position)
        for chunk in chunks:
            if not chunk.position:
                self._states.begin(chunk.sequence)
        self._batch.fill(chunks, widths, outs)
        self._run(chunks, widths)
        self._sequences.note_decoded()
        for chunk, width in zip(chunks, widths, strict=True):
            count = len(chunk.token_ids)
            for sequence, end in ends_of(chunk):
                if width > count:
                    self._cut(sequence, end)
                self._sequences.note(sequence, end, count)
        return wanted_rows(chunks, widths, outs, self._rows_of(chunks, sum(outs)))

    def _run(self, chunks: Sequence[Chunk], widths: Sequence[int]) -> None:
        """Decode what is in the batch. Raises NoRoom and DecodeFailed."""
        code = ll.llama_decode(self._ctx, self._batch.struct)
        if code != 0:
            # After some errors a part of the batch stays in memory.
            self._take_back(chunks)
            if code == 1:
                raise NoRoom
            raise DecodeFailed(f"llama_decode returned {code}: {last_error()}", llamaCode=code)
        self._hidden.take(chunks, widths)

    def _rows_of(self, chunks: Sequence[Chunk], count: int) -> NDArray[np.float32]:
        """Return what `_logits` does. Raises DecodeFailed where the chunks gave no numbers."""
        logits = self._logits(count)
        # A maximum is NaN where any value is.
        if count and not math.isfinite(np.maximum.reduce(logits, axis=None)):
            self._take_back(chunks)
            name = self._config.path.name
            raise DecodeFailed(f"{name} computes no numbers: its weights may be damaged")
        return logits

    def _shapes(self, chunks: Sequence[Chunk]) -> tuple[list[int], list[int]]:
        """Return the rows that each chunk takes, and those of them whose logits are computed."""
        widths = [self._width(chunk) for chunk in chunks]
        return widths, list(map(self._rows_out, chunks, widths))

    def _decode_leads(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Make the checkpoints that a decode needs; return what is left to decode.

        Where one is needed between the tokens of a chunk, those before it are decoded now.
        """
        leads = [self._sequences.lead_count(chunk) for chunk in chunks]
        first = [
            replace(chunk, token_ids=chunk.token_ids[:lead], row_count=0, pad_to=0)
            for chunk, lead in zip(chunks, leads, strict=True)
            if lead
        ]
        if first:
            self._decode(first)
        rest = [
            replace(chunk, position=chunk.position + lead, token_ids=chunk.token_ids[lead:])
            for chunk, lead in zip(chunks, leads, strict=True)
        ]
        for chunk in rest:
            self._sequences.prepare(chunk)
        return rest

    def _take_back(self, chunks: Sequence[Chunk]) -> None:
        """Cut the sequences of a decode that failed to what they held before it, or to less."""
        for chunk in chunks:
            for sequence, count in (
                (chunk.sequence, chunk.position),
                *((b, 0) for b in chunk.branches),
            ):
                # More may be in memory than was noted.
                self._sequences.note(sequence, count + len(chunk.token_ids), 0)
                self._sequences.truncate(sequence, count)

    def _check(self, chunks: Sequence[Chunk], widths: Sequence[int], outs: Sequence[int]) -> None:
        """Assert what would abort the process in C."""
        sequences = [each for chunk in chunks for each in (chunk.sequence, *chunk.branches)]
        assert chunks and len(set(sequences)) == len(sequences), "one chunk per sequence"
        for chunk in chunks:
            ids = chunk.token_ids
            assert 0 <= chunk.sequence < len(self._held), f"sequence {chunk.sequence}"
            assert chunk.position == self._held[chunk.sequence], f"position {chunk.position}"
            assert 0 < len(ids) <= self._capacity - chunk.position, "context overflow"
            assert 0 <= chunk.row_count <= len(ids), f"{chunk.row_count} rows of {len(ids)}"
            assert min(ids) >= 0 and max(ids) < self._size, "token id outside the vocabulary"
            assert 0 <= chunk.pad_to <= MAX_PADDED, f"padded to {chunk.pad_to}"
            if chunk.parents or chunk.branches:
                assert self._layout.is_pool, "trees are decoded in a pool only"
                check_tree(chunk, self._held)
        assert sum(widths) <= self._config.batch_rows, f"{sum(widths)} rows in one decode"
        assert sum(outs) <= MAX_ROWS_OUT, "too many rows out"

    def _rows_out(self, chunk: Chunk, width: int) -> int:
        """Return how many rows of logits llama.cpp computes for a chunk of so many rows.

        Pad rows are computed too, up to a full multiple: the last layer and
        the head see only these rows, and their number chooses the kernel.
        """
        if chunk.row_count == 0:
            return 0
        return self.padded(chunk.row_count + width - len(chunk.token_ids))

    def _logits(self, count: int) -> NDArray[np.float32]:
        """Return a view of llama.cpp's own memory, float32[row, vocabulary]."""
        if count == 0:
            return np.empty((0, self._size), np.float32)
        return matrix(logits_address(self._ctx), count, self._size)

    def _width(self, chunk: Chunk) -> int:
        """Return the rows that a chunk takes in its decode.

        There is always room for a full multiple; what is wider only helps where it fits.
        """
        count = len(chunk.token_ids)
        if not self._sequences.cuts_freely:
            return count
        wide = self.padded(max(count, chunk.pad_to))
        return wide if chunk.position + wide <= self._positions else self.padded(count)

    def padded(self, row_count: int) -> int:
        if not self._sequences.cuts_freely:
            return row_count  # pad rows could not be cut off
        return -(-row_count // self.pad_multiple) * self.pad_multiple

    def truncate(self, sequence: int, token_count: int) -> int:
        assert 0 <= sequence < len(self._held), f"sequence {sequence}"
        assert token_count >= 0, f"{token_count} tokens"
        return self._sequences.truncate(sequence, token_count)

    def checkpoint(self, sequence: int) -> None:
        assert 0 <= sequence < len(self._held), f"sequence {sequence}"
        self._sequences.checkpoint(sequence)

    def _cut(self, sequence: int, token_count: int) -> None:
        if not ll.llama_memory_seq_rm(self._memory, sequence, token_count, -1):
            raise DecodeFailed(f"llama.cpp cannot cut a sequence to {token_count} tokens")

    def copy_prefix(self, source: int, destination: int, token_count: int) -> int:
        count = len(self._held)
        assert 0 <= source < count and 0 <= destination < count and source != destination
        assert 0 <= token_count <= self._held[source], f"{token_count} tokens"
        self._hidden.copy(source, destination)
        if self._layout.is_pool:
            ll.llama_memory_seq_rm(self._memory, destination, -1, -1)
            ll.llama_memory_seq_cp(self._memory, source, destination, 0, token_count)
            self._sequences.note(destination, token_count, 0)
            return token_count
        if not self._sequences.can_copy(source, token_count):
            return self._copy_state(source, destination, token_count)
        # Between separate streams llama.cpp copies whole sequences only, and when it next decodes.
        ll.llama_memory_seq_rm(self._memory, destination, -1, -1)
        ll.llama_memory_seq_cp(self._memory, source, destination, -1, -1)
        self._sequences.note_pending_copy(source, destination)
        self._sequences.drop_incomplete(destination)
        return self.truncate(destination, token_count)

    def _copy_state(self, source: int, destination: int, token_count: int) -> int:
        """Copy a sequence at once, which goes back to its checkpoints; return its count."""
        is_pending = self._sequences.waits_for_copy(source, destination)
        self._sequences.clear(destination)
        if is_pending:
            return 0  # what is there is not what was noted
        counts = self._sequences.checkpoint_counts(source)
        if token_count < self._held[source] and not any(each <= token_count for each in counts):
            return 0
        # What is copied is a hint: without it the text is read.
        with suppress(MemoryError):
            state = self._state(source)
            if state is not None and self._set_state(destination, state):
                self._sequences.note_copy(source, destination)
                return self.truncate(destination, token_count)
        self._sequences.note(destination, token_count, 0)  # a part may be there
        self._sequences.clear(destination)
        return 0

    def copied_count(self, source: int, token_count: int) -> int:
        return (
            token_count
            if self._layout.is_pool
            else self._sequences.copied_count(source, token_count)
        )

    def duplicate(self, source: int, destination: int) -> None:
        self.copy_prefix(source, destination, self._held[source])
        if self._layout.is_pool and (state := self._state(source)):
            self._cut(destination, 0)
            self._put_state(destination, state)

    def repeat_cells(self, sequence: int, token_count: int) -> int:
        held = self._held[sequence]
        assert 0 < held <= token_count <= self._capacity, f"{held} to {token_count} tokens"
        is_plain = self._sequences.kind is Rollback.FULL and not self._window
        if not is_plain or self._sequences.waits_for_copy(sequence):
            return held
        state = self._state(sequence)
        count = max(held, min(token_count, _MOST_REPEATED * held // len(state)))
        longer = repeat_cells(bytes(state), count)
        if longer is None:
            return held
        if not self._set_state(sequence, (ctypes.c_uint8 * len(longer)).from_buffer(longer)):
            self._put_state(sequence, state)
            return held
        self._sequences.note(sequence, count, 0)
        return count

    def exchange(self, first: int, second: int) -> None:
        # llama.cpp's copy of a sequence's state leaves out what is outside a sliding window.
        assert not self._window, "sequences with a sliding window are not exchanged"
        assert not self._is_recurrent, "recurrent states are copied, not exchanged"
        assert not self._layout.is_pool, "sequences of a pool are not exchanged"
        count = len(self._held)
        assert 0 <= first < count and 0 <= second < count and first != second
        assert not self._sequences.is_copying, "a copy is carried out by the next decode"
        states = self._state(first), self._state(second)
        for sequence, state in ((second, states[0]), (first, states[1])):
            ll.llama_memory_seq_rm(self._memory, sequence, -1, -1)
            if state:
                self._put_state(sequence, state)
        self._sequences.note_exchange(first, second)
        self._hidden.exchange(first, second)
        self._sequences.drop_incomplete(first)
        self._sequences.drop_incomplete(second)

    def _put_state(self, sequence: int, state: Any) -> None:
        if not self._set_state(sequence, state):
            raise RuntimeError(f"llama.cpp does not take back what a sequence held: {last_error()}")

    def _set_state(self, sequence: int, state: Any) -> bool:
        return bool(ll.llama_state_seq_set_data(self._ctx, state, len(state), sequence))

    def _state(self, sequence: int) -> Any:
        """Return a copy of all that a sequence holds: uint8[size], or None if that is nothing."""
        if not self._held[sequence]:
            return None
        state = (ctypes.c_uint8 * ll.llama_state_seq_get_size(self._ctx, sequence))()
        ll.llama_state_seq_get_data(self._ctx, state, len(state), sequence)
        return state

    # --- sampling ---

    def sampler(
        self, parameters: SamplingParameters, seed: int = 0, choice: int = 0
    ) -> ChainSampler:
        return self._samplers.sampler(parameters, seed, choice)

    # --- embeddings ---

    def embed(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        if not self._config.embeddings:
            missing = "this target embeds nothing; start it with --embeddings"
            raise InvalidRequest("embeddings", missing)
        assert 0 < len(token_ids) <= self._capacity, f"{len(token_ids)} tokens"
        assert all(0 <= token_id < self._size for token_id in token_ids), "ids"
        if self._embedder is None:
            self._embedder = Embedder(self._model, self._config, self._capacity)
        return self._embedder.embed(token_ids)

    def close(self) -> None:
        if self._embedder is not None:
            self._embedder.close()
        self._vocabulary.close()
        if self._ctx is not None:
            ll.llama_free(self._ctx)
        if self._threads is not None:
            self._threads.close()
        ll.llama_model_free(self._model)


def _branch_count(layout: Layout) -> int:
    """Return the sequences for leaves of trees: tokens can be in several ones of a pool only."""
    return MAX_LEAVES - 1 if layout.is_pool else 0
