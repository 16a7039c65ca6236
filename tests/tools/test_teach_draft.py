"""Draft models taught from kept texts: what is computed, what is learned, and the file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from gguf import GGMLQuantizationType, GGUFReader  # noqa: E402
from torch import Tensor  # noqa: E402

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
"""Of a standard deviation: how near llama.cpp's logits are, in eight bits as its matrices are."""


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


def test_a_run_that_was_interrupted_gives_the_same_draft(
    texts: list[KeptText], folder: Path, tmp_path: Path
) -> None:
    whole = start(texts, folder, tmp_path / "whole", 6)
    whole.run(lambda _: None, lambda: False)
    for last in (2, 10**9):
        parts = start(texts, folder, tmp_path / "parts", 6)
        parts.run(lambda _: None, partial(is_at, parts, last))
    assert parts.history == whole.history
    for name, tensor in whole.student.state_dict().items():
        assert torch.equal(tensor, parts.student.state_dict()[name]), name


def is_at(training: Training, step: int) -> bool:
    return training.step >= step


def test_a_token_is_read_after_all_before_it_and_none_of_another_text(folder: Path) -> None:
    draft = untaught(target_of(folder, "phi3"))
    embeddings = torch.from_numpy(target_of(folder, "phi3").embeddings)
    random = np.random.default_rng(2)
    both = [random.integers(3, 320, n).astype(np.int32) for n in (20, 9)]

    def own_rows(tokens: Sequence[NDArray[np.int32]]) -> Tensor:
        texts = [text_of(each, 3) for each in tokens]
        batch = batch_of(texts, windows_of(texts, draft.before), lag=draft.lag)
        with torch.no_grad():
            [step] = draft.steps(batch, embeddings, 1)
        return step.own

    changed = both[0].copy()
    changed[10] += 1
    same = torch.isclose(own_rows(both), own_rows([changed, both[1]])).all(-1).tolist()
    assert same == [at < 10 for at in range(3, 20)] + [True] * 6


def test_frequent_tokens_are_learned_in_each_step_and_others_by_turns(folder: Path) -> None:
    file = target_of(folder, "phi3")
    output = torch.from_numpy(np.tile(file.output, (40, 1)))
    draft = DraftModel(file.head_shape(()), output, torch.arange(100, 140))
    seen = []
    for seed in range(2):
        ids, matrix = draft.output_rows(np.random.default_rng(seed))
        assert ids.tolist() == sorted(set(ids.tolist()))
        assert set(range(100, 140)) <= set(ids.tolist())
        assert torch.equal(matrix, output[ids].float())
        seen.append(set(ids.tolist()))
    assert len(seen[0] - seen[1]) > 500


def test_a_draft_s_file_has_its_target_s_tokens_and_matrices(folder: Path, tmp_path: Path) -> None:
    for architecture in ("gemma2", "phi3"):  # one ties its output to its embeddings
        file, path = target_of(folder, architecture), tmp_path / "draft.gguf"
        write_draft(path, untaught(file), file)
        reader = GGUFReader(path)
        for name in (name for name in file.fields if name.startswith("tokenizer.")):
            assert reader.fields[name].contents() == file.fields[name].contents()
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        for each in file.matrices:
            assert tensors[each.name].tensor_type is each.tensor_type
            assert np.array_equal(tensors[each.name].data, each.data)
        assert ("output.weight" in tensors) == (architecture == "phi3")
        assert tensors["blk.1.ffn_down.weight"].tensor_type is GGMLQuantizationType.Q8_0


def test_a_draft_begins_with_the_first_layers_of_a_target_that_is_alike(folder: Path) -> None:
    texts = [text_of(np.arange(3, 40, dtype=np.int32), 5)]
    config = TrainingConfig(steps=1, drafted=60)
    file = target_of(folder, EXACT)
    for name, parameter in new_draft(file, texts, config).blk.named_parameters():
        its = file.tensor(f"blk.{name}")
        assert its is not None and np.array_equal(parameter.detach().numpy(), its)
    other = write_llama(folder / "other.gguf", architecture="qwen2")  # whose rotation is another
    own = new_draft(TargetFile(other), texts, config).blk[0].attn_q.weight
    its = TargetFile(other).tensor("blk.0.attn_q.weight")
    assert its is not None and own.shape == its.shape
    assert not np.allclose(own.detach().numpy(), its)
