"""Runs the real state machine and controller on a virtual clock against simulated models.

The models are a distribution of texts and some times, so that thousands of generations
take seconds: to see that no delay or fault changes a text, and to forecast
what a pair will do before anything is moved.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from draft_service.runner_ups import RunnerUpLine, RunnerUps
from outrider.core.actions import Commit, End, Wake
from outrider.core.counts import Counts
from outrider.core.generation import Generation
from outrider.core.plan import Plan
from outrider.core.rates import DraftRates, Mean
from outrider.core.speculate import control
from outrider.core.target_costs import Pair, TargetCosts
from outrider.costs import NO_REJECTION_COST, CostTable, RejectionCost
from outrider.drafters.source import Source
from outrider.errors import PositionPastCache
from outrider.messages import (
    FRAME_SECONDS,
    FRAME_TOKENS,
    NO_OWN_TOKENS,
    Answer,
    Form,
    Frame,
    Order,
    OwnTokens,
    Round,
    Rows,
    Rule,
    ServiceTime,
    SessionParameters,
    compose,
)
from outrider.row_window import HIDDEN_ROWS, NO_ROWS, RowWindow
from outrider.sampling import GREEDY
from outrider.speculation import MODEL, HeadKind, Speculation
from outrider.trees import ROOT, Tree
from tests.support.going_back import GoingBack
from tests.support.shared_engine import Decode, SharedEngine

VOCABULARY = 1 << 16
PROMPT_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """A pair of models and the links to them, in seconds."""

    costs: CostTable  # of the target
    draft_token: float
    acceptance: float  # of a draft token, on average
    draft_round_trip: float = 0.0
    target_round_trip: float = 0.0
    overhead: float = 0.0  # of a round, beside decode and links
    gap: float = 0.0  # of the target's own work between two decodes of a session
    same_host: bool = False
    slowdown: float = 1.0  # of a decode while the draft is busy
    draft_slowdown: float = 1.0  # of the draft while the target is
    takes_turns: bool = False  # draft and target never decode at the same time
    read_time: float = 0.0  # of the draft, for a token of the text
    is_head: bool = False  # the draft reads the target's hidden rows
    draft_most: int = 1 << 20  # tokens after which the draft ends an order, whatever it asks for
    draft_reported: float = 1.0  # of its time, what the draft says of it, at load and in service
    continues: bool = True  # the target, by itself
    own_token: float = 0.0  # of the target's own draft; 0: it has none
    own_acceptance: float = 0.8
    tree_leaves: int = 0  # of a tree that the target verifies
    lines: int = 1  # that the draft can write at once
    line_cost: float = 0.03  # of each of them but one, over a draft token
    runner_ups: tuple[float, float] = (0.55, 0.2)  # how often the next choices are right at a miss
    rejection: RejectionCost = NO_REJECTION_COST  # of the target
    spread: float = 2.0  # alpha + beta of the beta distribution that a token's chance is drawn from


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, by chance; all 0 for a world without faults."""

    frame_loss: float = 0.0
    frame_repeat: float = 0.0
    jitter: float = 0.0  # seconds added to a frame at most; frames may overtake each other
    draft_deaths: float = 0.0  # per second; back after `away` with nothing held
    target_deaths: float = 0.0
    evictions: float = 0.0  # per second, of either cache
    stalls: float = 0.0  # per second, of the draft
    stall: float = 2.0  # seconds
    away: float = 0.3
    own_silence: int = 1 << 30  # length of a text from which the target's own draft says nothing


@dataclass(slots=True)
class Result:
    """What a generation did."""

    text: list[int]
    seconds: float
    counts: Counts
    decodes: int
    decode_seconds: float
    stale_rows: int  # draft rows verified behind a text that was not the committed one


class Language:
    """What the target writes, and how often a draft guesses it; a function of its seed."""

    def __init__(
        self,
        seed: int,
        acceptance: float,
        spread: float,
        runner_ups: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._seed, self._runner_ups = seed, runner_ups
        self._alpha = max(1e-3, spread * acceptance)
        self._beta = max(1e-3, spread * (1.0 - acceptance))
        self._never, self._always = acceptance <= 0.0, acceptance >= 1.0
        self.prompt: list[int] = []  # that goes with it; empty: any

    def next(self, text: Sequence[int]) -> int:
        """Return the target's token after a text."""
        return hash((self._seed, len(text), *text[-3:])) % VOCABULARY

    def guess(self, text: Sequence[int]) -> tuple[int, int]:
        """Return the draft's token after a text, and its confidence in 1/255."""
        token_id, chance = self.candidates(text)[0]
        return token_id, int(255 * chance)

    def candidates(self, text: Sequence[int]) -> list[tuple[int, float]]:
        """Return the draft's token after a text and its next two choices, with their chances."""
        truth = self.next(text)
        dice = random.Random(hash((self._seed, 7, len(text), *text[-3:])))
        chance = dice.betavariate(self._alpha, self._beta)
        chance = 0.0 if self._never else 1.0 if self._always else chance
        right = dice.random() < chance
        first, second, third = (truth + i + (not right) for i in range(3))
        place = dice.random()
        if not right and place < self._runner_ups[0]:
            second = truth
        elif not right and place < sum(self._runner_ups):
            third = truth
        chances = (chance, *((1.0 - chance) * share for share in self._runner_ups))
        ids = [token_id % VOCABULARY for token_id in (first, second, third)]
        return list(zip(ids, chances, strict=True))


class Script(Language):
    """A target that writes a text behind its prompt, whatever was drafted."""

    def __init__(
        self, prompt: Sequence[int], text: Sequence[int], seed: int = 0, acceptance: float = 0.0
    ) -> None:
        super().__init__(seed, acceptance, 2.0)
        self.prompt, self._text = list(prompt), list(text)

    def next(self, text: Sequence[int]) -> int:
        return self._text[min(len(text) - len(self.prompt), len(self._text) - 1)]


def alone(language: Language, tokens: int) -> list[int]:
    """Return what the target writes with no draft."""
    text = [*language.prompt] or prompt(PROMPT_TOKENS)
    length = len(text) + tokens
    while len(text) < length:
        text.append(language.next(text))
    return text


def prompt(count: int) -> list[int]:
    """Return the text that a generation begins with."""
    return list(range(1, 1 + count))


class Simulation:
    """One generation of `tokens` tokens after a prompt. `run` is used once.

    Several may share an engine; `run_together` then runs them.
    """

    def __init__(
        self,
        models: Models,
        speculation: Speculation,
        *,
        tokens: int,
        seed: int,
        pair: Pair | None = None,
        faults: Faults | None = None,
        timeout: float = 1.0,
        prompt_tokens: int = PROMPT_TOKENS,
        engine: SharedEngine | None = None,
        language: Language | None = None,
        sources: Mapping[str, Source] | None = None,
        has_draft: bool = True,
    ) -> None:
        self._has_draft = has_draft
        self.engine = engine or SharedEngine(models.costs)
        self.models = models
        self.faults = faults or Faults()
        self.language = language or Language(
            seed, models.acceptance, models.spread, models.runner_ups
        )
        self.seed, self.dice = seed, random.Random(seed)
        self.draft_busy = self.target_busy = False
        self._turn_ends = 0.0
        self.ended = False
        its_control = control(speculation, Rule.MATCH, pair or known_pair(models), timeout)
        self.prompt = self.language.prompt or prompt(prompt_tokens)
        self.tokens = tokens
        plan = _plan(its_control, self.prompt, tokens)
        self.generation = Generation(replace(plan, sources=sources or {}))
        self._seconds = 0.0
        self.target = _Target(self)
        self.draft = _Draft(self)

    def run(self) -> Result:
        """Return what happened."""
        [result] = run_together(self.engine, [self])
        return result

    def begin(self) -> None:
        """Open both streams and ask for the first round."""
        self.target.open()
        if self._has_draft:
            self.draft.open()
        self._plan_faults()
        self._act()

    @property
    def now(self) -> float:
        """The time."""
        return self.engine.now

    @property
    def result(self) -> Result:
        """What happened, once it is over."""
        return Result(
            self.generation.committed,
            self._seconds,
            self.generation.counts,
            self.target.decodes,
            self.target.decode_seconds,
            self.target.stale_rows,
        )

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Make something happen later, and the generation see to it."""

        def happen() -> None:
            if not self.ended:
                event()
                self._act()

        self.engine.after(seconds, happen)

    def take_turn(self, seconds: float) -> float:
        """Return how long to wait before a decode of so many seconds may begin."""
        if not self.models.takes_turns:
            return 0.0
        wait = max(0.0, self._turn_ends - self.now)
        self._turn_ends = self.now + wait + seconds
        return wait

    def _act(self) -> None:
        for action in self.generation.next_actions(self.now):
            if isinstance(action, Order):
                order = action
                self.after(self.models.draft_round_trip / 2, self.draft.on_stream(order))
            elif isinstance(action, Round):
                round_ = action
                self.after(self.models.target_round_trip / 2, self.target.on_stream(round_))
            elif isinstance(action, Wake):
                self.after(max(0.0, action.time - self.now), lambda: None)
            elif isinstance(action, End):
                self.ended, self._seconds = True, self.now
                self.engine.leave(self)
            else:
                assert isinstance(action, Commit)

    def _plan_faults(self) -> None:
        faults = self.faults
        for rate, event in (
            (faults.draft_deaths, self.draft.die),
            (faults.target_deaths, self.target.die),
            (faults.evictions, self.draft.forget),
            (faults.evictions, self.target.forget),
            (faults.stalls, self.draft.stall),
        ):
            if rate > 0.0:
                self._repeat(rate, event)

    def _repeat(self, rate: float, event: Callable[[], None]) -> None:
        def happen() -> None:
            event()
            self.after(self.dice.expovariate(rate), happen)

        self.after(self.dice.expovariate(rate), happen)


def run_together(engine: SharedEngine, simulations: Sequence[Simulation]) -> list[Result]:
    """Run generations that share an engine; return what happened once all are over."""
    for each in simulations:
        each.begin()
    engine.run(lambda: all(each.ended for each in simulations))
    return [each.result for each in simulations]


def known_pair(models: Models) -> Pair:
    """Return what an orchestrator knows of these models before the first round."""
    reported = models.draft_reported * models.draft_token
    costs = TargetCosts(
        table=CostTable(models.costs.points),
        rejection=models.rejection,
        continues=models.continues,
        tree_leaves=models.tree_leaves,
        overhead=Mean(models.overhead + models.target_round_trip),
    )
    if models.own_token:
        costs.own = DraftRates(
            token_time=Mean(models.own_token),
            read_time=Mean(models.read_time),
            latency=Mean(0.0),
        )
    rates = DraftRates(
        token_time=Mean(reported),
        loaded_token_time=reported,
        read_time=Mean(models.read_time),
        latency=Mean(models.draft_round_trip),
        line_ratios=[1.0 + models.line_cost * count for count in range(models.lines)],
        source=HeadKind.MTP.value if models.is_head else MODEL,
    )
    return Pair(costs, rates, models.same_host, models.takes_turns)


def _rows_of(text: Sequence[int]) -> RowWindow:
    """Return the newest rows of what was decoded of a text, each of one number."""
    end = len(text) - 1
    count = min(end, HIDDEN_ROWS)
    return RowWindow(end - count, (bytes(2),) * count)


def _plan(its_control: object, prompt: Sequence[int], tokens: int) -> Plan:
    return Plan(
        opening=SessionParameters(
            session_id=bytes(16),
            attempt=1,
            rule=Rule.MATCH,
            sampling=GREEDY,
            seed=0,
            choice=0,
            prompt_count=len(prompt),
            token_limit=tokens,
            vocabulary=VOCABULARY,
        ),
        prompt=prompt,
        control=its_control,  # type: ignore[arg-type]
        form=Form.SAMPLED,
        rollback_calls=False,
        target_context=1 << 20,
    )


class _Peer:
    """A service with one session: a stream that may be lost, and a cache that may be."""

    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.held: list[int] = []
        self.stream = 0  # its number, while it is open

    def on_stream(self, message: Order | Round) -> Callable[[], None]:
        """Return the arrival of a message, which is lost with the stream."""
        stream = self.stream

        def arrive() -> None:
            if stream == self.stream:
                self.receive(message)

        return arrive

    def reply(self, seconds: float, event: Callable[[], None]) -> None:
        """Tell the generation something, unless the stream is lost before."""
        stream = self.stream

        def arrive() -> None:
            if stream == self.stream:
                event()

        self.world.after(seconds, arrive)

    def receive(self, message: Order | Round) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        """Lose the cache."""
        self.held = []


class _Target(_Peer):
    """Decodes one round after the other, and continues by itself where a round allows it."""

    def __init__(self, world: Simulation) -> None:
        super().__init__(world)
        self.decodes = self.stale_rows = self.trees = 0
        self.decode_seconds = 0.0
        self._inbox: deque[Round] = deque()
        self._round: Round | None = None  # the newest that was begun
        self._text: list[int] = []  # after the newest answer
        self._used = 0  # tokens of the round's draft that the text has
        own = world.models
        self._own = Language(world.seed, own.own_acceptance, own.spread)
        self._own_length = 0  # tokens of the text that the target's own draft has read
        self._going_back = GoingBack(own.rejection, own.costs)

    def open(self) -> None:
        self.stream += 1
        self.world.generation.target_opened(self.world.models.continues)

    def die(self) -> None:
        if self.world.generation.target_ready:
            self.stream += 1
            self.held, self._text, self._round = [], [], None
            self._going_back = GoingBack(self.world.models.rejection, self.world.models.costs)
            self._inbox.clear()
            self.world.target_busy = False
            self.world.generation.target_lost()
            self.world.after(self.world.faults.away, self.open)

    def receive(self, message: Order | Round) -> None:
        assert isinstance(message, Round)
        while self._inbox and self._inbox[-1].continue_count:
            self._inbox.pop()
        self._inbox.append(message)
        if not self.world.target_busy:
            self._start()

    def _start(self) -> None:
        """Begin a decode: of a new round if there is one, else of what the last one allows."""
        while self._inbox:
            if self._begin(self._inbox.popleft()):
                self._decode()
                return
        until = self._round.continue_until if self._round is not None else 0
        if len(self._text) < min(until, len(self.world.prompt) + self.world.tokens):
            self._decode()

    def _begin(self, round_: Round) -> bool:
        """Take up a round; return False if there is nothing to decode for it."""
        world, number = self.world, round_.number
        try:
            prefix = compose(self.held, round_.prefix)
        except PositionPastCache as missing:
            held = missing.held
            back = world.models.target_round_trip / 2
            self.reply(back, lambda: world.generation.target_missing(number, held))
            self._round = None
            return False
        written, before = self._text, self._round
        common = min(len(prefix), len(written))
        if round_.is_ahead and prefix[:common] != written[:common]:
            return False  # superseded: the answer before it contradicts it
        self._round, self._used = round_, 0
        continued = before is not None and before.continue_count > 0
        if continued and len(self.held) >= len(written) - 1 and written[: len(prefix)] == prefix:
            self._use(written[len(prefix) :])
            return True
        self._text = prefix
        return True

    def _use(self, added: Sequence[int]) -> None:
        """Note which of the round's draft was added to the text: all of it if something else."""
        assert self._round is not None
        draft = list(self._round.draft)
        end = self._used + len(added)
        self._used = end if draft[self._used : end] == list(added) else len(draft)

    def _decode(self) -> None:
        world, round_ = self.world, self._round
        assert round_ is not None
        limit = round_.decode_limit or len(round_.draft)
        draft = list(round_.draft[self._used : self._used + limit])
        prefix, own = self._text, NO_OWN_TOKENS
        if not draft:
            own = self._draft_own(round_)
            draft = list(own.token_ids)
        is_tree = bool(round_.parents) and not self._used
        if is_tree:
            draft = list(round_.draft)
            self.trees += 1
        self.held = text = [*prefix, *draft]
        self.decodes += 1
        committed = world.generation.committed
        if not round_.parents and text[: len(committed)] != committed[: len(text)]:
            self.stale_rows += len(draft) + 1
        gains = [] if is_tree or own.token_ids else self._gains(round_, len(draft))
        again, within, before = self._going_back.prepare(prefix, len(draft))
        world.target_busy = True
        stream = self.stream

        def done(spent: ServiceTime, row_count: int) -> None:
            if stream != self.stream:
                return
            world.target_busy = False
            spent = replace(spent, decode=spent.decode + within, sample=world.models.gap)
            self.decode_seconds += spent.decode
            decoded = draft[: row_count - 1 - again]
            self.held = self._going_back.state = [*prefix, *decoded]
            tree = round_.tree if is_tree else Tree.chain(decoded)
            paths = [tree.tokens(tree.path(node)) for node in range(ROOT, len(tree))]
            ids = [world.language.next([*prefix, *path]) for path in paths]
            walk = tree.walk(ids)
            added = [*tree.tokens(walk.nodes), walk.next_token_id]
            self._text = [*prefix, *added]
            if not tree.is_chain:
                self.held, self._used = self._text[:-1], len(draft)
            elif not own.token_ids:
                self._use(added)
            drafted, owns = (
                (0, [replace(own, spent=spent)]) if own.token_ids else (len(decoded), [])
            )
            hidden = _rows_of(self._text) if round_.wants_rows else NO_ROWS
            answered = Answer(
                round_.number, len(prefix), drafted, Rows(sampled=ids), owns, spent, hidden
            )
            self.reply(
                world.models.target_round_trip / 2 + world.models.overhead,
                lambda: world.generation.target_wrote(answered, world.now),
            )
            if world.models.gap:
                world.target_busy = True
                self.reply(world.models.gap, begin_next)
            else:
                self._start()

        def begin_next() -> None:
            world.target_busy = False
            self._start()

        def decode() -> None:
            slowdown = world.models.slowdown if world.draft_busy else 1.0
            rows, length, begin = again + len(draft) + 1, len(prefix) - 1 - again, world.now
            count, token = len(own.token_ids), world.models.own_token
            turn, reading = world.take_turn, self._read_by_own(count, len(prefix))
            world.engine.decode(
                Decode(
                    world, rows, length, slowdown, begin, turn, done, count, token, reading, gains
                )
            )

        if within or before:
            world.engine.after(within + before, decode)
        else:
            decode()

    def _gains(self, round_: Round, count: int) -> list[float]:
        """Return what each of the next draft tokens adds by what the round says, if it does."""
        survivals = round_.survivals[self._used : self._used + count]
        certain = round_.survivals[self._used - 1] if self._used and survivals else 255
        return [min(1.0, each / max(1, certain)) for each in survivals]

    def _read_by_own(self, drafted: int, length: int) -> float:
        """Return the seconds in which the target's own draft reads what it has not seen yet."""
        if not drafted:
            return 0.0
        unread = max(0, length - self._own_length)
        self._own_length = length + drafted
        return unread * self.world.models.read_time

    def _draft_own(self, round_: Round) -> OwnTokens:
        """Return what the target's own draft drafts; nothing while the text is read."""
        is_held = len(self.held) >= len(self._text) - 1
        left = len(self.world.prompt) + self.world.tokens - len(self._text) - 1
        drafts_nothing = len(self._text) >= self.world.faults.own_silence
        count = 0 if drafts_nothing else min(round_.own_draft.count, left)
        if not self.world.models.own_token or not is_held or count <= 0:
            return NO_OWN_TOKENS
        text, confidences = list(self._text), bytearray()
        for _ in range(count):
            token_id, confidence = self._own.guess(text)
            # It is the same language: what the text is does not depend on how well it is guessed.
            truth = self.world.language.next(text)
            text.append(truth if token_id == self._own.next(text) else (truth + 1) % VOCABULARY)
            confidences.append(confidence)
            if confidence < round_.own_draft.stop_below:
                break
        return OwnTokens(text[len(self._text) :], bytes(confidences))


@dataclass(slots=True)
class _DraftLine:
    base: int
    token_ids: list[int]
    unsent: list[tuple[int, int]] = field(default_factory=list)
    first_unsent: float = 0.0


class _Draft(_Peer):
    """Extends its line token by token; each order replaces the one before."""

    def __init__(self, world: Simulation) -> None:
        super().__init__(world)
        self._line: _DraftLine | None = None
        self._order: Order | None = None
        self._stalled_until = 0.0
        self._work = 0
        self._spent = self._queue = 0.0
        self._unread = self._until = 0
        self._tree = RunnerUps()
        self._taken: list[RunnerUpLine] = []  # that the current decode extends
        self._is_complete = False  # all of the order's line was sent

    def open(self) -> None:
        self.stream += 1
        self._line = None
        self.world.generation.draft_opened(1 << 20, int(self.world.models.is_head))

    def die(self) -> None:
        self.stream += 1
        self.held, self._order = [], None
        self.world.draft_busy = False
        self.world.generation.draft_lost()
        stream = self.stream
        away = self.world.faults.away
        self.world.after(away, lambda: self.open() if stream == self.stream else None)

    def stall(self) -> None:
        self._stalled_until = self.world.now + self.world.faults.stall

    def receive(self, message: Order | Round) -> None:
        assert isinstance(message, Order)
        self._order = message
        known = self._line.token_ids if self._line else self.held
        try:
            text = compose(known, message.committed)
        except PositionPastCache as missing:
            number, held = message.number, missing.held
            self._order = None
            self._send(lambda: self.world.generation.draft_missing(number, held))
            return
        self._until = min(message.draft_until, len(text) + self.world.models.draft_most)
        pairs = zip(self.held, text, strict=False)
        agreed = next((i for i, (a, b) in enumerate(pairs) if a != b), len(self.held))
        self._unread = max(0, len(text) - agreed)
        self._is_complete = False
        self._tree.split_chance = message.split_chance
        if self._line is not None and self._line.token_ids[: len(text)] == text:
            self._tree.follow(text)
        elif self._line is not None and (branch := self._tree.adopt(text)):
            self._line = _DraftLine(self._line.base, branch.token_ids, list(branch.unsent))
        else:
            self._line = _DraftLine(len(text), text)
            self._tree.start_over(text)
        self.world.draft_busy = True
        self._next()

    def _next(self, stops: bool = False) -> None:
        """Begin a token, or complete the order."""
        world, line, order = self.world, self._line, self._order
        assert line is not None and order is not None
        is_over = self._is_complete or stops or len(line.token_ids) >= self._until
        for branch in self._taken:
            branch.is_taken = False
        self._taken = []
        while len(self._taken) < order.line_count - 1:
            if (taken := self._tree.take(order.draft_until)) is None:
                break
            self._taken.append(taken)
        if is_over and not self._is_complete:
            self._is_complete = True
            self._send_frame(order.number)
        if is_over and not self._taken:
            world.draft_busy = False
            if self._tree.unsent_count:
                self._send_frame(0)
            self._order = None
            return
        rows = len(self._taken) + (not is_over)
        seconds = world.models.draft_token * (1.0 + world.models.line_cost * (rows - 1))
        seconds *= world.models.draft_slowdown if world.target_busy else 1.0
        seconds += self._unread * world.models.read_time
        self._unread = 0
        queue = world.take_turn(seconds)
        self._work += 1
        work = self._work

        def done() -> None:
            if work == self._work and self._order is order and self._line is line:
                self._spent += seconds
                self._queue += queue
                self._extend_branches()
                self._next(not is_over and self._add() < order.stop_below)
                if is_over and self._tree.unsent_count >= FRAME_TOKENS:
                    self._send_frame(0)

        self.reply(max(0.0, self._stalled_until - world.now) + queue + seconds, done)

    def _extend_branches(self) -> None:
        """Add a token to each of the runner-up lines that were decoded."""
        for branch in self._taken:
            candidates = self.world.language.candidates(branch.token_ids)
            token_id, chance = candidates[0]
            self._tree.extend(branch, token_id, int(255 * chance), candidates)
        self._taken = []

    def _add(self) -> int:
        """Draft a token and return how sure of it the draft is."""
        line, order = self._line, self._order
        assert line is not None and order is not None
        candidates = self.world.language.candidates(line.token_ids)
        token_id, confidence = candidates[0][0], int(255 * candidates[0][1])
        if not line.unsent:
            line.first_unsent = self.world.now
        line.token_ids.append(token_id)
        line.unsent.append((token_id, confidence))
        if order.line_count > 1:
            self._tree.note(line.token_ids, candidates)
        self.held = list(line.token_ids)
        is_full = len(line.unsent) >= (order.frame_tokens or FRAME_TOKENS)
        is_old = not order.frame_tokens and self.world.now - line.first_unsent >= FRAME_SECONDS
        if (is_full or is_old) and len(line.token_ids) < self._until:
            self._send_frame(0)
        return confidence

    def _send_frame(self, completed: int) -> None:
        line = self._line
        assert line is not None
        frame = Frame(
            base=line.base,
            position=len(line.token_ids) - len(line.unsent),
            token_ids=[token_id for token_id, _ in line.unsent],
            confidences=bytes(confidence for _, confidence in line.unsent),
            completed=completed,
            line=self._tree.number,
            runner_ups=self._tree.take_unsent(),
        )
        line.unsent = []
        spent, self._spent = self.world.models.draft_reported * self._spent, 0.0
        queue, self._queue = self._queue, 0.0
        world, faults = self.world, self.world.faults
        if frame.token_ids and world.dice.random() < faults.frame_loss:
            frame = Frame(frame.base, frame.position + len(frame.token_ids), [], b"", (), completed)
        for _ in range(2 if world.dice.random() < faults.frame_repeat else 1):
            self._send(lambda: world.generation.draft_frame(frame, world.now, spent, queue))

    def _send(self, event: Callable[[], None]) -> None:
        jitter = self.world.dice.uniform(0.0, self.world.faults.jitter)
        self.reply(self.world.models.draft_round_trip / 2 + jitter, event)
