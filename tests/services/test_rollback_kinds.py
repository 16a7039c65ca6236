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
from outrider.engine.model import Chunk, Numerics, Rollback, Row
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1 import target_service_pb2 as target_messages
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
    toy,
)
from tests.support.streams import VerifyStream
from tests.support.thorough import THOROUGH
from tests.support.tiny_architectures import RECURRENT, WINDOWED, write_architecture
from tests.support.toy import NEVER, ToyModel

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


def load(path: Path, sequences: int = 3, context: int = CONTEXT) -> Counting:
    return Counting(
        LlamaConfig(
            path=path,
            context=context,
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


def check_greedy(model: LlamaModel, prompt: list[int], text: Sequence[int]) -> None:
    """Assert that every token of a text is the best after those before it, or nearly so."""
    whole, begin = [*prompt, *text[:-1]], len(prompt) - 1
    ends = set(model.describe().vocabulary.end_token_ids) - set(text)  # `ignore_eos`
    possible = [i for i in range(model.describe().vocabulary.token_count) if i not in ends]
    model.truncate(0, 0)
    for start in range(0, begin, 32):
        model.decode([Chunk(0, start, whole[start : min(begin, start + 32)], 0)])
    for start in range(begin, len(whole), 32):
        piece = whole[start : start + 32]
        [rows] = model.decode([Chunk(0, start, piece, len(piece))])
        for i, row in enumerate(rows, start - begin):
            assert row[text[i]] >= row[possible].max() - NEAR_TIE, f"at {i}"


@pytest.mark.parametrize("name", sorted(WINDOWED) if THOROUGH else ["gemma3"])
async def test_users_with_a_common_start_that_is_older_than_the_window_get_their_own_texts(
    tmp_path: Path, name: str
) -> None:
    path = write_architecture(tmp_path / "target.gguf", name)
    draft_path = write_architecture(tmp_path / "draft.gguf", name, last_seed=2)
    target = ModelProcess(TARGET, partial(load, path, context=1024), OPTIONS)
    draft = ModelProcess(DRAFT, partial(load, draft_path, context=1024), OPTIONS)
    start = [5 + 11 * i % 280 for i in range(262)]
    prompts = [[*start, *(7 + (13 + n) * i % 270 for i in range(500 - 497 * n))] for n in (0, 1)]

    def asked(number: int, count: int) -> messages.GenerateRequest:
        how = {"n_max": 6, "policy": messages.DRAFT_POLICY_FIXED}
        each = request(prompt_tokens=prompts[number], token_limit=count, temperature=0.0, **how)
        each.ignore_eos = True
        return each

    async with (
        running(target),
        running(draft),
        running(OrchestratorProcess(target.address, draft.address)) as orchestrator,
    ):
        await orchestrator.until_ready()
        first = await generate(orchestrator, asked(0, 30))
        # Both begin again at what they have in common, in one pass of the engine.
        both = await asyncio.gather(
            generate(orchestrator, asked(0, 60)), generate(orchestrator, asked(1, 300))
        )
    model = load(path, 1, 1024)
    for number, text in [(0, first), *enumerate(both)]:
        check_greedy(model, prompts[number], text.token_ids)
    model.close()


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
        prompt = list(user(number).prompt_tokens.token_ids)
        check_greedy(model, prompt, text.token_ids)
        check_greedy(model, prompt, alone[number])
    model.close()
    assert all(text.statistics.drafted_token_count for text in drafted)
    assert not target.host.died.done() and not draft.host.died.done()


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
        await stream.send_round(
            1, 0, TEXT, continuation={"token_count": count, "own_draft_token_count": 3}
        )
        text, answers = await written(stream, len(TEXT) + count)
    owns = [own for answer in answers for own in answer.own_drafts]
    drafted = sum(len(own.token_ids) for own in owns)
    assert drafted > count // 4
    # Beside what it drafts: for each round the text's new tokens, and those since a checkpoint.
    assert drafts[0].decoded - before < 2 * drafted + 4 * len(owns) + count
    model = load(path, 1)
    written_text = text[len(TEXT) : len(TEXT) + count]
    check_greedy(model, TEXT, written_text)
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
    async with (
        running(target),
        running(draft),
        running(OrchestratorProcess(target.address, draft.address)) as orchestrator,
    ):
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
        check_greedy(model, prompt, text.token_ids)
    model.close()


@pytest.mark.parametrize("kind", [Rollback.FULL, Rollback.CHECKPOINTS])
async def test_no_more_is_said_to_be_cached_than_is_not_read_again(kind: Rollback) -> None:
    """Memory that is not cut has no prefix of a text but up to a checkpoint of it."""

    def target() -> ToyModel:
        return toy(eos_bias=NEVER, rollback=kind)

    async with (
        running(ModelProcess(TARGET, target)) as process,
        running(OrchestratorProcess(process.address)) as orchestrator,
    ):
        await orchestrator.until_ready()
        start = [5 + i % 50 for i in range(80)]
        await generate(orchestrator, request(prompt_tokens=start, token_limit=20))
        for end in (40, 60, 79, 80):
            prompt = [*start[:end], 4, 4]
            counting = target_messages.CountCachedRequest(token_ids=prompt)
            said = (await process.stub.CountCached(counting)).cached_token_count
            asked = request(prompt_tokens=prompt, token_limit=4)
            held = (await generate(orchestrator, asked)).statistics.cached_token_count
            assert said <= held
            if kind is Rollback.FULL:
                assert said == held == end
