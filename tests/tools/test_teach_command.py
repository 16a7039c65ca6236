"""`outrider teach` from prompts to a head that its target drafts with; killed, it continues."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.kept_rows import HEAD_FILE, Kept, KeptSource, open_folder
from outrider_teach import prompts
from tests.support.commands import PATIENCE, environment, until
from tests.support.tiny_architectures import write_architecture
from tests.support.tiny_heads import write_llama

pytest.importorskip("torch")

ROOT = Path(prompts.__file__).parents[2]
TEACH = """
import sys
from outrider_cli import run
sys.exit(run(["teach", *sys.argv[1:]]))
"""
SMALL = (
    *("--tokens", "3000", "--answer", "48", "--minutes", "0.2", "--vocabulary", "128"),
    *("--sessions", "4", "--ctx", "256", "--threads", "1"),
)


def teach(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Run the command on the target in a folder."""
    paths = ("--model", str(folder / "target.gguf"), "--out", str(folder / "head.gguf"))
    return subprocess.Popen(
        [sys.executable, "-c", TEACH, *paths, *SMALL, *words],
        env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tools'}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(command: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = command.communicate(timeout=3 * PATIENCE)
    return command.returncode, out, err


@pytest.mark.timeout(600)  # on a busy machine; else half a minute
def test_it_writes_trains_exports_and_tries_and_goes_on_after_signals(tmp_path: Path) -> None:
    write_llama(tmp_path / "target.gguf")
    work = tmp_path / "head.gguf.work"
    command = teach(tmp_path, "--tried", "3")
    until((work / "rows" / "prompts.json").exists, 2 * PATIENCE)
    command.send_signal(signal.SIGTERM)
    code, out, err = finished(command)
    assert code == 130 and "Traceback" not in err, err
    assert "writes    3,000 tokens of answers, 4 at once" in out
    assert not (tmp_path / "head.gguf").exists()

    command = teach(tmp_path, "--tried", "3")
    until(lambda: "steps" in json.loads((work / "run.json").read_text()), 3 * PATIENCE)
    command.kill()
    finished(command)
    steps = json.loads((work / "run.json").read_text())["steps"]

    code, out, err = finished(teach(tmp_path, "--tried", "3"))
    assert code == 0, err
    assert json.loads((work / "run.json").read_text())["steps"] == steps
    assert "written   3," in out
    rows = [line.split() for line in out.splitlines()]
    assert {"chat", "code", "summary", "all"} <= {row[0] for row in rows if row}
    [tried] = [row for row in rows if row[:1] == ["all"]]
    assert tried[1] == "3" and 0.0 <= float(tried[2]) <= 1.0
    assert "--draft-model" in out.splitlines()[-1]
    assert (tmp_path / "head.gguf").read_bytes()[:4] == b"GGUF"

    code, out, err = finished(teach(tmp_path, "--seed", "2"))
    assert (code, out) == (1, "")
    assert (
        err == f"outrider: work: {work} is of a run with another seed: give it, or another folder\n"
    )


@pytest.mark.timeout(600)  # on a busy machine; else half a minute
def test_a_target_that_feeds_no_head_is_taught_a_draft_model(tmp_path: Path) -> None:
    write_llama(tmp_path / "target.gguf", architecture="qwen2")
    code, out, err = finished(teach(tmp_path, "--tried", "3"))
    assert code == 0, err
    assert "trains    a draft model of" in out
    kept = Kept(tmp_path / "head.gguf.work" / "rows")
    assert kept.source.layers == () and min(text.first for text in kept.texts) == 0
    [tried] = [row for row in map(str.split, out.splitlines()) if row[:1] == ["all"]]
    assert float(tried[2]) > 0.02  # untaught it is accepted of one token in a hundred


def test_a_kind_that_a_target_cannot_have_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    write_architecture(tmp_path / "target.gguf", "qwen2")
    code, out, err = finished(teach(tmp_path, "--kind", "head"))
    assert (code, out) == (1, "") and err.count("\n") == 1
    assert "qwen2 models do not show their layers" in err
    assert [path.name for path in tmp_path.iterdir()] == ["target.gguf"]

    size = KeptSource(model="ab", layers=(), width=64, vocabulary=320)
    open_folder(tmp_path / "rows", size)
    state = ("--from-state", str(tmp_path / "rows"))
    code, out, err = finished(teach(tmp_path, *state, "--watch"))
    assert (code, out) == (1, "") and err.count("\n") == 1
    assert "a target takes no new draft model" in err
    code, out, err = finished(teach(tmp_path, *state, "--out", str(tmp_path / "rows" / HEAD_FILE)))
    assert (code, out) == (1, "")
    assert err == "outrider: out: is missing: where to write the draft model\n"
