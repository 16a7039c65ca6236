"""Rejection sampling through three services has exactly the target's distribution.

The seeds are fixed, so these tests always give the same answer for the same
code. A correct change of the noise fails one of them with the odds that
`ALARM` states.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from outrider.engine.model import Chunk
from outrider.sampling import SamplingParameters
from outrider.speculation import Policy, Speculation
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.lazy import Lazy
from tests.support.services import (
    TARGET,
    LookupProcess,
    ModelProcess,
    OrchestratorProcess,
    generate,
    request,
    running,
    three_services,
    toy,
)
from tests.support.thorough import THOROUGH
from tests.support.toy import EOS, NEVER, ToyModel

stats = Lazy("scipy.stats")

ALARM = 1e-4
"""The odds of a false alarm of each chi-square test."""

COUNT = 3
"""Tokens whose joint distribution is tested: one plain, then a block of two."""

SEEDS = 700 if THOROUGH else 350
PROMPT = [0, 3, 4]
REPEATS = [0, *[3, 4, 5, 6] * 3]
SAMPLING = SamplingParameters(temperature=0.8)
TEXTBOOK = {
    "row_form": common.ROW_FORM_LOGITS,
    "rollback": messages.ROLLBACK_MODE_RPC,
}
DISTRIBUTIONS: dict[str, Any] = {}
BY_TOKEN = {"verification": messages.VERIFICATION_TOKEN}

TextDistribution = dict[tuple[int, ...], float]


def target() -> ToyModel:
    """Return a target of four tokens and the end."""
    return toy(seed=4, vocabulary_size=7, spread=1.0, sequence_count=16, eos_bias=-1.0)


def draft() -> ToyModel:
    """Return a draft that is right about half of the time."""
    return toy(seed=5, vocabulary_size=7, spread=1.0, sequence_count=16, like=4, agreement=0.5)


def exact_distribution(
    model: ToyModel,
    count: int,
    prompt: Sequence[int] = PROMPT,
    sampling: SamplingParameters = SAMPLING,
) -> TextDistribution:
    """Return the probability of every start of a text, by the product rule."""

    def extend(
        text: tuple[int, ...], probability: float
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        if len(text) == count or text[-1:] == (EOS,):
            yield text, probability
            return
        model.truncate(0, 0)
        [[row]] = model.decode([Chunk(0, 0, [*prompt, *text], 1)])
        sampler = model.sampler(sampling)
        for token_id in text:
            sampler.accept(token_id)
        distribution = sampler.distribution(row)
        for token_id in distribution.token_ids.tolist():
            yield from extend((*text, token_id), probability * distribution.probability(token_id))

    return dict(extend((), 1.0))


def p_value(counts: Counter[tuple[int, ...]], distribution: TextDistribution) -> float:
    """Return the chi-square test's p-value, rare outcomes put together."""
    total = sum(counts.values())
    assert set(counts) <= {text for text, probability in distribution.items() if probability > 0}
    common_texts = [text for text, probability in distribution.items() if probability * total >= 5]
    observed = [counts[text] for text in common_texts]
    expected = [distribution[text] * total for text in common_texts]
    rest = total - sum(expected)
    if rest > 5:
        observed.append(total - sum(observed))
        expected.append(rest)
    scale = sum(observed) / sum(expected)
    return float(stats.chisquare(observed, np.array(expected) * scale).pvalue)


async def texts(
    orchestrator: OrchestratorProcess,
    seeds: range,
    prompt: Sequence[int] = PROMPT,
    **speculative: Any,
) -> list[tuple[int, ...]]:
    """Return what each seed writes."""
    slots = asyncio.Semaphore(8)

    async def one(seed: int) -> tuple[int, ...]:
        # One more than is tested, so that the block of two is not the last thing asked for.
        asked = request(
            prompt_tokens=prompt,
            seed=seed,
            token_limit=COUNT + 1,
            n_max=2,
            acceptance=common.ACCEPTANCE_RULE_REJECTION,
            **speculative,
        )
        async with slots:
            return tuple((await generate(orchestrator, asked)).token_ids)

    return list(await asyncio.gather(*(one(seed) for seed in seeds)))


def starts(written: list[tuple[int, ...]]) -> Counter[tuple[int, ...]]:
    return Counter(text[:COUNT] for text in written)


@pytest.mark.parametrize(
    "mode", [DISTRIBUTIONS, {**TEXTBOOK, **BY_TOKEN}], ids=["block", "textbook by token"]
)
async def test_the_joint_distribution_of_the_first_tokens_is_the_targets(
    mode: dict[str, Any],
) -> None:
    async with three_services(target, draft, draft_seconds=30.0) as trio:
        written = await texts(trio.orchestrator, range(SEEDS), **mode)
    assert p_value(starts(written), exact_distribution(target(), COUNT)) > ALARM


async def test_a_draft_in_the_targets_process_leaves_the_distribution() -> None:
    always = Speculation(policy=Policy.FIXED, n_max=2)
    async with (
        running(ModelProcess(TARGET, target, own_draft=draft)) as process,
        running(OrchestratorProcess(process.address, speculation=always)) as orchestrator,
    ):
        await orchestrator.until_ready()
        written = await texts(orchestrator, range(SEEDS))
        done = await generate(orchestrator, request(token_limit=40, acceptance=3, n_max=2))
    assert p_value(starts(written), exact_distribution(target(), COUNT)) > ALARM
    assert 0 < done.statistics.accepted_token_count < done.statistics.drafted_token_count


async def test_point_masses_of_a_draft_without_a_model_leave_the_distribution() -> None:
    """The prompt repeats itself, so that every block is of two tokens that stood there before."""
    async with (
        running(ModelProcess(TARGET, target)) as process,
        running(LookupProcess()) as lookup,
        running(OrchestratorProcess(process.address, lookup.address)) as orchestrator,
    ):
        await orchestrator.until_ready()
        written = await texts(orchestrator, range(SEEDS // 2), REPEATS)
        statistics = [
            (await generate(orchestrator, asked)).statistics
            for asked in (
                request(prompt_tokens=REPEATS, seed=seed, token_limit=8, acceptance=3, n_max=2)
                for seed in range(8)
            )
        ]
    assert p_value(starts(written), exact_distribution(target(), COUNT, REPEATS)) > ALARM
    accepted = sum(each.accepted_token_count for each in statistics)
    assert 0 < accepted < sum(each.drafted_token_count for each in statistics)


async def test_the_textbook_mode_writes_what_the_other_one_writes() -> None:
    """Equal seeds, equal blocks, equal distributions: equal ids."""
    async with three_services(target, draft, draft_seconds=30.0) as trio:
        by_token = await texts(trio.orchestrator, range(60), **BY_TOKEN)
        one = await texts(trio.orchestrator, range(60))
        other = await texts(trio.orchestrator, range(60), **TEXTBOOK)
    assert one == other
    assert one != by_token


async def test_drafts_are_accepted_and_rejected_in_both_modes() -> None:
    """Otherwise the tests above would test nothing."""

    def endless() -> ToyModel:
        return toy(seed=4, vocabulary_size=7, spread=1.0, eos_bias=NEVER)

    async with three_services(endless, draft, draft_seconds=30.0) as trio:
        for mode in (DISTRIBUTIONS, TEXTBOOK):
            asked = request(token_limit=100, acceptance=3, n_max=4, **mode)
            completion = await generate(trio.orchestrator, asked)
            statistics = completion.statistics
            assert statistics.drafted_round_count > 20
            assert 0.2 < statistics.accepted_token_count / statistics.drafted_token_count < 0.9
            assert completion.origin_count(messages.TOKEN_ORIGIN_BONUS) > 0
            assert completion.origin_count(messages.TOKEN_ORIGIN_CORRECTED) > 0


def skewed(distribution: TextDistribution) -> TextDistribution:
    """Return the distribution with every other text a third more or less likely."""
    factors = (0.67, 1.33)
    changed = {
        text: distribution[text] * factors[i % 2] for i, text in enumerate(sorted(distribution))
    }
    total = sum(changed.values())
    return {text: p / total for text, p in changed.items()}


def test_the_test_sees_a_distribution_that_is_a_third_off() -> None:
    """The negative control, without services: as many draws, from the right and a skewed one."""
    distribution = exact_distribution(target(), COUNT)
    rng = np.random.default_rng(0)

    def draws(of: TextDistribution) -> Counter[tuple[int, ...]]:
        keys = list(of)
        chosen = rng.choice(len(keys), SEEDS, p=list(of.values()))
        return Counter(keys[i] for i in chosen.tolist())

    assert p_value(draws(distribution), distribution) > ALARM
    assert p_value(draws(skewed(distribution)), distribution) < ALARM
