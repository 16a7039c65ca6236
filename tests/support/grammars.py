"""Grammars like those that users send, and texts at random from any grammar."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from outrider.engine.grammar_matcher import GrammarMatcher, GrammarVocabulary
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.rules import CharSet, Grammar, Rule

JSON = r"""
# any JSON text
root   ::= value
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*   # members
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""

PROGRAM = r"""
root      ::= (function)*
function  ::= type name "(" (type name)? ")" "{" statement* "}"
type      ::= ("int" | "float") blank
name      ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::=
    ( type name " = " value ";" ) |
    ( name "(" (value ("," blank value)*)? ")" ";" ) |
    ( "return" blank value ";" ) |
    ( "while" "(" value ")" "{" statement* "}" ) |
    ( "if" "(" value ")" "{" statement* "}" ("else" "{" statement* "}")? ) |
    comment
value     ::= factor (("+" | "-") factor)*
factor    ::= name | [0-9]+ | "-" factor | name "(" value ")" | "(" value ")"
comment   ::= "/*" ( [^*] | ("*" [^/]) )* "*/" | "//" [^\n]* "\n"
blank     ::= ([ \t\n]+)
"""

CHESS = r"""
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
"""

LIST = r"""
root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""

JAPANESE = r"""
root        ::= char+ ([ \t\n] char+)*
char        ::= [ぁ-ゟ] | [ァ-ヿ] | punctuation | [\u4e00-\u9fff]
punctuation ::= [、-〾]
"""

ENGLISH = r"""
root ::= word+ ([ \t\n] word+)*
word ::= [a-zA-Z] | [0-9] | [!"#$%&'()*+,-./:;<=>?@[\\\]^_`{|}~]
"""

USUAL = {
    "json": JSON,
    "arithmetic": ARITHMETIC,
    "program": PROGRAM,
    "chess": CHESS,
    "list": LIST,
    "japanese": JAPANESE,
    "english": ENGLISH,
}

AMBIGUOUS = 'root ::= "a" root "b" | "a" root "c" | "x"'
"""After n times `a` there are 2^n ways to continue."""

_BYTES = GrammarVocabulary([bytes([i]) for i in range(256)], np.zeros(256, np.bool_))


def compiled(grammar: str) -> GrammarMatcher:
    """Return a matcher of a grammar whose tokens are the single bytes."""
    return _BYTES.matcher(read_grammar(grammar))


def follow(matcher: GrammarMatcher, text: bytes) -> GrammarMatcher | None:
    """Return the place after more of a text, None if the grammar does not let it."""
    place = matcher.clone()
    return place if all(place.accept(byte) for byte in text) else None


def lets(matcher: GrammarMatcher, text: str) -> bool:
    """Return whether a whole text is one of the grammar's."""
    place = follow(matcher, text.encode())
    return place is not None and place.can_end


_SOME = [*range(0x20, 0x7F), 0x0A, 0xE9, 0x3042, 0x4E00, 0x1F600]


def random_text(grammar: Grammar, choose: random.Random, length: int = 200) -> str:
    """Return a text of the grammar; after `length` characters, the shortest way to its end."""
    heights = _heights(grammar.rules)
    text: list[str] = []
    todo: list[CharSet | int] = [grammar.root]
    while todo:
        element = todo.pop()
        if isinstance(element, CharSet):
            text.append(_char(element, choose))
            continue
        parts = grammar.rules[element]
        if len(text) + len(todo) > length:
            part = min(parts, key=lambda part: _height(part, heights))
        else:
            part = choose.choice(parts)
        todo += reversed(part)
    return "".join(text)


def _char(chars: CharSet, choose: random.Random) -> str:
    if chars.negated:
        return chr(choose.choice([c for c in _SOME if chars.matches(c, c)]))
    low, high = choose.choice([(max(low, 1), high) for low, high in chars.ranges if high])
    return chr(choose.randint(low, high))


def _heights(rules: Sequence[Rule]) -> list[float]:
    """Return how deep the flattest text of each rule is."""
    heights = [float("inf")] * len(rules)
    while True:
        better = [1 + min(_height(part, heights) for part in rule) for rule in rules]
        if better == heights:
            return heights
        heights = better


def _height(part: Sequence[CharSet | int], heights: list[float]) -> float:
    return max((heights[e] for e in part if isinstance(e, int)), default=0)
