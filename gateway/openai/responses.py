"""Answers and typed events of OpenAI's responses API. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.accumulator import Addition, Completion
from gateway.openai.answers import finish_reason
from gateway.openai.requests import Ask
from gateway.openai.response_input import OfferedTools, ResponseBody, text_of_call
from gateway.turns import TurnStream
from gateway.usage import acceptance_metrics, timings, usage
from orchestrator.chat.events import Arguments, CallBegun, CallEnded, Content, Thought, TurnEvent
from outrider.response import Event, Finished


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What names an answer, and when it began."""

    nonce: str
    created: int


class ResponseAnswer:
    """An answer as events, numbered in their order: one item after the other.

    A whole answer is what the last event holds.
    """

    def __init__(
        self, head: ResponseHead, body: ResponseBody, offered: OfferedTools, ask: Ask
    ) -> None:
        self._head = head
        self._body = body
        self._offered = offered
        self.gathering = ask.gathering()
        self._turn = TurnStream(ask.reading, 0, "call", head.nonce)
        self._number = -1
        self._items: list[dict[str, Any]] = []  # those that ended
        self._begun_count = 0
        self._item: dict[str, Any] = {}  # the last that began, which is open if `_is_open`
        self._text = ""  # of it
        self._is_open = False

    def whole(self) -> dict[str, Any]:
        """Return the answer once everything is finished."""
        (completion,) = self.gathering.completions
        events = self._turn.add(Addition(tuple(completion.pieces), ()))
        *_, last = self._finish(events, completion)
        response: dict[str, Any] = last["response"]
        return response

    def events(self, prompt: int, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the events that an event of the orchestrator becomes."""
        addition = self.gathering.add(prompt, event)
        if addition is None:
            begun = self._response("in_progress")
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
            return
        shown = self._turn.add(addition)
        if isinstance(event, Finished):
            yield from self._finish(shown, self.gathering.completions[0])
            return
        for each in shown:
            yield from self._show(each)

    def _finish(self, events: list[TurnEvent], completion: Completion) -> Iterator[dict[str, Any]]:
        for event in (*events, *self._turn.finish(completion)):
            yield from self._show(event)
        yield from self._end(completion)

    def _show(self, event: TurnEvent) -> Iterator[dict[str, Any]]:
        match event:
            case Thought(text):
                yield from self._begin_text("reasoning", {"summary": []})
                yield self._delta("response.reasoning_text.delta", text, content_index=0)
            case Content(text):
                yield from self._begin_text("message", {"role": "assistant"})
                yield self._delta("response.output_text.delta", text, content_index=0, logprobs=[])
            case CallBegun(name, id_):
                yield from self._begin(self._offered.item_of(name, id_))
            case Arguments(text) if self._item["type"] == "function_call":
                yield self._delta("response.function_call_arguments.delta", text)
            case Arguments(text):
                self._text += text  # of which the client gets what is in it, once it is whole
            case CallEnded(is_sound=False):
                self._is_open = False  # and never ends: a client calls what has ended

    def _begin_text(self, kind: str, members: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the begin of an item with a text, unless the last one is of this kind."""
        if self._is_open and self._item["type"] == kind:
            return
        yield from self._begin({"type": kind, **members, "content": []})
        part = _part(kind, "")
        yield self._event("response.content_part.added", **self._place(content_index=0), part=part)

    def _begin(self, members: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._end_item("completed")
        id_ = f"{_PREFIXES[members['type']]}_{self._head.nonce}_{self._begun_count}"
        self._item = {"id": id_, "status": "in_progress", **members}
        self._text, self._is_open = "", True
        self._begun_count += 1
        index = self._begun_count - 1
        yield self._event("response.output_item.added", output_index=index, item=self._item)

    def _delta(self, kind: str, text: str, **members: Any) -> dict[str, Any]:
        self._text += text
        return self._event(kind, **self._place(**members), delta=text)

    def _end_item(self, status: str) -> Iterator[dict[str, Any]]:
        if not self._is_open:
            return
        self._is_open = False
        item, text = {**self._item, "status": status}, self._text
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._event(
                "response.function_call_arguments.done",
                **self._place(),
                name=item["name"],
                arguments=text,
            )
        elif item["type"] == "custom_tool_call":
            item["input"] = text = text_of_call(text)
            yield self._event("response.custom_tool_call_input.delta", **self._place(), delta=text)
            yield self._event("response.custom_tool_call_input.done", **self._place(), input=text)
        else:
            place, part = self._place(content_index=0), _part(item["type"], text)
            item["content"] = [part]
            if item["type"] == "message":
                yield self._event("response.output_text.done", **place, text=text, logprobs=[])
            else:
                yield self._event("response.reasoning_text.done", **place, text=text)
            yield self._event("response.content_part.done", **place, part=part)
        self._items.append(item)
        index = self._begun_count - 1
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _end(self, completion: Completion) -> Iterator[dict[str, Any]]:
        assert completion.finished is not None
        status = "completed" if finish_reason(completion.finished) == "stop" else "incomplete"
        if not self._items and not self._is_open:  # it has said nothing
            yield from self._begin_text("message", {"role": "assistant"})
        yield from self._end_item(status)
        counted = usage(self.gathering.started, self.gathering.statistics)
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
            "item_id": self._item["id"],
            "output_index": self._begun_count - 1,
            **members,
        }

    def _event(self, kind: str, **members: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **members}

    def _response(self, status: str) -> dict[str, Any]:
        body = self._body
        sampling = {name: getattr(body, name) for name in ("temperature", "top_p")}
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
            "model": self.gathering.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": sampling["temperature"],
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": sampling["top_p"],
            "usage": None,
        }


_PREFIXES = {
    "reasoning": "rs",
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
_DETAILS = {"completed": None, "incomplete": {"reason": "max_output_tokens"}}


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
