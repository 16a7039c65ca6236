"""Sliding windows through real services: right at many windows' length, and cheap to take back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.hosting import HostOptions
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Numerics, Rollback
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.services.test_rollback_kinds import check_greedy
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
from tests.support.tiny_architectures import WINDOW, WINDOWED, write_architecture

CONTEXT, LENGTH, BATCH = 448, 380, 128
PROMPT = [5 + 11 * i % 280 for i in range(40)]  # longer than a window
LARGER, SMALL = {"full_window": True}, {"full_window": False}
NAMES = sorted(WINDOWED) if THOROUGH else ["gemma3"]
ATTEMPTS = 10
PATIENCE = 100.0


def load(path: Path, sequences: int = 2, **size: bool) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=CONTEXT,
            sequence_count=sequences,
            thread_count=1,
            pad_multiple=4,
            batch_rows=BATCH,
            **size,
        )
    )


def asked(**how: Any) -> messages.GenerateRequest:
    """Return a request of four windows and more, whose rounds are all the orchestrator's."""
    fixed = {"n_max": 5, "policy": messages.DRAFT_POLICY_FIXED}
    fixed["rollback"] = messages.ROLLBACK_MODE_RPC
    made = request(prompt_tokens=PROMPT, token_limit=LENGTH, temperature=0.0, **fixed | how)
    made.ignore_eos = True
    return made


@pytest.mark.parametrize("size", [SMALL, LARGER], ids=["small cache", "--swa-full"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_text_of_many_windows_is_right_and_a_rejection_costs_a_decode_more_at_most(
    tmp_path: Path, name: str, size: dict[str, bool]
) -> None:
    path = write_architecture(tmp_path / "target.gguf", name)
    draft_path = write_architecture(tmp_path / "draft.gguf", name, last_seed=2)
    exact = size is LARGER  # a small cache has no exact numerics
    options = HostOptions(numerics=Numerics.EXACT if exact else Numerics.NATIVE, room_seconds=60.0)
    async with (
        running(ModelProcess(TARGET, partial(load, path, **size), options)) as target,
        running(ModelProcess(DRAFT, partial(load, draft_path, **size), options)) as draft,
        running(
            OrchestratorProcess(target.address, draft.address, draft_seconds=30.0)
        ) as orchestrator,
    ):
        assert target.model.describe().rollback is (Rollback.FULL if exact else Rollback.WINDOW)
        await orchestrator.until_ready()
        alone = await generate(orchestrator, asked(enabled=False), timeout=PATIENCE)
        rejections = 0
        for _ in range(ATTEMPTS):
            before = target.decode_count
            text = await generate(orchestrator, asked(), timeout=PATIENCE)
            decodes = target.decode_count - before
            rejected = text.origin_count(messages.TOKEN_ORIGIN_CORRECTED)
            rejections += rejected
            assert decodes <= text.statistics.round_count + rejected + len(PROMPT) // BATCH + 1
            assert len(text.token_ids) == LENGTH > 4 * WINDOW
            if exact:
                assert text.token_ids == alone.token_ids
            if rejections > LENGTH // WINDOW:
                break
        assert rejections > 0
    model = load(path, 1, full_window=True)
    for each in (alone, text):
        check_greedy(model, PROMPT, each.token_ids)
    model.close()
