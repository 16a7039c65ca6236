"""A session's distribution is llama.cpp's own, for every sampler and every two of them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.distribution import Distribution
from outrider.engine.guesser import guesser
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_candidates import Candidates
from outrider.engine.llama_loading import LlamaConfig
from outrider.errors import InvalidRequest
from outrider.messages import Rule, SessionParameters
from outrider.noise import Purpose, uniform
from outrider.sampling import SamplingParameters, Stage
from tests.support.sampling_table import JSON_GRAMMAR, LETTERS, pairwise
from tests.support.tiny_gguf import Shape, write_model

import llama_cpp as ll  # isort: skip  (outrider.engine.llama sets its environment first)

SIZE = 320
CONTEXT = 128
SEED = 5
TEXT = [0, 70, 260, 13, 71, 72, 261, 90, 70, 92, 301, 70, 260, 13]
PROMPT = len(TEXT)
FREQUENT = [1, 13, 35, 70, 71, 72, 90, 92, 126, 260, 261, 301]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", shape=Shape(layers=1))
    loaded = LlamaModel(
        LlamaConfig(path=path, context=CONTEXT, sequence_count=1, thread_count=1, pad_multiple=1)
    )
    yield loaded
    loaded.close()


def rows(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Return rows of logits: a few likely tokens, often the same, and a long tail."""
    random = np.random.default_rng(seed)
    logits = random.gumbel(size=(count, SIZE)) * 2.5 - 3
    logits[:, FREQUENT] += 8
    return logits.astype(np.float32)


def dense(distribution: Distribution) -> NDArray[np.float64]:
    probabilities = np.zeros(SIZE)
    probabilities[distribution.token_ids] = distribution.weights / distribution.total
    return probabilities


class Reference:
    """llama.cpp's chain as its own server makes it, grammar first, every sampler in its place.

    Tail-free sampling is written down here by its definition. What draws in
    `apply` is told what to draw: XTC by its probability, 0 or 1.
    """

    def __init__(self, model: LlamaModel, parameters: SamplingParameters) -> None:
        self._vocab = model._vocabulary.pointer
        self._parameters = parameters
        self._grammar = None
        if parameters.grammar:
            text = parameters.grammar.encode()
            self._grammar = ll.llama_sampler_init_grammar(self._vocab, text, b"root")
        self.links = [(name, self._make(name)) for name in self._names()]
        self.position = 0

    def _names(self) -> list[str]:
        names = [stage.value for stage in self._parameters.stages]
        if self._parameters.mirostat:
            kept = [name for name in names if name in ("penalties", "dry")]
            names = [*kept, "temperature", "mirostat"]
        return ["bias", *names]

    def _make(self, name: str) -> Any:
        its = self._parameters
        window = CONTEXT if its.repeat_last_n < 0 else its.repeat_last_n
        breakers = [breaker.encode() for breaker in its.dry_sequence_breakers]
        bias = (ll.llama_logit_bias * len(its.logit_bias))(
            *(ll.llama_logit_bias(*each) for each in its.logit_bias)
        )
        mirostats = {
            0: lambda: None,
            1: lambda: ll.llama_sampler_init_mirostat(
                SIZE, 1, its.mirostat_tau, its.mirostat_eta, 100
            ),
            2: lambda: ll.llama_sampler_init_mirostat_v2(1, its.mirostat_tau, its.mirostat_eta),
        }
        return {
            "bias": lambda: ll.llama_sampler_init_logit_bias(SIZE, len(bias), bias),
            "penalties": lambda: ll.llama_sampler_init_penalties(
                SIZE, window, its.repeat_penalty, its.frequency_penalty, its.presence_penalty
            ),
            "dry": lambda: ll.llama_sampler_init_dry(
                self._vocab,
                its.dry_multiplier,
                its.dry_base,
                its.dry_allowed_length,
                CONTEXT if its.dry_penalty_last_n < 0 else its.dry_penalty_last_n,
                (ctypes.c_char_p * len(breakers))(*breakers),
                len(breakers),
            ),
            "top_n_sigma": lambda: ll.llama_sampler_init_top_n_sigma(its.top_n_sigma),
            "top_k": lambda: ll.llama_sampler_init_top_k(its.top_k),
            "tfs_z": lambda: None,
            "typ_p": lambda: ll.llama_sampler_init_typical(its.typical_p, its.min_keep),
            "top_p": lambda: ll.llama_sampler_init_top_p(its.top_p, its.min_keep),
            "min_p": lambda: ll.llama_sampler_init_min_p(its.min_p, its.min_keep),
            "xtc": lambda: ll.llama_sampler_init_xtc(1.0, its.xtc_threshold, its.min_keep, 1),
            "temperature": lambda: ll.llama_sampler_init_temp_ext(
                its.temperature, its.dynatemp_range, its.dynatemp_exponent
            ),
            "mirostat": mirostats[its.mirostat],
        }[name]()

    def accept(self, token_id: int, is_prompt: bool) -> None:
        if self._grammar is not None and not is_prompt:
            ll.llama_sampler_accept(self._grammar, token_id)
        for name, link in self.links:
            if name in ("penalties", "dry"):
                ll.llama_sampler_accept(link, token_id)
        self.position += 1

    def distribution(self, row: NDArray[np.float32]) -> tuple[NDArray[np.float64], int | None]:
        """Return the probability of every id, and what mirostat drew."""
        table = np.zeros(SIZE, np.dtype([("id", "i4"), ("logit", "f4"), ("p", "f4")]))
        table["id"], table["logit"] = np.arange(SIZE), row
        array = ll.llama_token_data_array(
            table.ctypes.data_as(ll.llama_token_data_p), SIZE, -1, False
        )
        if self._grammar is not None:
            ll.llama_sampler_apply(self._grammar, ctypes.byref(array))
        for name, link in self.links:
            self._apply(name, link, table, array)
        kept = _view(array)
        weights = np.exp(kept["logit"].astype(np.float64) - kept["logit"].max())
        probabilities = np.zeros(SIZE)
        probabilities[kept["id"]] = weights / weights.sum()
        drawn = int(kept["id"][array.selected]) if self._parameters.mirostat else None
        return probabilities, drawn

    def _apply(self, name: str, link: Any, table: NDArray[Any], array: Any) -> None:
        its = self._parameters
        if name == "tfs_z":
            _tail_free(array, its.tfs_z, its.min_keep)
        elif name == "xtc":
            coin = uniform(SEED, 0, Purpose.XTC, 0, self.position)
            if its.xtc_probability > 0 and coin <= its.xtc_probability:
                ll.llama_sampler_apply(link, ctypes.byref(array))
        elif name == "penalties" and not its.penalize_newline:
            newline = ll.llama_vocab_nl(self._vocab)
            before = {int(each["id"]): float(each["logit"]) for each in _view(array)}
            ll.llama_sampler_apply(link, ctypes.byref(array))
            kept = _view(array)
            kept["logit"][kept["id"] == newline] = before.get(newline, 0.0)
        elif link is not None:
            ll.llama_sampler_apply(link, ctypes.byref(array))


def _view(array: Any) -> NDArray[Any]:
    start = ctypes.addressof(array.data.contents)
    memory = (ctypes.c_char * (array.size * 12)).from_address(start)
    return np.ctypeslib.as_array(memory).view([("id", "i4"), ("logit", "f4"), ("p", "f4")])


def _tail_free(array: Any, z: float, min_keep: int) -> None:
    if z >= 1 or array.size <= 2:
        return
    kept = _view(array)
    kept[:] = kept[np.argsort(-kept["logit"], kind="stable")]
    array.sorted = True
    p = np.exp(kept["logit"] - kept["logit"][0])
    p = (p / p.sum()).astype(np.float32)
    second = [abs((p[i] - p[i + 1]) - (p[i + 1] - p[i + 2])) for i in range(len(p) - 2)]
    total, mass = sum(second), 0.0
    for i, curvature in enumerate(second):
        mass += curvature / total
        if mass > z and i >= max(1, min_keep):
            array.size = i
            return


def walk(
    model: LlamaModel, parameters: SamplingParameters, seed: int, count: int
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield our distribution and llama.cpp's over a text that is drawn from them."""
    ours, theirs = model.sampler(parameters, SEED, 0), Reference(model, parameters)
    for token_id in TEXT[:PROMPT]:
        ours.accept(token_id, is_prompt=True)
        theirs.accept(token_id, is_prompt=True)
    for i, row in enumerate(rows(count, seed)):
        distribution, (expected, drawn) = ours.distribution(row), theirs.distribution(row)
        yield dense(distribution), expected
        token_id = distribution.race(seed, 0, i)[0] if drawn is None else drawn
        if token_id == 1:
            return
        ours.accept(token_id)
        theirs.accept(token_id, is_prompt=False)


TABLE = pairwise()


@pytest.mark.parametrize("parameters", TABLE, ids=range(len(TABLE)))
def test_every_two_settings_together_give_llama_cpps_own_distribution(
    model: LlamaModel, parameters: SamplingParameters
) -> None:
    for seed in range(3):
        for distribution, expected in walk(model, parameters, seed, 12):
            if parameters.greedy:
                assert distribution.argmax() == expected.argmax()
            else:
                np.testing.assert_allclose(distribution, expected, atol=2e-6)


ONE_BY_ONE = [
    {"typical_p": 0.6},
    {"top_n_sigma": 1.0},
    {"tfs_z": 0.8},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05},
    {"xtc_probability": 0.4, "xtc_threshold": 0.05, "min_keep": 2},
    {"repeat_penalty": 1.8, "repeat_last_n": 3},
    {"presence_penalty": 3.0},
    {"frequency_penalty": -2.0, "repeat_last_n": -1},
    {"repeat_penalty": 2.0, "penalize_newline": False},
    {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
    {"logit_bias": ((5, 9.0), (9, -math.inf))},
    {"dynatemp_range": 0.8},
    {"mirostat": 1, "mirostat_tau": 2.0, "mirostat_eta": 0.5},
    {"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.5},
    {"grammar": LETTERS},
    {"grammar": JSON_GRAMMAR},
    {"grammar": JSON_GRAMMAR, "temperature": 0.0},
    {"grammar": JSON_GRAMMAR, "top_k": 0},
]


@pytest.mark.parametrize("options", ONE_BY_ONE, ids=str)
def test_each_sampler_changes_the_distribution_as_llama_cpps_does(
    model: LlamaModel, options: dict[str, Any]
) -> None:
    free = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    parameters = SamplingParameters(**(free | options))
    plain = model.sampler(SamplingParameters(**free))
    changed = 0
    for seed in range(4):
        for i, (distribution, expected) in enumerate(walk(model, parameters, seed, 25)):
            np.testing.assert_allclose(distribution, expected, atol=2e-6)
            changed += not np.allclose(
                distribution, dense(plain.distribution(rows(25, seed)[i])), atol=1e-3
            )
    assert changed > 3


def test_the_table_meets_every_pair_and_is_not_too_long() -> None:
    assert 10 <= len(TABLE) < 80
    assert any(p.mirostat and p.grammar for p in TABLE)
    assert any(p.xtc_probability and p.dry_multiplier and not p.mirostat for p in TABLE)


# state


def test_a_clone_goes_its_own_way(model: LlamaModel) -> None:
    parameters = SamplingParameters(
        repeat_penalty=1.5, grammar=JSON_GRAMMAR, dry_multiplier=1.0, xtc_probability=0.5
    )
    sampler = model.sampler(parameters, SEED, 0)
    [row, *others] = rows(6, seed=3)
    before = dense(sampler.distribution(row))
    clone = sampler.clone()
    for other in others:
        clone.accept(clone.distribution(other).race(1, 0, 0)[0])
    np.testing.assert_array_equal(dense(sampler.distribution(row)), before)
    assert not np.allclose(dense(clone.distribution(row)), before)


def test_a_token_that_the_grammar_forbids_is_refused_and_harmless(model: LlamaModel) -> None:
    sampler = model.sampler(SamplingParameters(grammar='root ::= "ab"'))
    letter_a, letter_b = (model.tokenize(text, False, False)[0] for text in (b"a", b"b"))
    for wrong in (letter_b, 1, 0):
        with pytest.raises(InvalidRequest, match="does not allow token"):
            sampler.accept(wrong)
    sampler.accept(letter_a)
    assert sampler.distribution(rows(1)[0]).token_ids.tolist() == [letter_b]
    sampler.accept(letter_b)
    assert sampler.distribution(rows(1)[0]).token_ids.tolist() == [1]
    sampler.accept(1)


def test_what_leaves_no_token_is_an_error_and_not_a_distribution(model: LlamaModel) -> None:
    nothing = tuple((token_id, -math.inf) for token_id in range(SIZE))
    sampler = model.sampler(SamplingParameters(logit_bias=nothing))
    with pytest.raises(InvalidRequest, match="no token"):
        sampler.distribution(rows(1)[0])


@pytest.mark.parametrize("grammar", ["root ::= missing", 'other ::= "a"', "((("])
def test_a_bad_grammar_is_refused_by_name(model: LlamaModel, grammar: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        model.sampler(SamplingParameters(grammar=grammar))
    assert refused.value.field == "grammar"


def test_a_bias_outside_the_vocabulary_is_refused(model: LlamaModel) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias"):
        model.sampler(SamplingParameters(logit_bias=((SIZE, 1.0),)))


def test_windows_as_large_as_numbers_go_cost_no_more_than_the_context(model: LlamaModel) -> None:
    huge = 2**31 - 1
    sampler = model.sampler(
        SamplingParameters(
            repeat_penalty=1.1,
            repeat_last_n=huge,
            dry_multiplier=1.0,
            dry_penalty_last_n=huge,
            dry_allowed_length=huge,
            min_keep=huge,
            top_k=huge,
        )
    )
    sampler.accept(70, is_prompt=True)
    assert len(sampler.distribution(rows(1)[0]).token_ids) == SIZE


@pytest.mark.parametrize("wanted", [1, 5, 40, 300])
def test_a_cut_that_drops_nothing_changes_nothing_under_a_grammar(
    model: LlamaModel, wanted: int
) -> None:
    free = SamplingParameters(temperature=1.0, top_k=wanted, top_p=1.0, min_p=0.0)
    masked = replace(free, grammar=LETTERS)
    # This one comes before top-k, and sees the whole masked row.
    another = replace(masked, stages=(Stage.MIN_P, Stage.TOP_K, Stage.TEMPERATURE), min_p=1e-30)
    for row in rows(20, seed=8):
        np.testing.assert_allclose(
            dense(model.sampler(masked).distribution(row)),
            dense(model.sampler(another).distribution(row)),
            atol=1e-9,
        )


def texts(model: LlamaModel, token_ids: Sequence[int]) -> bytes:
    table = model.token_texts()
    return b"".join(table[token_id] for token_id in token_ids)


def test_a_walk_through_a_grammar_writes_its_language(model: LlamaModel) -> None:
    sampler = model.sampler(SamplingParameters(grammar=LETTERS, top_k=0, top_p=1.0, min_p=0.0))
    written: list[int] = []
    for i, row in enumerate(rows(200, seed=2)):
        written.append(sampler.distribution(row).race(1, 0, i)[0])
        if written[-1] == 1:
            break
        sampler.accept(written[-1])
    text = texts(model, written).decode()
    assert written[-1] == 1 and text.endswith(".")
    assert set(text[:-1]) <= set("abcdefghijklmnopqrstuvwxyz ")


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


BUNDLED = Path(__file__).resolve().parents[2] / "models" / "stdlib-draft-q8_0.gguf"


@pytest.mark.parametrize(
    "grammar",
    [
        JSON_GRAMMAR,
        LETTERS,
        'root ::= [\\u0430-\\u044f]+ "."',
        'root ::= [^a-zé]* "\\n"',
        'root ::= ("é" | "漢" [^漢])* "x"',
        "root ::= .*",
    ],
)
def test_a_grammar_masks_what_llama_cpp_masks(grammar: str) -> None:
    model = LlamaModel(
        LlamaConfig(path=BUNDLED, context=64, sequence_count=1, thread_count=1, pad_multiple=1)
    )
    size = model.describe().vocabulary.token_count
    sampler = model.sampler(SamplingParameters(grammar=grammar, top_k=0, top_p=1.0, min_p=0.0))
    native = ll.llama_sampler_init_grammar(model._vocabulary.pointer, grammar.encode(), b"root")
    texts = model.token_texts()
    random = np.random.default_rng(3)
    candidates = Candidates(size)
    for _ in range(60):
        row = random.normal(size=size).astype(np.float32)
        candidates.fill(row)
        candidates.apply(native)
        theirs = set(candidates.ids[np.isfinite(candidates.logits)].tolist())
        allowed = np.sort(sampler.distribution(row).token_ids)
        # llama.cpp also lets some bytes through that are no UTF-8, and where characters are
        # excluded it refuses the bytes that others begin with too.
        assert all(not is_utf8(texts[i]) for i in theirs ^ set(allowed.tolist()))
        token_id = int(random.choice([i for i in allowed if i in theirs]))
        if token_id in model.describe().vocabulary.end_token_ids:
            break
        sampler.accept(token_id)
        ll.llama_sampler_accept(native, token_id)
    ll.llama_sampler_free(native)
    model.close()


@pytest.mark.parametrize("rule", Rule)
def test_a_draft_with_more_ids_than_the_target_picks_for_every_sampler(
    model: LlamaModel, rule: Rule
) -> None:
    size = 200
    for parameters in [*TABLE, SamplingParameters(grammar=JSON_GRAMMAR)]:
        bias = tuple((i, value) for i, value in parameters.logit_bias if i < size)
        session = SessionParameters(
            session_id=bytes(16),
            attempt=1,
            rule=rule,
            sampling=replace(parameters, logit_bias=bias),
            seed=SEED,
            choice=0,
            prompt_count=PROMPT,
            token_limit=50,
            vocabulary=size,
        )
        pick = guesser(model, session, 4, 0.0)
        for row in rows(3):
            guess = pick(row, PROMPT, TEXT)
            assert 0 <= guess.token_id < size
            assert guess.row is None or guess.row.token_ids.max() < size
