"""A target on a GPU, a draft on the CPU beside it; llama.cpp only says that it has a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from outrider.client import OutriderClient
from outrider.model_service.config import ModelOptions
from outrider_cli.generate.execute import wait_for_pair
from outrider_cli.screen import Progress
from outrider_cli.services.local import HostedModel, LocalPlan, local_services
from outrider_cli.services.pair import host_draft
from tests.support.tiny_gguf import write_pair

A_GPU = """
import runpy
from outrider import threads
threads.available_cores = lambda: set(range(8))
from outrider.engine.llama_library import ll
ll.llama_supports_gpu_offload = lambda: True
runpy.run_module("outrider_cli", run_name="__main__")
"""
"""Runs a role on a machine of eight cores with a GPU, as far as options go by that."""


async def test_the_draft_takes_the_threads_that_are_quickest_and_the_target_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target, draft = write_pair(tmp_path)
    serving: dict[str, dict[str, Any]] = {}

    def note(role: str, line: str) -> None:
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("message") == "serving":
            serving[role] = event

    command = (sys.executable, "-P", "-c", A_GPU)
    plan = LocalPlan(
        target=HostedModel(target, ModelOptions()),
        draft=host_draft(draft, ModelOptions(n_gpu_layers=0), ModelOptions()),
        commands={"target": command, "draft": command},
        own_draft=False,
    )
    async with local_services(plan, note) as services:
        async with OutriderClient(await services.start()) as client:
            status = await wait_for_pair(client, Progress())
            models = {peer.role: peer.model for peer in status.peers}
        nice = {role: psutil.Process(pid).nice() for role, pid in services.pids.items()}
    on_gpu, beside = models["target"], models["draft"]
    assert on_gpu is not None and beside is not None
    assert on_gpu.thread_count == 1
    assert on_gpu.thread_choice == "1 thread: a GPU computes all layers"
    others = {6, 4, 2} - {beside.thread_count}
    assert beside.thread_choice.startswith(f"{beside.thread_count} threads: ")
    assert len(others) == 2 and all(f" with {each}" in beside.thread_choice for each in others)
    assert serving["draft"]["threads_chosen"] == beside.thread_choice
    assert nice["draft"] == nice["target"] == psutil.Process().nice()
