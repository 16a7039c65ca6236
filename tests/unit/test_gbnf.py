"""What GBNF is read as, and what is refused before llama.cpp could see it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import MAX_BYTES, read_grammar
from tests.support.grammars import USUAL, compiled, lets, random_text

SETTINGS = settings(derandomize=True, deadline=None)


def accepts(grammar: str, text: str) -> bool:
    return lets(compiled(grammar), text)


def refusal(grammar: str) -> str:
    with pytest.raises(InvalidRequest) as error:
        read_grammar(grammar)
    assert error.value.field == "grammar"
    message = str(error.value)
    assert "\n" not in message and len(message) < 200
    return message.removeprefix("grammar: ")


# what is read


@pytest.mark.parametrize("name", USUAL)
def test_usual_grammars_are_sound(name: str) -> None:
    read_grammar(USUAL[name])


@pytest.mark.parametrize("name", USUAL)
def test_a_text_made_of_a_grammar_follows_it(name: str) -> None:
    grammar = read_grammar(USUAL[name])
    matcher = compiled(USUAL[name])
    choose = random.Random(1)
    for _ in range(20):
        text = random_text(grammar, choose)
        assert lets(matcher, text), text


@pytest.mark.parametrize(
    ("body", "good", "bad"),
    [
        ('"ab" | "c"', ["ab", "c"], ["", "a", "abc"]),
        ('"a" | ', ["a", ""], ["b"]),
        ("", [""], ["a"]),
        ('""', [""], ["a"]),
        ('"a"*', ["", "aaa"], ["b"]),
        ('"ab"+', ["ab", "abab"], ["", "aba"]),
        ('"a"? "b"', ["b", "ab"], ["a", "aab"]),
        ('"a"{2}', ["aa"], ["a", "aaa"]),
        ('"a"{2,}', ["aa", "aaaaa"], ["a"]),
        ('"a"{ 1 , 3 }', ["a", "aaa"], ["", "aaaa"]),
        ('"a"{0} "b"', ["b"], ["ab"]),
        ('"a"{0,0} "b"', ["b"], ["ab"]),
        ('"a"{2}{3}', ["aaaaaa"], ["aaaa", "aaaaa"]),
        ('("a" | "b" "c")+', ["a", "bca"], ["b", "ab"]),
        ("[a-cx]", ["a", "c", "x"], ["d", "-"]),
        ("[^a-c]", ["d", "\n", "é"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[-a]", ["a", "-"], ["b"]),
        (r"[\]\[\-\\]", ["]", "[", "-", "\\"], ["a"]),
        (r"[\x41\u00e9\U0001F600]", ["A", "é", "😀"], ["B"]),
        (r'"\t\r\n\"\\"', ['\t\r\n"\\'], ["t"]),
        ('"é日"', ["é日"], ["e"]),
        (".", ["a", "\n", "😀"], ["", "ab"]),
        ('"a" # a comment | "b"', ["a"], ["b", ""]),
        ('(\n"a"\n|\n"b"\n)', ["a", "b"], [""]),
        ('\n "a" |\n "b"', ["a", "b"], [""]),
        ('x-1 2y\nx-1 ::= "a"\n2y ::= "b"', ["ab"], ["a"]),
        ('"(" root ")" | "x"', ["x", "((x))"], ["(x", "x)"]),
    ],
)
def test_a_rule_means_what_it_means_to_llama_cpp(
    body: str, good: list[str], bad: list[str]
) -> None:
    for ending in ("\n", "\r\n", ""):
        grammar = f"root ::= {body}{ending}"
        assert [text for text in good if not accepts(grammar, text)] == []
        assert [text for text in bad if accepts(grammar, text)] == []


def test_rules_may_come_in_any_order_and_unused_ones_do_no_harm() -> None:
    assert accepts('a ::= "x"\n\n# between\n  unused ::= a\nroot ::= a a', "xx")


# what is refused


HOSTILE = {
    "nothing": ("", "no rule `root`"),
    "no root": ('a ::= "x"', "no rule `root`"),
    "zero byte": ('root ::= "a\0"', "line 1: '\\x00' is no character"),
    "surrogate": ('root ::= "\ud800"', "line 1: '\\ud800' is no character"),
    "too long": ('root ::= "a"' + " " * MAX_BYTES, f"{MAX_BYTES} at most"),
    "undefined rule": ('root ::= "a"\na ::= foo', "line 2: rule `foo` is not defined"),
    "rule twice": ('root ::= "a"\nroot ::= "b"', "line 2: rule `root` comes twice"),
    "not a rule": ('root ::= "a"\n| "b"', "line 2: a rule's name is expected"),
    "long name": (f"root ::= {'a' * 101}", "100 characters at most"),
    "no body": ('root "a"', "line 1: `::=` is missing before '\"a\"'"),
    "underscore": ("root ::= a_b", "line 1: '_' belongs to no rule"),
    "open literal": ('root ::= "a', "line 1: the text ends in the middle"),
    "open class": ("root ::= [a", "line 1: the text ends in the middle"),
    "open group": ('root ::= ("a"\n', "line 2: `)` is missing before ''"),
    "closed group": ('root ::= "a")', "line 1: ')' belongs to no rule"),
    "unknown escape": (r'root ::= "\d"', r"line 1: unknown escape '\\d'"),
    "short escape": (r'root ::= "\x1"', r"line 1: unknown escape '\\x'"),
    "beyond Unicode": (r'root ::= "\U00110000"', "line 1: there is no character U+110000"),
    "escaped zero": (r'root ::= "\x00"', "line 1: U+0000 is no character"),
    "escaped surrogate": (r'root ::= "\uDC00"', "line 1: U+DC00 is no character"),
    "reversed range": ("root ::= [z-a]", "line 1: the range U+007A-U+0061 ends before"),
    "empty class": ("root ::= []", "line 1: 0 ranges in a class"),
    "empty negated class": ("root ::= [^]", "line 1: 0 ranges in a class"),
    "huge class": (f"root ::= [{'a' * 600}]", "line 1: 600 ranges in a class"),
    "star first": ("root ::= *", "line 1: nothing stands before a repetition"),
    "star after nothing": ('root ::= ""*', "line 1: nothing stands before a repetition"),
    "bounds reversed": ('root ::= "a"{5,3}', "line 1: {5,3} ends before it begins"),
    "bounds to zero": ('root ::= "a"{1,0}', "line 1: {1,0} ends before it begins"),
    "bounds without numbers": ('root ::= "a"{,3}', "line 1: a number of repetitions"),
    "open bounds": ('root ::= "a"{1,', "line 1: a number of repetitions"),
    "too often": ('root ::= "a"{0,2001}', "line 1: 2001 repetitions"),
    "too often at least": ('root ::= "a"{2001,}', "line 1: 2001 repetitions"),
    "far too often": ('root ::= "a"{' + "9" * 9999 + "}", "line 1: 1000000000 repetitions"),
    "too often in all": ('root ::= "a"{50}{50}', "line 1: 2500 repetitions in each other"),
    "too often with rules": ('root ::= ("a"{0,50}){50}', "line 1: 2550 repetitions in each other"),
    "too many elements": (
        f'root ::= "{"a" * 40}"{{2000}}',
        "line 1: more than 65536 elements",
    ),
    "too many rules": (
        'root ::= "b"\na ::= ' + '"a"{0,2000} ' * 20,
        "line 2: more than 65536 elements",
    ),
    "token number": ("root ::= <[5]>", "line 1: tokens are not supported"),
    "token name": ("root ::= <|end|>", "line 1: tokens are not supported"),
    "other token": ("root ::= !<[5]>", "line 1: tokens are not supported"),
    "deep": ("root ::= " + "(" * 65 + '"a"' + ")" * 65, "line 1: more than 64 parentheses"),
    "endless": ('root ::= "a" root', "line 1: rule `root` has no end"),
    "endless together": ('root ::= a | "x"\na ::= "(" b\nb ::= a', "line 1: rule `a` has no"),
    "left-recursive": ('root ::= root "a" | "b"', "line 1: rule `root` comes back to itself"),
    "left-recursive in two": (
        'root ::= "x" | a\na ::= b "1" | "2"\nb ::= a "3"',
        "comes back to itself before any character",
    ),
    "left-recursive behind nothing": (
        'root ::= n root "a" | "b"\nn ::= m m\nm ::= "x" |',
        "line 1: rule `root` comes back to itself",
    ),
    "cycle of nothing": ('root ::= n root | ""\nn ::= m m\nm ::= | "a"', "comes back to itself"),
    "nothing repeated": ('root ::= ("a"?)*', "line 1: rule `root` comes back to itself"),
    "nothing repeated twice": ('root ::= (("a"*)* "b")?', "comes back to itself"),
    "2^n ways to begin": (
        "root ::= a0\n"
        + "".join(f"a{i} ::= a{i + 1} | a{i + 1}\n" for i in range(40))
        + 'a40 ::= "x"',
        "can begin in too many ways",
    ),
    "long chain of beginnings": (
        "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1}\n" for i in range(4200)) + 'a4200 ::= "x"',
        "can begin in too many ways",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_hurt_is_refused_with_its_line(name: str) -> None:
    grammar, reason = HOSTILE[name]
    assert reason in refusal(grammar)


@SETTINGS
@given(st.text(alphabet='root:=|()[]{}*+?.-^"\\#<>! \n\r\tab0123456789,xuU\0é', max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for grammar in (text, f"root ::= {text}"):
        try:
            read_grammar(grammar)
        except InvalidRequest as error:
            assert "\n" not in str(error)
