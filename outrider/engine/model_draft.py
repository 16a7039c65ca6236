"""A small model in the thread of a large one, which drafts for its sessions between two decodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from time import perf_counter

from outrider.engine.cache import Session, SessionCache, tokens_to_keep
from outrider.engine.calibrate import REPEATS, history
from outrider.engine.model import MAX_ROWS_OUT, Chunk, Model
from outrider.engine.own_draft import DraftCosts, DraftLine, OwnDraft
from outrider.engine.translating import needed_translation
from outrider.translation import TranslatedReader

_READ_ROWS = 64
"""Tokens of a text that are read in one decode; the time is looked at between two of them."""

_FEW_ROWS = 4
"""Tokens of the text that a line's first decode may read, the newest one included."""

_MOST_READERS = 64
"""Texts that are kept in the draft's own ids, where those are others."""


class ModelDraft(OwnDraft):
    """A small model as a draft."""

    def __init__(
        self,
        model: Model,
        clock: Callable[[], float] = perf_counter,
        target: Model | None = None,
    ) -> None:
        """Take the model as it is loaded; its sequences are this draft's alone.

        Where a target is named that has other ids, what is asked and drafted is in those.
        """
        description = model.describe()
        cells = math.inf if description.pool_cells is None else description.pool_cells
        # Every row of a pool looks over what idle sessions hold: one context of it at most.
        idle = math.inf if description.pool_cells is None else description.context
        cache = SessionCache(description.sequence_count, cells, idle)
        at_once = max(1, min(MAX_ROWS_OUT, description.batch_rows // _FEW_ROWS))
        super().__init__(model, model, cache, description.context, at_once, clock)
        self.name, self.weight_bytes = description.name, description.weight_bytes
        self.translation = needed_translation(model, target) if target is not None else None
        self._readers: dict[
            bytes, TranslatedReader
        ] = {}  # by session; only of a draft with other ids
        self._vocabulary = description.vocabulary.token_count  # the target's may be a little larger
        self._read_rows = min(_READ_ROWS, description.batch_rows, description.context // 2)
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

    def _translate(self, line: DraftLine, line_count: int) -> None:
        """Let a line be read in the draft's own ids."""
        if self.translation is None:
            return
        reader = self._readers.pop(line.session_id, None) or self.translation.reader()
        self._readers[line.session_id] = reader  # last, as the one that was used last
        line.translate(self.translation, reader)
        while len(self._readers) > _MOST_READERS + line_count:
            del self._readers[next(iter(self._readers))]

    def _follow(self, line: DraftLine, busy: Collection[bytes], deadline: float) -> Session | None:
        self._translate(line, len(busy))
        text = line.own_ids
        if not text or len(text) + line.ask.count > self._capacity:
            return None
        session = self._enter(line, busy)
        if session is None:
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
        self._readers.pop(session_id, None)
        super().forget(session_id)
