"""Texts of a target that drafts with its MTP head, whatever becomes of its sessions.

Greedy ones are those without the head: byte for byte under `exact` numerics, up to near-ties where
the target does not have them. Above temperature 0 they have the target's distribution; each such
test would raise a false alarm once in ten thousand runs with fresh seeds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from outrider.engine.hosting import HostOptions
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Numerics, Row
from outrider.model_service.run import open_own_head
from outrider.speculation import Policy, Speculation
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.wire import read_sampling
from tests.services.test_rejection_over_the_wire import (
    ALARM,
    COUNT,
    exact_distribution,
    p_value,
    starts,
)
from tests.services.test_rollback_kinds import check_greedy
from tests.support.processes import ServiceProcess
from tests.support.services import (
    TARGET,
    Completion,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    generate,
    request,
    running,
)
from tests.support.tiny_heads import write_mtp

CONTEXT = 1024
SEQUENCES, USERS = 4, 8
PACE = 0.003  # s; of a decode at least, where a text is interrupted in its middle
NUMERICS = {"glm4moe": Numerics.EXACT, "qwen35": Numerics.NATIVE}
ALWAYS = Speculation(policy=Policy.FIXED, n_max=3)
"""What pays is not asked."""


class Paced(LlamaModel):
    """A model that takes its time."""

    pace = 0.0

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        """Decode, slowly."""
        time.sleep(self.pace)
        return super().decode(chunks)


def load(path: Path, mtp: bool, pace: float = 0.0) -> LlamaModel:
    model = Paced(
        LlamaConfig(
            path=path,
            context=CONTEXT,
            sequence_count=SEQUENCES,
            thread_count=1,
            pad_multiple=4,
            mtp=mtp,
        )
    )
    model.pace = pace
    return model


class Texts:
    """What a target writes by itself, or the check that a text is greedy where bits may differ."""

    def __init__(self, path: Path, architecture: str) -> None:
        self.path, self.numerics = path, NUMERICS[architecture]

    def target(self, mtp: bool = True, pace: float = 0.0) -> ModelProcess:
        """Return a target with its head, or without."""
        return ModelProcess(
            TARGET,
            partial(load, self.path, mtp, pace),
            HostOptions(numerics=self.numerics, room_seconds=60.0),
            load_draft=open_own_head if mtp else None,
        )

    async def check(
        self, asked: Sequence[messages.GenerateRequest], done: Sequence[Completion]
    ) -> None:
        """Assert that texts are the target's own, and that the head drafted well and badly."""
        for each in done:
            drafted = each.statistics.drafted_token_count
            assert 0 < each.statistics.accepted_token_count < drafted
        if self.numerics is Numerics.EXACT:
            async with (
                running(self.target(mtp=False)) as target,
                running(OrchestratorProcess(target.address, speculation=ALWAYS)) as orchestrator,
            ):
                await orchestrator.until_ready()
                for each, its in zip(asked, done, strict=True):
                    assert its.token_ids == (await generate(orchestrator, each)).token_ids
            return
        model = load(self.path, mtp=False)
        context = model.describe().context
        for each, its in zip(asked, done, strict=True):
            for prompt, text in parts(list(each.prompt_tokens.token_ids), its.token_ids, context):
                check_greedy(model, prompt, text)
        model.close()


def parts(
    prompt: list[int], text: Sequence[int], context: int
) -> list[tuple[list[int], Sequence[int]]]:
    """Return each part of a text, and what the target held before it: half of a full context."""
    found, left = [], list(text)
    while left:
        room = context + 1 - len(prompt)
        found.append((prompt, left[:room]))
        held = [*prompt, *left[:room]]
        prompt, left = held[len(held) // 2 :], left[room:]
    return found


def user(number: int, count: int = 120, length: int = 20) -> messages.GenerateRequest:
    prompt = [5 + (11 + number) * i % 280 for i in range(length)]
    asked = request(prompt_tokens=prompt, token_limit=count, temperature=0.0)
    asked.ignore_eos = True
    return asked


@pytest.fixture(params=NUMERICS)
def texts(request: pytest.FixtureRequest, tmp_path: Path) -> Texts:
    return Texts(write_mtp(tmp_path / "m.gguf", request.param), request.param)


async def test_more_users_than_sequences_evictions_and_a_restart(texts: Texts) -> None:
    asked = [user(number) for number in range(USERS)]
    async with (
        running(texts.target(pace=PACE)) as target,
        running(OrchestratorProcess(target.address, speculation=ALWAYS)) as orchestrator,
    ):
        await orchestrator.until_ready()
        faults = {
            1: [Interruption(20, target.close_sessions), Interruption(60, target.restart)],
        }
        done = await asyncio.gather(
            *(
                generate(orchestrator, each, faults.get(n, ()), timeout=60.0)
                for n, each in enumerate(asked)
            )
        )
        assert sum(each.statistics.target_fault_count for each in done) > 0
    await texts.check(asked, done)


async def test_a_chats_next_turn_continues_from_what_is_cached(texts: Texts) -> None:
    first, second = user(3), user(3)
    async with (
        running(texts.target()) as target,
        running(OrchestratorProcess(target.address, speculation=ALWAYS)) as orchestrator,
    ):
        await orchestrator.until_ready()
        done = [await generate(orchestrator, first)]
        second.prompt_tokens.token_ids.extend([*done[0].token_ids, 17, 18, 19])
        done.append(await generate(orchestrator, second))
    assert done[1].statistics.cached_token_count > 100
    await texts.check([first, second], done)


async def test_a_full_context_that_shifts(texts: Texts) -> None:
    asked = user(2, count=700, length=900)
    asked.overflow.shift = True
    async with (
        running(texts.target()) as target,
        running(OrchestratorProcess(target.address, speculation=ALWAYS)) as orchestrator,
    ):
        await orchestrator.until_ready()
        done = await generate(orchestrator, asked)
    assert len(done.token_ids) == 700
    await texts.check([asked], [done])


async def test_a_session_that_is_sent_to_another_target(texts: Texts) -> None:
    asked = user(5, count=200)
    async with running(texts.target(pace=PACE)) as one, running(texts.target(pace=PACE)) as other:
        targets = [one, other]

        async def kill() -> None:
            [used] = [each for each in targets if each.servicer.session_count]
            targets.remove(used)
            await used.kill()

        addresses = [one.address, other.address]
        async with running(OrchestratorProcess(addresses, speculation=ALWAYS)) as orchestrator:
            await orchestrator.until_ready()
            done = await generate(orchestrator, asked, [Interruption(40, kill)])
        assert targets[0].decode_count > 10
    await texts.check([asked], [done])


async def test_a_target_whose_process_is_killed_and_started_again(texts: Texts) -> None:
    asked = user(6, count=900)
    asked.round_detail = messages.ROUND_DETAIL_TOKENS  # nothing is gathered
    options = ["--ctx-size", str(CONTEXT), "--sessions", "4", "--threads", "1"]
    target = ServiceProcess(
        "target", "--model", str(texts.path), "--numerics", texts.numerics.value, *options
    )

    async def kill() -> None:
        target.kill()
        target.start()

    target.start()
    try:
        await target.wait_until_serving()
        async with running(OrchestratorProcess(target.address, speculation=ALWAYS)) as orchestrator:
            await orchestrator.until_ready()
            done = await generate(orchestrator, asked, [Interruption(20, kill)], timeout=60.0)
    finally:
        target.stop()
    assert done.statistics.target_fault_count > 0
    await texts.check([asked], [done])


# Above temperature 0


async def check_distribution(
    target: ModelProcess, alone: LlamaModel, rule: common.AcceptanceRule, number: int
) -> None:
    """Assert that the first tokens of texts with drafts of the target's own have its distribution.

    `alone` is the target without its draft. After the prompt of the user of that number, draft and
    target have about half in common, so that what a rule gets wrong is seen.
    """
    slots, prompt = asyncio.Semaphore(USERS), list(user(number).prompt_tokens.token_ids)

    def asked(seed: int, count: int = COUNT + 1) -> messages.GenerateRequest:
        each = request(prompt_tokens=prompt, seed=seed, token_limit=count, n_max=2, acceptance=rule)
        each.sampling.top_k = 3
        return each

    async def one(orchestrator: OrchestratorProcess, seed: int) -> tuple[int, ...]:
        async with slots:
            return tuple((await generate(orchestrator, asked(seed))).token_ids)

    async with (
        running(target),
        running(OrchestratorProcess(target.address, speculation=ALWAYS)) as orchestrator,
    ):
        await orchestrator.until_ready()
        written = await asyncio.gather(*(one(orchestrator, seed) for seed in range(200)))
        statistics = (await generate(orchestrator, asked(0, 100))).statistics
    assert 0 < statistics.accepted_token_count < statistics.drafted_token_count
    expected = exact_distribution(alone, COUNT, prompt, read_sampling(asked(0).sampling))
    alone.close()
    assert p_value(starts(list(written)), expected) > ALARM


@pytest.mark.parametrize(
    "rule", [common.ACCEPTANCE_RULE_SHARED_NOISE, common.ACCEPTANCE_RULE_REJECTION]
)
async def test_above_temperature_0_they_have_the_targets_distribution(
    texts: Texts, rule: common.AcceptanceRule
) -> None:
    await check_distribution(texts.target(), load(texts.path, mtp=False), rule, 10)


async def test_under_rejection_so_have_texts_with_a_small_model_as_the_targets_own_draft(
    tmp_path: Path,
) -> None:
    path = write_mtp(tmp_path / "m.gguf", "glm4moe")
    small = write_mtp(tmp_path / "small.gguf", "glm4moe", noise=0.3)
    target = ModelProcess(
        TARGET, partial(load, path, mtp=False), own_draft=partial(load, small, mtp=False)
    )
    rule = common.ACCEPTANCE_RULE_REJECTION
    await check_distribution(target, load(path, mtp=False), rule, 1)
