"""A draft can only change speed: shared noise writes the same text whatever becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from outrider.v1 import draft_service_pb2 as draft_messages
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.proxy import Cut, Meddler, Proxy, Way
from tests.support.services import (
    DRAFT,
    TARGET,
    Completion,
    Gate,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    running,
    three_services,
    toy,
    written_alone,
)
from tests.support.thorough import cells
from tests.support.toy import NEVER, ToyModel

DRAFTED = messages.TOKEN_ORIGIN_DRAFTED
LENGTH = 200
PACE = 0.002  # of the target's decodes: leaves time to break things


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def good_draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.98, eos_bias=NEVER)


def junk_draft() -> ToyModel:
    return toy(seed=3, eos_bias=NEVER)


def long_request(**options: Any) -> messages.GenerateRequest:
    return request(**{"token_limit": LENGTH, **options})


def assert_right(completion: Completion, asked: messages.GenerateRequest) -> None:
    assert completion.token_ids == written_alone(target(), asked)


def drafted_after(completion: Completion, count: int) -> int:
    return completion.origins[count:].count(DRAFTED)


async def test_the_text_is_the_same_with_the_draft_on_and_off() -> None:
    async with three_services(target, good_draft) as trio:
        on = await generate(trio.orchestrator, long_request())
        off = await generate(trio.orchestrator, long_request(enabled=False))
    assert on.token_ids == off.token_ids
    assert on.text == off.text
    assert on.origin_count(DRAFTED) > LENGTH / 2
    assert_right(on, long_request())


@pytest.mark.parametrize(("temperature", "draft_length"), cells([0.0, 0.8], [1, 4, 8], together=1))
async def test_a_junk_draft_changes_nothing(temperature: float, draft_length: int) -> None:
    async with three_services(target, junk_draft) as trio:
        asked = long_request(temperature=temperature, n_max=draft_length)
        completion = await generate(trio.orchestrator, asked)
    assert_right(completion, asked)


async def test_a_draft_that_is_missing_at_the_start_is_used_when_it_appears() -> None:
    async with (
        running(ModelProcess(TARGET, target, pace=5 * PACE)) as service,
        running(ModelProcess(DRAFT, good_draft)) as draft,
    ):
        await draft.kill()
        async with running(OrchestratorProcess(service.address, draft.address)) as orchestrator:
            asked = long_request()
            appears = [Interruption(20, draft.start)]
            completion = await generate(orchestrator, asked, appears)
    assert_right(completion, asked)
    assert drafted_after(completion, 0) > 0


async def test_generation_goes_on_plainly_when_the_draft_is_killed() -> None:
    async with three_services(target, good_draft, pace=PACE) as trio:
        asked = long_request()
        completion = await generate(trio.orchestrator, asked, [Interruption(40, trio.draft.kill)])
    assert_right(completion, asked)
    assert completion.statistics.draft_fault_count >= 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_speculation_resumes_after_a_restart_of_the_draft(temperature: float) -> None:
    async with three_services(target, good_draft, pace=PACE) as trio:
        asked = long_request(temperature=temperature)
        restarts = [Interruption(count, trio.draft.restart) for count in (20, 60)]
        completion = await generate(trio.orchestrator, asked, restarts)
    assert_right(completion, asked)
    assert drafted_after(completion, 150) > 0


async def test_a_hanging_draft_is_not_waited_for_after_its_deadline() -> None:
    async with three_services(target, good_draft, draft_seconds=0.05) as trio:
        gate = Gate(trio.draft.model, shut=False)
        asked = long_request()
        completion = await generate(trio.orchestrator, asked, [Interruption(30, gate.shut)])
        await gate.open()
    assert_right(completion, asked)
    assert completion.statistics.draft_fault_count >= 1


async def test_speculation_resumes_when_a_hanging_draft_wakes_up() -> None:
    async with three_services(target, good_draft, pace=PACE, draft_seconds=0.05) as trio:
        gate = Gate(trio.draft.model, shut=False)
        asked = long_request()
        hangs = [Interruption(30, gate.shut), Interruption(60, gate.open)]
        completion = await generate(trio.orchestrator, asked, hangs)
    assert_right(completion, asked)
    assert drafted_after(completion, 150) > 0


async def test_a_draft_that_restarts_and_then_hangs_is_not_waited_for() -> None:
    """Its first answer is `Missing`; the order that repeats the text has a deadline too."""
    gates: list[Gate] = []

    async with three_services(target, good_draft, pace=PACE, draft_seconds=0.1) as trio:

        async def restart_hanging() -> None:
            await trio.draft.restart()
            gates.append(Gate(trio.draft.model))

        asked = long_request()
        completion = await generate(
            trio.orchestrator, asked, [Interruption(30, restart_hanging)], timeout=10
        )
        await gates[0].open()
    assert_right(completion, asked)


async def test_speculation_survives_that_the_draft_forgets_the_session() -> None:
    async with three_services(target, good_draft, pace=PACE, draft_seconds=0.2) as trio:
        asked = long_request()
        forgets = [
            Interruption(count, trio.draft.close_sessions) for count in (20, 40, 60, 80, 100, 120)
        ]
        completion = await generate(trio.orchestrator, asked, forgets)
        assert_right(completion, asked)
        assert drafted_after(completion, 150) > 0


async def test_a_session_that_was_closed_from_the_side_still_counts_as_open() -> None:
    """Otherwise the next stranger evicts a session whose stream is open."""
    async with three_services(target, good_draft, pace=PACE) as trio:

        async def close_and_look() -> None:
            await trio.draft.close_sessions()
            await trio.target.close_sessions()
            await asyncio.sleep(0.05)
            for service in (trio.draft, trio.target):
                assert (await service.activity()).open_session_count == 1

        asked = long_request()
        completion = await generate(trio.orchestrator, asked, [Interruption(30, close_and_look)])
        assert_right(completion, asked)


async def test_many_generations_share_a_draft_with_one_sequence() -> None:
    """Most orders get `Busy`; nobody waits for long and nobody is wrong."""

    def narrow() -> ToyModel:
        return toy(seed=2, like=1, agreement=0.98, eos_bias=NEVER, sequence_count=1)

    async with three_services(target, narrow, draft_seconds=0.2) as trio:
        asked = [request(seed=seed, token_limit=60) for seed in range(4)]
        completions = await asyncio.gather(*(generate(trio.orchestrator, a) for a in asked))
        for one, completion in zip(asked, completions, strict=True):
            assert_right(completion, one)


async def test_a_draft_with_a_smaller_context_helps_as_far_as_it_reaches() -> None:
    def small() -> ToyModel:
        return toy(seed=2, like=1, agreement=0.98, eos_bias=NEVER, context=64)

    async with three_services(target, small) as trio:
        for prompt_length in (20, 63, 64, 65, 100):
            asked = long_request(
                prompt_tokens=[3 + i * i % 60 for i in range(prompt_length)], token_limit=80
            )
            completion = await generate(trio.orchestrator, asked)
            assert_right(completion, asked)
            if prompt_length == 20:
                assert drafted_after(completion, 0) > 10
            assert drafted_after(completion, max(0, 64 - prompt_length)) == 0


# --- what a bad link does to frames ---


Frames = Callable[[random.Random, bytes], AsyncIterator[bytes]]


def on_frames(meddle: Frames, seed: int = 0) -> Callable[[], Meddler]:
    """Return a meddler that leaves orders alone."""
    rng = random.Random(seed)

    def new() -> Meddler:
        async def pass_on(way: Way, message: bytes) -> AsyncIterator[bytes]:
            if way is Way.UP:
                yield message
            else:
                async for changed in meddle(rng, message):
                    yield changed

        return pass_on

    return new


async def delayed(rng: random.Random, message: bytes) -> AsyncIterator[bytes]:
    await asyncio.sleep(rng.choice([0.0, 0.0, 0.01, 0.1]))
    yield message


async def dropped(rng: random.Random, message: bytes) -> AsyncIterator[bytes]:
    if rng.random() < 0.7:
        yield message


async def repeated(rng: random.Random, message: bytes) -> AsyncIterator[bytes]:
    for _ in range(rng.randint(1, 3)):
        yield message


async def cut(rng: random.Random, message: bytes) -> AsyncIterator[bytes]:
    if rng.random() < 0.05:
        raise Cut
    yield message


def shuffled() -> Frames:
    """Return what holds frames back and gives them later, in another order, some twice."""
    held: list[bytes] = []

    async def meddle(rng: random.Random, message: bytes) -> AsyncIterator[bytes]:
        held.append(message)
        while held and rng.random() < 0.7:
            yield held.pop(rng.randrange(len(held)))
        if rng.random() < 0.2:
            yield message

    return meddle


async def forged(rng: random.Random, message: bytes) -> AsyncIterator[bytes]:
    """Write nonsense into the frame: other ids, other places, other lines."""
    response = draft_messages.DraftResponse.FromString(message)
    frame = response.frame
    kind = rng.randrange(8)
    if kind == 0:
        frame.token_ids[:] = [rng.randrange(64) for _ in frame.token_ids]
    elif kind == 1:
        frame.token_ids[:] = [rng.choice([-1, 64, 2**31 - 1]) for _ in frame.token_ids]
    elif kind == 2:
        frame.position += rng.randint(-5, 5)
    elif kind == 3:
        frame.base += rng.randint(-5, 5)
    elif kind == 4:
        response.completed_order += rng.randint(-1, 1)
    elif kind == 5:
        frame.token_ids.extend([5] * 200)
    elif kind == 6:
        response.missing.held_token_count = rng.choice([-1, 0, 5, 2**31 - 1])
    yield response.SerializeToString()


@contextlib.asynccontextmanager
async def bad_link(
    meddler: Callable[[], Meddler], pace: float = 0.0
) -> AsyncIterator[OrchestratorProcess]:
    """Start the services with a bad link between the orchestrator and the draft."""
    async with (
        running(ModelProcess(TARGET, target, pace=pace)) as service,
        running(ModelProcess(DRAFT, good_draft)) as draft,
        running(Proxy(draft.address, "Draft", meddler)) as proxy,
        running(
            OrchestratorProcess(service.address, proxy.address, draft_seconds=0.05)
        ) as orchestrator,
    ):
        await orchestrator.until_ready()
        yield orchestrator


@pytest.mark.parametrize(
    "meddle",
    [delayed, dropped, repeated, cut, shuffled(), forged],
    ids=["delayed", "dropped", "repeated", "cut", "shuffled", "forged"],
)
async def test_a_bad_link_to_the_draft_changes_nothing(meddle: Frames) -> None:
    async with bad_link(on_frames(meddle)) as orchestrator:
        for seed in range(2):
            for temperature in (0.0, 0.8):
                asked = long_request(seed=seed, temperature=temperature)
                completion = await generate(orchestrator, asked)
                assert_right(completion, asked)


async def test_repeated_frames_cost_no_acceptance() -> None:
    async with bad_link(on_frames(repeated)) as orchestrator:
        completion = await generate(orchestrator, long_request())
    assert drafted_after(completion, 0) > LENGTH / 2


async def test_speculation_resumes_after_a_lost_frame() -> None:
    """A lost last frame leaves its order open for ever; the next order must be sent anyway."""
    lost: list[bytes] = []

    async def lose_one(rng: random.Random, message: bytes) -> AsyncIterator[bytes]:
        frame = draft_messages.DraftResponse.FromString(message)
        if not lost and frame.completed_order and frame.frame.position > 40:
            lost.append(message)
        else:
            yield message

    async with bad_link(on_frames(lose_one), PACE) as orchestrator:
        completion = await generate(orchestrator, long_request())
    assert lost
    assert drafted_after(completion, 150) > 0


async def test_a_frame_without_rows_is_no_draft_under_rejection() -> None:
    async def strip(rng: random.Random, message: bytes) -> AsyncIterator[bytes]:
        response = draft_messages.DraftResponse.FromString(message)
        if rng.random() < 0.5:
            del response.frame.distributions[rng.randint(0, 2) :]
        yield response.SerializeToString()

    async with bad_link(on_frames(strip)) as orchestrator:
        for seed in range(3):
            completion = await generate(orchestrator, request(seed=seed, acceptance=3))
            assert 48 <= len(completion.token_ids) <= 51  # a character is finished


async def test_a_draft_with_another_vocabulary_is_refused_and_named() -> None:
    def other() -> ToyModel:
        return toy(seed=2, changed_texts={17: b"other"}, eos_bias=NEVER)

    async with three_services(target, other, same_vocabulary=True) as trio:
        await eventually(lambda: trio.orchestrator.pool.drafts[0].mismatch is not None)
        status = await trio.orchestrator.status()
        assert not status.speculating
        assert "17" in status.reason
        assert "other" in status.reason
        asked = request()
        completion = await generate(trio.orchestrator, asked)
    assert_right(completion, asked)
    assert drafted_after(completion, 0) == 0
