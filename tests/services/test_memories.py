"""Many users on few sequences of every kind of memory: each text is the one written alone."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from outrider.engine import scheduler
from outrider.engine.hosting import HostOptions
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Numerics
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.services import (
    DRAFT,
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    generate,
    request,
    running,
)
from tests.support.thorough import THOROUGH
from tests.support.tiny_architectures import ARCHITECTURES, write_architecture

CONTEXT = 160
SEQUENCES = 4
OPTIONS = HostOptions(numerics=Numerics.EXACT, room_seconds=60.0)
NAMES = sorted(ARCHITECTURES) if THOROUGH else ["deepseek2", "gemma3", "gpt-oss", "phi3"]
SHARED = [3 + 7 * i % 290 for i in range(60)]  # two and a half windows


def load(path: Path, sequences: int) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=CONTEXT,
            sequence_count=sequences,
            thread_count=1,
            pad_multiple=4,
            batch_rows=128,
        )
    )


def user(number: int) -> messages.GenerateRequest:
    """Return what a user asks: a shared start, an end of their own, a length of their own."""
    tail = [5 + 11 * (number + i) % 280 for i in range(1 + 5 * number)]
    asked = request(
        prompt_tokens=SHARED[: 60 - 8 * (number % 3)] + tail,
        seed=number,
        token_limit=12 + 9 * number,
        temperature=0.0 if number % 2 else 0.8,
    )
    asked.ignore_eos = True
    if number >= 6:  # longer than the context: half of the text is dropped, and the rest read anew
        asked.token_limit = 110
        asked.overflow.shift = True
    return asked


async def written(orchestrator: OrchestratorProcess, number: int, delay: float = 0.0) -> list[int]:
    await asyncio.sleep(delay)
    return (await generate(orchestrator, user(number), timeout=120.0)).token_ids


async def leave_early(orchestrator: OrchestratorProcess) -> None:
    """Ask for a text, and go after its first tokens."""
    call = orchestrator.stub.Generate(user(7))
    async for response in call:
        if response.WhichOneof("event") == "delta":
            break
    call.cancel()


@pytest.mark.parametrize("drafts", [False, True], ids=["alone", "drafted"])
@pytest.mark.parametrize("name", NAMES)
async def test_users_who_come_and_go_get_the_text_that_each_would_get_alone(
    tmp_path: Path, name: str, drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_FIRST_EXCHANGE", 0.0)  # as often as possible
    path = write_architecture(tmp_path / "target.gguf", name)
    draft_path = write_architecture(tmp_path / "draft.gguf", name, last_seed=2)
    single = ModelProcess(TARGET, partial(load, path, 1), OPTIONS)
    async with running(single), running(OrchestratorProcess(single.address)) as orchestrator:
        await orchestrator.until_ready()
        expected = [await written(orchestrator, number) for number in range(8)]
    shared = ModelProcess(TARGET, partial(load, path, SEQUENCES), OPTIONS)
    draft = ModelProcess(DRAFT, partial(load, draft_path, SEQUENCES), OPTIONS)
    async with running(shared), running(draft):
        assert shared.host.loaded.result().prepared.numerics is Numerics.EXACT
        address = draft.address if drafts else ""
        async with running(OrchestratorProcess(shared.address, address)) as orchestrator:
            await orchestrator.until_ready()
            leaving = [leave_early(orchestrator) for _ in range(2)]
            texts = [written(orchestrator, n, delay=0.05 * n) for n in range(8)]
            *texts, _, _ = await asyncio.gather(*texts, *leaving)
            again = await asyncio.gather(*(written(orchestrator, number) for number in (3, 1)))
    assert texts == expected
    assert again == [expected[3], expected[1]]
