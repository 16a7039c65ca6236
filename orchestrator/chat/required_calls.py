"""Writes down what a model must write: calls of tools, a text of some form, or either. Pure.

A grammar lets nothing else, with calls as the model's template shows them. What opens a call that
must come ends the prompt. Where the prompt has opened a thought, the model may end it first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.chat.format import ID, KEY, MARK, TYPE, CallFormat, ChatFormat, Style
from orchestrator.chat.value_readers import member, types_of
from outrider.errors import InvalidRequest
from outrider.grammar.formats import FORMATS
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.json_texts import either, quoted
from outrider.grammar.schema import rules_of_schema, written

_NAMES = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\{[^}]*\}|#[^\r\n]*|([a-zA-Z0-9-]+)')
_NAME = re.compile(r"[\w.-]{1,128}")
_SEPARATE = (Style.PARAMETERS, Style.KEYED)
_NO_ARGUMENTS = {"type": "object", "additionalProperties": False}
_SAID = frozenset({"type", "title", "description", "default", "examples", "$schema"})
_OBJECT_KEYWORDS = _SAID | {
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
}
_QUOTE = r'"\""'
_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_TEXT_KEYWORDS = _SAID | {"enum", "const", "format", "minLength", "maxLength"}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that may be called. `schema` is that of its arguments, which came in `field`."""

    field: str
    name: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Required:
    """`opening` ends the prompt, and `grammar` is GBNF of what follows; both empty: anything.

    `passed_over`: what the grammar does not keep of what was asked for.
    """

    opening: str = ""
    grammar: str = ""
    passed_over: tuple[str, ...] = ()


FREE = Required()


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
    return read_tools(tools, wanted)


def read_tools(tools: Sequence[object], wanted: str | None = None) -> list[Tool]:
    """Return the tools, or those of the `wanted` name alone. Raises InvalidRequest."""
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
    return Tool(field, name, _object_schema(field, function.get("parameters")))


def _object_schema(field: str, schema: object) -> dict[str, Any]:
    """Return a schema of objects, which arguments always are."""
    if schema is None:
        return _NO_ARGUMENTS
    if isinstance(schema, dict):
        # Go writes a map without members as null, and PHP as a list.
        schema = {name: each for name, each in schema.items() if each is not None}
        if schema.get("properties") == []:
            del schema["properties"]
        kinds = schema.get("type", "object")
        if "object" in (kinds if isinstance(kinds, list) else [kinds]):
            return {**schema, "type": "object"}
    raise InvalidRequest(field, "must be the schema of an object")


def require(
    tools: Sequence[Tool],
    form: ChatFormat,
    text: str = "",
    *,
    several: bool = False,
    in_thought: bool = False,
) -> Required:
    """Return how to make a model call one of some tools, or write a text of the GBNF `text`.

    With both it has the choice. `several`: it may call once or more often. `in_thought`: the prompt
    ends within a thought. Raises InvalidRequest, with the field, for a schema that no grammar can
    keep, and where it is not known how this model writes calls.
    """
    opening, root, rules = _calls(tools, form, several) if tools else ("", "", {})
    if text or in_thought:
        choices = [f"{_literal(opening)} {root}"] if tools else []
        if text:
            choices.append(f"{_literal(form.content) if in_thought else ''} {_apart('root')}")
        opening, root = "", " | ".join(choices)
    if in_thought:
        rules["thought"] = _text_without(form.end_think)
        root = rf"thought {_literal(form.end_think)} [ \n]{{0,2}} ( {root} )"
    grammar = written({"root": root, **rules}) + _apart(text)
    try:
        read_grammar(grammar)
    except InvalidRequest as refusal:
        if not tools:
            raise
        raise InvalidRequest("tools", f"their grammar is refused: {refusal}") from None
    return Required(opening, grammar)


def offer(
    tools: Sequence[object],
    form: ChatFormat,
    text: str,
    *,
    several: bool = False,
    in_thought: bool = False,
) -> Required:
    """Return how a model may call tools, or write a text of the GBNF `text`.

    Nobody asked for a grammar of the tools: a schema that none keeps lets any arguments of its
    types. If that is refused too, the model writes the text. Raises InvalidRequest for the text.
    """
    refused = ""
    for loosened in (_as_it_is, _if_refused, _loose):
        try:
            offered = [loosened(form, tool) for tool in read_tools(tools)]
            return require(offered, form, text, several=several, in_thought=in_thought)
        except InvalidRequest as refusal:
            refused = refusal.field
    passed_over = (f"`tools` beside a form of the text (at {refused})",)
    return replace(require((), form, text, in_thought=in_thought), passed_over=passed_over)


def _as_it_is(form: ChatFormat, tool: Tool) -> Tool:
    return tool


def _if_refused(form: ChatFormat, tool: Tool) -> Tool:
    try:
        _calls([tool], form, several=False)
    except InvalidRequest:
        return _loose(form, tool)
    return tool


def _loose(form: ChatFormat, tool: Tool) -> Tool:
    """Return a tool that takes any object, or any values of its arguments' types."""
    if form.calls is None or form.calls.style not in _SEPARATE:
        return replace(tool, schema={"type": "object"})
    properties = member(tool.schema, "properties", dict)
    types = {key: sorted(types_of(each, tool.schema) & _TYPES) for key, each in properties.items()}
    loose = {key: {"type": each} if each else {} for key, each in types.items()}
    required = [key for key in properties if key in member(tool.schema, "required", list)]
    return replace(tool, schema={"type": "object", "properties": loose, "required": required})


def _apart(text: str) -> str:
    """Return a sound GBNF text with other names of its rules, which no rule of calls has."""
    names = {"root": "t-root"}  # the others are numbered: a longer name might be too long

    def renamed(found: re.Match[str]) -> str:
        return names.setdefault(found[1], f"t-{len(names)}") if found[1] else found[0]

    return _NAMES.sub(renamed, text)


def _calls(
    tools: Sequence[Tool], form: ChatFormat, several: bool
) -> tuple[str, str, dict[str, str]]:
    """Return what opens the first call, GBNF of what follows it, and the rules that it needs."""
    calls = form.calls
    if calls is None or (form.headers and calls.style is not Style.NAMED):
        raise InvalidRequest("tool_choice", "it is not known how this model writes calls")
    opening, _, rest = ("" if calls.bare else calls.opening).partition(ID)
    rules = {"ordinal": "[0-9]{1,9}"}
    choices = []
    for i, tool in enumerate(tools):
        choice, needed = _call(calls, tool, f"a{i}")
        rules |= needed
        choices.append(choice)
    rules["call"] = " | ".join(choices)
    root = f"ordinal {_literal(rest)} call" if rest else "call"
    if several and calls.several:
        again = " ordinal ".join(map(_literal, (calls.separator + calls.open).split(ID)))
        root += f" ( {again} call )*"
    return opening, f"{root} {_literal(calls.end)}", rules


def _call(calls: CallFormat, tool: Tool, prefix: str) -> tuple[str, dict[str, str]]:
    """Return GBNF of a call from its name or object on, and the rules that it needs."""
    arguments, rules = prefix, _rules(tool, tool.schema, prefix)
    if calls.style in _SEPARATE:
        arguments, rules = _separate_arguments(calls, tool, prefix)
    if calls.style is Style.JSON:
        head = f'{{"{calls.name_key}": "{tool.name}", "{calls.arguments_key}": '
        head = head if calls.name_key else f'{{"{tool.name}": '
        return f"{_literal(head)} {arguments} {_literal('}' + calls.close)}", rules
    after_name = re.sub(rf"({MARK.pattern}){ID}", "", calls.after_name)
    head = " ordinal ".join(map(_literal, f"{tool.name}{after_name}".split(ID)))
    return f"{head} {arguments} {_literal(calls.close)}", rules


def _separate_arguments(calls: CallFormat, tool: Tool, prefix: str) -> tuple[str, dict[str, str]]:
    """Return GBNF of arguments that stand one after the other, in the schema's order.

    That the schema is sound was found when rules were made of the whole of it.
    """
    _refuse_others(tool, tool.schema, _OBJECT_KEYWORDS)
    parameter = calls.parameter
    comma = _literal(parameter.close) if calls.style is Style.KEYED else r'"\n"?'
    properties = list(member(tool.schema, "properties", dict).items())
    required = member(tool.schema, "required", list)
    # {prefix}0t2 is what may stand from the third argument on as the first, {prefix}1t2 as a later.
    rules = {f"{prefix}{later}t{len(properties)}": '""' for later in (0, 1)}
    for i, (key, schema) in enumerate(properties):
        value, type_, needed = _value(calls, tool, schema, f"{prefix}p{i}")
        rules |= needed
        ahead = _literal(f"{parameter.open}{key}{parameter.after_key}".replace(TYPE, type_))
        close = "" if calls.style is Style.KEYED else _literal(parameter.close.replace(KEY, key))
        one = f"{ahead} {value} {close} {prefix}1t{i + 1}"
        for later, before in ((0, ""), (1, f"{comma} ")):
            skipped = "" if key in required else f" | {prefix}{later}t{i + 1}"
            rules[f"{prefix}{later}t{i}"] = before + one + skipped
    return f"{prefix}0t0", rules


def _value(
    calls: CallFormat, tool: Tool, schema: Any, name: str
) -> tuple[str, str, dict[str, str]]:
    """Return GBNF of an argument's value, what its type is called, and the rules it needs."""
    string_type = calls.parameter.string_type
    quote = calls.quote if MARK.match(calls.quote) else ""
    types = types_of(schema, tool.schema)
    if types != {"string"} or (calls.style is Style.KEYED and not quote):
        shared: dict[str, Any] = {
            key: tool.schema[key] for key in ("$defs", "definitions") if key in tool.schema
        }
        kind = "number" if types & {"integer", "number"} else next(iter(types), "object")
        whole = {**schema, **shared} if isinstance(schema, dict) else schema
        return name, "false" if string_type == "true" else kind, _rules(tool, whole, name)
    _refuse_others(tool, schema, _TEXT_KEYWORDS)
    given = schema.get("enum", [schema["const"]] if "const" in schema else [])
    given = [each for each in given if isinstance(each, str)]
    mark = quote or calls.parameter.close.strip()
    rules = {name: _text_without(mark)}
    if given:
        rules[name] = either(_literal(each) for each in given)
    elif member(schema, "format", str) in FORMATS:
        # Their texts hold nothing that JSON escapes: without its quotes they are the same.
        rules = _rules(tool, schema, name)
        in_json = rules[rules[name]]
        rules[name] = in_json.removeprefix(_QUOTE + " ").removesuffix(" " + _QUOTE)
    elif "minLength" in schema or "maxLength" in schema:
        low, high = schema.get("minLength", 0), schema.get("maxLength", "")
        rules[name] = f"[^{_in_class(mark[0])}]{{{low},{high}}}"
    return f"{_literal(quote)} {name} {_literal(quote)}", string_type, rules


def _refuse_others(tool: Tool, schema: dict[str, Any], keywords: frozenset[str]) -> None:
    for keyword in sorted(schema.keys() - keywords):
        raise InvalidRequest(tool.field, f"`{keyword}` is not supported where calls are no JSON")


def _rules(tool: Tool, schema: dict[str, Any], name: str) -> dict[str, str]:
    try:
        return rules_of_schema(json.dumps(schema), name, f"{name}s")
    except InvalidRequest as refusal:
        reason = str(refusal).removeprefix(f"{refusal.field}: ")
        raise InvalidRequest(tool.field, reason) from None


def _text_without(mark: str) -> str:
    """Return GBNF of any text in which nothing begins as a mark does."""
    first, second = map(_in_class, mark[:2])
    return f"( [^{first}] | {_literal(mark[0])} [^{second}{first}] )*"


def _in_class(character: str) -> str:
    return f"\\{character}" if character in "]^\\[-" else character


def _literal(text: str) -> str:
    return quoted(text).replace("\n", "\\n") if text else ""
