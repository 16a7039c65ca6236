"""A target that takes another head from disk while it writes: no text is another than without."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outrider import logs
from outrider.engine.head_draft import HeadDraft
from outrider.engine.hosting import HostOptions
from outrider.engine.model import Numerics
from outrider.engine.own_draft import DraftLine
from outrider.file_values import state_of
from outrider.model_service import new_heads
from outrider.model_service.config import ModelConfig
from outrider.model_service.new_heads import HeadFile
from outrider.model_service.run import open_own_head
from outrider.rpc.channel import open_channel
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.target_service_pb2_grpc import TargetServiceStub
from tests.services.test_texts_with_heads import ALWAYS, load, user
from tests.support.processes import ServiceProcess
from tests.support.services import (
    TARGET,
    Completion,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    running,
)
from tests.support.tiny_heads import Tensors, write_dflash, write_eagle3, write_llama

LENGTH, PACE = 400, 0.006  # tokens, and s of each: a head is taken amid a text
WRITERS: dict[int, Callable[[Path], Path]] = {
    common.HEAD_KIND_EAGLE3: write_eagle3,
    common.HEAD_KIND_DSPARK: partial(write_dflash, has_markov=True),
}


def spoil(tensors: Tensors) -> None:
    """Let a head know nothing of the text."""
    tensors["output.weight"] = tensors["output.weight"][::-1].copy()


@dataclass
class Seen:
    """What heads drafted after which texts, in order; each in the file that was there by then."""

    drafts: list[tuple[HeadDraft, list[int], list[int]]] = field(default_factory=list)

    def heads(self) -> list[HeadDraft]:
        """Return those that drafted, in order."""
        return list(dict.fromkeys(head for head, _, _ in self.drafts))

    def accepted(self, head: HeadDraft, done: Completion) -> float:
        """Return the accepted share of what a head drafted for a text."""
        whole, right, tried = [*done.prompt, *done.token_ids], 0, 0
        for its, text, drafted in self.drafts:
            if its is head and whole[: len(text)] == text:
                follows = whole[len(text) :][: len(drafted)]
                ends = range(1, len(follows) + 1)
                right += sum(drafted[:end] == follows[:end] for end in ends)
                tried += len(follows)
        return right / tried


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen, draft = Seen(), HeadDraft.draft

    def noted(head: HeadDraft, lines: Sequence[DraftLine], read_seconds: float) -> None:
        draft(head, lines, read_seconds)
        for line in lines:
            if line.guesses:
                ids = [guess.token_id for guess in line.guesses]
                seen.drafts.append((head, list(line.ask.text), ids))

    monkeypatch.setattr(HeadDraft, "draft", noted)
    return seen


@pytest.fixture(autouse=True)
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Look often; return what was said of heads that are no good."""
    said: list[str] = []
    warning = logs.warning

    def note(where: str, message: str, **fields: Any) -> None:
        if message == "new head not taken":
            said.append(fields["detail"])
        warning(where, message, **fields)

    monkeypatch.setattr(logs, "warning", note)
    monkeypatch.setattr(new_heads, "_LOOK_SECONDS", 0.02)
    return said


@asynccontextmanager
async def watching(path: Path, head: Path, pace: float = PACE) -> AsyncIterator[ModelProcess]:
    """Start a target that drafts with the head, where it is there, and looks for others."""
    config = ModelConfig(model=head, is_draft=True, sessions=4)
    known = state_of(head)
    target = ModelProcess(
        TARGET,
        partial(load, path, False, pace),
        HostOptions(numerics=Numerics.EXACT, room_seconds=60.0),
        load_draft=partial(open_own_head, config=config) if known else None,
    )
    async with running(target):
        watch = HeadFile(config, known).watch(target.host, target.servicer)
        task = asyncio.create_task(watch)
        yield target
        assert not task.done()
        task.cancel()


def own(target: ModelProcess) -> common.OwnDraft:
    return target.servicer.description().own_draft


def known(orchestrator: OrchestratorProcess) -> common.OwnDraft:
    """Return what an orchestrator knows of the draft in its target's process."""
    return orchestrator.orchestrator.status().peers[0].model.own_draft


async def put(target: ModelProcess, new: Path, head: Path) -> None:
    """Put a head in the place of the one before, and wait until the target has it."""
    before = own(target)
    other = head.with_suffix(".new")
    shutil.copy(new, other)
    os.replace(other, head)
    await eventually(lambda: own(target) != before)


async def alone(path: Path, asked: messages.GenerateRequest) -> list[int]:
    """Return what the target writes without a head."""
    target = ModelProcess(TARGET, partial(load, path, False), HostOptions(numerics=Numerics.EXACT))
    async with (
        running(target),
        running(OrchestratorProcess(target.address, speculation=ALWAYS)) as orchestrator,
    ):
        await orchestrator.until_ready()
        return list((await generate(orchestrator, asked)).token_ids)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", [common.HEAD_KIND_EAGLE3, common.HEAD_KIND_DSPARK])
async def test_a_head_is_replaced_while_a_text_is_written(
    tmp_path: Path, seen: Seen, warned: list[str], temperature: float, kind: int
) -> None:
    write = WRITERS[kind]
    path = write_llama(tmp_path / "target.gguf")
    bad, good = write_eagle3(tmp_path / "bad.gguf", edit=spoil), write(tmp_path / "good.gguf")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(good.read_bytes()[:-5000])
    head = tmp_path / "head.gguf"
    shutil.copy(bad, head)
    asked = user(3, LENGTH)
    asked.sampling.temperature = temperature
    async with (
        watching(path, head) as target,
        running(OrchestratorProcess(target.address, speculation=ALWAYS)) as orchestrator,
    ):
        await orchestrator.until_ready()

        async def damage() -> None:
            shutil.copy(damaged, head)
            await eventually(lambda: bool(warned))

        events = [Interruption(40, partial(put, target, good, head)), Interruption(150, damage)]
        done = await generate(orchestrator, asked, events)
        later = await generate(orchestrator, asked)
        assert own(target).head == kind
        await eventually(lambda: known(orchestrator) == own(target))
    old, new = seen.heads()
    assert seen.accepted(old, done) < 0.05
    assert seen.accepted(new, done) > 0.15
    assert [text for head, text, _ in seen.drafts if head is new and len(text) > 200]
    assert len(warned) == 1 and "\n" not in warned[0]
    assert done.token_ids == later.token_ids == await alone(path, asked)


async def test_a_head_that_comes_later_drafts_for_the_next_text(tmp_path: Path, seen: Seen) -> None:
    path, head = write_llama(tmp_path / "target.gguf"), tmp_path / "head.gguf"
    asked = user(3, LENGTH)
    async with (
        watching(path, head) as target,
        running(OrchestratorProcess(target.address, speculation=ALWAYS)) as orchestrator,
    ):
        await orchestrator.until_ready()
        come = partial(put, target, write_eagle3(tmp_path / "good.gguf"), head)
        done = await generate(orchestrator, asked, [Interruption(60, come)])
        assert not done.statistics.drafted_token_count
        await eventually(lambda: known(orchestrator) == own(target))
        later = await generate(orchestrator, asked)
        assert later.statistics.accepted_token_count > 0 and len(seen.heads()) == 1
    assert done.token_ids == later.token_ids == await alone(path, asked)


async def test_a_head_of_another_width_is_not_taken(tmp_path: Path, warned: list[str]) -> None:
    path, head = write_llama(tmp_path / "target.gguf"), tmp_path / "head.gguf"
    write_eagle3(head, layers=(0, 1, 9))
    async with watching(path, head, pace=0.0) as target:
        assert not target.servicer.description().HasField("own_draft")
        write_eagle3(tmp_path / "good.gguf")
        await put(target, tmp_path / "good.gguf", head)
        before = own(target)
        shutil.copy(write_llama(tmp_path / "no_head.gguf"), head)
        await eventually(lambda: bool(warned))
        assert own(target) == before and "no head" in warned[0]


@pytest.mark.parametrize("option", ["--draft-model", "--keep-rows"])
async def test_the_command_takes_a_new_head(tmp_path: Path, option: str) -> None:
    path, head = write_llama(tmp_path / "target.gguf"), tmp_path / "kept" / "head.gguf"
    head.parent.mkdir()
    if replaced := option == "--draft-model":
        write_eagle3(head)
    named = [option, str(head if replaced else head.parent)]
    target = ServiceProcess("target", "--model", str(path), "--ctx-size", "512", *named)
    target.start()
    try:
        await target.wait_until_serving()
        async with open_channel(target.address) as channel:
            get_model = TargetServiceStub(channel).GetModel

            async def drafts_with(kind: common.HeadKind.ValueType) -> bool:
                return bool((await get_model(common.GetModelRequest())).own_draft.head == kind)

            assert await drafts_with(common.HEAD_KIND_EAGLE3) is replaced
            os.replace(write_dflash(tmp_path / "new.gguf", layers=(1, 2, 3)), head)
            await eventually(partial(drafts_with, common.HEAD_KIND_DFLASH), pause=0.1)
    finally:
        target.stop()
