"""OpenAI's responses API: request bodies, answers and typed events. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from gateway.gathering import Completion
from gateway.openai.answers import finish_reason
from gateway.openai.requests import ChatBody, ParsedRequest, ResponseFormat, SchemaFormat
from gateway.options import Body, GenerationFields, Int32, ListOf, refuse
from gateway.turns import TurnStream
from gateway.usage import acceptance_metrics, timings, usage
from orchestrator.chat.events import Arguments, CallBegun, Content, Event, Thought
from outrider.errors import InvalidRequest
from outrider.v1 import orchestrator_service_pb2 as messages

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


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


def read_chat(body: ResponseBody) -> ChatBody:
    """Return the chat to answer. Raises InvalidRequest for what is not supported."""
    refuse(body, previous_response_id=(), conversation=(), background=(False,), prompt=())
    shared = {name: getattr(body, name) for name in GenerationFields.model_fields}
    form = body.text.format if body.text else None
    choice = body.tool_choice
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return ChatBody.model_construct(
        **shared,
        messages=list(_messages(body)),
        max_tokens=body.max_output_tokens,
        tools=[_tool(i, tool) for i, tool in enumerate(body.tools or ())],
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=form.as_response_format() if form else None,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _tool(number: int, tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise InvalidRequest(f"tools[{number}].type", f"{tool.get('type')!r:.40} is not supported")
    names = ("name", "description", "parameters")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


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
    if kind == "function_call":
        function = {name: _string(field, item, name) for name in ("name", "arguments")}
        call = {"id": _string(field, item, "call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        text = _text_of(field, item.get("output"))
        return {"role": "tool", "tool_call_id": _string(field, item, "call_id"), "content": text}
    raise InvalidRequest(f"{field}.type", f"{kind!r:.40} is not supported")


def _string(field: str, item: dict[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{field}.{name}", "must be a string")
    return value


def _text_of(field: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(field, "needs content, as text")
    texts = []
    for part in content:
        is_text = isinstance(part, dict) and part.get("type") in _TEXT_PARTS
        if not is_text or not isinstance(part.get("text"), str):
            raise InvalidRequest(field, "content may hold text only")
        texts.append(part["text"])
    return "".join(texts)


@dataclass(frozen=True, slots=True)
class Head:
    """What names an answer, and when it began."""

    nonce: str
    created: int


class Events:
    """The events of a streamed answer, numbered in their order: one item after the other.

    A whole answer is what the last event holds.
    """

    def __init__(self, head: Head, body: ResponseBody, parsed: ParsedRequest) -> None:
        self._head = head
        self._body = body
        self._gathering = parsed.gathering()
        self._turn = TurnStream(parsed.reading, 0, "call", head.nonce)
        self._number = -1
        self._items: list[dict[str, Any]] = []
        self._text = ""  # of the last item, which is open if `_is_open`
        self._is_open = False

    def add(self, response: messages.GenerateResponse) -> Iterator[dict[str, Any]]:
        """Yield the events that a message becomes."""
        addition = self._gathering.add(0, response)
        if addition is None:
            begun = self._response("in_progress")
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
            return
        for event in self._turn.add(addition):
            yield from self._show(event)
        if response.WhichOneof("event") == "finished":
            (completion,) = self._gathering.completions
            for event in self._turn.finish(completion):
                yield from self._show(event)
            yield from self._end(completion)

    def _show(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case Thought(text):
                yield from self._begin_text("reasoning", {"summary": []})
                yield self._delta("response.reasoning_text.delta", text, content_index=0)
            case Content(text):
                yield from self._begin_text("message", {"role": "assistant"})
                yield self._delta("response.output_text.delta", text, content_index=0, logprobs=[])
            case CallBegun(name, id_):
                item = {"call_id": id_, "name": name, "arguments": ""}
                yield from self._begin("function_call", item)
            case Arguments(text):
                yield self._delta("response.function_call_arguments.delta", text)

    def _begin_text(self, kind: str, members: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the begin of an item with a text, unless the last one is of this kind."""
        if self._is_open and self._items[-1]["type"] == kind:
            return
        yield from self._begin(kind, {**members, "content": []})
        part = _part(kind, "")
        yield self._event("response.content_part.added", **self._place(content_index=0), part=part)

    def _begin(self, kind: str, members: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._end_item("completed")
        id_ = f"{_PREFIXES[kind]}_{self._head.nonce}_{len(self._items)}"
        self._items.append({"id": id_, "type": kind, "status": "in_progress", **members})
        self._text, self._is_open = "", True
        index = len(self._items) - 1
        yield self._event("response.output_item.added", output_index=index, item=self._items[-1])

    def _delta(self, kind: str, text: str, **members: Any) -> dict[str, Any]:
        self._text += text
        return self._event(kind, **self._place(**members), delta=text)

    def _end_item(self, status: str) -> Iterator[dict[str, Any]]:
        if not self._is_open:
            return
        self._is_open = False
        item, text = {**self._items[-1], "status": status}, self._text
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._event(
                "response.function_call_arguments.done",
                **self._place(),
                name=item["name"],
                arguments=text,
            )
        else:
            place, part = self._place(content_index=0), _part(item["type"], text)
            item["content"] = [part]
            if item["type"] == "message":
                yield self._event("response.output_text.done", **place, text=text, logprobs=[])
            else:
                yield self._event("response.reasoning_text.done", **place, text=text)
            yield self._event("response.content_part.done", **place, part=part)
        self._items[-1] = item
        index = len(self._items) - 1
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _end(self, completion: Completion) -> Iterator[dict[str, Any]]:
        assert completion.finished is not None
        status = "completed" if finish_reason(completion.finished) == "stop" else "incomplete"
        if not self._items:  # it has said nothing
            yield from self._begin_text("message", {"role": "assistant"})
        yield from self._end_item(status)
        counted = usage(self._gathering.started, self._gathering.statistics)
        statistics = completion.finished.statistics
        whole = {
            **self._response(status),
            "incomplete_details": _DETAILS[status],
            "output": self._items,
            "usage": {
                "input_tokens": counted["prompt_tokens"],
                "input_tokens_details": counted["prompt_tokens_details"],
                "output_tokens": counted["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counted["total_tokens"],
            },
            "timings": timings(statistics),
            "metrics": acceptance_metrics(statistics),
        }
        yield self._event(f"response.{status}", response=whole)

    def _place(self, **members: Any) -> dict[str, Any]:
        return {
            "item_id": self._items[-1]["id"],
            "output_index": len(self._items) - 1,
            **members,
        }

    def _event(self, kind: str, **members: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **members}

    def _response(self, status: str) -> dict[str, Any]:
        body = self._body
        return {
            "id": f"resp_{self._head.nonce}",
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._gathering.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": body.temperature,
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": body.top_p,
            "usage": None,
        }


_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_DETAILS = {"completed": None, "incomplete": {"reason": "max_output_tokens"}}


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
