"""Synthetic pairs: sound files of the size they should have, which agree as often as asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter, TokenType, quants

from model_making import synthetic
from model_making.agreement import Position, acceptance, agreement, longest_repeat, write_texts
from model_making.synthetic import SHAPES, Acceptance, Agreement, Pair
from outrider import handshake
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk
from outrider.sampling import GREEDY
from tests.support.tiny_gguf import write_model

TINY = SHAPES["tiny"]
TEXT = "the target rides ahead, caf\u00e9 \U0001f642\n"
TOKENIZER_SIZE = 320


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tokenizer") / "model.gguf")


@pytest.fixture(scope="module")
def pair(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return synthetic.make_pair(TINY, Agreement(0.65), tokenizer, tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def models(pair: Pair) -> Iterator[tuple[LlamaModel, LlamaModel]]:
    with ExitStack() as stack:
        target, draft = load(pair.target), load(pair.draft)
        stack.callback(target.close)
        stack.callback(draft.close)
        yield target, draft


def load(path: Path) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(path=path, context=64, sequence_count=1, thread_count=1, pad_multiple=4)
    )


# what a pair says


def test_agreement_is_as_asked_on_texts_that_did_not_decide_it(pair: Pair) -> None:
    texts = write_texts(pair.target, pair.draft, [1, 1], 256, GREEDY, threads=1)
    # The deviation of the last trial and of these 8192 positions together is .009.
    assert abs(agreement(texts) - 0.65) < 0.03
    repeats = [longest_repeat([p.token_id for p in text]) for text in texts]
    assert np.median(repeats) < 8
    written = {position.token_id for text in texts for position in text}
    assert len(written) > TINY.vocabulary // 4
    assert not written & set(synthetic.quiet_tokens(synthetic.read_tokenizer(pair.target)))


def test_acceptance_is_as_asked(tokenizer: Path, tmp_path: Path) -> None:
    pair = synthetic.make_pair(TINY, Acceptance(0.65, draft_length=3), tokenizer, tmp_path)
    texts = write_texts(pair.target, pair.draft, [1, 1], 256, GREEDY, threads=1)
    # Rounds are fewer than positions: here it is .013.
    assert abs(acceptance(texts, 3) - 0.65) < 0.05
    assert agreement(texts) > 0.7


def test_without_a_residual_both_compute_the_same(tokenizer: Path, tmp_path: Path) -> None:
    pair = synthetic.make_pair(TINY, Agreement(1.0), tokenizer, tmp_path)
    assert pair.residual == 0.0
    ids = np.random.default_rng(1).integers(TINY.vocabulary, size=60).tolist()
    rows = []
    for path in (pair.target, pair.draft):
        model = load(path)
        rows.append(np.array(model.decode([Chunk(0, 0, ids, len(ids))])[0]))
        model.close()
    assert (rows[0].argmax(1) == rows[1].argmax(1)).all()
    np.testing.assert_array_equal(rows[0], rows[1])


def test_logits_are_as_sharp_as_planned(models: tuple[LlamaModel, LlamaModel]) -> None:
    deviation = synthetic.SHARPNESS * np.sqrt(2 * np.log(TINY.vocabulary))
    for model in models:
        model.truncate(0, 0)
        [rows] = model.decode([Chunk(0, 0, list(range(300, 360)), 60)])
        assert np.std(rows) == pytest.approx(deviation, rel=0.1)


# the files


def test_the_same_seed_gives_the_same_bytes(pair: Pair, tokenizer: Path, tmp_path: Path) -> None:
    again = synthetic.make_pair(TINY, Agreement(0.65), tokenizer, tmp_path)
    assert again.residual == pair.residual
    assert again.target.read_bytes() == pair.target.read_bytes()
    assert again.draft.read_bytes() == pair.draft.read_bytes()
    assert sorted(tmp_path.iterdir()) == [again.draft, again.target]


def test_the_residual_of_a_pair_writes_it_again(
    pair: Pair, tokenizer: Path, tmp_path: Path
) -> None:
    again = synthetic.write_pair(TINY, pair.residual, tokenizer, tmp_path)
    assert again.target.read_bytes() == pair.target.read_bytes()
    other = synthetic.write_pair(TINY, pair.residual, tokenizer, tmp_path, seed=2)
    assert other.target.read_bytes() != pair.target.read_bytes()


def test_files_have_the_computed_size(pair: Pair, models: tuple[LlamaModel, LlamaModel]) -> None:
    for path, model, layers in zip((pair.target, pair.draft), models, (4, 1), strict=True):
        shape = replace(TINY, layers=layers)
        size = sum(tensor.size for tensor in synthetic.tensors(shape, ()))
        assert model.describe().weight_bytes == size
        assert path.stat().st_size - GGUFReader(path).data_offset == size


@pytest.mark.parametrize(
    ("name", "layers", "parameters", "megabytes"),
    [("1.1b", 22, 1100, 619), ("1.1b", 1, 175, 98), ("152k", 24, 494, 346), ("152k", 1, 151, 153)],
)
def test_large_shapes_are_of_the_size_of_real_models(
    name: str, layers: int, parameters: int, megabytes: int
) -> None:
    planned = synthetic.tensors(replace(SHAPES[name], layers=layers), ())
    weights = sum(t.columns * getattr(t, "rows", 1) for t in planned)
    assert weights / 1e6 == pytest.approx(parameters, abs=1)
    assert sum(t.size for t in planned) / 1e6 == pytest.approx(megabytes, abs=1)


def test_random_weights_have_the_planned_moments() -> None:
    for kind in (synthetic.Q4_0, synthetic.Q8_0):
        matrix = synthetic.Matrix("m", 256, 512, 0.02, kind, quiet_rows=(3,))
        weights = quants.dequantize(synthetic.stored(matrix, 1).view(np.uint8), kind)
        assert weights.shape == (256, 512)
        assert weights.std() == pytest.approx(0.02, rel=0.02)
        assert abs(weights.mean()) < 5 * 0.02 / 362  # 362 is the root of the count
        assert weights[3].std() == pytest.approx(0.002, rel=0.1)


# the tokenizer


def test_both_have_one_vocabulary(models: tuple[LlamaModel, LlamaModel]) -> None:
    target, draft = models
    assert target.describe().vocabulary == draft.describe().vocabulary
    assert target.describe().vocabulary.token_count == TINY.vocabulary
    assert handshake.digest(target.token_names()) == handshake.digest(draft.token_names())


def test_text_is_tokenized_as_before(
    models: tuple[LlamaModel, LlamaModel], tokenizer: Path
) -> None:
    original = load(tokenizer)
    ids = original.tokenize(TEXT.encode(), True, False)
    original.close()
    for model in models:
        assert model.tokenize(TEXT.encode(), True, False) == ids
        assert b"".join(model.token_texts()[i] for i in ids) == TEXT.encode()


def test_every_added_token_has_a_text_of_its_own(models: tuple[LlamaModel, LlamaModel]) -> None:
    texts = models[0].token_texts()[TOKENIZER_SIZE:]
    assert texts[0] == b"<320>"
    assert len(set(texts)) == TINY.vocabulary - TOKENIZER_SIZE
    assert all(text.decode().isprintable() for text in texts)


def test_a_sentencepiece_tokenizer_is_taken_too(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581abc"]
    kinds = [TokenType.UNKNOWN] + [TokenType.CONTROL] * 2 + [TokenType.BYTE] * 256
    writer = GGUFWriter(tmp_path / "pieces.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(i) for i in range(len(pieces))])
    writer.add_token_types([*kinds, *[TokenType.NORMAL] * 4])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    pair = synthetic.write_pair(TINY, 0.2, tmp_path / "pieces.gguf", tmp_path)
    model = load(pair.target)
    texts = model.token_texts()
    assert texts[263] == b"<263>"
    ids = model.tokenize(b"ab<300>\xc3\xa9", True, False)
    assert ids[0] == 1
    assert b"".join(texts[i] for i in ids) == b" ab<300>\xc3\xa9"
    model.close()
    assert synthetic.quiet_tokens(synthetic.read_tokenizer(pair.target)) == (0, 1, 2)


def test_a_tokenizer_that_does_not_fit_is_refused(tokenizer: Path) -> None:
    keys = synthetic.read_tokenizer(tokenizer)
    with pytest.raises(SystemExit, match="the tokenizer has 320 tokens, the shape 100"):
        synthetic.enlarged(keys, 100)


def test_added_tokens_avoid_the_names_there_are() -> None:
    names = [b"a", b"<3>", b"<2>"]
    key = synthetic.Key(names, GGUFValueType.ARRAY, GGUFValueType.STRING)
    keys = synthetic.enlarged({synthetic.TOKENS: key}, 5)
    assert keys[synthetic.TOKENS].value == [*names, b"<4>", b"<5>"]


# the figures


def test_acceptance_counts_rounds_along_a_text() -> None:
    text = [Position(1, draft_id, 0, 0.5) for draft_id in (1, 1, 1, 0, 0, 1, 0, 1, 1)]
    assert agreement([text]) == 6 / 9
    # Rounds of 3: three accepted and one more; none; one; both that are left.
    assert acceptance([text], 3) == (3 + 0 + 1 + 2) / (3 + 3 + 3 + 2)


@pytest.mark.parametrize(
    ("text", "longest"), [("abcdef", 0), ("aabcde", 1), ("xabcabcab", 5), ("aaaa", 3)]
)
def test_a_loop_is_a_long_repeat(text: str, longest: int) -> None:
    assert longest_repeat(list(text.encode())) == longest


@pytest.mark.parametrize("power", [1.0, 1.3, 1.8])
@pytest.mark.parametrize("share", [0.3, 0.65, 0.9])
def test_the_residual_is_found(power: float, share: float) -> None:
    def measure(residual: float, count: int) -> float:
        return float(1.0 / (1.0 + (residual / 0.2) ** power))

    assert measure(synthetic.tune(measure, share), 0) == pytest.approx(share, abs=0.03)
