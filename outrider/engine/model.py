"""The seam to what computes logits: what the engine asks of a model, and nothing else.

`llama.py` implements it over llama.cpp; the tests' toy model implements it
over a hash. All calls come from the engine's one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.distribution import Distribution
from outrider.sampling import SamplingParameters
from outrider.speculation import HeadKind

Row = NDArray[np.float32]
"""The logits after one token: float32[vocabulary]. Valid until the next decode."""

MAX_ROWS_OUT = 128
"""Rows of logits that one decode computes at most, over all sequences, padding included."""


MAX_PADDED = 16
"""Rows that a chunk may be padded to beyond what kernels ask for."""

MAX_MULTIPLE = 4
"""The largest `pad_multiple`: a session has room for a full one after its last token."""


class Numerics(Enum):
    """Whether the bits of a row depend on how its token was batched."""

    EXACT = "exact"
    NATIVE = "native"


class Rollback(Enum):
    """How a sequence comes to hold less, as found out at load by trying; see `rollback.py`."""

    FULL = "full"
    """It is cut to any length."""
    WINDOW = "window"
    """It is cut as far as its cells of a sliding window reach; beyond it has checkpoints."""
    SNAPSHOTS = "snapshots"
    """It is cut once after a decode, within that decode's rows; beyond it has checkpoints."""
    CHECKPOINTS = "checkpoints"
    """It is never cut, but goes back to a checkpoint; the tokens after that are decoded again."""
    RESTART = "restart"
    """It can only be emptied."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a context keeps the cells of its sequences, and how it attends to them.

    Streams: each sequence has a whole context of its own. A pool: all sequences take cells from
    one, which is as large as the streams together.
    """

    is_pool: bool = False
    flash_attention: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FimTokens:
    """The ids that stand before the parts of a prompt that asks for the middle of a text."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyDescription:
    """What the two models of a pair must share. Absent special ids are None."""

    type: int
    token_count: int
    bos: int | None
    eos: int | None
    eot: int | None
    adds_bos: bool
    adds_eos: bool
    end_token_ids: tuple[int, ...]
    """The ids that end a generation."""
    fim: FimTokens | None = None
    """Those by which it fills in a text, if it has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """The hosted model as it is opened. `context` is the tokens that one sequence can hold."""

    name: str
    identity: bytes
    """A SHA-256 that another model, or other settings that change logits, do not have."""
    description: str
    weight_bytes: int
    parameter_count: int
    file_type: str
    """llama.cpp's name for the types of the weights, such as Q8_0."""
    embedding_width: int
    """Numbers of one embedding."""
    trained_context: int
    """Tokens of the longest text in training."""
    context: int
    sequence_count: int
    batch_rows: int
    """Rows of one decode at most."""
    vocabulary: VocabularyDescription
    rollback: Rollback
    can_exchange: bool
    """Whether `exchange` moves all that a sequence holds."""
    thread_count: int
    """That compute a decode of one row on the CPU."""
    system_info: str
    kernels: str = ""
    """What computes it on the CPU, and why, in words for people."""
    thread_choices: tuple[int, ...] = ()
    """Numbers of threads that `use_threads` takes, the most first, which a loaded model has."""
    is_on_gpu: bool = False
    """Whether a GPU computes all layers of it."""
    chat_template: str = ""
    layouts: tuple[Layout, ...] = (Layout(),)
    """Those that `open` takes, streams first; a loaded model is opened with the first."""
    layout: Layout = Layout()
    """The one that it is opened with."""
    pool_cells: int | None = None
    """Tokens that all sequences of a pool can hold together; None for streams."""
    snapshot_count: int = 0
    """Tokens that SNAPSHOTS memory can be cut by at most."""
    window: int = 0
    """Tokens of a sliding window; 0 without."""
    architecture: str = ""
    """What the file says its layers are; empty where not known."""
    hidden_row_width: int = 0
    """Numbers of a hidden row, of those that it keeps, or reads where it is a head; 0: neither."""
    head_kind: HeadKind | None = None
    """Of a head, which reads a target's hidden rows; None: it reads tokens alone."""
    branch_sequences: tuple[int, ...] = ()
    """Sequences beside those of sessions, for leaves of trees; none where no tree is decoded."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence in one decode; the logits of the last `row_count` are wanted.

    The sequence must hold exactly `position` tokens.
    """

    sequence: int
    position: int
    token_ids: Sequence[int]
    row_count: int
    pad_to: int = 0
    """Rows that it is padded to at least, at most MAX_PADDED."""
    parents: Sequence[int] = ()
    """Of its last tokens, where they are a tree (`outrider.trees`): ROOT is the token before."""
    branches: Sequence[int] = ()
    """Empty sequences, one for each leaf of the tree but the first. Afterwards they hold the text
    and the path to their leaf, and the chunk's own sequence the first leaf's."""
    certain: int | None = None
    """Tokens of the sequence that stay in any case; None: all up to the first wanted row."""
    fillers: Sequence[int] = ()
    """Sequences of no chunk of the decode that have a row each in it, of which nothing stays: with
    them it is computed at once, by full kernels. Only of streams that can be cut to any length."""


class NoRoom(Exception):
    """llama.cpp found no cells for a batch. Nothing of the batch is held."""


class Sampler(Protocol):
    """One session's sampler chain and its state, which follows the tokens that it is given."""

    has_state: bool
    """Whether the distribution of a row depends on the tokens besides."""

    mirostat_mu: float | None
    """Mirostat's state, which does not follow from the tokens alone; None without it."""

    def distribution(self, row: Row) -> Distribution:
        """Return the distribution of the next token; the row is left as it is.

        Raises InvalidRequest when no token is possible.
        """
        ...

    def accept(self, token_id: int, is_prompt: bool = False) -> None:
        """Continue after a token; a grammar and mirostat do not look at the prompt's.

        Raises InvalidRequest for a token that the grammar does not allow.
        """
        ...

    def clone(self) -> Sampler:
        """Return a copy that goes its own way."""
        ...


class Model(Protocol):
    """A model with numbered sequences, [0, sequence_count).

    Each chunk's rows are padded to a multiple of `pad_multiple`, which may be
    set: a fixed multiple keeps kernels, and so bits, the same.
    """

    pad_multiple: int

    def describe(self) -> ModelDescription:
        """Return what does not change until it is opened again, or has other threads."""
        ...

    def open(self, layout: Layout) -> None:
        """Open the context anew, with one of the described layouts; what was held is lost.

        Raises InvalidConfig where that is not possible; it must then be opened with another.
        """
        ...

    def use_threads(self, count: int) -> None:
        """Compute with one of the described `thread_choices` from now on."""
        ...

    def token_texts(self) -> list[bytes]:
        """Return the bytes each token adds to a text; control tokens add none."""
        ...

    def token_names(self) -> list[bytes]:
        """Return the text each token is stored under."""
        ...

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        """Return the ids of a text, from any thread.

        Raises EngineBusy where there is no memory for it.
        """
        ...

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        """Append every chunk to its sequence; return the wanted rows of each.

        Chunks are of distinct sequences and together at most `batch_rows`
        rows, padding included, MAX_ROWS_OUT of them wanted. One that ends in a tree
        is decoded only where the description has `branch_sequences`. Raises NoRoom or
        DecodeFailed; after either the sequences hold what they held before, or less where the
        memory cannot be cut: `truncate` says how much.
        """
        ...

    def padded(self, row_count: int) -> int:
        """Return the rows that a chunk of `row_count` tokens takes in a decode."""
        ...

    def truncate(self, sequence: int, token_count: int) -> int:
        """Keep the first `token_count` tokens of a sequence; return how many it holds.

        Those are fewer where the memory cannot be cut there: the ones of its newest checkpoint
        before, or 0.
        """
        ...

    def checkpoint(self, sequence: int) -> None:
        """Let `truncate` come back to what a sequence holds now, where it could not otherwise."""
        ...

    def copy_prefix(self, source: int, destination: int, token_count: int) -> int:
        """Make `destination` the first tokens of `source`; return its count like `truncate`.

        Memory that is not FULL may have none of them there, above all less than all of `source`.
        In a pool both share the cells, and nothing is copied.
        """
        ...

    def copied_count(self, source: int, token_count: int) -> int:
        """Return what `copy_prefix` would return, as far as that is known; nothing changes.

        From any thread: what the engine does meanwhile may not show yet.
        """
        ...

    def duplicate(self, source: int, destination: int) -> None:
        """Make `destination` hold what `source` does, in cells of its own."""
        ...

    def repeat_cells(self, sequence: int, token_count: int) -> int:
        """Let a sequence hold `token_count` tokens by repeating the cells that it has; for timing.

        What they hold means nothing, but a decode after them takes as long as after a text. Returns
        what it holds then: fewer tokens where memory is short, and what it held before where
        cells cannot be repeated.
        """
        ...

    def exchange(self, first: int, second: int) -> None:
        """Give each of two sequences what the other holds; only where `can_exchange`, of streams.

        What was copied since the last decode may not be there yet: call it right after one.
        """
        ...

    def sampler(self, parameters: SamplingParameters, seed: int = 0, choice: int = 0) -> Sampler:
        """Return a new sampler chain, from any thread. Seed and choice key its own coins.

        Raises InvalidRequest for what does not go with the vocabulary.
        """
        ...

    def embed(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the pooled embedding of a text: float32[width].

        Raises InvalidRequest if the model was loaded without embeddings.
        """
        ...

    def close(self) -> None:
        """Free everything."""
        ...
