"""What the grammar of required calls lets through is one call of a tool, with valid arguments."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.chat.required_calls import RequiredCalls, require_calls, required_tools
from orchestrator.chat.tool_calls import CallFormat, Mark, ToolCall, mark_names, opening_of, parse
from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import read_grammar
from tests.support.grammars import compiled, follow, random_text
from tests.support.schemas import USUAL, is_valid

SETTINGS = settings(derandomize=True, deadline=None, max_examples=150)

HERMES, LLAMA, FUNCTION = CallFormat.HERMES, CallFormat.LLAMA, CallFormat.FUNCTION
MISTRAL, MISTRAL_ARGS = CallFormat.MISTRAL, CallFormat.MISTRAL_ARGS

POINT: dict[str, Any] = {
    "$defs": {"side": {"type": "integer", "minimum": -9, "maximum": 9}},
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/side"}, "y": {"$ref": "#/$defs/side"}},
    "required": ["x"],
}
NAMED: dict[str, Any] = {
    "$defs": {"side": {"enum": ["}", '"]', "</tool_call>", "[TOOL_CALLS]"]}},
    "properties": {"x": {"$ref": "#/$defs/side"}},
    "required": ["x"],
}
SCHEMAS = {name: schema for name, schema in USUAL.items() if name != "codes"} | {
    "point": POINT,
    "named.point": NAMED,
    "größe-2": {"type": ["object", "null"]},
}
CALLS = {
    HERMES: '\n{"name": "go", "arguments": {}}\n</tool_call>',
    MISTRAL: ' [{"name": "go", "arguments": {}}]',
    MISTRAL_ARGS: "go[ARGS]{}",
    FUNCTION: "go>{}</function>",
    LLAMA: '{"name": "go", "parameters": {}}',
}
TWICE = {
    HERMES: CALLS[HERMES] + "\n<tool_call>" + CALLS[HERMES],
    MISTRAL: CALLS[MISTRAL][:-1] + ", " + CALLS[MISTRAL][2:],
    MISTRAL_ARGS: CALLS[MISTRAL_ARGS] + "[TOOL_CALLS]" + CALLS[MISTRAL_ARGS],
    FUNCTION: CALLS[FUNCTION] + "<function=" + CALLS[FUNCTION],
    LLAMA: CALLS[LLAMA] + "; " + CALLS[LLAMA],
}


def tool(name: object, parameters: object = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def forced(
    schemas: dict[str, Any], form: CallFormat, choice: object = "required", several: bool = False
) -> RequiredCalls:
    tools = [tool(name, schema) for name, schema in schemas.items()]
    return require_calls(required_tools(choice, tools), form, several=several)


def called(text: str, calls: RequiredCalls, form: CallFormat) -> list[ToolCall]:
    """Return the calls of a text behind the opening, which must hold nothing besides."""
    opening = [Mark(calls.opening)] if calls.opening else []
    content, found = parse([*opening, text], form)
    assert content == "", text
    return found


def lets(calls: RequiredCalls, text: str) -> bool:
    place = follow(compiled(calls.grammar), text.encode())
    return place is not None and place.can_end


@SETTINGS
@given(
    st.sampled_from(CallFormat),
    st.lists(st.sampled_from(sorted(SCHEMAS)), min_size=1, max_size=4, unique=True),
    st.integers(0, 2**32),
)
def test_every_text_is_one_call_with_valid_arguments(
    form: CallFormat, names: list[str], seed: int
) -> None:
    calls = forced({name: SCHEMAS[name] for name in names}, form)
    grammar = read_grammar(calls.grammar)
    for offset in range(4):
        text = random_text(grammar, random.Random(seed + offset))
        (call,) = called(text, calls, form)
        assert call.name in names
        schema = SCHEMAS[call.name]
        assert is_valid(json.loads(call.arguments), schema), text


@SETTINGS
@given(st.sampled_from(CallFormat), st.integers(0, 2**32))
def test_several_calls_are_one_or_more_where_the_form_has_a_way(
    form: CallFormat, seed: int
) -> None:
    calls = forced({"point": POINT, "named.point": NAMED}, form, several=True)
    text = random_text(read_grammar(calls.grammar), random.Random(seed))
    found = called(text, calls, form)
    assert found and (form is not LLAMA or len(found) == 1)
    for call in found:
        schema = SCHEMAS[call.name]
        assert is_valid(json.loads(call.arguments), schema), text


@SETTINGS
@given(st.sampled_from(CallFormat), st.integers(0, 2**32))
def test_marks_may_come_as_control_tokens_wherever_they_stand(form: CallFormat, seed: int) -> None:
    choose = random.Random(seed)
    calls = forced({"point": POINT, "named.point": NAMED}, form, several=True)
    text = random_text(read_grammar(calls.grammar), choose)
    parts = re.split(f"({'|'.join(map(re.escape, mark_names(form)))})", text)
    pieces = [
        Mark(part) if part in mark_names(form) and choose.random() < 0.5 else part for part in parts
    ]
    opening = [Mark(calls.opening)] if calls.opening else []
    assert parse([*opening, *pieces], form) == ("", called(text, calls, form))


@pytest.mark.parametrize("form", CallFormat)
def test_a_call_is_written_as_the_template_shows_it(form: CallFormat) -> None:
    calls = forced({"stay": POINT, "go": {"type": "object"}}, form)
    assert calls.opening == ("" if form is LLAMA else opening_of(form))
    assert lets(calls, CALLS[form])
    assert called(CALLS[form], calls, form) == [ToolCall("go", "{}")]


@pytest.mark.parametrize("form", CallFormat)
def test_nothing_but_one_call_is_let(form: CallFormat) -> None:
    calls = forced({"stay": POINT, "go": {"type": "object"}}, form)
    one = CALLS[form]
    for other in ("", "Sure.", one[:-1], f"{one}\n", f" {one}", one.replace("go", "gone")):
        assert not lets(calls, other), other
    assert not lets(calls, one.replace("go", "stay"))
    assert not lets(calls, TWICE[form])


@pytest.mark.parametrize("form", CallFormat)
def test_more_calls_are_let_where_they_are_wanted(form: CallFormat) -> None:
    calls = forced({"go": {"type": "object"}}, form, several=True)
    assert lets(calls, CALLS[form])
    assert lets(calls, TWICE[form]) is (form is not LLAMA)


@pytest.mark.parametrize("form", CallFormat)
def test_a_named_tool_is_the_one(form: CallFormat) -> None:
    schemas: dict[str, Any] = {"stay": {"type": "object"}, "go": {"type": "object"}}
    calls = forced(schemas, form, {"type": "function", "function": {"name": "go"}})
    assert lets(calls, CALLS[form])
    assert not lets(calls, CALLS[form].replace("go", "stay"))


def test_a_tool_without_parameters_takes_none() -> None:
    calls = forced({"go": None}, LLAMA)
    assert lets(calls, CALLS[LLAMA])
    assert not lets(calls, '{"name": "go", "parameters": {"a": 1}}')


def test_definitions_of_two_schemas_are_kept_apart() -> None:
    calls = forced({"point": POINT, "named.point": NAMED}, FUNCTION)
    assert lets(calls, 'point>{"x": 5}</function>')
    assert lets(calls, 'named.point>{"x": "}"}</function>')
    assert not lets(calls, 'named.point>{"x": 5}</function>')


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_a_free_model_is_forced_to_nothing(choice: object) -> None:
    assert required_tools(choice, [tool("go")]) == []


GO = {"type": "function", "function": {"name": "go"}}


@pytest.mark.parametrize(
    ("choice", "tools", "field", "told"),
    [
        ("required", [], "tool_choice", "needs tools"),
        (GO, [], "tool_choice", "needs tools"),
        ("always", [tool("go")], "tool_choice", "none, auto, required"),
        ({}, [tool("go")], "tool_choice", "none, auto, required"),
        ({"function": "go"}, [tool("go")], "tool_choice", "none, auto, required"),
        (GO, [tool("stay"), {"function": 1}, 5], "tool_choice", "'go'"),
        ("required", [tool("go"), {"function": {}}], "tools[1].function.name", "1 to 128"),
        ("required", [tool("a b")], "tools[0].function.name", "1 to 128"),
        ("required", [tool("go", "none")], "tools[0].function.parameters", "an object"),
        (GO, [tool("x"), tool("go", {"type": "array"})], "tools[1].function.parameters", "object"),
    ],
)
def test_what_cannot_be_forced_is_refused_by_name(
    choice: object, tools: list[Any], field: str, told: str
) -> None:
    with pytest.raises(InvalidRequest, match=told) as refused:
        required_tools(choice, tools)
    assert refused.value.field == field


def test_a_schema_that_no_grammar_keeps_is_refused_with_its_tool() -> None:
    for schema in ({"not": {}}, {"properties": {"a": {"type": "text"}}}, {"$ref": "#/none"}):
        with pytest.raises(InvalidRequest) as refused:
            forced({"go": None, "stay": schema}, HERMES)
        assert refused.value.field == "tools[1].function.parameters"
        assert "json_schema" not in str(refused.value)


def test_too_many_tools_are_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        forced({f"tool{i}": USUAL["event"] for i in range(100)}, HERMES)
    assert refused.value.field == "tools"


def test_the_other_tools_of_a_named_one_may_be_anything() -> None:
    (only,) = required_tools(GO, [tool("a b"), tool("go"), tool("x", {"not": {}}), None])
    assert (only.name, only.field) == ("go", "tools[1].function.parameters")
