"""Turns, with contenders that generate at once what they are told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from outrider.client import (
    ControllerView,
    Delta,
    EngineTime,
    Finished,
    FinishReason,
    Origin,
    Request,
)
from outrider.errors import InvalidRequest
from outrider.sampling import GREEDY, SamplingParameters
from outrider_bench.interleave import Bench, Outrider, make_trial
from outrider_bench.prompts import Tasks
from outrider_bench.records import Generated
from outrider_bench.settings import Settings
from outrider_bench.variants import Variant, named_variants
from tests.unit.test_cli_render import STATISTICS

SETTINGS = Settings(
    variants=tuple(named_variants((), greedy=True)),
    lengths=(),
    users=(1,),
    round_trips_ms=(),
    repetitions=3,
    token_limit=8,
    prompt_tokens=4,
    prompt_file=None,
    sampling=GREEDY,
    seed=1,
    peer=None,
    peer_options=(),
)


@dataclass
class Writer:
    """Writes texts of given lengths, then of the length that is asked for."""

    variant: Variant
    lengths: list[int] = field(default_factory=list)
    asked: list[tuple[list[int], int, int]] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)

    async def generate(
        self,
        prompt: Sequence[int],
        token_limit: int,
        sampling: SamplingParameters,
        seed: int,
        begun: Callable[[], None],
    ) -> Generated:
        self.asked.append((list(prompt), token_limit, seed))
        length = self.lengths.pop(0) if self.lengths else token_limit
        begun()
        return Generated(begin=0.0, deltas=((1.0, length),), finish="", round_count=length - 1)


def numbered_prompts() -> Iterator[list[int]]:
    return ([number] for number in count())


def make_bench(seed: int = 1) -> Bench:
    return Bench(replace(SETTINGS, seed=seed), numbered_prompts(), lambda text: None, seed)


def writers() -> list[Writer]:
    return [Writer(variant) for variant in SETTINGS.variants]


async def test_every_contender_takes_one_turn_in_an_order_that_the_seed_draws():
    async def order(seed: int, repetition: int) -> list[str]:
        turns = await make_bench(seed).take_turns(writers(), 1, repetition, "1 user")
        return [turn.variant for turn in turns]

    names = sorted(variant.name for variant in SETTINGS.variants)
    first, second, other = await order(1, 0), await order(1, 1), await order(2, 0)
    assert sorted(first) == sorted(second) == sorted(other) == names
    assert first == await order(1, 0)
    assert len({tuple(first), tuple(second), tuple(other)}) == 3


async def test_no_prompt_and_no_seed_is_used_twice():
    ours = writers()
    bench = make_bench()
    await bench.warm_up(ours, 2)
    await bench.take_turns(ours, 2, 0, "2 users")
    asked = [each for writer in ours for each in writer.asked]
    assert sorted(prompt for prompt, _, _ in asked) == [[i] for i in range(len(asked))]
    assert sorted(seed for _, _, seed in asked) == list(range(1, len(asked) + 1))


async def test_all_contenders_of_a_repetition_have_the_same_task():
    ours = writers()
    bench = make_bench()
    bench.settings = replace(SETTINGS, tasks=Tasks(Path("tasks.json"), "rewrite"))
    await bench.warm_up(ours, 1)
    for repetition in range(2):
        await bench.take_turns(ours, 1, repetition, "1 user")
    for writer in ours:
        assert [prompt for prompt, _, _ in writer.asked] == [[0], [1], [2]]


@dataclass
class Asked:
    """A client that notes down what is asked of it, and generates one token."""

    requests: list[Request] = field(default_factory=list)

    async def generate(self, request: Request) -> Any:
        self.requests.append(request)
        yield Delta((7,), (Origin.PLAIN,), ())
        yield Finished(FinishReason.TOKEN_LIMIT, STATISTICS)


async def test_the_text_of_a_task_is_the_prediction_of_those_that_predict():
    client, texts = Asked(), {(1, 2): (3, 4), (5,): (6,)}
    for variant in named_variants(("plain", "only:suffix", "only:prediction"), greedy=True):
        ours = Outrider(variant, cast(Any, client), {}, texts)
        await ours.generate([1, 2], 1, GREEDY, 1, lambda: None)
    assert [(each.prompt, each.prediction) for each in client.requests] == [
        ([1, 2], ""),
        ([1, 2], ""),
        ([1, 2], (3, 4)),
    ]


def test_a_prediction_without_tasks_is_refused():
    predicting = tuple(named_variants(("only:prediction",), greedy=True))
    with pytest.raises(InvalidRequest, match="variants: predict only texts that are known"):
        replace(SETTINGS, variants=predicting)
    replace(SETTINGS, variants=predicting, tasks=Tasks(Path("tasks.json"), "rewrite"))


async def test_a_turn_has_a_trial_for_every_user():
    (turn,) = await make_bench().take_turns(writers()[:1], 3, 2, "3 users")
    assert (turn.repetition, len(turn.trials), turn.token_count) == (2, 3, 24)


async def test_a_turn_with_a_text_that_ended_early_is_taken_again():
    writer = Writer(SETTINGS.variants[0], [8, 3])
    (turn,) = await make_bench().take_turns([writer], 2, 0, "2 users")
    assert (turn.discarded_count, turn.token_count) == (1, 16)
    assert len(writer.asked) == 4


async def test_a_model_that_always_ends_early_is_taken_as_it_is():
    writer = Writer(SETTINGS.variants[0], [3] * 9)
    (turn,) = await make_bench().take_turns([writer], 1, 0, "1 user")
    assert (turn.discarded_count, turn.token_count) == (3, 3)


def test_what_a_generation_of_ours_tells_is_kept_without_the_prompt():
    told = replace(
        STATISTICS,
        target_time=EngineTime(decode_seconds=1.0, prompt_seconds=0.25),
        draft_time=EngineTime(decode_seconds=0.25, prompt_seconds=0.5),
    )
    finished = Finished(FinishReason.TOKEN_LIMIT, told)
    trial = make_trial(7.0, [(0.25, 1), (2.0, 4)], finished)
    assert (trial.begin, trial.token_count, trial.finish) == (7.0, 5, "token limit")
    assert (trial.round_count, trial.drafted_count, trial.accepted_count) == (1, 4, 3)
    assert trial.accepted_by_position == (1, 1, 1, 0)
    assert (trial.target_seconds, trial.draft_seconds, trial.wire_bytes) == (0.75, 0.0, 300)
    assert trial.reported["plain_round_seconds"] == 0.875
    assert trial.forecast_ratio is None, "no policy that forecasts"
    controller = ControllerView(plain_token_rate=20.0, forecast_token_rate=30.0)
    finished = replace(finished, statistics=replace(told, controller=controller))
    assert make_trial(7.0, [(0.25, 1)], finished).forecast_ratio == 1.5
