"""Schemas like those that users send, and a validator that knows nothing of grammars."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

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


def is_valid(value: Any, schema: Any) -> bool:
    """Return whether a value is valid, formats included. An `items` that is a list is 2019's."""
    old = '"items": [' in json.dumps(schema)
    kind = jsonschema_rs.Draft201909Validator if old else jsonschema_rs.Draft202012Validator
    return bool(kind(schema, validate_formats=True).is_valid(value))
