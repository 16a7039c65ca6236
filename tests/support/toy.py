"""A model without weights: strict about its callers, its logits a hash of what its cells hold."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b, sha256
from threading import Lock
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from outrider import noise
from outrider.core.text import ends_inside_character
from outrider.distribution import Distribution, distribution_of
from outrider.engine.model import (
    Chunk,
    Layout,
    Model,
    ModelDescription,
    NoRoom,
    Rollback,
    Row,
    Sampler,
    VocabularyDescription,
)
from outrider.engine.rollback import RollbackMemory
from outrider.errors import InvalidRequest
from outrider.sampling import SamplingParameters
from outrider.trees import MAX_LEAVES, Tree

BOS, EOS, PAD = 0, 1, 2
UNKNOWN = 3
"""The id of `?`, which also stands for every byte that no text of the vocabulary covers."""

NEVER = -1e9
"""A bias that keeps a token from ever being drawn."""


class Misused(AssertionError):
    """A call that would have aborted llama.cpp or read what is no longer there."""


@dataclass(frozen=True, slots=True)
class Decode:
    """What one successful decode did. `row_count` is its rows, padding included."""

    chunks: tuple[Chunk, ...]
    row_count: int

    @property
    def token_count(self) -> int:
        """The tokens that were asked for, without padding."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class _StateMemory:
    """Like recurrent memory: it is emptied, saved and restored, and never cut."""

    cells: list[list[int]]

    def cut(self, sequence: int, token_count: int) -> bool:
        if token_count and token_count < len(self.cells[sequence]):
            return False
        del self.cells[sequence][token_count:]
        return True

    def first_position(self, sequence: int) -> int:
        return 0 if self.cells[sequence] else -1

    def save(self, sequence: int) -> list[int]:
        return list(self.cells[sequence])

    def restore(self, sequence: int, saved: list[int]) -> bool:
        self.cells[sequence][:] = saved
        return True


@dataclass(kw_only=True, eq=False)
class ToyModel:
    """A `Model` over a hash: the logits after a token follow from the last `order` held tokens.

    They are read back from the sequence's own cells, so that whoever leaves
    wrong cells behind gets other logits. Rows turn into NaN at the next decode.
    """

    vocabulary_size: int = 64
    context: int = 256
    sequence_count: int = 4
    batch_rows: int = 64
    wanted_rows: int = 128  # rows of logits that one decode returns at most
    pad_multiple: int = 4
    seed: int = 1
    order: int = 3  # as long as the context: every held token counts
    spread: float = 3.0  # the standard deviation of the logits
    eos_bias: float = 0.0  # NEVER: no end; 20: the end at once
    like: int | None = None  # the seed of the toy whose logits this one shares
    agreement: float = 1.0  # the share, as variance; .5 / .9 / .98: .23 / .56 / .78 equal argmax
    adds_bos: bool = True
    changed_texts: Mapping[int, bytes] = field(default_factory=dict)
    rollback: Rollback = Rollback.FULL  # CHECKPOINTS: recurrent memory, which is never cut
    can_exchange: bool = True  # False: like a sliding window, whose state cannot be moved
    repeats_cells: bool = True  # False: as of a state whose form is not known
    lets_go_below: int = 0  # a cut to fewer tokens leaves nothing, as a small sliding window may
    layouts: tuple[Layout, ...] = (Layout(),)
    thread_choices: tuple[int, ...] = ()
    branch_count: int = MAX_LEAVES - 1  # sequences of a pool for leaves of trees

    wobble: float = 0.0  # relative change of the logits per row of the decode: numerics `native`
    step_seconds: float = 0.0
    no_room_after: int | None = None  # rows of a merged decode above which no cells are found
    before_decode: Callable[[Sequence[Chunk]], None] | None = None  # may raise NoRoom, DecodeFailed
    keeps_decodes: bool = True
    decodes: list[Decode] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Check the options and start with empty cells."""
        _require(self.vocabulary_size > UNKNOWN, "the vocabulary has no room for `?`")
        _require(0.0 <= self.agreement <= 1.0, f"agreement {self.agreement} is outside [0, 1]")
        _require(self.batch_rows % self.pad_multiple == 0, "batch_rows is no pad multiple")
        self._texts = _texts(self.vocabulary_size) | dict(self.changed_texts)
        self._cells: list[list[int]] = []
        self.layout = self.layouts[0]
        self.thread_count = max(self.thread_choices, default=1)
        self.open(self.layout)
        self._rows = np.empty((0, self.vocabulary_size), np.float32)
        self._copied = False  # since the last decode, as llama.cpp copies only then
        self._busy = Lock()
        self._closed = False
        # Statistical tests meet few histories, many times each.
        self._logits = lru_cache(4096)(self._logits_after)

    @property
    def decode_count(self) -> int:
        """The successful decodes."""
        return len(self.decodes)

    def held(self, sequence: int) -> tuple[int, ...]:
        """Return the tokens in a sequence's cells."""
        return tuple(self._cells[sequence])

    def describe(self) -> ModelDescription:
        """Return what does not change after loading."""
        return ModelDescription(
            name=f"toy-{self.seed}",
            identity=self._identity(),
            description="a hash of the last tokens",
            weight_bytes=0,
            parameter_count=0,
            file_type="",
            embedding_width=0,
            trained_context=self.context,
            context=self.context,
            sequence_count=self._session_count,
            batch_rows=self.batch_rows,
            vocabulary=self._describe_vocabulary(),
            rollback=self.rollback,
            can_exchange=self.can_exchange and not self.layout.is_pool,
            thread_count=self.thread_count,
            thread_choices=self.thread_choices,
            system_info="toy | LLAMAFILE = 1 |",
            layouts=self.layouts,
            layout=self.layout,
            pool_cells=self.sequence_count * self.context if self.layout.is_pool else None,
            branch_sequences=tuple(range(self._session_count, len(self._cells))),
        )

    def open(self, layout: Layout) -> None:
        """Empty all cells; a pool has four times the sequences, and some for leaves of trees."""
        _require(layout in self.layouts, f"{layout} is not offered")
        self.layout = layout
        self._session_count = self.sequence_count * (4 if layout.is_pool else 1)
        branches = self.branch_count if layout.is_pool else 0
        self._cells = [[] for _ in range(self._session_count + branches)]
        memory, count = _StateMemory(self._cells), len(self._cells)
        self._memory = RollbackMemory(memory, self.rollback, count)

    def use_threads(self, count: int) -> None:
        """Say from now on that so many threads compute it."""
        _require(count in self.thread_choices, f"{count} threads are not offered")
        self.thread_count = count

    def token_texts(self) -> list[bytes]:
        """Return the bytes each token adds to a text; control tokens add none."""
        return [self._texts.get(token_id, b"") for token_id in range(self.vocabulary_size)]

    def token_names(self) -> list[bytes]:
        """Return the text each token is stored under."""
        names = _CONTROL_NAMES | self._texts
        return [names[token_id] for token_id in range(self.vocabulary_size)]

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        """Return the ids of a text: always the longest text that fits, `?` where none does."""
        known = self._texts | (_CONTROL_NAMES if parse_special else {})
        start = [BOS] if add_special and self.adds_bos else []
        return start + list(_longest_matches(text, {name: key for key, name in known.items()}))

    def padded(self, row_count: int) -> int:
        """Return the rows that a chunk of `row_count` tokens takes in a decode."""
        if self.rollback is not Rollback.FULL:
            return row_count
        return -(-row_count // self.pad_multiple) * self.pad_multiple

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        """Append every chunk to its sequence; return the wanted rows of each."""
        with self._alone():
            self._rows.fill(np.nan)  # a row that someone kept shows at once
            row_count = self._check(chunks)
            self._find_room(chunks, row_count)
            time.sleep(self.step_seconds)
            kept = tuple(_frozen(chunk) for chunk in chunks)
            self._copied = False
            if self.keeps_decodes:
                self.decodes.append(Decode(kept, row_count))
            if self.rollback is not Rollback.FULL:
                kept = tuple(_frozen(self._with_checkpoint(chunk)) for chunk in chunks)
            rows = self._append(kept, row_count)
            for chunk in kept:
                held = len(self._cells[chunk.sequence])
                self._memory.note(chunk.sequence, held, len(chunk.token_ids))
            return rows

    def _with_checkpoint(self, chunk: Chunk) -> Chunk:
        """Make the checkpoint that a chunk may need; return what is left of it to append."""
        if lead := self._memory.lead_count(chunk):
            self._cells[chunk.sequence].extend(chunk.token_ids[:lead])
            self._memory.note(chunk.sequence, chunk.position + lead, lead)
            position, rest = chunk.position + lead, chunk.token_ids[lead:]
            chunk = replace(chunk, position=position, token_ids=rest)
        self._memory.prepare(chunk)
        return chunk

    def truncate(self, sequence: int, token_count: int) -> int:
        """Keep the first `token_count` tokens of a sequence; return how many it holds."""
        with self._alone():
            if self.rollback is not Rollback.FULL:
                self._check_sequence(sequence)
                return self._memory.truncate(sequence, token_count)
            self._check_prefix(sequence, token_count)
            if token_count < self.lets_go_below:
                token_count = 0
            del self._cells[sequence][token_count:]
            return token_count

    def checkpoint(self, sequence: int) -> None:
        """Remember what a sequence holds, where it could not be cut back to that."""
        with self._alone():
            self._memory.checkpoint(sequence)

    def copy_prefix(self, source: int, destination: int, token_count: int) -> int:
        """Make `destination` the first `token_count` tokens of `source`; return how many."""
        with self._alone():
            if self.rollback is Rollback.FULL:
                self._check_prefix(source, token_count)
            self._check_sequence(destination)
            _require(source != destination, f"sequence {source} is copied onto itself")
            self._copied = True
            if self.rollback is not Rollback.FULL:
                self._cells[destination][:] = self._cells[source]
                self._memory.note_copy(source, destination)
                return self._memory.truncate(destination, token_count)
            self._cells[destination] = self._cells[source][:token_count]
            return token_count

    def copied_count(self, source: int, token_count: int) -> int:
        """Return what `copy_prefix` would return."""
        if self.rollback is Rollback.FULL:
            return token_count
        return self._memory.copied_count(source, token_count)

    def duplicate(self, source: int, destination: int) -> None:
        """Make `destination` hold what `source` does, in cells of its own."""
        self.copy_prefix(source, destination, len(self._cells[source]))

    def repeat_cells(self, sequence: int, token_count: int) -> int:
        """Let a sequence hold so many tokens by repeating those that it holds; return how many."""
        with self._alone():
            self._check_sequence(sequence)
            cells = self._cells[sequence]
            fits = 0 < len(cells) <= token_count <= self.context
            _require(fits, f"{len(cells)} tokens repeated to {token_count}")
            if self.repeats_cells and self.rollback is Rollback.FULL:
                cells[:] = itertools.islice(itertools.cycle(list(cells)), token_count)
            return len(cells)

    def exchange(self, first: int, second: int) -> None:
        """Give each of two sequences what the other holds."""
        with self._alone():
            self._check_sequence(first)
            self._check_sequence(second)
            _require(self.can_exchange, "this memory cannot be exchanged")
            _require(first != second, f"sequence {first} is exchanged with itself")
            _require(not self._copied, "sequences are exchanged before a copy was carried out")
            self._cells[first], self._cells[second] = self._cells[second], self._cells[first]

    def sampler(self, parameters: SamplingParameters, seed: int = 0, choice: int = 0) -> Sampler:
        """Return a new sampler chain; more than the four basic stages is refused."""
        more = parameters.beyond_basic()
        if more:
            raise InvalidRequest(more[0], "is not for toys")
        return ToySampler(parameters)

    def embed(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return how often each id is there: a text's own vector."""
        return np.bincount(token_ids, minlength=self.vocabulary_size).astype(np.float32)

    def close(self) -> None:
        """Free everything; every later call is a misuse."""
        with self._alone():
            self._closed = True

    def _identity(self) -> bytes:
        weights = self.seed, self.like, self.agreement, self.order, self.spread, self.eos_bias
        vocabulary = self.vocabulary_size, self.adds_bos, sorted(self.changed_texts.items())
        return sha256(repr((weights, vocabulary, self.context)).encode()).digest()

    def _describe_vocabulary(self) -> VocabularyDescription:
        return VocabularyDescription(
            type=2,  # llama.cpp's number for byte-level BPE
            token_count=self.vocabulary_size,
            bos=BOS,
            eos=EOS,
            eot=None,
            adds_bos=self.adds_bos,
            adds_eos=False,
            end_token_ids=(EOS,),
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A llama_context has one user at a time."""
        _require(self._busy.acquire(blocking=False), "two threads use the model at once")
        try:
            _require(not self._closed, "the model is closed")
            yield
        finally:
            self._busy.release()

    def _check(self, chunks: Sequence[Chunk]) -> int:
        """Return the rows that a decode of `chunks` takes."""
        _require(len(chunks) > 0, "a decode of nothing")
        sequences = [each for chunk in chunks for each in (chunk.sequence, *chunk.branches)]
        _require(len(set(sequences)) == len(sequences), f"sequences {sequences} are not distinct")
        for chunk in chunks:
            self._check_chunk(chunk)
        wanted = sum(chunk.row_count for chunk in chunks)
        _require(wanted <= self.wanted_rows, f"{wanted} rows of logits; {self.wanted_rows} fit")
        row_count = sum(self.padded(len(chunk.token_ids)) for chunk in chunks)
        _require(row_count <= self.batch_rows, f"{row_count} rows; a decode has {self.batch_rows}")
        return row_count

    def _check_chunk(self, chunk: Chunk) -> None:
        self._check_sequence(chunk.sequence)
        count, held = len(chunk.token_ids), len(self._cells[chunk.sequence])
        where = f"sequence {chunk.sequence}"
        _require(count > 0, f"{where}: a chunk without tokens")
        _require(chunk.position == held, f"{where}: position {chunk.position}, but {held} held")
        _require(0 <= chunk.row_count <= count, f"{where}: {chunk.row_count} rows of {count}")
        _require(held + count <= self.context, f"{where}: {held} + {count} tokens overflow")
        for token_id in chunk.token_ids:
            _require(0 <= token_id < self.vocabulary_size, f"{where}: no token {token_id}")
        if chunk.parents or chunk.branches:
            self._check_tree(chunk)

    def _check_tree(self, chunk: Chunk) -> None:
        _require(self.layout.is_pool, "a token is in several sequences of a pool only")
        stem = len(chunk.token_ids) - len(chunk.parents)
        tree = Tree.checked(chunk.token_ids[stem:], chunk.parents)
        leaves = len(tree.leaves)
        _require(leaves == 1 + len(chunk.branches), f"{leaves} leaves, {chunk.branches}")
        for branch in chunk.branches:
            self._check_sequence(branch)
            _require(not self._cells[branch], f"sequence {branch} is not empty")

    def _check_sequence(self, sequence: int) -> None:
        _require(0 <= sequence < len(self._cells), f"no sequence {sequence}")

    def _check_prefix(self, sequence: int, token_count: int) -> None:
        self._check_sequence(sequence)
        held = len(self._cells[sequence])
        _require(0 <= token_count <= held, f"{token_count} tokens of {held} held")

    def _find_room(self, chunks: Sequence[Chunk], row_count: int) -> None:
        if self.before_decode is not None:
            self.before_decode(chunks)
        limit = row_count if self.no_room_after is None else self.no_room_after
        if len(chunks) > 1 and row_count > limit:
            raise NoRoom(f"{row_count} rows; there are cells for {limit}")
        held = sum(map(len, self._cells)) + row_count
        if self.layout.is_pool and held > self.sequence_count * self.context:
            raise NoRoom(f"{held} tokens in one pool")

    def _append(self, chunks: Sequence[Chunk], row_count: int) -> list[list[Row]]:
        self._rows = np.empty((row_count, self.vocabulary_size), np.float32)
        free = iter(self._rows)
        return [self._append_chunk(chunk, free, row_count) for chunk in chunks]

    def _append_chunk(self, chunk: Chunk, free: Iterator[Row], row_count: int) -> list[Row]:
        cells = self._cells[chunk.sequence]
        stem = len(chunk.token_ids) - len(chunk.parents)
        tree = Tree(chunk.token_ids[stem:], chunk.parents)
        cells.extend(chunk.token_ids[:stem])
        length = len(cells)
        ends = range(length - max(0, chunk.row_count - len(tree)) + 1, length + 1)
        histories = [tuple(cells[max(end - self.order, 0) : end]) for end in ends]
        paths = [tree.tokens(tree.path(node)) for node in range(len(tree))]
        its = [tuple([*cells[max(length - self.order, 0) :], *path]) for path in paths]
        histories += [each[-self.order :] for each in its[max(0, len(its) - chunk.row_count) :]]
        text = list(cells)
        for sequence, leaf in zip([chunk.sequence, *chunk.branches], tree.leaves, strict=False):
            self._cells[sequence] = [*text, *paths[leaf]]
        return [self._fill(next(free), history, row_count) for history in histories]

    def _fill(self, row: Row, history: tuple[int, ...], row_count: int) -> Row:
        row[:] = self._logits(history) * np.float32(1.0 + self.wobble * row_count)
        view = row.view()
        view.flags.writeable = False
        return view

    def _logits_after(self, history: tuple[int, ...]) -> Row:
        shared = self._noise(self.seed if self.like is None else self.like, "shared", history)
        own = self._noise(self.seed, "own", history)
        share = 1.0 if self.like is None else self.agreement
        logits = self.spread * (math.sqrt(share) * shared + math.sqrt(1.0 - share) * own)
        logits[[BOS, PAD]] = NEVER
        logits[EOS] += self.eos_bias
        return logits.astype(np.float32)

    def _noise(self, seed: int, kind: str, history: tuple[int, ...]) -> NDArray[np.float64]:
        """Return a number per token of mean 0 and variance 1: float64[vocabulary].

        A sum of four uniform numbers has the same bits on every machine, and
        a token's number does not depend on the size of the vocabulary.
        """
        digest = blake2b(repr((seed, kind, history)).encode(), digest_size=8).digest()
        draws = np.arange(4 * self.vocabulary_size, dtype=np.int32).reshape(-1, 4)
        key = noise.position_key(int.from_bytes(digest, "little"), 0, 0)
        uniforms = noise.uniforms(key, draws)
        centred: NDArray[np.float64] = uniforms.sum(axis=1) - 2.0
        return math.sqrt(3.0) * centred


@dataclass(frozen=True, slots=True)
class ToySampler:
    """A sampler chain without state."""

    parameters: SamplingParameters
    has_state: ClassVar[bool] = False
    mirostat_mu: float | None = None

    def distribution(self, row: Row) -> Distribution:
        """Return the distribution of the next token."""
        _require(not np.isnan(row).any(), "the row was overwritten by a later decode")
        return distribution_of(row, self.parameters)

    def accept(self, token_id: int, is_prompt: bool = False) -> None:
        """Continue behind a token, which changes nothing."""

    def clone(self) -> ToySampler:
        """Return a copy."""
        return self


def generate_alone(
    model: Model,
    prompt: Sequence[int],
    token_count: int,
    parameters: SamplingParameters,
    seed: int,
    choice: int = 0,
    finishes_character: bool = False,
) -> list[int]:
    """Return what the model writes in its sequence 0 with no draft: what every rule must write.

    An end token is the last one. A character may be finished at the limit. At a
    temperature above 0 the noise is the `shared-noise` rule's, keyed by the
    absolute position.
    """
    model.truncate(0, 0)
    sampler = model.sampler(parameters)
    ends = model.describe().vocabulary.end_token_ids
    written: list[int] = []
    pending = list(prompt)
    texts = model.token_texts()

    def continues() -> bool:
        if len(written) < token_count or not written or not finishes_character:
            return len(written) < token_count
        tail = b"".join(texts[token_id] for token_id in written[-4:])
        return len(written) < token_count + 3 and ends_inside_character(tail)

    while continues() and not (written and written[-1] in ends):
        position = len(prompt) + len(written)
        row = _decode_alone(model, position - len(pending), pending)
        token_id, _ = sampler.distribution(row).race(seed, choice, position)
        written.append(token_id)
        sampler.accept(token_id)
        pending = [token_id]
    return written


def _decode_alone(model: Model, position: int, token_ids: Sequence[int]) -> Row:
    """Decode as many tokens at a time as a decode takes; return the row after the last."""
    rows = model.describe().batch_rows
    step = next(count for count in range(rows, 0, -1) if model.padded(count) <= rows)
    for start in range(0, len(token_ids), step):
        chunk = Chunk(0, position + start, token_ids[start : start + step], 1)
        [[row]] = model.decode([chunk])
    return row


def _require(condition: bool, message: str) -> None:
    # Not the assert statement: python -O must not make the toy lenient.
    if not condition:
        raise Misused(message)


def _frozen(chunk: Chunk) -> Chunk:
    # Numpy's integers print, and so hash, unlike Python's.
    token_ids = tuple(int(token_id) for token_id in chunk.token_ids)
    shape = {"parents": tuple(chunk.parents), "branches": tuple(chunk.branches)}
    return Chunk(chunk.sequence, chunk.position, token_ids, chunk.row_count, **shape)


_CONTROL_NAMES = {BOS: b"<s>", EOS: b"</s>", PAD: b"<pad>"}
_SINGLE = "? \n.,abcdefghijklmnopqrstuvwxyz"
_DOUBLE = "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng"
_HALVES = (b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x99\x82")
"""The two halves of é, € and 🙂."""


def _texts(vocabulary_size: int) -> dict[int, bytes]:
    """Return the texts of all but the control tokens; a smaller vocabulary is a prefix."""
    count = vocabulary_size - UNKNOWN
    unique = itertools.islice(dict.fromkeys(_candidates(count)), count)
    return dict(enumerate(unique, start=UNKNOWN))


def _candidates(count: int) -> Iterator[bytes]:
    """Give at least `count` different texts, some twice."""
    yield from (letter.encode() for letter in _SINGLE)
    yield from _HALVES
    yield from (pair.encode() for pair in _DOUBLE.split())
    words = itertools.chain.from_iterable(
        itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=length) for length in (2, 3, 4)
    )
    yield from ("".join(word).encode() for word in itertools.islice(words, 2 * count))


def _longest_matches(text: bytes, ids: Mapping[bytes, int]) -> Iterator[int]:
    longest = max(map(len, ids))
    start = 0
    while start < len(text):
        pieces = (text[start:end] for end in range(start + longest, start, -1))
        piece = next((piece for piece in pieces if piece in ids), b"")
        yield ids.get(piece, UNKNOWN)
        start += len(piece) or 1
