"""A target that drafts with the MTP head in its file, through real services."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import logs
from outrider.engine.head_draft import HeadDraft, Pairs
from outrider.engine.hosting import HostOptions
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Numerics, Row
from outrider.engine.own_draft import DraftLine
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import llama_config, open_own_head
from outrider.speculation import HeadKind, Speculation
from outrider.v1 import common_pb2 as common
from tests.support.services import (
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    generate,
    request,
    running,
)
from tests.support.tiny_heads import MTP_TARGETS, Tensors, write_mtp

HEADED = ModelConfig(model=Path("m.gguf"), context=512, sessions=2, threads=1, mtp=True)


def load(
    path: Path, mtp: bool = True, kind: type[LlamaModel] = LlamaModel, pad_multiple: int = 4
) -> LlamaModel:
    return kind(
        LlamaConfig(
            path=path,
            context=512,
            sequence_count=2,
            thread_count=1,
            pad_multiple=pad_multiple,
            mtp=mtp,
        )
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_a_text_is_the_same_with_it(tmp_path: Path, temperature: float) -> None:
    path, texts, drafted = write_mtp(tmp_path / "m.gguf", "glm4moe"), [], 0
    prompt = [3 + 37 * i % 300 for i in range(20)]
    asked = request(prompt_tokens=prompt, temperature=temperature, token_limit=120)
    for mtp in (False, True):
        draft = open_own_head if mtp else None
        async with (
            running(ModelProcess(TARGET, partial(load, path, mtp), load_draft=draft)) as target,
            running(OrchestratorProcess(target.address, speculation=Speculation())) as orchestrator,
        ):
            await orchestrator.until_ready()
            for _ in range(20 if mtp else 1):  # on a busy machine it seems not to pay
                done = await generate(orchestrator, asked)
                texts.append(done.token_ids)
                drafted = done.statistics.drafted_token_count
                if drafted:
                    break
            model = orchestrator.orchestrator.status().peers[0].model
            assert model.own_draft.head == (common.HEAD_KIND_MTP if mtp else 0)
    assert drafted > 0 and all(text == texts[0] for text in texts)
    [head] = done.statistics.sources
    assert (head.name, head.drafted_token_count) == ("mtp", drafted)
    assert head.duration.ToNanoseconds() > 0


def test_a_model_is_loaded_with_its_head_where_that_is_configured() -> None:
    assert llama_config(HEADED).mtp


@pytest.mark.parametrize("architecture", MTP_TARGETS)
def test_a_target_opens_its_head_as_its_draft(tmp_path: Path, architecture: str) -> None:
    model = load(write_mtp(tmp_path / "m.gguf", architecture))
    draft = open_own_head(model)
    assert draft is not None and (draft.name, draft.head_kind) == ("m", HeadKind.MTP)
    assert 0 < draft.weight_bytes < model.describe().weight_bytes
    assert draft.costs.token > 0 and draft.costs.read == 0.0 and not draft.most_tokens
    draft.close()
    model.close()


def test_a_head_that_is_not_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    monkeypatch.setattr(logs, "warning", lambda *words, **values: said.append(values))
    path = write_mtp(
        tmp_path / "n.gguf", "glm4moe", edit=lambda t: t.pop("blk.2.nextn.eh_proj.weight")
    )
    model = load(path)
    assert open_own_head(model) is None
    assert said == [{"detail": f"{path} has an MTP head without blk.2.nextn.eh_proj.weight"}]
    model.close()


PACE = 0.008  # seconds of a token
ROW, HEAD = 0.2, 0.06  # what a row more costs, and a head's token, as shares of that: a 3090's


class Slow(LlamaModel):
    """A target whose decodes take as long as large ones, and whose head does."""

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        rows = min(16, sum(len(chunk.token_ids) for chunk in chunks))
        time.sleep(PACE * (1.0 + ROW * (rows - 1)))
        return super().decode(chunks)

    def open_head(self, file: LlamaConfig | None = None) -> Any:
        head = super().open_head(file)
        decode = head.decode

        def slow(pairs: Sequence[Pairs], block: int = 0) -> Any:
            time.sleep(HEAD * PACE)
            return decode(pairs, block)

        head.decode = slow
        return head


async def test_a_head_whose_guesses_are_noise_is_off_after_some_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_noise(tensors: Tensors) -> None:
        name = "blk.2.nextn.eh_proj.weight"
        noise = np.random.default_rng(5).standard_normal(tensors[name].shape, np.float32)
        tensors[name] = noise

    path = write_mtp(tmp_path / "m.gguf", "glm4moe", edit=with_noise)
    asked, draft, length = list[int](), HeadDraft.draft, 150

    def noted(head: HeadDraft, lines: Sequence[DraftLine], read_seconds: float) -> None:
        asked.extend(line.ask.count for line in lines)
        draft(head, lines, read_seconds)

    monkeypatch.setattr(HeadDraft, "draft", noted)
    make = partial(load, path, kind=Slow, pad_multiple=1)
    native = HostOptions(numerics=Numerics.NATIVE)
    async with (
        running(ModelProcess(TARGET, make, native, load_draft=open_own_head)) as target,
        running(OrchestratorProcess(target.address, speculation=Speculation())) as orchestrator,
    ):
        await orchestrator.until_ready()
        await generate(orchestrator, request(temperature=0.0, token_limit=length))
        rounds = len(asked)  # 10 to 13, as answers come 0.1 s apart
        assert 0 < rounds <= 20
        for _ in range(2):
            await generate(orchestrator, request(temperature=0.0, token_limit=length))
        # Then it is tried now and then, which takes few of the decodes.
        assert sum(asked[rounds:]) * (ROW + HEAD) < 0.03 * 2 * length
