"""Which of llama.cpp's kernels for the CPU a file is computed with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from outrider.engine import kernel_trial, llama_library
from outrider.engine.kernel_trial import (
    DRAFT_ROWS,
    TARGET_ROWS,
    TIMED_ROWS,
    Failed,
    KernelChoice,
    Tried,
    choose,
    difference,
    request_seconds,
)
from outrider.engine.kernels import plugins
from outrider.model_service import run
from outrider.model_service.config import ModelConfig
from tests.support.processes import DRAFT, TARGET

PLUGINS = ["sapphirerapids", "zen4", "haswell"]

# Milliseconds by rows of a 1.1B on an Intel with AMX, with its kernels and without: shared figures
# of 1, 4, 8 rows and twice that of 16.
Q4_0 = {"sapphirerapids": (31, 70, 95, 300), "zen4": (58, 105, 207, 640)}
Q6_K = {"sapphirerapids": (89, 111, 156, 398), "zen4": (67, 162, 326, 692)}

RNG = np.random.default_rng(1)
ALONE, TOGETHER, SINGLE = "33 rows of 1 session", "9 rows of 2 sessions", "1 row of 2 sessions"
ROWS = {
    ALONE: RNG.standard_normal((33, 64)).astype(np.float32),
    TOGETHER: RNG.standard_normal((18, 64)).astype(np.float32),
    SINGLE: RNG.standard_normal((2, 64)).astype(np.float32),
}


class Children:
    """In place of processes that decode: what they find, by plug-in, and how often they ran."""

    def __init__(self, milliseconds: Mapping[str, tuple[float, ...]]) -> None:
        self.found: dict[str, Tried | Failed] = {
            name: Tried(ROWS, dict(zip(TIMED_ROWS, times, strict=True)))
            for name, times in milliseconds.items()
        }
        self.count = 0

    def __call__(self, path: Path, plugin: str, threads: int) -> Tried | Failed:
        self.count += 1
        return self.found[plugin]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Children:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    children = Children(Q4_0)
    monkeypatch.setattr(kernel_trial, "decode_with", children)
    return children


def chosen(
    rows: tuple[int, ...] = TARGET_ROWS, files: tuple[Path, ...] = (TARGET,)
) -> KernelChoice:
    found = choose(files, rows, PLUGINS, 2, "library")
    assert found is not None
    return found


def test_kernels_with_amx_are_taken_where_they_are_right_and_quicker(children: Children) -> None:
    assert chosen().name == "sapphirerapids"
    assert "zen4 takes" in chosen().reason


def test_a_draft_that_decodes_single_rows_weighs_them_more_than_a_target(
    children: Children,
) -> None:
    # A prompt of 1,500 is read by both, so that many rows count for a draft too.
    single_rows = {"sapphirerapids": (89, 111, 156, 398), "zen4": (30, 162, 326, 500)}
    children.found = Children(single_rows).found
    assert chosen(DRAFT_ROWS).name == "zen4"
    assert chosen(TARGET_ROWS).name == "sapphirerapids"


def test_a_prompt_that_is_read_counts_as_much_as_the_tokens_that_are_written() -> None:
    seconds = dict(zip(TIMED_ROWS, (1.0, 2.0, 3.0, 16.0), strict=True))
    assert request_seconds(seconds, (1,)) == 1500 * 16.0 / 32 + 300 * 1.0
    assert request_seconds(seconds, (1, 4, 8)) == 1500 * 16.0 / 32 + 300 * 2.0


def test_kernels_that_compute_a_file_wrong_are_not_taken_for_it(children: Children) -> None:
    wrong = {kind: rows + (2.0 if "2 sessions" in kind else 0.0) for kind, rows in ROWS.items()}
    children.found["sapphirerapids"] = Tried(wrong, dict.fromkeys(TIMED_ROWS, 1.0))
    assert chosen().name == "zen4"
    assert "its logits of 9 rows of 2 sessions are wrong" in chosen().reason
    assert TARGET.name in chosen().reason


def test_nor_are_kernels_that_end_the_process(children: Children) -> None:
    children.found["sapphirerapids"] = Failed("llama.cpp ends with signal 6")
    assert chosen() == KernelChoice(
        "zen4", f"not sapphirerapids for {TARGET.name}: llama.cpp ends with signal 6"
    )


def test_a_process_that_was_killed_says_nothing_of_its_kernels(children: Children) -> None:
    found = children.found["sapphirerapids"]
    children.found["sapphirerapids"] = Failed("llama.cpp ends with signal 9", was_killed=True)
    assert chosen().name == "zen4"
    children.found["sapphirerapids"] = found
    assert chosen().name == "sapphirerapids"


def test_a_file_that_nothing_decodes_is_tried_again_the_next_time(children: Children) -> None:
    children.found["zen4"] = Failed("no memory")
    assert chosen().name == "zen4"  # whose loader says what is wrong
    assert "no memory" in chosen().reason
    assert children.count == 2


def test_every_model_of_a_process_has_to_be_right(children: Children) -> None:
    def decode(path: Path, plugin: str, threads: int) -> Tried | Failed:
        fails = path == DRAFT and plugin == "sapphirerapids"
        return Failed("it failed") if fails else children(path, plugin, threads)

    kernel_trial.decode_with = decode  # type: ignore[assignment]  # `children` puts it back
    assert chosen(files=(TARGET,)).name == "sapphirerapids"
    assert chosen(files=(TARGET, DRAFT)).name == "zen4"


def test_what_was_found_is_kept(children: Children) -> None:
    first = chosen()
    assert children.count == 2
    assert chosen() == first
    assert children.count == 2


def test_another_library_is_tried_anew(children: Children) -> None:
    chosen()
    choose((TARGET,), TARGET_ROWS, PLUGINS, 2, "another library")
    assert children.count == 4


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'["", {}]',
        b'["", {"zen4": {"1": 1.0}}]',
        b'["", {"zen4": 1}]',
        json.dumps(["", {"zen4": dict.fromkeys(map(str, TIMED_ROWS), 1.0)}]).encode(),
    ],
)
def test_a_damaged_record_is_found_out(children: Children, content: bytes, tmp_path: Path) -> None:
    expected = chosen()
    [record] = (tmp_path / "outrider" / "kernels").iterdir()
    record.write_bytes(content)
    assert chosen() == expected
    assert children.count == 4


@pytest.mark.parametrize(
    ("has_gpu", "layers", "of_draft", "tried"),
    [
        (False, -1, -1, ([TARGET, DRAFT], TARGET_ROWS)),
        (True, -1, -1, None),
        (True, -1, 0, ([DRAFT], DRAFT_ROWS)),  # in the process of a target on a GPU
        (True, 0, 0, ([TARGET, DRAFT], TARGET_ROWS)),
        (True, 0, -1, ([TARGET], TARGET_ROWS)),
    ],
)
def test_kernels_are_chosen_for_what_the_cpu_computes(
    monkeypatch: pytest.MonkeyPatch,
    has_gpu: bool,
    layers: int,
    of_draft: int,
    tried: tuple[list[Path], tuple[int, ...]] | None,
) -> None:
    asked = []

    def choose(files: list[Path], rows: tuple[int, ...], *_: object) -> None:
        asked.append((files, rows))

    monkeypatch.setattr(run, "choose", choose)
    monkeypatch.setattr(llama_library, "offloads", lambda: has_gpu)
    target = ModelConfig(model=TARGET, n_gpu_layers=layers)
    draft = ModelConfig(model=DRAFT, n_gpu_layers=of_draft, is_draft=True)
    run.choose_kernels(target, [draft])
    assert asked == ([tried] if tried else [])


def test_a_draft_kept_off_the_gpu_has_its_kernels_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(run, "choose", lambda files, rows, *_: asked.append((files, rows)))
    monkeypatch.setattr(llama_library, "offloads", lambda: True)
    run.choose_kernels(ModelConfig(model=DRAFT, n_gpu_layers=0, is_draft=True))
    assert asked == [([DRAFT], DRAFT_ROWS)]


@pytest.mark.parametrize("names", [[], ["zen4", "haswell"], ["sapphirerapids"]])
def test_without_a_choice_nothing_is_tried(children: Children, names: list[str]) -> None:
    assert choose((TARGET,), TARGET_ROWS, names, 2, "library") is None
    assert children.count == 0


def test_logits_may_differ_as_much_as_kernels_of_other_shapes_do() -> None:
    near = {kind: rows + 0.01 * RNG.standard_normal(rows.shape) for kind, rows in ROWS.items()}
    assert difference(ROWS, near) == ""


def test_one_row_of_many_may_differ_where_an_expert_was_nearly_another() -> None:
    flipped = ROWS[TOGETHER].copy()
    flipped[:3] += 1.0
    assert difference(ROWS, {**ROWS, TOGETHER: flipped}) == ""


def test_several_sessions_may_differ_by_little_more_than_one() -> None:
    def off_by(alone: float, together: float, single: float = 0.0) -> str:
        sizes = {ALONE: alone, TOGETHER: together, SINGLE: single}
        return difference(ROWS, {kind: rows + sizes[kind] for kind, rows in ROWS.items()})

    assert off_by(0.01, 0.02) == ""
    assert "9 rows of 2 sessions" in off_by(0.01, 0.05)
    assert "9 rows of 2 sessions" in off_by(0.0, 0.01)
    assert off_by(0.01, 0.02, single=0.05) == ""  # too few rows to tell
    assert "33 rows of 1 session" in off_by(0.5, 0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1.0])
def test_logits_that_are_no_numbers_or_others_are_wrong(value: float) -> None:
    for kind, rows in ROWS.items():
        wrong = rows.copy()
        wrong[:, 3:] = value
        assert kind in difference(ROWS, {**ROWS, kind: wrong})
    assert "no logits" in difference(ROWS, {})


def test_what_is_no_plug_in_for_this_processor_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "libggml-cpu-other.so").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "libggml-cpu.so").write_bytes(b"")
    assert plugins(tmp_path) == {}
