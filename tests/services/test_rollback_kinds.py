"""Texts with and without drafts, where sequences are not simply cut: real services, tiny models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.hosting import HostOptions
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Numerics, Row
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.services.test_own_draft import TEXT, written
from tests.support.services import (
    DRAFT,
    TARGET,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    generate,
    request,
    running,
)
from tests.support.streams import VerifyStream
from tests.support.thorough import THOROUGH
from tests.support.tiny_architectures import RECURRENT, WINDOWED, write_architecture

CONTEXT = 352  # longer than the 256 cells of the smallest window cache
OPTIONS = HostOptions(numerics=Numerics.NATIVE, room_seconds=60.0)
NAMES = sorted({*RECURRENT, *WINDOWED}) if THOROUGH else ["falcon-h1", "gemma3", "mamba", "qwen35"]
NEAR_TIE = 0.3
"""Of logits whose standard deviation is 3: kernels of other shapes change two of them by .14."""


class Counting(LlamaModel):
    """A model that counts the tokens that it decodes."""

    decoded = 0

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        """Decode, and count."""
        self.decoded += sum(len(chunk.token_ids) for chunk in chunks)
        return super().decode(chunks)


def load(path: Path, sequences: int = 3) -> Counting:
    return Counting(
        LlamaConfig(
            path=path,
            context=CONTEXT,
            sequence_count=sequences,
            thread_count=1,
            pad_multiple=1,
            batch_rows=32,
            full_window=False,
        )
    )


def user(number: int, **how: Any) -> messages.GenerateRequest:
    prompt = [5 + (11 + number) * i % 280 for i in range(20 + 40 * number)]
    asked = request(
        prompt_tokens=prompt, seed=number, token_limit=60 + 30 * number, temperature=0.0, **how
    )
    asked.ignore_eos = True
    return asked


def check_texts(model: LlamaModel, prompt: list[int], text: list[int], alone: list[int]) -> None:
    """Assert that two greedy texts are equal, or part at a near-tie."""
    pairs = zip(text, alone, strict=True)
    first = next((i for i, (mine, other) in enumerate(pairs) if mine != other), None)
    if first is None:
        return
    whole = [*prompt, *text[:first]]
    model.truncate(0, 0)
    for start in range(0, len(whole), 32):
        [[row]] = model.decode([Chunk(0, start, whole[start : start + 32], 1)])
    assert abs(row[text[first]] - row[alone[first]]) < NEAR_TIE, f"at {first}"


@pytest.mark.parametrize("name", NAMES)
async def test_greedy_texts_with_drafts_are_those_without_or_part_at_near_ties(
    tmp_path: Path, name: str
) -> None:
    path = write_architecture(tmp_path / "target.gguf", name)
    draft_path = write_architecture(tmp_path / "draft.gguf", name, last_seed=2)
    target = ModelProcess(TARGET, partial(load, path), OPTIONS)
    draft = ModelProcess(DRAFT, partial(load, draft_path), OPTIONS)
    async with running(target), running(draft):
        async with running(OrchestratorProcess(target.address)) as orchestrator:
            await orchestrator.until_ready()
            alone = [(await generate(orchestrator, user(n))).token_ids for n in range(3)]
        async with running(OrchestratorProcess(target.address, draft.address)) as orchestrator:
            await orchestrator.until_ready()
            how = {"n_max": 6, "policy": messages.DRAFT_POLICY_FIXED}
            asked = [user(n, **how) for n in range(3)]
            drafted = await asyncio.gather(*(generate(orchestrator, each) for each in asked))
    model = load(path, 1)
    for number, text in enumerate(drafted):
        check_texts(
            model, list(user(number).prompt_tokens.token_ids), text.token_ids, alone[number]
        )
    model.close()
    assert all(text.statistics.drafted_token_count for text in drafted)
    assert not target.host.died.done() and not draft.host.died.done()


def greedy(model: LlamaModel, text: list[int], count: int) -> list[int]:
    """Return what a model writes alone after a text."""
    model.truncate(0, 0)
    whole, held = list(text), 0
    for _ in range(count):
        [[row]] = model.decode([Chunk(0, held, whole[held:], 1)])
        held = len(whole)
        whole.append(int(row.argmax()))
    return whole[len(text) :]


@pytest.mark.parametrize("name", NAMES)
async def test_a_draft_in_the_targets_process_is_taken_back_too(tmp_path: Path, name: str) -> None:
    path = write_architecture(tmp_path / "target.gguf", name)
    draft_path = write_architecture(tmp_path / "draft.gguf", name, last_seed=2)
    drafts: list[Counting] = []

    def load_draft() -> Counting:
        drafts.append(load(draft_path))
        return drafts[-1]

    count = 120
    service = ModelProcess(TARGET, partial(load, path), OPTIONS, own_draft=load_draft)
    greedily = {
        "acceptance_rule": common.ACCEPTANCE_RULE_MATCH,
        "sampling": common.SamplingParameters(temperature=0.0),
        "vocabulary_token_count": 320,
        "token_limit": count + 8,
    }
    async with running(service), VerifyStream(service, **greedily) as stream:
        before = drafts[0].decoded
        await stream.send_round(1, 0, TEXT, continue_token_count=count, own_draft_token_count=3)
        text, answers = await written(stream, len(TEXT) + count)
    owns = [own for answer in answers for own in answer.own_drafts]
    drafted = sum(len(own.token_ids) for own in owns)
    assert drafted > count // 4
    # Beside what it drafts: for each round the text's new tokens, and those since a checkpoint.
    assert drafts[0].decoded - before < 2 * drafted + 4 * len(owns) + count
    model = load(path, 1)
    written_text = text[len(TEXT) : len(TEXT) + count]
    check_texts(model, TEXT, written_text, greedy(model, TEXT, count))
    model.close()


@pytest.mark.parametrize("drafts", [False, True], ids=["alone", "drafted"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_chats_next_turn_does_not_read_everything_again(
    tmp_path: Path, name: str, drafts: bool
) -> None:
    path = write_architecture(tmp_path / "target.gguf", name)
    draft_path = write_architecture(tmp_path / "draft.gguf", name, last_seed=2)
    target = ModelProcess(TARGET, partial(load, path), OPTIONS)
    draft = ModelProcess(DRAFT, partial(load, draft_path), OPTIONS)
    async with running(target), running(draft):
        address = draft.address if drafts else ""
        async with running(OrchestratorProcess(target.address, address)) as orchestrator:
            await orchestrator.until_ready()
            how = {"n_max": 6, "policy": messages.DRAFT_POLICY_FIXED} if drafts else {}

            async def turn(text: list[int]) -> tuple[list[int], int, int]:
                """Return a text with its answer, the tokens decoded for it, and those not read."""
                asked = request(prompt_tokens=text, token_limit=30, temperature=0.0, **how)
                asked.ignore_eos = True
                before = target.model.decoded
                done = await generate(orchestrator, asked)
                numbers = done.statistics
                # In the round's own time: its draft, and what is decoded again of the round before.
                of_drafts = numbers.drafted_token_count + 8 * numbers.round_count * drafts
                decoded = target.model.decoded - before - of_drafts
                return [*text, *done.token_ids], decoded, numbers.cached_token_count

            text, _, _ = await turn([5 + 11 * i % 280 for i in range(120)])
            ends = []
            for _ in range(2):
                ends.append(text)
                text, decoded, cached = await turn([*text, *(7 + 13 * i % 270 for i in range(12))])
                assert decoded <= 12 + 30 + 16, "the new turn, and what is written"
                assert cached >= len(ends[-1]) - 16
            # Another turn in place of the last one; of drafts there may be newer checkpoints.
            _, decoded, _ = await turn([*ends[-1], *(9 + 17 * i % 270 for i in range(12))])
            assert decoded <= 12 + 30 + 16 + 30 * drafts


@pytest.mark.parametrize("name", NAMES)
async def test_texts_are_right_while_sessions_are_evicted_and_services_start_again(
    tmp_path: Path, name: str
) -> None:
    path = write_architecture(tmp_path / "target.gguf", name)
    draft_path = write_architecture(tmp_path / "draft.gguf", name, last_seed=2)
    target = ModelProcess(TARGET, partial(load, path, 2), OPTIONS)
    draft = ModelProcess(DRAFT, partial(load, draft_path, 2), OPTIONS)
    count = 5  # users, for two sequences
    async with running(target), running(draft):
        async with running(OrchestratorProcess(target.address)) as orchestrator:
            await orchestrator.until_ready()
            alone = [(await generate(orchestrator, user(n))).token_ids for n in range(count)]
        async with running(OrchestratorProcess(target.address, draft.address)) as orchestrator:
            await orchestrator.until_ready()
            faults = {
                1: [Interruption(20, draft.restart)],
                3: [Interruption(40, target.restart)],
            }
            how = {"n_max": 6, "policy": messages.DRAFT_POLICY_FIXED}
            texts = await asyncio.gather(
                *(
                    generate(orchestrator, user(n, **how), faults.get(n, ()), timeout=120.0)
                    for n in range(count)
                )
            )
            # The same again, from what is still held of them and from checkpoints.
            again = [await generate(orchestrator, user(n, **how)) for n in (4, 2, 4)]
    model = load(path, 1)
    for number, text in [*enumerate(texts), *zip((4, 2, 4), again, strict=True)]:
        prompt = list(user(number).prompt_tokens.token_ids)
        check_texts(model, prompt, text.token_ids, alone[number])
    model.close()
