"""Reads values of JSON, Python or Gemma's own, and shows them as JSON while they come. Pure."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import regex

from orchestrator.chat.reader import ChatText, Malformed, Steps

Show = Callable[[str], None]
Schema = Mapping[str, Any]
Kind = TypeVar("Kind")

NO_JSON = object()

MAX_DEPTH = 64
"""Lists and objects in one another; as deep as a body of ours may be."""

_OPEN, _OPEN_LIST, _CLOSE_LIST = (regex.compile(regex.escape(each)) for each in "{[]")
_COMMA = regex.compile(",")
_BARE_KEY = regex.compile(r"[^\"'{}\[\],:=]+")
_WORD = regex.compile(r"[^,\]})]+")
_NUMBER = regex.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_PLAIN = {'"': regex.compile(r'[^"\\\x00-\x1f]+'), "'": regex.compile(r"[^'\"\\\x00-\x1f]+")}
_ESCAPE = regex.compile(r"\\(u[0-9a-fA-F]{4}|[^u])")
_HALF, _SECOND_HALF = (  # of a character that is a surrogate pair
    regex.compile(rf"\\u[dD][{each}][0-9a-fA-F]{{2}}") for each in ("89a-fA-F", "c-fC-F")
)
_TYPES_OF: Mapping[type, set[str]] = {
    str: {"string"},
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    list: {"array"},
    tuple: {"array"},
    dict: {"object"},
    type(None): {"null"},
}


class ValueReader:
    """Reads values of a text. `quote` is what is around texts besides quotation marks, if anything.

    `is_loose`: names and words may stand without quotation marks.
    """

    def __init__(self, reader: ChatText, quote: str, *, is_loose: bool) -> None:
        self._reader = reader
        self._quote = reader.loose(quote)
        self._is_loose = is_loose
        self.depth = 0

    def object(self, show: Show) -> Steps:
        """Read an object."""
        yield from self._reader.blank()
        yield from self._reader.expect(_OPEN)
        yield from self.members(show, ":", "}")

    def members(self, show: Show, equals: str, closes: str) -> Steps:
        """Read the members of an object up to its end, the bracket after them included."""
        show("{")
        comma, bracket = "", regex.compile(regex.escape(closes))
        while not (yield from self.closes(bracket)):
            show(comma)
            comma = ", "
            if (yield from self._is_at_text()):
                yield from self._string(show)
            elif self._is_loose:
                key = (yield from self._reader.word(_BARE_KEY)).strip()
                show(json.dumps(key, ensure_ascii=False))
            else:
                raise Malformed
            yield from self._reader.blank()
            yield from self._reader.expect(regex.compile(f"[{equals}:]"))
            show(": ")
            yield from self.value(show)
        show("}")

    def closes(self, bracket: Any) -> Steps:
        """Pass over a comma, or over the bracket: then return true."""
        yield from self._reader.blank()
        if (yield from self._reader.take(_COMMA)):
            yield from self._reader.blank()
        return bool((yield from self._reader.take(bracket)))

    def value(self, show: Show) -> Steps:
        """Read any value. Raises Malformed, also for one that is nested too deep."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Malformed
        yield from self._value(show)
        self.depth -= 1

    def _value(self, show: Show) -> Steps:
        first = yield from self._reader.blank()
        if first == "{":
            yield from self.object(show)
        elif first == "[":
            yield from self._reader.expect(_OPEN_LIST)
            show("[")
            comma = ""
            while not (yield from self.closes(_CLOSE_LIST)):
                show(comma)
                comma = ", "
                yield from self.value(show)
            show("]")
        elif (yield from self._is_at_text()):
            yield from self._string(show)
        else:
            word = (yield from self._reader.word(_WORD)).strip()
            word = _PYTHON.get(word, word)
            if word not in _PYTHON.values() and not _NUMBER.fullmatch(word):
                if not self._is_loose or not word:
                    raise Malformed
                word = json.dumps(word, ensure_ascii=False)
            elif _NUMBER.fullmatch(word) and math.isinf(float(word)):
                raise Malformed  # it is JSON that others cannot read, nor we write
            show(word)

    def text(self) -> Steps:
        """Read a text, and return what it says."""
        yield from self._reader.blank()
        parts: list[str] = []
        yield from self._string(parts.append)
        return self._reader.decoded(json.loads("".join(parts)))

    def _is_at_text(self) -> Steps:
        if (yield from self._reader.peek()) in _PLAIN:
            return True
        place = self._reader.at
        found = bool(self._quote.pattern) and (yield from self._reader.take(self._quote))
        self._reader.at = place
        return bool(found)

    def _string(self, show: Show) -> Steps:
        reader = self._reader
        quote = yield from reader.peek()
        show('"')
        if quote in _PLAIN:
            reader.at += 1
            yield from self._quoted(quote, show)
        else:
            yield from reader.expect(self._quote)
            found = yield from reader.until(self._quote, lambda text: show(escaped(text)))
            if found is None:
                raise Malformed
            reader.at = found.end()
        show('"')

    def _quoted(self, quote: str, show: Show) -> Steps:
        """Read what is between quotation marks, and the last of them; line ends are let."""
        reader = self._reader
        while (character := (yield from reader.peek())) != quote:
            if plain := _PLAIN[quote].match(reader.text, reader.at):
                reader.at = plain.end()
                show(plain[0])
            elif character == "\\":
                escape = (yield from reader.expect(_ESCAPE))[0]
                if _HALF.fullmatch(escape):
                    is_first = not _SECOND_HALF.fullmatch(escape)
                    second = is_first and (yield from reader.take(_SECOND_HALF))
                    escape = escape + second[0] if second else r"\ufffd"
                if escape[1] not in '"\\/bfnrtu':
                    escape = escaped(escape[1] if escape[1] == "'" else escape)
                show(escape)
            elif character:
                reader.at += 1
                show(escaped(character))
            else:
                raise Malformed
        reader.at += 1


def escaped(text: str) -> str:
    """Return a text as it stands between the quotation marks of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def read_json(text: str) -> Any:
    """Return a value, or NO_JSON, also for one that cannot be written again."""
    try:
        value = json.loads(text)
        write_json(value)
        return value
    except (ValueError, RecursionError):
        return NO_JSON


def write_json(value: object) -> str:
    """Return the JSON of a value. Raises ValueError for what others cannot read.

    That is an infinite number, or half of a surrogate pair.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text


def as_json(text: str, types: set[str]) -> str:
    """Return a value as JSON: what the text says if the types allow that, or the text itself."""
    text = text.strip()
    value = read_json(text)
    if value is NO_JSON:
        try:
            value = ast.literal_eval(text)
            text = write_json(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return json.dumps(text, ensure_ascii=False)
    if "string" in types and not types & _TYPES_OF.get(type(value), set()):
        return json.dumps(text, ensure_ascii=False)
    return text


def member(schema: object, name: str, kind: type[Kind]) -> Kind:
    """Return a member of a schema, empty where it is of another type: schemas come unchecked."""
    found = schema.get(name) if isinstance(schema, dict) else None
    return found if isinstance(found, kind) else kind()


def types_of(schema: object, root: object) -> set[str]:
    """Return the JSON types that a schema allows; none where it does not say."""
    if ref := member(schema, "$ref", str):
        for step in ref.removeprefix("#/").split("/"):
            root = root.get(step) if isinstance(root, dict) else None
        return types_of(root, None)
    if named := [*filter(None, [member(schema, "type", str)]), *member(schema, "type", list)]:
        return {each for each in named if isinstance(each, str)}
    given = member(schema, "enum", list)
    if not given and isinstance(schema, dict) and "const" in schema:
        given = [schema["const"]]
    if given:
        return {name for each in given for name in sorted(_TYPES_OF.get(type(each), ()))[:1]}
    options = [each for name in ("anyOf", "oneOf", "allOf") for each in member(schema, name, list)]
    return {name for option in options for name in types_of(option, root)}
