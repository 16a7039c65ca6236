"""llama.cpp behind the seam: nothing wrong reaches C, rows are C's own, cuts are exact."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.distribution import Distribution, distribution_of
from outrider.engine.calibrate import (
    HISTORY,
    PADDINGS,
    ROW_COUNTS,
    decode_costs,
    exact_padding,
    quick_costs,
)
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import MAX_PADDED, MAX_ROWS_OUT, Chunk, FimTokens, Rollback, Row
from outrider.errors import InvalidConfig
from outrider.sampling import GREEDY, SamplingParameters
from tests.support.tiny_architectures import POSITIONS, write_architecture
from tests.support.tiny_gguf import Shape, Vocabulary, write_model

import llama_cpp as ll  # isort: skip  (outrider.engine.llama sets its environment first)

SIZE = 320
TEXT = [0, 70, 260, 300, 71, 72, 261, 90, 91, 92, 301, 302]

Load = Callable[..., LlamaModel]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", shape=Shape(layers=2))


@pytest.fixture
def load(path: Path) -> Iterator[Load]:
    """Load models that are closed after the test."""
    loaded: list[LlamaModel] = []

    def load_model(
        file: Path = path,
        *,
        context: int = 128,
        sequence_count: int = 4,
        pad_multiple: int = 4,
        batch_rows: int = 64,
    ) -> LlamaModel:
        config = LlamaConfig(
            path=file,
            context=context,
            sequence_count=sequence_count,
            thread_count=1,
            pad_multiple=pad_multiple,
            batch_rows=batch_rows,
        )
        loaded.append(LlamaModel(config))
        return loaded[-1]

    yield load_model
    for model in loaded:
        model.close()


def rows_of(
    model: LlamaModel, sequence: int, text: Sequence[int], sizes: Sequence[int]
) -> NDArray[np.float32]:
    """Fill an empty sequence in chunks of the given sizes; return copies of all rows."""
    rows: list[Row] = []
    for size in sizes:
        part = text[len(rows) : len(rows) + size]
        [new] = model.decode([Chunk(sequence, len(rows), part, size)])
        rows += [row.copy() for row in new]
    return np.array(rows)


# loading


def test_a_model_describes_itself(load: Load) -> None:
    description = load().describe()
    assert description.name == "tiny"
    assert (description.context, description.sequence_count) == (128, 4)
    assert description.rollback is Rollback.FULL
    assert description.parameter_count > 50_000
    vocabulary = description.vocabulary
    assert (vocabulary.token_count, vocabulary.type) == (SIZE, ll.LLAMA_VOCAB_TYPE_BPE)
    assert (vocabulary.bos, vocabulary.eos) == (0, 1)
    assert (vocabulary.adds_bos, vocabulary.adds_eos) == (True, False)
    assert vocabulary.end_token_ids == (1,)


def test_special_tokens_are_read_from_the_file(tmp_path: Path, load: Load) -> None:
    options = Vocabulary(bos=2, eos=300, pad=1, adds_bos=False, adds_eos=True, tail_count=5)
    described = load(write_model(tmp_path / "m.gguf", vocabulary=options)).describe().vocabulary
    assert (described.bos, described.eos, described.token_count) == (2, 300, SIZE + 5)
    assert (described.adds_bos, described.adds_eos) == (False, True)
    assert 300 in described.end_token_ids


def with_fim(*names: str) -> Vocabulary:
    """Return a vocabulary that ends in tokens of these names."""
    tail = {SIZE + i: f"<|{name}|>" for i, name in enumerate(names)}
    return Vocabulary(tail_count=len(names), changed=tail)


def test_what_a_model_fills_in_by_is_known(tmp_path: Path, load: Load) -> None:
    names = ("fim_suffix", "fim_prefix", "fim_middle", "repo_name", "file_sep")
    described = load(write_model(tmp_path / "m.gguf", vocabulary=with_fim(*names))).describe()
    assert described.vocabulary.fim == FimTokens(
        prefix=SIZE + 1, suffix=SIZE, middle=SIZE + 2, repository=SIZE + 3, file=SIZE + 4
    )
    # What it writes of files ends a text: it is of the next one.
    assert {SIZE + 3, SIZE + 4} < {*described.vocabulary.end_token_ids}


def test_a_model_with_two_of_three_parts_fills_in_nothing(tmp_path: Path, load: Load) -> None:
    its = with_fim("fim_prefix", "fim_suffix")
    assert load(write_model(tmp_path / "m.gguf", vocabulary=its)).describe().vocabulary.fim is None
    its = with_fim("fim_prefix", "fim_suffix", "fim_middle")
    fim = load(write_model(tmp_path / "n.gguf", vocabulary=its)).describe().vocabulary.fim
    assert fim is not None and (fim.repository, fim.file) == (None, None)


def test_the_context_is_what_the_model_was_trained_on_unless_asked_for(load: Load) -> None:
    assert load(context=0, pad_multiple=1).describe().context == 509  # with room for pad rows
    assert load(context=100).describe().context == 100


def test_pad_rows_are_taken_from_the_context_where_llama_cpp_has_no_cells_besides(
    load: Load,
) -> None:
    assert load(context=512).describe().context == 512 - 3
    assert load(context=510).describe().context == 509
    assert load(context=500).describe().context == 500


@pytest.mark.fault(
    "text",
    "--ctx 4096 with Phi-3, Phi-3.5 or Phi-4-mini",
    before="llama.cpp was given 4352 and took the long rotary factors, another text than was meant",
    now="llama.cpp is given what was asked for",
)
def test_a_context_takes_the_rotary_factors_that_are_meant_for_it(
    tmp_path: Path, load: Load
) -> None:
    def rows(context: int, long_factor: float) -> NDArray[np.float32]:
        shape = Shape(layers=2, short_context=256, long_factor=long_factor)
        path = write_model(tmp_path / f"{long_factor}.gguf", shape=shape)
        return rows_of(load(path, context=context), 0, TEXT, [len(TEXT)])

    # With long factors of 1, which the short ones are, they make no difference.
    np.testing.assert_array_equal(rows(256, 8.0), rows(256, 1.0))
    assert (rows(257, 8.0) != rows(257, 1.0)).any()


@pytest.mark.fault(
    "crash",
    "a model with learned positions, such as GPT-2, at the end of its context",
    before="pad rows were put after its last position, which ends the process in C",
    now="no row stands where the model has no position, and a larger `--ctx` is refused",
)
def test_no_row_stands_behind_the_last_learned_position(tmp_path: Path, load: Load) -> None:
    path = write_architecture(tmp_path / "gpt2.gguf", "gpt2")
    model = load(path, context=POSITIONS, batch_rows=256)
    capacity = model.describe().context
    assert capacity == POSITIONS - 3
    text = [3 + i for i in range(capacity)]
    model.decode([Chunk(0, 0, text[:-1], 0)])
    [[row]] = model.decode([Chunk(0, capacity - 1, text[-1:], 1, MAX_PADDED)])
    assert np.isfinite(row).all()
    assert np.isfinite(rows_of(model, 1, text, [100, 100, 53])).all()
    refusal = f"at most {POSITIONS}, the positions the model has learned, not"
    with pytest.raises(InvalidConfig, match=refusal):
        load(path, context=POSITIONS + 1)


def test_a_sequence_holds_its_whole_context(load: Load) -> None:
    model = load(context=61, sequence_count=2)
    text = [3 + i for i in range(61)]
    for sequence in (0, 1):
        model.decode([Chunk(sequence, 0, text[:60], 0)])
    [[row], _] = model.decode([Chunk(0, 60, text[60:], 1), Chunk(1, 60, text[60:], 1)])
    assert np.isfinite(row).all()


def damaged(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) and len(old) == len(new)
    return data.replace(old, new, 1)


DAMAGE: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("empty", lambda data: b"", "is not a GGUF file"),
    ("a web page", lambda data: b"<!DOCTYPE html>", "is not a GGUF file"),
    ("three bytes", lambda data: data[:3], "is not a GGUF file"),
    ("only the magic", lambda data: data[:4], "header does not end within its 4 bytes"),
    ("a cut header", lambda data: data[:100], "header does not end within its 100"),
    ("cut key-value pairs", lambda data: data[:5000], "header does not end within its 5000 bytes"),
    ("half of the tensors", lambda data: data[: len(data) // 2], "is truncated: 54432 bytes are"),
    ("a byte short", lambda data: data[:-1], "is truncated: 1 bytes are missing"),
    ("another version", lambda data: data[:4] + b"\xff" * 4 + data[8:], "version 4294967295"),
    ("an unknown kind", lambda data: damaged(data, b"llama", b"lxama"), "no lxama.block_count"),
    ("no tokenizer", lambda data: damaged(data, b"ggml.model", b"ggml.modex"), "no tokenizer"),
    ("no merges", lambda data: damaged(data, b"ggml.merges", b"ggml.merxes"), "merges"),
    ("no embedding", lambda data: damaged(data, b"token_embd", b"tokem_embd"), "token_embd"),
    ("no norm", lambda data: damaged(data, b"ffn_norm", b"ffn_morm"), "cannot load .*ffn_norm"),
]


@pytest.mark.parametrize(("damage", "said"), [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE])
def test_a_damaged_file_is_refused_in_one_line(
    path: Path, tmp_path: Path, load: Load, damage: Callable[[bytes], bytes], said: str
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidConfig, match=said) as caught:
        load(broken)
    message = str(caught.value)
    assert "\n" not in message
    assert str(broken) in message
    assert caught.value.field == "model"


@pytest.mark.parametrize("name", ["missing.gguf", ""])
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, load: Load, name: str
) -> None:
    with pytest.raises(InvalidConfig, match=r"cannot read .*(No such file|Is a directory)"):
        load(tmp_path / name)


def test_a_context_too_small_for_anything_is_refused(load: Load) -> None:
    for context in (7, -1):
        with pytest.raises(InvalidConfig, match="must be at least"):
            load(context=context)


def test_the_reason_of_a_refused_context_is_an_error_and_not_a_warning(path: Path) -> None:
    # llama.cpp warns that it is longer than what was trained on, and then has no memory for it.
    said = alone(path, "load(2, context=10**9)")
    assert said.startswith("InvalidConfig: ctx: no context of")
    assert "training context" not in said


def test_a_broken_file_does_not_explain_a_later_refusal(
    path: Path, tmp_path: Path, load: Load
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(InvalidConfig):
        load(broken)
    with pytest.raises(InvalidConfig, match="n_seq_max"):
        load(sequence_count=100_000)


# what would abort C


def alone(path: Path, code: str) -> str:
    """Run code in a process of its own, which it may kill; return what it raised."""
    program = f"""
import resource
from pathlib import Path
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
def load(sequence_count, context=64):
    return LlamaModel(LlamaConfig(path=Path({str(path)!r}), context=context,
        sequence_count=sequence_count, thread_count=1, pad_multiple=4, batch_rows=512))
try:
    {code}
    print("nothing was raised")
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=root,
        timeout=60,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else f"it died with {done.returncode}"


IMPOSSIBLE: list[tuple[list[Chunk], str]] = [
    ([], "one chunk"),
    ([Chunk(0, 0, [5], 1), Chunk(0, 1, [6], 1)], "one chunk"),
    ([Chunk(4, 0, [5], 1)], "sequence 4"),
    ([Chunk(-1, 0, [5], 1)], "sequence -1"),
    ([Chunk(0, 1, [5], 1)], "position 1"),
    ([Chunk(0, -1, [5], 1)], "position -1"),
    ([Chunk(0, 0, [], 0)], "overflow"),
    ([Chunk(0, 0, [5] * 65, 1)], "rows in one decode"),
    ([Chunk(0, 0, [5] * 129, 1)], "overflow"),
    ([Chunk(0, 0, [5], 2)], "2 rows of 1"),
    ([Chunk(0, 0, [5], -1)], "-1 rows of 1"),
    ([Chunk(0, 0, [SIZE], 1)], "outside the vocabulary"),
    ([Chunk(0, 0, [5, -1], 1)], "outside the vocabulary"),
    ([Chunk(i, 0, [5] * 17, 1) for i in range(4)], "80 rows in one decode"),
]


@pytest.mark.parametrize(("chunks", "said"), IMPOSSIBLE)
def test_what_would_abort_the_process_is_an_assertion(
    load: Load, chunks: list[Chunk], said: str
) -> None:
    model = load()
    with pytest.raises(AssertionError, match=said):
        model.decode(chunks)
    [[row]] = model.decode([Chunk(0, 0, [5], 1)])
    assert np.isfinite(row).all()


def test_too_many_rows_of_logits_are_an_assertion(load: Load) -> None:
    model = load(batch_rows=512, context=512)
    most = Chunk(0, 0, [5] * MAX_ROWS_OUT, MAX_ROWS_OUT)
    with pytest.raises(AssertionError, match="too many rows out"):
        model.decode([most, Chunk(1, 0, [5], 1)])
    assert len(model.decode([most])[0]) == MAX_ROWS_OUT


@pytest.mark.parametrize(
    "call",
    [
        "m.truncate(4, 0)",
        "m.truncate(-1, 0)",
        "m.truncate(0, -1)",
        "m.copy_prefix(0, 0, 1)",
        "m.copy_prefix(0, 4, 1)",
        "m.copy_prefix(0, -1, 1)",
        "m.copy_prefix(-4, 1, 0)",
        "m.copy_prefix(0, 1, 3)",
        "m.copy_prefix(0, 1, -1)",
        "m.exchange(0, 0)",
        "m.exchange(0, 4)",
        "m.exchange(-1, 0)",
        "m.copy_prefix(0, 1, 1); m.exchange(1, 2)",
    ],
)
def test_a_cut_or_copy_that_cannot_be_is_an_assertion(path: Path, call: str) -> None:
    said = alone(path, f"m = load(4); m.decode([Chunk(0, 0, [5, 6], 1)]); {call}")
    assert said.startswith("AssertionError")


@pytest.mark.parametrize("count", [129, 256])
def test_as_many_sessions_as_may_be_configured_load_or_are_refused(path: Path, count: int) -> None:
    assert alone(path, f"load({count})").startswith(("nothing was raised", "InvalidConfig"))


# rows


class Bare:
    """One sequence behind the bare C functions, set up as the engine is."""

    def __init__(self, path: Path) -> None:
        parameters = ll.llama_context_default_params()
        parameters.n_ctx = 256
        parameters.n_batch = parameters.n_ubatch = 64
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.model = ll.llama_model_load_from_file(
            str(path).encode(), ll.llama_model_default_params()
        )
        self.context = ll.llama_init_from_model(self.model, parameters)

    def rows(self, text: Sequence[int], wanted: set[int]) -> dict[int, NDArray[np.float32]]:
        """Decode a text at once; return the logits at some positions, each asked for by itself."""
        batch = ll.llama_batch_init(len(text), 0, 1)
        batch.n_tokens = len(text)
        for i, token_id in enumerate(text):
            batch.token[i], batch.pos[i] = token_id, i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i in wanted
        assert ll.llama_decode(self.context, batch) == 0
        ll.llama_batch_free(batch)
        return {i: self._row(i) for i in wanted}

    def _row(self, i: int) -> NDArray[np.float32]:
        row = ll.llama_get_logits_ith(self.context, i)
        return np.ctypeslib.as_array(row, shape=(SIZE,)).copy()

    def close(self) -> None:
        ll.llama_free(self.context)
        ll.llama_model_free(self.model)


@pytest.fixture
def bare(path: Path) -> Iterator[Bare]:
    model = Bare(path)
    yield model
    model.close()


def test_rows_are_what_llama_get_logits_ith_gives(load: Load, bare: Bare) -> None:
    [rows] = load(pad_multiple=1).decode([Chunk(2, 0, TEXT, 3)])
    expected = bare.rows(TEXT, {9, 10, 11})
    for i, row in zip((9, 10, 11), rows, strict=True):
        np.testing.assert_array_equal(row, expected[i])


def test_padded_rows_are_what_llama_get_logits_ith_gives_for_the_padded_batch(
    load: Load, bare: Bare
) -> None:
    text = TEXT[:10]
    [rows] = load(pad_multiple=4).decode([Chunk(2, 0, text, 3)])
    expected = bare.rows([*text, text[-1], text[-1]], {4, 5, 6, 7, 8, 9, 10, 11})
    for i, row in zip((7, 8, 9), rows, strict=True):
        np.testing.assert_array_equal(row, expected[i])


def test_every_chunk_gets_its_own_rows(load: Load) -> None:
    model, single = load(), load()
    chunks = [Chunk(2, 0, TEXT[:5], 2), Chunk(0, 0, TEXT[3:], 0), Chunk(1, 0, TEXT[::-1], 4)]
    together = [[row.copy() for row in rows] for rows in model.decode(chunks)]
    assert [len(rows) for rows in together] == [2, 0, 4]
    for chunk, rows in zip(chunks, together, strict=True):
        np.testing.assert_array_equal(rows, [r.copy() for r in single.decode([chunk])[0]])


def test_pad_rows_are_cut_again(load: Load) -> None:
    model = load()
    rows = rows_of(model, 0, TEXT, [5, 1, 2, 4])
    np.testing.assert_array_equal(rows, rows_of(model, 1, TEXT, [12]))


# the cache


@pytest.mark.parametrize("kept", [0, 1, 4, 7, 11])
def test_after_a_cut_rows_are_those_of_a_fresh_sequence(load: Load, kept: int) -> None:
    model = load()
    model.decode([Chunk(0, 0, [*TEXT[:kept], 5, 6, 7, 8, 9], 0)])
    model.truncate(0, kept)
    [rows] = model.decode([Chunk(0, kept, TEXT[kept:], 1)])
    np.testing.assert_array_equal(rows[0], rows_of(load(), 0, TEXT, [12])[-1])


@pytest.mark.parametrize("kept", [1, 4, 7, 12])
def test_a_copied_start_gives_the_rows_of_a_fresh_sequence(load: Load, kept: int) -> None:
    model = load()
    model.decode([Chunk(0, 0, TEXT, 0)])
    model.decode([Chunk(3, 0, [9, 9, 9], 0)])
    model.copy_prefix(0, 3, kept)
    text = [*TEXT[:kept], 5, 6]
    [rows] = model.decode([Chunk(3, kept, [5, 6], 2)])
    fresh = rows_of(load(), 0, text, [len(text)])
    np.testing.assert_array_equal(rows, fresh[-2:])


def test_a_copy_and_its_source_stay_apart(load: Load) -> None:
    model = load()
    model.decode([Chunk(0, 0, TEXT, 0)])
    model.copy_prefix(0, 1, 12)
    model.truncate(0, 0)
    model.decode([Chunk(0, 0, [9, 9, 9], 0)])
    [rows] = model.decode([Chunk(1, 12, [5], 1)])
    np.testing.assert_array_equal(rows[0], rows_of(load(), 0, [*TEXT, 5], [13])[-1])


def test_exchanged_sequences_go_on_from_where_the_other_was(load: Load) -> None:
    model = load()
    model.decode([Chunk(0, 0, TEXT, 0), Chunk(2, 0, [9, 9, 9], 0)])
    model.truncate(0, 10)
    model.exchange(0, 2)
    model.exchange(2, 3)
    here, there = model.decode([Chunk(0, 3, [5, 6], 2), Chunk(3, 10, TEXT[10:], 2)])
    np.testing.assert_array_equal(here, rows_of(load(), 0, [9, 9, 9, 5, 6], [5])[-2:])
    np.testing.assert_array_equal(there, rows_of(load(), 0, TEXT, [12])[-2:])
    model.decode([Chunk(2, 0, [7], 0)])


def test_cutting_to_more_than_is_held_changes_nothing(load: Load) -> None:
    model = load()
    model.decode([Chunk(0, 0, TEXT, 0)])
    model.truncate(0, 99)
    [rows] = model.decode([Chunk(0, 12, [5], 1)])
    assert np.isfinite(rows[0]).all()


# text


@pytest.mark.parametrize(
    "text", ["the target rides", "caf\u00e9 \U0001f642", "\x00\x7f", "", "</s>"]
)
def test_text_survives_tokens(load: Load, text: str) -> None:
    model = load()
    ids = model.tokenize(text.encode(), add_special=False, parse_special=False)
    texts = model.token_texts()
    assert b"".join(texts[token_id] for token_id in ids) == text.encode()


def test_special_text_is_read_only_when_asked_for(load: Load) -> None:
    model = load()
    assert model.tokenize(b"</s>", add_special=True, parse_special=True) == [0, 1]
    assert 1 not in model.tokenize(b"</s>", add_special=True, parse_special=False)


def test_a_long_text_and_bytes_that_are_no_text_are_tokenized(load: Load) -> None:
    model = load()
    assert len(model.tokenize(b"a" * 50_000, add_special=True, parse_special=False)) > 1
    ids = model.tokenize(b"\xff\xfe", add_special=False, parse_special=False)
    assert all(0 <= token_id < SIZE for token_id in ids)


def test_there_is_a_text_and_a_name_for_every_token(load: Load) -> None:
    model = load()
    assert len(model.token_texts()) == len(model.token_names()) == SIZE
    assert model.token_names()[:3] == [b"<s>", b"</s>", b"<pad>"]
    assert model.token_texts()[:3] == [b"", b"", b""]


# sampling


CHAINS = [
    SamplingParameters(),
    SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
    SamplingParameters(temperature=0.3, top_k=0, top_p=0.8, min_p=0.0),
    SamplingParameters(temperature=2.5, top_k=0, top_p=1.0, min_p=0.1),
    SamplingParameters(temperature=1.3, top_k=0, top_p=0.7, min_p=0.02),
    SamplingParameters(temperature=0.7, top_k=5, top_p=1.0, min_p=0.0),
    SamplingParameters(temperature=0.9, top_k=1, top_p=0.5, min_p=0.5),
    SamplingParameters(temperature=100.0, top_k=319, top_p=0.999, min_p=0.001),
    SamplingParameters(temperature=1e-4, top_k=40, top_p=0.95, min_p=0.05),
    GREEDY,
]


def dense(distribution: Distribution, size: int) -> NDArray[np.float64]:
    """Return the probability of every id."""
    probabilities = np.zeros(size)
    probabilities[distribution.token_ids] = distribution.weights / distribution.total
    return probabilities


@pytest.mark.parametrize("parameters", CHAINS)
def test_the_chains_distribution_is_the_distribution_that_is_written_down(
    load: Load, parameters: SamplingParameters
) -> None:
    model = load()
    sampler = model.sampler(parameters)
    for row in rows_of(model, 0, TEXT, [12]):
        distribution = sampler.distribution(row)
        assert len(set(distribution.token_ids.tolist())) == len(distribution.token_ids)
        expected = dense(distribution_of(row, parameters), SIZE)
        np.testing.assert_allclose(dense(distribution, SIZE), expected, atol=1e-6)


@pytest.mark.parametrize("parameters", CHAINS)
def test_a_cut_row_has_the_distribution_of_its_ids(
    load: Load, parameters: SamplingParameters
) -> None:
    model = load()
    row = rows_of(model, 0, TEXT, [12])[-1][:200]
    expected = dense(distribution_of(row, parameters), 200)
    np.testing.assert_allclose(
        dense(model.sampler(parameters).distribution(row), 200), expected, atol=1e-6
    )


def test_a_distribution_leaves_the_row_as_it_is_and_does_not_change_with_use(load: Load) -> None:
    model = load()
    sampler = model.sampler(SamplingParameters())
    rows = rows_of(model, 0, TEXT, [12])
    before = rows.copy()
    first = [sampler.distribution(row) for row in rows]
    again = [sampler.distribution(row) for row in rows]
    np.testing.assert_array_equal(rows, before)
    for distribution, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(distribution.token_ids, same.token_ids)
        np.testing.assert_array_equal(distribution.weights, same.weights)


def test_two_samplers_do_not_disturb_each_other(load: Load) -> None:
    model = load()
    row = rows_of(model, 0, TEXT, [12])[-1]
    warm, cold = model.sampler(CHAINS[1]), model.sampler(CHAINS[6])
    distribution = warm.distribution(row)
    kept = distribution.token_ids.copy(), distribution.weights.copy()
    cold.distribution(row)
    np.testing.assert_array_equal(distribution.token_ids, kept[0])
    np.testing.assert_array_equal(distribution.weights, kept[1])


def test_greedy_takes_the_lowest_of_equal_logits(load: Load) -> None:
    row = np.zeros(SIZE, np.float32)
    row[[7, 9]] = 1.0
    assert load().sampler(GREEDY).distribution(row).token_ids.tolist() == [7]


# measuring


def test_a_padded_q8_0_model_is_exact(load: Load) -> None:
    model = load(context=HISTORY + 8, batch_rows=512)
    assert exact_padding(model)
    [rows] = model.decode([Chunk(0, 0, TEXT, 1), Chunk(1, 0, TEXT, 1)])[:1]
    assert np.isfinite(rows[0]).all()


def test_every_row_count_that_needs_no_padding_has_a_cost(load: Load) -> None:
    costs = decode_costs(load(context=128, batch_rows=64), time.perf_counter)
    assert [each.rows for each in costs] == [4, 8, 12, 16, 24, 32]
    assert all(each.seconds > 0.0 and each.slope >= 0.0 for each in costs)
    unpadded = decode_costs(load(context=128, pad_multiple=1), time.perf_counter)
    assert [each.rows for each in unpadded] == [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32]


def test_measuring_stops_when_its_time_is_over(load: Load) -> None:
    ticks = iter(range(1000))
    costs = decode_costs(load(), lambda: float(next(ticks)), budget=3.0)
    assert [each.rows for each in costs] == [4, 8]


def test_what_looks_dearer_than_more_rows_is_measured_again(load: Load) -> None:
    model, now = load(context=128, batch_rows=64), [0.0]
    decode, calls = model.decode, list[int]()

    def timed(chunks: Sequence[Chunk]) -> list[list[Row]]:
        count = len(chunks[0].token_ids)
        if chunks[0].row_count:
            calls.append(count)
            # Four and eight rows meet a busy machine three times.
            now[0] += 0.01 * count * (100 if calls.count(count) <= 3 and count < 12 else 1)
        return decode(chunks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "decode", timed)
        costs = decode_costs(model, lambda: now[0], budget=60.0)
    assert costs == [(n, pytest.approx(0.01 * n), 0.0) for n in (4, 8, 12, 16, 24, 32)]
    # Four rows, here those of a token, three more times: what they take after nothing. Each time
    # it is the second of two.
    assert [calls.count(n) for n in (4, 8, 12, 32)] == [12, 4, 3, 3]


def test_a_token_without_a_draft_is_measured_after_another_one(load: Load) -> None:
    """As it comes in a text: llama.cpp keeps the graph of a decode with as many rows."""
    model, now = load(context=512, batch_rows=64, pad_multiple=1), [0.0]
    decode, last = model.decode, [0]

    def timed(chunks: Sequence[Chunk]) -> list[list[Row]]:
        count = len(chunks[0].token_ids)
        now[0] += 0.01 + 0.005 * (count != last[0])
        last[0] = count
        return decode(chunks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "decode", timed)
        for costs in (
            decode_costs(model, lambda: now[0], budget=9.0),
            quick_costs(model, lambda: now[0]),
        ):
            assert [each.seconds for each in costs[:3]] == pytest.approx([0.01, 0.015, 0.015])


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize(
    ("slope", "believed"),
    # The second is 3 % of a decode of one row after the whole text: noise.
    [(5e-6, 5e-6), (6e-7, 0.0), (3e-5, 3e-5)],
)
def test_decodes_after_nothing_and_after_a_text_say_what_a_token_before_them_costs(
    load: Load, slope: float, believed: float, repeats: bool
) -> None:
    model, now = load(context=512, batch_rows=64, pad_multiple=1), [0.0]
    decode, read = model.decode, list[int]()

    def timed(chunks: Sequence[Chunk]) -> list[list[Row]]:
        [chunk] = chunks
        count = len(chunk.token_ids)
        if chunk.row_count:
            now[0] += 0.01 + 0.001 * count + slope * count * chunk.position
        else:
            now[0] += 0.001 * count
            read.append(count)
        return decode(chunks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "decode", timed)
        if not repeats:
            patch.setattr(model, "repeat_cells", lambda sequence, token_count: 1)
        costs = decode_costs(model, lambda: now[0], budget=9.0)
    assert [each.rows for each in costs] == [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32]
    # After nothing but the token before, of one row.
    assert [each.seconds for each in costs] == pytest.approx(
        [0.01 + 0.001 * n + slope * (n == 1) for n in ROW_COUNTS]
    )
    noise = 0.05 * 0.011 / min(sum(read), 480) if not repeats else 0.05 * 0.011 / 480
    assert costs[0].slope == pytest.approx(believed, abs=1.1 * noise)
    assert (costs[0].slope == 0.0) == (believed == 0.0)
    if repeats:
        assert sum(read) < 16
    else:  # more than the shortest text, as far as the time for it reaches
        assert HISTORY < sum(read) <= 480
    model.decode([Chunk(0, 0, [5], 1)])  # the sequence is left empty


@pytest.mark.parametrize("context", [8, 12, 19, 20, 33])
def test_a_small_context_can_be_measured_or_is_refused(load: Load, context: int) -> None:
    try:
        model = load(context=context, batch_rows=512)
    except InvalidConfig:
        return
    assert decode_costs(model, time.perf_counter)
    assert exact_padding(model) in (None, *PADDINGS)
    model.decode([Chunk(0, 0, [5] * context, 1), Chunk(1, 0, [5] * context, 1)])


def test_rows_that_fill_a_decode_change_no_row_and_leave_nothing(load: Load) -> None:
    """Whatever the sequences hold that they are of, and whether they hold anything."""
    model, alone = load(pad_multiple=1, sequence_count=6), load(pad_multiple=1, sequence_count=6)
    for each in (model, alone):
        for sequence in (0, 1, 3, 4):  # 2 and 5 are empty
            each.decode([Chunk(sequence, 0, TEXT[: 5 + sequence], 0)])
    for step in range(3):
        places = [(sequence, 5 + sequence + step) for sequence in (0, 1, 4)]
        plain = [Chunk(sequence, held, [65 + held], 1) for sequence, held in places]
        filled = [replace(plain[0], fillers=(2, 3, 5)), *plain[1:]]
        rows, expected = model.decode(filled), alone.decode(plain)
        for [row], [other] in zip(rows, expected, strict=True):
            assert np.abs(row - other).max() < 1e-3 * other.std()
    # What they were of goes on as if nothing had been.
    for sequence, count in ((3, 8), (2, 0)):
        chunk = Chunk(sequence, count, TEXT[:3], 1)
        [[row]], [[other]] = model.decode([chunk]), alone.decode([chunk])
        assert np.abs(row - other).max() < 1e-3 * other.std()


def test_a_sequence_without_room_fills_no_decode(load: Load) -> None:
    model = load(pad_multiple=1, context=64)
    capacity = model.describe().context
    model.decode([Chunk(2, 0, [5] * min(64, capacity), 0)])
    if capacity > 64:
        model.decode([Chunk(2, 64, [5] * (capacity - 64), 0)])
    rows = model.decode([Chunk(0, 0, [7], 1, fillers=(2,)), Chunk(1, 0, [7], 1)])
    assert [len(each) for each in rows] == [1, 1]
    assert model.truncate(2, 1000) == capacity
