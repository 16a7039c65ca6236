"""What drafts for a target's sessions in the target's own thread, between two of its decodes.

No message and no other thread is in between, and all sessions share each decode of the draft. What
it holds is a hint like any cache: it follows the text that it is asked about. `ModelDraft` is a
small model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from outrider import logs
from outrider.engine.cache import Session, SessionCache
from outrider.engine.guesser import Guess, Guesser
from outrider.engine.model import Model, Row
from outrider.speculation import HeadKind
from outrider.translation import ABSENT, TranslatedReader, Translation

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
    sequence: int | None = None  # of the target, that holds the text but for its end
    guesses: list[Guess] = field(default_factory=list)
    tokens: list[int] = field(init=False)  # the text, and after it those of `guesses`
    own_ids: list[int] = field(init=False)  # the same as the draft reads it
    translation: Translation | None = None  # of its ids, where they are others
    is_over: bool = False  # nothing more is drafted
    fault: Exception | None = None  # that ended it alone

    def __post_init__(self) -> None:
        """Begin after the text."""
        self.own_ids = self.tokens = list(self.ask.text)

    def translate(self, translation: Translation, reader: TranslatedReader) -> None:
        """Read the text in other ids."""
        self.translation = translation
        self.own_ids = list(reader.read(self.tokens, len(self.tokens)))

    def take(self, row: Row) -> None:
        """Pick the next token from its row of logits; the line ends where that fails."""
        ask = self.ask
        try:
            guess = ask.guess(row, len(ask.text), self.tokens)
        except Exception as error:
            if np.isnan(row).any():
                raise  # the draft computes no numbers
            # What this session asks of sampling is no fault of the draft.
            self.is_over, self.fault = True, error
            return
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


class DraftMemory(Protocol):
    """The sequences that a draft keeps its sessions' texts in; `Model` says what each does."""

    def truncate(self, sequence: int, token_count: int) -> int: ...

    def copy_prefix(self, source: int, destination: int, token_count: int) -> int: ...

    def close(self) -> None: ...


class OwnDraft(ABC):
    """The draft of one engine. All calls come from the engine's thread.

    Nothing that it does or that is in a text ends that thread.
    """

    name: str
    """Of the file that it is in."""
    head_kind: HeadKind | None = None
    """How it drafts, where it is a head; None: a small model."""
    weight_bytes: int
    """That it reads for a token."""
    most_tokens: int = 0
    """That it drafts after a text; 0: any number."""
    costs: DraftCosts
    translation: Translation | None = None
    """Of its ids, where they are others than the target's."""

    def __init__(
        self,
        model: Model,
        memory: DraftMemory,
        cache: SessionCache,
        capacity: int,
        lines_at_once: int,
        clock: Callable[[], float],
    ) -> None:
        """`model` has the sampler chains that its tokens are picked by.

        The sequences of the memory are this draft's alone; `capacity` are the tokens of one, and
        the next tokens of `lines_at_once` lines fit one decode, however many are missing.
        """
        self.model = model
        self._memory = memory
        self._cache = cache
        self._capacity = capacity
        self._lines_at_once = lines_at_once
        self._clock = clock
        self._failures = 0  # in a row
        self._has_reported = False  # that a line ended alone

    @property
    def is_usable(self) -> bool:
        """Whether it still answers: not after many failed decodes in a row."""
        return self._failures < _MOST_FAILURES

    def draft(self, lines: Sequence[DraftLine], read_seconds: float) -> None:
        """Extend the lines, all of them in the same decodes.

        A line whose text is not read yet stays empty, after about `read_seconds` of reading. A
        decode that fails ends these lines and nothing else.
        """
        if not self.is_usable:
            return
        deadline = self._clock() + read_seconds
        busy = {line.session_id for line in lines}
        try:
            found = [(line, self._follow(line, busy, deadline)) for line in lines]
            ready = [(line, session) for line, session in found if session is not None]
            while ready := [pair for pair in ready if not pair[0].is_over]:
                for first in range(0, len(ready), self._lines_at_once):
                    self._step(ready[first : first + self._lines_at_once])
            self._failures = 0
            self._report_fault(lines)
        except Exception as error:
            # Of any kind: the target's thread continues without a draft, which only costs speed.
            self._failures += 1
            if not self.is_usable:
                logs.warning("outrider.target", "own draft off", name=self.name, detail=str(error))
            for line in lines:
                self.forget(line.session_id)

    def _report_fault(self, lines: Sequence[DraftLine]) -> None:
        """Log the first line that ended alone: a rare one costs little, a kind of them is a bug."""
        fault = next((line.fault for line in lines if line.fault is not None), None)
        if fault is not None and not self._has_reported:
            self._has_reported = True
            logs.warning("outrider.target", "own draft failed", name=self.name, detail=repr(fault))

    @abstractmethod
    def _follow(self, line: DraftLine, busy: Collection[bytes], deadline: float) -> Session | None:
        """Hold the text but for its end; return where, or None where the line may not begin."""

    @abstractmethod
    def _step(self, lines: Sequence[tuple[DraftLine, Session]]) -> None:
        """Decode what each line has beyond its cache, and pick its next token."""

    def _enter(self, line: DraftLine, busy: Collection[bytes]) -> Session | None:
        """Return the session of a line with a sequence; None where there is none to have."""
        session = self._cache.enter(line.session_id, self._clock())
        if session.sequence is None and not self._place(session, line, busy):
            self._cache.forget(line.session_id)
            return None
        return session

    def _place(self, session: Session, line: DraftLine, busy: Collection[bytes]) -> bool:
        """Give a session a sequence, with what another one of its salt has of the text."""
        text = line.own_ids
        placement = self._cache.place(session, text, busy, line.salt, room=self._capacity)
        if placement is None:
            return False
        if placement.donor not in (None, placement.sequence):
            held = self._memory.copy_prefix(placement.donor, placement.sequence, placement.count)
        else:
            held = self._memory.truncate(placement.sequence, placement.count)
        del session.token_ids[held:]
        self._empty_left()
        return True

    def _empty_left(self) -> None:
        for sequence in self._cache.take_left():
            self._memory.truncate(sequence, 0)

    def forget(self, session_id: bytes) -> None:
        """Drop what is held of a session."""
        self._cache.forget(session_id)
        self._empty_left()

    def close(self) -> None:
        """Free what it was loaded with."""
        self._memory.close()
