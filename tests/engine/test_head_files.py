"""Heads in files of their own: which are used, and that they draft as others would drive them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import logs
from outrider.engine.block_draft import draft_of
from outrider.engine.guesser import guesser
from outrider.engine.head_draft import HeadDraft, Pairs
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_block_heads import LlamaBlockHead
from outrider.engine.llama_head_files import open_head_file
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Numerics
from outrider.engine.own_draft import DraftAsk, DraftLine
from outrider.errors import InvalidConfig
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import open_own_head
from outrider.row_window import HIDDEN_ROWS
from tests.engine.load_mutants import best as guess_best
from tests.engine.load_mutants import use_apart
from tests.engine.test_head_draft import (
    DRAFTED,
    PROMPT,
    SESSION,
    Driver,
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
    Tensors,
    write_dflash,
    write_eagle3,
    write_llama,
    write_mtp,
)


def head_config(path: Path) -> LlamaConfig:
    return LlamaConfig(path=path, context=0, sequence_count=4, thread_count=1, pad_multiple=1)


MUTANTS = 20  # of each kind; some 150 ms each
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
    draft = draft_of(model.open_head(head_config(files[1])), model)
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


def drafted_anew(model: LlamaModel, draft: HeadDraft, text: Sequence[int], step: int) -> list[int]:
    """Return what is drafted after a text that another sequence reads, so many tokens at once."""
    draft.forget(bytes([9]) * 16)
    model.truncate(3, 0)
    for first in range(0, len(text) - 1, step):
        model.decode([Chunk(3, first, text[first : min(first + step, len(text) - 1)], 0)])
    return ask(draft, text, session=9, sequence=3)


def test_it_follows_a_text_that_goes_back_and_one_with_a_gap(
    model: LlamaModel, draft: HeadDraft
) -> None:
    text = start(model)
    for _ in range(8):
        round_of(model, text, ask(draft, text))
    other = [*text[:25], 77]
    for _ in range(4):
        round_of(model, other, ())
    assert ask(draft, other) == drafted_anew(model, draft, other, 7)
    for _ in range(100):  # written without a draft
        round_of(model, other, ())
    drafted = ask(draft, other)
    assert drafted == drafted_anew(model, draft, other, 200)
    assert drafted == drafted_anew(model, draft, other, 30)


@pytest.mark.parametrize("files", ["dflash", "dspark"], indirect=True)
def test_a_head_of_blocks_reads_whole_texts_however_they_are_written(
    files: Files, model: LlamaModel
) -> None:
    mine, head = (model.open_head(head_config(files[1])) for _ in range(2))
    draft, driver, text = draft_of(mine, model), Driver(head, model), start(model)
    driver.read(PROMPT, 0)
    for i in range(150):
        drafted = ask(draft, text) if i > 145 or i == 9 else []
        if drafted:
            assert drafted == driver.draft(text)
        before = list(text)
        here = round_of(model, text, drafted)
        driver.read([before[-1], *drafted], len(before) - 1, here)
    assert mine.held(0).start == 0 and mine.held(0).stop > 2 * HIDDEN_ROWS
    draft.close()
    head.close()


@pytest.mark.parametrize("files", ["dflash", "dspark"], indirect=True)
def test_what_was_read_moves_with_the_targets_sequences(
    model: LlamaModel, draft: HeadDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [start(model, [*PROMPT, 5 + i], i) for i in range(2)]
    for _ in range(150):
        for i in range(2):
            round_of(model, texts[i], (), i)
    drafts = [ask(draft, texts[i], i, i) for i in range(2)]
    model.exchange(0, 1)
    model.copy_prefix(1, 2, len(texts[0]) - 1)
    rows = model.hidden_rows  # of which the newest are enough for what has read the others
    monkeypatch.setattr(model, "hidden_rows", lambda s: (rows(s)[0] + 40, rows(s)[1][40:]))
    assert [ask(draft, texts[i], i, 1 - i) for i in range(2)] == drafts
    round_of(model, texts[0], (), 2)
    assert ask(draft, texts[0], 2, 2) == drafted_anew(model, draft, texts[0], 30)


@pytest.mark.parametrize("files", ["dflash"], indirect=True)
def test_sequences_of_a_pool_take_turns_in_fewer_of_a_head_of_blocks(files: Files) -> None:
    model = load(files[0], mtp=False, pool=True)
    draft = draft_of(model.open_head(head_config(files[1])), model)
    texts = [start(model, [*PROMPT, 5 + i], i) for i in range(8)]
    drafts = [ask(draft, text, i, i) for i, text in enumerate(texts)]
    assert [ask(draft, text, i, i) for i, text in enumerate(texts)] == drafts
    guess = guesser(model, opening(), 1, 0.0)
    lines = [
        DraftLine(bytes([i]) * 16, b"", DraftAsk(text, DRAFTED, guess), i)
        for i, text in enumerate(texts)
    ]
    draft.draft(lines, 1.0)
    assert [len(line.guesses) for line in lines] == [DRAFTED] * 4 + [0] * 4
    draft.close()
    model.close()


@pytest.mark.parametrize("files", ["dflash"], indirect=True)
def test_rows_that_are_no_numbers_end_neither_a_decode_nor_later_drafts(
    model: LlamaModel, draft: HeadDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = start(model)
    with monkeypatch.context() as patched:
        patched.setattr(LlamaBlockHead, "read", lambda *_: 1 / 0)
        for _ in range(120):
            round_of(model, text, ())
    assert draft.is_usable and len(ask(draft, text)) == DRAFTED


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
        return draft_of(model.open_head(head_config(files[1])), model)

    plain, none = written(files[0], None, Numerics.EXACT, 8)
    drafted, accepted = written(files[0], load_draft, Numerics.EXACT, 8)
    assert drafted == plain and none == 0
    assert accepted > 8 * 25 * least


def test_more_tokens_than_a_block_are_not_drafted(tmp_path: Path) -> None:
    model = load(write_llama(tmp_path / "target.gguf"), mtp=False)
    path = write_dflash(tmp_path / "head.gguf", block=3)
    draft = draft_of(model.open_head(head_config(path)), model)
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


SHOWN = {"gpt-oss": (0, 3, 4), "qwen35": (0, 3, 4), "qwen35moe": (0, 1, 2)}
"""Layers that are kept of those whose last row counts as one, which comes last."""


def test_of_a_hybrid_the_last_row_is_read_as_a_layer(tmp_path: Path) -> None:
    config = head_config(write_eagle3(tmp_path / "head.gguf", (0, 1, 2)))
    model = load(write_mtp(tmp_path / "target.gguf", "qwen35"), mtp=False)
    check_against_driver(model, lambda: model.open_head(config), repeat(DRAFTED))


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
            model.keep_rows(SHOWN.get(architecture, (0, 1)))
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


# --- damaged ones, each in a process of its own ---


def serve(path: Path) -> str:
    """Write a text beside a head; return what was said of it."""
    said = list[str]()
    logs.warning = lambda *words, **values: said.append(f"{words[1]}: {values}")
    model = load(path.with_name("target.gguf"), mtp=False)
    draft, text = open_own_head(model, ModelConfig(model=path)), start(model)
    for _ in range(12):
        line = DraftLine(SESSION, b"", DraftAsk(text, 3, guess_best), 0)
        if draft is not None:
            draft.draft([line], 1.0)
        round_of(model, text, [each.token_id for each in line.guesses])
    if draft is not None:
        draft.close()
    model.close()
    return f"wrote, {' '.join(said)}"


def filled(name: str, value: float) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: np.full_like(tensors[name], value)})


def shaped(name: str, *shape: int) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: np.ones(shape, np.float32)})


WRITERS: dict[str, Callable[..., Path]] = {
    "eagle3": write_eagle3,
    "dflash": write_dflash,
    "dspark": partial(write_dflash, has_markov=True),
}
DAMAGE: list[tuple[str, Callable[[Tensors], object], str]] = [
    ("eagle3", filled("fc.weight", np.nan), "computes no numbers"),
    ("eagle3", filled("blk.0.attn_v.weight", np.nan), "computes no numbers"),
    ("eagle3", shaped("fc.weight", 64, 96), "wrong shape"),
    ("eagle3", shaped("token_embd.weight", 128, 64), "embeddings of 128 tokens"),
    ("eagle3", shaped("output.weight", 64, 64), "wrong shape"),
    ("dflash", filled("fc.weight", np.nan), "own draft off"),
    ("dflash", shaped("fc.weight", 64, 64), "wrong shape"),
    ("dflash", shaped("token_embd.weight", 128, 64), "embeddings of 128 tokens"),
    ("dspark", filled("markov_w2.weight", np.nan), "computes no numbers"),
    ("dspark", shaped("markov_w2.weight", 64, 32), "wrong shape"),
]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize(("kind", "edit", "said"), DAMAGE, ids=[f"{c[0]} {c[2]}" for c in DAMAGE])
def test_a_damaged_head_is_told_in_a_line_and_its_target_writes_on(
    tmp_path: Path, kind: str, edit: Callable[[Tensors], object], said: str
) -> None:
    write_llama(tmp_path / "target.gguf")
    outcome = use_apart(WRITERS[kind](tmp_path / "head.gguf", edit=edit), serve)
    assert outcome.startswith("wrote, ") and said in outcome and "\n" not in outcome


@pytest.mark.parametrize("kind", WRITERS)
def test_no_missing_tensor_ends_the_process(tmp_path: Path, kind: str) -> None:
    write_llama(tmp_path / "target.gguf")
    tensors: Tensors = {}
    WRITERS[kind](tmp_path / "head.gguf", edit=tensors.update)
    for name in tensors:
        path = WRITERS[kind](tmp_path / "head.gguf", edit=lambda t, name=name: t.pop(name))
        outcome = use_apart(path, serve)
        assert outcome.startswith("wrote, "), f"{name}: {outcome}"


@pytest.mark.parametrize("drafted", [[-1], [320], [2**40], []])
def test_drafted_tokens_that_the_target_has_not_are_told(
    tmp_path: Path, drafted: list[int]
) -> None:
    write_llama(tmp_path / "target.gguf")
    ids = np.array([*range(len(drafted), 159), *drafted], np.int64) if drafted else drafted
    path = write_eagle3(tmp_path / "head.gguf", drafted=np.array(ids, np.int64))
    with pytest.raises(InvalidConfig, match="its drafted tokens are not all among its 320"):
        open_head_file(head_config(path))


def test_no_mutant_of_a_head_ends_the_process(tmp_path: Path) -> None:
    """Bytes of the header, which says how its tensors are read."""
    write_llama(tmp_path / "target.gguf")
    draw = np.random.default_rng(3)
    for write in WRITERS.values():
        whole = write(tmp_path / "head.gguf").read_bytes()
        path = tmp_path / "mutant.gguf"
        for _ in range(MUTANTS):
            mutant = bytearray(whole)
            begin = whole.index(b".target_layers")
            for _ in range(1 + int(draw.integers(3))):
                mutant[int(draw.integers(begin - 600, begin + 60))] ^= 1 << int(draw.integers(8))
            path.write_bytes(mutant)
            outcome = use_apart(path, serve)
            assert outcome.startswith("wrote, "), outcome


# --- one after the other ---


@pytest.mark.parametrize(
    ("before", "layers"),
    [(write_eagle3, (0, 1, 3)), (write_eagle3, (0, 2, 3)), (write_dflash, (0, 1, 3))],
    ids=["the same rows", "other layers", "another kind"],
)
def test_a_head_that_takes_anothers_place_drafts_as_if_it_had_been_the_only_one(
    tmp_path: Path, before: Callable[[Path], Path], layers: tuple[int, ...]
) -> None:
    path = write_llama(tmp_path / "target.gguf")
    files = [
        before(tmp_path / "before.gguf"),
        write_eagle3(tmp_path / "after.gguf", layers=layers),
    ]
    configs = [head_config(each) for each in files]
    model, other = (load(path, mtp=False) for _ in range(2))
    first = draft_of(model.open_head(configs[0]), model)
    only = draft_of(other.open_head(configs[1]), other)
    text = start(model)
    round_of(model, text, ask(first, text))
    with ThreadPoolExecutor(1) as pool:  # beside what the target decodes
        loading = pool.submit(model.open_head, configs[1])
        while not loading.done():
            round_of(model, text, ())
        head = loading.result()
    second = draft_of(head, model)
    first.close()
    has_rows = before is write_eagle3 and layers == (0, 1, 3)
    assert bool(ask(second, text)) is has_rows
    for _ in range(HIDDEN_ROWS + 4):
        round_of(model, text, ())
    again = start(other, text[:-1])
    assert again[-1] == text[-1]
    for _ in range(10):
        drafted = ask(second, text)
        assert drafted == ask(only, again) and drafted
        mine, its = (each.hidden_rows(0)[1][-20:] for each in (model, other))
        assert np.allclose(mine, its, atol=1e-3)
        round_of(model, text, drafted)
        round_of(other, again, drafted)
        assert text == again
    for each in (second, only, model, other):
        each.close()


def test_a_head_that_reads_other_rows_than_others_do_is_refused(tmp_path: Path) -> None:
    model = load(write_llama(tmp_path / "target.gguf"), mtp=False)
    layers = model.kept_source().layers  # of which somebody writes the rows down
    config = head_config(write_eagle3(tmp_path / "other.gguf"))
    with pytest.raises(InvalidConfig, match="other rows"):
        model.open_head(config)
    config = head_config(write_eagle3(tmp_path / "same.gguf", layers=layers))
    draft_of(model.open_head(config), model).close()
    model.close()
