"""A small model in the thread of a large one, which drafts for its sessions between two decodes.

No message and no other thread is in between, and all sessions share each decode of the draft. What
it holds is a hint like any cache: it follows the text that it is asked about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from outrider.engine.cache import Session, SessionCache, tokens_to_keep
from outrider.engine.calibrate import REPEATS, history
from outrider.engine.guesser import Guess, Guesser
from outrider.engine.model import MAX_ROWS_OUT, Chunk, Model, Row
from outrider.engine.translating import needed_translation
from outrider.translation import ABSENT, TranslatedReader, Translation

_READ_ROWS = 64
"""Tokens of a text that are read in one decode; the time is looked at between two of them."""

_FEW_ROWS = 4
"""Tokens of the text that a line's first decode may read, the newest one included."""

_MOST_READERS = 64
"""Texts that are kept in the draft's own ids, where those are others."""

_MOST_FAILURES = 8
"""Decodes that fail one after the other, until the draft is not asked any more."""


@dataclass(frozen=True, slots=True)
class DraftAsk:
    """A step of a job that wants tokens drafted after a text, in place of rows.

    The job receives what was drafted, `count` guesses at most; fewer where the draft has to read
    the text first, where it doubts, or after one that is less sure than `stop_below` or ends the
    text. A job whose step `gives_way` is over as soon as its session has another.
    """

    text: Sequence[int]
    count: int
    guess: Guesser
    stop_below: int = 0
    ends: Collection[int] = frozenset()
    gives_way: bool = False


@dataclass(slots=True)
class DraftLine:
    """What one session asked, and what was drafted for it so far."""

    session_id: bytes
    salt: bytes  # whose cached texts it may start from
    ask: DraftAsk
    guesses: list[Guess] = field(default_factory=list)
    tokens: list[int] = field(init=False)  # the text, and after it those of `guesses`
    own_ids: list[int] = field(init=False)  # the same as the draft reads it
    translation: Translation | None = None  # of its ids, where they are others
    is_over: bool = False  # nothing more is drafted

    def __post_init__(self) -> None:
        """Begin after the text."""
        self.own_ids = self.tokens = list(self.ask.text)

    def translate(self, translation: Translation, reader: TranslatedReader) -> None:
        """Read the text in other ids."""
        self.translation = translation
        self.own_ids = list(reader.read(self.tokens, len(self.tokens)))

    def take(self, row: Row) -> None:
        """Pick the next token from its row of logits."""
        ask = self.ask
        guess = ask.guess(row, len(ask.text), self.tokens)
        if guess.doubtful:
            self.is_over = True
            return
        self.guesses.append(guess)
        self.tokens.append(guess.token_id)
        if self.translation is not None:
            own_id = int(self.translation.to_draft[guess.token_id])
            if own_id == ABSENT:  # a guess where all that is shared is forbidden
                self.is_over = True
                return
            self.own_ids.append(own_id)
        is_last = len(self.guesses) == ask.count or guess.token_id in ask.ends
        self.is_over = is_last or guess.confidence < ask.stop_below


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """Seconds of the draft's decodes with nothing before them, as timed after the load."""

    token: float
    """Of one token."""
    read: float
    """Of each token of a text that is read."""


class OwnDraft:
    """The draft of one engine. All calls come from the engine's thread.

    Nothing that it does or that is in a text ends that thread.
    """

    def __init__(
        self,
        model: Model,
        clock: Callable[[], float] = perf_counter,
        target: Model | None = None,
    ) -> None:
        """Take the model as it is loaded; its sequences are this draft's alone.

        Where a target is named that has other ids, what is asked and drafted is in those.
        """
        self.model = model
        self.translation = needed_translation(model, target) if target is not None else None
        self._readers: dict[
            bytes, TranslatedReader
        ] = {}  # by session; only of a draft with other ids
        description = model.describe()
        cells = math.inf if description.pool_cells is None else description.pool_cells
        # Every row of a pool looks over what idle sessions hold: one context of it at most.
        idle = math.inf if description.pool_cells is None else description.context
        self._cache = SessionCache(description.sequence_count, cells, idle)
        self._capacity = description.context
        self._batch_rows = description.batch_rows
        self._vocabulary = description.vocabulary.token_count  # the target's may be a little larger
        self._read_rows = min(_READ_ROWS, description.batch_rows, description.context // 2)
        self._clock = clock
        self._failures = 0  # in a row
        self.costs = self._time()

    def _time(self) -> DraftCosts:
        """Return what decodes cost here; sequence 0 is used and left empty."""
        rows = self._read_rows
        ids = history(self.model, rows)
        seconds = {1: math.inf, rows: math.inf}
        for count in (1, rows) * REPEATS:
            begin = self._clock()
            self.model.decode([Chunk(0, 0, ids[:count], 1)])
            seconds[count] = min(seconds[count], self._clock() - begin)
            self.model.truncate(0, 0)
        return DraftCosts(token=seconds[1], read=seconds[rows] / rows)

    @property
    def is_usable(self) -> bool:
        """Whether it still answers: not after many failed decodes in a row."""
        return self._failures < _MOST_FAILURES

    def draft(self, lines: Sequence[DraftLine], read_seconds: float) -> None:
        """Extend the lines, all of them in the same decodes.

        A line whose text is not read yet stays empty, after about `read_seconds` of reading. What
        fails ends these lines and nothing else.
        """
        if not self.is_usable:
            return
        deadline = self._clock() + read_seconds
        busy = {line.session_id for line in lines}
        try:
            self._translate(lines)
            found = [(line, self._follow(line, busy, deadline)) for line in lines]
            ready = [(line, session) for line, session in found if session is not None]
            while ready := [pair for pair in ready if not pair[0].is_over]:
                for first in range(0, len(ready), self._lines_at_once):
                    self._step(ready[first : first + self._lines_at_once])
            self._failures = 0
        except Exception:
            # Of any kind: the target's thread continues without a draft, which only costs speed.
            self._failures += 1
            for line in lines:
                self.forget(line.session_id)

    def _translate(self, lines: Sequence[DraftLine]) -> None:
        if self.translation is None:
            return
        for line in lines:
            reader = self._readers.pop(line.session_id, None) or self.translation.reader()
            self._readers[line.session_id] = reader  # last, as the one that was used last
            line.translate(self.translation, reader)
        while len(self._readers) > _MOST_READERS + len(lines):
            del self._readers[next(iter(self._readers))]

    @property
    def _lines_at_once(self) -> int:
        """The lines whose next tokens fit one decode, however many are missing."""
        return max(1, min(MAX_ROWS_OUT, self._batch_rows // _FEW_ROWS))

    def _follow(self, line: DraftLine, busy: Collection[bytes], deadline: float) -> Session | None:
        """Hold the text but for its end; return where, or None where the line may not begin."""
        text = line.own_ids
        if not text or len(text) + line.ask.count > self._capacity:
            return None
        now = self._clock()
        session = self._cache.enter(line.session_id, now)
        if session.sequence is None and not self._place(session, line, busy):
            self._cache.forget(line.session_id)
            return None
        self._keep(session, text)
        if max(text[len(session.token_ids) :]) >= self._vocabulary:
            return None  # it cannot read that
        is_late = False  # one piece at least, or it would never come to the end
        while (missing := len(text) - len(session.token_ids)) > _FEW_ROWS:
            if is_late:
                return None
            count = min(self._read_rows, missing - 1)
            self._read(session, text[len(session.token_ids) :][:count])
            is_late = self._clock() >= deadline
        return session

    def _place(self, session: Session, line: DraftLine, busy: Collection[bytes]) -> bool:
        """Give a session a sequence, with what another one of its salt has of the text."""
        text = line.own_ids
        placement = self._cache.place(session, text, busy, line.salt, room=self._capacity)
        if placement is None:
            return False
        if placement.donor not in (None, placement.sequence):
            held = self.model.copy_prefix(placement.donor, placement.sequence, placement.count)
        else:
            held = self.model.truncate(placement.sequence, placement.count)
        del session.token_ids[held:]
        for sequence in self._cache.take_left():
            self.model.truncate(sequence, 0)
        return True

    def _keep(self, session: Session, text: Sequence[int]) -> None:
        """Cut what differs from the text; the row of its last token is wanted again."""
        count = tokens_to_keep(session.token_ids, text, 1)
        if count < len(session.token_ids):
            assert session.sequence is not None
            del session.token_ids[self.model.truncate(session.sequence, count) :]

    def _read(self, session: Session, token_ids: Sequence[int]) -> None:
        assert session.sequence is not None
        self.model.decode([Chunk(session.sequence, len(session.token_ids), token_ids, 0)])
        session.token_ids.extend(token_ids)

    def _step(self, lines: Sequence[tuple[DraftLine, Session]]) -> None:
        """Decode what each line has beyond its cache, and pick its next token."""
        chunks = []
        for line, session in lines:
            assert session.sequence is not None
            held, certain = len(session.token_ids), len(line.own_ids) - len(line.guesses)
            missing = line.own_ids[held:]
            chunks.append(Chunk(session.sequence, held, missing, 1, certain=certain))
        rows = self.model.decode(chunks)
        for (line, session), chunk, [row] in zip(lines, chunks, rows, strict=True):
            session.token_ids.extend(chunk.token_ids)
            line.take(row)

    def forget(self, session_id: bytes) -> None:
        """Drop what is held of a session."""
        self._readers.pop(session_id, None)
        self._cache.forget(session_id)
        for sequence in self._cache.take_left():
            self.model.truncate(sequence, 0)

    def close(self) -> None:
        """Free the model."""
        self.model.close()
