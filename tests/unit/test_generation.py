"""A generation writes the target's own text, whatever happens to it and in whatever order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from draft_service.drafter import DraftedText
from outrider.core.actions import Commit, End, RollBack
from outrider.core.counts import Counts, SourceCounts
from outrider.core.generation import Generation
from outrider.core.plan import Plan
from outrider.core.rates import DraftRates, Mean
from outrider.core.speculate import control
from outrider.core.target_costs import Pair, TargetCosts
from outrider.distribution import certain
from outrider.errors import ContextExhausted, PositionPastCache
from outrider.messages import (
    FinishReason,
    Form,
    Frame,
    Order,
    Origin,
    Round,
    Rows,
    Rule,
    SessionParameters,
    Span,
    check_room,
    compose,
)
from outrider.sampling import GREEDY
from outrider.speculation import Policy, Speculation
from tests.support.ticking import Ticking

# Not shrunk: that takes half a minute and leaves as many events as there were.
SETTINGS = settings(derandomize=True, deadline=None, max_examples=120, phases=[Phase.generate])

END = 0
VOCABULARY = 8
PROMPT = [3, 1, 4, 1]
EVENTS = st.binary(min_size=150, max_size=300)
"""What happens, as bytes: each picks one of the things that can happen next."""


def plan(
    rule: Rule = Rule.MATCH,
    *,
    limit: int = 20,
    draft: int = 3,
    policy: Policy = Policy.FIXED,
    run_ahead: bool | None = False,
    ends: frozenset[int] = frozenset({END}),
    **options: object,
) -> Plan:
    """Return a plan for PROMPT."""
    opening = SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=rule,
        sampling=GREEDY,
        seed=7,
        choice=0,
        prompt_count=len(PROMPT),
        token_limit=limit,
        vocabulary=VOCABULARY,
        end_token_ids=ends,
    )
    usual: dict[str, object] = {
        "form": Form.DISTRIBUTIONS if rule is Rule.REJECTION else Form.SAMPLED,
        "rollback_calls": False,
        "target_context": 1000,
    }
    speculation = Speculation(n_max=draft, policy=policy, run_ahead=run_ahead)
    its_control = control(speculation, rule, Pair(), timeout=1.0)
    return Plan(opening=opening, prompt=PROMPT, control=its_control, **(usual | options))  # type: ignore[arg-type]


def next_token(text: Sequence[int]) -> int:
    """Return what the target writes after a text: a hash of it, an end now and then."""
    mixed = sum((i + 1) * token * 2654435761 for i, token in enumerate(text)) % 2**32
    mixed ^= mixed >> 15
    return END if mixed % 29 == 0 else 1 + mixed % (VOCABULARY - 1)


def guess(text: Sequence[int]) -> int:
    """Return what the draft writes: mostly the same."""
    token = next_token(text)
    return token if (sum(text) + len(text)) % 6 else 1 + token % (VOCABULARY - 1)


def written_alone(its_plan: Plan) -> list[int]:
    """Return what the target writes with no draft."""
    text = list(PROMPT)
    while len(text) < len(PROMPT) + its_plan.opening.token_limit:
        text.append(next_token(text))
        if text[-1] in its_plan.end_token_ids:
            break
    return text


# a target, a draft, and everything that can happen between them


@dataclass
class Target:
    """A target service with one session and one stream."""

    context: int
    opened: bool = False
    held: list[int] = field(default_factory=list)
    inbox: deque[Round] = field(default_factory=deque)
    outbox: deque[tuple[int, Callable[[Generation], None]]] = field(default_factory=deque)

    def work(self) -> None:
        """Answer the oldest round."""
        round_ = self.inbox.popleft()
        self.outbox.append((round_.number, self._answer(round_)))

    def _answer(self, round_: Round) -> Callable[[Generation], None]:
        number = round_.number
        try:
            prefix = compose(self.held, round_.prefix)
            check_room(len(prefix) + len(round_.draft), self.context)
        except PositionPastCache as missing:
            held = missing.held
            return lambda generation: generation.target_missing(number, held)
        except ContextExhausted:
            return lambda generation: generation.target_full(number)
        self.held = [*prefix, *round_.draft]
        ids = [next_token(self.held[: len(prefix) + i]) for i in range(round_.row_count)]
        distributions = [certain(i) for i in ids]
        rows = (
            Rows(sampled=ids) if round_.form is Form.SAMPLED else Rows(distributions=distributions)
        )
        return lambda generation: generation.target_rows(number, rows)


@dataclass
class Draft:
    """A draft service with one session and one stream."""

    rule: Rule
    opened: bool = False
    held: list[int] = field(default_factory=list)
    inbox: deque[Order] = field(default_factory=deque)
    outbox: deque[Callable[[Generation], None]] = field(default_factory=deque)
    frames: list[Frame] = field(default_factory=list)  # all that were sent on this stream
    past: list[list[Frame]] = field(default_factory=list)  # and on earlier ones
    texts: dict[int, list[int]] = field(default_factory=dict)  # by order: what was understood
    loses_unsent: bool = False  # when an order is replaced

    def open(self) -> None:
        """Begin a stream: it has no line."""
        self.opened = True
        self.line = DraftedText(self.rule)
        self.order: Order | None = None
        self.unsent: list[int] = []
        self.past.append(self.frames)
        self.frames = []

    def take_order(self) -> None:
        """Let the oldest order that has not begun replace the one in flight."""
        if not self.loses_unsent:
            self._send(0)
        self.unsent = []
        order = self.order = self.inbox.popleft()
        try:
            self.line.follow(order.committed, self.held)
        except PositionPastCache as missing:
            held, self.order = missing.held, None
            self.outbox.append(lambda generation: generation.draft_missing(order.number, held))
            return
        self.texts[order.number] = self.line.token_ids[: order.committed.end]
        self.held = list(self.line.token_ids)

    def work(self) -> None:
        """Draft a token, or complete the order."""
        assert self.order is not None
        text = self.line.token_ids
        ended = len(text) > (self.line.base or 0) and text[-1] == END
        if len(text) < self.order.draft_until and not (ended and self.rule is not Rule.REJECTION):
            text.append(guess(text))
            self.held = list(text)
            self.unsent.append(text[-1])
            if len(self.unsent) == 2:
                self._send(0)
        else:
            self._send(self.order.number)
            self.order = None

    def _send(self, completed: int) -> None:
        if self.line.base is None or not (self.unsent or completed):
            return
        frame = Frame(
            base=self.line.base,
            position=len(self.line.token_ids) - len(self.unsent),
            token_ids=self.unsent,
            rows=[certain(i) for i in self.unsent] if self.rule is Rule.REJECTION else [],
            completed=completed,
        )
        self.unsent = []
        self.send(frame)

    def send(self, frame: Frame) -> None:
        def deliver(generation: Generation) -> None:
            self.frames.append(frame)
            generation.draft_frame(frame)

        self.outbox.append(deliver)


class World:
    """A generation, its two peers, and all messages in flight. Checks every action."""

    def __init__(self, its_plan: Plan) -> None:
        self.plan = its_plan
        self.generation = Ticking(its_plan)
        self.target = Target(its_plan.target_context)
        self.draft = Draft(its_plan.opening.rule)
        self.draft_context = 1000
        self.in_flight: set[int] = set()  # rounds sent on this stream and not answered
        self.busy: list[int] = []  # rounds to ask for again later
        self.orders: dict[int, list[int]] = {}  # by order: the committed text it stood for
        self.alone = written_alone(its_plan)
        self.ended: FinishReason | None = None
        self.checks_guesses = True
        self.replicas: list[list[int]] = []  # what other targets at the same address hold
        self.question: tuple[int, list[int]] = (0, [])
        self.assumed: list[int] = []
        self.act()

    # --- what can happen ---

    def happenings(self) -> list[Callable[[int], None]]:
        """Return what can happen next; each is given a number to choose details by."""
        target, draft = self.target, self.draft
        possible: list[tuple[Any, list[Callable[[int], None]]]] = [
            (target.inbox, [*[self.verify] * 5, self.say_busy]),
            (target.outbox, [self.hear_target] * 5),
            (target.opened, [self.evict_target, self.lose_target]),
            (not target.opened, [self.open_target] * 3),
            (self.busy, [self.ask_again]),
            (draft.opened and draft.inbox, [self.take_order] * 5),
            (draft.opened and draft.order, [self.draft_token] * 10),
            (draft.outbox, [self.hear_draft] * 10),
            (draft.opened, [self.evict_draft, self.lose_draft, self.repeat_a_frame]),
            (not draft.opened, [self.open_draft] * 3),
            (self.generation.waits_for_draft, [self.be_late]),
        ]
        return [happening for can, happenings in possible if can for happening in happenings]

    def happen(self, number: int) -> None:
        """Let one thing happen, and carry out what is asked for then."""
        possible = self.happenings()
        possible[number % len(possible)](number // len(possible))
        self.act()

    def verify(self, number: int) -> None:
        self.target.work()

    def say_busy(self, number: int) -> None:
        """Answer that there is no room: to be asked again after a while."""
        round_ = self.target.inbox.popleft()
        self.in_flight.discard(round_.number)
        self.busy.append(round_.number)

    def ask_again(self, number: int) -> None:
        self.generation.target_busy(self.busy.pop())

    def hear_target(self, number: int) -> None:
        round_, answer = self.target.outbox.popleft()
        self.in_flight.discard(round_)
        answer(self.generation)

    def evict_target(self, number: int) -> None:
        self.target.held = []

    def lose_target(self, number: int) -> None:
        self.target.opened = False
        self.target.inbox.clear()
        self.target.outbox.clear()
        self.in_flight.clear()
        self.generation.target_lost()

    def open_target(self, number: int) -> None:
        if self.replicas:
            # Another process answers; each remembers the session as it left it.
            here = number % len(self.replicas)
            self.target.held, self.replicas[here] = self.replicas[here], self.target.held
        self.target.opened = True
        self.generation.target_opened()

    def take_order(self, number: int) -> None:
        self.draft.take_order()

    def draft_token(self, number: int) -> None:
        self.draft.work()

    def hear_draft(self, number: int) -> None:
        self.draft.outbox.popleft()(self.generation)

    def evict_draft(self, number: int) -> None:
        """Restarted or evicted: a line stays with its stream, the cache does not."""
        self.draft.held = []

    def repeat_a_frame(self, number: int) -> None:
        if self.draft.frames:
            self.draft.send(self.draft.frames[number % len(self.draft.frames)])

    def lose_draft(self, number: int) -> None:
        self.draft.opened = False
        self.draft.inbox.clear()
        self.draft.outbox.clear()
        self.generation.draft_lost()

    def open_draft(self, number: int) -> None:
        self.draft.open()
        self.generation.draft_opened(self.draft_context)

    def be_late(self, number: int) -> None:
        self.generation.pass_time()

    # --- what is asked for ---

    def act(self) -> None:
        """Carry out what the generation wants done, and check it."""
        for action in self.generation.next_actions():
            if isinstance(action, Round):
                self._check_round(action)
                self.target.inbox.append(action)
                self.in_flight.add(action.number)
            elif isinstance(action, Order):
                self._check_order(action)
                self.draft.inbox.append(action)
            elif isinstance(action, RollBack):
                self._roll_back(action)
            elif isinstance(action, Commit):
                assert len(action.token_ids) == len(action.origins) > 0
            else:
                self.ended = action.reason
        text = self.generation.committed
        assert text == self.alone[: len(text)], "this is not the target's own text"
        self._check_somebody_is_at_work()

    def _check_round(self, round_: Round) -> None:
        text = self.generation.committed
        assert self.target.opened
        assert round_.prefix.token_ids, "nothing to decode"
        # Which token it is says how sure the draft is of it, and must not decide who is heard.
        is_whole = self.plan.opening.rule is Rule.REJECTION
        assert not (is_whole and round_.survivals), "a busy target may leave out a part of a block"
        speculation = self.plan.control.speculation
        assert len(round_.draft) <= (
            30 if speculation.policy is Policy.CLASSIC else speculation.n_max
        )
        if round_.prefix.end > len(text):
            self._check_assumption(round_)
            return
        self.assumed = [*text, *round_.draft]
        assert list(round_.prefix.token_ids) == text[round_.prefix.position :]
        assert len(text) + len(round_.draft) <= max(len(text), self.plan.target_context)
        question = len(text), list(round_.draft)
        # What is asked again stays as it was.
        if question != self.question and self.checks_guesses:
            self._check_guesses(*question)
        self.question = question

    def _check_assumption(self, round_: Round) -> None:
        """A round behind another one builds on it, and is never in flight alone."""
        assert (self.in_flight or self.busy) and self.plan.control.runs_ahead()
        # What was asked behind it may have been dropped.
        assert len(self.generation.committed) <= round_.prefix.position <= len(self.assumed)
        kept = self.assumed[: round_.prefix.position]
        self.assumed = [*kept, *round_.prefix.token_ids, *round_.draft]

    def _check_guesses(self, length: int, guesses: list[int]) -> None:
        """Guesses are of the newest base, which does not conflict with the text.

        A round that waits for the target to come back may be as old as a stream
        of the draft that was lost meanwhile.
        """
        wanted = {(length + i, token) for i, token in enumerate(guesses)}
        lines = [_newest_line(frames) for frames in [*self.draft.past, self.draft.frames]]
        lines = [line for line in lines if wanted <= line]
        assert lines, "these are not the newest base's tokens"
        text = set(enumerate(self.generation.committed))
        known = [{(at, token) for at, token in line if at < length} for line in lines]
        assert any(tokens <= text for tokens in known), "this base conflicts with the text"

    def _check_order(self, order: Order) -> None:
        text = self.generation.committed
        assert self.draft.opened
        assert order.committed.end == len(text)
        assert list(order.committed.token_ids) == text[order.committed.position :]
        assert order.draft_until <= max(len(text), self.draft_context)
        self.orders[order.number] = list(text)

    def _roll_back(self, action: RollBack) -> None:
        assert self.plan.rollback_calls
        assert action.token_count < len(self.generation.committed)
        del self.target.held[action.token_count :]
        del self.draft.held[action.token_count :]

    def _check_somebody_is_at_work(self) -> None:
        waits = self.in_flight or self.busy or self.generation.waits_for_draft
        assert self.ended or waits or not self.target.opened, "nobody is at work"

    # --- the end ---

    def finish_without_the_draft(self) -> None:
        """Let the target answer everything and the draft nothing, until the end."""
        for _ in range(20 * len(self.alone)):
            if self.ended:
                break
            step = next(
                step
                for can, step in (
                    (not self.target.opened, self.open_target),
                    (self.busy, self.ask_again),
                    (self.target.inbox, self.verify),
                    (self.target.outbox, self.hear_target),
                    (True, self.be_late),
                )
                if can
            )
            step(0)
            self.act()
        assert self.ended, "it does not end"


def _newest_line(frames: list[Frame]) -> set[tuple[int, int]]:
    """Return the positions and tokens of the newest base."""
    newest = max((frame.base for frame in frames), default=-1)
    return {
        (frame.position + i, token)
        for frame in frames
        if frame.base == newest
        for i, token in enumerate(frame.token_ids)
    }


def run(world: World, events: bytes) -> None:
    """Let things happen, then see that it ends as the target alone would."""
    for number in events:
        if world.ended:
            break
        world.happen(number)
    world.finish_without_the_draft()
    assert world.generation.committed == world.alone
    ended = world.alone[-1] in world.plan.end_token_ids
    assert world.ended is (FinishReason.END_OF_TEXT if ended else FinishReason.TOKEN_LIMIT)


@SETTINGS
@given(EVENTS, st.sampled_from(Rule), st.integers(0, 5), st.integers(1, 40))
def test_the_text_is_the_targets_own_whatever_happens(
    events: bytes, rule: Rule, draft: int, limit: int
) -> None:
    run(World(plan(rule, limit=limit, draft=draft)), events)


@SETTINGS
@given(
    EVENTS,
    st.sampled_from(Rule),
    st.integers(1, 8),
    st.sampled_from(Policy),
    st.sampled_from([True, None]),
)
def test_every_policy_and_running_ahead_write_the_targets_own_text(
    events: bytes, rule: Rule, draft: int, policy: Policy, run_ahead: bool | None
) -> None:
    world = World(plan(rule, limit=40, draft=draft, policy=policy, run_ahead=run_ahead))
    world.plan.control.costs.overhead.note(1.0)  # so that several rounds are in flight
    run(world, events)


@SETTINGS
@given(EVENTS, st.sampled_from(Rule))
def test_a_stream_may_come_back_to_a_replica_that_was_left(events: bytes, rule: Rule) -> None:
    world = World(plan(rule, limit=40, ends=frozenset()))
    world.replicas = [[]]
    run(world, events)


@SETTINGS
@given(EVENTS, st.sampled_from(Rule))
def test_rollback_calls_change_nothing_about_the_text(events: bytes, rule: Rule) -> None:
    run(World(plan(rule, rollback_calls=True)), events)


@SETTINGS
@given(EVENTS, st.sampled_from([Rule.MATCH, Rule.SHARED_NOISE]))
def test_drafted_tokens_that_were_never_sent_change_nothing_about_the_text(
    events: bytes, rule: Rule
) -> None:
    world = World(plan(rule))
    world.draft.loses_unsent = True
    world.checks_guesses = False
    run(world, events)


@st.composite
def garbage_frames(draw: st.DrawFn) -> Frame:
    base = draw(st.integers(0, 30))
    return Frame(
        base=base,
        position=base + draw(st.integers(0, 4)),
        token_ids=draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=6)),
        completed=draw(st.integers(0, 6)),
    )


@SETTINGS
@given(EVENTS, st.lists(garbage_frames(), min_size=1, max_size=20))
def test_garbage_from_the_draft_changes_nothing_about_the_text(
    events: bytes, garbage: list[Frame]
) -> None:
    world = World(plan())
    world.checks_guesses = False
    for i, number in enumerate(events):
        if world.ended:
            break
        world.happen(number)
        if i % 5 == 0 and world.draft.opened:
            world.draft.send(garbage[i // 5 % len(garbage)])
    run(world, b"")


@SETTINGS
@given(EVENTS, st.integers(6, 12), st.integers(6, 12))
def test_the_text_goes_on_to_the_end_of_the_targets_context(
    events: bytes, target_context: int, draft_context: int
) -> None:
    world = World(plan(limit=40, target_context=target_context))
    world.draft_context = draft_context
    for number in events:
        if world.ended:
            break
        world.happen(number)
    world.finish_without_the_draft()
    text = world.generation.committed
    if world.ended is FinishReason.CONTEXT_FULL:
        assert len(text) == target_context + 1
    else:
        assert text == world.alone


@SETTINGS
@given(EVENTS, st.sampled_from(Rule), st.booleans())
def test_the_draft_always_continues_the_committed_text(
    events: bytes, rule: Rule, calls: bool
) -> None:
    world = World(plan(rule, rollback_calls=calls))
    for number in events:
        if world.ended:
            return
        world.happen(number)
        for order, text in world.draft.texts.items():
            assert text == world.orders[order], "the draft continues another text"


def test_with_a_good_draft_few_rounds_are_needed() -> None:
    world = World(plan(limit=40, draft=4, ends=frozenset()))
    world.open_target(0)
    world.open_draft(0)
    world.act()
    while not world.ended:
        quickest = (world.draft.outbox, world.draft.inbox, world.draft.order)
        steps = (world.hear_draft, world.take_order, world.draft_token)
        slow = world.hear_target if world.target.outbox else world.verify
        step = next((s for can, s in zip(quickest, steps, strict=True) if can), slow)
        step(0)
        world.act()
    counts = world.generation.counts
    assert counts.rounds < 20
    assert counts.drafted_rounds == counts.rounds - 1
    assert counts.accepted > 25
    assert (counts.draft_faults, counts.target_faults) == (0, 0)


# small cases


def begun(rule: Rule = Rule.MATCH, **options: object) -> Ticking:
    """Return a generation with both streams open and its first actions taken."""
    generation = Ticking(plan(rule, **options))  # type: ignore[arg-type]
    generation.target_opened()
    generation.draft_opened(1000)
    generation.next_actions()
    return generation


def rounds(generation: Generation) -> list[Round]:
    return [a for a in generation.next_actions() if isinstance(a, Round)]


def orders(generation: Generation) -> list[Order]:
    return [a for a in generation.next_actions() if isinstance(a, Order)]


def first_token(generation: Generation, token_id: int = 5) -> None:
    rows = Rows(sampled=[token_id])
    if generation.plan.form is Form.DISTRIBUTIONS:
        rows = Rows(distributions=[certain(token_id)])
    generation.target_rows(1, rows)


def test_a_draft_that_always_misses_does_not_hold_up_the_target() -> None:
    generation = begun()
    first_token(generation)
    for _ in range(20):
        if rounds(generation):
            return
        generation.draft_missing(generation.order, 0)
    raise AssertionError("the target waits for a draft that has nothing")


def test_a_frame_without_rows_is_no_draft_under_the_rejection_rule() -> None:
    generation = begun(Rule.REJECTION)
    first_token(generation)
    [order] = orders(generation)
    generation.draft_frame(Frame(5, 5, [1, 2, 3], completed=order.number))
    for round_ in rounds(generation):
        distributions = [certain(1)] * round_.row_count
        generation.target_rows(round_.number, Rows(distributions=distributions))
    assert generation.committed == [*PROMPT, 5, 1]


def test_a_frame_with_too_few_rows_does_not_shift_the_rows_of_the_next() -> None:
    generation = begun(Rule.REJECTION)
    first_token(generation)
    [order] = orders(generation)
    generation.draft_frame(Frame(5, 5, [1, 2], rows=[certain(1)]))
    generation.draft_frame(Frame(5, 7, [3], rows=[certain(3)], completed=order.number))
    assert [list(round_.draft) for round_ in rounds(generation)] == [[]]


def test_a_new_stream_assumes_nothing_that_an_unanswered_order_said() -> None:
    generation = begun()
    first_token(generation)
    assert [order.committed.position for order in orders(generation)] == [4]
    # The order and the stream are lost: the draft may hold a guess where the 5 is.
    generation.draft_lost()
    generation.draft_opened(1000)
    [order] = orders(generation)
    assert order.committed.position <= len(PROMPT)
    assert order.committed.token_ids[-1] == 5


def test_behind_a_lost_frame_the_text_is_told_again() -> None:
    generation = begun()
    generation.draft_frame(Frame(4, 6, [7], completed=1))  # what it has at 4 and 5 never came
    first_token(generation, 5)
    [order] = orders(generation)
    generation.draft_frame(Frame(4, 7, [1], completed=order.number))
    [round_] = rounds(generation)
    assert round_.draft == []
    generation.target_rows(round_.number, Rows(sampled=[6]))
    [order] = orders(generation)
    assert order.committed == Span(5, [6])


@pytest.mark.parametrize("held", [5, 99, 2**31 - 1])
def test_a_target_that_misses_what_it_says_it_holds_is_told_something(held: int) -> None:
    generation = begun()
    first_token(generation)
    generation.next_actions()
    generation.pass_time()
    [round_] = rounds(generation)
    generation.target_missing(round_.number, held)
    [again] = rounds(generation)
    assert again.prefix.position <= round_.prefix.position
    assert list(again.prefix.token_ids) == generation.committed[again.prefix.position :]


def test_only_what_is_asked_again_counts_as_forgotten_once_more() -> None:
    """Several rounds may rest on a text that a target has lost: all of them say so."""
    generation = begun()
    first_token(generation)
    generation.next_actions()
    generation.pass_time()
    [round_] = rounds(generation)
    assert generation.target_missing(round_.number, 0)
    assert not generation.target_missing(round_.number, 0), "it was asked again already"
    assert not generation.target_missing(99, 0)
    [again] = rounds(generation)
    assert generation.target_missing(again.number, 0)
    assert generation.counts.target_faults == 2


def test_the_first_round_does_not_wait_for_the_draft() -> None:
    generation = Ticking(plan())
    generation.draft_opened(1000)
    generation.target_opened()
    actions = generation.next_actions()
    assert [type(action) for action in actions] == [Order, Round]
    assert not generation.waits_for_draft


@pytest.mark.parametrize("takes_turns", [False, True])
def test_a_draft_of_which_nothing_is_wanted_reads_no_prompt_on_the_targets_cores(
    takes_turns: bool,
) -> None:
    its_plan = plan(policy=Policy.MEASURED)
    slow = DraftRates(loaded_token_time=1.0, token_time=Mean(1.0))
    its_plan.control.note_pair(Pair(TargetCosts(), slow, takes_turns, takes_turns))
    generation = Generation(its_plan)
    generation.target_opened()
    generation.draft_opened(1000)
    kinds = [type(action) for action in generation.next_actions(0.0)]
    assert kinds == ([Round] if takes_turns else [Order, Round])


def test_a_generation_waits_for_the_draft_only_while_it_drafts() -> None:
    generation = begun()
    first_token(generation)
    generation.next_actions()
    assert generation.waits_for_draft
    generation.pass_time()
    generation.next_actions()
    assert not generation.waits_for_draft


def test_nothing_is_asked_twice() -> None:
    generation = begun()
    assert generation.next_actions() == []
    assert generation.next_actions() == []


def test_a_finished_generation_stays_finished() -> None:
    generation = begun()
    generation.stop(len(PROMPT))
    assert generation.next_actions() == [End(FinishReason.STOP_SEQUENCE)]
    first_token(generation)
    generation.draft_lost()
    assert generation.next_actions() == [End(FinishReason.STOP_SEQUENCE)]
    assert generation.committed == PROMPT


@pytest.mark.parametrize(("length", "accepted"), [(6, 1), (7, 2), (8, 3), (9, 3)])
def test_a_stop_sequence_takes_back_what_was_committed_behind_it(
    length: int, accepted: int
) -> None:
    generation = begun()
    generation.draft_frame(Frame(4, 4, [5, 6, 2], completed=1))
    first_token(generation)
    [order] = orders(generation)
    generation.draft_frame(Frame(4, 7, [3], completed=order.number))
    [round_] = rounds(generation)
    generation.target_rows(round_.number, Rows(sampled=[6, 2, 3, 7]))
    generation.next_actions()
    generation.stop(length)
    assert generation.committed == [*PROMPT, 5, 6, 2, 3, 7][:length]
    assert generation.counts.accepted == accepted
    assert generation.counts.accepted_by_position == [int(i < accepted) for i in range(3)]
    assert generation.counts.sources["model"].accepted == accepted
    assert generation.next_actions() == [End(FinishReason.STOP_SEQUENCE)]


def test_what_the_model_would_have_had_accepted_is_counted_used_or_not() -> None:
    generation = begun()
    generation.draft_frame(Frame(4, 4, [5, 6, 9, 9], completed=1))  # 9 is not what comes
    first_token(generation)  # 5, without waiting for the draft
    assert generation.counts.sources["model"] == SourceCounts(decided=1, agreed=1)
    [round_] = rounds(generation)
    generation.target_rows(round_.number, Rows(sampled=[6, 2, 3, 4]))
    model = generation.counts.sources["model"]
    assert (model.drafted, model.accepted) == (3, 1)
    assert (model.decided, model.agreed) == (3, 2)


def test_under_rejection_nothing_is_compared_with_the_text() -> None:
    generation = begun(Rule.REJECTION)
    first_token(generation)
    generation.draft_frame(Frame(5, 5, [6], rows=[certain(6)], completed=generation.order))
    assert "model" not in generation.counts.sources


def test_the_limit_ends_with_the_reason_it_was_given() -> None:
    generation = begun(limit=1, limit_reason=FinishReason.CONTEXT_FULL)
    first_token(generation)
    assert generation.next_actions() == [
        Commit([5], [Origin.PLAIN]),
        End(FinishReason.CONTEXT_FULL),
    ]


def test_faults_are_counted_by_whose_they_are() -> None:
    generation = begun()
    generation.target_missing(1, 0)
    generation.target_lost()
    generation.target_lost()
    assert generation.counts.target_faults == 2
    generation.draft_missing(1, 0)
    generation.next_actions()
    [asked] = [each.round.number for each in generation._target.in_flight]
    generation.target_rows(asked, Rows(sampled=[5]))
    generation.next_actions()
    generation.pass_time()
    generation.next_actions()
    generation.draft_lost()
    generation.draft_lost()
    assert generation.counts.draft_faults == 3


def test_drafts_are_counted_by_position() -> None:
    counts = Counts()
    counts.note_draft(0, 0)
    counts.note_draft(3, 1)
    counts.note_draft(2, 2)
    assert (counts.rounds, counts.drafted_rounds) == (3, 2)
    assert (counts.drafted, counts.accepted) == (5, 3)
    assert counts.drafted_by_position == [2, 2, 1]
    assert (counts.drafted_by_round, counts.accepted_by_round) == ([3, 2], [1, 2])
    assert counts.accepted_by_position == [2, 1, 0]


def test_the_rounds_of_a_later_part_come_behind_those_before() -> None:
    whole, part = Counts(), Counts()
    part.note_draft(3, 1)
    part.note_draft(2, 2)
    part.note_sources(["suffix", "suffix"], 2)
    part.forget_accepted(1, ["suffix", "suffix"])
    whole.add(part)
    whole.add(part)
    assert (whole.drafted_by_round, whole.accepted_by_round) == ([3, 2] * 2, [1, 1] * 2)
    assert whole.accepted == sum(whole.accepted_by_round)
    assert whole.sources["suffix"] == SourceCounts(drafted=4, accepted=2)


def test_a_draft_token_behind_the_end_is_drafted_and_not_accepted() -> None:
    generation = begun()
    generation.draft_frame(Frame(4, 4, [5, END, 2], completed=1))
    first_token(generation)
    [order] = orders(generation)
    generation.draft_frame(Frame(4, 7, [3], completed=order.number))
    [round_] = rounds(generation)
    assert list(round_.draft) == [END, 2, 3]
    generation.target_rows(round_.number, Rows(sampled=[END, 2, 3, 4]))
    assert generation.committed == [*PROMPT, 5, END]
    assert (generation.counts.drafted, generation.counts.accepted) == (3, 1)


def test_the_span_of_a_round_starts_at_what_the_target_holds() -> None:
    generation = begun()
    generation.draft_frame(Frame(4, 4, [5, 6, 2], completed=1))
    first_token(generation)
    [order] = orders(generation)
    assert order == Order(2, Span(5, []), 8, frame_tokens=3)
    generation.draft_frame(Frame(4, 7, [3], completed=2))
    [round_] = rounds(generation)
    assert round_ == Round(2, Span(4, [5]), [6, 2, 3], Form.SAMPLED)
    generation.target_rows(2, Rows(sampled=[6, 7, 1, 1]))
    generation.pass_time()
    generation.next_actions()
    generation.pass_time()
    [round_] = rounds(generation)
    assert round_.prefix == Span(6, [7])
