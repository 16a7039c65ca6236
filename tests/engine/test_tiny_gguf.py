"""That llama.cpp takes the tiny models for real ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from outrider.engine.llama_library import init_backend
from tests.support.tiny_gguf import Shape, Vocabulary, write_model, write_pair

import llama_cpp  # isort: skip  (outrider.engine.llama_library sets its environment first)

PROMPT = "the target rides ahead"


# llama.cpp calls it for the life of the process.
_discard: Any = llama_cpp.llama_log_callback(lambda level, text, data: None)


class Loaded:
    """A model behind the bare C functions, with one sequence."""

    def __init__(self, path: Path) -> None:
        init_backend()  # loads the kernels, where they are a plug-in
        llama_cpp.llama_log_set(_discard, ctypes.c_void_p(0))
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = 256
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        assert self.model, f"llama.cpp does not load {path.name}"
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        assert self.context
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.token_count = llama_cpp.llama_vocab_n_tokens(self.vocabulary)

    def close(self) -> None:
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        data, ids = text.encode(), (llama_cpp.llama_token * 256)()
        count = llama_cpp.llama_tokenize(
            self.vocabulary, data, len(data), ids, len(ids), add_special, False
        )
        return ids[:count]

    def text(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(map(self._piece, token_ids))

    def decode(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens and return the logits after the last: float32[vocabulary]."""
        ids = (llama_cpp.llama_token * len(token_ids))(*token_ids)
        batch = llama_cpp.llama_batch_get_one(ids, len(ids))
        assert llama_cpp.llama_decode(self.context, batch) == 0
        row = llama_cpp.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(row, shape=(self.token_count,)).copy()

    def greedy(self, token_ids: Sequence[int], count: int) -> list[int]:
        written = [int(self.decode(token_ids).argmax())]
        while len(written) < count:
            written.append(int(self.decode(written[-1:]).argmax()))
        return written

    def _piece(self, token_id: int) -> bytes:
        piece = ctypes.create_string_buffer(64)
        size = llama_cpp.llama_token_to_piece(self.vocabulary, token_id, piece, 64, 0, False)
        return piece.raw[:size]


@pytest.fixture
def load() -> Iterator[Callable[[Path], Loaded]]:
    with ExitStack() as stack:

        def load_and_close_later(path: Path) -> Loaded:
            loaded = Loaded(path)
            stack.callback(loaded.close)
            return loaded

        yield load_and_close_later


Load = Callable[[Path], Loaded]


@pytest.mark.parametrize(
    "weight_type",
    [GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16, GGMLQuantizationType.F32],
)
def test_every_weight_type_loads_and_decodes(
    tmp_path: Path, load: Load, weight_type: GGMLQuantizationType
) -> None:
    path = write_model(tmp_path / "model.gguf", weight_type=weight_type)
    assert path.stat().st_size < 2_000_000
    row = load(path).decode([0, 70, 260, 300])
    assert np.isfinite(row).all()
    assert 1.0 < row.std() < 6.0


def test_a_larger_shape_takes_effect(tmp_path: Path, load: Load) -> None:
    shape = Shape(embedding=128, layers=1, heads=4, kv_heads=2, feed_forward=96, context=64)
    model = load(write_model(tmp_path / "model.gguf", shape=shape)).model
    assert llama_cpp.llama_model_n_embd(model) == 128
    assert llama_cpp.llama_model_n_layer(model) == 1
    assert llama_cpp.llama_model_n_head(model) == 4
    assert llama_cpp.llama_model_n_head_kv(model) == 2
    assert llama_cpp.llama_model_n_ctx_train(model) == 64


@pytest.mark.parametrize("text", [PROMPT, "a\n\tb  c", "caf\u00e9 \U0001f642 \u65e5\u672c", "</s>"])
def test_text_survives_the_tokenizer(tmp_path: Path, load: Load, text: str) -> None:
    model = load(write_model(tmp_path / "model.gguf"))
    assert model.text(model.tokenize(text, add_special=False)) == text.encode()


def test_merges_make_words_into_tokens_and_the_start_is_marked(tmp_path: Path, load: Load) -> None:
    model = load(write_model(tmp_path / "model.gguf"))
    ids = model.tokenize(PROMPT, add_special=True)
    assert ids[0] == 0
    assert [model.text([token_id]) for token_id in ids[-3:]] == [b" ", b"rides", b" ahead"]


def test_the_same_arguments_write_the_same_bytes(tmp_path: Path) -> None:
    first = write_model(tmp_path / "first.gguf").read_bytes()
    assert write_model(tmp_path / "again.gguf").read_bytes().replace(b"again", b"first") == first
    other = write_model(tmp_path / "other.gguf", seed=2)
    assert other.read_bytes().replace(b"other", b"first") != first


def test_the_special_tokens_and_flags_take_effect(tmp_path: Path, load: Load) -> None:
    options = Vocabulary(bos=2, eos=300, pad=1, adds_bos=False, adds_eos=True)
    model = load(write_model(tmp_path / "model.gguf", vocabulary=options))
    known = model.vocabulary
    assert llama_cpp.llama_vocab_bos(known) == 2
    assert llama_cpp.llama_vocab_eos(known) == 300
    assert llama_cpp.llama_vocab_pad(known) == 1
    assert llama_cpp.llama_vocab_is_eog(known, 300)
    assert not llama_cpp.llama_vocab_get_add_bos(known)
    assert model.tokenize(PROMPT, add_special=True)[-1] == 300


def test_the_default_text_has_one_end_token(tmp_path: Path, load: Load) -> None:
    known = load(write_model(tmp_path / "model.gguf")).vocabulary
    assert [t for t in range(320) if llama_cpp.llama_vocab_is_eog(known, t)] == [1]


def test_a_changed_text_and_a_tail_take_effect(tmp_path: Path, load: Load) -> None:
    options = Vocabulary(tail_count=5, changed={300: "odd"})
    model = load(write_model(tmp_path / "model.gguf", vocabulary=options))
    assert model.token_count == 325
    assert model.text([300, 320, 324]) == b"oddtail0tail4"


def test_the_draft_of_a_pair_mostly_writes_what_the_target_would(
    tmp_path: Path, load: Load
) -> None:
    target, draft = map(load, write_pair(tmp_path))
    prompt = target.tokenize(PROMPT, add_special=True)
    assert draft.tokenize(PROMPT, add_special=True) == prompt
    written = target.greedy(prompt, 120)
    guesses = draft.greedy(prompt, 1)
    guesses += [int(draft.decode([token_id]).argmax()) for token_id in written[:-1]]
    assert 0.5 < np.mean(np.array(guesses) == np.array(written)) < 1.0
    assert len(set(written)) > 30  # a text, not one token over and over


def test_a_pair_without_residual_agrees_everywhere(tmp_path: Path, load: Load) -> None:
    target, draft = map(load, write_pair(tmp_path, residual=0.0))
    assert draft.greedy([0, 70], 40) == target.greedy([0, 70], 40)


def test_a_pair_may_differ_in_its_tail(tmp_path: Path, load: Load) -> None:
    tail = Vocabulary(tail_count=32)
    target, draft = map(load, write_pair(tmp_path, residual=0.0, draft_vocabulary=tail))
    assert (target.token_count, draft.token_count) == (320, 352)
    np.testing.assert_allclose(draft.decode([0, 70])[:320], target.decode([0, 70]), atol=0.05)
