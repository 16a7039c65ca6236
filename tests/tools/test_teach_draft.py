"""Draft models taught from kept texts: what is computed, what is learned, and the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from gguf import GGMLQuantizationType  # noqa: E402

from outrider.engine.model import Chunk  # noqa: E402
from outrider.kept_rows import KeptText  # noqa: E402
from outrider_teach.batches import batch_of, windows_of  # noqa: E402
from outrider_teach.draft import DraftModel, new_draft  # noqa: E402
from outrider_teach.export import write_draft  # noqa: E402
from outrider_teach.judging import judge  # noqa: E402
from outrider_teach.target_weights import TargetFile  # noqa: E402
from outrider_teach.training import Training, TrainingConfig  # noqa: E402
from tests.engine.test_head_draft import load  # noqa: E402
from tests.support.kept_texts import TOP, write_texts  # noqa: E402
from tests.support.tiny_architectures import write_architecture  # noqa: E402
from tests.support.tiny_gguf import write_model  # noqa: E402
from tests.support.tiny_heads import write_llama  # noqa: E402

EXACT = "llama in f32"
NEAR = {EXACT: 0.01, "gemma2": 0.04, "phi3": 0.04}
"""Of a standard deviation: how near llama.cpp's logits are, in eight bits where its target's are."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("targets")


def target_of(folder: Path, architecture: str) -> TargetFile:
    path = folder / f"{architecture}.gguf"
    if architecture == EXACT:
        return TargetFile(write_model(path, weight_type=GGMLQuantizationType.F32))
    return TargetFile(path if path.exists() else write_architecture(path, architecture))


def text_of(tokens: NDArray[np.int32], unknown: int) -> KeptText:
    """Return a text whose rows from `unknown` on have distributions of some kind."""
    ids = np.full((len(tokens), TOP), 5, np.int32)
    ids[:unknown] = -1
    none = np.empty((len(tokens), 0), np.float16)
    return KeptText(0, tokens, none, ids, ids.astype(np.float16))


def untaught(target: TargetFile) -> DraftModel:
    texts = [text_of(np.arange(3, 40, dtype=np.int32), 5)]
    draft = new_draft(target, texts, TrainingConfig(steps=1, drafted=60))
    for name, parameter in draft.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
    return draft


@pytest.mark.parametrize("architecture", NEAR)
def test_llama_cpp_computes_what_was_trained(
    architecture: str, folder: Path, tmp_path: Path
) -> None:
    file = target_of(folder, architecture)
    draft, path = untaught(file), tmp_path / "draft.gguf"
    write_draft(path, draft, file, GGMLQuantizationType.F32)
    random = np.random.default_rng(1)
    texts = [text_of(random.integers(3, 320, n).astype(np.int32), 5) for n in (40, 12)]
    batch = batch_of(texts, windows_of(texts, draft.before), lag=draft.lag)
    assert batch.tokens.tolist() == [*texts[0].tokens, *texts[1].tokens]
    with torch.no_grad():
        [step] = draft.steps(batch, torch.from_numpy(file.embeddings), 5)
        computed = draft.logits(step.own).numpy()
    assert len(computed) == 35 + 7
    model = load(path, mtp=False, sequences=1)
    expected: list[NDArray[np.float32]] = []
    for text in texts:
        count = len(text.tokens) - 5
        [rows] = model.decode([Chunk(0, 0, text.tokens.tolist(), count)])
        expected += [np.array(row) for row in rows]
        model.truncate(0, 0)
    model.close()
    assert np.abs(np.stack(expected) - computed).max() < NEAR[architecture] * computed.std()


@pytest.fixture(scope="module")
def texts(folder: Path) -> list[KeptText]:
    write_llama(folder / "target.gguf", architecture="qwen2")
    return write_texts(folder / "target.gguf", ())


def start(texts: Sequence[KeptText], folder: Path, run: Path, steps: int) -> Training:
    """Return a run on most of the texts, judged by the others."""
    file = TargetFile(folder / "target.gguf")
    config = TrainingConfig(steps=steps, tokens=512, drafted=200, judged_every=steps // 2)
    run.mkdir(exist_ok=True)
    embeddings = torch.from_numpy(file.embeddings)
    draft = new_draft(file, texts[20:], config)
    return Training(draft, texts[20:], texts[:20], embeddings, config, run)


def test_a_taught_draft_is_accepted_by_its_target(
    texts: list[KeptText], folder: Path, tmp_path: Path
) -> None:
    training = start(texts, folder, tmp_path / "run", 80)
    file = TargetFile(folder / "target.gguf")
    embeddings = torch.from_numpy(file.embeddings)
    before = judge(training.student, texts[:20], embeddings)
    training.run(lambda _: None, lambda: False)
    best = training.best
    print(before, best)
    assert best is not None
    assert best.greedy.accepted > before.greedy.accepted + 0.1
    assert best.sampled.accepted > before.sampled.accepted + 0.1
    assert torch.equal(training.student.output, torch.from_numpy(file.output))
