"""Keeps a session's line of guesses and extends it, token by token, to the ordered horizon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence

from draft_service.guesser import Guess, Guesser
from outrider.engine.job import Lease, Step
from outrider.engine.model import Row
from outrider.messages import (
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
    """Carries out orders on one session's line."""

    def __init__(
        self,
        opening: SessionParameters,
        guess: Guesser,
        end_token_ids: Sequence[int],
        clock: Callable[[], float],
    ) -> None:
        self._line = Line(opening.rule)
        self._guess = guess
        # A block of the rejection rule has a fixed length, whatever is in it.
        self._ends = () if opening.rule is Rule.REJECTION else frozenset(end_token_ids)
        self._frames = _FrameBuilder(0, 0, clock)  # of the order that is worked on
        # Orders' text that the engine's thread has not taken yet.
        self._unread: deque[Span] = deque()
        self._clock = clock

    def tell(self, committed: Span) -> None:
        """Note what an order says about the text, from any thread.

        The order may be replaced before it starts, and the next one builds on it.
        """
        self._unread.append(committed)

    def draft(
        self, lease: Lease, order: Order, emit: Callable[[Frame], None]
    ) -> Generator[Step, list[Row], None]:
        """Extend the line to the order's horizon; emit frames as it grows.

        The last frame names the completed order and may be empty. Raises
        PositionPastCache and ContextExhausted.
        """
        line = self._line
        check_room(order.committed.end, lease.capacity)
        restarted = self._follow(order.committed, lease)
        assert line.base is not None
        until = min(order.draft_until, lease.capacity)
        if restarted:
            self._frames = _FrameBuilder(line.base, line.base, self._clock)
        # Guesses of a replaced order that were not sent yet go out with these.
        frame = self._frames
        if until <= len(line.token_ids):
            yield from _catch_up(lease, line.token_ids)
        while len(line.token_ids) < until and not self._ended(line):
            rows = yield Step(lease.reconcile(line.token_ids, 1), 1)
            guess = self._guess(rows[0], line.base, line.token_ids)
            if guess.doubtful:
                break
            line.token_ids.append(guess.token_id)
            frame.add(guess)
            if guess.confidence < order.stop_below:
                break
            if frame.due(order.frame_tokens) and len(line.token_ids) < until:
                emit(frame.take())
        emit(frame.take(order.number))

    def _follow(self, committed: Span, lease: Lease) -> bool:
        """Follow the orders since the last one that started; say if the line restarted."""
        unread = [self._unread.popleft() for _ in range(len(self._unread))]
        spans = [span for span in unread if span.end <= lease.capacity]
        return any([self._line.follow(span, lease.held) for span in (*spans, committed)])

    def _ended(self, line: Line) -> bool:
        """Whether the line's own last token ends the text."""
        assert line.base is not None
        return len(line.token_ids) > line.base and line.token_ids[-1] in self._ends


def _catch_up(lease: Lease, token_ids: list[int]) -> Generator[Step, list[Row], None]:
    """Decode what is known but not held, so that the next order starts at once."""
    missing = lease.reconcile(token_ids, 1)
    if len(missing) > 1:
        yield Step(missing[:-1], 0)


class _FrameBuilder:
    """Collects guesses until a frame is due."""

    def __init__(self, base: int, position: int, clock: Callable[[], float]) -> None:
        self._base = base
        self._position = position
        self._clock = clock
        self._guesses: list[Guess] = []
        self._first_time = 0.0

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
        return Frame(
            base=self._base,
            position=position,
            token_ids=[guess.token_id for guess in guesses],
            confidences=bytes(guess.confidence for guess in guesses),
            rows=[guess.row for guess in guesses if guess.row is not None],
            completed=completed,
            candidates=[guess.candidates for guess in guesses if guess.candidates],
        )
