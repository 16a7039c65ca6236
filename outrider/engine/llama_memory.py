"""llama.cpp's memory of sequences: cut, saved and restored; and which of that works for a model."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np

from outrider.engine.llama_library import ll
from outrider.engine.model import Chunk, Model, Rollback
from outrider.errors import DecodeFailed

_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: what attention can cut is left out

_DIFFERS = 0.2
"""Of a row's standard deviation: kernels of other shapes change logits by much less, a state that
is not the right one by about as much as the logits are."""


class LlamaMemory:
    """The memory of a context. Implements `rollback.Memory`.

    A recurrent state is in one cell of as many as there are sequences. llama.cpp moves states so
    that those of a decode are adjacent, and leaves the snapshots of one that is not decoded.
    So each state is kept in the cell of its sequence's number, where nothing has to move: what is
    emptied is given a placeholder, which goes when its sequence begins.
    """

    def __init__(self, context: Any) -> None:
        self._ctx = context
        self._memory = ll.llama_get_memory(context)
        self._placeholder: Any = None  # a state of no text, where cells must not move

    def keep_cells(self) -> None:
        """Keep the cells as they are now: every sequence in the one of its number, with a state."""
        self._placeholder = self.save(0)

    def begin(self, sequence: int) -> None:
        """Make way for the first token of a sequence that is empty."""
        if self._placeholder is not None:
            ll.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def cut(self, sequence: int, token_count: int) -> bool:
        is_cut = bool(ll.llama_memory_seq_rm(self._memory, sequence, token_count or -1, -1))
        if not token_count and self._placeholder is not None:
            self.restore(sequence, self._placeholder)
        return is_cut

    def first_position(self, sequence: int) -> int:
        return int(ll.llama_memory_seq_pos_min(self._memory, sequence))

    def save(self, sequence: int) -> Any:
        size = ll.llama_state_seq_get_size_ext(self._ctx, sequence, _PARTIAL)
        saved = (ctypes.c_uint8 * size)()
        ll.llama_state_seq_get_data_ext(self._ctx, saved, size, sequence, _PARTIAL)
        return saved

    def restore(self, sequence: int, saved: Any) -> bool:
        taken = ll.llama_state_seq_set_data_ext(self._ctx, saved, len(saved), sequence, _PARTIAL)
        return bool(taken)


class TrialModel(Model, Protocol):
    """A model whose sequences can be made to come to hold less in another way."""

    snapshot_count: int  # tokens that recurrent memory can be cut by

    def open_memory(self, rollback: Rollback) -> None:
        """Begin with empty sequences that come to hold less in this way."""


def find_rollback(model: TrialModel, expected: Rollback) -> Rollback:
    """Return how a model's sequences come to hold less, from what is expected downwards.

    llama.cpp cuts attention that sees the whole text anywhere; everything else is tried. Sequence 0
    is used and left empty.
    """
    if expected is Rollback.FULL:
        return expected
    kinds = {
        Rollback.WINDOW: (Rollback.WINDOW,),
        Rollback.SNAPSHOTS: (Rollback.SNAPSHOTS, Rollback.CHECKPOINTS),
    }[expected]
    for kind in kinds:
        if kind is Rollback.SNAPSHOTS and not model.snapshot_count:
            continue
        try:
            model.open_memory(kind)
            if _works(model):
                return kind
        except DecodeFailed:
            continue
    return Rollback.RESTART


def _works(model: Model) -> bool:
    """Return whether rejected tokens leave what was there before them."""
    description = model.describe()
    size = description.vocabulary.token_count
    text = [(7 + 11 * i) % size for i in range(6)]
    # As deep as snapshots reach, so that one of them is taken.
    depth = min(2, description.snapshot_count or 2)
    model.decode([Chunk(0, 0, text[:3], 0)])
    [rows] = model.decode([Chunk(0, 3, text[3:], 3)])
    kept = len(text) - depth
    expected = rows[-depth].copy()
    if (held := model.truncate(0, kept)) == 0:
        return False
    [[row]] = model.decode([Chunk(0, held, text[held : kept + 1], 1)])
    return bool(np.abs(row - expected).max() < _DIFFERS * expected.std())
