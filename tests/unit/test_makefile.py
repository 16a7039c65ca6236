"""The targets of the Makefile that are for playing with models, by the commands they would run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAY = ("run", "same-model", "draft-comparison", "temperature-demo", "creative", "technical")


def printed(*words: str) -> str:
    """Return what `make` would run, without running it."""
    names = ("MAKEFLAGS", "MODEL", "DRAFT", "PROMPT", "N_DRAFT", "N_PREDICT")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    command = ("make", "--dry-run", "--no-print-directory", *words)
    return subprocess.run(
        command, cwd=ROOT, env=kept, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("target", ("build", "test", "demo", *PLAY))
def test_a_target_is_listed_with_what_it_does(target: str) -> None:
    assert re.search(rf"^{target}: .*## \w", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_demo_is_the_command_of_that_name() -> None:
    assert printed("demo").splitlines()[-1].split() == [".venv/bin/outrider", "demo"]


def test_run_pins_nothing_that_is_not_given() -> None:
    command = printed("run").splitlines()[-1].split()
    assert command == [".venv/bin/outrider", "generate"]


@pytest.mark.parametrize("target", PLAY)
def test_models_prompt_and_lengths_of_ones_own_are_used(target: str) -> None:
    given = ("MODEL=large.gguf", "DRAFT=small.gguf", "PROMPT=Once", "N_DRAFT=7", "N_PREDICT=9")
    commands = printed(target, *given)
    assert "--model 'large.gguf'" in commands and "--n-predict 9" in commands
    assert "--prompt" in commands and "PROMPT" in commands
    draft = "large.gguf" if target == "same-model" else "small.gguf"
    assert f"--draft-model '{draft}'" in commands
    if target != "draft-comparison":
        assert "--n-draft 7" in commands
