"""The clients that people have, against the gateway: they need nothing of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from outrider.errors import EngineBusy, InvalidRequest, PromptTooLong
from tests.support.clients import CHAT, HERMES, KEY, NODE, TOOL, run_program, run_python
from tests.support.fake_orchestrator import MODEL, FakeOrchestrator, ids_of
from tests.support.gateway import serving
from tests.support.lazy import Lazy

openai = Lazy("openai")

CALLING = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
)


@pytest_asyncio.fixture
async def fake() -> FakeOrchestrator:
    return FakeOrchestrator(template=HERMES)


@pytest_asyncio.fixture
async def url(fake: FakeOrchestrator) -> AsyncIterator[str]:
    async with serving(fake, api_key=KEY) as address:
        yield f"{address}/v1"


@pytest_asyncio.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as one:
        yield one


# --- openai ---


async def test_openai_chats(client: openai.AsyncOpenAI, fake: FakeOrchestrator):
    answer = await client.chat.completions.create(
        model="any", messages=CHAT, temperature=0.5, max_completion_tokens=5, seed=3
    )
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello")
    assert (choice.finish_reason, answer.model) == ("length", MODEL)
    assert answer.system_fingerprint and answer.system_fingerprint.startswith("fp_")
    assert answer.usage and answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    details = answer.usage.completion_tokens_details
    assert details and details.accepted_prediction_tokens == 4
    (request,) = fake.requests
    assert (request.sampling.temperature, request.token_limit, request.seed) == (0.5, 5, 3)


@pytest.mark.parametrize("used", [True, False], ids=["used", "not used"])
@pytest.mark.parametrize("streams", [True, False])
async def test_openai_counts_the_tokens_of_a_prediction_and_no_others(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator, streams: bool, used: bool
):
    if used:
        fake.predicted = (3, 1)
    expected: Any = {"type": "content", "content": "Hello, you"}
    asked: Any = {"model": "any", "messages": CHAT, "max_completion_tokens": 5}
    asked |= {"prediction": expected, "extra_body": {"speculative": {"policy": "fixed"}}}
    if streams:
        options: Any = {"include_usage": True}
        stream = await client.chat.completions.create(**asked, stream=True, stream_options=options)
        usage = [chunk.usage async for chunk in stream][-1]
    else:
        usage = (await client.chat.completions.create(**asked)).usage
    details = usage.completion_tokens_details if usage else None
    assert details is not None
    counts = details.accepted_prediction_tokens, details.rejected_prediction_tokens
    assert counts == (fake.predicted if used else (0, 0)), "the draft's tokens are none of it"


async def test_openai_streams_a_chat(client: openai.AsyncOpenAI, fake: FakeOrchestrator):
    chunks = []
    stream = await client.chat.completions.create(
        model="any", messages=CHAT, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        chunks.append(chunk)
    *pieces, last = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == fake.text
    reasons = [piece.choices[0].finish_reason for piece in pieces]
    assert reasons == [None] * (len(pieces) - 1) + ["stop"]
    assert last.choices == []
    assert last.usage and last.usage.completion_tokens == 15
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    extra: Any = last.model_extra
    assert extra["timings"]["draft_n_accepted"] == 10
    assert extra["metrics"]["speculative_decoding"]["num_spec_steps"] == 5


async def test_openai_without_usage_gets_no_chunk_without_choices(client: openai.AsyncOpenAI):
    stream = await client.chat.completions.create(model="any", messages=CHAT, stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


async def test_openai_gathers_a_stream_by_itself(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator
):
    async with client.chat.completions.stream(model="any", messages=CHAT) as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == fake.text


async def test_openai_gets_logprobs(client: openai.AsyncOpenAI):
    parsed: Any = {"model": "any", "messages": CHAT, "logprobs": True, "top_logprobs": 2}
    answer = await client.chat.completions.create(**parsed, stop=["wörld"])
    logprobs = answer.choices[0].logprobs
    assert logprobs and logprobs.content
    assert b"".join(bytes(each.bytes or []) for each in logprobs.content) == b"Hello, "
    assert logprobs.content[0].logprob == -0.25
    assert [top.token for top in logprobs.content[0].top_logprobs] == ["H", "x"]
    stream = await client.chat.completions.create(**parsed, stop=["wörld"], stream=True)
    streamed = []
    async for chunk in stream:
        found = chunk.choices[0].logprobs
        streamed += (found.content or []) if found else []
    assert streamed == logprobs.content


async def test_openai_gets_several_choices(client: openai.AsyncOpenAI, fake: FakeOrchestrator):
    answer = await client.chat.completions.create(model="any", messages=CHAT, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert fake.requests[0].completion_count == 3
    stream = await client.chat.completions.create(model="any", messages=CHAT, n=3, stream=True)
    texts = ["", "", ""]
    async for chunk in stream:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
    assert texts == [fake.text] * 3


async def test_openai_calls_tools(client: openai.AsyncOpenAI, fake: FakeOrchestrator):
    fake.text = CALLING
    answer = await client.chat.completions.create(model="any", messages=CHAT, tools=[TOOL])
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Köln"},
    )
    assert list(fake.templates[0].tools) == [TOOL]


async def test_openai_streams_tool_calls(client: openai.AsyncOpenAI, fake: FakeOrchestrator):
    fake.text = CALLING
    stream = await client.chat.completions.create(
        model="any", messages=CHAT, tools=[TOOL], stream=True
    )
    calls, content, reasons = [], "", []
    async for chunk in stream:
        (choice,) = chunk.choices
        calls += choice.delta.tool_calls or []
        content += choice.delta.content or ""
        reasons.append(choice.finish_reason)
    first, *parts = calls
    assert first.function and first.function.name == "weather" and first.id
    assert {each.index for each in calls} == {0}
    written = [each.function.arguments or "" for each in parts if each.function]
    assert json.loads("".join(written)) == {"city": "Köln"}
    assert len(written) > 3, "the arguments came in one piece"
    assert "tool_call" not in content and content.startswith("Let me see.")
    assert reasons[-1] == "tool_calls"


NAMED: Any = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_openai_forces_a_call(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator, choice: Any
):
    fake.text = '\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    parsed: Any = {"model": "any", "messages": CHAT, "tools": [TOOL], "tool_choice": choice}
    answer = await client.chat.completions.create(**parsed)
    (one,) = answer.choices
    assert (one.finish_reason, one.message.content) == ("tool_calls", None)
    assert one.message.tool_calls
    (call,) = one.message.tool_calls
    assert call.type == "function" and call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Köln"}
    (request,) = fake.requests
    assert list(request.prompt)[-11:] == ids_of("<tool_call>\n")[-11:]
    assert r"\"weather\"" in request.sampling.grammar
    async with client.chat.completions.stream(**parsed) as stream:
        async for event in stream:
            assert event.type != "content.delta" or not event.delta
        final = await stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.tool_calls
    assert final.choices[0].message.tool_calls[0].function.arguments == call.function.arguments


async def test_openai_is_told_of_a_forced_call_that_was_cut_off(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator
):
    fake.text = '\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    answer = await client.chat.completions.create(
        model="any", messages=CHAT, tools=[TOOL], tool_choice="required", max_tokens=12
    )
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    assert choice.message.content == "", "half a call is no text"


async def test_openai_sees_a_call_that_is_cut_off_in_a_stream(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator
):
    fake.text = CALLING
    stream = await client.chat.completions.create(
        model="any", messages=CHAT, tools=[TOOL], stream=True, max_tokens=72
    )
    arguments, content, reason = "", "", None
    async for chunk in stream:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            arguments += (call.function and call.function.arguments) or ""
        reason = choice.finish_reason or reason
    assert (content, reason) == ("Let me see.", "length")
    assert '{"city": "Köln"}'.startswith(arguments) and arguments


async def test_openai_gets_one_call_unless_several_are_wanted(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator
):
    parsed: Any = {"model": "any", "messages": CHAT, "tools": [TOOL], "tool_choice": "required"}
    for parallel in (True, False):
        await client.chat.completions.create(**parsed, parallel_tool_calls=parallel)
        assert ("<tool_call>" in fake.requests[-1].sampling.grammar) is parallel


async def test_control_tokens_that_mean_something_are_asked_for(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator
):
    fake.controls = ("<tool_call>", "</tool_call>")
    for parsed, names in (
        ({"tools": [TOOL]}, ["<tool_call>", "</tool_call>"]),
        ({"tools": [TOOL], "tool_choice": "none"}, ["<tool_call>", "</tool_call>"]),
        ({}, ["<tool_call>", "</tool_call>"]),
    ):
        request: Any = {"model": "any", "messages": CHAT, **parsed}
        await client.chat.completions.create(**request)
        assert list(fake.requests[-1].control_token_names) == names
        assert not fake.requests[-1].sampling.grammar


@pytest.mark.parametrize(
    ("parsed", "field"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"function": {"name": "time"}}, "tools": [TOOL]}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "tool_choice"),
        ({"grammar": 'root ::= "a"'}, "tool_choice"),
        ({"json_schema": {}}, "tool_choice"),
        ({"tools": [TOOL, {"function": {"name": "a b"}}]}, "tools[1].function.name"),
        (
            {"tools": [{"function": {"name": "a", "parameters": {"not": {}}}}]},
            "tools[0].function.parameters",
        ),
    ],
)
async def test_openai_is_refused_a_call_that_cannot_be_forced(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator, parsed: dict[str, Any], field: str
):
    known = {"tool_choice": "required"} | ({} if "tool_choice" in parsed else {"tools": [TOOL]})
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model="any", messages=CHAT, extra_body={**known, **parsed}
        )
    assert refused.value.param == field
    assert not fake.requests


async def test_no_call_is_forced_where_it_is_not_known_how_they_are_written(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator
):
    fake.template = "{{ tools }}"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model="any", messages=CHAT, tools=[TOOL], tool_choice="required"
        )
    assert refused.value.param == "tools"


async def test_openai_without_tools_is_told_the_text_as_it_is(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator
):
    fake.text = CALLING
    for parsed in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        answer = await client.chat.completions.create(model="any", messages=CHAT, **parsed)
        assert answer.choices[0].message.content == CALLING
        assert not fake.templates[-1].tools


async def test_openai_asks_for_json(client: openai.AsyncOpenAI, fake: FakeOrchestrator):
    schema: Any = {"type": "object", "properties": {"a": {"type": "integer"}}}
    fake.text = '{"a": 1}'
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = await client.chat.completions.create(model="any", messages=CHAT, response_format=form)
    assert json.loads(answer.choices[0].message.content or "") == {"a": 1}
    assert json.loads(fake.requests[-1].json_schema) == schema
    await client.chat.completions.create(
        model="any", messages=CHAT, response_format={"type": "json_object"}
    )
    assert json.loads(fake.requests[-1].json_schema) == {"type": "object"}


SAID: Any = [*CHAT, {"role": "assistant", "content": "Hel"}]


@pytest.mark.fault(
    "text",
    "A chat that was to be continued as vLLM's clients ask for it",
    before="`continue_final_message` was ignored: the last message was closed.",
    now="The text continues from the last message, and what contradicts that is refused by name.",
)
async def test_openai_continues_a_message_as_vllm_does(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator
):
    for continues in (True, "content"):
        parsed = {"add_generation_prompt": False, "continue_final_message": continues}
        await client.chat.completions.create(model="any", messages=SAID, extra_body=parsed)
        assert fake.templates[-1].add_generation_prompt
    for chat, refused_wish in (
        (CHAT, {"continue_final_message": True}),
        (SAID, {"continue_final_message": True, "add_generation_prompt": True}),
        (SAID, {"continue_final_message": False}),
        (SAID, {"continue_final_message": "reasoning_content"}),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(
                model="any", messages=chat, extra_body=refused_wish
            )
        assert refused.value.param == "continue_final_message"


SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.fault(
    "text",
    "vLLM's `guided_*` and `structured_outputs` were passed over",
    before="The text was what the model liked, though a schema or a choice was asked for.",
    now="Schemas, choices and grammars are kept, and what is not supported is refused by name.",
)
@pytest.mark.parametrize(
    ("parsed", "schema", "grammar"),
    [
        ({"guided_json": SCHEMA}, SCHEMA, ""),
        ({"guided_json": json.dumps(SCHEMA)}, SCHEMA, ""),
        ({"structured_outputs": {"json": SCHEMA}}, SCHEMA, ""),
        ({"structured_outputs": {"json_object": True}}, {"type": "object"}, ""),
        ({"guided_choice": ["a", 'b"\\']}, None, 'root ::= ( "a" | "b\\"\\\\" )\n'),
        ({"structured_outputs": {"choice": ["a"]}}, None, 'root ::= "a"\n'),
        ({"guided_grammar": 'root ::= "x"'}, None, 'root ::= "x"'),
    ],
)
async def test_openai_asks_for_what_vllm_takes(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator, parsed: Any, schema: Any, grammar: str
):
    await client.chat.completions.create(model="any", messages=CHAT, extra_body=parsed)
    await client.completions.create(model="any", prompt="a", extra_body=parsed)
    for request in fake.requests:
        assert (json.loads(request.json_schema) if request.json_schema else None) == schema
        assert request.sampling.grammar == grammar


@pytest.mark.parametrize(
    ("parsed", "field"),
    [
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a"], "guided_json": SCHEMA}, "guided_choice"),
        ({"guided_choice": ["a"], "grammar": 'root ::= "a"'}, "guided_choice"),
        ({"guided_choice": ["a"], "tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_openai_is_refused_what_vllm_takes_and_we_do_not(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator, parsed: Any, field: str
):
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="any", messages=CHAT, extra_body=parsed)
    assert refused.value.param == field
    assert not fake.requests


async def test_openai_completes_every_kind_of_prompt(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator
):
    prompts: list[tuple[Any, int]] = [
        ("ab", 1),
        (["ab", "c"], 2),
        ([100, 101], 1),
        ([[100], [101, 102]], 2),
    ]
    for prompt, count in prompts:
        answer = await client.completions.create(model="any", prompt=prompt, max_tokens=4)
        assert [choice.text for choice in answer.choices] == ["Hell"] * count
        stream = await client.completions.create(
            model="any", prompt=prompt, max_tokens=4, stream=True
        )
        texts = [""] * count
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == ["Hell"] * count


async def test_openai_echoes_a_prompt_with_its_logprobs(client: openai.AsyncOpenAI):
    for prompt in ("ab", [100, 101]):
        answer = await client.completions.create(
            model="any", prompt=prompt, max_tokens=2, echo=True, logprobs=1
        )
        (choice,) = answer.choices
        assert choice.text == "abHe"
        found = choice.logprobs
        assert found and found.tokens and found.text_offset
        assert "".join(found.tokens) == "abHe"
        assert found.token_logprobs and found.token_logprobs[0] is None
        assert found.token_logprobs[1:] == [-0.25] * (len(found.tokens) - 1)


async def test_openai_embeds(client: openai.AsyncOpenAI):
    for encoding in ("float", "base64"):
        answer = await client.embeddings.create(
            model="any", input=["a", "bb"], encoding_format=encoding
        )
        assert len(answer.data) == 2
    answer = await client.embeddings.create(model="any", input=["a", "bb"])
    assert answer.data[1].embedding == pytest.approx([0.8, -0.6])
    assert answer.usage.total_tokens == 3


async def test_openai_gets_responses(client: openai.AsyncOpenAI, fake: FakeOrchestrator):
    answer = await client.responses.create(model="any", input="Hi", instructions="Be brief.")
    assert (answer.output_text, answer.status) == (fake.text, "completed")
    assert fake.templates[0].chat[0]["role"] == "system"
    short = await client.responses.create(model="any", input="Hi", max_output_tokens=3)
    assert (short.output_text, short.status) == ("Hel", "incomplete")
    kinds, text = [], ""
    async with client.responses.stream(model="any", input="Hi") as stream:
        async for event in stream:
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
        final = await stream.get_final_response()
    assert text == final.output_text == fake.text
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


async def test_openai_lists_models(client: openai.AsyncOpenAI):
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-5")


async def test_openai_raises_its_own_errors(
    client: openai.AsyncOpenAI, url: str, fake: FakeOrchestrator
):
    async def chat(one: openai.AsyncOpenAI = client, **parsed: Any) -> None:
        await one.chat.completions.create(model="any", messages=CHAT, **parsed)

    with pytest.raises(openai.BadRequestError) as refused:
        await chat(extra_body={"functions": [TOOL["function"]]})
    assert refused.value.param == "functions"
    fake.error = PromptTooLong(900, 508, 512)
    with pytest.raises(openai.BadRequestError) as too_long:
        await chat()
    assert too_long.value.code == "context_length_exceeded"
    fake.error = EngineBusy("busy", 3.0)
    with pytest.raises(openai.RateLimitError) as busy:
        await chat(stream=True)
    assert busy.value.response.headers["retry-after"] == "3"
    async with openai.AsyncOpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await chat(stranger)


async def test_openai_hears_of_an_error_in_a_stream(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator
):
    fake.error, fake.error_after = EngineBusy("the target is full", 1.0), 2
    stream = await client.chat.completions.create(model="any", messages=CHAT, stream=True)
    with pytest.raises(openai.APIError, match="the target is full"):
        async for _ in stream:
            pass


async def test_openai_without_async(url: str, fake: FakeOrchestrator):
    def talk() -> tuple[str, str, str]:
        with openai.OpenAI(base_url=url, api_key=KEY) as client:
            whole = client.chat.completions.create(model="any", messages=CHAT)
            pieces = client.completions.create(model="any", prompt="a", max_tokens=-1, stream=True)
            raw = client.chat.completions.with_raw_response.create(model="any", messages=CHAT)
            return (
                whole.choices[0].message.content or "",
                "".join(piece.choices[0].text for piece in pieces),
                raw.parse().choices[0].message.content or "",
            )

    assert await asyncio.to_thread(talk) == (fake.text,) * 3


async def test_openai_passes_on_what_is_ours(client: openai.AsyncOpenAI, fake: FakeOrchestrator):
    ours = {"top_k": 5, "min_p": 0.1, "speculative": {"n_max": 3, "acceptance": "rejection"}}
    await client.chat.completions.create(model="any", messages=CHAT, extra_body=ours)
    (request,) = fake.requests
    assert (request.sampling.top_k, request.n_max) == (5, 3)


@pytest.mark.parametrize(
    ("parsed", "field", "name"),
    [
        ({"max_tokens": -5}, "token_limit", "max_tokens"),
        ({"max_completion_tokens": -5}, "token_limit", "max_completion_tokens"),
        ({"max_tokens": 5, "extra_body": {"n_predict": -5}}, "token_limit", "n_predict"),
        ({"stop": ["a"] * 20}, "stop_sequences", "stop"),
        ({"logit_bias": {"1": 5}}, "logit_bias", "logit_bias"),
        ({"logprobs": True, "top_logprobs": 99}, "logprobs.top_count", "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "json_schema", "response_format"),
        ({"temperature": -1}, "temperature", "temperature"),
        ({}, "prompt", "messages"),
    ],
)
@pytest.mark.fault(
    "others",
    "OpenAI's errors named fields of another interface",
    before="A wrong `max_tokens` was refused as `token_limit`, a wrong `stop` as `stop_sequences`.",
    now="`param` and the message have the name under which the client sent the field.",
)
async def test_openai_is_refused_a_field_by_the_name_it_sent(
    client: openai.AsyncOpenAI, fake: FakeOrchestrator, parsed: Any, field: str, name: str
):
    fake.error = InvalidRequest(field, "is wrong")
    for streams in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(
                model="any", messages=CHAT, stream=streams, **parsed
            )
        assert refused.value.param == name
        assert f"{name}: " in str(refused.value)


# --- others ---


@pytest.mark.fault(
    "others",
    "LiteLLM did not see that a prompt was longer than the context",
    before="Its context_window_fallbacks never fired: the refusal lacked the words it looks for.",
    now="OpenAI's routes answer in those words, and the next model is asked.",
)
async def test_litellm_chats_and_falls_back_to_a_model_with_more_room(
    url: str, fake: FakeOrchestrator
):
    script = """
import json, sys, litellm
litellm.telemetry = False
small, large, key = sys.argv[1:]
chat = [{"role": "user", "content": "Hi"}]
parsed = {"model": "openai/any", "messages": chat, "api_base": large, "api_key": key}
whole = litellm.completion(**parsed)
pieces = list(litellm.completion(**parsed, stream=True, stream_options={"include_usage": True}))
def model(name, url):
    params = {"model": "openai/any", "api_base": url, "api_key": key}
    return {"model_name": name, "litellm_params": params}
router = litellm.Router([model("small", small), model("large", large)],
                        context_window_fallbacks=[{"small": ["large"]}], num_retries=0)
print(json.dumps([
    whole.choices[0].message.content,
    "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices),
    whole.usage.completion_tokens,
    router.completion("small", messages=chat).choices[0].message.content,
]))
"""
    small = FakeOrchestrator()
    small.error = PromptTooLong(900, 508, 512)
    async with serving(small, api_key=KEY) as small_url:
        shown = json.loads(await run_python(script, f"{small_url}/v1", url, KEY))
    assert shown == [fake.text, fake.text, 15, fake.text]


async def test_instructor_gets_a_model_of_pydantic(url: str, fake: FakeOrchestrator):
    script = """
import json, sys, instructor, openai
from pydantic import BaseModel
class Weather(BaseModel):
    city: str
client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
parsed = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "max_retries": 0}
modes = [getattr(instructor.Mode, name) for name in sys.argv[3:]]
print(json.dumps([
    instructor.from_openai(client, mode=mode).create(response_model=Weather, **parsed).city
    for mode in modes
]))
"""
    fake.text = '{"city": "Köln"}'
    assert json.loads(await run_python(script, url, KEY, "JSON", "JSON_SCHEMA")) == ["Köln"] * 2
    fake.text = '\n{"name": "Weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    assert json.loads(await run_python(script, url, KEY, "TOOLS")) == ["Köln"]


async def test_pydantic_ai_runs_an_agent_with_a_tool(url: str, fake: FakeOrchestrator):
    script = """
import asyncio, json, sys
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
provider = OpenAIProvider(base_url=sys.argv[1], api_key=sys.argv[2])
agent = Agent(OpenAIChatModel("any", provider=provider))
called = []
@agent.tool_plain
def weather(city: str) -> str:
    called.append(city)
    return "Rain."
async def main():
    async with agent.run_stream("Hi") as streamed:
        text = "".join([part async for part in streamed.stream_text(delta=True)])
    print(json.dumps([text, called]))
asyncio.run(main())
"""
    fake.texts = ['<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>']
    assert json.loads(await run_python(script, url, KEY)) == [fake.text, ["Köln"]]


@pytest.mark.skipif(
    not (NODE / "node_modules/ai").is_dir(), reason="scripts/node-clients has not installed the SDK"
)
async def test_the_vercel_sdk_chats_and_calls_a_tool(url: str, fake: FakeOrchestrator):
    called = '\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    fake.texts = [fake.text, fake.text, called]
    said = await run_program("node", str(NODE / "vercel.mjs"), url, KEY)
    calls = [["weather", {"city": "Köln"}]]
    assert json.loads(said) == [fake.text, fake.text, calls, "tool-calls"]


async def test_langchain_chats(url: str, fake: FakeOrchestrator):
    script = """
import json, sys
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
chat = ChatOpenAI(model="any", base_url=sys.argv[1], api_key=sys.argv[2])
vectors = OpenAIEmbeddings(model="any", base_url=sys.argv[1], api_key=sys.argv[2],
                           check_embedding_ctx_length=False)
print(json.dumps([
    chat.invoke("Hi").content,
    "".join(chunk.text for chunk in chat.stream("Hi")),
    len(vectors.embed_documents(["a", "bb"])),
]))
"""
    assert json.loads(await run_python(script, url, KEY)) == [fake.text, fake.text, 2]


async def test_the_llm_tool_chats(url: str, fake: FakeOrchestrator, tmp_path: Path):
    models = [{"model_id": "outrider", "model_name": MODEL, "api_base": url, "api_key_name": "o"}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    (tmp_path / "keys.json").write_text(json.dumps({"o": KEY}))
    script = "import sys; from llm.cli import cli; cli(sys.argv[1:])"
    for flags in ([], ["--no-stream"]):
        words = ("prompt", "Hi", "-m", "outrider", "-n", *flags)
        said = await run_python(script, *words, LLM_USER_PATH=str(tmp_path))
        assert said.strip() == fake.text
