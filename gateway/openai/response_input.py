"""What /v1/responses is asked: its body as a chat, and the tools that are no plain functions. Pure.

A model calls functions. A tool that takes a text is offered to it as a function of one argument,
and a function in a namespace under both names; `OfferedTools` turns what it calls back into the
items that the client expects. Tools that OpenAI's own servers run are left out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from gateway.body_fields import Body, GenerationFields, Int32, ListOf, refuse, string_in, without
from gateway.openai.requests import ChatBody, ResponseFormat, SchemaFormat, chat_of
from outrider.errors import InvalidRequest

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_HOSTED = (
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "mcp",
    "tool_search",
    "web_search",
    "web_search_preview",
)
"""Types of tools that OpenAI's servers run, of which a model hears nothing otherwise."""

_UNREAD = ("input_image", "input_file")
"""Types of parts that a tool may return and no model here reads."""

_INPUT = "input"
"""The argument of a function that stands for a tool which takes a text."""


class TextFormat(ResponseFormat):
    """What the text must be; here the schema stands beside the type."""

    name: str | None = None

    def as_response_format(self) -> ResponseFormat:
        """Return the same as /v1/chat/completions has it."""
        named = SchemaFormat.model_validate({"schema": self.schema_})
        return ResponseFormat(type=self.type, json_schema=named)


class TextOptions(Body):
    """How the text must be."""

    format: TextFormat | None = None


class Reasoning(Body):
    """How much to think; the summary that may be asked for is not made."""

    effort: str | None = None


class ResponseBody(GenerationFields):
    """The body of /v1/responses."""

    input: str | ListOf[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Int32 | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    metadata: dict[str, Any] | None = None
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = Field(None, description="Not supported: stored prompts are OpenAI's.")


@dataclass(slots=True)
class OfferedTools:
    """The tools of a request, as functions.

    `texts` are the names of those that take a text; `namespaces` has, by a function's name, its
    namespace and its name there; `left_out` says which tools are not offered.
    """

    functions: list[dict[str, Any]] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def item_of(self, name: str, call_id: str) -> dict[str, Any]:
        """Return the item of a call that begins."""
        if name in self.texts:
            return {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": ""}
        inside = dict(zip(("namespace", "name"), self.namespaces.get(name, ()), strict=False))
        item = {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
        return {**item, **inside}


def read_tools(tools: list[dict[str, Any]]) -> OfferedTools:
    """Return what the model is offered. Raises InvalidRequest for types that nobody knows."""
    offered = OfferedTools()
    for i, tool in enumerate(tools):
        _offer(offered, f"tools[{i}]", tool)
    return offered


def _offer(offered: OfferedTools, place: str, tool: Any, namespace: str = "") -> None:
    if not isinstance(tool, dict):
        raise InvalidRequest(place, "must be an object")
    kind, name = str(tool.get("type")), str(tool.get("name"))
    if kind == "namespace" and not namespace:
        inner = tool.get("tools")
        for i, each in enumerate(inner if isinstance(inner, list) else ()):
            _offer(offered, f"{place}.tools[{i}]", each, name)
    elif kind == "function":
        function = {key: tool[key] for key in ("description", "parameters") if tool.get(key)}
        if namespace:
            offered.namespaces[_flat(namespace, name)] = (namespace, name)
        _add(offered, {"name": _flat(namespace, name), **function})
    elif kind == "custom" and not namespace:
        offered.texts.add(name)
        _add(offered, _taking_text(name, tool))
    elif kind in _HOSTED:
        offered.left_out.append(f"{place}, {kind}: it runs at OpenAI")
    else:
        raise InvalidRequest(f"{place}.type", f"{kind!r:.40} is not supported")


def _add(offered: OfferedTools, function: dict[str, Any]) -> None:
    offered.functions.append({"type": "function", "function": function})


def _taking_text(name: str, tool: dict[str, Any]) -> dict[str, Any]:
    """Return a function of one argument, whose description has the grammar of the text."""
    form = tool.get("format")
    said = "The text."
    if isinstance(form, dict) and form.get("definition"):
        said = f"The text, by this {form.get('syntax')} grammar:\n{form['definition']}"
    parameters = {
        "type": "object",
        "properties": {_INPUT: {"type": "string", "description": said}},
        "required": [_INPUT],
    }
    return {"name": name, "description": tool.get("description") or "", "parameters": parameters}


def _flat(namespace: str, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def text_of_call(arguments: str) -> str:
    """Return the text in the arguments of a tool that takes one; what is no JSON stays."""
    try:
        found = json.loads(arguments)[_INPUT]
    except (ValueError, KeyError, TypeError):
        return arguments
    return found if isinstance(found, str) else arguments


def read_chat(body: ResponseBody, offered: OfferedTools) -> ChatBody:
    """Return the chat to answer. Raises InvalidRequest for what is not supported."""
    refuse(body, previous_response_id=(), conversation=(), background=(False,), prompt=())
    form = body.text.format if body.text else None
    choice = body.tool_choice
    if isinstance(choice, dict):
        name = _flat(choice.get("namespace") or "", str(choice.get("name")))
        choice = {"type": "function", "function": {"name": name}}
    return chat_of(
        body,
        messages=list(_messages(body)),
        max_tokens=body.max_output_tokens,
        tools=offered.functions,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=form.as_response_format() if form else None,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _messages(body: ResponseBody) -> Iterator[dict[str, Any]]:
    """Yield the messages of the input; the items of one turn of the assistant are one message."""
    if body.instructions:
        yield {"role": "system", "content": body.instructions}
    if isinstance(body.input, str):
        yield {"role": "user", "content": body.input}
        return
    turn: dict[str, Any] = {}
    for i, item in enumerate(body.input):
        part = _read_item(f"input[{i}]", item)
        if part["role"] != "assistant" or (turn.get("content") and "content" in part):
            yield from _whole(turn)
            turn = {}
        if part["role"] != "assistant":
            yield part
            continue
        calls = [*turn.get("tool_calls", ()), *part.get("tool_calls", ())]
        turn = {**turn, **part, **({"tool_calls": calls} if calls else {})}
    yield from _whole(turn)


def _whole(turn: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a turn of the assistant, unless there is none."""
    if turn.keys() - {"role", "reasoning_content"} or turn.get("reasoning_content"):
        yield {"content": "", **turn}


def _read_item(field: str, item: dict[str, Any]) -> dict[str, Any]:
    """Return a message, or what an item adds to a turn of the assistant."""
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item.get("role"), "content": _text_of(field, item.get("content"))}
    if kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        return {"role": "assistant", "reasoning_content": _text_of(field, parts)}
    if kind in ("function_call", "custom_tool_call"):
        name = _flat(item.get("namespace") or "", string_in(field, item, "name"))
        if kind == "function_call":
            arguments = string_in(field, item, "arguments")
        else:
            arguments = json.dumps({_INPUT: string_in(field, item, "input")})
        function = {"name": name, "arguments": arguments}
        call = {"id": string_in(field, item, "call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind in ("function_call_output", "custom_tool_call_output"):
        text = _text_of(field, item.get("output"), _UNREAD)
        return {"role": "tool", "tool_call_id": string_in(field, item, "call_id"), "content": text}
    raise InvalidRequest(f"{field}.type", f"{kind!r:.40} is not supported")


def _text_of(field: str, content: object, unread: Collection[str] = ()) -> str:
    """Return content that may be text only; parts of the types `unread` are named in it."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(field, "needs content, as text")
    return "".join(_text_of_part(field, part, unread) for part in content)


def _text_of_part(field: str, part: object, unread: Collection[str]) -> str:
    found = part if isinstance(part, dict) else {}
    kind, text = str(found.get("type")), found.get("text")
    if kind in unread:
        return without(kind.removeprefix("input_"))
    if kind not in _TEXT_PARTS or not isinstance(text, str):
        raise InvalidRequest(field, "content may hold text only")
    return text
