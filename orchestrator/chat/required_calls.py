"""Writes down what a model must write when it has to call a tool. Pure.

The mark that opens a call ends the prompt, and a grammar lets nothing but calls
after it, as the model's template shows them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.chat.tool_calls import CallFormat, opening_of
from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.schema import rules_of_schema, written

_NAME = re.compile(r"[\w.-]{1,128}")
_NO_ARGUMENTS = {"type": "object", "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that may be called. `arguments` is a JSON schema, which came in `field`."""

    field: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class RequiredCalls:
    """`opening` ends the prompt, and `grammar` is GBNF of what follows; both empty: anything."""

    opening: str = ""
    grammar: str = ""


FREE = RequiredCalls()


@dataclass(frozen=True, slots=True)
class _Frame:
    """GBNF around a tool's name and its arguments; without `more` there is one call."""

    call: str
    more: str = ""
    first: str = ""
    last: str = ""


_FRAMES = {
    CallFormat.HERMES: _Frame(
        r'"\n{{\"name\": \"{name}\", \"arguments\": " {arguments} "}}\n</tool_call>"',
        more=r'"\n<tool_call>"',
    ),
    CallFormat.MISTRAL: _Frame(
        r'"{{\"name\": \"{name}\", \"arguments\": " {arguments} "}}"',
        more='", "',
        first='" "? "["',
        last='"]"',
    ),
    CallFormat.MISTRAL_ARGS: _Frame(r'"{name}[ARGS]" {arguments}', more='"[TOOL_CALLS]"'),
    CallFormat.FUNCTION: _Frame(r'"{name}>" {arguments} "</function>"', more='"<function="'),
    CallFormat.LLAMA: _Frame(r'"{{\"name\": \"{name}\", \"parameters\": " {arguments} "}}"'),
}


def required_tools(tool_choice: object, tools: Sequence[object]) -> list[Tool]:
    """Return the tools of which one must be called; none where the model is free.

    Both are what came out of JSON, as in OpenAI's API. Raises InvalidRequest for a
    choice that cannot be kept.
    """
    if tool_choice in (None, "auto", "none"):
        return []
    wanted = None if tool_choice == "required" else _chosen_name(tool_choice)
    if not tools:
        raise InvalidRequest("tool_choice", "needs tools")
    functions = [(f"tools[{i}].function", _function_of(tool)) for i, tool in enumerate(tools)]
    found = [each for each in functions if wanted is None or each[1].get("name") == wanted]
    if not found:
        raise InvalidRequest("tool_choice", f"names {wanted!r:.80}, which is none of the tools")
    return [_read_tool(field, function) for field, function in found]


def _chosen_name(tool_choice: object) -> str:
    name = _function_of(tool_choice).get("name")
    if not isinstance(name, str):
        raise InvalidRequest("tool_choice", "must be none, auto, required or name a function")
    return name


def _function_of(value: object) -> dict[str, Any]:
    """Return the function of a tool or a choice; empty if there is none."""
    function = value.get("function") if isinstance(value, dict) else None
    return function if isinstance(function, dict) else {}


def _read_tool(field: str, function: dict[str, Any]) -> Tool:
    name = function.get("name")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InvalidRequest(f"{field}.name", "must be 1 to 128 letters, digits, _, . or -")
    field = f"{field}.parameters"
    return Tool(field, name, json.dumps(_object_schema(field, function.get("parameters"))))


def _object_schema(field: str, schema: object) -> dict[str, Any]:
    """Return a schema of objects, which arguments always are."""
    if schema is None:
        return _NO_ARGUMENTS
    if isinstance(schema, dict):
        kinds = schema.get("type", "object")
        if "object" in (kinds if isinstance(kinds, list) else [kinds]):
            return {**schema, "type": "object"}
    raise InvalidRequest(field, "must be the schema of an object")


def require_calls(
    tools: Sequence[Tool], form: CallFormat, *, several: bool = False
) -> RequiredCalls:
    """Return how to make a model call one of some tools; `several`: once or more often.

    Llama's models write one call at a time.

    Raises InvalidRequest, with the field, for a schema that no grammar can keep.
    """
    frame = _FRAMES[form]
    more = f"( {frame.more} call )*" if several and frame.more else ""
    rules = {"root": f"{frame.first} call {more} {frame.last}", "call": ""}
    calls = []
    for i, tool in enumerate(tools):
        rules |= _argument_rules(tool, f"arguments{i}", f"a{i}s")
        calls.append(frame.call.format(name=tool.name, arguments=f"arguments{i}"))
    rules["call"] = " | ".join(calls)
    grammar = written(rules)
    try:
        read_grammar(grammar)
    except InvalidRequest as refusal:
        raise InvalidRequest("tools", f"their grammar is refused: {refusal}") from None
    # Llama's templates show calls without the mark, after which there may also be a program.
    opening = "" if form is CallFormat.LLAMA else opening_of(form)
    return RequiredCalls(opening, grammar)


def _argument_rules(tool: Tool, name: str, prefix: str) -> dict[str, str]:
    try:
        return rules_of_schema(tool.arguments, name, prefix)
    except InvalidRequest as refusal:
        reason = str(refusal).removeprefix(f"{refusal.field}: ")
        raise InvalidRequest(tool.field, reason) from None
