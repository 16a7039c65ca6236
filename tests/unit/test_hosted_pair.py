"""How a pair on one machine shares it."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.model_service.config import ModelOptions
from outrider_cli.services.local import HostedModel, LocalPlan
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
