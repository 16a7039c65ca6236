"""A served target is taught while it serves: when a lesson begins, and whose head is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from outrider.client import Finished, OutriderClient, Request  # noqa: E402
from outrider.kept_rows import (  # noqa: E402
    HEAD_FILE,
    Kept,
    KeptSource,
    KeptText,
    open_folder,
    write_shard,
)
from outrider.model_service.config import ModelOptions  # noqa: E402
from outrider.sampling import SamplingParameters  # noqa: E402
from outrider.speculation import HeadKind, Policy  # noqa: E402
from outrider_cli.options import KeepingOptions, arguments  # noqa: E402
from outrider_cli.screen import Progress  # noqa: E402
from outrider_cli.services.local import HostedModel, LocalPlan  # noqa: E402
from outrider_teach import watching  # noqa: E402
from outrider_teach.target_weights import TargetFile  # noqa: E402
from outrider_teach.training import TrainingConfig  # noqa: E402
from outrider_teach.watching import Watch, Watcher  # noqa: E402
from outrider_teach.work_folder import WorkFolder  # noqa: E402
from outrider_teach.writing import started  # noqa: E402
from tests.support.kept_texts import LAYERS, TOP  # noqa: E402
from tests.support.services import eventually  # noqa: E402
from tests.support.tiny_heads import write_llama  # noqa: E402

CONFIG = TrainingConfig(steps=1 << 30, tokens=512, drafted=200, judged_every=20)
SAID = list[str]


def watcher(folder: Path, said: SAID, new_tokens: int) -> Watcher:
    """Return one of the target in a folder, which keeps its rows in `rows` there."""
    watch = Watch(
        target=TargetFile(folder / "target.gguf"),
        rows=folder / "rows",
        head=folder / "rows" / HEAD_FILE,
        folder=WorkFolder(folder / "work", {}),
        config=CONFIG,
        minutes=0.2,
        tokens=10**6,
        new_tokens=new_tokens,
    )
    return Watcher(watch, said.append, Progress())


def plan(folder: Path) -> LocalPlan:
    keeping = KeepingOptions(keep_rows=folder / "rows")
    return LocalPlan(
        target=HostedModel(
            folder / "target.gguf", ModelOptions(sessions=4, context=256, threads=1)
        ),
        draft=None,
        target_words=tuple(arguments(keeping)),
    )


async def generate(
    client: OutriderClient, number: int, drafts: bool = True
) -> tuple[list[int], Finished]:
    """Return what the target answers to the prompt of a number, greedily."""
    prompt = np.random.default_rng(number).integers(3, 320, 12).tolist()
    request = Request(
        prompt,
        token_limit=60,
        sampling=SamplingParameters(temperature=0.0),
        ignore_eos=True,
        enabled=drafts,
        policy=Policy.FIXED,
        n_max=3,
        drafters=frozenset({HeadKind.EAGLE3.value}),
    )
    text: list[int] = []
    async for event in client.generate(request):
        if isinstance(event, Finished):
            return text, event
        text += getattr(event, "token_ids", ())
    raise AssertionError("no end")


async def ask(client: OutriderClient, numbers: range) -> None:
    await asyncio.gather(*(generate(client, number, drafts=False) for number in numbers))


def accepted(found: Sequence[Finished]) -> float:
    """Return the share of drafted tokens that was accepted, of what the head drafted."""
    its = [each for one in found for each in one.statistics.sources if each.name == "eagle3"]
    return sum(each.accepted_token_count for each in its) / max(
        1, sum(each.drafted_token_count for each in its)
    )


@pytest.mark.timeout(600)  # on a busy machine; else half a minute
async def test_a_served_target_takes_what_it_taught(tmp_path: Path) -> None:
    write_llama(tmp_path / "target.gguf")
    said: SAID = []
    async with started(plan(tmp_path), Progress()) as (_, client):
        alone = [await generate(client, number) for number in range(500, 504)]
        assert accepted([end for _, end in alone]) == 0.0  # there is no head yet
        for first in range(0, 120, 4):
            await ask(client, range(first, first + 4))
        # Shards are written every half minute.
        await eventually(lambda: Kept(tmp_path / "rows").answered >= 5000, 90)
        assert not watcher(tmp_path, said, 10**6).look()
        assert watcher(tmp_path, said, 5000).look()
        assert said[-1].startswith("new head: accepts ")
        # What was learned is not learned again.
        assert not watcher(tmp_path, said, 5000).look()

        async def is_taken() -> bool:
            return accepted([(await generate(client, 499))[1]]) > 0.0

        await eventually(is_taken, 30, pause=0.5)
        drafted = [await generate(client, number) for number in range(500, 504)]
        assert [text for text, _ in drafted] == [text for text, _ in alone]
        assert accepted([end for _, end in drafted]) > 0.02


def test_a_head_that_is_no_better_is_not_taken(
    kept: tuple[Path, list[KeptText]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, texts = kept
    said: SAID = []
    assert watcher(folder, said, 1000).look()
    head = folder / "rows" / HEAD_FILE
    first = head.read_bytes()
    write_shard(folder / "rows", texts[:40])
    monkeypatch.setattr(watching, "LEAST_GAIN", 1.0)
    assert watcher(folder, said, 1000).look()
    assert said[-1].startswith("no better: ") and "; before " in said[-1]
    assert head.read_bytes() == first


def test_old_texts_judge_nothing(
    kept: tuple[Path, list[KeptText]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = kept
    said: SAID = []
    monkeypatch.setattr(watching, "_JUDGED_SECONDS", 0.0)
    assert watcher(folder, said, 1000).look()
    assert said[-1].startswith("no lesson: ") and "too few" in said[-1]
    assert not watcher(folder, said, 1000).look()


def test_a_damaged_head_is_begun_anew(kept: tuple[Path, list[KeptText]]) -> None:
    folder, _ = kept
    said: SAID = []
    (folder / "rows" / HEAD_FILE).write_bytes(b"GGUF")
    assert watcher(folder, said, 1000).look()
    assert said[0].startswith("begins anew: ") and said[1].startswith("new head: ")


@pytest.fixture
def kept(texts: list[KeptText], target: Path, tmp_path: Path) -> tuple[Path, list[KeptText]]:
    """Return a folder with a target and what it has kept, and the texts that it kept."""
    file = TargetFile(target)
    source = KeptSource(
        model="", layers=LAYERS, width=file.width, vocabulary=file.vocabulary, top=TOP
    )
    (tmp_path / "target.gguf").symlink_to(target)
    open_folder(tmp_path / "rows", source)
    write_shard(tmp_path / "rows", texts)
    return tmp_path, texts
