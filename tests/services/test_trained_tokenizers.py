"""A draft whose tokenizer was trained on other text than the target's: the target's own text.

Under `rejection` the distribution is the target's. The seeds are fixed; a correct change of the
noise fails a chi-square test with odds of 1e-4.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.v1 import draft_service_pb2 as draft_messages
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.services.test_rejection_over_the_wire import (
    ALARM,
    COUNT,
    SEEDS,
    exact_distribution,
    p_value,
    starts,
    texts,
)
from tests.support.services import (
    DRAFT,
    TARGET,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    Trio,
    eventually,
    generate,
    request,
    running,
    three_services,
    toy,
)
from tests.support.tiny_gguf import Shape, Vocabulary, merges, write_model
from tests.support.toy import ToyModel

# --- two toys of two letters ---

TARGETS_SAMPLE = "abab\naab\nabab\nbaab\n"
DRAFTS_SAMPLE = "bbab\nbbab\nbbba\nab\nab\n"
MERGES = 4


def trained(sample: str, **options: Any) -> ToyModel:
    """Return a toy of two letters, and of what was merged of them in a sample."""
    learned = ["".join(pair).encode() for pair in merges(sample, MERGES)]
    changed = dict(enumerate((b"a", b"b", *learned), start=3))
    return toy(
        vocabulary_size=3 + len(changed),
        changed_texts=changed,
        **{"spread": 1.0, "sequence_count": 16, "eos_bias": -1.0, **options},
    )


def small_target() -> ToyModel:
    return trained(TARGETS_SAMPLE, seed=4)


def small_draft() -> ToyModel:
    return trained(DRAFTS_SAMPLE, seed=5, like=4, agreement=0.5)


def test_the_two_tokenizers_share_some_tokens_and_not_others() -> None:
    its, others = ({*model().token_texts()} - {b""} for model in (small_target, small_draft))
    assert len(its) == len(others) == 2 + MERGES
    assert {b"a", b"b"} < its & others != its


async def learned(orchestrator: OrchestratorProcess) -> int:
    """Return the level at which the draft translates, once it has learned the vocabulary."""
    [draft] = orchestrator.pool.drafts
    await eventually(lambda: draft.translation is not None)
    assert draft.translation is not None
    return int(draft.translation.level)


async def test_the_joint_distribution_of_the_first_tokens_is_the_targets() -> None:
    async with three_services(small_target, small_draft, draft_seconds=30.0) as trio:
        await learned(trio.orchestrator)
        written = await texts(trio.orchestrator, range(SEEDS), [0, 3, 4])
        drafted = accepted = 0
        while not 0 < accepted < drafted:
            asked = request(prompt_tokens=[0, 3, 4], seed=drafted, acceptance=3, n_max=2)
            statistics = (await generate(trio.orchestrator, asked)).statistics
            drafted += statistics.drafted_token_count
            accepted += statistics.accepted_token_count
    assert p_value(starts(written), exact_distribution(small_target(), COUNT, [0, 3, 4])) > ALARM


# --- two files with llama.cpp's own tokenizers ---

OTHER_SAMPLE = """
Whoever sends a scout before the wagon learns early which bridges have fallen. The scout guesses and
the wagon decides; when the guess was wrong nothing is lost but a little of the scout's own time.
import json
with open(name, "w") as stream: json.dump({"key": [1, 2, 3], "name": None}, stream)
"""
PROMPT = "The outrider rides ahead: for line in lines"
LENGTH, KILLED_AT = 96, 24


def load(path: Path) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=256,
            sequence_count=4,
            thread_count=1,
            pad_multiple=4,
            batch_rows=128,
        )
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trio(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trio]:
    """Three services; the draft's weights are the target's, for tokens that are others."""
    folder, shape = tmp_path_factory.mktemp("models"), Shape(layers=1)
    path = write_model(folder / "target.gguf", shape=shape)
    its_path = write_model(
        folder / "draft.gguf", shape=shape, vocabulary=Vocabulary(sample=OTHER_SAMPLE)
    )
    async with (
        running(ModelProcess(TARGET, partial(load, path))) as target,
        running(ModelProcess(DRAFT, partial(load, its_path))) as draft,
        running(OrchestratorProcess(target.address, draft.address)) as orchestrator,
    ):
        await orchestrator.until_ready()
        yield Trio(target, draft, orchestrator)


def asked(seed: int, temperature: float, **how: Any) -> messages.GenerateRequest:
    return request(PROMPT, seed=seed, temperature=temperature, token_limit=LENGTH, **how)


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["match", "shared-noise"])
async def test_the_text_is_the_same_with_a_foreign_draft_with_none_and_one_that_is_killed(
    trio: Trio, temperature: float
) -> None:
    assert await learned(trio.orchestrator) == draft_messages.TRANSLATION_LEVEL_STRINGS
    drafted = accepted = cut = seed = 0
    while not (accepted and cut):
        seed += 1
        alone = await generate(trio.orchestrator, asked(seed, temperature, enabled=False))
        completion = await generate(trio.orchestrator, asked(seed, temperature))
        assert completion.token_ids == alone.token_ids
        drafted += completion.statistics.drafted_token_count
        accepted += completion.statistics.accepted_token_count
        dies = Interruption(KILLED_AT, trio.draft.kill)
        killed = await generate(trio.orchestrator, asked(seed, temperature), [dies])
        assert killed.token_ids == alone.token_ids
        cut += 0 < killed.statistics.drafted_token_count < completion.statistics.drafted_token_count
        await trio.draft.restart()
        await learned(trio.orchestrator)
        await trio.orchestrator.until_ready()
    assert 0 < accepted < drafted
