"""Keeps a session's line of guesses and extends it, token by token, to the ordered horizon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Protocol

from draft_service.local_sources import INSTEAD, PIECE, LocalSources
from outrider.engine.guesser import Guess, Guesser
from outrider.engine.job import Step
from outrider.engine.model import Row
from outrider.messages import (
    MAX_DRAFT,
    Frame,
    Order,
    Rule,
    SessionParameters,
    Span,
    check_room,
    compose,
)

FRAME_TOKENS = 4
FRAME_SECONDS = 0.005
"""A frame goes out with this many tokens, or this long after its first one, unless an order
says how many."""

_MOST_UNREAD = 64
"""Tokens that the model may be behind a line from elsewhere; more are read when it is sent."""

_PAUSE = Step((), 0)


class Held(Protocol):
    """What a draft looks at of a `Lease`."""

    @property
    def capacity(self) -> int:
        """Tokens that the session can hold."""

    @property
    def held(self) -> Sequence[int]:
        """The tokens that the cache holds."""

    def reconcile(self, wanted: list[int], row_count: int) -> list[int]:
        """Cut the session to what it shares with a text; return what is left to decode of it."""


class Line:
    """The committed text as last sent, and the tokens drafted after it.

    `base` is the committed length at which the line last started over; a new
    stream has no line.
    """

    def __init__(self, rule: Rule) -> None:
        self.token_ids: list[int] = []
        self.base: int | None = None
        self._rule = rule

    def follow(self, committed: Span, held: Sequence[int]) -> bool:
        """Keep the line if it agrees with the committed text, else start over.

        Returns whether it started over. `held` stands for the text when
        there is no line yet. Raises PositionPastCache when the span starts
        after what is known.
        """
        known = self.token_ids if self.base is not None else held
        text = compose(known, committed)
        if self.base is not None and self._stays(text):
            return False
        self.token_ids = text
        self.base = len(text)
        return True

    def _stays(self, text: list[int]) -> bool:
        # A rejection block is keyed by the position that it starts at, so it
        # cannot serve as a part of another block.
        if self._rule is Rule.REJECTION and self.base != len(text):
            return False
        return self.token_ids[: len(text)] == text


class Drafter:
    """Carries out orders on one session's line.

    What the local sources are sure of goes first; the model goes on behind it. Without a model
    they draft alone.
    """

    def __init__(
        self,
        opening: SessionParameters,
        guess: Guesser | None,
        end_token_ids: Collection[int],
        clock: Callable[[], float],
        local: LocalSources | None = None,
    ) -> None:
        self._line = Line(opening.rule)
        self._guess = guess
        self._local = local or LocalSources(opening, {}, INSTEAD)
        # A block of the rejection rule has a fixed length, whatever is in it.
        self._ends = () if opening.rule is Rule.REJECTION else frozenset(end_token_ids)
        self._frames = FrameBuilder(0, 0, clock)  # of the order that is worked on
        # Orders' text that the engine's thread has not taken yet.
        self._unread: deque[Span] = deque()
        self._clock = clock

    def tell(self, committed: Span) -> None:
        """Note what an order says about the text, from any thread.

        The order may be replaced before it starts, and the next one builds on it.
        """
        self._unread.append(committed)

    def draft(
        self, lease: Held, order: Order, emit: Callable[[Frame], None]
    ) -> Generator[Step, list[Row], None]:
        """Extend the line to the order's horizon; emit frames as it grows.

        The last frame names the completed order and may be empty. A step without tokens decodes
        nothing: it lets others work. Raises PositionPastCache and ContextExhausted.
        """
        line = self._line
        check_room(order.committed.end, lease.capacity)
        restarted = self._follow(order.committed, lease)
        assert line.base is not None
        until = min(order.draft_until, lease.capacity)
        if restarted:
            self._frames = FrameBuilder(line.base, line.base, self._clock)
        # Guesses of a replaced order that were not sent yet go out with these.
        frame = self._frames
        self._local.read()
        while self._guess is None and self._local.is_behind:
            yield _PAUSE
            self._local.read()
        if until <= len(line.token_ids) or self._local.is_behind:
            yield from self._catch_up(lease)
        while len(line.token_ids) < until and not self._ended():
            after = line.token_ids[order.committed.end :]
            local = self._local.propose(until - len(line.token_ids), after)
            frame.is_urgent |= bool(local)
            guesses = local or (yield from self._ask_model(lease, emit))
            if not guesses or not self._extend(guesses, order, emit):
                break
            if not local and frame.due(order.frame_tokens) and len(line.token_ids) < until:
                emit(frame.take())
        emit(frame.take(order.number))
        if len(line.token_ids) - len(lease.held) > _MOST_UNREAD:
            yield from self._catch_up(lease)

    def _extend(
        self, guesses: Sequence[Guess], order: Order, emit: Callable[[Frame], None]
    ) -> bool:
        """Add guesses to the line, up to one that ends the text; return if more may follow."""
        frame = self._frames
        for guess in guesses:
            if frame.due(order.frame_tokens or MAX_DRAFT):
                emit(frame.take())
            self._line.token_ids.append(guess.token_id)
            frame.add(guess)
            if guess.confidence < order.stop_below:
                return False
            if self._ended():
                break
        return True

    def _ask_model(
        self, lease: Held, emit: Callable[[Frame], None]
    ) -> Generator[Step, list[Row], list[Guess]]:
        """Return the model's guess; none where there is no model, or where it doubts."""
        line = self._line
        assert line.base is not None
        if self._guess is None:
            return []
        if self._frames.is_urgent:
            emit(self._frames.take())
        rows = yield Step(lease.reconcile(line.token_ids, 1), 1)
        self._local.read()
        guess = self._guess(rows[0], line.base, line.token_ids)
        return [] if guess.doubtful else [guess]

    def _catch_up(self, lease: Held) -> Generator[Step, list[Row], None]:
        """Decode what is known but not held, so that the next order starts at once.

        The sources read along, a piece after each decode: a long text at once would hold up the
        other sessions.
        """
        missing = lease.reconcile(self._line.token_ids, 1)[:-1]
        size = PIECE if self._local.is_behind else max(1, len(missing))
        for start in range(0, len(missing), size):
            yield Step(missing[start : start + size], 0)
            self._local.read()

    def _follow(self, committed: Span, lease: Held) -> bool:
        """Follow the orders since the last one that started; say if the line restarted."""
        unread = [self._unread.popleft() for _ in range(len(self._unread))]
        spans = [span for span in unread if span.end <= lease.capacity]
        restarts = [self._line.follow(span, lease.held) for span in (*spans, committed)]
        self._local.follow(self._line.token_ids, committed.end)
        return any(restarts)

    def _ended(self) -> bool:
        """Whether the line's own last token ends the text."""
        line = self._line
        assert line.base is not None
        return len(line.token_ids) > line.base and line.token_ids[-1] in self._ends


class FrameBuilder:
    """Collects guesses until a frame is due."""

    def __init__(self, base: int, position: int, clock: Callable[[], float]) -> None:
        self._base = base
        self._position = position
        self._clock = clock
        self._guesses: list[Guess] = []
        self._first_time = 0.0
        self.is_urgent = False
        """Whether it has tokens that cost nothing: they do not wait for a decode."""

    def add(self, guess: Guess) -> None:
        if not self._guesses:
            self._first_time = self._clock()
        self._guesses.append(guess)

    def due(self, frame_tokens: int) -> bool:
        if len(self._guesses) >= (frame_tokens or FRAME_TOKENS):
            return True
        if frame_tokens:
            return False
        return bool(self._guesses) and self._clock() - self._first_time >= FRAME_SECONDS

    def take(self, completed: int = 0) -> Frame:
        """Return the frame and start the next one."""
        guesses, position = self._guesses, self._position
        self._guesses, self._position = [], position + len(guesses)
        self.is_urgent = False
        return Frame(
            base=self._base,
            position=position,
            token_ids=[guess.token_id for guess in guesses],
            confidences=bytes(guess.confidence for guess in guesses),
            rows=[guess.row for guess in guesses if guess.row is not None],
            completed=completed,
            candidates=[guess.candidates for guess in guesses if guess.candidates],
        )
