"""Anthropic's messages API: bodies to chats as OpenAI has them, completions to messages. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from gateway.accumulator import Accumulator, Completion
from gateway.body_fields import Body, GenerationFields, Int32, ListOf, refuse, string_in, without
from gateway.openai.requests import Ask, ChatBody, ResponseFormat, SchemaFormat, chat_of
from gateway.turns import TurnStream
from gateway.usage import reports, usage
from orchestrator.chat.events import Arguments, CallBegun, Content, Thought, TurnEvent
from outrider.errors import InvalidRequest
from outrider.messages import FinishReason
from outrider.response import Event, Finished

# --- requests ---

_BILLING_HEADER = "x-anthropic-billing-header:"
"""Begins a system block of Claude Code that differs in every request, and would in the prompt."""

_UNREAD = ("image", "document")
"""Types of blocks that a tool may return and no model here reads."""


class MessageParam(Body):
    """A turn of the chat; a last one of the assistant is continued."""

    role: Literal["user", "assistant", "system"]
    content: str | ListOf[dict[str, Any]]


class ToolParam(Body):
    """A tool of the caller. The tools that Anthropic runs have another type, and are refused."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Body):
    """Whether a tool is called: as the model likes, never, any, or the one of this name."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Body):
    """What the text must be."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """How the text must be, and how much to think."""

    format: OutputFormat | None = None
    effort: str | None = None


class PromptBody(GenerationFields):
    """The body of /v1/messages/count_tokens."""

    messages: ListOf[MessageParam]
    system: str | ListOf[dict[str, Any]] | None = None
    tools: ListOf[ToolParam] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    thinking: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    container: Any = Field(None, description="Not supported: nothing is run here.")
    mcp_servers: ListOf[Any] | None = Field(None, description="Not supported: nothing is run here.")


class MessagesBody(PromptBody):
    """The body of /v1/messages."""

    max_tokens: Int32
    stop_sequences: ListOf[str] | None = None


def read_count(body: PromptBody) -> ChatBody:
    """Return the chat of which the tokens are counted. Raises InvalidRequest."""
    refuse(body, container=(), mcp_servers=([],))
    choice = body.tool_choice or ToolChoice(type="auto")
    variables = body.chat_template_kwargs
    if body.thinking and body.thinking.get("type") == "disabled":
        variables = {"enable_thinking": False, **(variables or {})}
    return chat_of(
        body,
        messages=list(_chat(body)),
        tools=[_tool(i, tool) for i, tool in enumerate(body.tools or ())],
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        response_format=_response_format(body.output_config),
        reasoning_effort=body.output_config.effort if body.output_config else None,
        chat_template_kwargs=variables,
    )


def read_messages(body: MessagesBody) -> ChatBody:
    """Return the chat to answer. Raises InvalidRequest."""
    chat = read_count(body)
    chat.max_tokens = body.max_tokens
    if body.stop_sequences is not None:
        chat.stop = body.stop_sequences
    return chat


def _chat(body: PromptBody) -> Iterator[dict[str, Any]]:
    if body.system:
        yield {"role": "system", "content": _system(body.system)}
    for i, message in enumerate(body.messages):
        if isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
        else:
            yield from _turn(f"messages[{i}].content", message.role, message.content)


def _system(content: object) -> str | list[dict[str, Any]]:
    """Return the system prompt, without what a client changes in it for every request."""
    parts = _texts("system", content)
    if isinstance(parts, str):
        return parts
    return [part for part in parts if not part["text"].startswith(_BILLING_HEADER)]


def _turn(field: str, role: str, blocks: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the messages that a turn becomes: results of tools first, as they came before."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for i, block in enumerate(blocks):
        place, kind = f"{field}[{i}]", block.get("type")
        if kind == "text":
            parts.append({"type": "text", "text": string_in(place, block, "text")})
        elif kind == "tool_use":
            calls.append(_call(place, block))
        elif kind == "tool_result":
            yield _result(place, block)
        elif kind == "thinking":
            thoughts.append(string_in(place, block, "thinking"))
        elif kind != "redacted_thinking":
            raise InvalidRequest(f"{place}.type", f"{kind!r:.40} is not supported")
    if not (parts or calls or thoughts):
        return
    turn: dict[str, Any] = {"role": role, "content": parts}
    if calls:
        turn["tool_calls"] = calls
    if thoughts:
        turn["reasoning_content"] = "".join(thoughts)
    yield turn


def _call(field: str, block: dict[str, Any]) -> dict[str, Any]:
    given = block.get("input", {})
    if not isinstance(given, (dict, str)):
        raise InvalidRequest(f"{field}.input", "must be an object")
    # Clients keep the text of a call that was cut off, as it is no JSON.
    arguments = given if isinstance(given, str) else json.dumps(given)
    function = {"name": string_in(field, block, "name"), "arguments": arguments}
    return {"id": string_in(field, block, "id"), "type": "function", "function": function}


def _result(field: str, block: dict[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    return {
        "role": "tool",
        "tool_call_id": string_in(field, block, "tool_use_id"),
        "content": "" if content is None else _texts(f"{field}.content", content, _UNREAD),
    }


def _texts(field: str, content: object, unread: Collection[str] = ()) -> str | list[dict[str, Any]]:
    """Return content that may be text only; blocks of the types `unread` are named in it."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(field, "must be a string or a list of blocks")
    parts = []
    for i, block in enumerate(content):
        kind = str(block.get("type")) if isinstance(block, dict) else ""
        if kind != "text" and kind not in unread:
            raise InvalidRequest(f"{field}[{i}].type", "must be 'text'")
        text = string_in(f"{field}[{i}]", block, "text") if kind == "text" else without(kind)
        parts.append({"type": "text", "text": text})
    return parts


def _tool(number: int, tool: ToolParam) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(f"tools[{number}].type", f"{tool.type!r:.40} is not supported")
    function = {"name": tool.name, "description": tool.description or ""}
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def _tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def _response_format(config: OutputConfig | None) -> ResponseFormat | None:
    if config is None or config.format is None:
        return None
    schema = SchemaFormat.model_construct(schema_=config.format.schema_)
    return ResponseFormat.model_construct(type="json_schema", json_schema=schema)


# --- answers ---

_SIGNATURE = "outrider"
"""Of thoughts: clients want one that is not empty, and nobody checks it."""


class MessageAnswer:
    """A message: as events, blocks one after the other, each with its deltas; or all at once."""

    def __init__(self, message_id: str, ask: Ask) -> None:
        self._id = message_id
        self._reading = ask.reading
        self.gathering = ask.gathering()
        self._turn = TurnStream(ask.reading, 0, "toolu", _nonce(message_id))
        self._open_kind: str | None = None  # of the last block, if it has not ended
        self._block_count = 0

    def whole(self) -> dict[str, Any]:
        """Return the message once everything is finished."""
        (completion,) = self.gathering.completions
        turn = self._reading.turn(completion, 0, "toolu", _nonce(self._id))
        content: list[dict[str, Any]] = []
        if turn.thoughts:
            content.append({"type": "thinking", "thinking": turn.thoughts, "signature": _SIGNATURE})
        if turn.content:
            content.append({"type": "text", "text": turn.content})
        for call in turn.calls:
            content.append(_tool_use(call.id, call.name) | {"input": json.loads(call.arguments)})
        return {
            **_message(self._id, self.gathering),
            "content": content,
            **_end(completion, has_called=bool(turn.calls)),
            "usage": _usage(self.gathering),
            **_reports(completion),
        }

    def events(self, prompt: int, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the events that an event of the orchestrator becomes."""
        addition = self.gathering.add(prompt, event)
        if addition is None:
            yield {"type": "message_start", "message": self._start()}
            return
        for shown in self._turn.add(addition):
            yield from self._show(shown)
        if isinstance(event, Finished):
            for shown in self._turn.finish(self.gathering.completions[0]):
                yield from self._show(shown)
            yield from self._finish()

    def _start(self) -> dict[str, Any]:
        nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        return {**_message(self._id, self.gathering), **nothing, "usage": _usage(self.gathering)}

    def _show(self, event: TurnEvent) -> Iterator[dict[str, Any]]:
        match event:
            case Content(text):
                yield from self._begin_text({"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Thought(text):
                yield from self._begin_text({"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case CallBegun(name, id_):
                yield from self._begin_block(_tool_use(id_, name))
            case Arguments(text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})

    def _begin_text(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._open_kind != block["type"]:
            yield from self._begin_block(block)

    def _begin_block(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._end_block()
        self._open_kind = block["type"]
        self._block_count += 1
        yield {
            "type": "content_block_start",
            "index": self._block_count - 1,
            "content_block": block,
        }

    def _end_block(self) -> Iterator[dict[str, Any]]:
        if self._open_kind == "thinking":
            yield self._delta({"type": "signature_delta", "signature": _SIGNATURE})
        if self._open_kind is not None:
            self._open_kind = None
            yield {"type": "content_block_stop", "index": self._block_count - 1}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._block_count - 1, "delta": delta}

    def _finish(self) -> Iterator[dict[str, Any]]:
        yield from self._end_block()
        (completion,) = self.gathering.completions
        yield {
            "type": "message_delta",
            "delta": _end(completion, has_called=self._turn.has_called),
            "usage": _usage(self.gathering),
            **_reports(completion),
        }
        yield {"type": "message_stop"}


def _message(message_id: str, gathering: Accumulator) -> dict[str, Any]:
    return {"id": message_id, "type": "message", "role": "assistant", "model": gathering.model}


def _nonce(message_id: str) -> str:
    return message_id.removeprefix("msg_")


def _tool_use(id_: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": {}}


def _end(completion: Completion, *, has_called: bool) -> dict[str, Any]:
    """Return why the message ends."""
    finished = completion.finished
    assert finished is not None
    stop = finished.stop_sequence or None
    reason = "stop_sequence" if stop else "tool_use" if has_called else "end_turn"
    if finished.reason is FinishReason.CONTEXT_FULL:
        reason = "model_context_window_exceeded"
    elif finished.reason is FinishReason.TOKEN_LIMIT:
        reason = "max_tokens"
    return {"stop_reason": reason, "stop_sequence": stop}


def _usage(gathering: Accumulator) -> dict[str, int]:
    """Return what was read and written so far. Cached tokens are not among the input tokens."""
    counted = usage(gathering.started, gathering.statistics)
    cached = counted["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counted["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": counted["completion_tokens"],
    }


def _reports(completion: Completion) -> dict[str, Any]:
    assert completion.finished is not None
    return reports(completion.finished.statistics)
