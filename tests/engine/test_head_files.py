"""Heads in files of their own: which are used, and that they draft as others would drive them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.engine.guesser import guesser
from outrider.engine.head_draft import HeadDraft, Pairs
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_head_files import open_head_file
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Numerics
from outrider.engine.own_draft import DraftAsk, DraftLine
from outrider.errors import InvalidConfig
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import open_own_head
from tests.engine.test_head_draft import (
    DRAFTED,
    PROMPT,
    SESSION,
    acceptance,
    ask,
    check_against_driver,
    load,
    opening,
    round_of,
    start,
    written,
)
from tests.support.tiny_architectures import write_architecture
from tests.support.tiny_gguf import Vocabulary, write_model
from tests.support.tiny_heads import (
    MTP_TARGETS,
    write_dflash,
    write_eagle3,
    write_llama,
    write_mtp,
)


def head_config(path: Path) -> LlamaConfig:
    return LlamaConfig(path=path, context=0, sequence_count=4, thread_count=1, pad_multiple=1)


Files = tuple[Path, Path]  # a target, and a head of its

KINDS: dict[str, tuple[Callable[..., Path], dict[str, Any], float, float]] = {
    "eagle3": (write_eagle3, {}, 1.0, 0.35),
    "eagle3 that borrows": (write_eagle3, {"borrows": True}, 1.0, 0.35),
    "dflash": (write_dflash, {}, 0.3, 0.15),
    "dflash that borrows": (write_dflash, {"borrows": True}, 0.3, 0.0),
    "dspark": (write_dflash, {"has_markov": True}, 1.0, 0.25),
}
"""What writes a head and how, the weight of NOW in its target, and what is accepted at least."""


@pytest.fixture(scope="module", params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    write, options, now, _ = KINDS[request.param]
    folder = tmp_path_factory.mktemp("heads")
    return write_llama(folder / "target.gguf", now=now), write(folder / "head.gguf", **options)


@pytest.fixture
def least(request: pytest.FixtureRequest) -> float:
    return KINDS[request.node.callspec.params["files"]][3]


@pytest.fixture
def model(files: Files) -> Iterator[LlamaModel]:
    model = load(files[0], mtp=False)
    yield model
    model.close()


@pytest.fixture
def draft(files: Files, model: LlamaModel) -> Iterator[HeadDraft]:
    draft = HeadDraft(model.open_head(head_config(files[1])), model)
    yield draft
    draft.close()


def test_it_drafts_what_llama_cpp_s_own_driver_would(files: Files, least: float) -> None:
    model = load(files[0], mtp=False)
    config = head_config(files[1])
    assert check_against_driver(model, lambda: model.open_head(config), repeat(DRAFTED)) > least


def test_the_rows_of_the_layers_decide_what_is_accepted(
    model: LlamaModel, draft: HeadDraft, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, rows = acceptance(model, draft), model.hidden_rows
    draft.forget(SESSION)
    monkeypatch.setattr(model, "hidden_rows", lambda s: (rows(s)[0], -rows(s)[1]))
    if least:
        assert acceptance(model, draft) < 0.75 * right


def test_it_follows_a_text_that_goes_back_and_one_with_a_gap(
    model: LlamaModel, draft: HeadDraft
) -> None:
    text = start(model)
    for _ in range(8):
        round_of(model, text, ask(draft, text))
    other = [*text[:25], 77]
    round_of(model, other, ())
    assert ask(draft, other) == ask(draft, other, session=1)
    for _ in range(100):  # written without a draft
        round_of(model, other, ())
    assert ask(draft, other) == ask(draft, other, session=2)


def test_sessions_share_its_decodes_and_draft_as_they_do_alone(
    model: LlamaModel, draft: HeadDraft
) -> None:
    """Of windows that are together more than llama.cpp gives logits for at once."""
    long = [*PROMPT, *PROMPT[::-1], *PROMPT, *PROMPT[3:]]
    texts = [start(model, [*long, 5 + i], i) for i in range(4)]
    alone = [ask(draft, text, i, i) for i, text in enumerate(texts)]
    for session in range(12):
        assert ask(draft, texts[0], session) == alone[0]  # on fewer sequences
    for session in range(12):
        draft.forget(bytes([session]) * 16)
    guess = guesser(model, opening(), 1, 0.0)
    lines = [
        DraftLine(bytes([i]) * 16, b"", DraftAsk(texts[i], DRAFTED, guess), i) for i in (2, 0, 3, 1)
    ]
    draft.draft(lines, 1.0)
    assert [[g.token_id for g in each.guesses] for each in lines] == [
        alone[i] for i in (2, 0, 3, 1)
    ]


def test_users_write_the_same_text_with_it(files: Files, least: float) -> None:
    def load_draft(model: Any) -> HeadDraft:
        return HeadDraft(model.open_head(head_config(files[1])), model)

    plain, none = written(files[0], None, Numerics.EXACT, 8)
    drafted, accepted = written(files[0], load_draft, Numerics.EXACT, 8)
    assert drafted == plain and none == 0
    assert accepted > 8 * 25 * least


def test_more_tokens_than_a_block_are_not_drafted(tmp_path: Path) -> None:
    model = load(write_llama(tmp_path / "target.gguf"), mtp=False)
    path = write_dflash(tmp_path / "head.gguf", block=3)
    draft = HeadDraft(model.open_head(head_config(path)), model)
    text, guess = start(model), guesser(model, opening(), 1, 0.0)
    line = DraftLine(SESSION, b"", DraftAsk(text, 6, guess), 0)
    draft.draft([line], 1.0)
    assert len(line.guesses) == 2 and draft.is_usable
    draft.close()
    model.close()


def test_a_head_without_matrices_needs_its_target(tmp_path: Path) -> None:
    path = write_eagle3(tmp_path / "head.gguf", borrows=True)
    with pytest.raises(InvalidConfig, match="needs its target here"):
        open_head_file(head_config(path))


# --- what a target shows ---


def write_target(path: Path, architecture: str) -> Path:
    if architecture == "qwen35moe":
        return write_mtp(path, architecture)
    return write_architecture(path, architecture)


@pytest.mark.parametrize(
    "architecture", ["llama", "mixtral", "qwen3", "qwen3moe", "gpt-oss", "qwen35", "qwen35moe"]
)
def test_keeping_rows_of_layers_changes_no_bit_of_the_logits(
    tmp_path: Path, architecture: str
) -> None:
    path, found = write_target(tmp_path / "m.gguf", architecture), []
    for keeps in (False, True):
        model = load(path, False, pad_multiple=4, pool=False)
        if keeps:
            model.keep_rows((0, 1, 2) if architecture in ("gpt-oss", "qwen35") else (0, 1))
        [rows] = model.decode([Chunk(0, 0, PROMPT, 2)])
        logits = [row.copy() for row in rows]
        for i in range(5):
            [rows] = model.decode([Chunk(0, len(PROMPT) + 3 * i, [7 + i, 8, 9], 3)])
            logits += [row.copy() for row in rows]
        found.append(np.array(logits))
        if keeps:
            _, shown = model.hidden_rows(0)
            spread = np.ptp(shown.reshape(len(PROMPT) + 15, -1, 64), axis=0)
            assert np.all(spread.max(axis=1) > 0.0)
        model.close()
    assert np.array_equal(*found)


@pytest.mark.parametrize("architecture", MTP_TARGETS)
def test_a_head_in_a_file_of_its_own_drafts_as_the_one_in_its_target(
    tmp_path: Path, architecture: str
) -> None:
    target = write_mtp(tmp_path / "target.gguf", architecture, noise=0.01)
    alone = write_mtp(tmp_path / "mtp.gguf", architecture, noise=0.01, is_alone=True)
    texts, drafts, accepted = [], [], []
    for own in (True, False):
        model = load(target, mtp=own)
        draft = HeadDraft(model.open_head(None if own else head_config(alone)), model)
        text = start(model)
        for _ in range(12):
            drafts.append(ask(draft, text))
            accepted.append(round_of(model, text, drafts[-1]))
        texts.append(text)
        draft.close()
        model.close()
    assert texts[0] == texts[1] and drafts[:12] == drafts[12:]
    assert sum(accepted[:12]) > 0.2 * DRAFTED * 12


def test_a_head_computes_without_a_target_in_its_process(tmp_path: Path) -> None:
    path = write_mtp(tmp_path / "mtp.gguf", "glm4moe", is_alone=True)
    head = open_head_file(replace(head_config(path), context=300, thread_count=0))
    row = np.ones((1, head.row_width), np.float32)
    [([logits], hidden)] = head.decode([Pairs(0, 7, [5], row)])
    assert len(logits) == 320 and hidden.shape == row.shape and head.context == 300
    head.close()


FOREIGN: list[tuple[str, Callable[[Path], Path], str]] = [
    ("a model", write_model, "no head in a file of its own"),
    (
        "a target with a head",
        lambda path: write_mtp(path, "glm4moe"),
        "no head in a file of its own",
    ),
    (
        "another architecture",
        lambda path: write_mtp(path, "qwen35", is_alone=True),
        "an MTP head of qwen35, and the target is glm4moe",
    ),
    ("a target's layers", write_eagle3, "glm4moe models do not show their layers"),
    (
        "a missing tensor",
        lambda path: write_mtp(
            path, "glm4moe", is_alone=True, edit=lambda t: t.pop("blk.2.attn_q.weight")
        ),
        "blk.2.attn_q.weight",
    ),
    (
        "no head tensor",
        lambda path: write_mtp(
            path, "glm4moe", is_alone=True, edit=lambda t: t.pop("blk.2.nextn.enorm.weight")
        ),
        "without blk.2.nextn.enorm.weight",
    ),
]


@pytest.mark.parametrize(("write", "said"), [c[1:] for c in FOREIGN], ids=[c[0] for c in FOREIGN])
def test_a_head_that_does_not_fit_is_refused_in_a_line_and_its_target_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, write: Callable[[Path], Path], said: str
) -> None:
    path = write(tmp_path / "head.gguf")
    model = load(write_mtp(tmp_path / "target.gguf", "glm4moe"), mtp=False)
    with pytest.raises(InvalidConfig, match=said) as refused:
        model.open_head(head_config(path))
    assert "\n" not in str(refused.value)
    assert open_own_head(model, ModelConfig(model=path)) is None
    assert [each.message for each in caplog.records] == ["head not used"]
    assert len(start(model)) == 21
    model.close()


def test_a_head_of_other_tokens_is_refused(tmp_path: Path) -> None:
    others = Vocabulary(changed={300: "other"})
    path = write_mtp(tmp_path / "mtp.gguf", "glm4moe", is_alone=True, vocabulary=others)
    model = load(write_mtp(tmp_path / "target.gguf", "glm4moe"), mtp=False)
    with pytest.raises(InvalidConfig, match="other tokens than the target"):
        model.open_head(head_config(path))
    model.close()
