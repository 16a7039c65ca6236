"""Turns a regular expression into GBNF for the JSON strings that it matches. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NoReturn

from outrider.errors import InvalidRequest
from outrider.grammar.json_texts import either, quoted

Ranges = list[tuple[int, int]]

_MAX_LENGTH = 1000
_MAX_DEPTH = 32  # of parentheses; each is one more in the grammar
_LAST = 0x10FFFF
_DIGITS: Ranges = [(48, 57)]
_WORD: Ranges = [*_DIGITS, (65, 90), (95, 95), (97, 122)]
_SPACE: Ranges = [(9, 13), (32, 32), (0xA0, 0xA0), (0x2028, 0x2029)]  # to everybody
_SPACE_TO_SOME: Ranges = [
    *((9, 13), (28, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
]
_LINE_ENDS: Ranges = [(10, 10), (13, 13), (0x2028, 0x2029)]
_ESCAPED: Ranges = [(0, 31), (34, 34), (92, 92), (127, 127), (0xD800, 0xDFFF)]
_SHORT = (8, 9, 10, 12, 13, 34, 92)  # what JSON escapes with one letter
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})")


def pattern(expression: str) -> str:
    """Return GBNF for a string of which a part matches, as `pattern` in a JSON schema means it.

    Raises InvalidRequest for what only a regular expression can say: assertions, back
    references, anchors in the middle.
    """
    return f'"\\"" {_Pattern(expression).read()} "\\""'


class _Pattern:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> str:
        if len(self._text) > _MAX_LENGTH:
            self._refuse(f"longer than {_MAX_LENGTH} characters")
        whole = self._read_alternatives(0)
        if self._peek():
            self._refuse("unbalanced parentheses")
        return whole

    def _refuse(self, reason: str) -> NoReturn:
        shown = self._text if len(self._text) <= 40 else f"{self._text[:40]}..."
        raise InvalidRequest("json_schema", f"the pattern {shown!r}: {reason}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        self._at += 1
        if not char:
            self._refuse("ends too soon")
        return char

    def _take(self, word: str) -> bool:
        found = self._text.startswith(word, self._at)
        self._at += len(word) * found
        return found

    def _read_alternatives(self, depth: int) -> str:
        parts = [self._read_sequence(depth)]
        while self._take("|"):
            parts.append(self._read_sequence(depth))
        return either(parts)

    def _read_sequence(self, depth: int) -> str:
        """Return one alternative; an outermost one says where it is anchored."""
        items = [] if depth or self._take("^") else ["char*"]
        while self._peek() not in ("", "|", ")"):
            if not depth and self._text[self._at : self._at + 2] in ("$", "$|"):
                self._at += 1
                break
            items.append(self._read_atom(depth) + self._read_quantifier())
        else:
            items += [] if depth else ["char*"]
        return " ".join(items) or '""'

    def _read_atom(self, depth: int) -> str:
        char = self._next()
        if char == "(":
            if self._take("?") and not self._take(":"):
                self._refuse("only (...) and (?:...) are supported")
            if depth == _MAX_DEPTH:
                self._refuse(f"more than {_MAX_DEPTH} parentheses in each other")
            group = self._read_alternatives(depth + 1)
            if not self._take(")"):
                self._refuse("unbalanced parentheses")
            return f"( {group} )"
        if char == "[":
            return self._text_of(self._read_class())
        if char == ".":
            return self._text_of(_without([(0, _LAST)], _LINE_ENDS))
        if char == "\\":
            return self._text_of(self._read_escape(negated=False))
        if char in "^$*+?{}]":
            self._refuse(f"{char!r} is not supported at {self._at}")
        return self._text_of([(ord(char), ord(char))])

    def _read_quantifier(self) -> str:
        found = _QUANTIFIER.match(self._text, self._at)
        if not found:
            return ""
        self._at = found.end()
        self._take("?")  # a lazy one matches the same strings
        return found[0]

    def _read_class(self) -> Ranges:
        negated = self._take("^")
        ranges: Ranges = []
        while not self._take("]"):
            low = self._read_member(negated)
            high = low
            if self._peek() == "-" and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._read_member(negated)
                if len(low) != 1 or len(high) != 1 or high[0][1] < low[0][0]:
                    self._refuse(f"no range before {self._at}")
            ranges += low if high is low else [(low[0][0], high[0][1])]
        return _without([(0, _LAST)], ranges) if negated else ranges

    def _read_member(self, negated: bool) -> Ranges:
        char = self._next()
        return self._read_escape(negated) if char == "\\" else [(ord(char), ord(char))]

    def _read_escape(self, negated: bool) -> Ranges:
        kind = self._next()
        spaces = _SPACE_TO_SOME if kind.isupper() != negated else _SPACE
        known = {"d": _DIGITS, "w": _WORD, "s": spaces}.get(kind.lower())
        if known:
            return known if kind.islower() else _without([(0, _LAST)], known)
        if kind in "xu":
            digits = self._text[self._at : self._at + (2 if kind == "x" else 4)]
            self._at += len(digits)
            if not re.fullmatch("[0-9a-fA-F]{2}|[0-9a-fA-F]{4}", digits):
                self._refuse(f"no escape before {self._at}")
            code_point = int(digits, 16)
        elif kind.isascii() and kind.isalnum() and kind not in _CONTROLS:
            self._refuse(f"\\{kind} is not supported")
        else:
            code_point = _CONTROLS.get(kind, ord(kind))
        return [(code_point, code_point)]

    def _text_of(self, ranges: Ranges) -> str:
        """Return GBNF for one character of a JSON string."""
        plain = _without(ranges, _ESCAPED)
        spans = "".join(f"\\U{low:08X}-\\U{high:08X}" for low, high in plain)
        parts = [f"[{spans}]"] if spans else []
        for code_point in _SHORT:
            if any(low <= code_point <= high for low, high in ranges):
                parts.append(quoted(json.dumps(chr(code_point))[1:-1]))
        if not parts:
            self._refuse(f"no character is possible at {self._at}")
        return either(parts)


def _without(ranges: Iterable[tuple[int, int]], holes: Ranges) -> Ranges:
    """Return what is left of the ranges."""
    left: Ranges = []
    for low, high in ranges:
        start = low
        for first, last in sorted(holes):
            if start < first <= high:
                left.append((start, first - 1))
            if first <= high:
                start = max(start, last + 1)
        if start <= high:
            left.append((start, high))
    return left
