"""Turns a JSON schema into GBNF. Pure.

Every text of the grammar is valid under the schema; not every valid text is in the grammar.
Properties come in the schema's order, and no others unless `additionalProperties` is a schema;
whitespace is at most a space, or a line break and 20 spaces. Keywords that would need more than a
grammar are refused by name: a promise that nobody keeps is worse than none.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import MAX_BYTES, read_grammar
from outrider.grammar.json_texts import (
    FIXED,
    FORMATS,
    GREATEST,
    either,
    integers,
    literal,
    numbers,
    quoted,
)
from outrider.grammar.pattern import pattern
from outrider.grammar.schema_reader import (
    ABOUT,
    IGNORED,
    OF_NUMBERS,
    Schema,
    SchemaReader,
    invalid,
    is_of,
    shown,
    text_of,
)

_MAX_DEPTH = 64
_MAX_RULES = 1000
_MAX_KEY = 200
_WORDS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|([a-z][a-z0-9-]*)')
_PLAIN = re.compile(r'[^"\\\x7f\x00-\x1f\ud800-\udfff]*')
_COMMA = '"," ws'


def grammar_of_schema(schema: str) -> str:
    """Return the GBNF of the texts that a schema, given as JSON, may let a model write.

    Raises InvalidRequest for what is no schema, has keywords that are not supported, or is too
    large. Nothing is fetched.
    """
    grammar = written(rules_of_schema(schema))
    try:
        read_grammar(grammar)
    except InvalidRequest as refusal:
        raise invalid(f"its grammar is refused: {refusal}") from None
    return grammar


def rules_of_schema(schema: str, name: str = "root", prefix: str = "s") -> dict[str, str]:
    """Return the GBNF rules by name, of which `name` is the schema's own.

    Other names are `prefix` with a number, or a rule of JSON that means the same to every schema,
    so that the rules of several schemas go into one grammar. Raises InvalidRequest as
    `grammar_of_schema` does.
    """
    if len(schema) > MAX_BYTES:
        raise invalid(f"{len(schema)} characters, {MAX_BYTES} at most")
    try:
        whole = json.loads(schema, parse_float=_whole_if_equal, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise invalid(f"is not JSON: {error}") from None
    _check_depth(whole)
    try:
        return _Converter(whole, prefix).rules(name)
    except RecursionError:
        raise invalid("refers to itself without end") from None


def written(rules: Mapping[str, str]) -> str:
    """Return the GBNF text of rules by name."""
    return "".join(f"{name} ::= {body}\n" for name, body in rules.items())


class _Converter:
    """Gives every schema it meets a rule; schemas of the same content share one."""

    def __init__(self, document: Any, prefix: str) -> None:
        self._document = document
        self._prefix = prefix
        self._reader = SchemaReader(document)
        self._names: dict[str, str] = {}  # by the schema's JSON
        self._todo: deque[tuple[str, Any, str]] = deque()
        self._rules: dict[str, str] = {}

    def rules(self, root: str) -> dict[str, str]:
        """Return the rules that the root needs, itself first."""
        self._rules[root] = self._rule(self._document, "")
        while self._todo:
            name, schema, self._reader.path = self._todo.popleft()
            self._rules[name] = self._body(name, schema)
        needed: dict[str, str] = {}
        todo = [root]
        seen = {*todo}
        for name in todo:
            needed[name] = self._rules.get(name) or FIXED[name]
            for word in _WORDS.finditer(needed[name]):
                if word[1] and word[1] not in seen:
                    seen.add(word[1])
                    todo.append(word[1])
        return needed

    def _rule(self, schema: Any, step: str) -> str:
        """Return the name of the rule of a schema that stands `step` below this one."""
        content = json.dumps(schema)
        if content not in self._names:
            if len(self._names) == _MAX_RULES:
                self._reader.refuse(f"more than {_MAX_RULES} different schemas in it")
            if len(content) > MAX_BYTES:
                self._reader.refuse("its parts grow without end")
            self._names[content] = f"{self._prefix}{len(self._names)}"
            self._todo.append((self._names[content], schema, self._reader.path + step))
        return self._names[content]

    def _body(self, name: str, schema: Any) -> str:
        if schema is True:
            return "value"
        schema = self._reader.checked(schema)
        rest = {key: value for key, value in schema.items() if key not in IGNORED}
        if "$ref" in rest or "allOf" in rest:
            if len(rest) == 1 and "$ref" in rest:
                return self._rule(self._reader.target(rest["$ref"]), "")
            return self._rule(self._reader.merged([rest]), "")
        for key in ("anyOf", "oneOf"):
            if key in rest:
                return self._alternatives(key, rest.pop(key), rest)
        if "enum" in rest or "const" in rest:
            return self._values(rest)
        return either(self._typed(name, kind, rest) for kind in self._reader.types(rest))

    def _typed(self, name: str, kind: str, schema: Schema) -> str:
        if kind == "object":
            return self._object(name, schema)
        if kind == "array":
            return self._array(schema)
        if kind == "string":
            return self._string(schema)
        if kind in ("integer", "number"):
            return self._numeric(kind, schema)
        return kind

    def _values(self, schema: Schema) -> str:
        values = self._reader.listed("enum", schema.get("enum", [schema.get("const")]))
        if "const" in schema:
            values = [value for value in values if text_of(value) == text_of(schema["const"])]
        if "type" in schema:
            types = self._reader.types(schema)
            values = [value for value in values if any(is_of(value, kind) for kind in types)]
        for key in sorted(schema.keys() - {"enum", "const", "type"}):
            self._reader.refuse(f"`{key}` is not supported beside `enum` or `const`")
        if not values:
            self._reader.refuse("no value is left of `enum` or `const`")
        try:
            return either(literal(value) for value in values)
        except ValueError as error:
            self._reader.refuse(f"a value of `enum` or `const`: {error}")

    def _alternatives(self, key: str, alternatives: Any, rest: Schema) -> str:
        parts = [part for part in self._reader.listed(key, alternatives) if part is not False]
        if not parts:
            self._reader.refuse(f"no alternative is left of `{key}`")
        if rest:
            parts = [{"allOf": [part, rest]} for part in parts]
        if key == "oneOf":
            self._reader.check_apart(parts)
        return either(self._rule(part, f"/{key}/{i}") for i, part in enumerate(parts))

    def _object(self, name: str, schema: Schema) -> str:
        properties, required = self._reader.properties(schema), self._reader.required(schema)
        extra = self._reader.extra(schema)
        members = {key: part for key, part in properties.items() if part is not False}
        for key in sorted(required - members.keys()):
            if extra is False or key in properties:
                self._reader.refuse(f"`required` names {shown(key)}, which is not allowed")
            members[key] = extra
        if extra is True and not properties and not members:
            return "object"
        for i, (key, part) in enumerate(members.items()):
            value = self._rule(part, f"/properties/{key}")
            self._rules[f"{name}-{i}"] = f'{literal(key)} ":" ws {value}'
        others = ""
        if not isinstance(extra, bool):
            self._exclude(f"{name}-k", [*properties, *members])
            value = self._rule(extra, "/additionalProperties")
            self._rules[f"{name}-x"] = f'"\\"" {name}-k "\\"" ":" ws {value}'
            others = f"( {_COMMA} {name}-x )*"
        return self._members(name, [key in required for key in members], others)

    def _members(self, name: str, required: list[bool], others: str) -> str:
        """Return an object of the pairs `name-0`, `name-1` ..., in this order, then others."""
        rest = others
        firsts = [f"{name}-x {others}"] if others and not any(required) else []
        for i in reversed(range(len(required))):
            if not any(required[:i]):
                firsts.append(f"{name}-{i} {rest}")
            pair = f"{_COMMA} {name}-{i}"
            self._rules[f"{name}-r{i}"] = f"{pair if required[i] else f'( {pair} )?'} {rest}"
            rest = f"{name}-r{i}"
        if not firsts:
            return '"{" ws "}"'
        first = either(reversed(firsts))
        return f'"{{" ws {first} ws "}}"' if any(required) else f'"{{" ws ( {first} ws )? "}}"'

    def _exclude(self, name: str, keys: Iterable[str]) -> None:
        """Make rules for the keys that are none of `keys`, without the quotes."""
        keys = [key for key in keys if _PLAIN.fullmatch(key)]  # no others could be written
        if any(len(key) > _MAX_KEY for key in keys):
            self._reader.refuse(f"a property's name is longer than {_MAX_KEY} characters")
        following: dict[str, set[str]] = {"": set()}
        for key in keys:
            for i, char in enumerate(key):
                following.setdefault(key[:i], set()).add(char)
            following.setdefault(key, set())
        names = {start: f"{name}{i or ''}" for i, start in enumerate(following)}
        for start, chars in following.items():
            taken = "".join(f"\\U{ord(char):08X}" for char in sorted(chars))
            parts = [f'[^"\\\\\\x7F\\x00-\\x1F{taken}] plain*']
            parts += [f"{quoted(char)} {names[start + char]}" for char in sorted(chars)]
            parts += [] if start in keys else ['""']
            self._rules[names[start]] = " | ".join(parts)

    def _array(self, schema: Schema) -> str:
        if schema.get("uniqueItems"):
            self._reader.refuse("`uniqueItems` is not supported")
        prefix, items = schema.get("prefixItems", []), schema.get("items")
        if isinstance(items, list):
            prefix, items = items, schema.get("additionalItems")
        first = [self._rule(part, "/items") for part in self._reader.listed("prefixItems", prefix)]
        low, high = self._reader.counts(schema, "minItems", "maxItems")
        first = first[:high]
        low = max(low - len(first), 0)
        high = None if high is None else high - len(first)
        if items is None:
            items = low > 0 or not first
        if items is False:
            high = 0
        if high is not None and high < low:
            self._reader.refuse(f"`minItems` is not to be reached: {low - high} more are needed")
        body = f" {_COMMA} ".join(first)
        if high != 0:
            item = self._rule(items, "/items")
            if first:
                body += f" ( {_COMMA} {item} ){_times(low, high)}"
            else:
                more = _times(max(low - 1, 0), None if high is None else high - 1)
                body = f"{item} ( {_COMMA} {item} ){more}"
        if not body:
            return '"[" ws "]"'
        return f'"[" ws {body} ws "]"' if low or first else f'"[" ws ( {body} ws )? "]"'

    def _string(self, schema: Schema) -> str:
        about = sorted(ABOUT["string"] & schema.keys())
        if len(about) > 1 and about != ["maxLength", "minLength"]:
            self._reader.refuse(f"`{about[0]}` is not supported together with `{about[1]}`")
        if "pattern" in schema:
            if not isinstance(schema["pattern"], str):
                self._reader.refuse(f"`pattern` {shown(schema['pattern'])} is no text")
            return pattern(schema["pattern"])
        if "format" in schema:
            if schema["format"] not in FORMATS:
                self._reader.refuse(f"the format {shown(schema['format'])} is not supported")
            return f'"\\"" {schema["format"]} "\\""'
        low, high = self._reader.counts(schema, "minLength", "maxLength")
        return f'"\\"" char{_times(low, high)} "\\""' if about else "string"

    def _numeric(self, kind: str, schema: Schema) -> str:
        if schema.get("multipleOf", 1) != 1:
            self._reader.refuse("`multipleOf` is not supported")
        whole = kind == "integer" or "multipleOf" in schema
        if not OF_NUMBERS & schema.keys():
            return kind
        bounds = {key: self._reader.number(schema, key) for key in OF_NUMBERS & schema.keys()}
        lows = [(bounds[k], k != "minimum") for k in ("minimum", "exclusiveMinimum") if k in bounds]
        highs = [
            (bounds[k], k == "maximum") for k in ("maximum", "exclusiveMaximum") if k in bounds
        ]
        low, low_open = max(lows, default=(-GREATEST, False))
        high, high_closed = min(highs, default=(GREATEST, True))
        if whole:
            first = math.floor(low) + 1 if low_open else math.ceil(low)
            last = math.floor(high) if high_closed else math.ceil(high) - 1
        else:
            first, last = int(low), int(high)
            if first != low or last != high:
                self._reader.refuse("a bound with a fraction is not supported for numbers")
        first, last = max(first, -GREATEST), min(last, GREATEST)
        if first > last or (first == last and not whole and (low_open or not high_closed)):
            self._reader.refuse("no number is within the bounds, or in 64 bits")
        return integers(first, last) if whole else numbers(first, last, low_open, not high_closed)


def _times(low: int, high: int | None) -> str:
    return f"{{{low},{'' if high is None else high}}}"


def _whole_if_equal(digits: str) -> int | float:
    """Return the number of a JSON text: 1.0 is 1, as in a schema."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is too large")
    return int(number) if number.is_integer() else number


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _check_depth(whole: Any) -> None:
    level = [whole]
    for _ in range(_MAX_DEPTH):
        nested = [part for part in level if isinstance(part, dict | list)]
        level = [x for part in nested for x in (part.values() if isinstance(part, dict) else part)]
    if level:
        raise invalid(f"more than {_MAX_DEPTH} levels deep")
