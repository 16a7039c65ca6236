"""How a pair on one machine shares it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ServiceStopped
from outrider.model_service.config import ModelOptions
from outrider_cli.services import local
from outrider_cli.services.local import HostedModel, LocalPlan, local_services
from outrider_cli.services.pair import host_draft


@pytest.mark.parametrize(
    ("of_target", "of_draft", "nice"),
    [
        ({}, {}, 19),
        ({"n_gpu_layers": 0}, {}, 19),
        ({"n_gpu_layers": 0}, {"n_gpu_layers": 0}, 19),  # they take turns on the cores
        ({}, {"n_gpu_layers": 0}, 0),  # which a target on a GPU leaves to the draft
        ({"n_gpu_layers": 20}, {"n_gpu_layers": 0}, 0),
        ({}, {"n_gpu_layers": 0, "nice": 19}, 19),
        ({}, {"nice": 3}, 3),
        ({}, {"nice": 0}, 0),
    ],
)
def test_a_draft_gives_way_to_who_computes_on_its_cores(
    of_target: dict[str, int], of_draft: dict[str, int], nice: int
) -> None:
    hosted = host_draft(Path("m.gguf"), ModelOptions(**of_draft), ModelOptions(**of_target))
    assert hosted.options.nice == nice


@pytest.mark.parametrize(("draft_layers", "is_in_process"), [(-1, True), (0, False)])
def test_no_target_on_a_gpu_waits_for_a_draft_on_the_cpu(
    draft_layers: int, is_in_process: bool
) -> None:
    target, draft = ModelOptions(), ModelOptions(n_gpu_layers=draft_layers)
    hosted = host_draft(Path("d.gguf"), draft, target)
    plan = LocalPlan(target=HostedModel(Path("t.gguf"), target), draft=hosted)
    assert ("--draft-model=d.gguf" in plan.own_draft_words) == is_in_process


def test_a_target_that_is_not_to_draft_leaves_its_head_alone_too() -> None:
    plan = LocalPlan(target="host:1", draft=None, own_draft=False)
    assert plan.own_draft_words == ("--no-own-draft",)


class Started:
    """Stands for a child: it listens, and keeps its options."""

    ended = False

    def __init__(self, role: str, options: Sequence[str]) -> None:
        self.role = role
        self.options = options

    @property
    def token_file(self) -> Path:
        """The token that it wants of its callers, or shows to the models."""
        name = "--peer-token-file=" if self.role == "orchestrator" else "--token-file="
        [path] = [each.removeprefix(name) for each in self.options if each.startswith(name)]
        return Path(path)

    async def address(self) -> str:
        return "127.0.0.1:1"

    async def end(self) -> ServiceStopped:
        return await asyncio.Future()

    async def stop(self) -> None: ...


class StubChild:
    """Starts nothing."""

    @classmethod
    async def start(cls, command: Any, role: str, listen: str, options: Any, *_: Any) -> Started:
        return Started(role, options)


PAIR = LocalPlan(
    target=HostedModel(Path("t.gguf"), ModelOptions()),
    draft=HostedModel(Path("d.gguf"), ModelOptions()),
    orchestrator=("--tokens=/of/a/team.toml",),
    own_draft=False,
)


async def token_files_of(plan: LocalPlan) -> tuple[set[Path], str]:
    """Return the token files of all that is started, and what is in them."""
    async with local_services(plan) as services:
        await services.start()
        started = (services.target, services.draft, services.orchestrator)
        files = {each.token_file for each in started if isinstance(each, Started)}
        [file] = files
        assert file.parent.stat().st_mode & 0o77 == 0  # of its owner alone
        return files, file.read_text()


@pytest.fixture
def _starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "Child", StubChild)
    monkeypatch.setattr(local, "_is_head", lambda path: False)


@pytest.mark.usefixtures("_starts_nothing")
async def test_the_models_of_a_run_answer_its_orchestrator_alone() -> None:
    [file], token = await token_files_of(PAIR)
    _, other = await token_files_of(PAIR)
    assert len(token) == len(other) == 64 and token != other
    assert not file.parent.exists()


@pytest.mark.usefixtures("_starts_nothing")
async def test_a_draft_starts_again_where_its_token_was_deleted_meanwhile() -> None:
    async with local_services(PAIR) as services:
        await services.start()
        assert isinstance(services.draft, Started)
        file = services.draft.token_file
        token = file.read_text()
        file.unlink()
        file.parent.rmdir()
        await services.restart_draft()
        assert file.read_text() == token
        assert file.parent.stat().st_mode & 0o77 == 0


@pytest.mark.usefixtures("_starts_nothing")
async def test_models_elsewhere_are_shown_no_token_of_a_run() -> None:
    async with local_services(replace(PAIR, target="gpu:50061", draft=None)) as services:
        await services.start()
        assert isinstance(services.orchestrator, Started)
        assert not any("peer-token" in each for each in services.orchestrator.options)


@pytest.mark.usefixtures("_starts_nothing")
async def test_a_model_here_wants_the_token_of_the_one_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a token of the tests")
    far = replace(PAIR, target="gpu:50061", peer_token_file=tmp_path / "token")
    assert await token_files_of(far) == ({tmp_path / "token"}, "a token of the tests")
