"""Runs generations: asked for over gRPC, over HTTP, as jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    contextmanager,
    nullcontext,
)
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Protocol

from orchestrator import reporting
from orchestrator.admission import Pace, Writers
from orchestrator.beam_driver import BeamDriver
from orchestrator.config import OrchestratorConfig
from orchestrator.driver import Driver
from orchestrator.lookup_caches import SharedTexts
from orchestrator.own_prompts import DraftTemplates, OwnPrompts
from orchestrator.planner import Planner
from orchestrator.pool import Pool
from orchestrator.resuming import (
    MOST_REPEATS,
    NOTHING_REPORTED,
    Repeated,
    Reported,
    WrittenOtherwise,
)
from orchestrator.timings import Timings
from orchestrator.traces import CompletionTrace, GenerationTrace
from outrider import logs, request_scope
from outrider.core.actions import Commit, End
from outrider.core.counts import Counts
from outrider.core.generation import Generation
from outrider.core.plan import Plan
from outrider.core.round_times import RoundTimes
from outrider.core.text import TextAssembler
from outrider.errors import EngineBusy
from outrider.messages import FinishReason, Origin
from outrider.request import Detail, Request
from outrider.response import Delta, Event, Finished, Logprob, Statistics
from outrider.speculation import DraftTemplate, Speculation

Events = AsyncGenerator[Event]

_MOST_WAITING = 16
"""Messages of several completions that wait for a client that does not read."""

Turn = AbstractAsyncContextManager[None]
"""Entered when a generation that has to wait may continue, and left when it is over."""


class Observer(Protocol):
    """Sees all generations of an orchestrator."""

    def watch(self, events: Events, completion_count: int, /) -> Events:
        """Pass on, unchanged, what a generation of so many completions brings."""

    def note_rounds(self, times: RoundTimes, /) -> None:
        """Take in how long the rounds of a completion took that is finished."""


@dataclass(slots=True, eq=False)
class InFlight:
    """A generation in flight; of several completions the tokens are counted together."""

    speculates: bool
    token_count: int = 0
    begin: float = 0.0  # of the monotonic clock
    prompt_count: int = 0  # tokens of its prompt; 0 until that is known


class Completions:
    """The generations of one orchestrator."""

    def __init__(
        self,
        config: OrchestratorConfig,
        pool: Pool,
        shared: SharedTexts,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`shared` is what generations share, if anything: it takes in their texts."""
        self._config = config
        self._shared = shared
        self._observers = observers
        self._pool = pool
        self.planner = Planner(config, pool, shared)
        self.active_count = 0  # completions in flight; jobs that wait for their turn are none
        self.in_flight: list[InFlight] = []  # requests, oldest first
        self.token_count = 0  # generated so far
        self._writers = Writers()
        self._templates = DraftTemplates()
        self.pace = Pace()  # how long they take, for those who are sent away
        self.idle = asyncio.Event()
        """Set while `active_count` is 0."""
        self.idle.set()

    def reconfigure(self, config: OrchestratorConfig) -> None:
        """Go by other limits from now on."""
        self._config = config
        self.planner.reconfigure(config)

    async def generate(
        self,
        asked: Request,
        seconds: float | None = None,
        counts_cached: bool = False,
        turn: Turn | None = None,
        reported: Mapping[int, Reported] = NOTHING_REPORTED,
    ) -> Events:
        """Yield one `Started`; then of each completion any number of `Delta`, one `Finished`.

        Closing the iterator stops the work at both models. `counts_cached`
        asks the target first how much of the prompt it holds. Raises what can
        be wrong with the request, EngineBusy when too much is in flight, and
        DeadlinePassed or PeerUnavailable when `seconds` are over. With a
        `turn` the tokens wait for it, and time counts from there anew. What was
        `reported` of each completion is not repeated: it is continued from there.
        """
        limit = self._config.request_seconds
        seconds = limit if seconds is None else min(seconds, limit)
        clock = _Clock(time.perf_counter(), time.monotonic() + seconds)
        speculation = self._speculation(asked)
        scope, trace = request_scope.current(), GenerationTrace.begun(clock.begin)
        async with AsyncExitStack() as stack:
            if trace is not None:
                stack.push(lambda _, error, __: trace.end(error))
            if turn is None:
                self._check_place(asked.completion_count)
                in_flight = stack.enter_context(self._active(asked, speculation))
            with nullcontext() if trace is None else trace.planning():
                plan = await self.planner.plan(asked, speculation, clock.deadline)
            cached, logprobs = 0, tuple[Logprob, ...]()
            if counts_cached:
                cached = await self.planner.cached_count(plan, clock.deadline)
            if asked.prompt_logprobs:
                scores = await self.planner.score(plan, clock.deadline)
                logprobs = await asyncio.to_thread(reporting.logprobs_of, scores, plan.token_texts)
            if scope is not None:
                scope.prompt_tokens += len(plan.prompt)
            if trace is not None:
                trace.planned(plan, turn is not None)
            yield reporting.started(plan, cached, logprobs)
            if turn is not None:
                await stack.enter_async_context(turn)
                in_flight = stack.enter_context(self._active(asked, speculation))
                clock = _Clock(time.perf_counter(), time.monotonic() + seconds)
            in_flight.prompt_count = len(plan.prompt)
            async with aclosing(self._all(plan, asked, clock, reported, trace)) as stream:
                async for event in stream:
                    count = len(event.token_ids) if isinstance(event, Delta) else 0
                    in_flight.token_count += count
                    self.token_count += count
                    if scope is not None:
                        scope.tokens += count
                    yield event

    def _speculation(self, asked: Request) -> Speculation:
        drafts = self._pool.may_have_draft or self._pool.target_drafts
        return asked.speculation(self._config.speculation, drafts)

    def _all(
        self,
        plan: Plan,
        asked: Request,
        clock: _Clock,
        reported: Mapping[int, Reported],
        trace: GenerationTrace | None,
    ) -> Events:
        """Return what the completions that are not finished bring, all at once."""
        plans = [plan]
        plans += [self.planner.another(plan, i) for i in range(1, asked.completion_count)]
        before = [reported.get(each.opening.choice, Reported()) for each in plans]
        first, *others = [
            self._completion(its_plan, asked, clock, its, trace)
            for its_plan, its in zip(plans, before, strict=True)
            if not its.is_finished
        ] or [_none()]
        return merged(first, others) if others else first

    def _driver(
        self, generation: Generation, asked: Request, deadline: float
    ) -> Driver | BeamDriver:
        plan = generation.plan
        if plan.beam_count > 1:
            return BeamDriver(generation, self._pool, deadline)
        # Where a part of the prompt is left out, nobody knows what of the conversation that is.
        is_whole = not (plan.is_truncated or plan.opening.dropped.token_ids)
        own = None
        wants = plan.control.speculation.draft_template is DraftTemplate.OWN
        if asked.conversation is not None and wants and is_whole:
            own = OwnPrompts(self._templates, asked.conversation)
        return Driver(generation, self._pool, deadline, own)

    def _note_text(self, generation: Generation, asked: Request) -> None:
        target = self._pool.target.model
        if target is not None:
            prompt, text = generation.plan.prompt, generation.committed
            own = text[len(prompt) :]
            self._shared.note_text(prompt, own, target.vocabulary, not asked.has_own_salt)

    def _check_place(self, count: int) -> None:
        if self.active_count + count > self._config.generations:
            wait = self.pace.wait_seconds(self.active_count)
            raise EngineBusy(f"{self.active_count} generations are in flight", wait)

    @contextmanager
    def _active(self, asked: Request, speculation: Speculation) -> Iterator[InFlight]:
        """Count a request's completions as active, and learn how long they take."""
        begin = time.monotonic()
        in_flight = InFlight(speculation.drafts, begin=begin)
        self._count_active(asked.completion_count)
        self.in_flight.append(in_flight)
        try:
            yield in_flight
        finally:
            self.in_flight.remove(in_flight)
            self._count_active(-asked.completion_count)
            self.pace.note(time.monotonic() - begin)

    def _count_active(self, more: int) -> None:
        self.active_count += more
        if self.active_count:
            self.idle.clear()
        else:
            self.idle.set()

    async def _counted(self, deltas: AsyncGenerator[Delta]) -> AsyncGenerator[Delta]:
        """Pass on what a generation adds to its text, and count it while it is being written."""
        text = object()
        try:
            self._count_writer(text)
            async with aclosing(deltas):
                async for delta in deltas:
                    self._count_writer(text)
                    yield delta
        finally:
            self._writers.remove(text)
            self._pool.count_generations(self._writers.count(time.monotonic()))

    def _count_writer(self, text: object) -> None:
        now = time.monotonic()
        self._writers.note(text, now)
        self._pool.count_generations(self._writers.count(now))

    async def _completion(
        self,
        plan: Plan,
        asked: Request,
        clock: _Clock,
        before: Reported,
        whole: GenerationTrace | None,
    ) -> Events:
        """Yield one completion; where a full context shifts, of several generations."""
        trace = None if whole is None else whole.completion(plan.opening.choice)
        text = TextAssembler[Origin](asked.stop_sequences)
        taken = _Taken(Timings(clock.begin))
        last = _show_again(plan, before, text)
        reason = before.reason(plan.end_token_ids, text.stopped_by)
        reports = asked.detail is not Detail.NOTHING
        repeated, first, repeats = Repeated(()), plan, 0
        if plan.repeats and reason is None:
            repeated = Repeated(before.token_ids)
        else:
            plan = self.planner.resumed(plan, before.token_ids)
        while True:
            generation = Generation(plan)
            generation.finished, reason = reason, None
            driver = self._driver(generation, asked, clock.deadline)
            driver.timings.begin, driver.timings.trace = clock.begin, trace
            deltas = self._counted(_deltas(generation, driver, text, reports, repeated))
            try:
                async with aclosing(deltas):
                    async for delta in deltas:
                        last = delta.origins[-1]
                        if asked.running_statistics:
                            so_far = taken.with_part(generation, driver)
                            yield replace(delta, statistics=so_far)
                        else:
                            yield delta
            except WrittenOtherwise:
                # Perhaps by the last bit of a number, which is another one the next time.
                repeats += 1
                if repeats == MOST_REPEATS:
                    raise
                plan, repeated = first, Repeated(before.token_ids)
                continue
            taken.add(generation, driver)
            following = self.planner.shifted(plan, generation)
            if following is None:
                break
            plan = following
        self._note_text(generation, asked)
        rest = text.finish(last)
        if rest and not before.has_rest:
            whole_time = taken.statistics(generation) if asked.running_statistics else None
            pieces, choice = reporting.pieces_of(rest), plan.opening.choice
            yield Delta((), (), pieces, choice=choice, statistics=whole_time)
        yield self._finished(generation, taken, text.stopped_by, trace)

    def _finished(
        self,
        generation: Generation,
        taken: _Taken,
        stopped_by: str,
        trace: CompletionTrace | None,
    ) -> Finished:
        """Return how a completion ended, and report that."""
        finished = reporting.finished(generation, taken.statistics(generation), stopped_by)
        _log(generation, finished.statistics)
        if trace is not None:
            trace.end(finished)
        for observer in self._observers:
            observer.note_rounds(taken.timings.rounds)
        return finished


@dataclass(slots=True)
class _Taken:
    """What the parts of a completion took that are over."""

    timings: Timings
    counts: Counts = field(default_factory=Counts)
    byte_count: int = 0

    def add(self, part: Generation, driver: Driver | BeamDriver) -> None:
        """Count a part."""
        self.counts.add(part.counts)
        self.timings.add(driver.timings)
        self.byte_count += driver.wire_bytes

    def with_part(self, part: Generation, driver: Driver | BeamDriver) -> Statistics:
        """Return what the completion took so far, with a part that is in flight.

        Without its single rounds: a message for each of them would repeat all before it.
        """
        whole = deepcopy(self)
        whole.add(part, driver)
        whole.counts.accepted_by_round.clear()
        whole.counts.drafted_by_round.clear()
        return whole.statistics(part)

    def statistics(self, part: Generation) -> Statistics:
        """Return what the completion took up to a part that is counted."""
        return reporting.statistics(part, self.counts, self.timings, self.byte_count)


@dataclass(frozen=True, slots=True)
class _Clock:
    """When the work of a request began and has to end."""

    begin: float  # of the performance counter, where its durations begin
    deadline: float  # of the monotonic clock


async def _deltas(
    generation: Generation,
    driver: Driver | BeamDriver,
    text: TextAssembler[Origin],
    wants_report: bool,
    repeated: Repeated,
) -> AsyncGenerator[Delta]:
    """Drive a generation and yield what its rounds add to the text, but for what is repeated."""
    plan = generation.plan
    length = len(plan.prompt)
    events = driver.run()
    async with aclosing(events):
        async for event in events:
            if isinstance(event, End):
                break
            if text.stopped_by:
                continue  # it came with what the text ends in, and is no part of it
            count = repeated.pass_over(event.token_ids)
            length += count
            if count == len(event.token_ids) > 0:
                continue
            delta = reporting.delta_of(_after(event, count) if count else event, plan, text)
            length += len(delta.token_ids)
            if text.stopped_by and generation.finished is not FinishReason.STOP_SEQUENCE:
                generation.stop(length)
            if wants_report and event.report is not None:
                report = reporting.report_of(event.report, plan.token_texts)
                delta = replace(delta, report=report)
            yield delta


def _after(commit: Commit, count: int) -> Commit:
    """Return a commit without its first tokens."""
    return replace(
        commit,
        token_ids=commit.token_ids[count:],
        origins=commit.origins[count:],
        logprobs=commit.logprobs[count:],
    )


def _show_again(plan: Plan, before: Reported, text: TextAssembler[Origin]) -> Origin:
    """Bring a text to where it was after what was reported; return its last token's origin."""
    if not before.token_ids:
        return Origin.PLAIN
    reporting.delta_of(Commit(before.token_ids, before.origins), plan, text)
    return before.origins[-1]


async def _none() -> Events:
    """Yield nothing."""
    nothing: tuple[Event, ...] = ()
    for each in nothing:
        yield each


async def merged(first: Events, others: Sequence[Events]) -> Events:
    """Yield what several streams bring, as it comes; the others start after the first's first.

    By then the prompt is in the target's cache. Raises what any of them raises. Where nobody takes
    what comes they wait, as a single one does.
    """
    arrived: asyncio.Queue[Event | BaseException | None]
    arrived = asyncio.Queue(_MOST_WAITING)

    async def pump(stream: Events) -> None:
        try:
            async with aclosing(stream):
                async for response in stream:
                    await arrived.put(response)
            await arrived.put(None)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # nobody listens any more
            await arrived.put(error)

    tasks = [asyncio.create_task(pump(first))]
    left = 1 + len(others)
    try:
        while left:
            item = await arrived.get()
            if isinstance(item, BaseException):
                raise item
            if len(tasks) == 1:
                tasks += [asyncio.create_task(pump(each)) for each in others]
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _log(generation: Generation, numbers: Statistics) -> None:
    """Log the end of a generation; counts and times, never text."""
    assert generation.finished is not None
    logs.event(
        "outrider.orchestrator",
        "generated",
        session=generation.plan.opening.session_id.hex()[:8],
        reason=generation.finished.value,
        prompt_tokens=numbers.prompt_token_count,
        tokens=numbers.generated_token_count,
        drafted=numbers.drafted_token_count,
        accepted=numbers.accepted_token_count,
        rounds=numbers.round_count,
        first_token_ms=int(1e3 * numbers.first_token_seconds),
        generation_ms=int(1e3 * numbers.generation_seconds),
        draft_faults=numbers.draft_fault_count,
        target_faults=numbers.target_fault_count,
    )
