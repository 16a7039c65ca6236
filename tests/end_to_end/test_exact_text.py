"""Three real processes and the bundled pair: the text is the target's own, whatever happens.

The oracle is the same model driven directly, with no service between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from benchmarks.generations import make_generation
from model_making.bad_drafts import write_junk
from orchestrator.driver import Driver
from orchestrator.peers import DialledPeer
from orchestrator.pool import Pool
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.sampling import GREEDY, SamplingParameters
from outrider.v1 import common_pb2
from tests.support.processes import (
    DRAFT,
    MEASURED,
    TARGET,
    Completion,
    ServiceProcess,
    Services,
    running_services,
)
from tests.support.prompts import held_out_prompts
from tests.support.services import eventually
from tests.support.thorough import THOROUGH
from tests.support.toy import generate_alone

SEED = 11
LIMIT = 128 if THOROUGH else 64
PROMPTS = held_out_prompts()[:: 1 if THOROUGH else 2]


@pytest.fixture(scope="module")
def alone() -> Iterator[LlamaModel]:
    """The target without any service."""
    model = LlamaModel(
        LlamaConfig(path=TARGET, context=0, sequence_count=1, thread_count=1, pad_multiple=4)
    )
    yield model
    model.close()


@pytest.fixture(scope="module")
def greedy_texts(alone: LlamaModel) -> list[list[int]]:
    """What the target alone says to every prompt at temperature 0."""
    return [_alone(alone, prompt, GREEDY) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def sampled_texts(alone: LlamaModel) -> list[list[int]]:
    """What the target alone says to some prompts at temperature 0.8."""
    return [_alone(alone, prompt, SamplingParameters()) for prompt in PROMPTS[::4]]


def _alone(model: LlamaModel, prompt: str, sampling: SamplingParameters) -> list[int]:
    ids = model.tokenize(prompt.encode(), True, False)
    return generate_alone(model, ids, LIMIT, sampling, SEED)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services() -> AsyncIterator[Services]:
    """The three processes."""
    async with running_services() as running:
        yield running


async def _greedy(
    services: Services, prompt: str, length: int | None, run_ahead: bool | None = None
) -> list[int]:
    completion = await services.generate(
        prompt, length=length, limit=LIMIT, temperature=0.0, run_ahead=run_ahead
    )
    return completion.token_ids


async def _sampled(services: Services, prompt: str, length: int | None) -> list[int]:
    completion = await services.generate(
        prompt, length=length, limit=LIMIT, temperature=0.8, seed=SEED
    )
    return completion.token_ids


def test_the_prompts_have_20_to_600_tokens(alone: LlamaModel) -> None:
    counts = [len(alone.tokenize(each.encode(), True, False)) for each in held_out_prompts()]
    assert len(counts) == 20 and min(counts) >= 20 and max(counts) <= 620 and max(counts) > 450


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("length", [None, 1, 4, 8, MEASURED] if THOROUGH else [None, MEASURED])
async def test_greedy_text_is_the_targets_own(
    services: Services, greedy_texts: list[list[int]], length: int | None
) -> None:
    async def user(numbers: range) -> None:
        for i in numbers:
            assert await _greedy(services, PROMPTS[i], length) == greedy_texts[i]

    # One at a time and, because that takes a third of the time, three. Sessions side by side
    # try the fixed lengths anyway.
    await user(range(3))
    await asyncio.gather(*(user(range(first, len(PROMPTS), 3)) for first in (3, 4, 5)))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("length", [MEASURED, 4])
async def test_a_draft_that_runs_ahead_changes_nothing(
    services: Services, greedy_texts: list[list[int]], length: int
) -> None:
    for prompt, expected in zip(PROMPTS[::4], greedy_texts[::4], strict=True):
        assert await _greedy(services, prompt, length, run_ahead=True) == expected


@pytest.mark.asyncio(loop_scope="module")
async def test_two_other_sessions_change_nothing(
    services: Services, greedy_texts: list[list[int]]
) -> None:
    async def user(first: int, length: int) -> None:
        for i in range(first, len(PROMPTS), 3):
            assert await _greedy(services, PROMPTS[i], length) == greedy_texts[i]

    await asyncio.gather(user(0, 1), user(1, 4), user(2, 8))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("length", [None, 4, MEASURED])
async def test_shared_noise_gives_one_text_with_and_without_a_draft(
    services: Services, sampled_texts: list[list[int]], length: int | None
) -> None:
    for prompt, expected in zip(PROMPTS[::4], sampled_texts, strict=True):
        assert await _sampled(services, prompt, length) == expected


async def _restarted_midway(
    services: Services, process: ServiceProcess, prompt: str, temperature: float
) -> Completion:
    """Generate, and kill and restart a process once text flows."""
    killed = False
    stream = services.stream(prompt, length=4, limit=LIMIT, temperature=temperature, seed=SEED)
    async for completion in stream:
        if len(completion.token_ids) > 20 and not killed:
            process.kill()
            process.start()
            killed = True
    assert killed
    return completion


@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_and_restarted_draft_changes_nothing(
    services: Services, greedy_texts: list[list[int]], sampled_texts: list[list[int]]
) -> None:
    for temperature, expected in ((0.0, greedy_texts[4]), (0.8, sampled_texts[1])):
        completion = await _restarted_midway(services, services.draft, PROMPTS[4], temperature)
        assert completion.token_ids == expected
        await services.wait_until_speculating()

    # The target does not wait for a draft that is still measuring itself.
    async def drafts_are_accepted() -> bool:
        after = await services.generate(PROMPTS[0], length=4, limit=LIMIT, temperature=0.0)
        assert after.token_ids == greedy_texts[0]
        return after.statistics.accepted_token_count > 0

    await eventually(drafts_are_accepted, 30.0)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_restarted_target_changes_nothing(
    services: Services, greedy_texts: list[list[int]], sampled_texts: list[list[int]]
) -> None:
    for temperature, expected in ((0.0, greedy_texts[8]), (0.8, sampled_texts[2])):
        completion = await _restarted_midway(services, services.target, PROMPTS[8], temperature)
        assert completion.token_ids == expected
        assert completion.statistics.target_fault_count > 0


@pytest.mark.asyncio(loop_scope="module")
async def test_an_evicted_session_changes_nothing(
    services: Services, greedy_texts: list[list[int]]
) -> None:
    """The loop runs here, because only it knows its session's id."""
    pair = Pool(
        [DialledPeer("target", services.target.address)],
        [DialledPeer("draft", services.draft.address)],
    )
    pair.start()
    try:
        await eventually(lambda: all(peer.ready for peer in pair.dialled), 30.0)
        generation = await make_generation(
            pair, PROMPTS[6], sampling=GREEDY, draft_length=4, token_limit=LIMIT, seed=SEED
        )
        opening = generation.plan.opening
        close = common_pb2.CloseSessionRequest(session_id=opening.session_id)
        evictions = 0
        async for _ in Driver(generation, pair, time.monotonic() + 60.0).run():
            if len(generation.committed) > opening.prompt_count + 30 * (evictions + 1):
                await pair.target.stub.CloseSession(close)
                evictions += 1
        text = generation.committed[opening.prompt_count :]
        assert text[: len(greedy_texts[6])] == greedy_texts[6]
        assert evictions > 1 and generation.counts.target_faults >= evictions - 1
    finally:
        await pair.stop()


@pytest.mark.asyncio
async def test_a_junk_draft_changes_nothing(tmp_path: Path, sampled_texts: list[list[int]]) -> None:
    junk = write_junk(DRAFT, tmp_path / "junk.gguf")
    drafted = accepted = 0

    async with running_services(draft=junk) as services:

        async def texts_are_right_and_some_are_drafted() -> bool:
            nonlocal drafted, accepted
            for prompt, expected in zip(PROMPTS[::4], sampled_texts, strict=True):
                completion = await services.generate(
                    prompt, length=4, limit=LIMIT, temperature=0.8, seed=SEED
                )
                assert completion.token_ids == expected
                drafted += completion.statistics.drafted_token_count
                accepted += completion.statistics.accepted_token_count
            return drafted > 20

        # A draft at low priority on a busy machine may come too late for a whole text.
        await eventually(texts_are_right_and_some_are_drafted, 60.0)
    assert accepted < drafted / 5
