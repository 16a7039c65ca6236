"""Keeps a session's line of guesses and extends it, token by token, to the ordered horizon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any, Protocol

from draft_service.local_sources import INSTEAD, LocalSources
from draft_service.runner_ups import RunnerUpLine, RunnerUps
from draft_service.translators import MOST_AT_ONCE, MOST_FOR_EACH, Translator
from outrider.drafters.source import READ_AT_ONCE
from outrider.engine.guesser import Guess, Guesser
from outrider.engine.job import Step
from outrider.engine.model import Row
from outrider.errors import PositionPastCache
from outrider.messages import (
    FRAME_SECONDS,
    FRAME_TOKENS,
    MAX_DRAFT,
    MAX_LINES,
    Frame,
    Order,
    Rule,
    RunnerUp,
    ServiceTime,
    SessionParameters,
    Span,
    check_room,
    compose,
)

_MOST_UNREAD = 64
"""Tokens that the model may lag a line from elsewhere; more are read when it is sent."""

_MOST_WAITING = 1 << 20
"""Tokens of orders that did not start; more are forgotten, and asked for anew."""

_MOST_RIVALS = 2
"""Runner-ups of a token that may get a line."""

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


class Helper(Held, Protocol):
    """What runner-up lines need besides."""

    @property
    def shares_cells(self) -> bool:
        """Whether taking over a prefix copies nothing."""

    def take_prefix(self, other: Any, wanted: Sequence[int]) -> None:
        """Hold what another session of the stream holds of a text, where that is more."""

    def take_spent(self) -> ServiceTime:
        """Return the engine's time since this was last asked."""


class DraftedText:
    """The committed text as last sent, and the tokens drafted after it.

    `base` is the committed length at which the line last started over; a new
    stream has no line.
    """

    def __init__(self, rule: Rule) -> None:
        self.token_ids: list[int] = []
        self.base: int | None = None
        self._rule = rule

    def follow(
        self, committed: Span, held: Sequence[int], runner_ups: RunnerUps | None = None
    ) -> bool:
        """Keep the line if it agrees with the committed text, else start over.

        A runner-up line that agrees takes its place. Returns whether it started over. `held`
        stands for the text when there is no line yet. Raises PositionPastCache when the span
        starts after what is known.
        """
        known = self.token_ids if self.base is not None else held
        text = compose(known, committed)
        runner_ups = runner_ups or RunnerUps()
        if self.base is not None and self._stays(text):
            runner_ups.follow(text)
            return False
        if self.base is not None and (branch := runner_ups.adopt(text)):
            self.token_ids = branch.token_ids
            return False
        self.token_ids = text
        self.base = len(text)
        runner_ups.start_over(text)
        return True

    def _stays(self, text: list[int]) -> bool:
        # A rejection block is keyed by the position that it starts at, so it
        # cannot serve as a part of another block.
        if self._rule is Rule.REJECTION and self.base != len(text):
            return False
        return self.token_ids[: len(text)] == text


class UnreadText:
    """The text of orders that the engine's thread has not taken yet, oldest first.

    An order may be replaced before it starts, and the next one builds on it. `_count` is what the
    spans hold, each counted as one token more than it has; it is no more than _MOST_WAITING unless
    one span alone is.
    """

    def __init__(self) -> None:
        self.spans: deque[Span] = deque()
        self._count = 0

    def add(self, span: Span) -> None:
        """Take in the text of an order. What comes before too much is dropped, and then missing."""
        if span.position == 0:  # it says all of it again
            self.spans.clear()
            self._count = 0
        self.spans.append(span)
        self._count += 1 + len(span.token_ids)
        while self._count > _MOST_WAITING and len(self.spans) > 1:
            self._count -= 1 + len(self.spans.popleft().token_ids)


class Drafter:
    """Carries out orders on one session's line.

    What the local sources are sure of goes first; the model continues after it. Without a model
    they draft alone.
    """

    def __init__(
        self,
        opening: SessionParameters,
        guess: Guesser | None,
        end_token_ids: Collection[int],
        clock: Callable[[], float],
        local: LocalSources | None = None,
        translator: Translator | None = None,
    ) -> None:
        """With a translator the model's ids are others than the line's, and it asks the model."""
        self._translator = translator
        self._line = DraftedText(opening.rule)
        self._guess = guess
        self._local = local or LocalSources(opening, {}, INSTEAD)
        # A block of the rejection rule has a fixed length, with any tokens.
        self._ends = () if opening.rule is Rule.REJECTION else frozenset(end_token_ids)
        self._frames = FrameBuilder(0, 0, clock)  # of the order that is worked on
        self._unread = UnreadText()  # another one once the engine's thread took it
        self._clock = clock
        # Under rejection a block is whole or nothing, and candidates are reported of one line. With
        # a prompt of its own a draft's line was seen to lag its runner-ups.
        self._may_fork = opening.rule is not Rule.REJECTION and not opening.candidate_count
        self._may_fork = self._may_fork and not opening.own_prompt
        self._runner_ups = RunnerUps()
        self._certain = 0  # tokens of the newest order's text, which stay
        self._until = 0  # how far the lines may go, by the newest order
        self._line_count = 1  # that are written at once, by the same
        self._leases: dict[int, Any] = {}  # of the line's session, 0, and the helpers', by number
        self._is_drafting = (
            False  # an order is worked on: its frames take the runner-up lines along
        )
        self._sent_time = 0.0  # when a frame was last emitted
        self._runner_up_seconds = 0.0  # of decodes without the line itself; since last asked
        self.on_spare: Callable[[int], None] = lambda count: None
        """Called in the engine's thread when so many helpers would have something to do."""

    def note_text(self, committed: Span) -> None:
        """Note the text that came with an order, from any thread.

        The order may be replaced before it starts, and the next one builds on it.
        """
        self._unread.add(committed)

    def draft(
        self, lease: Held, order: Order, emit: Callable[[Frame], None]
    ) -> Generator[Step, list[Row], None]:
        """Extend the line to the order's horizon; emit frames as it grows.

        The last frame names the completed order and may be empty. A step without tokens decodes
        nothing: it lets others work. Raises PositionPastCache and ContextExhausted.
        """
        self._is_drafting = True
        try:
            yield from self._draft(lease, order, emit)
        finally:
            self._is_drafting = False

    def _draft(
        self, lease: Held, order: Order, emit: Callable[[Frame], None]
    ) -> Generator[Step, list[Row], None]:
        line = self._line
        check_room(order.committed.end, self._most(lease))
        if not self._is_short(order.committed):
            raise PositionPastCache(order.committed.position, 0)
        restarted = self._follow(order.committed, lease)
        assert line.base is not None
        if self._translator is None:
            until = min(order.draft_until, lease.capacity)
        else:
            until = order.draft_until  # it knows itself what room its own tokens leave
            if restarted:
                check_room(len(self._own(line.token_ids)), lease.capacity)
        if restarted:
            self._frames = FrameBuilder(line.base, line.base, self._clock)
        self._begin_forking(lease, order, until)
        # Guesses of a replaced order that were not sent yet go out with these.
        frame, self._certain = self._frames, order.committed.end
        self._local.read()
        while not self._has_model and self._local.has_unread:
            yield _PAUSE
            self._local.read()
        if until <= len(line.token_ids) or self._local.has_unread:
            yield from self._catch_up(lease)
        while len(line.token_ids) < until and not self._ended():
            after = line.token_ids[order.committed.end :]
            local = self._local.propose(until - len(line.token_ids), after)
            frame.is_urgent |= bool(local)
            guesses = local or (yield from self._ask_model(lease, emit))
            if not guesses or not self._extend(guesses, order, emit):
                break
            if not local and frame.due(order.frame_tokens) and len(line.token_ids) < until:
                emit(self._take_frame())
        emit(self._take_frame(order.number))
        if len(self._own(line.token_ids)) - len(lease.held) > _MOST_UNREAD:
            yield from self._catch_up(lease)

    def _extend(
        self, guesses: Sequence[Guess], order: Order, emit: Callable[[Frame], None]
    ) -> bool:
        """Add guesses to the line, up to one that ends the text; return if more may follow."""
        frame = self._frames
        for guess in guesses:
            if frame.due(order.frame_tokens or MAX_DRAFT):
                emit(self._take_frame())
            self._line.token_ids.append(guess.token_id)
            frame.add(guess)
            if self._line_count > 1:
                self._runner_ups.note(self._line.token_ids, guess.chances)
                self._wake_helpers()
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
        if not self._has_model:
            return []
        if self._frames.is_urgent:
            emit(self._take_frame())
        if self._translator is not None:
            self._local.read()
            asked = lease, line.token_ids, line.base, self._rivals, self._certain
            return (yield from self._translator.ask(*asked))
        assert self._guess is not None
        rows = yield Step(lease.reconcile(line.token_ids, 1), 1, certain=self._certain)
        self._local.read()
        guess = self._guess(rows[0], line.base, line.token_ids, self._rivals)
        return [] if guess.doubtful else [guess]

    def _own(self, text: list[int]) -> list[int]:
        """Return a text of the line's in the ids that the model reads."""
        if self._translator is None:
            return text
        assert self._line.base is not None
        return self._translator.own_text(text, min(self._line.base, len(text)))

    def _catch_up(self, lease: Held) -> Generator[Step, list[Row], None]:
        """Decode what is known but not held, so that the next order starts at once.

        The sources read along, a piece after each decode: a long text at once would hold up the
        other sessions.
        """
        own = self._own(self._line.token_ids)
        if not own:  # none of the text is anything to the model
            return
        missing, certain, base = lease.reconcile(own, 1)[:-1], self._certain, self._line.base
        if self._translator is not None and base is not None:
            certain = self._translator.certain(self._line.token_ids, base, certain)
            missing = missing[: max(0, lease.capacity - len(lease.held))]
        size = READ_AT_ONCE if self._local.has_unread else max(1, len(missing))
        for start in range(0, len(missing), size):
            yield Step(missing[start : start + size], 0, certain=certain)
            self._local.read()

    def _follow(self, committed: Span, lease: Held) -> bool:
        """Follow the orders since the last one that started; say if the line restarted."""
        taken, self._unread = self._unread, UnreadText()
        unread = list(taken.spans)
        held: Sequence[int] = lease.held
        most = self._most(lease)
        unread = [span for span in unread if span.end <= most and self._is_short(span)]
        if self._translator is not None:
            held = ()  # they are other ids
        before = self._runner_ups.number
        restarts = [
            self._line.follow(span, held, self._runner_ups) for span in (*unread, committed)
        ]
        if not any(restarts) and self._runner_ups.number != before:
            self._go_over(lease)
        self._local.follow(self._line.token_ids, committed.end)
        return any(restarts)

    def _most(self, lease: Held) -> int:
        """Return how long a text may be, before anything is known of it."""
        return lease.capacity * (1 if self._translator is None else MOST_FOR_EACH)

    def _is_short(self, span: Span) -> bool:
        """Return whether what a span adds holds up nobody while it is encoded."""
        is_read = self._translator is None or span.position == 0
        return is_read or len(span.token_ids) <= MOST_AT_ONCE

    @property
    def _has_model(self) -> bool:
        return self._guess is not None or self._translator is not None

    # --- runner-up lines ---

    @property
    def _rivals(self) -> int:
        """How many runner-ups of a token to look at."""
        return _MOST_RIVALS if self._line_count > 1 else 0

    def _begin_forking(self, lease: Any, order: Order, until: int) -> None:
        """Take note of how many lines an order wants, and let what is there be extended."""
        is_possible = self._may_fork and self._guess is not None
        is_possible = is_possible and order.line_count > 1 and lease.shares_cells
        self._line_count = order.line_count if is_possible else 1
        self._runner_ups.split_chance = order.split_chance
        self._until, self._leases[0] = until, lease
        if self._line_count > 1:
            self._wake_helpers()

    def _wake_helpers(self) -> None:
        """Let as many helpers work as there are lines to extend."""
        if count := min(self._line_count - 1, self._runner_ups.work_count(self._until)):
            self.on_spare(count)

    def _go_over(self, lease: Held) -> None:
        """Continue with the runner-up line that the text took, and with what was read of it."""
        branch, base = self._runner_ups.adopted, self._line.base
        assert branch is not None and base is not None
        position = len(branch.token_ids) - len(branch.unsent)
        self._frames = FrameBuilder(base, position, self._clock, branch.number)
        for token_id, confidence in branch.unsent:
            self._frames.add(Guess(token_id, confidence))
        self._read_along(lease, branch.token_ids)

    def _read_along(self, lease: Any, text: Sequence[int]) -> None:
        own = self._own(list(text))
        for other in self._leases.values():
            lease.take_prefix(other, own)

    def help(
        self, number: int, lease: Helper, emit: Callable[[Frame], None]
    ) -> Generator[Step, list[Row], None]:
        """Extend runner-up lines, the likeliest first, for as long as one may continue.

        Helpers are numbered from 1. Each has a session, which takes over what the others hold.
        """
        self._leases[number] = lease
        while self._line_count > number:
            branch = self._runner_ups.take(min(self._until, lease.capacity))
            if branch is None:
                break
            yield from self._help_with(branch, lease)
            is_due = self._clock() - self._sent_time >= FRAME_SECONDS
            if not self._is_drafting and (is_due or self._runner_ups.unsent_count >= MAX_LINES):
                emit(self._take_frame())
        if not self._is_drafting and self._runner_ups.unsent_count:
            emit(self._take_frame())

    def _help_with(self, branch: RunnerUpLine, lease: Helper) -> Generator[Step, list[Row], None]:
        """Extend a runner-up line by a token."""
        base = self._line.base
        assert self._guess is not None and base is not None
        self._read_along(lease, branch.token_ids)
        missing = lease.reconcile(self._own(branch.token_ids), 1)
        is_alone = not self._is_drafting
        try:
            rows = yield Step(missing, 1)
        finally:
            branch.is_taken = False
        spent = lease.take_spent()
        if is_alone and spent.rows:
            self._runner_up_seconds += spent.decode * min(1.0, len(missing) / spent.rows)
        guess = self._guess(rows[0], base, branch.token_ids, self._rivals)
        if guess.doubtful or guess.token_id in self._ends:
            branch.is_over = True
        if not guess.doubtful:
            self._runner_ups.extend(branch, guess.token_id, guess.confidence, guess.chances)

    def take_runner_up_seconds(self) -> float:
        """Return the time of decodes for runner-up lines alone, since this was last asked.

        Each counts by its share of the rows: several lines may have been in one decode.
        """
        seconds, self._runner_up_seconds = self._runner_up_seconds, 0.0
        return seconds

    def _take_frame(self, completed: int = 0) -> Frame:
        self._sent_time = self._clock()
        return self._frames.take(completed, self._runner_ups.take_unsent())

    def _ended(self) -> bool:
        """Whether the line's own last token ends the text."""
        line = self._line
        assert line.base is not None
        return len(line.token_ids) > line.base and line.token_ids[-1] in self._ends


class FrameBuilder:
    """Collects guesses until a frame is due."""

    def __init__(self, base: int, position: int, clock: Callable[[], float], line: int = 0) -> None:
        self._base = base
        self._line = line
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

    def take(self, completed: int = 0, runner_ups: Sequence[RunnerUp] = ()) -> Frame:
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
            line=self._line,
            runner_ups=runner_ups,
        )
