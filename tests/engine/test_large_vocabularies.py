"""Short cuts at large vocabularies give bit for bit what llama.cpp's samplers do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.distribution import Distribution, from_logits
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_candidates import Candidates
from outrider.engine.llama_loading import LlamaConfig
from outrider.sampling import SamplingParameters, Stage
from tests.support.tiny_gguf import Shape, Vocabulary, write_model

import llama_cpp as ll  # isort: skip  (outrider.engine.llama sets its environment first)

SIZE = 20_000
CONTEXT = 64
NEWLINE = 13
FREE = SamplingParameters(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)
TOP_K = replace(FREE, top_k=40)
TEXT = [70, 260, NEWLINE, 71, 72, 261, 90, 70, 92, 301, 70, 260, NEWLINE] * 7
Row = NDArray[np.float32]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = write_model(
        tmp_path_factory.mktemp("models") / "large.gguf",
        shape=Shape(embedding=32, layers=1, heads=1, feed_forward=32),
        vocabulary=Vocabulary(tail_count=SIZE - 320),
    )
    config = LlamaConfig(
        path=path, context=CONTEXT, sequence_count=1, thread_count=1, pad_multiple=1
    )
    loaded = LlamaModel(config)
    yield loaded
    loaded.close()


def flat(seed: int) -> Row:
    return np.random.default_rng(seed).normal(scale=3.0, size=SIZE).astype(np.float32)


def peaked(seed: int) -> Row:
    row = flat(seed)
    row[TEXT[:12]] += 14
    return row


def uniform(seed: int) -> Row:
    return flat(seed) / np.float32(100)


def tied(seed: int) -> Row:
    return np.asarray(np.round(flat(seed) * 4) / 4, np.float32)


def with_impossible(seed: int) -> Row:
    row = flat(seed)
    row[::3] = -np.inf
    return row


def all_equal(seed: int) -> Row:
    return np.full(SIZE, seed, np.float32)


ROWS: list[Callable[[int], Row]] = [flat, peaked, uniform, tied, with_impossible, all_equal]


def theirs(samplers: Sequence[Any], row: Row, text: Sequence[int] = ()) -> dict[int, float]:
    """Return what is left of a row after llama.cpp's own samplers have seen all of it: weights."""
    table = np.zeros(SIZE, np.dtype([("id", "i4"), ("logit", "f4"), ("p", "f4")]))
    table["id"], table["logit"] = np.arange(SIZE), row
    array = ll.llama_token_data_array(table.ctypes.data_as(ll.llama_token_data_p), SIZE, -1, False)
    for sampler in samplers:
        for token_id in text:
            ll.llama_sampler_accept(sampler, token_id)
        ll.llama_sampler_apply(sampler, ctypes.byref(array))
        ll.llama_sampler_free(sampler)
    kept = table[: array.size]
    kept = kept[kept["logit"] > -np.inf]
    return weights(from_logits(kept["id"], kept["logit"]))


def weights(distribution: Distribution) -> dict[int, float]:
    return dict(zip(distribution.token_ids.tolist(), distribution.weights.tolist(), strict=True))


def ours(model: LlamaModel, its: SamplingParameters, row: Row, text: Sequence[int] = ()) -> Any:
    sampler = model.sampler(its)
    for token_id in text:
        sampler.accept(token_id, is_prompt=True)
    before = row.copy()
    found = weights(sampler.clone().distribution(row))
    np.testing.assert_array_equal(row, before)
    return found


def top_p(p: float, least: int = 0) -> Any:
    return ll.llama_sampler_init_top_p(p, least)


def top_k(count: int = 40) -> Any:
    return ll.llama_sampler_init_top_k(count)


def temperature() -> Any:
    return ll.llama_sampler_init_temp_ext(0.8, 0.0, 1.0)


@pytest.mark.parametrize("make", ROWS)
@pytest.mark.parametrize("p", [0.0, 0.01, 0.5, 0.95, 0.999, 0.9999999])
def test_top_p_keeps_the_tokens_that_llama_cpp_keeps(
    model: LlamaModel, make: Callable[[int], Row], p: float
) -> None:
    for seed in range(3):
        row = make(seed)
        expected = theirs([top_p(p), temperature()], row)
        assert ours(model, replace(FREE, top_p=p), row) == expected


@pytest.mark.parametrize("least", [3, 500, SIZE, 2**31 - 1])
def test_top_p_leaves_the_least_number_of_tokens(model: LlamaModel, least: int) -> None:
    expected = theirs([top_p(0.1, least), temperature()], peaked(1))
    assert ours(model, replace(FREE, top_p=0.1, min_keep=least), peaked(1)) == expected
    assert len(expected) == min(least, SIZE)


def test_top_p_after_a_wide_cut_keeps_what_llama_cpp_keeps(model: LlamaModel) -> None:
    its = replace(FREE, min_p=1e-4, top_p=0.9, stages=(Stage.MIN_P, Stage.TOP_P, Stage.TEMPERATURE))
    for seed in range(3):
        min_p = ll.llama_sampler_init_min_p(1e-4, 0)
        assert ours(model, its, flat(seed)) == theirs(
            [min_p, top_p(0.9), temperature()], flat(seed)
        )


@pytest.mark.parametrize("make", ROWS)
@pytest.mark.parametrize("count", [1, 40, 300, SIZE])
def test_top_k_keeps_the_tokens_that_llama_cpp_keeps(
    model: LlamaModel, make: Callable[[int], Row], count: int
) -> None:
    for seed in range(3):
        row = make(seed)
        expected = theirs([top_k(count), top_p(0.7), temperature()], row)
        assert ours(model, replace(FREE, top_k=count, top_p=0.7), row) == expected


@pytest.mark.parametrize("make", [flat, peaked, uniform, with_impossible])
def test_top_k_reads_the_whole_vocabulary_into_its_table_only_where_equal_tokens_are_first(
    model: LlamaModel, make: Callable[[int], Row]
) -> None:
    sampler = model.sampler(TOP_K)
    held: list[int] = []
    spy: Any = SimpleNamespace(apply=lambda candidates: held.append(len(candidates)))
    sampler._links = replace(sampler._links, cuts=[spy, *sampler._links.cuts])
    sampler.distribution(make(1))
    sampler.distribution(tied(1))
    assert held == [40, SIZE]


@pytest.mark.parametrize("make", ROWS)
@pytest.mark.parametrize("window", [1, 5, 64, -1])
@pytest.mark.parametrize("length", [0, 3, len(TEXT)])
def test_penalties_change_the_tokens_that_llama_cpp_changes(
    model: LlamaModel, make: Callable[[int], Row], window: int, length: int
) -> None:
    its = replace(
        TOP_K,
        repeat_penalty=1.7,
        frequency_penalty=0.3,
        presence_penalty=-0.2,
        repeat_last_n=window,
    )
    last = CONTEXT if window < 0 else window
    penalties = ll.llama_sampler_init_penalties(SIZE, last, 1.7, 0.3, -0.2)
    text, row = TEXT[:length], make(4)
    assert ours(model, its, row, text) == theirs([penalties, top_k(), temperature()], row, text)


def test_an_exempt_newline_keeps_its_logit(model: LlamaModel) -> None:
    row = peaked(2)
    its = replace(FREE, repeat_penalty=3.0, penalize_newline=False)
    newline = ll.llama_vocab_nl(model._vocabulary.pointer)
    text = [newline, *TEXT[:5]]
    kept, plain = ours(model, its, row, text), ours(model, FREE, row)
    best = max(plain)
    assert kept[newline] == pytest.approx(plain[newline] * kept[best] / plain[best])
    assert kept[TEXT[0]] < plain[TEXT[0]] / 2


@pytest.mark.parametrize("make", ROWS)
@pytest.mark.parametrize("window", [8, -1])
def test_dry_changes_the_tokens_that_llama_cpp_changes(
    model: LlamaModel, make: Callable[[int], Row], window: int
) -> None:
    its = replace(TOP_K, dry_multiplier=2.0, dry_penalty_last_n=window, dry_sequence_breakers=())
    last = CONTEXT if window < 0 else window
    pointer = model._vocabulary.pointer
    dry = ll.llama_sampler_init_dry(pointer, 2.0, its.dry_base, 2, last, (ctypes.c_char_p * 0)(), 0)
    row = make(6)
    assert ours(model, its, row, TEXT) == theirs([dry, top_k(), temperature()], row, TEXT)


def test_a_bias_that_is_named_twice_counts_twice(model: LlamaModel) -> None:
    biases = ((5, 1.25), (6, -0.5), (5, 0.1), (19_999, 7.0), (7, -float("inf")))
    table = (ll.llama_logit_bias * len(biases))(*(ll.llama_logit_bias(*each) for each in biases))
    bias = ll.llama_sampler_init_logit_bias(SIZE, len(biases), table)
    expected = theirs([bias, temperature()], flat(1))
    assert ours(model, replace(FREE, logit_bias=biases), flat(1)) == expected


@pytest.mark.parametrize("make", [flat, peaked, uniform, with_impossible])
def test_top_p_sorts_the_vocabulary_only_where_equal_tokens_meet_its_cut(
    model: LlamaModel, make: Callable[[int], Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = model.sampler(replace(FREE, top_p=0.95))
    (cut, _) = sampler._links.cuts
    asked: list[Candidates] = []
    monkeypatch.setattr(cut, "_whole", SimpleNamespace(apply=asked.append))
    sampler.distribution(make(1))
    assert not asked
    sampler.distribution(tied(1))
    assert len(asked) == 1
