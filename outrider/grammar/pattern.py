"""Reads regular expressions, as `pattern` in a JSON schema means them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from outrider.errors import InvalidRequest
from outrider.grammar.regular import ALL, Expression, Expressions, Ranges, without

_MAX_LENGTH = 2000  # zod's for IPv6 and its networks have 1,100
_MAX_DEPTH = 32  # of parentheses; each is one more in the grammar
_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = (*_DIGITS, (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32), (0xA0, 0xA0), (0x2028, 0x2029))  # to everybody
_SPACE_TO_SOME: Ranges = (
    *((9, 13), (28, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_QUANTIFIER = re.compile(r"([*+?])|\{([0-9]+)(,?)([0-9]*)\}")
_NAMED = re.compile(r"\?P?<[A-Za-z_]\w*>")
_OFTEN = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class _Part:
    """What matches before a rest: `then` takes it, and whether nothing stands before the part.

    `looks` is said of assertions, which look at the rest.
    """

    then: Callable[[Expression, bool], Expression]
    looks: bool = False
    has_no_width: bool = False


def read_pattern(expression: str, made: Expressions) -> Expression:
    """Return the texts of which a part matches.

    Raises InvalidRequest for what only a regular expression can say: back references, word
    boundaries, looking back.
    """
    return _Pattern(expression, made).read()


class _Pattern:
    def __init__(self, text: str, made: Expressions) -> None:
        self._text = text
        self._made = made
        self._at = 0

    def read(self) -> Expression:
        if len(self._text) > _MAX_LENGTH:
            self._refuse(f"longer than {_MAX_LENGTH} characters")
        made, anything = self._made, self._made.anything
        found = []
        for part in self._read_sequences(0):
            first, later = part.then(anything, True), part.then(anything, False)
            if first is later:
                found.append(made.sequence([anything, later]))
            else:
                found += [first, made.sequence([made.chars(ALL), anything, later])]
        if self._peek():
            self._refuse("unbalanced parentheses")
        return made.either(found)

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

    # --- parts ---

    def _simple(self, expression: Expression) -> _Part:
        return _Part(lambda rest, _: self._made.sequence([expression, rest]))

    def _read_sequences(self, depth: int) -> list[_Part]:
        parts = [self._read_sequence(depth)]
        while self._take("|"):
            parts.append(self._read_sequence(depth))
        return parts

    def _any_of(self, parts: list[_Part]) -> _Part:
        if len(parts) == 1:
            return parts[0]
        made = self._made
        if any(part.looks for part in parts):
            return _Part(
                lambda rest, is_first: made.either(part.then(rest, is_first) for part in parts),
                looks=True,
            )
        return self._simple(made.either(part.then(made.empty, False) for part in parts))

    def _read_sequence(self, depth: int) -> _Part:
        items: list[_Part] = []
        while self._peek() not in ("", "|", ")"):
            items.append(self._read_quantified(self._read_atom(depth)))
        if not any(item.looks for item in items):
            return self._simple(
                self._made.sequence(item.then(self._made.empty, False) for item in items)
            )
        widths = [index for index, item in enumerate(items) if not item.has_no_width]
        start = min(widths, default=len(items))  # before the first that has a width

        def then(rest: Expression, is_first: bool) -> Expression:
            for index, item in reversed([*enumerate(items)]):
                rest = item.then(rest, is_first and index <= start)
            return rest

        return _Part(then, looks=True, has_no_width=not widths)

    def _read_atom(self, depth: int) -> _Part:
        made = self._made
        char = self._next()
        if char == "(":
            return self._read_group(depth + 1)
        if char == "^":
            return _Part(lambda rest, is_first: rest if is_first else made.never, True, True)
        if char == "$":
            return _Part(lambda rest, _: made.both([made.empty, rest]), True, True)
        if char == "[":
            return self._one_of(self._read_class())
        if char == ".":
            return self._one_of(without(ALL, _LINE_ENDS))
        if char == "\\":
            return self._one_of(self._read_escape(negated=False))
        if char in "*+?{}]":
            self._refuse(f"{char!r} is not supported at {self._at}")
        return self._one_of([(ord(char), ord(char))])

    def _one_of(self, ranges: Iterable[tuple[int, int]]) -> _Part:
        return self._simple(self._made.chars(ranges))

    def _read_group(self, depth: int) -> _Part:
        if depth > _MAX_DEPTH:
            self._refuse(f"more than {_MAX_DEPTH} parentheses in each other")
        ahead = next((word for word in ("?=", "?!") if self._take(word)), "")
        named = _NAMED.match(self._text, self._at)
        self._at = named.end() if named else self._at
        if not ahead and not named and self._take("?") and not self._take(":"):
            self._refuse("only (...), (?:...), (?=...) and (?!...) are supported")
        group = self._any_of(self._read_sequences(depth))
        if not self._take(")"):
            self._refuse("unbalanced parentheses")
        return self._looking(group, ahead) if ahead else group

    def _looking(self, part: _Part, ahead: str) -> _Part:
        made = self._made

        def then(rest: Expression, is_first: bool) -> Expression:
            found = part.then(made.anything, is_first)
            return made.both([found if ahead == "?=" else made.no(found), rest])

        return _Part(then, looks=True, has_no_width=True)

    def _read_quantified(self, part: _Part) -> _Part:
        found = _QUANTIFIER.match(self._text, self._at)
        if not found:
            return part
        self._at = found.end()
        self._take("?")  # a lazy one matches the same strings
        sign, least, comma, most = found.groups()
        low, high = _OFTEN[sign] if sign else (int(least), int(most) if most else None)
        high = high if sign or comma else low
        if high is not None and high < low:
            self._refuse(f"{found[0]} ends before it begins")
        if not part.looks:
            unit = part.then(self._made.empty, False)
            return self._simple(self._made.repeated(unit, low, high))
        if (low, high) != (0, 1):
            self._refuse("an assertion is not supported in a repetition")
        return self._any_of([part, self._simple(self._made.empty)])

    # --- characters ---

    def _read_class(self) -> Ranges:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._read_member(negated)
            high = low
            if self._peek() == "-" and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._read_member(negated)
                if len(low) != 1 or len(high) != 1 or high[0][1] < low[0][0]:
                    self._refuse(f"no range before {self._at}")
            ranges += low if high is low else [(low[0][0], high[0][1])]
        return without(ALL, ranges) if negated else tuple(ranges)

    def _read_member(self, negated: bool) -> Ranges:
        char = self._next()
        return self._read_escape(negated) if char == "\\" else ((ord(char), ord(char)),)

    def _read_escape(self, negated: bool) -> Ranges:
        kind = self._next()
        spaces = _SPACE_TO_SOME if kind.isupper() != negated else _SPACE
        known = {"d": _DIGITS, "w": _WORD, "s": spaces}.get(kind.lower())
        if known:
            return known if kind.islower() else without(ALL, known)
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
        return ((code_point, code_point),)
