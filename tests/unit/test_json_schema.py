"""JSON schemas as grammars: every text is valid, and what cannot be kept is refused by name."""

from __future__ import annotations

import itertools
import json
import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.engine.grammar_matcher import GrammarMatcher
from outrider.errors import InvalidRequest
from outrider.grammar.formats import FORMATS
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.schema import grammar_of_schema, passed_over
from outrider.grammar.schema_reader import SchemaReader
from tests.support.grammars import compiled, follow, lets, random_text
from tests.support.schemas import USUAL, is_valid

SETTINGS = settings(
    derandomize=True, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)


def converted(schema: Any) -> GrammarMatcher:
    return compiled(grammar_of_schema(json.dumps(schema)))


def refusal(schema: Any) -> str:
    with pytest.raises(InvalidRequest) as error:
        grammar_of_schema(schema if isinstance(schema, str) else json.dumps(schema))
    assert error.value.field == "json_schema"
    message = str(error.value)
    assert "\n" not in message and len(message) < 300
    return message


# what a grammar lets


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (True, ["1", "{}", '["a", null]'], ["", "a"]),
        ({}, ["true", '"a"', "-0.5e-3"], ["01", ".5", "tru"]),
        ({"type": "object"}, ["{}", '{"a": {"b": []}}'], ["1", '{"a"}']),
        ({"type": "array"}, ["[]", "[1, {}]"], ["{}", "[1,]"]),
        ({"type": "string"}, ['"a"', '"é😀"', r'"\n\u00e9\""'], ['"\n"', '"\x00"', r'"\ud800"']),
        ({"type": "integer"}, ["0", "-7", "123456789012345678"], ["01", "1.5", "1" * 19]),
        ({"type": "number"}, ["0", "-1.05", "1e5", "2E-07"], [".5", "01", "1."]),
        ({"type": ["boolean", "null"]}, ["true", "null"], ['"true"', "1"]),
        ({"const": 'a"b\\c\n'}, [r'"a\"b\\c\n"'], ['"a']),
        ({"const": None}, ["null"], ["0"]),
        ({"enum": ["😀", 1, None, True, [1, {"a": 2}]]}, ['"😀"', '[1, {"a": 2}]'], ["2", "false"]),
        ({"enum": ["a", 1, 2.0], "type": "integer"}, ["1", "2"], ['"a"', "2.0"]),
        (
            {"type": "string", "minLength": 2, "maxLength": 3},
            ['"ab"', r'"a\"b"'],
            ['"a"', '"abcd"'],
        ),
        ({"type": "string", "maxLength": 2000}, ['""', f'"{"a" * 2000}"'], [f'"{"a" * 2001}"']),
        ({"minLength": 1}, ['"a"'], ['""']),
        ({"type": "integer", "minimum": 5}, ["5", "60", "700"], ["4", "-5", "05"]),
        ({"type": "integer", "maximum": -5}, ["-5", "-12"], ["-4", "5", "0"]),
        (
            {"type": "integer", "minimum": -13, "maximum": 207},
            ["-13", "0", "99", "207"],
            ["-14", "208", "-0"],
        ),
        ({"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 2}, ["1"], ["0", "2"]),
        ({"type": "integer", "minimum": 7.0, "maximum": 7}, ["7"], ["8"]),
        ({"type": "number", "minimum": 0}, ["0", "0.5", "12.25"], ["-1", "-0.5"]),
        (
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            ["0.5", "1"],
            ["0", "0.0", "1.1"],
        ),
        (
            {"type": "number", "minimum": -2, "maximum": -1},
            ["-1", "-2", "-1.5"],
            ["-2.5", "-0.5", "1"],
        ),
        (
            {"type": "number", "minimum": -1, "exclusiveMaximum": 0},
            ["-1", "-0.5"],
            ["0", "-0", "-0.0", "-1.5"],
        ),
        ({"allOf": [{"type": "integer"}, {"type": ["number", "null"]}]}, ["1"], ["1.5", "null"]),
        ({"multipleOf": 1, "minimum": 3, "maximum": 4}, ["3", "4"], ["3.5"]),
        (
            {"items": {"type": "null"}, "minItems": 1, "maxItems": 2},
            ["[null]", "[null, null]"],
            ["[]"],
        ),
        ({"items": {}, "maxItems": 0}, ["[]"], ["[1]"]),
        ({"items": False}, ["[]"], ["[1]"]),
        ({"prefixItems": [{"type": "null"}, True]}, ["[null, 1]"], ["[1, 1]", "[null, 1, 1]"]),
        ({"prefixItems": [True, True], "maxItems": 1}, ["[1]"], ["[1, 1]"]),
        ({"prefixItems": [True], "minItems": 2}, ["[1, 2]"], ["[1]"]),
        ({"items": [True], "additionalItems": {"type": "null"}}, ["[1]", "[1, null]"], ["[1, 1]"]),
        (
            {"properties": {"a": {"type": "null"}}},
            ["{}", '{"a": null}', '{ "a":null }'],
            ['{"b": 1}'],
        ),
        ({"properties": {"a": False}}, ["{}"], ['{"a": 1}']),
        ({"properties": {'q"\\é': {"type": "null"}}}, [r'{"q\"\\é": null}'], [r'{"qé": null}']),
        ({"required": ["a"]}, ['{"a": 1}'], ["{}"]),
        (
            {"properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"]},
            ['{"b": 1}', '{"a": 1, "b": 1}', '{"b":1,"c":1}', '{"a":1,"b":1,"c":1}'],
            ["{}", '{"a": 1}', '{"a": 1, "c": 1}', '{"b": 1, "a": 1}'],
        ),
        (
            {"properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
            ["{}", '{"ab": null}', '{"a": 1}', '{"abc": 1}', '{"": 1}', '{"ab": null, "x": 1}'],
            ['{"ab": 1}', '{"x": null}', '{"a": 1, "ab": 1}', r'{"\u0061b": 1}'],
        ),
        (
            {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            ['{"a": 1}', '{"b": 1}'],
            ["{}"],
        ),
        (
            {"oneOf": [{"type": "integer"}, {"type": "string"}, {"const": None}]},
            ["1", '"a"', "null"],
            ["true"],
        ),
        (
            {
                "$defs": {"string": {"type": "integer"}, "a/b": {"$ref": "#/$defs/string"}},
                "prefixItems": [
                    {"type": "string"},
                    {"$ref": "#/$defs/a~1b"},
                    {"$ref": "#/prefixItems/0"},
                ],
            },
            ['["a", 1, "b"]'],
            ['["a", "b", "c"]'],
        ),
        (
            {"properties": {"next": {"$ref": "#", "description": "more of it"}}},
            ['{"next": {"next": {}}}'],
            ['{"next": 1}'],
        ),
        ({"format": "date"}, ['"2024-02-28"', '"1999-12-31"'], ['"2024-02-30"', '"2024-13-01"']),
        (
            {"format": "date-time"},
            ['"2024-01-31T23:59:59.5Z"'],
            ['"2024-01-31"', '"2024-01-31T25:00:00Z"'],
        ),
        ({"pattern": "^(?:ab|c)+d{2}$"}, ['"abdd"', '"ccdd"'], ['"dd"', '"abd"']),
        ({"pattern": "b"}, ['"abc"', '"b"'], ['"ac"']),
        ({"pattern": "^a"}, ['"a"', '"ab"'], ['"ba"']),
        ({"pattern": r"^\w\s\S\D\.[^\d]\x41\u00e9$"}, [r'"a\tbc.dAé"'], ['"a b1.dAé"']),
        ({"pattern": r"^(\S|[^\s])$"}, ['"a"', '"é"'], ['"\u3000"', '"\ufeff"', '" "']),
        ({"pattern": r'^"\\/$'}, [r'"\"\\/"'], ['""/"']),
        ({"pattern": "(^|,)a(,|$)"}, ['"a"', '"a,b"', '"b,a"', '"b,a,"'], ['"ba"', '"ab"']),
        ({"pattern": "^(?!a|.*b$)(?=.*c).{2}$"}, ['"cd"', '"dc"'], ['"ac"', '"cb"', '"dd"']),
        ({"pattern": "^(?:(?=a)[a-c]|x)z$"}, ['"az"', '"xz"'], ['"bz"', '"yz"']),
        ({"pattern": "(?<year>[0-9]{4})$"}, ['"in 1999"'], ['"1999."']),
        (
            {"pattern": "^[a-z]+(-[a-z]+)*$", "minLength": 3, "maxLength": 4},
            ['"abc"', '"a-bc"'],
            ['"ab"', '"a--b"', '"ab-cd"'],
        ),
        ({"pattern": "^[a-z]*$", "maxLength": 2000}, [f'"{"a" * 2000}"'], [f'"{"a" * 2001}"']),
        ({"pattern": "^a?[bc]+$", "maxLength": 3}, ['"abc"', '"bbb"'], ['"abcb"', '"bbbb"', '"a"']),
        ({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, ['"ab"', '"aab"'], ['"a"', '"b"']),
        (
            {"format": "uri", "minLength": 1, "maxLength": 2083},
            ['"https://a.b/c?d=%20#e"'],
            ['"a"'],
        ),
        (
            {"format": "email", "maxLength": 20},
            ['"ab@c.de"', '"a.b@cd-e.example.org"'],
            ['"ab@c"', '"@c.de"', '"abcdefghijkl@mnop.example.org"'],
        ),
        (
            {"format": "date-time", "pattern": "^2024.*Z$"},
            ['"2024-01-31T23:59:59Z"'],
            ['"2023-01-31T23:59:59Z"', '"2024-01-31T23:59:59+01:00"', '"2024"'],
        ),
        ({"enum": ["a", "bc", 1], "minLength": 2}, ['"bc"', "1"], ['"a"']),
        ({"type": "number", "minimum": 0.5}, ["0.5", "0.51", "7", "12.25"], ["0.49", "0", "-1"]),
        (
            {"type": "number", "exclusiveMinimum": -0.75, "exclusiveMaximum": 2.25},
            ["-0.7", "-0.74999", "0", "2.2", "2.2499"],
            ["-0.75", "-0.8", "2.25", "2.3", "3", "-1"],
        ),
        (
            {"type": "number", "multipleOf": 0.01, "minimum": 0.5, "maximum": 100},
            ["0.5", "0.51", "7", "99.99", "100"],
            ["0.49", "0.501", "100.01"],
        ),
        ({"type": "number", "multipleOf": 0.25}, ["0.25", "-1.5", "3", "0"], ["0.2", "0.125"]),
        ({"type": "integer", "multipleOf": 7}, ["0", "7", "-700", "49"], ["8", "-1", "70.0"]),
        ({"type": "integer", "multipleOf": 300, "minimum": 1}, ["300", "9000"], ["0", "200"]),
        (
            {"type": "integer", "multipleOf": 1024, "maximum": 4096, "minimum": 1},
            ["4096"],
            ["8192"],
        ),
        ({"type": "integer", "multipleOf": 1.5}, ["3", "-6"], ["1", "1.5"]),
        (
            {"items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 1, "maxItems": 2},
            ["[1]", "[1, 3]", "[2,3]"],
            ["[]", "[1,1]", "[1,2,3]"],
        ),
        ({"items": {"not": {}}}, ["[]"], ["[1]"]),
        (
            {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}},
            ["{}", '{"a": null}', '{"a": null, "b": null}'],
            ['{"c": null}'],
        ),
        (
            {
                "properties": {"long": {}, "s": {"type": "null"}},
                "propertyNames": {"maxLength": 2},
                "additionalProperties": {"type": "null"},
            },
            ["{}", '{"s": null}', '{"ab": null}'],
            ['{"long": 1}', '{"abc": null}'],
        ),
        (
            {
                "patternProperties": {"^a": {"type": "null"}, "z$": {"type": "boolean"}},
                "properties": {"ab": {"enum": [None, 1]}},
                "additionalProperties": {"type": "integer"},
            },
            ['{"ab": null}', '{"ax": null, "z": true, "b": 1}'],
            ['{"ab": 1}', '{"ax": 1}', '{"z": 1}', '{"b": null}'],
        ),
        (
            {"properties": {"a": {}, "b": {}}, "minProperties": 1, "maxProperties": 1},
            ['{"a": 1}', '{"b": 1}'],
            ["{}", '{"a": 1, "b": 1}'],
        ),
        (
            {"additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 2},
            ['{"a": null}', '{"a": null, "b": null}'],
            ["{}", '{"a": null, "b": null, "c": null}'],
        ),
        (
            {
                "discriminator": {"propertyName": "k"},
                "oneOf": [
                    {"properties": {"k": {"const": "a"}, "x": {"type": "null"}}},
                    {"properties": {"k": {"const": "b"}}},
                ],
            },
            ['{"k": "a"}', '{"k": "b"}', '{"k": "a", "x": null}'],
            ["{}", '{"x": null}'],
        ),
        ({"x-internal": 1, "title": "t", "default": 1, "type": "null"}, ["null"], ["1"]),
        (
            {
                "type": ["object", "array"],
                "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
                "required": ["a", "b"],
                "items": {"enum": ["x", "y"]},
                "uniqueItems": True,
            },
            ['{"a": null, "b": null}', '["x", "y"]', "[]"],
            ['{"x", "y"}', '["a": null]', "{}"],
        ),
        ({"enum": ["a", "b"], "x-enum-varnames": ["A", "B"]}, ['"a"'], ['"c"']),
        ({"anyOf": [{"type": "null", "x-order": 1}, {"const": 1}], "x-order": 2}, ["null"], ["2"]),
        (
            {"$defs": {"a": {"type": "null", "x-order": 1}}, "$ref": "#/$defs/a", "x-order": 2},
            ["null"],
            ["1"],
        ),
        (
            {"items": {"enum": ["a", "b"], "x-k": 1}, "uniqueItems": True},
            ['["a", "b"]'],
            ['["a", "a"]'],
        ),
        ({"propertyNames": {"pattern": "^a", "x-k": 1}}, ['{"ab": 1}'], ['{"b": 1}']),
        ({"type": "object", "unevaluatedProperties": False}, ["{}"], ['{"a": 1}']),
        ({"type": "array", "unevaluatedItems": False}, ["[]"], ["[1]"]),
        ({"prefixItems": [True], "unevaluatedItems": False}, ["[1]"], ["[1, 1]"]),
        (
            {"type": "object", "unevaluatedProperties": {"type": "null"}},
            ["{}", '{"a": null}'],
            ['{"a": 1}'],
        ),
        ({"type": "object", "unevaluatedProperties": True}, ['{"a": 1}'], ["[]"]),
        (
            {
                "allOf": [{"properties": {"a": {"type": "null"}}}, {"required": ["a"]}],
                "unevaluatedProperties": False,
            },
            ['{"a": null}'],
            ["{}", '{"a": null, "b": 1}'],
        ),
        ({"allOf": [{"type": "object"}], "unevaluatedProperties": False}, ["{}"], ['{"a": 1}']),
        (
            {
                "properties": {"a": {"type": "null"}},
                "anyOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]}, {}],
                "unevaluatedProperties": False,
            },
            ["{}", '{"a": null}', '{"b": null}'],
            ['{"c": 1}'],
        ),
        (
            {"anyOf": [{"type": "object"}, {"type": "null"}], "unevaluatedProperties": False},
            ["{}", "null"],
            ['{"a": 1}'],
        ),
        (
            {
                "$defs": {
                    "base": {"properties": {"a": {"type": "null"}}, "required": ["a"]},
                    "whole": {"allOf": [{"$ref": "#/$defs/base"}], "unevaluatedProperties": False},
                },
                "allOf": [{"$ref": "#/$defs/whole"}, {"type": "object"}],
            },
            ['{"a": null}'],
            ["{}", '{"a": null, "b": 1}'],
        ),
    ],
)
def test_a_schema_lets_what_is_valid(schema: Any, good: list[str], bad: list[str]) -> None:
    matcher = converted(schema)
    assert [text for text in good if not lets(matcher, text)] == []
    assert [text for text in bad if lets(matcher, text)] == []
    assert all(is_valid(json.loads(text), schema) for text in good)


@pytest.mark.parametrize("name", USUAL)
def test_texts_of_usual_schemas_are_valid(name: str) -> None:
    schema = USUAL[name]
    grammar = read_grammar(grammar_of_schema(json.dumps(schema)))
    for seed in range(100):
        text = random_text(grammar, random.Random(seed))
        assert is_valid(json.loads(text), schema), text


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "0004-02-29"], ["2023-02-29", "1900-02-29"]),
        ("date", ["0001-01-01"], ["0000-02-29", "2024-02-30"]),
        ("date-time", ["2024-02-29T10:00:00Z"], ["2100-02-29T10:00:00Z"]),
        ("uri", ["http://localhost:11434", "ws://a:65535/"], ["http://a:65536", "http://a:0"]),
        ("uri", ["https://my-bucket.s3.us-east-1.amazonaws.com/x", "http://a_b/?a=b?c#d?"], []),
        ("uri", ["postgresql://ada:x-1@db.internal:5432/main", "ssh://git@example.com/a"], ["a@b"]),
        ("hostname", ["ip-10-0-0-12.ec2.internal", "db.prod.eu-west-1.rds.amazonaws.com"], []),
        (
            "hostname",
            [
                "prometheus-kube-prometheus-alertmanager.monitoring.svc.cluster.local",
                "averyveryverylongname-averyveryverylongnam.example",
                "a" * 62,
            ],
            ["a" * 64, "a--b", "-a", "a-", "a..b", "a."],
        ),
        ("email", ["a@mail.cs.dept.example.com", "o'brien@x.com"], ["a@b", "a@b-.com"]),
        ("email", ["christopher_montgomery@example.com", "a.b.c.d.e@x.com"], ["a..b@x.com"]),
        (
            "uuid",
            ["00000000-0000-0000-0000-000000000000"],
            ["00000000-0000-0000-0000-000000000001"],
        ),
    ],
)
def test_usual_texts_are_let_by_their_format(form: str, good: list[str], bad: list[str]) -> None:
    matcher = converted({"format": form})
    assert [text for text in good if not lets(matcher, json.dumps(text))] == []
    assert [text for text in bad if lets(matcher, json.dumps(text))] == []
    assert all(is_valid(text, {"format": form}) for text in good)


@pytest.mark.parametrize("most", [39, 99, 250])
@pytest.mark.parametrize("form", ["email", "hostname"])
def test_a_bounded_format_needs_no_rule_for_every_length(form: str, most: int) -> None:
    assert len(grammar_of_schema(json.dumps({"format": form, "maxLength": most}))) < 2000


@pytest.mark.parametrize("most", [20, 39, 99, 250])
@pytest.mark.parametrize("form", sorted(FORMATS))
def test_a_bounded_format_keeps_its_bound(form: str, most: int) -> None:
    schema = {"format": form, "maxLength": most}
    if passed_over(json.dumps(schema)):
        return
    grammar = read_grammar(grammar_of_schema(json.dumps(schema)))
    for seed in range(10):
        text = json.loads(random_text(grammar, random.Random(seed), length=most))
        assert is_valid(text, schema), text


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["http://localhost:99999", "urn:isbn:1", "http://a.b"]},
        {"type": "string", "enum": ["http://localhost:99999", 1, "http://a.b"]},
        {"const": "urn:isbn:1", "minLength": 3},
        {"enum": ["http://a.b/c"]},
    ],
)
def test_a_format_takes_no_listed_value_away(schema: dict[str, Any]) -> None:
    values = schema.get("enum", [schema.get("const")])
    texts = [value for value in values if isinstance(value, str)]
    unknown = any(not lets(converted({"format": "uri"}), json.dumps(text)) for text in texts)
    said = passed_over(json.dumps({**schema, "format": "uri"}))
    assert said == (('`format` "uri" (at #)',) if unknown else ())
    matcher = converted({**schema, "format": "uri"})
    assert [text for text in texts if not lets(matcher, json.dumps(text))] == []
    names = converted({"propertyNames": {**schema, "format": "uri"}})
    for text in texts:
        assert lets(names, json.dumps({text: 1}))


RANGES = [(0, 0), (-1, 1), (7, 123), (123, 987), (199, 200), (-345, -12), (-5, 1001), (-999, 1000)]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_the_whole_numbers_of_a_range_are_let(low: int, high: int) -> None:
    matcher = converted({"type": "integer", "minimum": low, "maximum": high})
    around = range(-1100, 1100)
    assert [n for n in around if lets(matcher, str(n))] == [n for n in around if low <= n <= high]


@pytest.mark.parametrize(("low", "high"), [*RANGES[1:], (0, 1), (-1, 0), (-3, -1)])
@pytest.mark.parametrize(
    "keys",
    list(itertools.product(("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))),
)
def test_the_numbers_of_a_range_are_let(low: int, high: int, keys: tuple[str, str]) -> None:
    schema = {"type": "number", keys[0]: low, keys[1]: high}
    matcher = converted(schema)
    quarters = [n / 4 for end in (low, 0, high) for n in range(4 * end - 9, 4 * end + 10)]
    for number in quarters:
        text = f"{number:g}" if number else "0"
        assert lets(matcher, text) == is_valid(number, schema), text
        assert not lets(matcher, f"{text}.0") or is_valid(number, schema)


def test_a_type_may_be_listed_twice() -> None:
    matcher = converted({"type": ["object", "object"], "properties": {"a": {"type": "null"}}})
    assert lets(matcher, '{"a": null}')


def test_any_object_is_an_object() -> None:
    matcher = compiled(grammar_of_schema('{"type": "object"}'))
    assert lets(matcher, '{"a": [1, {"b": null}]}') and lets(matcher, "{}")
    assert not any(lets(matcher, text) for text in ("[]", "1", '"a"', ""))


def test_a_model_cannot_go_on_with_spaces() -> None:
    matcher = converted({"properties": {"a": {"items": {}}}})
    for space in (" ", "\n", "\t"):
        place = follow(matcher, b'{"a": [1,')
        count = 0
        while place is not None:
            place = follow(place, space.encode())
            count += 1
        assert count <= 2
    assert lets(matcher, '{\n  "a": [\n\t\t1,\n    2\n  ]\n}')
    assert not lets(matcher, "{\n" + " " * 21 + '"a": []}')


# what is passed over


@pytest.mark.parametrize(
    ("schema", "said", "good"),
    [
        ({"format": "nobody's"}, ['`format` "nobody\'s" (at #)'], '"x"'),
        ({"type": "integer", "format": "int32"}, ['`format` "int32" (at #)'], "1"),
        ({"format": "time", "pattern": "^[0-9:]*$"}, ['`format` "time" (at #)'], '"12:30"'),
        ({"format": "date", "maxLength": 5}, ['`format` "date" (at #)'], '"12345"'),
        (
            {"format": "email", "pattern": r"(?<!\.)@"},
            [r'`pattern` "(?<!\\.)@" (at #)'],
            '"a@b.cd"',
        ),
        ({"type": "string", "maxLength": 3000}, ["`maxLength` 3000 (at #)"], f'"{"a" * 3001}"'),
        ({"type": "string", "contentEncoding": "base64"}, ["`contentEncoding` (at #)"], '"-"'),
        ({"items": {}, "maxItems": 3000}, ["`maxItems` 3000 (at #)"], "[]"),
        (
            {"properties": {"a": {"items": {}, "uniqueItems": True}}},
            ["`uniqueItems` (at #/properties/a)"],
            '{"a": [1, 1]}',
        ),
        (
            {"additionalProperties": {"type": "null"}, "minProperties": 2},
            ["`minProperties` 2 (at #)"],
            '{"a": null, "a": null}',
        ),
    ],
)
def test_what_no_grammar_keeps_is_named(schema: Any, said: list[str], good: str) -> None:
    assert list(passed_over(json.dumps(schema))) == said
    assert lets(converted(schema), good)


def test_what_says_no_more_is_not_named() -> None:
    schema = {
        "properties": {
            "url": {"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083},
            "day": {"type": "string", "format": "date", "pattern": "^[0-9-]+$"},
            "map": {"propertyNames": {"type": "string"}, "additionalProperties": {}},
            "set": {"items": {"type": "boolean"}, "uniqueItems": True},
            "old": {"default": 1, "deprecated": True, "readOnly": True, "title": "t"},
        }
    }
    assert passed_over(json.dumps(schema)) == ()


# what is refused


@pytest.mark.parametrize(
    "keyword",
    [
        *("not", "if", "contains", "dependentRequired", "$dynamicRef"),
        *("minlength", "divisibleBy"),
    ],
)
def test_keywords_that_are_not_supported_are_named(keyword: str) -> None:
    for schema in ({keyword: 1}, {"properties": {"a": {"type": "string", keyword: {}}}}):
        assert f"`{keyword}` is not supported (at #" in refusal(schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (False, "`false` allows nothing"),
        ([], "[] is no schema"),
        ("{", "is not JSON"),
        ("[" * 60000, "is not JSON"),
        ('{"minimum": NaN}', "is not JSON"),
        ('{"minimum": 1e999}', "is not JSON"),
        ('{"minimum": ' + "1" * 5000 + "}", "is not JSON"),
        ('{"const": "' + "a" * 70_000 + '"}', "at most"),
        ('{"const": "\\ud800"}', "its grammar is refused"),
        ({"type": "date"}, 'the type "date" is not supported'),
        ({"type": []}, "no type is left"),
        ({"minLength": 1, "minItems": 1}, "`type` is missing"),
        ({"enum": []}, "no value is left"),
        ({"enum": 1}, "`enum` 1 is no list"),
        ({"enum": ["a"], "minimum": 1}, "`minimum` is not supported beside `enum`"),
        ({"enum": ["a"], "minLength": 2}, "no value is left"),
        ({"pattern": "(?<=a)b"}, "(?=...) and (?!...) are supported"),
        ({"pattern": "(?:(?=a).b)*"}, "an assertion is not supported in a repetition"),
        ({"pattern": "^a$", "minLength": 2}, "no text is left"),
        ({"pattern": "(a|b)*a(a|b){12}$", "maxLength": 900}, "too much for a grammar"),
        ({"pattern": "(a"}, "unbalanced"),
        ({"pattern": "a)"}, "unbalanced"),
        ({"pattern": r"(a)\1"}, r"\1 is not supported"),
        ({"pattern": r"\bword"}, r"\b is not supported"),
        ({"pattern": "a^b"}, "no text is left"),
        ({"pattern": "a]"}, "']' is not supported"),
        ({"pattern": "a{3,2}"}, "ends before it begins"),
        ({"pattern": "[z-a]"}, "no range"),
        ({"pattern": "(a?)*"}, "its grammar is refused"),
        ({"pattern": "a{9999}"}, "its grammar is refused"),
        ({"pattern": "(" * 40}, "parentheses"),
        ({"pattern": "a" * 2001}, "longer than 2000"),
        ({"pattern": 1}, "is no text"),
        ({"items": {"enum": [1, 1, 2]}, "uniqueItems": True, "minItems": 3}, "too few values"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "`maxItems` is below `minItems`"),
        ({"type": "array", "prefixItems": [{}], "items": False, "minItems": 2}, "`minItems`"),
        ({"type": "string", "minLength": 2001}, "`minLength` 2001 is not supported"),
        ({"type": "string", "minLength": -1}, "`minLength` -1"),
        ({"type": "string", "minLength": True}, "`minLength` true"),
        ({"type": "integer", "multipleOf": 1009}, "`multipleOf` 1009 is not supported"),
        ({"type": "number", "multipleOf": 1e-17}, "has too many places"),
        ({"type": "number", "multipleOf": 0}, "`multipleOf` is not above 0"),
        ({"type": "number", "multipleOf": 0.5, "minimum": 0.1, "maximum": 0.4}, "no number"),
        ({"type": "integer", "minimum": "5"}, '`minimum` "5" is no number'),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": True}, "`exclusiveMinimum` true"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no number is within the bounds"),
        ({"type": "integer", "minimum": 10**18}, "no number is within the bounds"),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "no number is within"),
        ({"type": "number", "minimum": 0.75, "exclusiveMaximum": 0.75}, "no number is within"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, '"a", which is not'),
        ({"properties": {"a": False}, "required": ["a"]}, '"a", which is not'),
        ({"properties": [1]}, "`properties` [1] is no object"),
        ({"required": [1]}, "no list of names"),
        (
            {"properties": {"k" * 999: True}, "additionalProperties": {"type": "null"}},
            "too much for a grammar",
        ),
        ({"properties": {"a": {}}, "minProperties": 2}, "`minProperties` or `maxProperties`"),
        ({"required": ["a", "b"], "maxProperties": 1}, "`minProperties` or `maxProperties`"),
        ({"required": ["a"], "propertyNames": {"minLength": 2}}, '"a", which is not'),
        (
            {"properties": {f"k{i}": {} for i in range(50)}, "maxProperties": 45},
            "45 of 50 are too many to count",
        ),
        ({"propertyNames": {"anyOf": [{}]}}, "`anyOf` is not supported in `propertyNames`"),
        ({"$ref": "http://example.com/x.json"}, "only #/..."),
        ({"$ref": "other.json#/a"}, "only #/..."),
        ({"$ref": "#/$defs/a"}, "leads nowhere"),
        ({"$ref": "#name"}, "only #/..."),
        ({"$ref": 1}, "`$ref` 1"),
        ({"$ref": "#"}, "has no end"),
        ({"allOf": [{"$ref": "#"}]}, "one that refers to itself"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "has no end"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no type is left"),
        ({"allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]}, "no text is left"),
        ({"allOf": [{"format": "date"}, {"format": "time"}]}, "`format` is not supported twice"),
        (
            {
                "allOf": [
                    {"properties": {"a": {}}, "additionalProperties": False},
                    {"properties": {"b": {}}},
                ]
            },
            "`additionalProperties` is not supported in a part",
        ),
        (
            {"allOf": [{"prefixItems": [{}]}, {"items": {"type": "null"}}]},
            "`items` is not supported",
        ),
        ({"anyOf": [False]}, "no alternative is left"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "both 0 and 1 of `oneOf`"),
        ({"oneOf": [{"type": "integer"}, {"minLength": 2}]}, "both 0 and 1 of `oneOf`"),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "both 0 and 1 of `oneOf`"),
        (
            {
                "oneOf": [
                    {
                        "properties": {"a": {}},
                        "required": ["a"],
                        "anyOf": [{"properties": {"b": {}}, "required": ["b"]}, {}],
                    },
                    {"properties": {"b": {}}, "required": ["b"]},
                ]
            },
            "both 0 and 1 of `oneOf`",
        ),
        ({"oneOf": [{"type": "null"}] * 40}, "40 alternatives of `oneOf`"),
        (
            {
                "allOf": [
                    {"properties": {"a": {}}, "unevaluatedProperties": False},
                    {"properties": {"b": {}}},
                ]
            },
            "`additionalProperties` is not supported in a part",
        ),
        (
            {
                "allOf": [
                    {"anyOf": [{"type": "object"}], "unevaluatedProperties": False},
                    {"required": ["a"]},
                ]
            },
            "`unevaluatedProperties` is not supported in a part",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(schema: Any, reason: str) -> None:
    assert reason in refusal(schema)


def test_deep_and_endless_schemas_are_refused() -> None:
    deep: Any = True
    for _ in range(100):
        deep = {"items": deep}
    assert "more than 64 levels deep" in refusal(deep)


def test_schemas_that_grow_while_they_are_merged_are_refused_soon() -> None:
    both = {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    more = {"properties": {"x": both, "y": both}}
    growing = {
        "$defs": {"a": {"properties": {"x": {"allOf": [both, more]}}}, "b": more},
        "$ref": "#/$defs/a",
    }
    start = time.process_time()
    assert "json_schema: " in refusal(growing)
    assert time.process_time() - start < 5


def many_alternatives(count: int, shared: int, times: int) -> dict[str, Any]:
    """Return a schema with `times` times the same alternatives, which differ by one property."""
    same = {f"a{i}": {"$ref": "#/definitions/one"} for i in range(shared)}
    alternatives = {
        f"{i}": {"properties": {**same, "z": {"const": i}}, "required": [*same, "z"]}
        for i in range(count)
    }
    references = [{"$ref": f"#/$defs/{i}"} for i in range(count)]
    return {
        "$defs": alternatives,
        "definitions": {"one": {"const": 1}},
        "anyOf": [{"minProperties": i, "oneOf": references} for i in range(times)],
    }


def test_alternatives_are_merged_once_and_not_for_every_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    merged: list[Any] = []
    whole = SchemaReader.merged

    def noted(self: SchemaReader, parts: list[Any]) -> dict[str, Any]:
        merged.append(parts)
        return whole(self, parts)

    monkeypatch.setattr(SchemaReader, "merged", noted)
    grammar_of_schema(json.dumps(many_alternatives(30, 3, 1)))
    assert len(merged) < 300  # 435 pairs


def test_alternatives_that_are_too_much_to_compare_are_refused() -> None:
    assert grammar_of_schema(json.dumps(many_alternatives(32, 4, 1)))
    assert "too much to merge and to compare" in refusal(many_alternatives(32, 10, 60))


@pytest.mark.parametrize(
    ("pattern", "keywords"),
    [
        ("(?:(?=a)x|y|z)" * 100, {}),
        ("(?:(?:p(?=q)|r)s|t)" * 80, {}),
        ("(a|bb)" * 150, {"minLength": 200}),
        ("(a|b)*a(a|b){12}$", {"minLength": 900}),
        ("a?" * 900, {"minLength": 3}),
        (".{0,1900}" * 200, {"maxLength": 1999}),
        ("(?=.*a)" * 250, {"maxLength": 300}),
        ("(?:x{0,99}){0,99}" * 90, {"minLength": 99, "maxLength": 1999}),
    ],
)
def test_patterns_are_read_or_refused_soon(pattern: str, keywords: dict[str, Any]) -> None:
    fields = [{"pattern": f"{pattern}{i}", **keywords} for i in range(20)]
    document = json.dumps({"properties": {str(i): field for i, field in enumerate(fields)}})
    start = time.process_time()
    try:
        grammar_of_schema(document)
    except InvalidRequest as error:
        assert len(str(error)) < 300
    assert time.process_time() - start < 5


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "string", "#", "^a$"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=3,
)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return schemas of keywords that belong together, and some that do not."""
    names = st.sampled_from(["a", "b", "ab"])
    parts = st.lists(inner, min_size=1, max_size=3)
    bound = st.integers(-200, 200)
    families: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "object": {
            "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=2),
            "propertyNames": st.sampled_from([{"maxLength": 1}, {"enum": ["a", "c"]}, {}]),
            "maxProperties": st.integers(0, 2),
            "minProperties": st.integers(0, 2),
        },
        "array": {
            "items": inner,
            "prefixItems": parts,
            "minItems": st.integers(0, 3),
            "maxItems": st.integers(1, 4),
            "uniqueItems": st.booleans(),
        },
        "string": {
            "minLength": st.integers(0, 2),
            "maxLength": st.integers(1, 40),
            "pattern": st.sampled_from(["^a|b$", "[^b]+c?", r"^\d{1,2}$", '^"', "^(?!a).*[b-d]"]),
            "format": st.sampled_from([*sorted(FORMATS), "nobody's"]),
        },
        "integer": {
            "minimum": bound,
            "exclusiveMaximum": bound | st.sampled_from([0.5, 1e3]),
            "multipleOf": st.sampled_from([1, 2, 3, 40, 1.5]),
        },
        "number": {
            "exclusiveMinimum": bound | st.floats(-3, 3).map(lambda x: round(x, 3)),
            "maximum": st.integers(0, 2000) | st.floats(-3, 3).map(lambda x: round(x, 3)),
            "multipleOf": st.sampled_from([0.01, 0.5, 2]),
        },
    }
    typed = [
        st.fixed_dictionaries({"type": st.just(kind)}, optional=family)
        for kind, family in families.items()
    ]
    choices = {"anyOf": parts, "oneOf": parts, "allOf": parts}
    others = [
        *(st.fixed_dictionaries({key: part}) for key, part in choices.items()),
        st.fixed_dictionaries({}, optional=choices | families["object"]),
        st.fixed_dictionaries({}, optional=choices | families["array"] | families["string"]),
        st.fixed_dictionaries({"enum": st.lists(JUNK, max_size=3)}),
        st.fixed_dictionaries({"const": JUNK}),
        st.fixed_dictionaries({"$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/b"])}),
    ]
    return st.one_of(*typed, *others)


SCHEMAS = st.recursive(keywords(st.just({"type": "null"}) | st.just(True)), keywords, max_leaves=8)


@SETTINGS
@given(SCHEMAS, SCHEMAS, SCHEMAS, st.integers(0, 1000))
def test_every_text_of_every_schema_is_valid(root: Any, a: Any, b: Any, seed: int) -> None:
    document = root | {"$defs": {"a": a, "b": b}} if isinstance(root, dict) else root
    try:
        grammar = read_grammar(grammar_of_schema(json.dumps(document)))
    except InvalidRequest as error:
        assert "\n" not in str(error)
        return
    if passed_over(json.dumps(document)):
        return
    for offset in range(3):
        text = random_text(grammar, random.Random(seed + offset), length=60)
        assert is_valid(json.loads(text), document), text


@SETTINGS
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "type",
                "enum",
                "items",
                "properties",
                "required",
                "anyOf",
                "allOf",
                "oneOf",
                "$ref",
                "minLength",
                "minimum",
                "pattern",
                "format",
                "prefixItems",
                "additionalProperties",
                "maxItems",
                "const",
                "additionalItems",
                "multipleOf",
                "uniqueItems",
                "exclusiveMinimum",
            ]
        ),
        JUNK | st.dictionaries(st.text(max_size=3), JUNK),
    )
)
def test_any_json_is_converted_or_refused(schema: Any) -> None:
    try:
        grammar_of_schema(json.dumps(schema))
    except InvalidRequest as error:
        assert "\n" not in str(error)
