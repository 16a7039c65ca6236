"""The tokens that may come next, found by prefixes, are those that can be followed one by one."""

from __future__ import annotations

import random

import pytest

from outrider.grammar.gbnf import read_grammar
from outrider.grammar.matcher import Matcher, Place
from outrider.grammar.tokens import Tokens
from tests.support.grammars import USUAL, random_text


def vocabulary(choose: random.Random) -> list[bytes]:
    """Return control tokens, every byte, pieces of texts, and a text twice."""
    pieces = []
    for grammar in USUAL.values():
        text = b"-".join(random_text(read_grammar(grammar), choose).encode() for _ in range(3))
        starts = [choose.randrange(len(text)) for _ in range(60)]
        pieces += [text[start : start + choose.randint(1, 8)] for start in starts]
    return [b"", b"", *(bytes([i]) for i in range(256)), *pieces, b"ab", b"ab", b"a\0b"]


@pytest.mark.parametrize("name", USUAL)
def test_tokens_found_by_prefix_are_those_that_can_be_followed(name: str) -> None:
    choose = random.Random(1)
    texts = vocabulary(choose)
    tokens = Tokens(texts)
    matcher = Matcher(read_grammar(USUAL[name]))
    place: Place | None = matcher.start()
    for _ in range(40):
        assert place is not None
        followed = [i for i, text in enumerate(texts) if text and matcher.follow(place, text)]
        assert sorted(tokens.allowed(matcher, place)) == followed
        if not followed:
            break
        place = matcher.follow(place, texts[choose.choice(followed)])


def test_within_a_character_only_its_rest_is_allowed() -> None:
    texts = [b"a", b"\x81\x82", b"\x81", b"\x82", b"\x81\x82a"]
    matcher = Matcher(read_grammar('root ::= "あ" "a"'))
    place = matcher.follow(matcher.start(), b"\xe3")
    assert place is not None
    assert sorted(Tokens(texts).allowed(matcher, place)) == [1, 2, 4]
