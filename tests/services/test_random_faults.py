"""Seeded walks through everything that can go wrong, thousands of steps: the text stays right.

Three walks: at the target and at the draft by hand, as an orchestrator would
behave, while someone else evicts, rolls back and restarts; and whole
generations over links that repeat, delay, reorder, drop and cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import cache, partial

import grpc
import pytest

from outrider.core.actions import Action
from outrider.core.asking import Asking
from outrider.core.draft_line import Line
from outrider.core.generation import Generation
from outrider.core.plan import Plan
from outrider.core.target_progress import RoundInFlight
from outrider.engine.hosting import HostOptions
from outrider.engine.model import Numerics
from outrider.messages import Frame, Round, Span
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as draft_messages
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.proxy import Cut, Meddler, Proxy, Way
from tests.support.services import (
    DRAFT,
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    Role,
    all_idle,
    eventually,
    generate,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.streams import DraftStream, VerifyStream, line_after, sampled
from tests.support.thorough import THOROUGH
from tests.support.toy import NEVER, ToyModel

TEXT_LIMIT = 40
WALKERS = 6  # more than there are sequences
STEPS = 180 if THOROUGH else 120  # of each walker
HOST = HostOptions(numerics=Numerics.EXACT, room_seconds=0.05)


def model() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER, vocabulary_size=16)


@cache
def oracle() -> ToyModel:
    return model()


class Walker:
    """One client with one session at a time, which it loses and opens anew at random."""

    def __init__(self, service: ModelProcess, number: int, sessions: set[bytes]) -> None:
        self.service = service
        self.rng = random.Random(number)
        self.outcomes: Counter[str] = Counter()
        self._sessions = sessions
        self._begin()

    def _begin(self) -> None:
        """Start another text."""
        self.session_id = self.rng.randbytes(16)
        self._sessions.add(self.session_id)
        self.attempt = 0
        self.number = 0
        self.text = [0, *(self.rng.randrange(3, 16) for _ in range(self.rng.randint(1, 20)))]
        self.told = 0
        self.confirmed = 0

    def random_ids(self, most: int) -> list[int]:
        return [self.rng.randrange(3, 16) for _ in range(self.rng.randint(0, most))]

    async def walk(self) -> None:
        """Take all steps, over as many streams as it needs."""
        while self.outcomes.total() < STEPS:
            if len(self.text) > TEXT_LIMIT:
                self._sessions.discard(self.session_id)
                self._begin()
            self.attempt += 1
            try:
                await self.walk_stream()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, AssertionError) as error:
                if isinstance(error, AssertionError) and "the stream ended" not in str(error):
                    raise
                self.outcomes["lost"] += 1
                # A killed service needs a moment.
                await asyncio.sleep(0.01)

    async def walk_stream(self) -> None:
        """Take some steps on one stream."""
        raise NotImplementedError

    def stays(self) -> bool:
        """Return whether to continue with this stream."""
        return len(self.text) <= TEXT_LIMIT and self.rng.random() > 0.05


class VerifyWalker(Walker):
    """Verifies random drafts of a text that grows by what the target says."""

    async def walk_stream(self) -> None:
        async with VerifyStream(
            self.service,
            session_id=self.session_id,
            attempt=self.attempt,
            vocabulary_token_count=16,
        ) as stream:
            while self.stays():
                await self._step(stream)

    async def _step(self, stream: VerifyStream) -> None:
        drafted = self._draft()
        self.number += 1
        position = self.rng.choice([self.told, self.told, self.rng.randint(0, self.told)])
        copies = self.rng.choice([1, 1, 1, 2])
        for _ in range(copies):
            await stream.send_round(self.number, position, self.text[position:], drafted)
        if self.number > 1 and self.rng.random() < 0.1:
            # A late message of an earlier round.
            await stream.send_round(self.number - 1, 0, self.text[:3], [5])
            copies += 1
        answers = [await stream.receive() for _ in range(copies)]
        for answer in answers:
            self._check(answer, drafted)
        self._commit(answers[0], drafted)

    def _draft(self) -> list[int]:
        """Return a draft: often what the target will say, so that something is accepted."""
        if self.rng.random() < 0.5:
            return line_after(oracle(), self.text, len(self.text) + self.rng.randint(0, 4))
        return self.random_ids(5)

    def _check(self, answer: object, drafted: Sequence[int]) -> None:
        outcome = answer.WhichOneof("outcome")  # type: ignore[attr-defined]
        self.outcomes[outcome] += 1
        if answer.round != self.number:  # type: ignore[attr-defined]
            assert outcome in ("superseded", "rows")
        elif outcome == "rows":
            rows = list(answer.rows.token_ids)  # type: ignore[attr-defined]
            assert rows == sampled(oracle(), [*self.text, *drafted], len(drafted) + 1)
        else:
            assert outcome in ("missing", "busy", "superseded")

    def _commit(self, answer: object, drafted: Sequence[int]) -> None:
        outcome = answer.WhichOneof("outcome")  # type: ignore[attr-defined]
        if outcome == "missing":
            held = answer.missing.held_token_count  # type: ignore[attr-defined]
            assert held < len(self.text)
            self.told = held
        elif outcome == "rows":
            rows = list(answer.rows.token_ids)  # type: ignore[attr-defined]
            accepted = next(
                (i for i, (a, b) in enumerate(zip(drafted, rows, strict=False)) if a != b),
                len(drafted),
            )
            self.told = len(self.text) + accepted
            self.text += rows[: accepted + 1]


class DraftWalker(Walker):
    """Has a text drafted that now agrees with the line and now does not."""

    async def walk_stream(self) -> None:
        # Later orders may never have arrived.
        self.number, self.told = 0, self.rng.choice([0, self.confirmed])
        lines: defaultdict[int, dict[int, int]] = defaultdict(dict)
        async with DraftStream(
            self.service,
            session_id=self.session_id,
            attempt=self.attempt,
            vocabulary_token_count=16,
        ) as stream:
            while self.stays():
                await self._step(stream, lines)

    async def _step(self, stream: DraftStream, lines: defaultdict[int, dict[int, int]]) -> None:
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            # All but the last order are replaced, some before they start.
            self._grow(lines)
            until = len(self.text) + self.rng.randint(0, 8)
            await self._order(stream, until)
            if self.rng.random() < 0.5:
                await asyncio.sleep(self.rng.random() * 0.003)
        try:
            messages = await asyncio.wait_for(stream.until_completed(self.number), 2.0)
        except TimeoutError:
            # Cancelled from the side: what an orchestrator would call late.
            self.outcomes["late"] += 1
            return
        for message in messages:
            if message.WhichOneof("outcome") == "frame":
                self._note(message.frame, lines)
        self._check(messages[-1], lines, until)

    async def _order(self, stream: DraftStream, until: int) -> None:
        self.number += 1
        position = self.rng.choice([self.told, self.told, self.rng.randint(0, self.told)])
        await stream.send_order(self.number, position, self.text[position:], until)
        self.told = len(self.text)

    def _grow(self, lines: defaultdict[int, dict[int, int]]) -> None:
        """Let the text continue, along the line or not."""
        line = lines[max(lines)] if lines else {}
        for _ in range(self.rng.randint(0, 3)):
            along = line.get(len(self.text))
            if along is None or self.rng.random() < 0.3:
                along = self.rng.randrange(3, 16)
            self.text.append(along)

    def _note(
        self, frame: draft_messages.DraftFrame, lines: defaultdict[int, dict[int, int]]
    ) -> None:
        assert not lines or frame.base >= max(lines)
        for i, token_id in enumerate(frame.token_ids):
            assert frame.position + i not in lines[frame.base]
            lines[frame.base][frame.position + i] = token_id

    def _check(
        self, last: draft_messages.DraftResponse, lines: dict[int, dict[int, int]], until: int
    ) -> None:
        outcome = last.WhichOneof("outcome")
        assert outcome in ("frame", "missing", "busy")
        self.outcomes[outcome or ""] += 1
        if outcome == "missing":
            self.told = last.missing.held_token_count
        if outcome != "frame":
            return
        self.confirmed = len(self.text)
        line, base = lines.get(last.frame.base, {}), last.frame.base
        end = base + len(line)
        assert sorted(line) == list(range(base, end))
        # The line agrees with the text, reaches the horizon, and is the model's own.
        assert end >= until
        drafted = [line[position] for position in range(base, end)]
        common_end = min(end, len(self.text))
        assert drafted[: common_end - base] == self.text[base:common_end]
        assert drafted == line_after(oracle(), self.text[:base], end)


async def disturb(
    service: ModelProcess, sessions: set[bytes], rng: random.Random, over: Callable[[], bool]
) -> None:
    """Close, roll back and restart at random until it is over."""
    for turn in itertools.count():
        if over():
            return
        await asyncio.sleep(rng.random() * 0.01)
        session_id = rng.choice([*sessions, rng.randbytes(16)])
        with contextlib.suppress(grpc.aio.AioRpcError):
            # One restart is certain.
            kind = 1.0 if turn == 10 else rng.random()
            if kind < 0.3:
                await service.stub.CloseSession(
                    common.CloseSessionRequest(session_id=session_id), timeout=5
                )
            elif kind < 0.98:
                await service.stub.Rollback(
                    common.RollbackRequest(
                        session_id=session_id,
                        token_count=rng.randint(0, TEXT_LIMIT),
                        attempt=rng.choice([0, 1, 2, 1000]),
                        round=rng.choice([0, 1, 5, 1000]),
                    ),
                    timeout=5,
                )
            else:
                await service.restart()


@pytest.mark.parametrize("seed", [0, 1] if THOROUGH else [0])
@pytest.mark.parametrize(
    "kind", [(TARGET, VerifyWalker), (DRAFT, DraftWalker)], ids=["target", "draft"]
)
async def test_a_service_answers_rightly_whatever_happens_to_its_sessions(
    kind: tuple[Role, type[Walker]], seed: int
) -> None:
    role, walker = kind
    async with running(ModelProcess(role, model, HOST)) as service:
        sessions: set[bytes] = set()
        walkers = [walker(service, 100 * seed + i, sessions) for i in range(WALKERS)]
        walking = asyncio.gather(*(one.walk() for one in walkers))
        disturbing = asyncio.create_task(
            disturb(service, sessions, random.Random(seed), walking.done)
        )
        await walking
        await disturbing
        total = sum((one.outcomes for one in walkers), Counter[str]())
        good = "rows" if role is TARGET else "frame"
        assert total[good] > 0.4 * WALKERS * STEPS, total
        assert total["missing"] > 0 and total["lost"] > 0, total
        await eventually(partial(all_idle, service))


# --- whole generations ---


class WatchedAsking(Asking):
    """What is asked, checked as soon as it is decided."""

    check: Callable[[Sequence[int]], None]

    def _ask(
        self,
        length: int,
        line: Line,
        prefix: Span,
        is_ahead: bool = False,
        chances: Sequence[float] | None = None,
    ) -> RoundInFlight:
        # A round may be sent later, when the line is another or none.
        asked = super()._ask(length, line, prefix, is_ahead, chances)
        if line.token_ids and not is_ahead:
            self.check(asked.round.draft)
        return asked


class Watched(Generation):
    """A generation that checks every round against the frames it has seen."""

    rounds_with_draft = 0

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._lines: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._asking.__class__ = WatchedAsking
        self._asking.check = self._check

    def draft_opened(self, context: int, row_width: int = 0) -> None:
        self._lines.clear()
        super().draft_opened(context, row_width)

    def draft_frame(
        self, frame: Frame, now: float, seconds: float = 0.0, queue: float = 0.0
    ) -> None:
        for i, token_id in enumerate(frame.token_ids):
            self._lines[frame.base].setdefault(frame.position + i, token_id)
        super().draft_frame(frame, now, seconds, queue)

    def next_actions(self, now: float) -> list[Action]:
        actions = super().next_actions(now)
        for action in actions:
            if isinstance(action, Round) and not action.is_ahead:
                prefix = action.prefix
                assert list(prefix.token_ids) == self.committed[prefix.position :]
        return actions

    def _check(self, draft: Sequence[int]) -> None:
        Watched.rounds_with_draft += 1
        line = self._lines[max(self._lines)]
        start = len(self.committed)
        assert [line[start + i] for i in range(len(draft))] == list(draft)
        for position, token_id in line.items():
            assert position >= start or self.committed[position] == token_id


def meddler(rng: random.Random, drops: bool) -> Meddler:
    """Return what repeats, delays, reorders and cuts; where it may, it drops too."""
    late: list[tuple[Way, bytes]] = []

    async def meddle(way: Way, message: bytes) -> AsyncIterator[bytes]:
        kind = rng.random()
        if kind < 0.01:
            raise Cut
        if kind < 0.05:
            await asyncio.sleep(rng.random() * 0.02)
        if drops and way is Way.DOWN and kind > 0.97:
            return
        yield message
        for again in _due(late, way, rng):
            yield again
        if 0.1 < kind < 0.2 and not _opens(way, message):
            late.append((way, message))

    return meddle


def _due(late: list[tuple[Way, bytes]], way: Way, rng: random.Random) -> Iterator[bytes]:
    """Give copies of earlier messages, in any order."""
    for entry in [entry for entry in late if entry[0] is way and rng.random() < 0.5]:
        late.remove(entry)
        yield entry[1]


def _opens(way: Way, message: bytes) -> bool:
    """Return whether a message opens a stream: field 1 of both requests. Two would be an error."""
    return way is Way.UP and message[:1] == b"\x0a"


@contextlib.asynccontextmanager
async def bad_links(
    rng: random.Random,
) -> AsyncIterator[tuple[ModelProcess, ModelProcess, OrchestratorProcess]]:
    """Start all three with bad links between them."""

    def small_target() -> ToyModel:
        return toy(seed=1, eos_bias=NEVER)

    def small_draft() -> ToyModel:
        return toy(seed=2, like=1, agreement=0.97, eos_bias=NEVER)

    async with (
        running(ModelProcess(TARGET, small_target, HOST)) as target,
        running(ModelProcess(DRAFT, small_draft, HOST)) as draft,
        running(Proxy(target.address, "Verify", lambda: meddler(rng, drops=False))) as up,
        running(Proxy(draft.address, "Draft", lambda: meddler(rng, drops=True))) as down,
        running(OrchestratorProcess(up.address, down.address, draft_seconds=0.05)) as orchestrator,
    ):
        await orchestrator.until_ready()
        yield target, draft, orchestrator


async def trouble(
    services: Sequence[ModelProcess], rng: random.Random, over: Callable[[], bool]
) -> None:
    """Evict and restart at random until it is over."""
    while not over():
        await asyncio.sleep(rng.random() * 0.1)
        service = rng.choice(services)
        acts: list[Callable[[], Awaitable[None]]] = [service.close_sessions] * 9
        with contextlib.suppress(grpc.aio.AioRpcError):
            await rng.choice([*acts, service.restart])()


@pytest.mark.parametrize("seed", [0, 1] if THOROUGH else [1])
@pytest.mark.parametrize("rollback", [1, 2], ids=["span", "rpc"])
async def test_the_text_is_right_over_bad_links_to_forgetful_services(
    monkeypatch: pytest.MonkeyPatch, seed: int, rollback: int
) -> None:
    monkeypatch.setattr("orchestrator.completions.Generation", Watched)
    Watched.rounds_with_draft = 0
    rng = random.Random(seed)
    async with bad_links(rng) as (target, draft, orchestrator):
        asked = [
            request(
                seed=i,
                token_limit=120,
                n_max=(i % 3) * 3 + 1,
                rollback=rollback,
                run_ahead=i % 2 == 1,
                policy=messages.DRAFT_POLICY_MEASURED
                if i % 4 == 3
                else messages.DRAFT_POLICY_FIXED,
            )
            for i in range(8)
        ]
        for batch in (asked[:4], asked[4:]):
            writing = asyncio.gather(*(generate(orchestrator, a, timeout=25) for a in batch))
            troubling = asyncio.create_task(trouble((target, draft), rng, writing.done))
            completions = await writing
            await troubling
            for one, completion in zip(batch, completions, strict=True):
                alone = toy(seed=1, eos_bias=NEVER)
                assert completion.token_ids == written_alone(alone, one)
        assert Watched.rounds_with_draft > 20
        await eventually(partial(all_idle, target, draft))
        assert (await orchestrator.status()).active_generation_count == 0
