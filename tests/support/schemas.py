"""Schemas like those that users send, and a small validator that knows nothing of grammars."""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Callable
from typing import Any

TREE: dict[str, Any] = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": 0, "maximum": 99},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["value"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}

EVENT: dict[str, Any] = {
    "title": "Event",
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "at": {"type": "string", "format": "date-time"},
        "level": {"enum": ["debug", "info", 'a "quoted" one', "back\\slash", "é😀"]},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
        "note": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 5}, {"type": "null"}]},
    },
    "required": ["id", "level", "score"],
    "additionalProperties": False,
}

SHAPE: dict[str, Any] = {
    "oneOf": [
        {"$ref": "#/definitions/circle"},
        {"$ref": "#/definitions/square"},
    ],
    "definitions": {
        "circle": {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"type": "integer"}},
            "required": ["kind", "radius"],
        },
        "square": {
            "type": "object",
            "properties": {"kind": {"const": "square"}, "side": {"type": "integer"}},
            "required": ["kind", "side"],
        },
    },
}

DERIVED: dict[str, Any] = {
    "allOf": [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"properties": {"a": {"minimum": 3}, "b": {"type": "boolean"}}},
    ],
    "required": ["b"],
    "properties": {"a": {"maximum": 4}},
}

MAP: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "ident": {"type": "boolean"}},
    "additionalProperties": {"type": "string", "maxLength": 2},
}

CODES: dict[str, Any] = {
    "type": "array",
    "prefixItems": [
        {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"},
        {"type": "string", "pattern": "a|^b\\.$"},
        {"type": "string", "pattern": '^[^"\\s]{1,3}"?\\\\?$'},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "time"},
        {"type": ["integer", "null"], "exclusiveMinimum": -12, "maximum": 1005},
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "number", "minimum": -2, "exclusiveMaximum": 3},
    ],
    "items": False,
}

USUAL = {
    "tree": TREE,
    "event": EVENT,
    "shape": SHAPE,
    "derived": DERIVED,
    "map": MAP,
    "codes": CODES,
    "anything": {"properties": {"x": True, "y": {}}, "required": ["x", "z"]},
}

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    ),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_FORMATS: dict[str, Callable[[str], object]] = {
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "date-time": datetime.datetime.fromisoformat,
    "uuid": uuid.UUID,
}


def is_valid(value: Any, schema: Any, document: Any) -> bool:
    """Return whether a value is valid under a schema within a document."""
    if isinstance(schema, bool):
        return schema
    return all(_keeps(value, key, schema, document) for key in schema)


def _keeps(value: Any, key: str, schema: dict[str, Any], document: Any) -> bool:
    wanted = schema[key]

    def valid(part: Any, inner: Any) -> bool:
        return is_valid(part, inner, document)

    match key:
        case "$ref":
            target = document
            for step in wanted.split("/")[1:]:
                name = step.replace("~1", "/").replace("~0", "~")
                target = target[int(name) if isinstance(target, list) else name]
            return valid(value, target)
        case "type":
            types = wanted if isinstance(wanted, list) else [wanted]
            return any(_TYPES[kind](value) for kind in types)
        case "enum":
            return any(_same(value, one) for one in wanted)
        case "const":
            return _same(value, wanted)
        case "allOf":
            return all(valid(value, part) for part in wanted)
        case "anyOf":
            return any(valid(value, part) for part in wanted)
        case "oneOf":
            return sum(valid(value, part) for part in wanted) == 1
    if isinstance(value, dict):
        return _keeps_object(value, key, schema, valid)
    if isinstance(value, list):
        return _keeps_array(value, key, schema, valid)
    if isinstance(value, str):
        return _keeps_string(value, key, wanted)
    if _TYPES["number"](value):
        match key:
            case "minimum":
                return bool(value >= wanted)
            case "maximum":
                return bool(value <= wanted)
            case "exclusiveMinimum":
                return bool(value > wanted)
            case "exclusiveMaximum":
                return bool(value < wanted)
    return True


def _keeps_object(
    value: dict[str, Any], key: str, schema: dict[str, Any], valid: Callable[[Any, Any], bool]
) -> bool:
    wanted = schema[key]
    match key:
        case "properties":
            return all(valid(value[name], wanted[name]) for name in wanted if name in value)
        case "required":
            return all(name in value for name in wanted)
        case "additionalProperties":
            others = value.keys() - schema.get("properties", {}).keys()
            return all(valid(value[name], wanted) for name in others)
    return True


def _keeps_array(
    value: list[Any], key: str, schema: dict[str, Any], valid: Callable[[Any, Any], bool]
) -> bool:
    wanted = schema[key]
    match key:
        case "prefixItems":
            return all(valid(one, part) for one, part in zip(value, wanted, strict=False))
        case "items" if isinstance(wanted, list):  # of an older draft
            return all(valid(one, part) for one, part in zip(value, wanted, strict=False))
        case "items":
            return all(valid(one, wanted) for one in value[len(schema.get("prefixItems", [])) :])
        case "additionalItems":
            return all(valid(one, wanted) for one in value[len(schema["items"]) :])
        case "minItems":
            return len(value) >= wanted
        case "maxItems":
            return len(value) <= wanted
    return True


def _keeps_string(value: str, key: str, wanted: Any) -> bool:
    match key:
        case "minLength":
            return len(value) >= wanted
        case "maxLength":
            return len(value) <= wanted
        case "pattern":
            return re.search(wanted, value) is not None
        case "format":
            try:
                _FORMATS[wanted](value)
            except ValueError:
                return False
    return True


def _same(one: Any, other: Any) -> bool:
    if _TYPES["number"](one) and _TYPES["number"](other):
        return bool(one == other)
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
