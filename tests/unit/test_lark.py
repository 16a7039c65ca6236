"""Grammars as llguidance reads them: lexemes that split a text in one way, shallow rules."""

from __future__ import annotations

import json

import pytest

from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.lark import write_lark
from outrider.grammar.lexemes import Lexicon, find_lexemes
from outrider.grammar.schema import grammar_of_schema
from tests.support.grammars import USUAL, compiled, lets


def lexemes(grammar: str) -> list[int]:
    """Return how many elements each lexeme of a grammar has, the longest first."""
    return sorted(
        (len(piece) for piece in pieces(find_lexemes(read_grammar(grammar)))), reverse=True
    )


def pieces(lexicon: Lexicon) -> set[tuple[object, ...]]:
    return {
        piece
        for parts in lexicon.splits.values()
        for part in parts
        for _, piece in part
        if not isinstance(piece, int)
    }


@pytest.mark.parametrize(
    ("grammar", "sizes"),
    [
        ('root ::= "true" | "false"', [5, 4]),
        (r'root ::= "\"" [^"]* "\""', [3]),
        # A name and a text in quotes are told apart by what follows.
        (r'root ::= "\"a\":" | "\"" [^"]* "\"" "."', [4, 4]),
        (r'root ::= "\"a\"" ":" | "\"" [^"]* "\""', [3, 3, 1]),
        # One is the beginning of the other: by character.
        ('root ::= ("a" | "ab")*', [1, 1]),
        # What ends with a repetition has no one end.
        ('root ::= "a" "b"*', [1, 1]),
        ('root ::= "(" root ")" | "xy"', [2, 1, 1]),
    ],
)
def test_what_is_read_at_once_is_no_beginning_of_another(grammar: str, sizes: list[int]) -> None:
    assert lexemes(grammar) == sizes


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= ("a" | "ab")* "abc"', ["abc", "aababc", "ababc"], ["ab", "abcab"]),
        (r'root ::= "\"a\":" | "\"" [^"]* "\"" "."', ['"a":', '"a".', '"".'], ['"b":', '"a"']),
        ('root ::= "x" ("ab" | "a" root)? "c"', ["xabc", "xaxcc", "xc"], ["xac", "xaabc"]),
        (
            'root ::= ("ab" ("ab" ("ab")?)?)? "."',
            [".", "abab.", "ababab."],
            ["ababa.", "abababab."],
        ),
        ('root ::= [a-c] root | "a"', ["a", "bca"], ["", "b", "aab"]),
    ],
)
def test_texts_are_those_of_the_grammar(grammar: str, good: list[str], bad: list[str]) -> None:
    matcher = compiled(grammar)
    assert [text for text in good if not lets(matcher, text)] == []
    assert [text for text in bad if lets(matcher, text)] == []


@pytest.mark.parametrize("name", USUAL)
def test_a_usual_grammar_has_rules_and_lexemes(name: str) -> None:
    lines = write_lark(read_grammar(USUAL[name])).splitlines()
    assert lines[1].startswith("start: r") and any(line.startswith("L0: /") for line in lines)


def test_rules_too_deep_in_each_other_are_refused() -> None:
    # llguidance reads them by recursion: 2000 of them end the process.
    def chain(count: int) -> str:
        rules = [f'a{i} ::= "x" a{i + 1} "y"' for i in range(count)]
        return "\n".join(["root ::= a0", *rules, f'a{count} ::= "z"'])

    assert lets(compiled(chain(300)), "x" * 300 + "z" + "y" * 300)
    with pytest.raises(InvalidRequest, match="grammar: more than 400 rules in each other"):
        write_lark(read_grammar(chain(1800)))


def test_a_schema_of_many_properties_is_shallow_enough() -> None:
    names = [f"property{number}" for number in range(300)]
    schema = {"properties": {name: {"type": "null"} for name in names}, "required": names}
    text = "{" + ", ".join(f'"{name}": null' for name in names) + "}"
    assert lets(compiled(grammar_of_schema(json.dumps(schema))), text)


def test_a_huge_grammar_is_written_in_bounded_time() -> None:
    # The time to look for lexemes ends; then every character is one.
    grammar = 'root ::= "' + "ab" * 20_000 + '"\na ::= "x"'
    assert write_lark(read_grammar(grammar))
