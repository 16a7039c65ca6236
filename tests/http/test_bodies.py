"""Bodies of megabytes are read without stopping the event loop."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.bodies import LARGE_BYTES
from gateway.body_fields import MOST_NUMBERS, MOST_VALUES, Body
from outrider.json_text import MOST_LISTS, parse
from outrider.request import Request
from outrider.response import Event
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.gateway import serving
from tests.support.hostile import Vitals


class ShortSighted(FakeOrchestrator):
    """Sees the first character of a prompt: what it does with a prompt is not measured here."""

    async def _generate(self, request: Request) -> AsyncGenerator[Event]:
        async for response in super()._generate(replace(request, prompt=request.prompt[:1] or "a")):
            yield response


VALUES: list[Any] = [
    {"a": [1, -2.5e3, True, None, "ä\n\U0001f600", {"b": []}]},
    [[i, 0.5] for i in range(100)],
    "text",
    12,
]


@pytest.mark.parametrize("value", VALUES)
def test_it_reads_what_json_reads(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert parse(text) == value


@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"a" 1}', "[1] 2", "nul"])
def test_it_refuses_what_json_refuses(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse(text)


def _filled(item: Any, path: str = "/completion", **fields: Any) -> tuple[str, bytes]:
    """Return a body of up to 4 MB: its field of value `...` is a list of the same item.

    Of numbers it holds as many as may be.
    """
    size = len(json.dumps(item)) + 2
    items = [item] * min(4_000_000 // size, MOST_NUMBERS)
    body = {name: items if value is ... else value for name, value in fields.items()}
    return path, json.dumps(body).encode()


LARGE = {
    "one text": ("/completion", json.dumps({"prompt": "x" * 4_000_000, "n_predict": 2}).encode()),
    "ids": _filled(5, prompt=..., n_predict=2),
    "prompts": _filled([5], prompt=..., n_predict=2),
    "wrong ids": _filled(2**31, prompt=...),
    "wrong stops": _filled(2**31, prompt="a", stop_token_ids=...),
    "wrong biases": _filled(None, prompt="a", logit_bias=...),
    "biases": _filled([5, 1.0], prompt="a", logit_bias=...),
    "messages": _filled({"role": "user", "content": "x" * 1000}, "/v1/messages", messages=...),
    "wrong messages": _filled(5, "/v1/chat/completions", messages=...),
    "tools": _filled({"type": "function"}, "/v1/chat/completions", messages=[], tools=...),
    "schema": _filled({"const": 1}, prompt="a", json_schema={"oneOf": []}, x=...),
    "nesting": ("/completion", b'{"x":' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}"),
    "ids to show": _filled(5, "/detokenize", tokens=...),
    "wrong inputs": _filled(None, "/v1/embeddings", input=...),
}


@pytest.mark.fault(
    "hang",
    "a body of megabytes, with any content",
    before="checking it stopped everybody's streams for 0.1 to 12 s",
    now="it is read and checked in a thread, counted, and refused at its first error",
)
@pytest.mark.parametrize("kind", LARGE)
async def test_the_loop_runs_while_a_large_body_is_read(kind: str) -> None:
    path, body = LARGE[kind]
    async with (
        serving(ShortSighted()) as url,
        httpx.AsyncClient(timeout=60) as client,
        Vitals(time.process_time) as vitals,
    ):
        answer = await client.post(f"{url}{path}", content=body)
    assert answer.status_code in (200, 400)
    assert vitals.longest_block < 0.25


async def test_large_bodies_are_answered_like_small_ones() -> None:
    async with serving() as url, httpx.AsyncClient(timeout=20) as client:
        for size in (1, LARGE_BYTES + 1):
            padding = " " * size
            good = f'{{"prompt": "a", "n_predict": 2{padding}}}'
            assert (await client.post(f"{url}/completion", content=good)).status_code == 200
            bad = f'{{"prompt": "a"{padding}'
            assert (await client.post(f"{url}/completion", content=bad)).status_code == 400


@pytest.mark.parametrize(
    "field",
    [
        {"x": [[0.5]] * MOST_LISTS},
        {"prompt": [1] * (2**18 + 1)},
        {"x": {str(i): 1 for i in range(MOST_VALUES // 2 + 1)}},
    ],
    ids=["lists", "ids", "names"],
)
async def test_a_body_of_too_many_values_is_refused(field: dict[str, Any]) -> None:
    async with serving() as url, httpx.AsyncClient(timeout=20) as client:
        answer = await client.post(
            f"{url}/completion", json={"prompt": "a", "n_predict": 2} | field
        )
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith("the body holds more than")


async def test_an_hour_of_an_agents_calls_is_no_body_of_too_many_values() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    turn = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    parameter = {"type": "string", "description": "What it is.", "enum": ["a", "b", "c"]}
    schema = {"type": "object", "properties": {f"p{i}": parameter for i in range(10)}}
    tool = {"type": "function", "function": {"name": "run", "parameters": schema}}
    body = {"messages": turn * 2000, "tools": [tool] * 500}
    async with serving() as url, httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{url}/apply-template", json=body)
    assert answer.status_code == 200


def _models(kind: type[Body]) -> list[type[Body]]:
    return [kind, *(inner for each in kind.__subclasses__() for inner in _models(each))]


def _lists(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the lists in a schema of pydantic's core."""
    for inner in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(inner, dict | list | tuple):
            yield from _lists(inner)
    if isinstance(schema, dict) and schema.get("type") == "list":
        yield schema


def test_every_list_of_a_body_stops_at_its_first_error() -> None:
    lists = [
        (kind, each) for kind in _models(Body) for each in _lists(kind.__pydantic_core_schema__)
    ]
    assert len(lists) > 20
    assert [kind.__name__ for kind, each in lists if not each.get("fail_fast")] == []


@pytest.mark.fault(
    "hang",
    "an answer of megabytes, such as the log probabilities of thousands of tokens",
    before="writing its JSON stopped everybody's streams, for 0.5 s with 7 MB",
    now="it is written in a thread that gives way",
)
async def test_the_loop_runs_while_a_large_answer_is_written() -> None:
    async with (
        serving(FakeOrchestrator("x" * 4000)) as url,
        httpx.AsyncClient(timeout=60) as client,
        Vitals(time.process_time) as vitals,
    ):
        wanted = {"prompt": "a", "n_probs": 20, "n_cmpl": 4}
        answer = await client.post(f"{url}/completion", json=wanted)
    assert len(answer.content) > 2_000_000
    assert vitals.longest_block < 0.2
