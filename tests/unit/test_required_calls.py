"""What the grammar of required calls lets through is one call of a tool, with valid arguments."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai.requests import ChatBody, read_reading, read_required
from orchestrator.chat.events import parse
from orchestrator.chat.format import Style
from orchestrator.chat.parser import ChatParser
from orchestrator.chat.required_calls import Required, require, required_tools
from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import read_grammar
from tests.support.chat_formats import NAMES, form
from tests.support.grammars import compiled, follow, random_text
from tests.support.schemas import USUAL, is_valid

SETTINGS = settings(derandomize=True, deadline=None, max_examples=150)

HERMES, LLAMA, HARMONY = (
    "Qwen-Qwen3-0.6B",
    "meta-llama-Llama-3.3-70B-Instruct",
    "openai-gpt-oss-120b",
)
FORMS = sorted({*NAMES} - {"SmolVLM-Instruct", "muse-glimmer"})
"""Named, as to learn all templates takes seconds of every worker that collects this."""


@cache
def in_json() -> list[str]:
    """Return the formats whose calls are JSON."""
    styles = (Style.JSON, Style.NAMED)
    return [name for name in FORMS if form(name).calls.style in styles]  # type: ignore[union-attr]


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
PLAIN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "level": {"enum": ["low", "high"]},
        "day": {"type": "string", "format": "date"},
        "code": {"type": "string", "minLength": 2, "maxLength": 3},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "where": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
        "note": {"type": ["string", "null"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
"""What every format can write."""


def tool(name: object, parameters: object = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def forced(
    schemas: dict[str, Any],
    name: str,
    choice: object = "required",
    several: bool = False,
    in_thought: bool = False,
) -> Required:
    tools = [tool(named, schema) for named, schema in schemas.items()]
    wanted = required_tools(choice, tools)
    return require(wanted, form(name), several=several, in_thought=in_thought)


def called(text: str, calls: Required, name: str, schemas: dict[str, Any]) -> list[Any]:
    """Return the calls of a text behind the opening, which must hold nothing besides."""
    parser = ChatParser(form(name), {n: s or {} for n, s in schemas.items()}, calls.opening)
    content, _, found = parse([*parser.add(text), *parser.finish()])
    assert content.strip() == "", text
    return [(begun.name, json.loads(arguments)) for begun, arguments in found]


def lets(calls: Required, text: str) -> bool:
    place = follow(compiled(calls.grammar), text.encode())
    return place is not None and place.can_end


@SETTINGS
@given(
    st.deferred(lambda: st.sampled_from(in_json())),
    st.lists(st.sampled_from(sorted(SCHEMAS)), min_size=1, max_size=4, unique=True),
    st.integers(0, 2**32),
)
def test_every_text_is_one_call_with_valid_arguments(
    name: str, names: list[str], seed: int
) -> None:
    schemas = {each: SCHEMAS[each] for each in names}
    calls = forced(schemas, name)
    grammar = read_grammar(calls.grammar)
    for offset in range(4):
        text = random_text(grammar, random.Random(seed + offset))
        ((function, arguments),) = called(text, calls, name, schemas)
        assert is_valid(arguments, SCHEMAS[function]), text


@SETTINGS
@given(st.sampled_from(FORMS), st.booleans(), st.booleans(), st.integers(0, 2**32))
def test_calls_are_valid_in_every_format(
    name: str, several: bool, in_thought: bool, seed: int
) -> None:
    schemas = {"plan": PLAIN, "rest": None}
    in_thought = in_thought and not form(name).headers
    calls = forced(schemas, name, several=several, in_thought=in_thought)
    text = random_text(read_grammar(calls.grammar), random.Random(seed))
    found = called(form(name).think * in_thought + text, calls, name, schemas)
    assert found and (several or len(found) == 1)
    for function, arguments in found:
        assert function == "rest" or is_valid(arguments, PLAIN), text


@pytest.mark.parametrize("name", FORMS)
def test_nothing_but_one_call_is_let(name: str) -> None:
    schemas = {"stay": POINT, "go": {"type": "object"}}
    if name not in in_json():
        schemas = {"stay": PLAIN, "go": {"type": "object"}}
    calls = forced(schemas, name)
    one = random_text(read_grammar(forced({"go": None}, name).grammar), random.Random(1))
    for other in ("", "Sure.", one[:-1], f" {one}x", one.replace("go", "gone")):
        assert not lets(calls, other), other
    assert not lets(calls, one.replace("go", "stay"))
    assert not lets(calls, one + one)


@pytest.mark.parametrize(
    ("name", "opening", "text"),
    [
        (HERMES, "<tool_call>\n", '{"name": "go", "arguments": {"x": 1}}\n</tool_call>'),
        (LLAMA, "", '{"name": "go", "parameters": {"x": 1}}'),
        (
            "mistralai-Mistral-Nemo-Instruct-2407",
            "[TOOL_CALLS][",
            '{"name": "go", "arguments": {"x": 1}}]',
        ),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "[TOOL_CALLS]", 'go[ARGS]{"x": 1}'),
        (HARMONY, "to=functions.", 'go<|channel|>commentary json<|message|>{"x": 1}<|call|>'),
        (
            "deepseek-ai-DeepSeek-V3.1",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",  # noqa: RUF001
            'go<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',  # noqa: RUF001
        ),
        (
            "Qwen3-Coder",
            "<tool_call>\n<function=",
            "go>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            "GLM-4.6",
            "<tool_call>",
            "go\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        ),
        ("google-gemma-4-31B-it", "<|tool_call>call:", "go{x:1}<tool_call|>"),
        ("LFM2-8B-A1B", "<|tool_call_start|>[", "go(x=1)]<|tool_call_end|>"),
    ],
)
def test_a_call_is_let_as_the_model_writes_it(name: str, opening: str, text: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    calls = forced({"stay": None, "go": schema}, name)
    assert calls.opening == opening
    assert lets(calls, text)
    assert called(text, calls, name, {"go": schema}) == [("go", {"x": 1})]


@pytest.mark.parametrize("name", FORMS)
def test_a_named_tool_is_the_one(name: str) -> None:
    schemas: dict[str, Any] = {"stay": {"type": "object"}, "go": {"type": "object"}}
    calls = forced(schemas, name, {"type": "function", "function": {"name": "go"}})
    text = random_text(read_grammar(calls.grammar), random.Random(2))
    assert called(text, calls, name, schemas)[0][0] == "go"


def test_a_thought_that_the_prompt_opened_may_end_first() -> None:
    calls = forced({"go": None}, HERMES, in_thought=True)
    call = '<tool_call>\n{"name": "go", "arguments": {}}\n</tool_call>'
    assert calls.opening == "" and lets(calls, f"Hm, 1 < 2.\n</think>\n\n{call}")
    assert not lets(calls, call)


def lets_both(required: Required, *texts: str) -> bool:
    return required.opening == "" and all(lets(required, text) for text in texts)


OPENING = ["GLM-4.7-Flash", "Kimi-K3", "Qwen3.5-4B", "llama-cpp-deepseek-r1"]
"""Formats whose templates open a thought in the prompt."""


@pytest.mark.parametrize("name", OPENING)
def test_a_text_of_some_form_comes_after_the_thought(name: str) -> None:
    required = require((), form(name), 'root ::= "{" [0-9] "}"', in_thought=True)
    assert not lets(required, "{1}")
    text = random_text(read_grammar(required.grammar), random.Random(1))
    parser = ChatParser(form(name), {}, form(name).think)
    content, thought, _ = parse([*parser.add(text), *parser.finish()])
    assert content[::2] == "{}" and "{" + content[1] + "}" not in thought, text


def test_a_rule_of_the_text_may_have_a_name_of_any_length() -> None:
    text = f'root ::= {"r" * 100} t-1\n{"r" * 100} ::= "a"\nt-1 ::= "b"'
    assert lets(require((), form(HERMES), text, in_thought=True), "Hm.</think>ab")


@pytest.mark.parametrize("name", [HERMES, LLAMA, HARMONY, "Qwen3-Coder"])
def test_a_tool_may_be_called_in_place_of_the_text(name: str) -> None:
    text = 'root ::= "{" call "}" # no "call\ncall ::= ["call] ["\\]root]{1,2} "root"'
    tools = required_tools("required", [tool("go")])
    either, calls = require(tools, form(name), text, several=True), require(tools, form(name))
    call = calls.opening + random_text(read_grammar(calls.grammar), random.Random(1))
    assert lets_both(either, "{c]troot}", call)
    assert not lets(either, call + "{c]troot}") and not lets(either, "{call}")
    thinking = require(tools, form(HERMES), text, in_thought=True)
    call = '<tool_call>\n{"name": "go", "arguments": {}}\n</tool_call>'
    assert lets_both(thinking, "Hm.</think>{c]troot}", f"Hm.</think>\n\n{call}")


def beside_a_number(name: str, *tools: dict[str, Any]) -> Required:
    """Return what is required where tools are offered and the text has to be a number."""
    form_of_text = {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}
    body = ChatBody.model_validate(
        {"messages": [], "tools": tools, "response_format": form_of_text}
    )
    return read_required(body, read_reading(body, form(name), ""))


REFUSED: dict[str, Any] = {
    "properties": {"a": {"type": "string", "pattern": "(x)\\1"}, "b": {"not": {}}},
    "patternProperties": {"^c": {"contains": {}}},
    "required": ["a"],
}


def test_a_tool_that_no_grammar_keeps_may_be_called_in_place_of_the_text() -> None:
    tools = tool("go", POINT), tool("stay", REFUSED)
    go, stay = '{"name": "go", "arguments": {', '{"name": "stay", "arguments": {"c": [1]'
    required = beside_a_number(HERMES, *tools)
    call = "<tool_call>\n%s}}\n</tool_call>"
    assert lets_both(required, "5", call % stay, call % f'{go}"x": 5')
    assert not lets(required, call % f'{go}"x": 10') and required.passed_over == ()
    required = beside_a_number("Qwen3-Coder", *tools)
    call = "<tool_call>\n<function=stay>\n%s</function>\n</tool_call>"
    a, b = (f"<parameter={key}>\n1\n</parameter>\n" for key in "ab")
    assert lets_both(required, "5", call % a, call % (a + b)) and not lets(required, call % b)


def test_where_no_grammar_holds_the_tools_the_text_is_written_and_that_is_said() -> None:
    few, many = ([tool(f"go{i}", PLAIN) for i in range(n)] for n in (2, 99))
    assert beside_a_number(HERMES, *many).passed_over == ()
    for tools, place in ((many, "tools"), ([*few, tool("a b")], "tools[2].function.name")):
        required = beside_a_number("Qwen3-Coder", *tools)
        assert required.passed_over == (f"`tools` beside a form of the text (at {place})",)
        assert lets(required, "5") and "go0" not in required.grammar


def test_a_schema_that_separate_arguments_cannot_keep_is_refused_with_its_tool() -> None:
    for schema in (USUAL["shape"], {"properties": {"a": {"type": "string", "pattern": "a"}}}):
        with pytest.raises(InvalidRequest, match="where calls are no JSON") as refused:
            forced({"go": None, "stay": schema}, "Qwen3-Coder")
        assert refused.value.field == "tools[1].function.parameters"


def test_of_a_format_that_is_not_known_nothing_is_required() -> None:
    for name in ("muse-glimmer", "SmolVLM-Instruct"):
        with pytest.raises(InvalidRequest) as refused:
            forced({"go": None}, name)
        assert refused.value.field == "tool_choice"


def test_a_tool_without_parameters_takes_none() -> None:
    calls = forced({"go": None}, LLAMA)
    assert lets(calls, '{"name": "go", "parameters": {}}')
    assert not lets(calls, '{"name": "go", "parameters": {"a": 1}}')


def test_definitions_of_two_schemas_are_kept_apart() -> None:
    calls = forced({"point": POINT, "named.point": NAMED}, HARMONY)
    middle = "<|channel|>commentary json<|message|>"
    assert lets(calls, f'point{middle}{{"x": 5}}<|call|>')
    assert lets(calls, f'named.point{middle}{{"x": "}}"}}<|call|>')
    assert not lets(calls, f'named.point{middle}{{"x": 5}}<|call|>')


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


MISSHAPEN: list[dict[str, Any]] = [
    {"properties": "x"},
    {"properties": ["x"]},
    {"properties": {"x": 5}},
    {"required": "x"},
    {"required": [5]},
    {"properties": {"x": {"type": {"a": 1}}}},
    {"properties": {"x": {"type": ["string", None]}}},
    {"properties": {"x": {"enum": None}}},
    {"properties": {"x": {"type": "string", "enum": [1]}}},
    {"properties": {"x": {"type": "string", "const": 1}}},
    {"properties": {"x": {"type": "string", "maxLength": "1"}}},
    {"properties": {"x": {"anyOf": None}}},
    {"properties": {"x": {"allOf": {}}}},
    {"properties": {"x": {"$ref": 5}}},
]


@pytest.mark.parametrize("name", [HERMES, "Qwen3-Coder", "google-gemma-4-31B-it"])
@pytest.mark.parametrize("schema", MISSHAPEN, ids=json.dumps)
def test_a_schema_that_is_none_is_refused_with_its_tool(name: str, schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        forced({"go": schema}, name)
    assert refused.value.field == "tools[0].function.parameters"


@pytest.mark.parametrize("name", [HERMES, "Qwen3-Coder", "google-gemma-4-31B-it"])
def test_no_members_may_be_written_as_in_php_or_go(name: str) -> None:
    usual = forced({"go": {"type": "object", "properties": {}}}, name)
    for empty in ({"properties": []}, {"properties": None, "required": None, "$defs": None}):
        assert forced({"go": {"type": "object", **empty}}, name) == usual


def test_of_a_text_only_those_of_its_values_that_are_texts_are_let() -> None:
    schema = {"type": "string", "enum": ["up", None, 3], "format": ["x"]}
    for name in (HERMES, "Qwen3-Coder"):
        calls = forced({"go": {"properties": {"x": schema}, "required": ["x"]}}, name)
        for seed in range(9):
            text = random_text(read_grammar(calls.grammar), random.Random(seed))
            assert called(text, calls, name, {"go": None}) == [("go", {"x": "up"})]


def test_too_many_tools_are_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        forced({f"tool{i}": USUAL["event"] for i in range(100)}, HERMES)
    assert refused.value.field == "tools"


def test_the_other_tools_of_a_named_one_may_be_anything() -> None:
    (only,) = required_tools(GO, [tool("a b"), tool("go"), tool("x", {"not": {}}), None])
    assert (only.name, only.field) == ("go", "tools[1].function.parameters")


def test_the_number_of_a_call_is_none_of_its_arguments() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    calls = forced({"go": schema}, "moonshotai-Kimi-K2")
    end = "<|tool_call_end|><|tool_calls_section_end|>"
    assert lets(calls, f'go:12<|tool_call_argument_begin|>{{"x": -1.5}}{end}')
    assert not lets(calls, f'go:-1<|tool_call_argument_begin|>{{"x": 1}}{end}')
