"""Regular languages: what an expression lets, and the same as a grammar."""

from __future__ import annotations

import itertools
import random
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.grammar.json_texts import FIXED, decimal, numbers
from outrider.grammar.pattern import read_pattern
from outrider.grammar.regular import Expression, Expressions
from tests.support.grammars import compiled, lets

TEXTS = ["".join(text) for n in range(6) for text in itertools.product("ab-", repeat=n)]
PATTERNS = [
    "a",
    "^a|b$",
    "^(a|b-)*$",
    "(^|-)a",
    "^(?!a)",
    "^(?!.*--)[ab](?:.*[ab])?$",
    "^(?=.*a)(?=.*b).{3}$",
    "^(?!^[-a]*$)a?b?-?$",
    "^(?:(?=ab|ba)..|b(?=-).)?-$",
    "^a{2,3}b{0,1}?-+?$",
    "^(?:a(?!b)|b)?b$",
    "a$|^$",
    "^[^a]|[^b]$",
    "(?=-)",
]


def grammar_of(made: Expressions, part: Expression) -> str:
    rules: dict[str, str] = {}
    body = made.write(part, rules, "t")
    assert body is not None
    rules = {
        "root": body,
        **rules,
        **{name: FIXED[name] for name in ("short", "plain")},
    }
    return "".join(f"{name} ::= {text}\n" for name, text in rules.items())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_lets_what_re_finds(pattern: str) -> None:
    made = Expressions()
    part = read_pattern(pattern, made)
    found = [text for text in TEXTS if re.search(pattern, text)]
    assert [text for text in TEXTS if made.lets(part, text)] == found
    matcher = compiled(grammar_of(made, part))
    assert [text for text in TEXTS if lets(matcher, text)] == found


@pytest.mark.parametrize("one", PATTERNS[:8])
@pytest.mark.parametrize("other", PATTERNS[3:])
def test_both_and_no_are_what_they_say(one: str, other: str) -> None:
    made = Expressions()
    part = made.both([read_pattern(one, made), made.no(read_pattern(other, made))])
    found = [text for text in TEXTS if re.search(one, text) and not re.search(other, text)]
    assert [text for text in TEXTS if made.lets(part, text)] == found
    if made.lets_nothing(part):
        assert not found and made.write(part, {}, "t") is None
    else:
        matcher = compiled(grammar_of(made, part))
        assert [text for text in TEXTS if lets(matcher, text)] == found


@pytest.mark.parametrize("pattern", ["^[ab]*$", "^(ab|-)*$", "^a?-*b$", "^(?!a)", "^(aab?|-)+$"])
@pytest.mark.parametrize(("low", "high"), [(0, 3), (2, 4), (3, 3)])
def test_lengths_are_kept(pattern: str, low: int, high: int) -> None:
    made = Expressions()
    part = made.limited(read_pattern(pattern, made), low, high)
    found = [t for t in TEXTS if re.search(pattern, t) and low <= len(t) <= high]
    assert [text for text in TEXTS if made.lets(part, text)] == found
    assert part.longest <= high and part.shortest >= low


def test_where_lengths_leave_texts_out_the_rest_is_kept() -> None:
    made = Expressions()
    part = made.limited(read_pattern("^[ab]{1,9}-[ab]*$", made), 50, 100)
    for first, rest in [(1, 60), (9, 90), (5, 44), (9, 91), (1, 47)]:
        text = "a" * first + "-" + "b" * rest
        assert not made.lets(part, text) or 50 <= len(text) <= 100
    assert made.lets(part, "aaa-" + "b" * 80) and part.longest <= 100 and part.shortest >= 50


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(?=a)(?:.*bb)?$", "ab" * 2000 + "bb"),
        ("^(?!.*---)[ab-]*b$", "a--ab-b" * 600),
        ("^(?=(?:ab|ba|--)*$)(?!.*----)", "ab--ba" * 700),
    ],
)
def test_an_automaton_follows_long_texts(pattern: str, text: str) -> None:
    made = Expressions()
    part = read_pattern(pattern, made)
    matcher = compiled(grammar_of(made, part))
    assert made.lets(part, text) and lets(matcher, text)
    assert not lets(matcher, text + "---")


_END = st.builds(Fraction, st.integers(-3000, 3000), st.sampled_from([1, 4, 10, 100, 1000]))


@settings(derandomize=True, deadline=None)
@given(_END, _END, st.booleans(), st.booleans(), st.integers(0, 4), st.integers(0, 999))
def test_numbers_of_a_range(
    low: Fraction, high: Fraction, low_open: bool, high_open: bool, places: int, seed: int
) -> None:
    made = Expressions()
    text = numbers(low, high, places, low_open, high_open)
    part = read_pattern(f"^{text}$", made) if text else made.never
    dice = random.Random(seed)
    ends = [end + Fraction(n, 10**places) for end in (low, high, Fraction(0)) for n in range(-3, 4)]
    between = [low + (high - low) * Fraction(dice.random()) for _ in range(9)]
    for end in (*ends, *between):
        number = Fraction(round(end * 10**places), 10**places)
        is_above = number > low if low_open else number >= low
        is_below = number < high if high_open else number <= high
        assert made.lets(part, decimal(number)) == (is_above and is_below), number


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 60), st.integers(0, 2), st.integers(-4000, 4000))
def test_multiples(step: int, places: int, number: int) -> None:
    made = Expressions()
    part = made.multiple(step, places)
    text = decimal(Fraction(number, 10**places))
    assert made.lets(part, text) == (number % step == 0)
