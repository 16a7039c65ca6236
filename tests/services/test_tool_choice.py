"""Calls that must come, from real models through the gateway, with and without a draft."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from tests.support.gateway import serving
from tests.support.lazy import Lazy
from tests.support.schemas import is_valid
from tests.support.services import (
    DRAFT,
    PATIENCE,
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    generate,
    request,
    running,
)
from tests.support.tiny_gguf import Shape, Vocabulary, write_model

openai = Lazy("openai")

CONTROL = "<tool_call>"
CONTROL_ID, EOS = 2, 1
CHAT: Any = [{"role": "user", "content": "Go."}]
RIDE: dict[str, Any] = {
    "$defs": {"count": {"type": "integer", "minimum": 1, "maximum": 99}},
    "type": "object",
    "properties": {"miles": {"$ref": "#/$defs/count"}, "gait": {"enum": ["walk", "trot"]}},
    "required": ["miles"],
    "additionalProperties": False,
}
REST: dict[str, Any] = {
    "type": "object",
    "properties": {"hours": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
    "required": ["hours"],
    "additionalProperties": False,
}
SCHEMAS = {"ride": RIDE, "rest": REST}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "rest"}}
CHAT_TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool.function.name }} {% endfor %}
{%- for message in messages %}{{ message.content }} {% set calls = message.tool_calls or [] %}
{%- if calls %}%FIRST%{% for call in calls %}{% set f = call.function %}%CALL%
{{- %NEXT% if not loop.last }}{% endfor %}%LAST%{% endif %}{% endfor %}"""
JSON = '{"name": "{{ f.name }}", "KEY": {{ f.arguments | tojson }}}'
FORMS = {
    # what stands before the calls, one of them, between them, after them
    "hermes": ("", "<tool_call>\n" + JSON.replace("KEY", "arguments") + "\n</tool_call>", "\n", ""),
    "list": ("[TOOL_CALLS][", JSON.replace("KEY", "arguments"), ", ", "]"),
    "named": ("", "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}", "", ""),
    "function": ("", "<function={{ f.name }}>{{ f.arguments | tojson }}</function>", "", ""),
    "bare": ("", JSON.replace("KEY", "parameters"), "; ", ""),
    "parameters": (
        "",
        "<tool_call>{{ f.name }}{% for name, value in f.arguments.items() %}<arg_key>{{ name }}"
        "</arg_key><arg_value>{{ value if value is string else value | tojson }}</arg_value>"
        "{% endfor %}</tool_call>",
        "",
        "",
    ),
}


def load(path: Path) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=512,
            sequence_count=4,
            thread_count=1,
            pad_multiple=1,
            batch_rows=128,
        )
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[ModelProcess, ModelProcess]]:
    """Target and draft of one file, in which a mark is a control token."""
    path = write_model(
        tmp_path_factory.mktemp("models") / "target.gguf",
        shape=Shape(layers=1),
        vocabulary=Vocabulary(changed={CONTROL_ID: CONTROL}),
    )
    async with (
        running(ModelProcess(TARGET, lambda: load(path))) as target,
        running(ModelProcess(DRAFT, lambda: load(path))) as draft,
    ):
        yield target, draft


Pair = tuple[ModelProcess, ModelProcess]


@asynccontextmanager
async def chatting(pair: Pair, form: str) -> AsyncIterator[openai.AsyncOpenAI]:
    target, draft = pair
    first, call, between, last = FORMS[form]
    template = CHAT_TEMPLATE.replace("%FIRST%", first).replace("%CALL%", call)
    template = template.replace("%NEXT%", json.dumps(between)).replace("%LAST%", last)
    async with (
        running(
            OrchestratorProcess(target.address, draft.address, chat_template=template)
        ) as orchestrator,
        serving(orchestrator.orchestrator) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        await orchestrator.until_ready()
        yield client


async def ask(client: openai.AsyncOpenAI, **wish: Any) -> Any:
    return await client.chat.completions.create(
        model="any", messages=CHAT, tools=TOOLS, max_tokens=400, **wish
    )


def read_calls(calls: Any) -> list[tuple[str, Any]]:
    return [(each.function.name, json.loads(each.function.arguments)) for each in calls]


def gathered(deltas: Any) -> tuple[str, Any]:
    """Return the one call that a stream brought in parts."""
    first, *rest = [each.function for each in deltas]
    assert first.name and {each.index for each in deltas} == {0}
    return first.name, json.loads("".join(each.arguments for each in [first, *rest]))


def check(name: str, arguments: Any) -> None:
    assert is_valid(arguments, SCHEMAS[name]), arguments


@pytest.mark.parametrize("form", FORMS)
async def test_a_call_that_must_come_comes_and_a_draft_changes_nothing(
    pair: Pair, form: str
) -> None:
    async with chatting(pair, form) as client:
        for seed, choice in enumerate(("required", "required", NAMED)):
            seen = []
            for enabled in (True, False):
                body = {"speculative": {"enabled": enabled}}
                answer = await ask(client, tool_choice=choice, seed=seed, extra_body=body)
                (one,) = answer.choices
                assert (one.finish_reason, one.message.content) == ("tool_calls", None)
                assert ("draft_n" in answer.timings) is enabled
                ((name, arguments),) = read_calls(one.message.tool_calls)
                check(name, arguments)
                assert choice == "required" or name == "rest"
                seen.append((name, arguments))
            assert seen[0] == seen[1]


@pytest.mark.parametrize("form", FORMS)
async def test_a_call_that_must_come_is_streamed(pair: Pair, form: str) -> None:
    async with chatting(pair, form) as client:
        calls, reasons = [], []
        async for chunk in await ask(client, tool_choice="required", seed=5, stream=True):
            (choice,) = chunk.choices
            assert not choice.delta.content
            calls += choice.delta.tool_calls or []
            reasons.append(choice.finish_reason)
        name, arguments = gathered(calls)
        check(name, arguments)
        assert (calls[0].index, reasons[-1]) == (0, "tool_calls")


async def test_several_calls_may_come_where_that_is_said(pair: Pair) -> None:
    counts = set()
    async with chatting(pair, "hermes") as client:
        # The control token rather than its letters; the end of the text less often.
        biases = {str(CONTROL_ID): 50, str(EOS): -1}
        for seed in range(8):
            answer = await ask(
                *(client,),
                **{"tool_choice": "required", "parallel_tool_calls": True},
                **{"seed": seed, "logit_bias": biases},
            )
            (choice,) = answer.choices
            calls = read_calls(choice.message.tool_calls or [])
            for call in calls:
                check(*call)
            if choice.finish_reason == "tool_calls":
                assert choice.message.content is None
                counts.add(len(calls))
    assert counts > {1}


async def test_control_tokens_are_reported_by_name_where_they_are_asked_for(pair: Pair) -> None:
    asked = request("Go.", seed=5)
    asked.sampling.logit_biases.add(token_id=CONTROL_ID, bias=8)
    target, draft = pair
    async with running(OrchestratorProcess(target.address, draft.address)) as orchestrator:
        await orchestrator.until_ready()
        plain = await generate(orchestrator, asked)
        asked.control_token_names.extend([CONTROL, "</s>", "<unknown>", "e"])
        deltas = [
            response.delta
            async for response in orchestrator.stub.Generate(asked, timeout=PATIENCE)
            if response.HasField("delta")
        ]
    pieces = [piece for delta in deltas for piece in delta.pieces]
    assert [token_id for delta in deltas for token_id in delta.token_ids] == plain.token_ids
    assert "".join(piece.text for piece in pieces if not piece.control) == plain.text
    named = [piece.text for piece in pieces if piece.control]
    assert named == [CONTROL] * plain.token_ids.count(CONTROL_ID)
    assert 0 < len(named) < len(plain.token_ids)


WRITTEN = 'root ::= "Well. <tool_call>{\\"name\\": \\"rest\\", \\"arguments\\": {}}</tool_call>"'


async def test_a_mark_that_is_a_control_token_opens_a_call_and_its_letters_none(
    pair: Pair,
) -> None:
    async with chatting(pair, "hermes") as client:
        wish = {"logit_bias": {str(CONTROL_ID): 50}, "extra_body": {"grammar": WRITTEN}}
        answer = await ask(client, **wish)
        (choice,) = answer.choices
        assert choice.message.content == "Well. "
        assert read_calls(choice.message.tool_calls) == [("rest", {})]
        content, calls = "", []
        async for chunk in await ask(client, **wish, stream=True):
            content += chunk.choices[0].delta.content or ""
            calls += chunk.choices[0].delta.tool_calls or []
        assert (content, gathered(calls)) == ("Well. ", ("rest", {}))
        wish["logit_bias"] = {str(CONTROL_ID): -100}
        (choice,) = (await ask(client, **wish)).choices
        assert choice.message.content.startswith("Well. <tool_call>{")
        assert choice.message.tool_calls is None


async def test_a_control_token_that_is_not_understood_is_text_and_ends_none(pair: Pair) -> None:
    grammar = {"grammar": 'root ::= "Up <tool_call> and </tool_call> on"'}
    async with chatting(pair, "hermes") as client:
        wish = {"logit_bias": {str(CONTROL_ID): 50}, "extra_body": grammar}
        for stop in ([], ["<tool_call>"], ["tool_call> and"]):
            answer = await ask(client, **wish, stop=stop, logprobs=True)
            (choice,) = answer.choices
            assert choice.message.content == "Up <tool_call> and </tool_call> on"
            assert choice.message.tool_calls is None
        free = await client.chat.completions.create(model="any", messages=CHAT, **wish)
        assert free.choices[0].message.content == "Up <tool_call> and </tool_call> on"
