"""Heads that are damaged: their targets write on without them, or are refused in a line.

Each in a process of its own, as llama.cpp ends the one that it asserts in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outrider import logs
from outrider.engine.own_draft import DraftAsk, DraftLine
from outrider.errors import InvalidConfig
from outrider.model_service.run import open_own_head
from tests.engine.load_mutants import best, use_apart
from tests.engine.test_gguf_file import set_key
from tests.engine.test_head_draft import load, round_of, start
from tests.support.tiny_heads import MTP_BLOCKS, MTP_TARGETS, Tensors, write_mtp

Edit = Callable[[Tensors], object]


def written(path: Path, mtp: bool) -> tuple[list[int], int, list[str]]:
    """Return what a target writes greedily, how much of it was drafted, and what was logged."""
    said = list[str]()
    logs.warning = lambda *words, **values: said.append(f"{words[1]}: {values}")
    model = load(path, mtp)
    draft = open_own_head(model) if mtp else None
    text, accepted = start(model), 0
    while len(text) < 80:
        line = DraftLine(bytes(16), b"", DraftAsk(text, 3, best), 0)
        if draft is not None:
            draft.draft([line], 1.0)
        accepted += round_of(model, text, [each.token_id for each in line.guesses])
    if draft is not None:
        draft.close()
    model.close()
    return text[:80], accepted, said


def serve(path: Path) -> str:
    """Write with the head of a file and without; return what came of it."""
    try:
        plain, _, _ = written(path, False)
        text, accepted, said = written(path, True)
    except InvalidConfig as error:
        return f"refused: {error}"
    assert text == plain, "another text"
    return f"wrote, {accepted and 'some'} accepted {' '.join(said)}"


def without(name: str) -> Edit:
    return lambda tensors: tensors.pop(f"blk.2.{name}")


def shaped(name: str, *shape: int) -> Edit:
    return lambda tensors: tensors.update({f"blk.2.{name}": np.ones(shape, np.float32)})


def filled(name: str, value: float, *index: int) -> Edit:
    def edit(tensors: Tensors) -> None:
        tensors[f"blk.2.{name}"][index] = value

    return edit


REFUSED: dict[str, tuple[Edit, str]] = {
    "a missing norm": (without("nextn.enorm.weight"), "'blk.2.nextn.enorm.weight' not found"),
    "a missing matrix": (without("attn_output.weight"), "'blk.2.attn_output.weight' not found"),
    "another width": (shaped("nextn.eh_proj.weight", 64, 96), "eh_proj.weight' has wrong shape"),
    "another norm": (shaped("nextn.hnorm.weight", 32), "hnorm.weight' has wrong shape"),
    "an embedding of another vocabulary": (
        shaped("nextn.embed_tokens.weight", 352, 64),
        "embed_tokens.weight' has wrong shape",
    ),
    "an output of another vocabulary": (
        shaped("nextn.shared_head_head.weight", 352, 64),
        "shared_head_head.weight' has wrong shape",
    ),
    "a block of another kind": (
        lambda t: t.update({"blk.2.ssm_a": np.ones(4, np.float32)}),
        "wrong number of tensors",
    ),
}
"""As llama.cpp checks the tensors of a head that it is not asked to load, too."""

WITHOUT: dict[str, tuple[Edit, str]] = {
    "no projection": (
        without("nextn.eh_proj.weight"),
        "m.gguf has an MTP head without blk.2.nextn.eh_proj.weight",
    ),
    "rows that are no numbers": (filled("nextn.eh_proj.weight", np.nan, 3), "computes no numbers"),
    "a matrix that is none": (filled("attn_output.weight", np.nan), "computes no numbers"),
    "numbers that are too large": (filled("nextn.eh_proj.weight", 1e38), "computes no numbers"),
    "a number without an end": (filled("nextn.hnorm.weight", np.inf, 3), "own draft off"),
}

NOISE: dict[str, Edit] = {
    "zeros": filled("nextn.eh_proj.weight", 0.0),
    "a norm of zeros": filled("nextn.shared_head_norm.weight", 0.0),
    "another model's": lambda tensors: tensors.update(
        (name, np.roll(tensor, 7, axis=-1))
        for name, tensor in list(tensors.items())
        if name.startswith("blk.2.") and tensor.ndim > 1
    ),
}


@pytest.mark.parametrize(("edit", "said"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("architecture", ["glm4moe", "mimo2"])
def test_a_file_whose_head_llama_cpp_does_not_load_is_refused_in_a_line(
    tmp_path: Path, architecture: str, edit: Edit, said: str
) -> None:
    path = write_mtp(tmp_path / "m.gguf", architecture, edit=edit)
    outcome = use_apart(path, serve)
    assert outcome.startswith("refused: model: ") and "\n" not in outcome
    assert said in outcome and str(path) in outcome


@pytest.mark.filterwarnings("ignore:invalid value|overflow encountered:RuntimeWarning")
@pytest.mark.parametrize(("edit", "said"), WITHOUT.values(), ids=WITHOUT)
@pytest.mark.parametrize("architecture", ["glm4moe", "mimo2"])
def test_a_target_whose_head_cannot_draft_writes_on_and_a_line_says_so(
    tmp_path: Path, architecture: str, edit: Edit, said: str
) -> None:
    outcome = use_apart(write_mtp(tmp_path / "m.gguf", architecture, edit=edit), serve)
    assert outcome.startswith("wrote, 0 accepted ") and said in outcome
    assert "m.gguf" in outcome or "head in m " in outcome


@pytest.mark.parametrize("edit", NOISE.values(), ids=NOISE)
@pytest.mark.parametrize("architecture", ["glm4moe", "mimo2"])
def test_a_head_that_guesses_at_random_changes_no_text(
    tmp_path: Path, architecture: str, edit: Edit
) -> None:
    outcome = use_apart(write_mtp(tmp_path / "m.gguf", architecture, edit=edit), serve)
    assert outcome.startswith("wrote, ")


@pytest.mark.parametrize("architecture", MTP_TARGETS)
def test_no_missing_tensor_of_a_head_ends_the_process(tmp_path: Path, architecture: str) -> None:
    tensors: Tensors = {}
    write_mtp(tmp_path / "m.gguf", architecture, edit=tensors.update)
    for name in [name for name in tensors if name.startswith("blk.2.")]:
        edit = without(name.removeprefix("blk.2."))
        outcome = use_apart(write_mtp(tmp_path / "m.gguf", architecture, edit=edit), serve)
        assert outcome.startswith(("refused: model: ", "wrote, ")), f"{name}: {outcome}"
        assert "\n" not in outcome


@pytest.mark.parametrize("architecture", MTP_BLOCKS)
def test_a_missing_block_ends_no_process(tmp_path: Path, architecture: str) -> None:
    def edit(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("blk.3.")]:
            del tensors[name]

    path = write_mtp(tmp_path / "m.gguf", architecture, blocks=2, edit=edit)
    assert use_apart(path, serve).startswith("refused: model: ")


KEYS: list[tuple[str, object, str]] = [
    ("uint32", 0, "refused: model: llama.cpp cannot load"),
    ("uint32", 2, "wrote, 0 accepted"),  # a model of one layer, whose head is no head
    ("uint32", 3, "nextn_predict_layers is 3"),
    ("uint32", 255, "nextn_predict_layers is 255"),
    ("int32", -1, "nextn_predict_layers is -1"),
    ("int32", 1, "wrong type i32"),
    ("uint64", 1, "wrong type u64"),
    ("string", "1", "nextn_predict_layers is b'1'"),
    ("float32", 1.0, "nextn_predict_layers is 1.0"),
    ("bool", True, "wrong type bool"),
    ("array", [1], "wrong type arr"),
]


@pytest.mark.parametrize(("kind", "value", "said"), KEYS, ids=[f"{k[0]} {k[1]}" for k in KEYS])
@pytest.mark.parametrize("architecture", ["glm4moe", "step35"])
def test_a_wrong_number_of_heads_is_told(
    tmp_path: Path, architecture: str, kind: str, value: object, said: str
) -> None:
    edit = set_key(f"{architecture}.nextn_predict_layers", kind, value)
    path = write_mtp(tmp_path / "m.gguf", architecture, edit_keys=edit)
    outcome = use_apart(path, serve)
    assert said in outcome and "\n" not in outcome
    assert outcome.startswith("wrote, ") or str(path) in outcome


def test_a_truncated_file_is_told(tmp_path: Path) -> None:
    path = write_mtp(tmp_path / "m.gguf", "qwen35")
    path.write_bytes(path.read_bytes()[:-1000])
    assert "m.gguf is truncated: " in use_apart(path, serve)


@pytest.mark.parametrize(("key", "count"), [("key_length", 32), ("head_count_kv", 2)])
def test_compressed_keys_that_do_not_add_up_are_told(tmp_path: Path, key: str, count: int) -> None:
    edit = set_key(f"deepseek2.attention.{key}", "uint32", count)
    path = write_mtp(tmp_path / "m.gguf", "deepseek2", edit_keys=edit)
    assert f"{path} is damaged: its " in use_apart(path, serve)


def test_sections_of_a_rotation_that_are_more_than_a_head_are_told(tmp_path: Path) -> None:
    edit = set_key("qwen35.rope.dimension_sections", "array", [16, 16, 16, 16])
    path = write_mtp(tmp_path / "m.gguf", "qwen35", edit_keys=edit)
    assert f"{path} is damaged: its heads of 32 keys" in use_apart(path, serve)
