"""Reads the keywords of JSON schemas, and says by name what is not supported. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

from outrider.errors import InvalidRequest

Schema = dict[str, Any]

_MAX_PARTS = 100  # of one allOf
_MAX_ALTERNATIVES = 32  # of one oneOf; each is compared with each
# Keywords that are merged, and values that are compared, in all of a document: 1 s at the most.
_MAX_WORK = 100_000
MAX_COUNT = 2000  # what a repetition in a grammar can count

_IGNORED = {  # says nothing about values, or only about what the grammar never writes
    *("$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated"),
    *("description", "discriminator", "example", "examples", "id", "nullable", "readOnly"),
    *("title", "writeOnly"),
}
ANNOTATIONS = {"contentEncoding", "contentMediaType", "contentSchema"}  # of what a text says
OF_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
ABOUT: dict[str, set[str]] = {  # keywords by the type that they are about
    "object": {
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("propertyNames", "minProperties", "maxProperties"),
    },
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": OF_NUMBERS,
    "integer": OF_NUMBERS,
    "boolean": set(),
    "null": set(),
}
UNEVALUATED = {"unevaluatedItems", "unevaluatedProperties"}
_CHOICES = {"anyOf", "oneOf"}
_APPLIED = {"$ref", "allOf", *_CHOICES}  # schemas that say more of the same value
_KNOWN = {"type", "enum", "const"}.union(_APPLIED, UNEVALUATED, ANNOTATIONS, *ABOUT.values())
_WRITES_MORE = {*_CHOICES, "patternProperties", "propertyNames"}  # than the named properties
_ITEMS = {"items", "prefixItems", "additionalItems"}
_GREATER = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_LESSER = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}


@dataclass(frozen=True, slots=True)
class _Alternative:
    """One of several of which a value may fulfil one only."""

    whole: Schema
    names: set[str]  # of its properties
    required: set[str]
    telling: dict[str, Schema]  # of properties, by name: those that others have, and one requires


def invalid(reason: str) -> InvalidRequest:
    """Return the error of a schema."""
    return InvalidRequest("json_schema", reason)


class SchemaReader:
    """Looks at schemas within one document, each at its `path`.

    Raises InvalidRequest, with the path, for what is no schema or not supported.
    """

    def __init__(self, document: Any) -> None:
        self._document = document
        self.path = "#"
        self.passed_over: dict[str, None] = {}
        self._work = 0

    def pass_over(self, key: str, value: Any = None) -> None:
        """Note a keyword of the schema that is looked at: its texts may not keep it."""
        said = f"`{key}`" if value is None else f"`{key}` {shown(value)}"
        self.passed_over[f"{said} (at {_cut(json.dumps(self.path)[1:-1], 80)})"] = None

    def refuse(self, reason: str) -> NoReturn:
        """Raise InvalidRequest for the schema that is looked at."""
        raise invalid(f"{reason} (at {_cut(json.dumps(self.path)[1:-1], 80)})")

    def is_never(self, schema: Any) -> bool:
        """Return whether a schema allows nothing, in one of the usual spellings."""
        return text_of(schema) in ("false", '{"not": {}}', '{"not": true}')

    def checked(self, schema: Any) -> Schema:
        """Return a schema of keywords that are all known, and say something here."""
        if self.is_never(schema):
            self.refuse("`false` allows nothing")
        if not isinstance(schema, dict):
            self.refuse(f"{shown(schema)} is no schema")
        said = {k: v for k, v in schema.items() if k not in _IGNORED and not k.startswith("x-")}
        for key in said:
            if key not in _KNOWN:
                self.refuse(f"`{shown(key)[1:-1]}` is not supported")
        return _closed(said)

    def listed(self, key: str, value: Any) -> list[Any]:
        """Return the list that a keyword has to be."""
        if not isinstance(value, list):
            self.refuse(f"`{key}` {shown(value)} is no list")
        return value

    def properties(self, schema: Schema, key: str = "properties") -> dict[str, Any]:
        """Return the schemas of the properties that are named, or match `patternProperties`."""
        properties = schema.get(key, {})
        if not isinstance(properties, dict):
            self.refuse(f"`{key}` {shown(properties)} is no object")
        return properties

    def required(self, schema: Schema) -> set[str]:
        """Return the names of the properties that must be there."""
        required = self.listed("required", schema.get("required", []))
        if not all(isinstance(name, str) for name in required):
            self.refuse(f"`required` {shown(required)} is no list of names")
        return set(required)

    def extra(self, schema: Schema) -> bool | Schema:
        """Return what other properties may be; False for none."""
        extra = schema.get("additionalProperties", True)
        if self.is_never(extra):
            return False
        if not isinstance(extra, bool):
            self.checked(extra)
        return extra or True

    def number(self, schema: Schema, key: str) -> int | float:
        """Return the number that a keyword has to be."""
        value = schema[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(f"`{key}` {shown(value)} is no number")
        return value

    def bounds(self, schema: Schema, most: int) -> tuple[Fraction, bool, Fraction, bool]:
        """Return the least number and the greatest, each with whether itself is left out."""
        found = {
            key: Fraction(str(self.number(schema, key)))
            for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
            if key in schema
        }
        lows = [(found[k], k != "minimum") for k in ("minimum", "exclusiveMinimum") if k in found]
        highs = [(-found[k], k != "maximum") for k in ("maximum", "exclusiveMaximum") if k in found]
        low, low_open = max([*lows, (Fraction(-most), False)])
        high, high_open = max([*highs, (Fraction(-most), False)])
        return low, low_open, -high, high_open

    def step(self, schema: Schema) -> Fraction:
        """Return what a number has to be a multiple of, 0 for any."""
        if "multipleOf" not in schema:
            return Fraction(0)
        step = Fraction(str(self.number(schema, "multipleOf")))
        if step <= 0:
            self.refuse("`multipleOf` is not above 0")
        return step

    def counts(self, schema: Schema, low_key: str, high_key: str) -> tuple[int, int | None]:
        """Return how few and how many a grammar can count; None for any number."""
        low, high = self.lengths(schema, low_key, high_key)
        if high is not None and high > MAX_COUNT:
            self.pass_over(high_key, high)
            return low, None
        return low, high

    def lengths(
        self, schema: Schema, low_key: str = "minLength", high_key: str = "maxLength"
    ) -> tuple[int, int | None]:
        """Return how few and how many there may be; None for any number."""
        for key in sorted({low_key, high_key} & schema.keys()):
            value = schema[key]
            if type(value) is not int or value < 0 or (key == low_key and value > MAX_COUNT):
                self.refuse(f"`{key}` {shown(value)} is not supported, only 0 to {MAX_COUNT}")
        low, high = schema.get(low_key, 0), schema.get(high_key)
        if high is not None and high < low:
            self.refuse(f"`{high_key}` is below `{low_key}`")
        return low, high

    def patterns(self, schema: Schema) -> list[str]:
        """Return all that texts have to match."""
        found = schema.get("pattern", ())
        found = found if isinstance(found, tuple) else (found,)  # from several parts of an `allOf`
        for each in found:
            if not isinstance(each, str):
                self.refuse(f"`pattern` {shown(each)} is no text")
        return [*found]

    def discriminator(self, schema: Schema) -> str:
        """Return the property that OpenAPI's keyword names; "" for none."""
        given = schema.get("discriminator")
        name = given.get("propertyName") if isinstance(given, dict) else given
        return name if isinstance(name, str) else ""

    def types(self, schema: Schema) -> list[str]:
        """Return the types that are named, or the one that the keywords are about."""
        if "type" in schema:
            types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            for kind in types:
                if not isinstance(kind, str) or kind not in ABOUT:
                    self.refuse(f"the type {shown(kind)} is not supported")
            if not types:
                self.refuse("no type is left")
            return [*dict.fromkeys(types)]
        about = [kind for kind in ABOUT if kind != "integer" and ABOUT[kind] & schema.keys()]
        if len(about) > 1:
            self.refuse(f"`type` is missing, with keywords for {' and '.join(about)}")
        return about or ["value"]

    def constants(self, schema: Schema) -> list[Any] | None:
        """Return the values that a schema lists, if it does."""
        values = self.listed("enum", schema["enum"]) if "enum" in schema else None
        if "const" not in schema:
            return values
        only = schema["const"]
        is_listed = values is None or text_of(only) in {text_of(value) for value in values}
        return [only] if is_listed else []

    def target(self, reference: Any) -> Any:
        """Return what a reference within this schema means."""
        if not isinstance(reference, str) or not re.match("#(/|$)", reference):
            self.refuse(f"`$ref` {shown(reference)} is not supported, only #/...")
        target = self._document
        for step in reference.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key in map(str, range(len(target))):
                target = target[int(key)]
            elif isinstance(target, dict) and key in target:
                target = target[key]
            else:
                self.refuse(f"`$ref` {shown(reference)} leads nowhere")
        return target

    def merged(self, parts: list[Any]) -> Schema:
        """Return one schema that says what all parts do."""
        todo = deque(parts)
        merged: Schema = {}
        seen: list[Schema] = []
        unevaluated: Schema = {}
        while todo:
            part = todo.popleft()
            if part is True:
                continue
            part = self.checked(part)
            self._count(1 + len(part))
            if len(seen) == _MAX_PARTS:
                self.refuse(f"more than {_MAX_PARTS} parts, or one that refers to itself")
            if found := sorted(UNEVALUATED & part.keys()):
                if len(parts) == 1 and not seen:  # then it is said of all parts
                    unevaluated = {key: part.pop(key) for key in found}
                else:
                    part = self.merged([part])
                    if UNEVALUATED & part.keys():
                        self.refuse(f"`{found[0]}` is not supported in a part of `allOf`")
            if "$ref" in part:
                todo.append(self.target(part.pop("$ref")))
            todo += self.listed("allOf", part.pop("allOf", []))
            for key in sorted(ANNOTATIONS & part.keys()):
                self.pass_over(key)
                del part[key]
            for key, value in part.items():
                merged[key] = self._both(key, merged[key], value) if key in merged else value
            seen.append(part)
        names = self.properties(merged).keys()
        matching = merged.get("patternProperties")
        for part in seen:
            is_bound = self.extra(part) is not True
            has_all = names <= self.properties(part).keys()
            if is_bound and not (has_all and part.get("patternProperties") == matching):
                self.refuse("`additionalProperties` is not supported in a part of `allOf`")
            if _ITEMS & part.keys() and any(part.get(k) != merged.get(k) for k in _ITEMS):
                self.refuse("`items` is not supported in two parts of `allOf`")
        return _closed(merged | unevaluated)

    def _count(self, work: int) -> None:
        self._work += work
        if self._work > _MAX_WORK:
            self.refuse("its parts are too much to merge and to compare")

    def _both(self, key: str, old: Any, new: Any) -> Any:
        """Return the value of a keyword that two parts have."""
        if text_of(old) == text_of(new):
            return old
        if key in ("properties", "patternProperties"):
            one, other = self.properties({key: old}, key), self.properties({key: new}, key)
            shared = {name: {"allOf": [one[name], other[name]]} for name in one if name in other}
            return one | other | shared
        if key == "required":
            return [*self.listed(key, old), *self.listed(key, new)]
        if key == "type":
            types = self.types({"type": old}), self.types({"type": new})
            return [kind for kind in ABOUT if all(_covers(kind, part) for part in types)]
        if key == "enum":
            texts = {text_of(value) for value in self.listed(key, new)}
            return [value for value in self.listed(key, old) if text_of(value) in texts]
        if key == "propertyNames":
            return {"allOf": [old, new]}
        if key == "pattern":
            return (*self.patterns({key: old}), *self.patterns({key: new}))
        if key in _GREATER:
            return max(self.number({key: old}, key), self.number({key: new}, key))
        if key in _LESSER:
            return min(self.number({key: old}, key), self.number({key: new}, key))
        self.refuse(f"`{key}` is not supported twice in an `allOf`")

    def check_apart(self, parts: list[Any]) -> None:
        """Refuse alternatives of which a text might fulfil two."""
        if len(parts) > _MAX_ALTERNATIVES:
            self.refuse(f"{len(parts)} alternatives of `oneOf`, {_MAX_ALTERNATIVES} at most")
        read = self._alternatives(parts)
        for i, one in enumerate(read):
            for j, other in enumerate(read[:i]):
                if not (self._avoids(one, other) and self._avoids(other, one)):
                    self.refuse(f"a text might fulfil both {j} and {i} of `oneOf`; use `anyOf`")

    def _alternatives(self, parts: list[Any]) -> list[_Alternative]:
        """Merge each part, and what may tell two apart, once: there are many pairs."""
        read = [self.merged([part]) for part in parts]
        often = Counter(key for whole in read for key in self.properties(whole))
        telling = {key for whole in read for key in self.required(whole) if often[key] > 1}
        return [
            _Alternative(
                whole,
                {*self.properties(whole)},
                self.required(whole),
                {
                    key: self.merged([part])
                    for key, part in self.properties(whole).items()
                    if key in telling
                },
            )
            for whole in read
        ]

    def _avoids(self, one: _Alternative, other: _Alternative) -> bool:
        """Return whether a text that is written for `one` is surely not valid under `other`."""
        if self._differ(one.whole, other.whole):
            return True
        if self.types(one.whole) != ["object"]:
            return False
        is_closed = isinstance(self.extra(one.whole), bool) and not _WRITES_MORE & one.whole.keys()
        if one.names and is_closed and other.required - one.names - one.required:
            return True
        shared = one.required & one.telling.keys() & other.telling.keys()
        return any(self._differ(one.telling[key], other.telling[key]) for key in sorted(shared))

    def _differ(self, one: Schema, other: Schema) -> bool:
        """Return whether types or constants alone keep what is written for `one` from `other`."""
        constants, others = self.constants(one), self.constants(other)
        self._count(1 + len(constants or ()) + len(others or ()))
        # Without a type a schema holds of all that its keywords are not about.
        types = self.types(other) if "type" in other else ["value"]
        if constants is not None and others is not None:
            return not {text_of(value) for value in constants} & {text_of(v) for v in others}
        if constants is not None:
            return not any(is_of(value, kind) for value in constants for kind in types)
        if _CHOICES & one.keys():
            return False
        written = self.types(one)
        if others is not None:
            return not any(is_of(value, kind) for value in others for kind in written)
        return not any(_overlap(mine, its) for mine in written for its in types)


def _closed(schema: Schema) -> Schema:
    """Return a schema that says what is not evaluated as what is additional, if that is the same.

    It is where no other schema says more of the same value.
    """
    if not UNEVALUATED & schema.keys() or _APPLIED & schema.keys():
        return schema
    said = {key: value for key, value in schema.items() if key not in UNEVALUATED}
    rest = "additionalItems" if isinstance(said.get("items"), list) else "items"
    for key, other in (
        ("unevaluatedProperties", "additionalProperties"),
        ("unevaluatedItems", rest),
    ):
        if schema.get(key, True) is not True:
            said.setdefault(other, schema[key])
    return said


def _covers(kind: str, types: list[str]) -> bool:
    return kind in types or (kind == "integer" and "number" in types)


def _overlap(one: str, other: str) -> bool:
    return one == other or "value" in (one, other) or {one, other} == {"integer", "number"}


def is_of(value: Any, kind: str) -> bool:
    """Return whether a value is of a JSON type."""
    if isinstance(value, bool):
        return kind in ("boolean", "value")
    if isinstance(value, int):
        return kind in ("integer", "number", "value")
    kinds = {str: "string", float: "number", list: "array", dict: "object", type(None): "null"}
    return kind in (kinds[type(value)], "value")


def text_of(value: Any) -> str:
    """Return the JSON by which values are equal."""
    return json.dumps(value, sort_keys=True)


def shown(value: Any) -> str:
    """Return a short text of a value for an error."""
    return _cut(json.dumps(value), 40)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}..."
