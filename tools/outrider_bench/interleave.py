"""Lets services generate in turn, and notes down what came of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from outrider.client import (
    ControllerView,
    Delta,
    EngineTime,
    Finished,
    OutriderClient,
    Request,
)
from outrider.sampling import SamplingParameters
from outrider_bench.machine import CpuClock
from outrider_bench.records import Generated, Turn
from outrider_bench.settings import Settings
from outrider_bench.variants import Variant

_WARM_UP_TOKENS = 64
_ATTEMPTS = 4
_SETTLE_SECONDS = 0.1
"""What a generation leaves over, such as a draft that ran ahead, ends meanwhile."""


class Contender(Protocol):
    """Something that generates."""

    @property
    def variant(self) -> Variant:
        """The way in which it does."""
        ...

    @property
    def pids(self) -> Mapping[str, int]:
        """The processes that compute for it, by name."""
        ...

    async def generate(
        self,
        prompt: Sequence[int],
        token_limit: int,
        sampling: SamplingParameters,
        seed: int,
        begun: Callable[[], None],
    ) -> Generated:
        """Generate once; `begun` is called at the first token."""
        ...


@dataclass(frozen=True, slots=True)
class Outrider:
    """One variant of our own services."""

    variant: Variant
    client: OutriderClient
    pids: Mapping[str, int]
    texts: Mapping[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    """What follows a prompt, where that is known: sent as the prediction of those that predict."""

    async def generate(
        self,
        prompt: Sequence[int],
        token_limit: int,
        sampling: SamplingParameters,
        seed: int,
        begun: Callable[[], None],
    ) -> Generated:
        """Generate once. Raises CallFailed."""
        asked = Request(prompt, token_limit=token_limit, sampling=sampling, seed=seed)
        asked = replace(asked, **self.variant.changes)
        if self.variant.predicts:
            asked = replace(asked, prediction=self.texts[tuple(prompt)])
        begin, deltas, finished = time.perf_counter(), list[tuple[float, int]](), None
        async with aclosing(self.client.generate(asked)) as events:
            async for event in events:
                if isinstance(event, Delta) and event.token_ids:
                    if not deltas:
                        begun()
                    deltas.append((time.perf_counter() - begin, len(event.token_ids)))
                elif isinstance(event, Finished):
                    finished = event
        assert finished is not None
        return make_trial(begin, deltas, finished)


def make_trial(begin: float, deltas: Sequence[tuple[float, int]], finished: Finished) -> Generated:
    """Return what a generation of ours says."""
    reported = finished.statistics
    return Generated(
        begin=begin,
        deltas=tuple(deltas),
        finish=finished.reason.value,
        round_count=max(0, reported.round_count - 1),
        drafted_count=reported.drafted_token_count,
        accepted_count=reported.accepted_token_count,
        drafted_by_position=reported.drafted_by_position,
        accepted_by_position=reported.accepted_by_position,
        target_seconds=_after_prompt(reported.target_time),
        draft_seconds=_after_prompt(reported.draft_time),
        wire_bytes=reported.wire_byte_count,
        alone_rate=reported.controller.target_alone_token_rate or None,
        forecast_ratio=_forecast_ratio(reported.controller),
        reported=asdict(reported),
    )


def _forecast_ratio(its: ControllerView) -> float | None:
    known = its.forecast_token_rate and its.plain_token_rate
    return its.forecast_token_rate / its.plain_token_rate if known else None


def _after_prompt(spent: EngineTime) -> float:
    return max(0.0, spent.decode_seconds - spent.prompt_seconds)


@dataclass(slots=True)
class Bench:
    """Lets contenders take turns under one set of settings.

    Each generation has a new prompt; only of tasks, of which there are few, all
    contenders of a repetition have the same.
    """

    settings: Settings
    prompts: Iterator[list[int]]
    say: Callable[[str], None]
    seed: int  # of the next generation

    async def warm_up(self, contenders: Sequence[Contender], users: int) -> None:
        """Let every contender generate once, uncounted."""
        limit = min(self.settings.token_limit, _WARM_UP_TOKENS)
        draw = self._drawer(users)
        for contender in contenders:
            self.say(f"warming up {contender.variant.name}")
            await self._attempt(contender, draw(), limit)

    async def take_turns(
        self, contenders: Sequence[Contender], users: int, repetition: int, where: str
    ) -> list[Turn]:
        """Let all contenders take one turn, in an order that the seed draws."""
        order = list(contenders)
        random.Random(f"{self.settings.seed} {where} {repetition}").shuffle(order)
        draw = self._drawer(users)
        turns = []
        for contender in order:
            count = f"repetition {repetition + 1} of {self.settings.repetitions}"
            self.say(f"{where}, {count}: {contender.variant.name}")
            turns.append(await self._turn(contender, draw, repetition))
        return turns

    def _drawer(self, users: int) -> Callable[[], list[list[int]]]:
        """Return what gives a prompt for each user: new ones, or those of one task."""
        if self.settings.tasks is None:
            return lambda: [next(self.prompts) for _ in range(users)]
        drawn = [next(self.prompts) for _ in range(users)]
        return lambda: drawn

    async def _turn(
        self, contender: Contender, draw: Callable[[], list[list[int]]], repetition: int
    ) -> Turn:
        """Take a turn; again on other prompts if a text ends early, though not forever."""
        limit = self.settings.token_limit
        for attempt in range(_ATTEMPTS):
            trials, cpu = await self._attempt(contender, draw(), limit)
            turn = Turn(
                variant=contender.variant.name,
                repetition=repetition,
                trials=tuple(trials),
                cpu_seconds=cpu,
                discarded_count=attempt,
            )
            if not turn.count_short(limit):
                break
        return turn

    async def _attempt(
        self, contender: Contender, prompts: Sequence[list[int]], limit: int
    ) -> tuple[list[Generated], dict[str, float]]:
        await asyncio.sleep(_SETTLE_SECONDS)
        clock, sampling = CpuClock(contender.pids), self.settings.sampling
        trials = await asyncio.gather(
            *(
                contender.generate(prompt, limit, sampling, seed, clock.start)
                for seed, prompt in enumerate(prompts, self.seed)
            )
        )
        self.seed += len(prompts)
        return trials, clock.stop()
