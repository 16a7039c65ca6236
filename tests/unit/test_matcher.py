"""Where a text is in a grammar: bytes that make no whole character, ends, bounds."""

from __future__ import annotations

import random

import pytest

from outrider.errors import InvalidRequest
from outrider.grammar import matcher as module
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.matcher import MAX_STACKS, Matcher, Place
from tests.support.grammars import AMBIGUOUS, JSON, random_text


def after(grammar: str, *pieces: bytes) -> Place | None:
    """Return the place after the pieces of a text."""
    matcher = Matcher(read_grammar(grammar))
    place: Place | None = matcher.start()
    for piece in pieces:
        assert place is not None
        place = matcher.follow(place, piece)
    return place


def test_a_text_may_end_where_the_grammar_does() -> None:
    ends = [after('root ::= "a" "b"?', piece) for piece in (b"a", b"ab")]
    assert [place is not None and place.can_end for place in ends] == [True, True]
    assert not Matcher(read_grammar('root ::= "a"')).start().can_end
    assert after('root ::= "a"', b"ab") is None


def test_a_character_may_come_in_pieces() -> None:
    for pieces in ([b"\xc3", b"\xa9"], [b"\xe3", b"\x81", b"\x82"], [b"x\xf0\x9f", b"\x98\x80y"]):
        text = b"".join(pieces).decode()
        place = after(f'root ::= "{text}"', *pieces)
        assert place is not None and place.can_end
        begun = after(f'root ::= "{text}"', pieces[0])
        assert begun is not None and not begun.can_end


@pytest.mark.parametrize(
    ("grammar", "begun"),
    {
        "no such character": ("root ::= [a-zà-ü]", b"\xe3"),
        "too low": ("root ::= [à-ü]", b"\xc4"),
        "excluded": ("root ::= [^\u3042]", b"\xe3\x81"),  # llama.cpp refuses all that may be it
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


def test_places_of_the_same_text_are_equal() -> None:
    matcher = Matcher(read_grammar(JSON))
    whole = matcher.follow(matcher.start(), b'{"a": [1')
    place: Place | None = matcher.start()
    for byte in b'{"a": [1':
        assert place is not None
        place = matcher.follow(place, bytes([byte]))
    assert place == whole


def test_states_repeat_where_the_grammar_does() -> None:
    matcher = Matcher(read_grammar('root ::= "\\"" [a-z]* "\\""'))
    place = matcher.follow(matcher.start(), b'"a')
    assert place is not None
    assert matcher.follow(place, b"bcd") == place


def test_ways_that_multiply_end_in_a_refusal() -> None:
    matcher = Matcher(read_grammar(AMBIGUOUS))
    place: Place | None = matcher.start()
    with pytest.raises(InvalidRequest, match=f"more than {MAX_STACKS} ways"):
        while place is not None:
            place = matcher.follow(place, b"a")
    few = matcher.follow(matcher.start(), b"aaaaaxbcbcb")
    assert few is not None and few.can_end


@pytest.mark.parametrize(
    "body", ["([a-z]{0,20}){0,20}", '([a-z]+ " "?)+', "[a-z]? " * 60, '("a"+ "x"?)+ "b"']
)
def test_many_ways_to_the_same_place_are_one(body: str) -> None:
    # To llama.cpp each is another: the second takes it 2^n steps for n letters.
    matcher = Matcher(read_grammar(f"root ::= {body}"))
    assert matcher.follow(matcher.start(), b"a" * 40 + b"%") is None
    assert len(matcher.start().state.stacks) < 200


def test_a_text_may_be_very_deep() -> None:
    matcher = Matcher(read_grammar('root ::= "(" root ")" | "x"'))
    place = matcher.follow(matcher.start(), b"(" * 20_000)
    assert place is not None
    place = matcher.follow(place, b"x" + b")" * 20_000)
    assert place is not None and place.can_end
    del matcher, place


def test_what_is_forgotten_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = read_grammar(JSON)
    texts = [random_text(grammar, random.Random(seed)).encode() for seed in range(20)]
    monkeypatch.setattr(module, "_MAX_KEPT", 50)
    matcher = Matcher(grammar)
    for text in texts:
        place: Place | None = matcher.start()
        for byte in text:
            assert place is not None
            place = matcher.follow(place, bytes([byte]))
        assert place is not None and place.can_end
        assert len(matcher._states) < 60
