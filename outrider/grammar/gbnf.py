"""Reads GBNF just as llama.cpp does, and refuses what llama.cpp should not be given. Pure.

docs/decisions/0015 says what such texts do there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn

from outrider.errors import InvalidRequest
from outrider.grammar.rules import CharSet, Element, Grammar, Rule, find_fault

MAX_BYTES = 1 << 16  # bytes of a grammar
_MAX_NAME = 100  # characters of a rule's name
_MAX_DEPTH = 64  # of parentheses
_MAX_RANGES = 512  # of one class; llama.cpp compares each with every token
_MAX_REPETITIONS = 2000  # llama.cpp's own bound, for the same product
_MAX_ELEMENTS = 1 << 16  # elements of all rules, repetitions written out

_BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_NUMBER = re.compile(r"[0-9]+")
_HEX = {
    "x": re.compile("[0-9a-fA-F]{2}"),
    "u": re.compile("[0-9a-fA-F]{4}"),
    "U": re.compile("[0-9a-fA-F]{8}"),
}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"} | {c: c for c in '\\"[]-'}
_ANY = CharSet((), negated=True)
_BOUNDS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def read_grammar(text: str) -> Grammar:
    """Return the grammar that a GBNF text describes.

    Raises InvalidRequest, with the line, for one that is unsound or too large.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise InvalidRequest("grammar", f"{size} bytes, {MAX_BYTES} at most")
    return _Parser(text).read()


class _Parser:
    """Numbers rules and writes out repetitions just as llama.cpp does."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._element_count = 0
        self._symbols: dict[str, int] = {}  # named rules, groups, repetitions
        self._seen_at: list[int] = []  # where in the text, by symbol
        self._rules: dict[int, Rule] = {}
        self._chars: dict[int, CharSet] = {}  # single ones, which come often

    def read(self) -> Grammar:
        for bad in re.finditer("[\0\ud800-\udfff]", self._text):
            self._refuse(f"{bad[0]!r} is no character of a text", bad.start())
        self._match(_BLANK_LINES)
        while self._peek():
            self._read_rule()
        if "root" not in self._symbols:
            raise InvalidRequest("grammar", "there is no rule `root`, where texts begin")
        for name, symbol in self._symbols.items():
            if symbol not in self._rules:
                self._refuse(f"rule `{name}` is not defined", self._seen_at[symbol])
        rules = [self._rules[symbol] for symbol in range(len(self._symbols))]
        if fault := find_fault(rules):
            name = list(self._symbols)[fault.symbol].partition("_")[0]
            self._refuse(f"rule `{name}` {fault.reason}", self._seen_at[fault.symbol])
        return Grammar(rules, self._symbols["root"])

    def _refuse(self, reason: str, at: int | None = None) -> NoReturn:
        line = self._text.count("\n", 0, self._at if at is None else at) + 1
        raise InvalidRequest("grammar", f"line {line}: {reason}")

    # --- the text ---

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, word: str) -> bool:
        found = self._text.startswith(word, self._at)
        self._at += len(word) * found
        return found

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._refuse(f"`{word}` is missing before {self._text[self._at : self._at + 10]!r}")

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else ""

    # --- symbols ---

    def _symbol(self, name: str) -> int:
        if name not in self._symbols:
            self._symbols[name] = len(self._symbols)
            self._seen_at.append(self._at)
        return self._symbols[name]

    def _new_symbol(self, rule_name: str) -> int:
        return self._symbol(f"{rule_name}_{len(self._symbols)}")  # names have no underscores

    def _count(self, elements: int) -> None:
        self._element_count += elements
        if self._element_count > _MAX_ELEMENTS:
            self._refuse(f"more than {_MAX_ELEMENTS} elements with repetitions written out")

    # --- rules ---

    def _read_rule(self) -> None:
        name = self._read_name()
        symbol = self._symbol(name)
        if symbol in self._rules:
            self._refuse(f"rule `{name}` comes twice")
        self._match(_BLANK)
        self._expect("::=")
        self._match(_BLANK_LINES)
        self._rules[symbol] = self._read_alternatives(name, _BLANK, 0)
        if self._peek() not in ("", "\r", "\n"):
            self._refuse(f"{self._peek()!r} belongs to no rule")
        self._match(_BLANK_LINES)

    def _read_name(self) -> str:
        name = self._match(_NAME)
        if not 0 < len(name) <= _MAX_NAME:
            self._refuse(f"a rule's name is expected, of {_MAX_NAME} characters at most")
        return name

    def _read_alternatives(self, name: str, blank: re.Pattern[str], depth: int) -> Rule:
        parts = [self._read_sequence(name, blank, depth)]
        while self._take("|"):
            self._match(_BLANK_LINES)
            parts.append(self._read_sequence(name, blank, depth))
        return parts

    def _read_sequence(self, name: str, blank: re.Pattern[str], depth: int) -> list[Element]:
        elements: list[Element] = []
        start, weight = 0, 1  # of what a repetition would repeat
        while char := self._peek():
            if char in "*+?{":
                low, high = self._read_bounds(blank)
                weight *= high or low or 1
                elements[start:] = self._repeated(elements[start:], low, high, weight, name)
                continue
            symbol_count = len(self._symbols)
            item = self._read_item(name, depth)
            if item is None:
                break
            start = len(elements)
            weight = max(1, len(self._symbols) - symbol_count) if char == "(" else 1
            self._count(len(item))
            elements += item
            self._match(blank)
        return elements

    def _read_item(self, name: str, depth: int) -> list[Element] | None:
        if self._take('"'):
            return list(self._read_literal())
        if self._take("["):
            return [self._read_class()]
        if self._take("."):
            return [_ANY]
        if self._take("("):
            return [self._read_group(name, depth + 1)]
        if self._peek() in ("<", "!"):
            self._refuse("tokens are not supported in a grammar")
        return [self._symbol(self._read_name())] if _NAME.match(self._peek()) else None

    def _read_group(self, name: str, depth: int) -> int:
        if depth > _MAX_DEPTH:
            self._refuse(f"more than {_MAX_DEPTH} parentheses in each other")
        self._match(_BLANK_LINES)
        symbol = self._new_symbol(name)
        self._rules[symbol] = self._read_alternatives(name, _BLANK_LINES, depth)
        self._expect(")")
        return symbol

    # --- repetitions ---

    def _read_bounds(self, blank: re.Pattern[str]) -> tuple[int, int | None]:
        operator = self._peek()
        self._at += 1
        self._match(blank)
        if operator != "{":
            return _BOUNDS[operator]
        low = self._read_number(blank)
        high: int | None = low
        if self._take(","):
            self._match(blank)
            high = None if self._peek() == "}" else self._read_number(blank)
        self._expect("}")
        self._match(blank)
        if high is not None and high < low:
            self._refuse(f"{{{low},{high}}} ends before it begins")
        return low, high

    def _read_number(self, blank: re.Pattern[str]) -> int:
        digits = self._match(_NUMBER)
        if not digits:
            self._refuse("a number of repetitions is expected")
        self._match(blank)
        return int(digits) if len(digits) < 10 else 10**9

    def _repeated(
        self, unit: list[Element], low: int, high: int | None, weight: int, name: str
    ) -> list[Element]:
        """Return the repetition of elements written out; what is optional becomes rules."""
        if not unit:
            self._refuse("nothing stands before a repetition")
        if weight > _MAX_REPETITIONS:
            self._refuse(f"{weight} repetitions in each other, {_MAX_REPETITIONS} at most")
        optional = 1 if high is None else high - low
        self._count(low * len(unit) + optional * (len(unit) + 2))
        rest: list[Element] = []
        for _ in range(optional):
            symbol = self._new_symbol(name)
            self._rules[symbol] = [[*unit, *([symbol] if high is None else rest)], []]
            rest = [symbol]
        return unit * low + rest

    # --- characters ---

    def _read_literal(self) -> Iterator[Element]:
        while not self._take('"'):
            code_point = self._read_char()
            if code_point == 0 or 0xD800 <= code_point < 0xE000:
                self._refuse(f"U+{code_point:04X} is no character of a text")
            yield self._chars.setdefault(code_point, CharSet(((code_point, code_point),)))

    def _read_class(self) -> CharSet:
        negated = self._take("^")
        ranges = []
        while not self._take("]"):
            low = high = self._read_char()
            if self._peek() == "-" and not self._text.startswith("]", self._at + 1):
                self._at += 1
                high = self._read_char()
            if high < low:
                self._refuse(f"the range U+{low:04X}-U+{high:04X} ends before it begins")
            ranges.append((low, high))
        if not 0 < len(ranges) <= _MAX_RANGES:
            self._refuse(f"{len(ranges)} ranges in a class, not 1 to {_MAX_RANGES}")
        return CharSet(tuple(ranges), negated)

    def _read_char(self) -> int:
        char = self._peek()
        self._at += 1
        if not char:
            self._refuse("the text ends in the middle of a rule")
        if char != "\\":
            return ord(char)
        kind = self._peek()
        self._at += 1
        digits = self._match(_HEX[kind]) if kind in _HEX else ""
        if not digits and kind not in _ESCAPES:
            self._refuse(f"unknown escape {char + kind!r}")
        code_point = int(digits, 16) if digits else ord(_ESCAPES[kind])
        if code_point > 0x10FFFF:
            self._refuse(f"there is no character U+{code_point:X}")
        return code_point
