"""Where a text is in a grammar: bytes that make no whole character, ends, copies, bounds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from outrider.engine.grammar_matcher import GrammarMatcher, GrammarVocabulary
from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import read_grammar
from tests.support.grammars import (
    AMBIGUOUS,
    JSON,
    USUAL,
    compiled,
    follow,
    lets,
    random_text,
)


def after(grammar: str, *pieces: bytes) -> GrammarMatcher | None:
    """Return the place after a text whose pieces are one token each."""
    vocabulary = GrammarVocabulary(pieces, np.zeros(len(pieces), np.bool_))
    matcher = vocabulary.matcher(read_grammar(grammar))
    return matcher if all(matcher.accept(i) for i in range(len(pieces))) else None


def test_a_text_may_end_where_the_grammar_does() -> None:
    ends = [after('root ::= "a" "b"?', piece) for piece in (b"a", b"ab")]
    assert [place is not None and place.can_end for place in ends] == [True, True]
    assert not compiled('root ::= "a"').can_end
    assert after('root ::= "a"', b"ab") is None


def test_the_end_of_a_text_is_allowed_where_the_grammar_ends_and_changes_nothing() -> None:
    vocabulary = GrammarVocabulary([b"a", b"", b""], np.array([False, True, True]))
    matcher = vocabulary.matcher(read_grammar('root ::= "a" "a"?'))
    assert matcher.allowed().tolist() == [True, False, False]
    assert not matcher.accept(1)
    assert matcher.accept(0) and matcher.allowed().tolist() == [True, True, True]
    assert matcher.accept(2) and matcher.accept(0)
    assert matcher.allowed().tolist() == [False, True, True]


def test_a_token_that_is_not_allowed_changes_nothing() -> None:
    matcher = compiled('root ::= "ab"')
    assert not matcher.accept(ord("b"))
    assert lets(matcher, "ab")


def test_a_copy_goes_its_own_way() -> None:
    matcher = compiled(JSON)
    copy = follow(matcher, b'{"a": [1')
    assert copy is not None and not copy.can_end
    assert lets(copy, ", 2]}") and not lets(copy, "}")
    assert lets(matcher, "[]") and not lets(matcher, ", 2]}")


@pytest.mark.parametrize("text", [b"", b"a\0", b"\xff"])
def test_a_token_without_a_text_is_never_allowed(text: bytes) -> None:
    vocabulary = GrammarVocabulary([text, b"a"], np.zeros(2, np.bool_))
    matcher = vocabulary.matcher(read_grammar("root ::= [^b]*"))
    assert matcher.allowed().tolist() == [False, True]
    assert not matcher.accept(0)


def test_a_character_may_come_in_pieces() -> None:
    for pieces in ([b"\xc3", b"\xa9"], [b"\xe3", b"\x81", b"\x82"], [b"x\xf0\x9f", b"\x98\x80y"]):
        text = b"".join(pieces).decode()
        place = after(f'root ::= "{text}"', *pieces)
        assert place is not None and place.can_end
        begun = after(f'root ::= "{text}"', pieces[0])
        assert begun is not None and not begun.can_end


def test_within_a_character_only_its_rest_is_allowed() -> None:
    texts = [b"\xe3", b"a", b"\x81\x82", b"\x81", b"\x82", b"\x81\x82a"]
    matcher = GrammarVocabulary(texts, np.zeros(6, np.bool_)).matcher(
        read_grammar('root ::= "あ" "a"')
    )
    assert matcher.accept(0)
    assert np.flatnonzero(matcher.allowed()).tolist() == [2, 3, 5]


@pytest.mark.parametrize(
    ("grammar", "begun"),
    {
        "no such character": ("root ::= [a-zà-ü]", b"\xe3"),
        "too low": ("root ::= [à-ü]", b"\xc4"),
        "no lead": ("root ::= .", b"\x82"),
        "longer than need be": ("root ::= .", b"\xc1"),
        "longer than need be, in three": ("root ::= .", b"\xe0\x80"),
        "a surrogate": ("root ::= .", b"\xed\xa0"),
        "beyond Unicode": ("root ::= .", b"\xf5"),
        "broken off": ("root ::= . .", b"\xe3a"),
    }.values(),
)
def test_what_cannot_become_a_character_is_not_let(grammar: str, begun: bytes) -> None:
    assert after(grammar, begun) is None


@pytest.mark.parametrize("begun", [b"\xe0", b"\xe0\xa4", b"\xf0", b"\xf0\x90", b"\xf4\x8f\xbf"])
def test_what_can_become_a_character_is_let(begun: bytes) -> None:
    assert after(r"root ::= [\u0800-\U0010FFFF]", begun) is not None


def test_a_character_may_begin_like_one_that_is_excluded() -> None:
    # llama.cpp refuses the first bytes of whatever may be excluded.
    assert after("root ::= [^\u3042]", b"\xe3\x81", b"\x84") is not None
    assert after("root ::= [^\u3042]", b"\xe3\x81", b"\x82") is None


def test_a_class_without_characters_of_texts_is_never_left() -> None:
    assert np.flatnonzero(compiled(r'root ::= "a" | [\ud800-\udfff]').allowed()).tolist() == [97]


def vocabulary_of_pieces(choose: random.Random) -> list[bytes]:
    """Return control tokens, every byte, pieces of texts, and a text twice."""
    pieces = []
    for grammar in USUAL.values():
        text = b"-".join(random_text(read_grammar(grammar), choose).encode() for _ in range(3))
        starts = [choose.randrange(len(text)) for _ in range(60)]
        pieces += [text[start : start + choose.randint(1, 8)] for start in starts]
    return [b"", b"", *(bytes([i]) for i in range(256)), *pieces, b"ab", b"ab", b"a\0b"]


@pytest.mark.parametrize("name", USUAL)
def test_tokens_are_allowed_if_their_bytes_are(name: str) -> None:
    choose = random.Random(1)
    texts = vocabulary_of_pieces(choose)
    vocabulary = GrammarVocabulary(texts, np.zeros(len(texts), np.bool_))
    matcher, by_bytes = vocabulary.matcher(read_grammar(USUAL[name])), compiled(USUAL[name])
    for _ in range(20):
        allowed = np.flatnonzero(matcher.allowed()).tolist()
        followed = [i for i, text in enumerate(texts) if text and follow(by_bytes, text)]
        assert allowed == followed
        assert matcher.can_end == by_bytes.can_end
        if not allowed:
            break
        token_id = choose.choice(allowed)
        assert matcher.accept(token_id)
        place = follow(by_bytes, texts[token_id])
        assert place is not None
        by_bytes = place


def test_ways_that_multiply_are_followed() -> None:
    # llama.cpp takes 2^n steps for n letters.
    matcher = compiled(AMBIGUOUS)
    assert lets(matcher, "a" * 200 + "x" + "bc" * 100)
    assert not lets(matcher, "a" * 200 + "x" + "bc" * 101)


@pytest.mark.parametrize(
    "body", ["([a-z]{0,20}){0,20}", '([a-z]+ " "?)+', "[a-z]? " * 60, '("a"+ "x"?)+ "b"']
)
def test_many_ways_to_the_same_place_are_one(body: str) -> None:
    matcher = compiled(f"root ::= {body}")
    assert follow(matcher, b"a" * 40) is not None
    assert follow(matcher, b"a" * 40 + b"%") is None


@pytest.mark.parametrize(
    ("grammar", "text"),
    {
        "depth": ('root ::= "(" root ")" | "x"', "(" * 5000 + "x" + ")" * 5000),
        "a string": (JSON, '["' + "x" * 10_000 + '"]'),
        "an array": (JSON, "[" + '{"a": 1, "b": [true, null]}, ' * 500 + "1]"),
        "a list that goes on in itself": (
            'root ::= i | i "," root\ni ::= [a-z]+',
            "ab," * 3000 + "a",
        ),
        "a bounded repetition": ('root ::= "ab"{0,2000} "c"', "ab" * 2000 + "c"),
        "a bounded repetition of rules": (
            'root ::= e{0,2000}\ne ::= "x" | "(" e ")"',
            "(x)" * 2000,
        ),
    }.values(),
)
def test_a_text_may_be_long(grammar: str, text: str) -> None:
    assert lets(compiled(grammar), text)
    assert not lets(compiled(grammar), text + "?")


def test_what_is_too_complex_ends_in_a_refusal() -> None:
    # Every item ends all that came before it, which may be ended too.
    matcher = compiled('root ::= i rest\ni ::= [a-z]+\nrest ::= "," root | ""')
    assert lets(matcher, "ab," * 400 + "ab")
    with pytest.raises(InvalidRequest, match="grammar: too complex to follow"):
        follow(matcher, b"ab," * 1200)


@pytest.mark.parametrize(
    "grammar",
    {
        "repetitions in each other": "root ::= ([a-h]{0,40}){0,40}",
        "optional rules": "root ::= ([a-h]? [a-h]? [a-h]?){0,300} [0-9]",
        "recursion within": "root ::= ([a-h]? e?){0,400}\ne ::= [a-h] e [a-h]? | [a-f]",
        "recursion that multiplies": "root ::= [a-h] | [a-h] root [a-h] | [a-h] root [a-h] root",
        "states without number": 'root ::= .* "a" ' + ". " * 60,
        "a choice of thousands, again and again": "root ::= ("
        + " | ".join(f'"a{number}"' for number in range(3000))
        + ")*",
    }.values(),
)
def test_a_mask_that_would_take_long_is_refused(grammar: str) -> None:
    choose = random.Random(1)
    texts = ["".join(choose.choices("abcdefgh", k=6)).encode() for _ in range(20_000)]
    texts += [bytes([byte]) for byte in b"abcdefgh"]
    matcher = GrammarVocabulary(texts, np.zeros(len(texts), np.bool_)).matcher(
        read_grammar(grammar)
    )
    with pytest.raises(InvalidRequest, match="grammar: too complex to follow"):
        for _ in range(200):
            matcher.allowed()
            matcher.accept(texts.index(b"a"))


def test_a_choice_of_a_thousand_is_followed() -> None:
    matcher = compiled("root ::= " + " | ".join(f'"{number}"' for number in range(1000, 2000)))
    assert lets(matcher, "1999") and not lets(matcher, "2000")
