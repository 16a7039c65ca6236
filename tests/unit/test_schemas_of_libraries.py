"""Schemas as Pydantic and Zod write them: taken, kept, and what is not kept is named."""

from __future__ import annotations

import datetime
import decimal
import ipaddress
import json
import pathlib
import random
import uuid
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from outrider.engine.grammar_matcher import GrammarVocabulary
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.schema import grammar_of_schema, passed_over
from tests.support.grammars import compiled, lets, random_text
from tests.support.schemas import is_valid


def texts_of(schema: Any) -> list[str]:
    """Return some texts; those of a few characters are followed as tokens, too."""
    grammar = grammar_of_schema(json.dumps(schema))
    rules = read_grammar(grammar)
    texts = [random_text(rules, random.Random(seed), 80) for seed in range(40)]
    matcher = compiled(grammar)
    assert all(lets(matcher, text) for text in texts[:3])
    return texts


def names_of(passed: Iterable[str]) -> list[str]:
    return [each.partition(" (at #")[0].replace("`", "").replace('"', "") for each in passed]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str | None = None


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    colour: Colour = Field(Colour.RED, description="of it", examples=["red"], deprecated=True)
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]
    price: Annotated[float, Field(gt=0.5, multiple_of=0.25, title="Price")] = 1.5


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Point(NamedTuple):
    x: int
    y: float


WHOLE: dict[str, Any] = {
    "str": str,
    "lengths": Annotated[str, Field(min_length=2, max_length=5)],
    "pattern": Annotated[str, Field(pattern="^[a-z]+(-[a-z]+)*$", min_length=3, max_length=20)],
    "int": int,
    "int in a range": Annotated[int, Field(ge=3, lt=700)],
    "int in steps": Annotated[int, Field(multiple_of=64, ge=0)],
    "float": float,
    "float in a range": Annotated[float, Field(gt=0.5, le=2.25)],
    "float in steps": Annotated[float, Field(multiple_of=0.25, ge=-10, le=1000)],
    "literal": Literal["a", 1, None, True],
    "enum": Colour,
    "optional": int | None,
    "union": int | str | bool,
    "discriminated": Annotated[Cat | Dog, Field(discriminator="kind")],
    "models": Cat | Dog,
    "dict": dict[str, int],
    "dict of a size": Annotated[dict[str, int], Field(min_length=1, max_length=3)],
    "dict by literals": dict[Literal["x", "y"], int],
    "dict by enum": dict[Colour, list[int]],
    "dict by pattern": dict[Annotated[str, Field(pattern="^k_")], bool],
    "dict by length": dict[Annotated[str, Field(max_length=4)], bool],
    "dict by uuid": dict[uuid.UUID, int],
    "dict by date": dict[datetime.date, int],
    "list": Annotated[list[int], Field(min_length=1, max_length=3)],
    "tuple": tuple[int, str, bool],
    "tuple of any length": tuple[int, ...],
    "named tuple": Point,
    "set of an enum": Annotated[set[Colour], Field(min_length=1)],
    "datetime": datetime.datetime,
    "date": datetime.date,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "uuid": uuid.UUID,
    "uuid of a version": pydantic.UUID4,
    "url": pydantic.AnyUrl,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "nested": Strict,
    "recursive": Node,
    "extra": Loose,
    "any": Any,
    "none": None,
    "bool": bool,
}
IN_PART: dict[str, tuple[Any, list[str]]] = {
    "set": (set[str], ["uniqueItems"]),
    "frozenset": (frozenset[int], ["uniqueItems"]),
    "bytes": (bytes, ["format binary"]),
    "path": (pathlib.Path, ["format path"]),
    "secret": (pydantic.SecretStr, ["format password"]),
    "dsn": (pydantic.PostgresDsn, ["format multi-host-uri"]),
    "network": (ipaddress.IPv4Network, ["format ipv4network"]),
    "json": (pydantic.Json, ["contentMediaType", "contentSchema"]),
    "long": (Annotated[str, Field(max_length=5000)], ["maxLength 5000"]),
    "dict of two": (Annotated[dict[str, int], Field(min_length=2)], ["minProperties 2"]),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_pydantic_takes_every_text_for_its_types(kind: str) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(WHOLE[kind])
    schema = adapter.json_schema()
    assert passed_over(json.dumps(schema)) == ()
    for text in texts_of(schema):
        assert is_valid(json.loads(text), schema), text
        adapter.validate_json(text)


@pytest.mark.parametrize("kind", IN_PART)
def test_what_is_not_kept_of_a_type_is_named(kind: str) -> None:
    of, names = IN_PART[kind]
    schema = TypeAdapter(of).json_schema()
    assert names_of(passed_over(json.dumps(schema))) == names
    assert texts_of(schema)


@pytest.mark.parametrize("of", [decimal.Decimal, pydantic.HttpUrl, pydantic.ByteSize])
def test_pydantic_asks_for_more_than_its_schema_says(of: Any) -> None:
    schema = TypeAdapter(of).json_schema()
    assert passed_over(json.dumps(schema)) == ()
    assert all(is_valid(json.loads(text), schema) for text in texts_of(schema))


def string(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


_DAY = (
    r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:"
    r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|(?:02)-(?:0[1-9]|1\d|2[0-8])))"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
_HEX = "[0-9a-fA-F]"
_GROUPS = [
    *(f"({_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}", f"({_HEX}{{1,4}}:){{1,7}}:"),
    *(f"({_HEX}{{1,4}}:){{1,{7 - n}}}(:{_HEX}{{1,4}}){{1,{n}}}" for n in range(1, 6)),
    *(f"{_HEX}{{1,4}}:((:{_HEX}{{1,4}}){{1,6}})", f":((:{_HEX}{{1,4}}){{1,7}}|:)"),
]
SAFE = 9007199254740991
ZOD: dict[str, tuple[Any, list[str]]] = {  # as z.toJSONSchema() of zod 4.1 writes them
    "email": (
        string(
            format="email",
            pattern=r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
            r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
        ),
        [],
    ),
    "uuid": (
        string(
            format="uuid",
            pattern=f"^({_HEX}{{8}}-{_HEX}{{4}}-[1-8]{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"
            "|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$",
        ),
        [],
    ),
    "url": (string(format="uri"), []),
    "datetime": (string(format="date-time", pattern=f"^{_DAY}T(?:{_TIME}(?:Z))$"), []),
    "date": (string(format="date", pattern=f"^{_DAY}$"), []),
    # Zod's has no offset, and the format's always has one.
    "time": (string(format="time", pattern=f"^{_TIME}$"), ["format time"]),
    "duration": (
        string(
            format="duration",
            pattern=r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
            r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$",
        ),
        [],
    ),
    "hostname": (
        string(
            format="hostname",
            pattern=r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
            r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$",
        ),
        ["pattern ^(?=.{1,253}\\\\.?$)[a-zA-Z0-9](?:[a-zA-Z..."],
    ),
    "ipv4": (string(format="ipv4", pattern=rf"^(?:{_BYTE}\.){{3}}{_BYTE}$"), []),
    "ipv6": (string(format="ipv6", pattern=f"^({'|'.join(_GROUPS)})$"), []),
    "cidrv4": (
        string(format="cidrv4", pattern=rf"^({_BYTE}\.){{3}}{_BYTE}\/([0-9]|[1-2][0-9]|3[0-2])$"),
        ["format cidrv4"],
    ),
    "base64": (
        string(
            format="base64",
            contentEncoding="base64",
            pattern="^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$",
        ),
        ["contentEncoding", "format base64"],
    ),
    "e164": (string(format="e164", pattern=r"^\+[1-9]\d{6,14}$"), ["format e164"]),
    "jwt": (string(format="jwt"), ["format jwt"]),
    "starts and ends": (string(allOf=[{"pattern": "^ab.*"}, {"pattern": ".*yz$"}]), []),
    "length and pattern": (string(minLength=8, pattern=r"^(?=.*[a-z])(?=.*\d)[A-Za-z\d]+$"), []),
    "template": (string(pattern=r"^id-(-?\d+)-(a|b)$"), []),
    "int": ({"type": "integer", "minimum": -SAFE, "maximum": SAFE}, []),
    "positive": ({"type": "number", "exclusiveMinimum": 0}, []),
    "float32": ({"type": "number", "minimum": -3.4e38, "maximum": 3.4028234663852886e38}, []),
    "step": ({"type": "number", "multipleOf": 0.1, "minimum": 0, "maximum": 1}, []),
    "step of int": ({"type": "integer", "multipleOf": 5, "minimum": -SAFE, "maximum": SAFE}, []),
    "record": (
        {
            "type": "object",
            "propertyNames": {"type": "string"},
            "additionalProperties": {"type": "number"},
        },
        [],
    ),
    "record of an enum": (
        {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["a", "b"]},
            "additionalProperties": {"type": "number"},
            "required": ["a", "b"],
        },
        [],
    ),
    "record of numbers": (
        {
            "type": "object",
            "propertyNames": {"type": "string", "pattern": r"^-?\d+(?:\.\d+)?$"},
            "additionalProperties": {},
        },
        [],
    ),
    "never": ({"type": "object", "properties": {"a": {"not": {}}, "b": string()}}, []),
    "nullable": ({"anyOf": [string(), {"type": "null"}]}, []),
    "tuple": ({"type": "array", "prefixItems": [string()], "items": {"type": "number"}}, []),
    "lazy": (
        {
            "type": "object",
            "properties": {"n": string(), "kids": {"type": "array", "items": {"$ref": "#"}}},
            "required": ["n", "kids"],
            "additionalProperties": False,
        },
        [],
    ),
    "discriminated": (
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"t": string(const=name), "x": {"type": "number"}},
                    "required": ["t"],
                    "additionalProperties": False,
                }
                for name in ("a", "b")
            ]
        },
        [],
    ),
    "loose": ({"type": "object", "properties": {"a": string()}, "additionalProperties": {}}, []),
    "default": ({"default": 3, "type": "number", "readOnly": True, "title": "t", "id": "x"}, []),
}


@pytest.mark.parametrize("kind", ZOD)
def test_zods_schemas_are_kept(kind: str) -> None:
    schema, names = ZOD[kind]
    assert names_of(passed_over(json.dumps(schema))) == names
    # All that is passed over here is an annotation, or says no more than the format does.
    kept = {key: value for key, value in schema.items() if f"{key} {value}" not in names}
    for text in texts_of({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}):
        assert is_valid(json.loads(text), kept), text


def test_free_texts_are_masked_with_a_large_vocabulary() -> None:
    dice = random.Random(1)
    letters = [chr(code) for code in range(32, 127)]
    words = {"".join(dice.choices(letters, k=dice.randint(1, 9))) for _ in range(40_000)}
    texts = [word.encode() for word in sorted({*letters, *words})]
    vocabulary = GrammarVocabulary(texts, np.zeros(len(texts), np.bool_))
    schemas: list[dict[str, Any]] = [
        *({"pattern": each} for each in ("foo", "^(?!.*foo)", "^(?=.*a).*(?:b|cd)$", "[^b]+c?")),
        {"allOf": [{"pattern": "^ab.*"}, {"pattern": ".*yz$"}]},
        {"properties": {"id": {}, "ident": {}}, "additionalProperties": {"type": "null"}},
        {"patternProperties": {"^x-": {"type": "null"}}, "propertyNames": {"pattern": "[a-z]$"}},
    ]
    for schema in schemas:
        matcher = vocabulary.matcher(read_grammar(grammar_of_schema(json.dumps(schema))))
        for token in (texts.index(char) for char in (b"{", b'"', b"a", b"b")):
            if matcher.allowed()[token]:
                matcher.accept(token)
        assert matcher.allowed().any(), schema


def test_what_is_passed_over_is_printable_ascii_with_its_place() -> None:
    schema = {"properties": {"a\n\r é": {"type": "string", "format": "né\n"}}}
    (said,) = passed_over(json.dumps(schema))
    assert said.isascii() and said.isprintable()
    assert said.startswith("`format` ") and said.endswith("(at #/properties/a\\n\\r \\u00e9)")
