"""A pair that copies: its tasks, and that llama.cpp writes their texts with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from model_making import copying
from model_making.copying import CopyingPair
from model_making.hybrids import HYBRIDS
from model_making.synthetic import SHAPES
from model_making.tasks import COPIED, KINDS, Task, make_tasks
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Rollback
from tests.support.tiny_gguf import write_model

TINY = SHAPES["tiny"]
TOKENS = 128
_ROWS = 32  # of one decode


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tokenizer") / "model.gguf")


def write_pair(tokenizer: Path, out: Path, seed: int = 1) -> CopyingPair:
    return copying.write_pair(TINY, 0.8, tokenizer, out, each=2, token_count=TOKENS, seed=seed)


@pytest.fixture(scope="module")
def pair(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> CopyingPair:
    return write_pair(tokenizer, tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def models(pair: CopyingPair) -> Iterator[tuple[LlamaModel, LlamaModel]]:
    with ExitStack() as stack:
        target, draft = load(pair.target), load(pair.draft)
        stack.callback(target.close)
        stack.callback(draft.close)
        yield target, draft


def load(path: Path) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(path=path, context=512, sequence_count=1, thread_count=1, pad_multiple=4)
    )


def logits(model: LlamaModel, task: Task) -> np.ndarray:
    """Return what a model says along a text: float32[token, vocabulary]."""
    model.truncate(0, 0)
    whole, begin = [*task.prompt, *task.text[:-1]], len(task.prompt) - 1
    model.decode([Chunk(0, 0, whole[:begin], 0)])
    found = []
    for at in range(begin, len(whole), _ROWS):
        piece = whole[at : at + _ROWS]
        [rows] = model.decode([Chunk(0, at, piece, len(piece))])
        found.append(np.array(rows))
    return np.concatenate(found)


def stretches(task: Task) -> list[tuple[str, tuple[int, ...]]]:
    found, begin = [], 0
    for part, count in task.parts:
        found.append((part, task.text[begin : begin + count]))
        begin += count
    assert begin == len(task.text)
    return found


def stands_in(part: Sequence[int], whole: Sequence[int]) -> bool:
    return any(tuple(whole[i : i + len(part)]) == tuple(part) for i in range(len(whole)))


# the models


def test_the_target_writes_every_text(
    pair: CopyingPair, models: tuple[LlamaModel, LlamaModel]
) -> None:
    assert [task.kind for task in pair.tasks] == [*KINDS, *KINDS]
    for task in pair.tasks:
        rows = logits(models[0], task)
        assert tuple(rows.argmax(1)) == task.text
        odds = np.exp(rows - rows.max(1, keepdims=True))
        assert (1.0 / odds.sum(1)).min() > 0.95  # a temperature changes nothing


def test_the_draft_agrees_as_often_as_asked_and_knows_its_chance(
    pair: CopyingPair, models: tuple[LlamaModel, LlamaModel]
) -> None:
    agreed, chances = list[bool](), list[float]()
    for task in pair.tasks:
        rows = logits(models[1], task)
        agreed += list(rows.argmax(1) == task.text)
        odds = np.exp(rows - rows.max(1, keepdims=True))
        chances += list(1.0 / odds.sum(1))
    assert np.mean(agreed) == pair.agreement
    # The deviation of a share of 1536 tokens is .010.
    assert pair.agreement == pytest.approx(0.8, abs=0.03)
    assert np.mean(chances) == pytest.approx(0.8, abs=0.1)
    sure = np.array(chances) > np.median(chances)
    assert np.mean(np.array(agreed)[sure]) > np.mean(np.array(agreed)[~sure]) + 0.1


def test_the_same_seed_gives_the_same_bytes(
    pair: CopyingPair, tokenizer: Path, tmp_path: Path
) -> None:
    again = write_pair(tokenizer, tmp_path)
    assert again.tasks == pair.tasks
    for name in ("target.gguf", "draft.gguf", "tasks.json"):
        assert (tmp_path / name).read_bytes() == (pair.target.parent / name).read_bytes()
    other = write_pair(tokenizer, tmp_path, seed=2)
    assert other.tasks != pair.tasks
    assert other.target.read_bytes() != pair.target.read_bytes()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("qwen35", Rollback.SNAPSHOTS), ("granite", Rollback.CHECKPOINTS)],
)
def test_a_hybrid_target_writes_the_same_texts_and_cannot_be_cut_freely(
    pair: CopyingPair, tokenizer: Path, tmp_path: Path, name: str, kind: Rollback
) -> None:
    hybrid = copying.write_pair(
        TINY, 0.8, tokenizer, tmp_path, each=2, token_count=TOKENS, hybrid=HYBRIDS[name]
    )
    assert hybrid.tasks == pair.tasks and hybrid.agreement == pair.agreement
    assert hybrid.draft.read_bytes() == pair.draft.read_bytes()
    with closing(load(hybrid.target)) as target:
        assert target.describe().rollback is kind
        for task in hybrid.tasks[: len(KINDS)]:
            assert tuple(logits(target, task).argmax(1)) == task.text


def test_a_chance_is_what_the_softmax_gives() -> None:
    random = np.random.default_rng(1)
    vocabulary, width = 8000, 512
    chances = np.resize([0.3, 0.6, 0.9], vocabulary)
    scales = copying.head_scales(chances, vocabulary, width)
    for token in range(60):
        noise = random.standard_normal(vocabulary) * scales
        noise[token] = scales[token] * np.sqrt(width)
        given = np.exp(noise[token]) / np.exp(noise).sum()
        assert given == pytest.approx(chances[token], abs=0.02)


def test_a_text_is_read_as_the_tokens_it_was_written_with(
    pair: CopyingPair, models: tuple[LlamaModel, LlamaModel]
) -> None:
    names = models[0].token_texts()
    for task in pair.tasks[:2]:
        text = b"".join(names[token_id] for token_id in task.text)
        assert tuple(models[0].tokenize(text, False, False)) == task.text


# the tasks


def test_no_token_stands_twice_in_the_texts(pair: CopyingPair) -> None:
    written = [token_id for task in pair.tasks for token_id in task.text]
    assert len(set(written)) == len(written) == 2 * len(KINDS) * TOKENS


def test_copied_parts_stand_in_the_prompt_and_no_other_token_does(pair: CopyingPair) -> None:
    for task in (each for each in pair.tasks if each.kind != "shuffled"):
        for part, token_ids in stretches(task):
            if part == COPIED:
                assert stands_in(token_ids, task.prompt)
            else:
                assert not set(token_ids) & set(task.prompt)


def test_a_shuffled_text_stands_in_its_prompt_only_in_small_pieces(pair: CopyingPair) -> None:
    for task in (each for each in pair.tasks if each.kind == "shuffled"):
        assert set(task.text) < set(task.prompt)
        after = dict(pairwise(task.prompt))
        right = [after[before] == token_id for before, token_id in pairwise(task.text)]
        assert 0.4 < np.mean(right) < 0.6
        # Two pieces may stay together, not four.
        assert not any(all(right[i : i + 9]) for i in range(len(right) - 8))


def test_each_kind_copies_its_own_share(pair: CopyingPair) -> None:
    shares = {task.kind: task.copied_share for task in pair.tasks}
    assert shares["prose"] == shares["shuffled"] == 0.0
    assert shares["mixed"] == pytest.approx(1 / 3, abs=0.01)
    assert shares["extract"] > 0.5
    assert shares["transcript"] > 0.8 and shares["rewrite"] > 0.9
    mixed = pair.tasks[list(KINDS).index("mixed")]
    assert [part for part, _ in mixed.parts] == ["new", "copied", "new"]


def test_what_follows_a_token_is_a_permutation_and_the_texts_walk_along_it() -> None:
    tasks, following = make_tasks(range(100, 6000), 2, 300, seed=3)
    assert set(following) == set(following.values()) == set(range(100, 6000))
    for task in tasks:
        for before, after in pairwise([task.prompt[-1], *task.text]):
            assert following[before] == after


def test_a_vocabulary_without_room_for_the_texts_is_refused() -> None:
    with pytest.raises(SystemExit, match="the vocabulary is too small"):
        make_tasks(range(1000), 2, 300)


def test_a_tokenizer_that_leaves_too_few_tokens_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    small = replace(TINY, vocabulary=300)
    with pytest.raises(ValueError, match="at most"):
        copying.write_pair(small, 0.8, tokenizer, tmp_path, each=1, token_count=TOKENS)
