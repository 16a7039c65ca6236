"""At which of many targets chats are best written, on a virtual clock.

python -m benchmarks.routing [--targets 10,100] [--seconds 240] [--seed 1]

The orchestrator's own pool beside round-robin and least-connections, over simulated targets: each
holds as many texts as it has sessions, the one used longest ago goes first, reads one prompt after
the other and writes all texts together. Chats of several tenants begin with one of a few long
system prompts; a turn follows the answer before it after a while. In bursts everybody is quicker;
where targets fail, they forget everything, are away for a while, and texts continue elsewhere,
read again; where machines are mixed, each tenth takes twice as long.

Recomputed are the tokens of prompts that were read though some target had read or written them
before: with one cache that forgets nothing there would be none.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from orchestrator.core.prefixes import BLOCK, digests_of
from orchestrator.pool import Pool, Stay
from outrider.costs import CostTable
from outrider.messages import ModelReference
from outrider.v1 import common_pb2 as common

SESSIONS = 16  # of each target
USERS = 12  # for each target
COSTS = ((1, 0.030), (64, 0.055))  # rows of a decode, seconds: what the tests take for a GPU
READ_SECONDS = 0.001  # of a prompt's token
THINK_SECONDS = 12.0  # mean, between an answer and the next turn
SYSTEM_PROMPTS, SYSTEM_TOKENS = 8, (400, 1200)
TURN_TOKENS, ANSWER_TOKENS, MOST_TOKENS = (20, 200), (40, 240), 3500
BURST_EVERY, BURST_SECONDS, BURST_HASTE = 60.0, 12.0, 4.0
FAILURE_EVERY, AWAY_SECONDS = 200.0, 20.0  # of each target, mean
IDENTITY = bytes(32)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What targets and users do."""

    name: str
    bursts: bool = False
    failures: bool = False
    mixed: bool = False


SCENARIOS = (
    Scenario("steady"),
    Scenario("bursts", bursts=True),
    Scenario("failures", failures=True),
    Scenario("mixed machines", mixed=True),
    Scenario("all of it", bursts=True, failures=True, mixed=True),
)


@dataclass(slots=True, eq=False)
class Turn:
    """A turn of a chat, from its arrival until its answer is written."""

    chat: Chat
    text: list[int]  # the prompt, and what was written of the answer before a target failed
    left: int  # tokens of the answer
    arrived: float  # seconds
    first: float | None = None  # when its first token came
    writing_since: float = 0.0
    token_seconds: float = 0.0
    lease: Any = None  # the policy's


@dataclass(slots=True, eq=False)
class Chat:
    """A user who asks, reads and asks again."""

    draw: random.Random
    text: list[int]
    turns_left: int


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence of a target's cache."""

    text: tuple[bytes, ...] = ()  # by digests
    used: float = -1.0
    turn: Turn | None = None


class Engine:
    """A target as it is, not as a policy sees it."""

    def __init__(self, slowness: float) -> None:
        self.slowness = slowness
        self.costs = CostTable([(rows, slowness * s) for rows, s in COSTS])
        self.read_seconds = slowness * READ_SECONDS
        self.epoch = 0  # of events; those before a failure are void
        self.is_up = True
        self.forget()

    def forget(self) -> list[Turn]:
        """Start anew; return what was in flight."""
        lost = [s.turn for s in getattr(self, "slots", ()) if s.turn is not None]
        lost += getattr(self, "waiting", ())
        self.slots = [Slot() for _ in range(SESSIONS)]
        self.waiting: deque[Turn] = deque()
        self.reads_until = 0.0
        return lost

    @property
    def count(self) -> int:
        """Turns in flight."""
        return sum(s.turn is not None for s in self.slots) + len(self.waiting)

    def take(self, turn: Turn, digests: tuple[bytes, ...], now: float) -> int | None:
        """Give a turn a slot; return the tokens that it holds of the text, None without a slot."""
        idle = [slot for slot in self.slots if slot.turn is None]
        if not idle:
            return None
        held = {id(slot): _common(slot.text, digests) for slot in self.slots}
        best = max(self.slots, key=lambda slot: held[id(slot)])
        continues = best.turn is None and held[id(best)] == len(best.text)
        slot = best if continues else min(idle, key=lambda slot: slot.used)
        slot.turn, slot.text, slot.used = turn, digests, now
        return BLOCK * held[id(best)]


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    return same


# --- policies ---


class RoundRobin:
    """One target after the other."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._next = 0

    def choose(self, turn: Turn) -> int:
        """Return which target a turn goes to."""
        while True:
            self._next = (self._next + 1) % len(self._engines)
            if self._engines[self._next].is_up:
                return self._next

    def note_read(self, turn: Turn, cached: int, seconds: float) -> None:
        """Its text was read."""

    def note_end(self, turn: Turn) -> None:
        """It is over there."""

    def note_failure(self, index: int) -> None:
        """A target failed, or is back."""


class LeastConnections(RoundRobin):
    """Where the fewest are; of several such the next."""

    def choose(self, turn: Turn) -> int:
        """Return which target a turn goes to."""
        counts = [e.count if e.is_up else 1 << 30 for e in self._engines]
        order = range(self._next + 1, self._next + 1 + len(counts))
        self._next = min((i % len(counts) for i in order), key=lambda i: counts[i])
        return self._next


class Ours(RoundRobin):
    """The pool of the orchestrator, which knows what targets say and when their answers came."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        super().__init__(engines)
        self._peers: list[Any] = [_peer(i, engine) for i, engine in enumerate(engines)]
        self._pool = Pool(self._peers)
        self._pool._check()
        self._opening: Any = SimpleNamespace(model=ModelReference(IDENTITY), salt=b"")

    def choose(self, turn: Turn) -> int:
        """Return which target a turn goes to."""
        stay = self._pool.stay(turn.text, self._opening)
        assert stay is not None
        turn.lease = stay
        return int(stay.target.address)

    def note_read(self, turn: Turn, cached: int, seconds: float) -> None:
        """Its text was read."""
        stay: Stay = turn.lease
        stay.note_read(len(turn.text), cached, seconds)

    def note_end(self, turn: Turn) -> None:
        """It is over there."""
        self._pool.end_stay(turn.lease, turn.text, b"")

    def note_failure(self, index: int) -> None:
        """A target failed, or is back."""
        peer, engine = self._peers[index], self._engines[index]
        peer.ready = engine.is_up
        if engine.is_up:
            peer.model.load_duration.FromSeconds(engine.epoch)  # another process
            self._pool._check()


def _peer(index: int, engine: Engine) -> Any:
    model = common.GetModelResponse(session_count=SESSIONS, identity=IDENTITY)
    for rows, seconds in COSTS:
        model.decode_costs.add(row_count=rows, milliseconds=1e3 * engine.slowness * seconds)
    return SimpleNamespace(
        role="target", address=str(index), ready=True, closed=False, round_trip=0.0,
        hosted=None, model=model, detail="",
    )  # fmt: skip


POLICIES: dict[str, Callable[[Sequence[Engine]], RoundRobin]] = {
    "round-robin": RoundRobin,
    "least connections": LeastConnections,
    "Outrider": Ours,
}


# --- the clock ---


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    turn_count: int = 0
    prompt_tokens: int = 0
    read_tokens: int = 0
    recomputed: int = 0
    first_tokens: list[float] = field(default_factory=list)  # seconds from arrival, sorted at last
    choosing_seconds: float = 0.0  # of the real clock

    def quantile(self, share: float) -> float:
        """Return a quantile of the times to the first token."""
        times = sorted(self.first_tokens)
        return times[min(len(times) - 1, int(share * len(times)))]


class Run:
    """One policy in one scenario. `run` is used once."""

    def __init__(self, policy: str, scenario: Scenario, targets: int, seed: int) -> None:
        self._scenario = scenario
        self._draw = random.Random(f"{seed} {targets}")
        slow = {i for i in range(targets) if scenario.mixed and i % 10 == 3}
        self._engines = [Engine(2.0 if i in slow else 1.0) for i in range(targets)]
        self._policy = POLICIES[policy](self._engines)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0
        self._known: set[bytes] = set()  # digests of all that was ever read or written
        self._systems = [
            self._tokens(self._draw, self._draw.randint(*SYSTEM_TOKENS))
            for _ in range(SYSTEM_PROMPTS)
        ]
        self.outcome = Outcome()

    def run(self, seconds: float) -> Outcome:
        """Return what came of so many virtual seconds."""
        for number in range(USERS * len(self._engines)):
            self._at(self._draw.uniform(0.0, THINK_SECONDS), self._arrive, self._chat(number))
        if self._scenario.failures:
            for i in range(len(self._engines)):
                self._at(self._draw.expovariate(1.0 / FAILURE_EVERY), self._fail, i)
        while self._events and self._events[0][0] < seconds:
            self._now, _, event = heapq.heappop(self._events)
            event()
        return self.outcome

    def _at(self, seconds: float, event: Callable[..., None], *arguments: Any) -> None:
        item = (self._now + seconds, next(self._order), lambda: event(*arguments))
        heapq.heappush(self._events, item)

    def _tokens(self, draw: random.Random, number: int) -> list[int]:
        return [draw.randrange(32000) for _ in range(number)]

    def _chat(self, number: int) -> Chat:
        draw = random.Random(f"{self._draw.random()} {number}")
        return Chat(draw, list(draw.choice(self._systems)), draw.randint(2, 10))

    def _think(self, chat: Chat) -> float:
        haste = self._scenario.bursts and self._now % BURST_EVERY > BURST_EVERY - BURST_SECONDS
        mean = THINK_SECONDS / (BURST_HASTE if haste else 1.0)
        return chat.draw.expovariate(1.0 / mean)

    def _arrive(self, chat: Chat) -> None:
        if not chat.turns_left or len(chat.text) > MOST_TOKENS:  # the user begins another chat
            chat.text, chat.turns_left = list(chat.draw.choice(self._systems)), 6
        chat.turns_left -= 1
        chat.text += self._tokens(chat.draw, chat.draw.randint(*TURN_TOKENS))
        left = chat.draw.randint(*ANSWER_TOKENS)
        self.outcome.turn_count += 1
        self.outcome.prompt_tokens += len(chat.text)
        self._send(Turn(chat, chat.text, left, self._now))

    def _send(self, turn: Turn) -> None:
        begin = perf_counter()
        index = self._policy.choose(turn)
        self.outcome.choosing_seconds += perf_counter() - begin
        self._begin(index, turn)

    def _begin(self, index: int, turn: Turn) -> None:
        engine = self._engines[index]
        digests = digests_of(turn.text, b"", b"truth")
        cached = engine.take(turn, digests, self._now)
        if cached is None:
            engine.waiting.append(turn)
            return
        known = BLOCK * next(
            (i for i, d in enumerate(digests) if d not in self._known), len(digests)
        )
        self._known.update(digests)
        unread = len(turn.text) - cached
        self.outcome.read_tokens += unread
        self.outcome.recomputed += max(0, known - cached)
        begin = max(self._now, engine.reads_until)
        engine.reads_until = begin + unread * engine.read_seconds
        read = engine.reads_until - begin
        self._when_up(index, engine.reads_until - self._now, self._write, turn, cached, read)

    def _when_up(self, index: int, seconds: float, event: Any, *arguments: Any) -> None:
        """Let something happen unless the target fails before it."""
        engine, epoch = self._engines[index], self._engines[index].epoch

        def fire() -> None:
            if engine.epoch == epoch:
                event(index, *arguments)

        self._at(seconds, fire)

    def _write(self, index: int, turn: Turn, cached: int, read: float) -> None:
        engine = self._engines[index]
        self._policy.note_read(turn, cached, read)
        writers = sum(s.turn is not None and s.turn.first is not None for s in engine.slots) + 1
        turn.writing_since, turn.token_seconds = self._now, engine.costs.seconds(writers)
        if turn.first is None:
            turn.first = self._now + turn.token_seconds
            self.outcome.first_tokens.append(turn.first - turn.arrived)
        self._when_up(index, turn.left * turn.token_seconds, self._finish, turn)

    def _finish(self, index: int, turn: Turn) -> None:
        engine, chat = self._engines[index], turn.chat
        turn.text += self._tokens(chat.draw, turn.left)
        digests = digests_of(turn.text, b"", b"truth")
        self._known.update(digests)
        for slot in engine.slots:
            if slot.turn is turn:
                slot.turn, slot.text, slot.used = None, digests, self._now
        self._policy.note_end(turn)
        self._at(self._think(chat), self._arrive, chat)
        if engine.waiting:
            self._begin(index, engine.waiting.popleft())

    def _fail(self, index: int) -> None:
        engine = self._engines[index]
        if sum(each.is_up for each in self._engines) > 1:
            engine.is_up, engine.epoch = False, engine.epoch + 1
            lost = engine.forget()
            self._policy.note_failure(index)
            for turn in lost:
                self._lose(turn)
            self._at(AWAY_SECONDS, self._come_back, index)
        self._at(self._draw.expovariate(1.0 / FAILURE_EVERY) + AWAY_SECONDS, self._fail, index)

    def _lose(self, turn: Turn) -> None:
        """Continue what was written, elsewhere."""
        if turn.writing_since:
            written = int((self._now - turn.writing_since) / turn.token_seconds)
            written = min(turn.left - 1, written)
            turn.text += self._tokens(turn.chat.draw, written)
            turn.left, turn.writing_since = turn.left - written, 0.0
        self._policy.note_end(turn)
        self._send(turn)

    def _come_back(self, index: int) -> None:
        self._engines[index].is_up = True
        self._policy.note_failure(index)


def rows(targets: int, seconds: float, seed: int) -> Iterator[tuple[str, str, Outcome, Outcome]]:
    """Yield scenario, policy, what came of it, and of round-robin."""
    for scenario in SCENARIOS:
        outcomes = {p: Run(p, scenario, targets, seed).run(seconds) for p in POLICIES}
        for policy, outcome in outcomes.items():
            yield scenario.name, policy, outcome, outcomes["round-robin"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--targets", default="10,100")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| targets | scenario | policy | turns | read | recomputed | of round-robin's ", end="")
    print("| first token p50 / p95 / p99, s | choosing, ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for targets in map(int, options.targets.split(",")):
        for scenario, policy, its, robin in rows(targets, options.seconds, options.seed):
            times = " / ".join(f"{its.quantile(share):.2f}" for share in (0.5, 0.95, 0.99))
            print(
                f"| {targets} | {scenario} | {policy} | {its.turn_count} "
                f"| {its.read_tokens / its.prompt_tokens:.0%} "
                f"| {its.recomputed / its.prompt_tokens:.1%} "
                f"| {its.recomputed / robin.recomputed:.2f} | {times} "
                f"| {1e3 * its.choosing_seconds / its.turn_count:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
