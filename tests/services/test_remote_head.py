"""An MTP head in a draft service: its target's hidden rows travel to it, through real services."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_head_model import LlamaHeadModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Row
from outrider.model_service.run import open_own_head
from outrider.row_window import NO_ROWS, RowWindow
from outrider.speculation import Policy, Speculation
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as messages
from outrider.v1 import orchestrator_service_pb2 as orchestrator_messages
from target_service.verifier import Verifier
from tests.support.services import (
    DRAFT,
    TARGET,
    Completion,
    Interruption,
    JoiningDraft,
    ModelProcess,
    OrchestratorProcess,
    Trio,
    eventually,
    generate,
    request,
    running,
)
from tests.support.streams import DraftStream
from tests.support.tiny_heads import MTP_TARGETS, write_mtp

PROMPT = [3 + 37 * i % 300 for i in range(20)]
FIXED = Speculation(n_max=3, policy=Policy.FIXED)


def config(path: Path, **options: Any) -> LlamaConfig:
    return LlamaConfig(
        path=path, context=256, sequence_count=2, thread_count=1, pad_multiple=4, **options
    )


def load(path: Path, kind: type[LlamaModel] = LlamaModel, **options: Any) -> LlamaModel:
    return kind(config(path, **(options or {"hidden_rows": True})))


def load_head(path: Path) -> LlamaHeadModel:
    """Return the head of the same model, from a file of its own."""
    architecture = path.stem
    return LlamaHeadModel(
        config(write_mtp(path.with_name("mtp.gguf"), architecture, is_alone=True))
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_mtp(tmp_path / "glm4moe.gguf", "glm4moe")


class Slow(LlamaModel):
    """One that takes its time, so that a draft can come back meanwhile."""

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        time.sleep(0.005)
        return super().decode(chunks)


@asynccontextmanager
async def remote(
    path: Path, kind: type[LlamaModel] = LlamaModel, **options: Any
) -> AsyncIterator[Trio]:
    """Start a target, a head in a draft service and an orchestrator."""
    async with (
        running(ModelProcess(TARGET, partial(load, path, kind, **options))) as target,
        running(ModelProcess(DRAFT, partial(load_head, path))) as draft,
        running(OrchestratorProcess(target.address, draft.address, speculation=FIXED)) as far,
    ):
        await far.until_ready()
        yield Trio(target, draft, far)


async def written_beside(path: Path, asked: orchestrator_messages.GenerateRequest) -> Completion:
    """Return what is written with the head in the target's own process."""
    async with (
        running(
            ModelProcess(TARGET, partial(load, path, mtp=True), load_draft=open_own_head)
        ) as target,
        running(OrchestratorProcess(target.address, speculation=FIXED)) as orchestrator,
    ):
        await orchestrator.until_ready()
        return await generate(orchestrator, asked)


def asked_for(limit: int = 60, seed: int = 7, **more: Any) -> orchestrator_messages.GenerateRequest:
    more = {"temperature": 0.0, **more}
    return request(prompt_tokens=PROMPT, token_limit=limit, seed=seed, **more)


async def plain(trio: Trio, asked: orchestrator_messages.GenerateRequest) -> Completion:
    """Return what the target writes without a draft."""
    alone = orchestrator_messages.GenerateRequest()
    alone.CopyFrom(asked)
    alone.speculative.enabled = False
    return await generate(trio.orchestrator, alone)


@pytest.mark.parametrize(
    ("architecture", "temperature"),
    [*((each, 0.0) for each in MTP_TARGETS), ("glm4moe", 0.8), ("qwen35", 0.8)],
)
async def test_it_drafts_what_the_head_beside_the_target_does(
    tmp_path: Path, architecture: str, temperature: float
) -> None:
    """On a text within the window, by rows in float16."""
    path = write_mtp(tmp_path / f"{architecture}.gguf", architecture)
    asked = asked_for(40, temperature=temperature)
    beside = await written_beside(path, asked)
    async with remote(path) as trio:
        away = await generate(trio.orchestrator, asked)
    assert away.token_ids == beside.token_ids
    ours, theirs = away.statistics, beside.statistics
    assert ours.drafted_token_count == theirs.drafted_token_count > 0
    assert ours.accepted_token_count == theirs.accepted_token_count > 10
    assert [each.name for each in ours.sources] == ["mtp"]


@pytest.mark.parametrize("rule", ["SHARED_NOISE", "REJECTION"])
async def test_sessions_at_once_and_one_after_the_other(path: Path, rule: str) -> None:
    """More than the head has sequences for, of prompts that begin alike."""
    async with remote(path) as trio:
        asked = [asked_for(seed=i, temperature=0.8) for i in range(4)]
        for each in asked:
            each.speculative.acceptance = getattr(common, f"ACCEPTANCE_RULE_{rule}")
        expected = [await plain(trio, each) for each in asked]
        found = await asyncio.gather(*(generate(trio.orchestrator, each) for each in asked))
        again = [await generate(trio.orchestrator, each) for each in asked]
    if rule == "SHARED_NOISE":
        assert [each.token_ids for each in found] == [each.token_ids for each in expected]
        assert [each.token_ids for each in again] == [each.token_ids for each in expected]
    assert all(each.statistics.accepted_token_count > 10 for each in again)


async def test_a_killed_head_costs_its_drafts_and_comes_back(path: Path) -> None:
    async with remote(path, kind=Slow) as trio:
        asked = asked_for(150)
        expected = await plain(trio, asked)
        kills = [Interruption(30, trio.draft.restart), Interruption(80, trio.draft.close_sessions)]
        done = await generate(trio.orchestrator, asked, kills)
    assert done.token_ids == expected.token_ids
    assert done.statistics.accepted_token_count > 30


async def test_so_does_a_target_that_was_killed(path: Path) -> None:
    async with remote(path, kind=Slow) as trio:
        asked = asked_for(150)
        expected = await plain(trio, asked)
        kills = [
            Interruption(40, trio.target.restart),
            Interruption(90, trio.target.close_sessions),
        ]
        done = await generate(trio.orchestrator, asked, kills)
    assert done.token_ids == expected.token_ids
    assert done.statistics.accepted_token_count > 30


async def test_rollbacks_by_call_change_nothing(path: Path) -> None:
    async with remote(path) as trio:
        asked = asked_for()
        expected = await plain(trio, asked)
        asked.speculative.rollback = orchestrator_messages.ROLLBACK_MODE_RPC
        done = await generate(trio.orchestrator, asked)
    assert done.token_ids == expected.token_ids
    assert done.statistics.accepted_token_count > 10


async def test_a_text_whose_context_shifts_goes_on_with_it(path: Path) -> None:
    async with remote(path) as trio:
        asked = asked_for(400)
        asked.overflow.shift = True
        expected = await plain(trio, asked)
        done = await generate(trio.orchestrator, asked)
    assert len(done.token_ids) >= 400 and done.token_ids == expected.token_ids
    assert done.statistics.accepted_token_count > 60


async def test_a_head_may_dial_in(path: Path) -> None:
    async with (
        running(ModelProcess(TARGET, partial(load, path))) as target,
        running(
            OrchestratorProcess(target.address, accept_drafts=True, speculation=FIXED)
        ) as orchestrator,
    ):
        await orchestrator.until_ready()
        async with running(JoiningDraft(orchestrator.address, partial(load_head, path))):
            await eventually(lambda: bool(orchestrator.pool.drafts))
            done = await generate(orchestrator, asked_for())
            status = await orchestrator.status()
    assert done.statistics.accepted_token_count > 10
    assert status.controller.head


async def test_a_target_without_rows_refuses_it_in_a_line(path: Path) -> None:
    async with remote(path, snapshots=4) as trio:
        done = await generate(trio.orchestrator, asked_for())
        status = await trio.orchestrator.status()
    assert done.statistics.drafted_token_count == 0 and len(done.token_ids) == 60
    assert "start it with --hidden-rows" in status.reason and "\n" not in status.reason


def noise(window: RowWindow) -> RowWindow:
    """Return rows of random bytes, some of which are no numbers."""
    drawn = np.random.default_rng(window.position)
    return RowWindow(window.position, tuple(drawn.bytes(len(row)) for row in window.rows))


def cut(window: RowWindow) -> RowWindow:
    return RowWindow(window.position, tuple(row[:-2] for row in window.rows))


LIES: list[Callable[[RowWindow], RowWindow]] = [
    noise,
    cut,
    lambda window: RowWindow(window.position + 3, window.rows),
    lambda window: RowWindow(0, window.rows),
    lambda _: NO_ROWS,
]


@pytest.mark.parametrize("lie", LIES)
async def test_what_a_target_says_of_its_rows_changes_no_text(
    path: Path, lie: Callable[[RowWindow], RowWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with remote(path) as trio:
        asked, honest = asked_for(), Verifier._hidden
        expected = await plain(trio, asked)
        with monkeypatch.context() as patched:
            patched.setattr(Verifier, "_hidden", lambda *given: lie(honest(*given)))
            done = await generate(trio.orchestrator, asked)
        after = await generate(trio.orchestrator, asked)
    assert done.token_ids == after.token_ids == expected.token_ids
    assert after.statistics.accepted_token_count > 10


async def test_an_order_with_rows_of_another_width_ends_its_session_alone(path: Path) -> None:
    async with running(ModelProcess(DRAFT, partial(load_head, path))) as draft:
        changes: dict[str, Any] = {
            "vocabulary_token_count": 320,
            "prompt_token_count": len(PROMPT),
        }
        for width, code in ((7, grpc.StatusCode.INVALID_ARGUMENT), (64, grpc.StatusCode.OK)):
            rows = common.HiddenRows(position=0, rows=[bytes(2 * width)] * (len(PROMPT) - 1))
            order = messages.DraftOrder(
                order=1,
                committed=common.TokenSpan(position=0, token_ids=PROMPT),
                draft_until=len(PROMPT) + 3,
                hidden_rows=rows,
            )
            async with DraftStream(draft, **changes) as stream:
                await stream.send(messages.DraftRequest(order=order))
                if code is grpc.StatusCode.OK:
                    found = await stream.until_completed(1)
                    assert sum(len(each.frame.token_ids) for each in found) == 3
                else:
                    assert await stream.end() is code


async def test_a_head_says_what_it_is_and_translates_nothing(path: Path) -> None:
    async with running(ModelProcess(DRAFT, partial(load_head, path))) as draft:
        model = await draft.stub.GetModel(common.GetModelRequest())
    assert (model.head, model.architecture) == (common.HEAD_KIND_MTP, "glm4moe")
    assert not model.translates
    assert model.hidden_row_width == 64
    # However long a text is that it reads, that is one decode.
    one, *_, many = model.decode_costs
    assert many.milliseconds < many.row_count * one.milliseconds / 2
