"""Grammars that are let through, in llama.cpp itself; and texts of tokens that follow them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.schema import grammar_of_schema
from tests.engine.follow_grammars import LlamaGrammar, LlamaVocabulary, allowed, differences
from tests.support.grammars import USUAL
from tests.support.schemas import USUAL as USUAL_SCHEMAS
from tests.support.schemas import is_valid
from tests.support.tiny_gguf import Shape, write_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", shape=Shape(layers=1))


@pytest.fixture(scope="module")
def vocabulary(path: Path) -> LlamaVocabulary:
    return LlamaVocabulary(path)


def follow_apart(path: Path, grammars: list[str]) -> tuple[int, list[str]]:
    """Let another process follow grammars; return how it ended and what it said of each."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.engine.follow_grammars", str(path), "1"],
        input=json.dumps(grammars),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        timeout=100,
        check=False,
    )
    return child.returncode, child.stdout.splitlines()


@pytest.mark.parametrize("name", USUAL)
def test_llama_cpp_allows_the_same_tokens(vocabulary: LlamaVocabulary, name: str) -> None:
    choose = random.Random(1)
    for _ in range(5):
        grammar = LlamaGrammar(vocabulary, USUAL[name])
        matcher = vocabulary.matcher(USUAL[name])
        written = b""
        for _ in range(40):
            ours = allowed(matcher, vocabulary.ids)
            theirs = grammar.allowed(vocabulary.ids)
            assert differences(vocabulary, written, theirs, ours) == set()
            tokens = sorted(ours & theirs - vocabulary.ends)
            if not tokens:
                break
            token_id = choose.choice(tokens)
            grammar.accept(token_id)
            assert matcher.accept(token_id)
            written += vocabulary.texts[token_id]
        grammar.close()


def test_random_tokens_of_a_schema_make_valid_json(vocabulary: LlamaVocabulary) -> None:
    schemas = list(USUAL_SCHEMAS.values())
    grammars = [grammar_of_schema(json.dumps(schema)) for schema in schemas]
    for walk in range(200):
        which = walk % len(schemas)
        text = random_walk(vocabulary, grammars[which], random.Random(walk))
        assert is_valid(json.loads(text), schemas[which]), text


def random_walk(vocabulary: LlamaVocabulary, text: str, choose: random.Random) -> str:
    """Return a text of random allowed tokens, which soon closes what it has opened."""
    closing = [vocabulary.texts.index(text) for text in (b'"', b"}", b"]")]
    grammar = LlamaGrammar(vocabulary, text)
    matcher = vocabulary.matcher(text)
    written = b""
    for step in range(1000):
        ours = allowed(matcher, vocabulary.ids)
        if step % 8 == 0:
            theirs = grammar.allowed(vocabulary.ids)
            assert differences(vocabulary, written, theirs, ours) == set()
        preferred = [token_id for token_id in (*vocabulary.ends, *closing) if token_id in ours]
        closes = preferred and step > 40 and choose.random() < 0.7
        token_id = preferred[0] if closes else choose.choice(sorted(ours))
        if token_id in vocabulary.ends:
            break
        grammar.accept(token_id)
        assert matcher.accept(token_id)
        written += vocabulary.texts[token_id]
    else:
        raise AssertionError(f"no end: {written!r}")
    grammar.close()
    return written.decode()


CHARS = st.sampled_from(
    ["a", "b", "-", "0", "é", "日", " ", r"\n", r"\x41", r"\u00e9", r"\U0001F600", r"\\", r"\]"]
)
LITERALS = st.lists(CHARS | st.just(r"\""), max_size=3).map(lambda c: f'"{"".join(c)}"')
CLASSES = st.builds(
    lambda sign, chars, more: f"[{sign}{''.join(chars)}{more}]",
    st.sampled_from(["", "^"]),
    st.lists(CHARS, min_size=1, max_size=3),
    st.sampled_from(["", "a-z", "0-9", "-", r"\x00-\x1f", "ぁ-ゟ"]),
)
NAMES = st.sampled_from(["root", "a", "b", "c-1"])
OPERATORS = st.sampled_from(
    ["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "{0}", "{ 0 , 3 }", "{30}{3}"]
)


def bodies(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return what may stand on the right of a rule, between parentheses too."""
    items = st.builds("{}{}".format, LITERALS | CLASSES | NAMES | st.just(".") | inner, OPERATORS)
    sequences = st.lists(items, min_size=1, max_size=3).map(" ".join)
    groups = st.lists(sequences, min_size=1, max_size=3).map(" | ".join)
    return groups.map(lambda body: f"( {body} )")


BODIES = st.recursive(LITERALS | CLASSES, bodies, max_leaves=6)
GRAMMARS = st.builds(
    lambda first, others: "\n".join([*others, f"root ::= {first}"]),
    bodies(BODIES),
    st.lists(BODIES, min_size=3, max_size=3).map(
        lambda three: [
            f"{name} ::= {body}" for name, body in zip(("a", "b", "c-1"), three, strict=True)
        ]
    ),
)


def test_llama_cpp_follows_every_grammar_that_is_let_through(path: Path) -> None:
    grammars = []

    @settings(
        max_examples=600,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(GRAMMARS)
    def collect(grammar: str) -> None:
        try:
            read_grammar(grammar)
        except InvalidRequest:
            return
        grammars.append(grammar)

    collect()
    assert len(grammars) > 100
    code, said = follow_apart(path, grammars)
    assert code == 0, f"died of {grammars[int(said[-1].split()[0])]!r}"
    for number, outcome in enumerate(said[1::2]):
        assert "followed" in outcome, f"{outcome}: {grammars[number]!r}"


@pytest.mark.parametrize(
    "hostile",
    [
        'root ::= n root "a" | "b"\nn ::= m m\nm ::= "x" |',
        "root ::= n root\nn ::= m m\nm ::= | |",
        "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000,
    ],
    ids=["left recursion behind nothing", "nothing but nothing", "parentheses"],
)
def test_llama_cpp_would_die_of_what_is_refused(path: Path, hostile: str) -> None:
    with pytest.raises(InvalidRequest):
        read_grammar(hostile)
    code, said = follow_apart(path, [hostile])
    assert said == ["0 begun"]
    assert code < 0
