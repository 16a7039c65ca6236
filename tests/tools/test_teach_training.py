"""Heads taught from kept texts: what is computed, what is learned, and the file that comes out."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from gguf import GGMLQuantizationType, GGUFReader  # noqa: E402
from gguf.quants import dequantize  # noqa: E402
from torch import Tensor  # noqa: E402

from outrider.engine.head_draft import Pairs  # noqa: E402
from outrider.engine.llama_heads import LlamaHead  # noqa: E402
from outrider.engine.llama_loading import LlamaConfig  # noqa: E402
from outrider.engine.model import Chunk  # noqa: E402
from outrider.errors import InvalidConfig, StateUnavailable  # noqa: E402
from outrider.kept_rows import Kept, KeptSource, KeptText, open_folder, write_shard  # noqa: E402
from outrider_cli.screen import Progress as Screen  # noqa: E402
from outrider_teach.acceptance import (  # noqa: E402
    Acceptance,
    Judgement,
    curve,
    draw_curve,
)
from outrider_teach.batches import (  # noqa: E402
    LONGEST,
    OVERLAP,
    batch_of,
    counted,
    is_held_out,
    most_frequent,
    packed,
    windows_of,
)
from outrider_teach.export import read_head, write_head  # noqa: E402
from outrider_teach.head import EagleHead, HeadShape  # noqa: E402
from outrider_teach.judging import (  # noqa: E402
    by_position,
    chosen_by_both,
    expected,
    in_rounds,
    judge,
)
from outrider_teach.loss import distance, wanted  # noqa: E402
from outrider_teach.target_weights import TargetFile  # noqa: E402
from outrider_teach.teaching import Lesson, Teaching  # noqa: E402
from outrider_teach.training import (  # noqa: E402
    Progress,
    Training,
    TrainingConfig,
    new_head,
)
from tests.engine.test_head_draft import load  # noqa: E402
from tests.support.kept_texts import LAYERS, TOP  # noqa: E402
from tests.support.tiny_architectures import write_architecture  # noqa: E402


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
    kept = KeptText(
        0, np.array(text, np.int32), rows.astype(np.float16), known, known.astype(np.float16)
    )
    embeddings = torch.from_numpy(file.embeddings)
    with torch.no_grad():
        steps = list(head.steps(batch_of([kept], windows_of([kept])), embeddings, 4))
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
            return [step.own for step in head.steps(batch, embeddings, 3)]

    before = own_rows(kept.rows)
    changed = kept.rows.copy()
    changed[10] += 1  # read by the pair at 11
    after = own_rows(changed)
    for lag, (old, new) in enumerate(zip(before, after, strict=True)):
        same = (old == new).all(-1).tolist()  # by drafts, the first text's by their first pair
        assert same == [start < 11 for start in range(6, 20)] + [True] * 6, lag


def random_text(random, count: int, unknown: int) -> KeptText:
    ids = np.stack([random.permutation(320)[:TOP] for _ in range(count)]).astype(np.int32)
    ids[:unknown, 0] = -1
    logs = -np.sort(random.random((count, TOP)) * 4).astype(np.float16)
    rows = random.standard_normal((count, 192)).astype(np.float16)
    return KeptText(0, random.integers(0, 320, count).astype(np.int32), rows, ids, logs)


# --- what is learned of ---


def test_windows_cover_what_is_known_once_and_follow_each_other() -> None:
    random = np.random.default_rng(3)
    texts = [random_text(random, count, unknown=12) for count in (5000, 40, 12)]
    windows = windows_of(texts)
    for number, text in enumerate(texts):
        rows = [r for w in windows if w.text == number for r in range(w.begin, w.stop)]
        assert rows == list(range(12, len(text.tokens)))
    assert max(w.stop - w.start for w in windows) <= LONGEST
    first, second, *_ = windows
    assert (first.start, first.begin) == (0, 12)
    assert second.start == first.stop - OVERLAP


def test_a_batch_has_the_row_before_each_token_and_the_token_after() -> None:
    random = np.random.default_rng(4)
    texts = [random_text(random, count, unknown=3) for count in (10, 7)]
    batch = batch_of(texts, windows_of(texts))
    assert batch.grid.starts.tolist() == [*range(2, 9), *range(11, 15)]
    assert batch.grid.ends.tolist() == [8] * 7 + [14] * 4
    assert batch.grid.pairs[1].tolist() == [*range(9, 15), 14, 14, 14]
    assert batch.grid.drafts[1].tolist() == [7, 8, 9, 10, 10, 10, 10]
    assert batch.grid.is_visible[1, :2].sum(-1).tolist() == [3, 4]
    assert batch.tokens.tolist() == [*texts[0].tokens[1:], *texts[1].tokens[1:]]
    assert batch.rows[9:].numpy() == pytest.approx(texts[1].rows[:-1].astype(np.float32))
    assert batch.following[9:].tolist() == [*texts[1].tokens[2:], -1]
    assert batch.positions.tolist() == [*range(1, 10), *range(1, 7)]


def test_packs_have_all_windows_in_order() -> None:
    random = np.random.default_rng(5)
    windows = windows_of([random_text(random, count, unknown=2) for count in range(5, 40)])
    order = random.permutation(len(windows)).tolist()
    packs = list(packed(windows, order, 100))
    assert [w for pack in packs for w in pack] == [windows[i] for i in order]
    assert all(100 <= sum(w.learned for w in pack) < 140 for pack in packs[:-1])


def test_a_prompt_s_texts_are_all_held_out_or_none_is() -> None:
    random = np.random.default_rng(6)
    found = []
    for _ in range(600):
        text, other = (random_text(random, 30, unknown=10) for _ in range(2))
        other.tokens[:11] = text.tokens[:11]
        assert is_held_out(text) == is_held_out(other)
        found.append(is_held_out(text))
    assert 0.03 < np.mean(found) < 0.1


def test_the_most_frequent_tokens_are_those_that_the_target_would_write_most() -> None:
    random = np.random.default_rng(8)
    text = random_text(random, 4, unknown=1)
    text.top_ids[:, :3] = [[-1, 9, 9], [7, 300, 20], [300, 7, 20], [300, 20, 8]]
    text.top_logprobs[:] = np.log([[0.5, 0.3, 0.1, *[1e-4] * 5]] * 4)
    counts = counted([text], 320)
    assert counts[300] == pytest.approx(1.3, rel=1e-2)
    assert most_frequent(counts, 3).tolist() == [7, 20, 300]
    assert most_frequent(counts, 999).tolist() == list(range(320))


def test_the_loss_is_that_of_whole_distributions_and_so_is_its_slope() -> None:
    random = torch.Generator().manual_seed(1)
    rows = torch.randn(700, 16, generator=random, dtype=torch.double, requires_grad=True)
    matrix = torch.randn(30, 16, generator=random, dtype=torch.double, requires_grad=True)
    drafted = torch.randperm(90, generator=random)[:30].sort().values
    ids = torch.stack([torch.randperm(90, generator=random)[:TOP] for _ in range(700)])
    ids[5] = -1
    logs = -torch.rand(700, TOP, generator=random, dtype=torch.double).sort().values * 4
    target = wanted(ids, logs / 0.7, drafted)
    p = torch.zeros(700, 90, dtype=torch.double)
    p.scatter_(1, ids.clamp(min=0), (logs / 0.7).exp())
    p = p[:, drafted]
    p[5] = 0
    known = p.sum(-1) > 0
    p = p[known] / p[known].sum(-1, keepdim=True)
    logits = (rows @ matrix.T)[known]
    crossed = -(p * logits.log_softmax(-1)).sum(-1)
    overlap = torch.minimum(p, logits.softmax(-1)).sum(-1)
    expected = (crossed + 0.6 * (1 - overlap)).mean()
    slopes = torch.autograd.grad(expected, [rows, matrix])
    found = distance(rows, matrix, target, 0.6)
    assert found.item() == pytest.approx(expected.item())
    for slope, own in zip(slopes, torch.autograd.grad(found, [rows, matrix]), strict=True):
        assert own.numpy() == pytest.approx(slope.numpy(), abs=1e-12)


def test_two_in_a_race_choose_the_same_as_often_as_is_said() -> None:
    random = np.random.default_rng(9)
    p, q = random.dirichlet([0.5] * 6), random.dirichlet([0.5] * 9)
    times = random.exponential(size=(200_000, 9))
    ours, theirs = (times[:, :6] / p).argmin(1), (times / q).argmin(1)
    both = [np.mean((ours == i) & (theirs == i)) for i in range(6)]
    found = chosen_by_both(torch.tensor(p)[None], torch.tensor(q)[None, :6])[0].numpy()
    assert found == pytest.approx(np.array(both), abs=4e-3)


# --- what is learned ---


def start(
    texts: Sequence[KeptText], target: Path, folder: Path, seed: int = 1, **changed
) -> Training:
    """Return a run on most of the texts, judged by the others."""
    config = {"steps": 12, "tokens": 256, "drafted": 200, "judged_every": 4, **changed}
    file, plan = TargetFile(target), TrainingConfig(seed=seed, **config)
    head = new_head(file, LAYERS, texts[20:], plan)
    folder.mkdir(exist_ok=True)
    embeddings = torch.from_numpy(file.embeddings)
    return Training(head, texts[20:], texts[:20], embeddings, plan, folder)


def run(training: Training, steps: int = 10**9) -> list[Progress]:
    """Go on with a run, up to a step; return what it reported."""
    seen: list[Progress] = []
    training.run(seen.append, lambda: training.step >= steps)
    return seen


def test_a_taught_head_is_accepted_by_its_target(
    texts: list[KeptText], target: Path, tmp_path: Path
) -> None:
    training = start(texts, target, tmp_path / "run", steps=80, tokens=512, judged_every=40)
    before = judge(training.student, texts[:20], embeddings_of(target))
    seen = run(training)
    assert [p.step for p in seen] == list(range(1, 81))
    assert seen[-1].loss < 0.8 * seen[4].loss
    best = training.best
    assert best is not None
    assert best.greedy.accepted > before.greedy.accepted + 0.1
    assert best.sampled.accepted > before.sampled.accepted + 0.1
    assert judge(training.student, texts[:20], embeddings_of(target)) == best

    path = tmp_path / "head.gguf"
    write_head(path, training.student, TargetFile(target))
    again = judge(read_head(path, TargetFile(target)), texts[:20], embeddings_of(target))
    assert again.score == pytest.approx(best.score, abs=0.02)


def embeddings_of(target: Path) -> Tensor:
    return torch.from_numpy(TargetFile(target).embeddings)


def test_a_run_that_was_interrupted_gives_the_same_head(
    texts: list[KeptText], target: Path, tmp_path: Path
) -> None:
    whole = start(texts, target, tmp_path / "whole")
    run(whole)
    for last in (3, 8, 10**9):  # 8 is right after a judgement
        training = start(texts, target, tmp_path / "parts")
        run(training, last)
    assert training.history == whole.history
    for name, tensor in whole.student.state_dict().items():
        assert torch.equal(tensor, training.student.state_dict()[name]), name


def test_a_killed_run_loses_what_came_after_its_checkpoint(
    texts: list[KeptText], target: Path, tmp_path: Path
) -> None:
    whole = start(texts, target, tmp_path / "whole")
    run(whole)
    training = start(texts, target, tmp_path / "killed")

    def killed(progress: Progress) -> None:
        if progress.step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.run(killed, lambda: False)
    training = start(texts, target, tmp_path / "killed")
    assert training.step == 4
    run(training)
    assert training.history == whole.history


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each training step adds how long the drafts are that it learns."""
    found: list[int] = []
    steps = EagleHead.steps

    def noted(self, batch, embeddings, count):
        if torch.is_grad_enabled():
            found.append(count)
        return steps(self, batch, embeddings, count)

    monkeypatch.setattr(EagleHead, "steps", noted)
    return found


def test_a_head_first_learns_drafts_of_one_token(
    texts: list[KeptText], target: Path, tmp_path: Path, lengths: list[int]
) -> None:
    training = start(texts, target, tmp_path / "run", steps=9)
    run(training)
    assert lengths == [1] * 6 + [training.config.length] * 3


def test_a_head_that_is_taught_more_knows_drafts_of_one_token(
    texts: list[KeptText], target: Path, tmp_path: Path, lengths: list[int]
) -> None:
    file, config = TargetFile(target), TrainingConfig(steps=3, tokens=256, drafted=200)
    lesson = Lesson(
        target=file,
        layers=LAYERS,
        texts=texts[:-8],
        held_out=texts[-8:],
        folder=tmp_path,
        config=config,
        start=new_head(file, LAYERS, texts, config),
    )
    assert Teaching(lesson).run(3, Screen())
    assert lengths == [config.length] * 3


def test_a_new_head_prefers_nothing_loudly(
    texts: list[KeptText], target: Path, tmp_path: Path
) -> None:
    training = start(texts, target, tmp_path / "run")
    with torch.no_grad():
        loss = float(training.loss(windows_of(texts)[:20]))
    nothing = np.log(len(training.student.drafted)) + 1  # cross-entropy, and total variation
    assert loss < nothing + 1


def test_another_seed_is_another_run(texts: list[KeptText], target: Path, tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 1), ("b", 2)):
        training = start(texts, target, tmp_path / name, seed=seed, steps=4)
        run(training)
        found.append(training.history)
    assert found[0] != found[1]


def test_it_stops_where_it_gets_no_better(
    texts: list[KeptText], target: Path, tmp_path: Path
) -> None:
    changed = {"steps": 100, "rate": 0.0, "judged_every": 2, "patience": 3}
    training = start(texts, target, tmp_path / "run", **changed)
    assert len(run(training)) == 8
    assert run(start(texts, target, tmp_path / "run", **changed)) == []


def test_a_checkpoint_that_cannot_be_written_is_said(
    texts: list[KeptText], target: Path, tmp_path: Path
) -> None:
    training = start(texts, target, tmp_path / "run")
    (tmp_path / "run").rmdir()
    with pytest.raises(StateUnavailable, match=r"cannot write .*best\.pt"):
        run(training)


# --- judging ---


def test_acceptance_is_of_the_drafts_that_came_so_far() -> None:
    right = np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 0]], float)
    assert by_position(right, right) == pytest.approx((3 / 4, 2 / 3, 1 / 2, 1.0, 0.0))
    same, follows = np.array([[0.5, 0.8, 0.6]]), np.array([[0.25, 1.0, 0.5]])
    assert by_position(same, follows) == pytest.approx((0.5, 0.8, 0.6))
    assert expected(same, follows) == pytest.approx((0.5 + 0.25 * 0.8 + 0.25 * 0.6) / 3)


def test_rounds_start_after_what_the_last_one_wrote() -> None:
    right = np.zeros((8, 5))
    right[0, :2], right[3, :5], right[1:3] = 1, 1, 1  # 2 and 1 are written, 3 and 1, none and 1
    assert in_rounds([right, np.zeros((1, 5))]) == 5 / 12


def test_a_judgement_is_of_whole_drafts_that_are_known(texts: list[KeptText], target: Path) -> None:
    judged = judge(small_head(), texts[:4], embeddings_of(target))
    assert judged.tokens == 4 * 53
    short = [replace(t, **{n: getattr(t, n)[:16] for n in ARRAYS}) for t in texts[:4]]
    assert judge(small_head(), short, embeddings_of(target)).greedy.positions == (0.0,) * 5


ARRAYS = ("tokens", "rows", "top_ids", "top_logprobs")


def test_the_curve_is_lines_and_a_picture(tmp_path: Path) -> None:
    half = Acceptance((0.7, 0.6, 0.5, 0.4, 0.3), 0.5)
    history = [
        (100, Judgement(half, half, 9)),
        (200, Judgement(half, replace(half, accepted=0.7), 9)),
    ]
    lines = curve(history)
    assert lines[2] == "    100  0.70  0.60  0.50  0.40  0.30   0.500  0.500  ##########"
    assert lines[3].endswith("0.700  ############")
    is_there = importlib.util.find_spec("matplotlib") is not None
    assert draw_curve(history, tmp_path / "curve.png") == is_there
    assert (tmp_path / "curve.png").exists() == is_there


# --- files ---


def test_a_head_begins_with_what_its_target_has(texts: list[KeptText], target: Path) -> None:
    file = TargetFile(target)
    head = new_head(file, LAYERS, texts, TrainingConfig(steps=1, drafted=50))
    output = dequantize(tensor_of(target, "output.weight"), GGMLQuantizationType.Q8_0)
    assert head.output.weight.detach().numpy() == pytest.approx(output[head.drafted.numpy()])
    embedded = dequantize(tensor_of(target, "token_embd.weight"), GGMLQuantizationType.Q8_0)
    assert file.embeddings == pytest.approx(embedded, abs=1e-3)
    fused = head.row_scale.numpy() * np.concatenate([t.rows[1:] for t in texts]).astype(np.float32)
    assert np.sqrt(np.mean(fused**2)) == pytest.approx(1.0, abs=0.2)


def tensor_of(path: Path, name: str) -> NDArray[np.uint8]:
    return next(t.data for t in GGUFReader(path).tensors if t.name == name)


def test_a_target_that_does_not_show_its_layers_is_refused(
    texts: list[KeptText], tmp_path: Path, target: Path
) -> None:
    hidden = TargetFile(write_architecture(tmp_path / "phi2.gguf", "gemma3"))
    with pytest.raises(InvalidConfig, match="gemma3 models do not show their layers"):
        new_head(hidden, LAYERS, texts, TrainingConfig(steps=1))
    with pytest.raises(InvalidConfig, match="reads layers 0, 1, 9; the target has 4"):
        TargetFile(target).check_feeds((0, 1, 9))
    (tmp_path / "none.gguf").write_bytes(b"GGUF")
    for path in (tmp_path / "none.gguf", tmp_path / "nowhere.gguf"):
        with pytest.raises(InvalidConfig, match="cannot read"):
            TargetFile(path)
        with pytest.raises(InvalidConfig, match="no head to go on with"):
            read_head(path, TargetFile(target))


def test_a_head_s_file_has_its_target_s_tokens_and_sizes(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "head.gguf"
    write_head(path, small_head(), TargetFile(target))
    theirs, own = (
        {name: field.contents() for name, field in GGUFReader(each).fields.items()}
        for each in (target, path)
    )
    tokenizer = {name for name in theirs if name.startswith("tokenizer.")}
    assert {name: own[name] for name in tokenizer} == {name: theirs[name] for name in tokenizer}
    assert own["eagle3.target_layers"] == list(LAYERS)
    assert (own["eagle3.attention.head_count_kv"], own["eagle3.feed_forward_length"]) == (2, 96)
    tensors = {t.name: t for t in GGUFReader(path).tensors}
    assert tensors["d2t"].data.tolist() == small_head().drafted.tolist()
    assert tensors["blk.0.attn_q.weight"].tensor_type is GGMLQuantizationType.Q8_0
    assert tensors["blk.0.attn_norm_2.weight"].tensor_type is GGMLQuantizationType.F32
    assert [p.name for p in tmp_path.iterdir()] == ["head.gguf"]


def test_a_head_that_drafts_all_tokens_needs_no_map(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "head.gguf"
    write_head(path, small_head(320), TargetFile(target), GGMLQuantizationType.F16)
    assert "d2t" not in {t.name for t in GGUFReader(path).tensors}
    head, again = small_head(320), read_head(path, TargetFile(target))
    assert again.shape == replace(head.shape, rope_base=10000.0, epsilon=again.shape.epsilon)
    rows = torch.randn(3, 192)
    assert (head.fused(rows) - again.fused(rows)).abs().max() < 0.05


def test_a_head_in_a_file_is_taught_more(
    texts: list[KeptText], target: Path, tmp_path: Path
) -> None:
    file, path, before = TargetFile(target), tmp_path / "head.gguf", small_head(40)
    write_head(path, before, file, GGMLQuantizationType.F32)
    read = read_head(path, file)
    head = EagleHead(read.shape, torch.arange(30, 90))
    head.row_scale.fill_(0.5)
    untaught = head.output.weight.clone()
    head.begin_as(read)
    rows = torch.from_numpy(texts[0].rows).float()
    assert torch.allclose(head.fused(rows), before.fused(rows), atol=1e-4)
    shared = sorted(set(before.drafted.tolist()) & set(range(30, 90)))
    assert 0 < len(shared) < 40
    its = before.output.weight[torch.searchsorted(before.drafted, torch.tensor(shared))]
    assert torch.equal(head.output.weight[torch.tensor(shared) - 30], its)
    new = [i - 30 for i in range(30, 90) if i not in shared]
    assert torch.equal(head.output.weight[new], untaught[new])
    with pytest.raises(InvalidConfig, match="other layers"):
        head.begin_as(EagleHead(replace(read.shape, layers=(0, 1, 2)), torch.arange(40)))


def test_a_head_is_there_whole_or_not_at_all(target: Path, tmp_path: Path) -> None:
    with pytest.raises(StateUnavailable, match="cannot write"):
        write_head(tmp_path / "none" / "head.gguf", small_head(), TargetFile(target))
    (tmp_path / "head.gguf").mkdir()
    with pytest.raises(StateUnavailable, match=r"cannot write .*directory"):
        write_head(tmp_path / "head.gguf", small_head(), TargetFile(target))
    assert [p.name for p in tmp_path.iterdir()] == ["head.gguf"]


def test_kept_folders_are_trained_on(texts: list[KeptText], target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    open_folder(folder, KeptSource(model="ab", layers=LAYERS, width=64, vocabulary=320, top=TOP))
    write_shard(folder, texts[:30])
    training = start(Kept(folder).texts, target, tmp_path / "run", steps=4)
    run(training)
    other = start(texts[:30], target, tmp_path / "other", steps=4)
    run(other)
    assert training.history == other.history
