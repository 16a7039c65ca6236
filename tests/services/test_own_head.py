"""A target that drafts with the MTP head in its file, through real services."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from outrider import logs
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
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
from tests.support.tiny_heads import MTP_TARGETS, write_mtp

HEADED = ModelConfig(model=Path("m.gguf"), context=512, sessions=2, threads=1, mtp=True)


def load(path: Path, mtp: bool = True) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path, context=512, sequence_count=2, thread_count=1, pad_multiple=4, mtp=mtp
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
    assert draft.costs.token > 0 and draft.costs.read == 0.0
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
