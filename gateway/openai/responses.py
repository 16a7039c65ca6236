"""OpenAI's responses API, text only: request bodies, answers and typed events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from gateway.gathering import Completion, Gathering
from gateway.openai.answers import finish_reason
from gateway.openai.requests import ResponseFormat, SchemaFormat, schema_of
from gateway.options import Body, GenerationFields, Int32, ListOf, generate_request, refuse
from gateway.usage import acceptance_metrics, timings, usage
from outrider.errors import InvalidRequest
from outrider.v1 import orchestrator_service_pb2 as messages

_TEXT_PARTS = ("input_text", "output_text", "text")


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


class ResponseBody(GenerationFields):
    """The body of /v1/responses."""

    input: str | ListOf[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Int32 | None = None
    text: TextOptions | None = None
    metadata: dict[str, Any] | None = None
    tools: ListOf[Any] | None = None
    tool_choice: Any = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = Field(None, description="Not supported: stored prompts are OpenAI's.")


def read_template(body: ResponseBody) -> messages.ApplyTemplateRequest:
    """Return how to render the input. Raises InvalidRequest for what is not supported."""
    refuse(
        body,
        tools=([],),
        tool_choice=("auto", "none"),
        previous_response_id=(),
        conversation=(),
        background=(False,),
        prompt=(),
    )
    return messages.ApplyTemplateRequest(messages_json=json.dumps(list(_messages(body))))


def read_request(body: ResponseBody, prompt: Sequence[int]) -> messages.GenerateRequest:
    """Return what to generate. Raises InvalidRequest."""
    limit = -1 if body.max_output_tokens is None else body.max_output_tokens
    request = generate_request(body, token_limit=limit)
    if body.text and body.text.format:
        schema = schema_of(body.text.format.as_response_format())
        if schema is not None:
            request.json_schema = json.dumps(schema)
    request.prompt_tokens.token_ids.extend(prompt)
    return request


def _messages(body: ResponseBody) -> Iterator[dict[str, Any]]:
    if body.instructions:
        yield {"role": "system", "content": body.instructions}
    if isinstance(body.input, str):
        yield {"role": "user", "content": body.input}
        return
    for item in body.input:
        if item.get("type", "message") != "message":
            raise InvalidRequest("input", "may hold messages only")
        yield {"role": item.get("role"), "content": _text_of(item.get("content"))}


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest("input", "a message needs content, as text")
    texts = []
    for part in content:
        is_text = isinstance(part, dict) and part.get("type") in _TEXT_PARTS
        if not is_text or not isinstance(part.get("text"), str):
            raise InvalidRequest("input", "content may hold text only")
        texts.append(part["text"])
    return "".join(texts)


@dataclass(frozen=True, slots=True)
class Head:
    """What names an answer, and the one message in it."""

    response_id: str
    message_id: str
    created: int


def answer(head: Head, body: ResponseBody, gathering: Gathering) -> dict[str, Any]:
    """Return the answer once everything is finished."""
    (completion,) = gathering.completions
    assert completion.finished is not None
    counted = usage(gathering.started, gathering.statistics)
    is_whole = finish_reason(completion.finished) == "stop"
    return {
        **_response(head, body, gathering.model, "completed" if is_whole else "incomplete"),
        "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
        "output": [_message(head, _status(completion), [_part(completion.text)])],
        "usage": {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": counted["prompt_tokens_details"],
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counted["total_tokens"],
        },
        "timings": timings(completion.finished.statistics),
        "metrics": acceptance_metrics(completion.finished.statistics),
    }


class Events:
    """The events of a streamed answer, numbered in their order."""

    def __init__(self, head: Head, body: ResponseBody) -> None:
        self._head = head
        self._body = body
        self._gathering = Gathering(1, 1)
        self._number = -1

    def add(self, response: messages.GenerateResponse) -> Iterator[dict[str, Any]]:
        """Yield the events that a message becomes."""
        addition = self._gathering.add(0, response)
        if addition is None:
            yield from self._begin()
            return
        if addition.text:
            yield self._event(
                "response.output_text.delta", **self._place(), delta=addition.text, logprobs=[]
            )
        if response.WhichOneof("event") == "finished":
            yield from self._end()

    def _begin(self) -> Iterator[dict[str, Any]]:
        response = _response(self._head, self._body, self._gathering.model, "in_progress")
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)
        item = _message(self._head, "in_progress", [])
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **self._place(), part=_part(""))

    def _end(self) -> Iterator[dict[str, Any]]:
        (completion,) = self._gathering.completions
        text, part = completion.text, _part(completion.text)
        yield self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._place(), part=part)
        item = _message(self._head, _status(completion), [part])
        yield self._event("response.output_item.done", output_index=0, item=item)
        whole = answer(self._head, self._body, self._gathering)
        yield self._event(f"response.{whole['status']}", response=whole)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._head.message_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **members: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **members}


def _response(head: Head, body: ResponseBody, model: str, status: str) -> dict[str, Any]:
    return {
        "id": head.response_id,
        "object": "response",
        "created_at": head.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": False,
        "temperature": body.temperature,
        "tool_choice": "none",
        "tools": [],
        "top_p": body.top_p,
        "usage": None,
    }


def _message(head: Head, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.message_id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def _status(completion: Completion) -> str:
    assert completion.finished is not None
    return "completed" if finish_reason(completion.finished) == "stop" else "incomplete"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
