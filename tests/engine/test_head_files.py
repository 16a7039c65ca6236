"""Heads in files of their own: which are used, and that they draft as others would drive them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider.engine.head_draft import HeadDraft, Pairs
from outrider.engine.llama_heads import open_head_file
from outrider.engine.llama_loading import LlamaConfig
from outrider.errors import InvalidConfig
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import open_own_head
from tests.engine.test_head_draft import DRAFTED, ask, load, round_of, start
from tests.support.tiny_gguf import Vocabulary, write_model
from tests.support.tiny_heads import MTP_TARGETS, write_eagle3, write_mtp


def head_config(path: Path) -> LlamaConfig:
    return LlamaConfig(path=path, context=0, sequence_count=4, thread_count=1, pad_multiple=1)


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
    row = np.ones((1, head.width), np.float32)
    [(logits, hidden)] = head.decode([Pairs(0, 7, [5], row)])
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
