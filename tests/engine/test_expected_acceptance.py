"""What `doctor` expects of a pair before anything is deployed, beside what it then does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from model_making.reordered import shortened
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.translating import needed_translation
from outrider_cli.doctor.expected import PairForecast, expect

MODELS = Path(__file__).parents[2] / "models"


def load(path: Path) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(path=path, context=512, sequence_count=1, thread_count=1, pad_multiple=1)
    )


@pytest.fixture(scope="module")
def target() -> Iterator[LlamaModel]:
    model = load(MODELS / "stdlib-target-q8_0.gguf")
    yield model
    model.close()


def expected_of(target: LlamaModel, path: Path) -> PairForecast:
    draft = load(path)
    expected = expect(target, draft, needed_translation(draft, target))
    draft.close()
    return expected


def test_a_model_is_always_right_for_itself(target: LlamaModel) -> None:
    assert expected_of(target, MODELS / "stdlib-target-q8_0.gguf") == PairForecast(1.0)


def test_less_is_expected_of_a_draft_that_shares_less(target: LlamaModel, tmp_path: Path) -> None:
    native = expected_of(target, MODELS / "stdlib-draft-q8_0.gguf")
    few = expected_of(target, shortened(tmp_path / "few.gguf", 512))
    many = expected_of(target, shortened(tmp_path / "many.gguf", 4000))
    assert native.level == "native" and native.mass == 1.0
    assert many.level == "token" and many.mass >= 0.9
    assert few.level == "string" and few.mass < 0.9
    # Of the drafts of 2,048 and fewer tokens, .47 of those of 512 were accepted, .78 of its own.
    assert 0.5 < native.acceptance < 0.9
    assert 0.05 < few.acceptance < many.acceptance <= native.acceptance
