"""Anthropic's own client against the gateway, and what a turn of its messages becomes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from outrider.errors import EngineBusy, PromptTooLong
from tests.support.clients import CHAT, HERMES, KEY
from tests.support.fake_orchestrator import MODEL, FakeOrchestrator, ids_of
from tests.support.gateway import serving
from tests.support.lazy import Lazy

anthropic = Lazy("anthropic")

TOOL: Any = {
    "name": "weather",
    "description": "Reports the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALLING = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
)
WISH: Any = {"model": "any", "max_tokens": 400, "messages": CHAT}


@pytest_asyncio.fixture
async def fake() -> FakeOrchestrator:
    return FakeOrchestrator(template=HERMES)


@pytest_asyncio.fixture
async def client(fake: FakeOrchestrator) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with (
        serving(fake, api_key=KEY) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as one,
    ):
        yield one


def streamed(client: anthropic.AsyncAnthropic, **parsed: Any) -> Any:
    return client.messages.stream(**WISH | parsed)


async def test_a_header_that_changes_in_every_request_is_not_in_the_prompt(
    fake: FakeOrchestrator, client: anthropic.AsyncAnthropic
):
    header = "x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={};"
    for changed in ("00000", "11111"):
        blocks = [header.format(changed), "You are a coding agent."]
        system: Any = [{"type": "text", "text": text} for text in blocks]
        await client.messages.create(**WISH, system=system)
    first, second = (request.prompt for request in fake.requests)
    assert list(first) == list(second)
    [message, _] = fake.templates[0].chat
    assert message["content"] == [{"type": "text", "text": "You are a coding agent."}]


async def test_a_chat_is_answered(client: anthropic.AsyncAnthropic, fake: FakeOrchestrator):
    samplers = {"temperature": 0.5, "top_k": 5}
    parsed = {"system": "Be brief.", "metadata": {"user_id": "a"}, "extra_body": samplers}
    answer = await client.messages.create(**WISH | parsed)
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text == fake.text
    assert (answer.role, answer.model, answer.type) == ("assistant", MODEL, "message")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    (request,), (template,) = fake.requests, fake.templates
    prompt_count = len(request.prompt)
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (prompt_count - 1, 1)
    assert usage.output_tokens == len(ids_of(fake.text)) + 1
    assert (request.token_limit, request.sampling.top_k) == (400, 5)
    assert request.sampling.temperature == 0.5
    assert template.chat[0] == {"role": "system", "content": "Be brief."}


async def test_a_chat_is_streamed(client: anthropic.AsyncAnthropic, fake: FakeOrchestrator):
    whole = await client.messages.create(**WISH)
    async with streamed(client) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert final.content[0].text == fake.text
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)


@pytest.mark.parametrize("streams", [False, True])
async def test_tools_are_called(
    client: anthropic.AsyncAnthropic, fake: FakeOrchestrator, streams: bool
):
    fake.text = CALLING
    if streams:
        parts = []
        async with streamed(client, tools=[TOOL]) as stream:
            async for event in stream:
                if event.type == "input_json":
                    parts.append(event.partial_json)
            answer = await stream.get_final_message()
        assert len(parts) > 3, "the input came in one piece"
    else:
        answer = await client.messages.create(**WISH, tools=[TOOL])
    text, call = answer.content
    assert (text.type, text.text.strip()) == ("text", "Let me see.")
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": "Köln"})
    assert call.id.startswith("toolu_")
    assert answer.stop_reason == "tool_use"
    (given,) = list(fake.templates[0].tools)
    assert given["function"]["parameters"] == TOOL["input_schema"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
async def test_a_call_is_forced(
    client: anthropic.AsyncAnthropic, fake: FakeOrchestrator, choice: Any
):
    fake.text = '\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    answer = await client.messages.create(**WISH, tools=[TOOL], tool_choice=choice)
    (call,) = answer.content
    assert (call.type, call.input) == ("tool_use", {"city": "Köln"})
    assert fake.requests[0].sampling.grammar


async def test_the_end_has_its_reason(client: anthropic.AsyncAnthropic, fake: FakeOrchestrator):
    for parsed, reason, stop in (
        ({"max_tokens": 3}, "max_tokens", None),
        ({"stop_sequences": ["wör", "zzz"]}, "stop_sequence", "wör"),
    ):
        answer = await client.messages.create(**WISH | parsed)
        async with streamed(client, **parsed) as stream:
            final = await stream.get_final_message()
        assert (answer.stop_reason, answer.stop_sequence) == (reason, stop)
        assert (final.stop_reason, final.stop_sequence) == (reason, stop)
        assert final.content[0].text == answer.content[0].text


async def test_tokens_are_counted_as_they_are_read(
    client: anthropic.AsyncAnthropic, fake: FakeOrchestrator
):
    counted = await client.messages.count_tokens(model="any", messages=CHAT, system="Be brief.")
    assert not fake.requests
    await client.messages.create(**WISH, system="Be brief.")
    assert counted.input_tokens == len(fake.requests[0].prompt)


async def test_a_turn_of_blocks_becomes_messages(
    client: anthropic.AsyncAnthropic, fake: FakeOrchestrator
):
    chat: Any = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "a"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "Rain."}],
                },
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    await client.messages.create(**WISH | {"messages": chat}, tools=[TOOL])
    _, said, result, asked = fake.templates[0].chat
    (call,) = said["tool_calls"]
    assert (call["id"], json.loads(call["function"]["arguments"])) == ("toolu_1", {"city": "a"})
    assert said["content"] == [{"type": "text", "text": "Let me see."}]
    assert said["reasoning_content"] == "Hm."
    assert (result["role"], result["tool_call_id"]) == ("tool", "toolu_1")
    assert result["content"] == [{"type": "text", "text": "Rain."}]
    assert asked == {"role": "user", "content": [{"type": "text", "text": "And?"}]}


async def test_a_schema_for_the_text_is_kept(
    client: anthropic.AsyncAnthropic, fake: FakeOrchestrator
):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    config: Any = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    await client.messages.create(**WISH, extra_body=config)
    assert json.loads(fake.requests[0].json_schema) == schema


@pytest.mark.parametrize(
    ("parsed", "field"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content[0].text"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"mcp_servers": [{"name": "a"}]}, "mcp_servers"),
        ({"max_tokens": None}, "max_tokens"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    client: anthropic.AsyncAnthropic, fake: FakeOrchestrator, parsed: Any, field: str
):
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.messages.create(**WISH, extra_body=parsed)
    error: Any = refused.value.body
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert field in error["error"]["message"]
    assert not fake.requests


async def test_errors_have_the_form_that_the_client_reads(
    client: anthropic.AsyncAnthropic, fake: FakeOrchestrator
):
    for error, kind, message in (
        (
            PromptTooLong(900, 508, 512),
            anthropic.BadRequestError,
            "prompt is too long: 900 tokens >",
        ),
        (EngineBusy("full", retry_seconds=2), anthropic.RateLimitError, "full"),
    ):
        fake.error = error
        with pytest.raises(kind, match=message):
            await client.messages.create(**WISH)
        with pytest.raises(kind, match=message):
            async with streamed(client):
                pass
    fake.error = PromptTooLong(900, 508, 512)
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.messages.create(**WISH)
    told: Any = refused.value.body
    assert (told["error"]["n_prompt_tokens"], told["error"]["n_ctx"]) == (900, 512)
    fake.error, fake.error_after = EngineBusy("full", retry_seconds=2), 2
    with pytest.raises(anthropic.APIStatusError, match="full"):
        async with streamed(client) as stream:
            await stream.get_final_message()
    with pytest.raises(anthropic.AuthenticationError):
        await client.with_options(api_key="another").messages.create(**WISH)


async def test_chats_are_counted_under_openai_s_name_too(fake: FakeOrchestrator):
    async with serving(fake) as url, httpx.AsyncClient(base_url=url) as http:
        for path in ("/chat/completions", "/v1/chat/completions"):
            counted = await http.post(f"{path}/input_tokens", json={"messages": CHAT})
            answer = await http.post(path, json={"messages": CHAT, "max_tokens": 1})
            assert counted.json() == {
                "object": "response.input_tokens",
                "input_tokens": answer.json()["usage"]["prompt_tokens"],
            }
