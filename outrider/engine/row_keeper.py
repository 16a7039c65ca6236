"""Writes down what a target decodes for its users, to teach a draft from: see `kept_rows`.

The engine's thread copies what a decode gave and continues; one of this module's own orders it by
sessions, finds the likeliest tokens and writes shards. Where that does not keep up, or the disk
is full, what comes is left out: no text waits for it, or depends on it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from outrider import logs
from outrider.engine.branches import stem_count
from outrider.engine.cache import Session
from outrider.engine.head_draft import HeadTarget
from outrider.engine.hidden_rows import Rows
from outrider.engine.model import Chunk, Row
from outrider.kept_rows import TOP, KeptSource, KeptText, drop_shards, open_folder, write_shard
from outrider.row_window import HIDDEN_ROWS

MOST_BEFORE = 512
"""Tokens before an answer that are kept for a draft model, which reads all of a prompt: those that
it is trained with (`outrider_teach.draft`). A head reads no more than `HIDDEN_ROWS`."""
_MOST_WAITING = 256
"""Decodes of sessions that wait to be ordered: of a vocabulary of 150,000, 150 MB of logits."""
_MOST_ROWS = 1024  # of a text in memory; a longer one is written in parts, which overlap
_SHARD_BYTES = 32 << 20  # of texts that wait for a shard
_SHARD_SECONDS = 30.0  # s; for which a text waits for it at most
_LOOK_SECONDS = 1.0  # s; between two looks at whether a shard is due
_FEWEST = 4  # tokens that were answered: texts with fewer are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Where rows are kept, and what goes first."""

    PREFIX: ClassVar[str] = "kept_"
    """Of what its fields are called among all settings of a process."""
    folder: Path
    most_bytes: int
    """Of all shards; the oldest go."""
    seconds: float
    """After which a shard goes in any case."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    """What a decode gave of one session: `rows` of its newest tokens, `logits` of the last ones."""

    session_id: bytes
    position: int
    """Of the first token."""
    token_ids: Sequence[int]
    rows: NDArray[np.float16]
    logits: Rows
    certain: int
    """Tokens of the session that stay in any case: those after it may be taken back."""


@dataclass(slots=True)
class _OpenText:
    """What is known of a session's text. Positions [first, end), of which those from `certain` on
    may yet be taken back."""

    first: int
    certain: int = 0
    tokens: list[int] = field(default_factory=list)
    rows: list[NDArray[np.float16]] = field(default_factory=list)
    tops: list[tuple[NDArray[np.int32], NDArray[np.float16]] | None] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)

    def cut(self, position: int) -> None:
        """Forget what comes from a position on."""
        count = max(0, position - self.first)
        for each in (self.tokens, self.rows, self.tops):
            del each[count:]

    def kept(self, before: int) -> KeptText:
        """Return what is certain of it: so many rows of a prompt, and all that was answered."""
        self.cut(self.certain)
        asked = next((i for i, top in enumerate(self.tops) if top is not None), len(self.tops))
        begin = max(0, asked + 1 - before)
        none = np.full(TOP, -1, np.int32), np.zeros(TOP, np.float16)
        tops = [top or none for top in self.tops[begin:]]
        return KeptText(
            self.first + begin,
            np.array(self.tokens[begin:], np.int32),
            np.stack(self.rows[begin:]),
            np.stack([ids for ids, _ in tops]),
            np.stack([logprobs for _, logprobs in tops]),
        )

    @property
    def answered(self) -> int:
        """Tokens that are certain, and after which the target said what comes next."""
        return sum(top is not None for top in self.tops[: max(0, self.certain - self.first)])


class RowKeeper:
    """Keeps the rows of a target's sessions. `note` and `end` are called by the engine's thread."""

    def __init__(self, keeping: Keeping, source: KeptSource, target: HeadTarget) -> None:
        """The target keeps its rows already. Raises InvalidConfig for a folder of another."""
        open_folder(keeping.folder, source)
        self._keeping, self._source, self._target = keeping, source, target
        self._before = HIDDEN_ROWS if source.layers else MOST_BEFORE
        self._inbox: queue.SimpleQueue[_Decoded | bytes | None] = queue.SimpleQueue()
        self._ends: dict[bytes, int] = {}  # of each session, the position after what was noted
        # From here on the thread's own.
        self._texts: dict[bytes, _OpenText] = {}
        self._waiting: list[KeptText] = []  # for a shard
        self._due = 0.0  # when they are written
        self._thread = threading.Thread(target=self._run, name="row-keeper", daemon=True)
        self._thread.start()

    def note(self, session: Session, chunk: Chunk, logits: Sequence[Row]) -> None:
        """Take note of a chunk that was decoded, before the session does."""
        if self._inbox.qsize() >= _MOST_WAITING:
            return  # the next one begins anew
        assert session.sequence is not None
        # Of a tree's nodes, which may go, there are no rows.
        count = stem_count(chunk) if chunk.parents else len(chunk.token_ids)
        wanted = max(0, chunk.row_count - (len(chunk.token_ids) - count))
        held, end = session.token_ids, chunk.position + count
        first, rows = self._rows(session.sequence, end)
        known = self._ends.get(session.session_id, -1)
        begin = max(first, chunk.position if known >= chunk.position else 0)
        before = held[begin : chunk.position]
        read = chunk.token_ids[max(0, begin - chunk.position) : count]
        self._ends[session.session_id] = end
        certain = end - wanted + 1 if wanted else end
        self._inbox.put(
            _Decoded(
                session.session_id,
                begin,
                [*before, *read],
                _half(rows[begin - first : end - first]),
                np.array(logits[:wanted], np.float32),
                certain if chunk.certain is None else min(end, chunk.certain),
            )
        )

    def _rows(self, sequence: int, count: int) -> tuple[int, Rows]:
        """Return the first position with a row, and the rows; empty ones where none are kept."""
        if self._source.layers:
            return self._target.hidden_rows(sequence)
        return 0, np.empty((count, 0), np.float32)

    def end(self, session_id: bytes) -> None:
        """Take note that nobody continues a session's text for now."""
        if self._ends.pop(session_id, None) is not None:
            self._inbox.put(session_id)

    def close(self) -> None:
        """Write what there is, and end the thread."""
        self._inbox.put(None)
        self._thread.join()

    # --- the thread ---

    def _run(self) -> None:
        while self._receive():
            if self._waiting and time.monotonic() >= self._due:
                self._write()
        for session_id in list(self._texts):
            self._finish(session_id)
        self._write()

    def _receive(self) -> bool:
        """Take in what comes next; return whether more may come."""
        try:
            found = self._inbox.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return True
        if isinstance(found, _Decoded):
            self._take(found)
        elif found is not None:
            self._finish(found)
        return found is not None

    def _take(self, new: _Decoded) -> None:
        text = self._texts.get(new.session_id)
        if text is None or not text.certain <= new.position <= text.end:
            self._finish(new.session_id)
            text = self._texts[new.session_id] = _OpenText(new.position)
        text.cut(new.position)
        text.tokens.extend(new.token_ids)
        text.rows.extend(new.rows)
        count = len(new.token_ids)
        text.tops.extend([None] * (count - len(new.logits)))
        text.tops.extend(_tops(new.logits[-count:]))
        text.certain = new.certain
        if len(text.tokens) >= _MOST_ROWS:
            self._finish(new.session_id)  # what comes next brings the newest rows again
            self._texts[new.session_id] = _rest_of(text, self._before)

    def _finish(self, session_id: bytes) -> None:
        text = self._texts.pop(session_id, None)
        if text is None or text.answered < _FEWEST:
            return
        if not self._waiting:
            self._due = time.monotonic() + _SHARD_SECONDS
        self._waiting.append(text.kept(self._before))
        count = sum(len(each.tokens) for each in self._waiting)
        if count * self._source.row_bytes >= _SHARD_BYTES:
            self._write()

    def _write(self) -> None:
        keeping, texts = self._keeping, self._waiting
        self._waiting = []
        if not texts:
            return
        try:
            write_shard(keeping.folder, texts)
            drop_shards(keeping.folder, keeping.most_bytes, time.time() - keeping.seconds)
        except OSError as error:
            logs.warning("outrider.target", "rows not kept", detail=f"{error}", texts=len(texts))


def _rest_of(text: _OpenText, before: int) -> _OpenText:
    """Return the newest rows of a text, of which the answers are already kept."""
    begin = max(0, len(text.tokens) - before)
    tokens, rows = text.tokens[begin:], text.rows[begin:]
    return _OpenText(text.first + begin, text.certain, tokens, rows, [None] * len(tokens))


def _half(rows: Rows) -> NDArray[np.float16]:
    """Return rows as they are kept; what float16 cannot say is cut."""
    most = float(np.finfo(np.float16).max)
    return np.clip(rows, -most, most).astype(np.float16)


def _tops(logits: Rows) -> list[tuple[NDArray[np.int32], NDArray[np.float16]] | None]:
    """Return of each row the ids and log probabilities of its likeliest tokens, falling."""
    if not len(logits):
        return []
    most = min(TOP, logits.shape[1])
    best = np.argpartition(logits, -most, axis=1)[:, -most:]
    values = np.take_along_axis(logits, best, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    highest = logits.max(axis=1, keepdims=True)
    total = highest + np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
    ids = np.zeros((len(logits), TOP), np.int32)
    logprobs = np.full((len(logits), TOP), -np.inf, np.float16)
    ids[:, :most] = np.take_along_axis(best, order, axis=1)
    logprobs[:, :most] = (np.take_along_axis(values, order, axis=1) - total).astype(np.float16)
    return list(zip(ids, logprobs, strict=True))
