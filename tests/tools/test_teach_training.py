"""Heads taught from kept texts: what is computed, what is learned, and the file that comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from gguf import GGMLQuantizationType, GGUFReader  # noqa: E402
from torch import Tensor  # noqa: E402

from outrider.engine.head_draft import Pairs  # noqa: E402
from outrider.engine.llama_heads import LlamaHead  # noqa: E402
from outrider.engine.llama_loading import LlamaConfig  # noqa: E402
from outrider.engine.model import Chunk  # noqa: E402
from outrider.errors import InvalidConfig, StateUnavailable  # noqa: E402
from outrider_teach.batches import (  # noqa: E402
    LONGEST,
    OVERLAP,
    batch_of,
    counted,
    first_known,
    is_held_out,
    most_frequent,
    packed,
    windows_of,
)
from outrider_teach.chain import steps_of  # noqa: E402
from outrider_teach.export import read_head, write_head  # noqa: E402
from outrider_teach.head import EagleHead, HeadShape, attended  # noqa: E402
from outrider_teach.judging import Judgement, chosen_by_both, curve, draw_curve, judge  # noqa: E402
from outrider_teach.loss import distance, wanted  # noqa: E402
from outrider_teach.target_weights import TargetFile  # noqa: E402
from outrider_teach.training import Progress, Training, TrainingConfig, new_head  # noqa: E402
from tests.engine.test_head_draft import load  # noqa: E402
from tests.support.tiny_architectures import write_architecture  # noqa: E402
from tests.support.tiny_gguf import Vocabulary  # noqa: E402
from tests.support.tiny_heads import write_llama  # noqa: E402

LAYERS = (0, 1, 3)
TOP = 8
@dataclass(frozen=True)
class Text:
    """As `outrider.kept_rows.KeptText`."""

    tokens: NDArray[np.int32]
    rows: NDArray[np.float16]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float16]
    first: int = 0
    shard: str = "0"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("target") / "target.gguf")


@pytest.fixture(scope="module")
def texts(target: Path) -> list[Text]:
    """What the target writes after prompts of 12 random tokens: by two greedy, by one sampled."""
    model, random = load(target, mtp=False, sequences=1), np.random.default_rng(7)
    model.keep_rows(LAYERS)
    found = []
    for number in range(60):
        prompt = random.integers(3, 320, 12).tolist()
        found.append(written(model, prompt, 52, 0.8 if number % 3 == 2 else 0.0, random))
        model.truncate(0, 0)
    model.close()
    return found


def written(model, prompt: list[int], count: int, temperature: float, random) -> Text:
    """Return a text as a target keeps it: the rows, and what it would have written after each."""
    tokens, tops, logs = list(prompt), [], []
    [[row]] = model.decode([Chunk(0, 0, prompt, 1)])
    for _ in range(count):
        chances = np.exp(row - row.max())
        logprobs = np.log(chances / chances.sum())
        top = np.argsort(-logprobs)[:TOP]
        tops.append(top)
        logs.append(logprobs[top])
        weights = chances ** (1 / temperature) if temperature else None
        drawn = (
            random.choice(len(row), p=weights / weights.sum()) if temperature else int(top[0])
        )
        [[row]] = model.decode([Chunk(0, len(tokens), [int(drawn)], 1)])
        tokens.append(int(drawn))
    first, rows = model.hidden_rows(0)
    assert first == 0
    unknown = len(tokens) - len(tops) - 1  # the last token's row has no distribution either
    ids = np.concatenate([np.full((unknown, TOP), -1), tops, np.full((1, TOP), -1)])
    log_rows = np.concatenate([np.zeros((unknown, TOP)), logs, np.zeros((1, TOP))])
    return Text(
        np.array(tokens, np.int32),
        np.array(rows[: len(tokens)], np.float16),
        ids.astype(np.int32),
        log_rows.astype(np.float16),
    )


def small_head(drafted: int = 40, **changed) -> EagleHead:
    shape = HeadShape(
        width=64,
        heads=4,
        kv_heads=2,
        head_size=32,
        feed_forward=96,
        rope_base=10000.0,
        epsilon=1e-5,
        layers=LAYERS,
    )
    torch.manual_seed(3)
    ids = torch.randperm(320)[:drafted].sort().values
    head = EagleHead(replace(shape, **changed), ids)
    for name, parameter in head.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
    head.row_scale.uniform_(0.5, 2.0)
    return head


# --- what is computed ---


def chained_in_llama(
    path: Path, target: Path, text: Sequence[int], start: int, count: int
) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    """Return the target's rows of a text, and the head's logits of a draft along it.

    The draft starts with the pair at `start`, and reads the text's own tokens.
    """
    model = load(target, mtp=False, sequences=1)
    head = model.open_head(
        LlamaConfig(path=path, context=0, sequence_count=1, thread_count=1, pad_multiple=1)
    )
    assert isinstance(head, LlamaHead)
    model.keep_rows(LAYERS)
    model.decode([Chunk(0, 0, text, 0)])
    rows = np.array(model.hidden_rows(0)[1])
    [([logits], hidden)] = head.decode([Pairs(0, 1, text[1 : start + 1], rows[:start])])
    found = [np.array(logits)]
    for at in range(start + 1, start + count):
        pairs = Pairs(0, at, [text[at]], np.array(hidden), is_chained=True)
        [([logits], hidden)] = head.decode([pairs])
        found.append(np.array(logits))
    head.close()
    model.close()
    return rows, found


@pytest.mark.parametrize("changed", [{}, {"norm_before_residual": True}, {"kv_heads": 4}])
def test_llama_cpp_computes_what_was_trained(changed, target: Path, tmp_path: Path) -> None:
    head, file = small_head(**changed), TargetFile(target)
    path = tmp_path / "head.gguf"
    write_head(path, head, file, GGMLQuantizationType.F32)
    text = np.random.default_rng(1).integers(3, 320, 40).tolist()
    rows, expected = chained_in_llama(path, target, text, start=30, count=4)
    known = np.full((40, TOP), 5, np.int32)
    kept = Text(np.array(text, np.int32), rows.astype(np.float16), known, known.astype(np.float16))
    embeddings = torch.from_numpy(file.embeddings)
    with torch.no_grad():
        steps = list(steps_of(head, batch_of([kept], windows_of([kept])), embeddings, 4))
        computed = [head.logits(step.own)[29].numpy() for step in steps]
    for row, logits in zip(expected, computed, strict=True):
        assert logits.std() > 0.5
        assert np.abs(row[head.drafted] - logits).max() < 0.02
        rest = np.setdiff1d(np.arange(320), head.drafted)
        assert (row[rest] == -np.inf).all()


def test_a_draft_sees_the_target_s_rows_up_to_its_start_and_its_own_after() -> None:
    head = small_head()
    random = np.random.default_rng(2)
    kept, other = random_text(random, 20, unknown=6), random_text(random, 9, unknown=3)
    embeddings = torch.from_numpy(random.standard_normal((320, 64)).astype(np.float32))

    def own_rows(changed: NDArray[np.float16]) -> list[Tensor]:
        texts = [replace(kept, rows=changed), other]
        batch = batch_of(texts, windows_of(texts))
        with torch.no_grad():
            return [step.own for step in steps_of(head, batch, embeddings, 3)]

    before = own_rows(kept.rows)
    changed = kept.rows.copy()
    changed[10] += 1  # read by the pair at 11
    after = own_rows(changed)
    for lag, (old, new) in enumerate(zip(before, after, strict=True)):
        starts = range(6, 20 - lag)  # of the drafts in the first text, by their first pair
        same = (old == new).all(-1).tolist()
        assert same == [start < 11 for start in starts] + [True] * (6 - lag)


def random_text(random, count: int, unknown: int) -> Text:
    ids = np.stack([random.permutation(320)[:TOP] for _ in range(count)]).astype(np.int32)
    ids[:unknown, 0] = -1
    logs = -np.sort(random.random((count, TOP)) * 4).astype(np.float16)
    rows = random.standard_normal((count, 192)).astype(np.float16)
    return Text(random.integers(0, 320, count).astype(np.int32), rows, ids, logs)


# --- what is learned ---


def start(texts: Sequence[Text], target: Path, folder: Path, **changed) -> Training:
    """Return a run on three quarters of the texts, judged by the others."""
    config = {"steps": 120, "tokens": 512, "drafted": 200, "judged_every": 40, **changed}
    file = TargetFile(target)
    plan = TrainingConfig(**config)
    head = new_head(file, LAYERS, texts[15:], plan)
    folder.mkdir(exist_ok=True)
    embeddings = torch.from_numpy(file.embeddings)
    return Training(head, texts[15:], texts[:15], embeddings, plan, folder)


def test_a_taught_head_is_accepted(texts: list[Text], target: Path, tmp_path: Path) -> None:
    training, seen = start(texts, target, tmp_path), []
    before = judge(training.head, texts[:15], torch.from_numpy(TargetFile(target).embeddings))
    training.run(seen.append, lambda: False)
    print(curve(training.history), before)
    assert [p.step for p in seen] == list(range(1, 121))
    assert training.best.greedy.accepted > before.greedy.accepted + 0.2
