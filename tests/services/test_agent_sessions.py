"""What agents have sent, answered by a real model: their prompts are read and their streams end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from tests.support.agents import AGENTS, events_of, session
from tests.support.clients import HERMES
from tests.support.gateway import serving
from tests.support.services import DRAFT, TARGET, ModelProcess, OrchestratorProcess, running
from tests.support.tiny_gguf import Shape, write_model

CONTEXT = 16384  # tokens; a token is about a byte of these prompts, of which the longest have 8,000
LIMITS = {"/v1/responses": {"max_output_tokens": 8}, "/api/chat": {"options": {"num_predict": 8}}}
LAST = {"message_stop", "response.completed", "response.incomplete"}


def load(path: Path) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=CONTEXT,
            sequence_count=1,
            thread_count=1,
            pad_multiple=1,
            batch_rows=512,
        )
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The gateway over services of one tiny model, with a template that takes tools."""
    shape = Shape(layers=1, context=CONTEXT)
    path = write_model(tmp_path_factory.mktemp("models") / "model.gguf", shape=shape)
    async with (
        running(ModelProcess(TARGET, lambda: load(path))) as target,
        running(ModelProcess(DRAFT, lambda: load(path))) as draft,
        running(
            OrchestratorProcess(target.address, draft.address, chat_template=HERMES)
        ) as services,
        serving(services.orchestrator) as address,
    ):
        yield address


def has_ended(event: dict[str, Any]) -> bool:
    """Return whether this is the last event of an answer that was whole."""
    return event.get("type") in LAST or "timings" in event or event.get("done", False)


@pytest.mark.parametrize("name", AGENTS)
async def test_a_session_is_answered_by_a_real_model(name: str, url: str):
    async with httpx.AsyncClient(timeout=60) as client:
        for asked in session(name):
            limit = LIMITS.get(asked["path"], {"max_tokens": 8})
            answer = await client.post(url + asked["path"], json=asked["body"] | limit)
            assert answer.status_code == 200, answer.text
            if asked["body"].get("stream"):
                *_, last = events_of(answer.text)
                assert has_ended(last)
            elif "/count_tokens" in asked["path"]:
                assert answer.json()["input_tokens"] > 100
            else:
                assert answer.json()["usage"]["completion_tokens"] > 0
