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
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.schema import grammar_of_schema
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
        ({"x-internal": 1, "title": "t", "default": 1, "type": "null"}, ["null"], ["1"]),
    ],
)
def test_a_schema_lets_what_is_valid(schema: Any, good: list[str], bad: list[str]) -> None:
    matcher = converted(schema)
    assert [text for text in good if not lets(matcher, text)] == []
    assert [text for text in bad if lets(matcher, text)] == []
    assert all(is_valid(json.loads(text), schema, schema) for text in good)


@pytest.mark.parametrize("name", USUAL)
def test_texts_of_usual_schemas_are_valid(name: str) -> None:
    schema = USUAL[name]
    grammar = read_grammar(grammar_of_schema(json.dumps(schema)))
    for seed in range(100):
        text = random_text(grammar, random.Random(seed))
        assert is_valid(json.loads(text), schema, schema), text


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
        assert lets(matcher, text) == is_valid(number, schema, schema), text
        assert not lets(matcher, f"{text}.0") or is_valid(number, schema, schema)


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


# what is refused


@pytest.mark.parametrize(
    "keyword",
    [
        *("not", "if", "patternProperties", "propertyNames", "minProperties", "contains"),
        *("dependentRequired", "contentEncoding", "$dynamicRef", "minlength", "divisibleBy"),
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
        ({"enum": ["a"], "minLength": 1}, "`minLength` is not supported beside `enum`"),
        ({"type": "string", "format": "email"}, 'the format "email" is not supported'),
        ({"pattern": "a", "maxLength": 3}, "`maxLength` is not supported together with `pattern`"),
        ({"pattern": "(?=a)"}, "only (...) and (?:...)"),
        ({"pattern": "(a"}, "unbalanced"),
        ({"pattern": "a)"}, "unbalanced"),
        ({"pattern": r"(a)\1"}, r"\1 is not supported"),
        ({"pattern": r"\bword"}, r"\b is not supported"),
        ({"pattern": "a^b"}, "'^' is not supported"),
        ({"pattern": "[z-a]"}, "no range"),
        ({"pattern": "(a?)*"}, "its grammar is refused"),
        ({"pattern": "a{9999}"}, "its grammar is refused"),
        ({"pattern": "(" * 40}, "parentheses"),
        ({"pattern": "a" * 1001}, "longer than 1000"),
        ({"pattern": 1}, "is no text"),
        ({"type": "array", "uniqueItems": True}, "`uniqueItems`"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "`maxItems` is below `minItems`"),
        ({"type": "array", "prefixItems": [{}], "items": False, "minItems": 2}, "`minItems`"),
        ({"type": "string", "maxLength": 2001}, "`maxLength` 2001 is not supported"),
        ({"type": "string", "minLength": -1}, "`minLength` -1"),
        ({"type": "string", "minLength": True}, "`minLength` true"),
        ({"type": "integer", "multipleOf": 5}, "`multipleOf`"),
        ({"type": "integer", "minimum": "5"}, '`minimum` "5" is no number'),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": True}, "`exclusiveMinimum` true"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no number is within the bounds"),
        ({"type": "integer", "minimum": 10**18}, "no number is within the bounds"),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "no number is within"),
        ({"type": "number", "minimum": 0.5}, "a bound with a fraction"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, '"a", which is not'),
        ({"properties": {"a": False}, "required": ["a"]}, '"a", which is not'),
        ({"properties": [1]}, "`properties` [1] is no object"),
        ({"required": [1]}, "no list of names"),
        (
            {"properties": {"k" * 999: True}, "additionalProperties": {"type": "null"}},
            "longer than",
        ),
        ({"$ref": "http://example.com/x.json"}, "only #/..."),
        ({"$ref": "other.json#/a"}, "only #/..."),
        ({"$ref": "#/$defs/a"}, "leads nowhere"),
        ({"$ref": "#name"}, "only #/..."),
        ({"$ref": 1}, "`$ref` 1"),
        ({"$ref": "#"}, "has no end"),
        ({"allOf": [{"$ref": "#"}]}, "one that refers to itself"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "has no end"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no type is left"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "`pattern` is not supported twice"),
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
            "required": st.lists(names, max_size=2),
            "additionalProperties": st.booleans() | inner,
        },
        "array": {
            "items": inner,
            "prefixItems": parts,
            "minItems": st.integers(0, 3),
            "maxItems": st.integers(1, 4),
        },
        "string": {"minLength": st.integers(0, 2), "maxLength": st.integers(1, 4)},
        "integer": {"minimum": bound, "exclusiveMaximum": bound | st.sampled_from([0.5, 1e3])},
        "number": {"exclusiveMinimum": bound, "maximum": st.integers(0, 2000)},
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
        st.fixed_dictionaries(
            {"pattern": st.sampled_from(["^a|b$", "[^b]+c?", r"^\d{1,2}$", '^"'])}
        ),
        st.fixed_dictionaries({"format": st.sampled_from(["date", "time", "date-time", "uuid"])}),
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
    for offset in range(3):
        text = random_text(grammar, random.Random(seed + offset), length=60)
        assert is_valid(json.loads(text), document, document), text


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
