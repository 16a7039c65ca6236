"""`outrider teach`: what is refused before anything is begun, and what is said that it takes."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import InvalidConfig
from outrider_cli.services.pair import BUNDLED_TARGET
from outrider_teach.needs import Needs, TargetSizes, read_bytes, show_bytes
from outrider_teach.work_folder import WorkFolder
from outrider_teach.work_progress import duration
from tests.support.commands import Result, run_here

SMOL = Needs(
    target=TargetSizes(
        name="SmolLM2",
        layers=30,
        width=576,
        vocabulary=49152,
        file_bytes=98_362_432,
        cell_bytes=23040,
    ),
    row_bytes=3652,
    tokens=400_000,
    most_bytes=8_000_000_000,
    sessions=16,
    context=1280,
    student="a head",
    numbers=10_000_000,
    matrices=1,
    drafted=8192,
    is_tried=True,
)


def refused(*words: str) -> str:
    """Return the one line that refuses a command."""
    told: Result = run_here("teach", *words)
    assert told.code == 1 and told.out == "" and told.err.count("\n") == 1
    return told.err.removeprefix("outrider: ").strip()


def on(model: Path, out: Path, *words: str) -> tuple[str, ...]:
    return ("--model", str(model), "--out", str(out), *words)


def test_without_torch_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "torch" else real(name, *more),
    )
    said = refused(*on(BUNDLED_TARGET, tmp_path / "head.gguf"))
    python = shlex.quote(sys.executable)  # another pip than its own does not know this package
    assert said == f"teach: needs torch: {python} -m pip install 'outrider[teach]'"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tokens", "0"), "tokens: must be in [1, 10000000000], not 0"),
        (("--minutes", "0"), "minutes: must be in [0.01, 1000000.0], not 0.0"),
        (("--disk", "much"), "disk: must be a size such as 8GB, not 'much'"),
        (("--texts", "none.txt"), "texts: cannot read none.txt: No such file or directory"),
    ],
)
def test_an_option_that_cannot_be_is_refused(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    assert refused(*on(BUNDLED_TARGET, tmp_path / "head.gguf", *words)) == said


def test_a_model_that_is_missing_or_a_folder_without_rows_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    head = tmp_path / "head.gguf"
    assert refused(*on(tmp_path / "x.gguf", head)) == f"model: there is no file {tmp_path}/x.gguf"
    said = refused(*on(BUNDLED_TARGET, head, "--from-state", str(tmp_path)))
    assert said.startswith(f"from-state: {tmp_path} holds no rows of a target")
    said = refused(*on(BUNDLED_TARGET, tmp_path / "no" / "head.gguf"))
    assert said == f"out: there is no folder {tmp_path}/no"


@pytest.mark.parametrize(("what", "field"), [("disk", "work"), ("memory", "model")])
def test_too_little_room_is_refused_with_what_it_needs(
    what: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    import shutil

    import outrider.memory

    usage = shutil.disk_usage(tmp_path)
    if what == "disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    else:
        monkeypatch.setattr(outrider.memory, "available_memory", lambda: (1000, "machine"))
    said = refused(*on(BUNDLED_TARGET, tmp_path / "head.gguf"))
    assert said.startswith(f"{field}: needs ") and f"of {what}, of which 1.0 kB are" in said
    assert not list(tmp_path.iterdir())


def test_what_it_takes_follows_from_the_sizes() -> None:
    rows = SMOL.row_disk
    assert 400_000 * 3652 < rows < 1.5 * 400_000 * 3652
    assert replace(SMOL, most_bytes=10**9).row_disk == 10**9
    assert SMOL.disk > rows and SMOL.memory >= SMOL.training_memory
    cache = 16 * 1280 * 23040
    more = replace(SMOL, sessions=32)
    assert more.writing_memory - SMOL.writing_memory == cache
    assert SMOL.memory == max(SMOL.writing_memory, SMOL.training_memory, SMOL.trying_memory)
    larger = replace(SMOL, tokens=0, target=replace(SMOL.target, file_bytes=5 * 10**9))
    assert larger.memory > 10**10  # it is tried beside itself
    assert replace(larger, is_tried=False).memory == larger.training_memory
    lines = SMOL.lines("work", 150, "the CPU")
    assert "30 layers of 576, 49,152 tokens" in lines[0]
    assert "400,000 tokens of answers, 16 at once: 2.2 GB in work" in lines[1]
    assert lines[3].endswith("drafts 8,192 tokens, on the CPU, for 2 h 30 min at most")


def test_sizes_and_times_are_read_and_shown_in_units() -> None:
    assert [read_bytes(text) for text in ("8GB", "1.5 gb", "300M", "12")] == [
        8_000_000_000,
        1_500_000_000,
        300_000_000,
        12,
    ]
    assert [read_bytes(text) for text in ("", "GB", "-1GB", "nan", "1e99")] == [None] * 5
    assert [show_bytes(n) for n in (12, 3652, 98_362_432, 2.04e9)] == [
        "12 bytes",
        "3.7 kB",
        "98 MB",
        "2.0 GB",
    ]
    assert [duration(s) for s in (12, 89.6, 3000, 7500)] == ["12 s", "90 s", "50 min", "2 h 05 min"]


def test_a_folder_goes_on_with_the_same_settings_alone(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"seed": 1, "texts": ("a", "b")}
    folder = WorkFolder(tmp_path / "work", settings)
    assert folder.steps_over(5000) is None and folder.training.is_dir()
    folder.begin_training(700, 5000)
    assert WorkFolder(tmp_path / "work", settings).steps_over(5000) == 700
    with pytest.raises(InvalidConfig, match="is of a run with another seed: give it"):
        WorkFolder(tmp_path / "work", {**settings, "seed": 2})
    assert WorkFolder(tmp_path / "work", settings).steps_over(None) == 700


def test_with_more_to_learn_from_the_training_begins_anew(tmp_path: Path) -> None:
    folder = WorkFolder(tmp_path, {"seed": 1})
    folder.begin_training(700, 5000)
    (folder.training / "checkpoint.pt").write_text("x")
    assert folder.steps_over(5000) == 700 and list(folder.training.iterdir())
    assert folder.steps_over(9000) is None and not list(folder.training.iterdir())
    assert WorkFolder(tmp_path, {"seed": 1}).steps_over(5000) is None


def test_a_folder_of_something_else_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidConfig, match="has files of something else"):
        WorkFolder(tmp_path, {"seed": 1})
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        WorkFolder(tmp_path, {"seed": 1})
