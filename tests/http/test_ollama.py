"""Ollama's own client against the gateway, and what others of its clients ask for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway import ollama as shapes
from outrider.errors import EngineBusy, InvalidRequest, PromptTooLong
from outrider.v1 import common_pb2 as common
from tests.support import chat_formats
from tests.support.clients import CHAT, HERMES, KEY, NODE, TOOL, run_program, run_python
from tests.support.fake_orchestrator import MODEL, FakeOrchestrator, ids_of
from tests.support.gateway import serving
from tests.support.lazy import Lazy

ollama = Lazy("ollama")

HEADERS = {"Authorization": f"Bearer {KEY}"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
SECOND = 10**9  # ns


@pytest_asyncio.fixture
async def fake() -> FakeOrchestrator:
    return FakeOrchestrator(template=HERMES)


@pytest_asyncio.fixture
async def url(fake: FakeOrchestrator) -> AsyncIterator[str]:
    async with serving(fake, api_key=KEY) as address:
        yield address


@pytest_asyncio.fixture
async def client(url: str) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(url, headers=HEADERS) as one:
        yield one


@pytest_asyncio.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, headers=HEADERS) as one:
        yield one


async def lines(http: httpx.AsyncClient, path: str, **body: Any) -> list[dict[str, Any]]:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


# --- chats and prompts ---


async def test_a_chat_is_answered(client: ollama.AsyncClient, fake: FakeOrchestrator):
    options = {"temperature": 0.5, "top_k": 5, "num_predict": 400, "seed": 3, "num_ctx": 4096}
    options |= {"repeat_penalty": 1.1, "min_p": 0.1, "stop": ["zzz"], "num_keep": 4}
    answer = await client.chat(model=MODEL, messages=CHAT, options=options, keep_alive="5m")
    assert (answer.message.role, answer.message.content) == ("assistant", fake.text)
    assert (answer.model, answer.done, answer.done_reason) == (MODEL, True, "stop")
    (request,) = fake.requests
    assert (request.token_limit, request.seed, request.stop_sequences) == (400, 3, ("zzz",))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p) == (0.5, 5, 0.1)
    assert sampling.repeat_penalty == 1.1


async def test_what_it_took_is_in_nanoseconds(client: ollama.AsyncClient, fake: FakeOrchestrator):
    answer = await client.chat(model=MODEL, messages=CHAT)
    assert answer.total_duration == 0.042 * SECOND
    assert answer.prompt_eval_duration == 0.01 * SECOND
    assert (answer.eval_duration, answer.load_duration) == (0.04 * SECOND, 0)
    assert answer.prompt_eval_count == len(fake.requests[0].prompt)
    assert answer.eval_count == len(ids_of(fake.text)) + 1


async def test_a_chat_is_streamed(client: ollama.AsyncClient, fake: FakeOrchestrator):
    whole = await client.chat(model=MODEL, messages=CHAT)
    parts = [part async for part in await client.chat(model=MODEL, messages=CHAT, stream=True)]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len(parts) > 3
    assert "".join(part.message.content for part in parts) == fake.text
    assert (parts[-1].done_reason, parts[-1].eval_count) == ("stop", whole.eval_count)


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_a_stream_is_lines_of_json_unless_that_is_said_otherwise(
    http: httpx.AsyncClient, fake: FakeOrchestrator, path: str
):
    body = {"messages": CHAT, "prompt": "Hi"}
    streamed = await http.post(path, json=body)
    assert streamed.headers["content-type"].startswith("application/x-ndjson")
    *parts, last = [json.loads(line) for line in streamed.text.splitlines()]
    assert parts and last["done"] and not any(part["done"] for part in parts)
    assert last["timings"]["draft_n"] and last["metrics"]["speculative_decoding"]
    whole = await http.post(path, json={**body, "stream": False})
    assert whole.headers["content-type"] == "application/json"
    assert whole.json()["done"]
    assert [request.token_limit for request in fake.requests] == [-1, -1]


async def test_an_idle_stream_has_blanks_that_its_client_does_not_see(fake: FakeOrchestrator):
    fake.stalls_after = 1
    async with (
        serving(fake, ping_seconds=0.02) as url,
        httpx.AsyncClient(base_url=url) as http,
        http.stream("POST", "/api/chat", json={"messages": CHAT}) as response,
    ):
        text = ""
        async for some in response.aiter_text():
            text += some
            if len(text) - len(text.rstrip()) > 2:  # the end of a line, and two pings
                fake.go_on.set()
    parts = [json.loads(line) for line in text.splitlines()]
    assert "".join(part["message"]["content"] for part in parts) == fake.text


async def test_a_prompt_is_answered_as_a_chat(client: ollama.AsyncClient, fake: FakeOrchestrator):
    answer = await client.generate(model=MODEL, prompt="Hi", system="Be brief.")
    assert (answer.response, answer.done_reason) == (fake.text, "stop")
    assert fake.templates[0].chat == [{"role": "system", "content": "Be brief."}, *CHAT]
    parts = [p async for p in await client.generate(model=MODEL, prompt="Hi", stream=True)]
    assert "".join(part.response for part in parts) == fake.text


async def test_a_raw_prompt_is_continued_as_it_is(
    client: ollama.AsyncClient, fake: FakeOrchestrator
):
    fake.text = CALL
    answer = await client.generate(
        model=MODEL, prompt="[INST] Hi", raw=True, format="json", options={"num_predict": -2}
    )
    assert answer.response == CALL, "nothing in it is a call"
    (request,) = fake.requests
    assert (request.prompt, request.token_limit) == ("[INST] Hi", -1)
    assert json.loads(request.json_schema) == {"type": "object"}
    assert not fake.templates


async def test_the_end_has_its_reason(client: ollama.AsyncClient):
    for options, reason, text in (
        ({"num_predict": 3}, "length", "Hel"),
        ({"stop": ["wör", "zzz"]}, "stop", "Hello, "),
    ):
        answer = await client.generate(model=MODEL, prompt="Hi", options=options)
        assert (answer.done_reason, answer.response) == (reason, text)


async def test_without_a_prompt_the_model_is_loaded(
    client: ollama.AsyncClient, fake: FakeOrchestrator
):
    for answer in (
        await client.generate(model=MODEL),
        await client.generate(model=MODEL, keep_alive=0),
        await client.chat(model=MODEL),
    ):
        assert (answer.model, answer.done, answer.done_reason) == (MODEL, True, "load")
    assert not fake.requests
    fake.is_ready = False
    with pytest.raises(ollama.ResponseError, match="Loading model") as refused:
        await client.generate(model=MODEL)
    assert refused.value.status_code == 503


@pytest.mark.parametrize("form", ["json", {"type": "object", "properties": {"a": {}}}])
async def test_a_format_is_kept(client: ollama.AsyncClient, fake: FakeOrchestrator, form: Any):
    schema = {"type": "object"} if form == "json" else form
    await client.chat(model=MODEL, messages=CHAT, format=form)
    await client.generate(model=MODEL, prompt="Hi", format=form)
    assert [json.loads(request.json_schema) for request in fake.requests] == [schema] * 2


@pytest.mark.parametrize(
    ("think", "variables"),
    [
        (None, None),
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("low", {"reasoning_effort": "low", "enable_thinking": True}),
    ],
)
async def test_thinking_is_the_template_s(
    client: ollama.AsyncClient, fake: FakeOrchestrator, think: Any, variables: Any
):
    fake.text = "<think>\nHm.\n</think>\n\nFour."
    whole = await client.chat(model=MODEL, messages=CHAT, think=think)
    assert fake.templates[0].variables == variables
    assert (whole.message.thinking, whole.message.content) == ("Hm.", "Four.")
    stream = await client.generate(model=MODEL, prompt="Hi", think=think, stream=True)
    parts = [part async for part in stream]
    assert "".join(part.thinking or "" for part in parts) == "Hm."
    assert "".join(part.response for part in parts) == "Four."


async def test_log_probabilities_are_shown(client: ollama.AsyncClient, fake: FakeOrchestrator):
    wish = {"logprobs": True, "top_logprobs": 2, "options": {"num_predict": 5}}
    whole = await client.chat(model=MODEL, messages=CHAT, **wish)
    assert [each.token for each in whole.logprobs] == list("Hello")
    assert [top.token for top in whole.logprobs[0].top_logprobs] == ["H", "x"]
    stream = await client.generate(model=MODEL, prompt="Hi", raw=True, stream=True, **wish)
    shown: list[Any] = []
    async for part in stream:
        shown += part.logprobs or []
    assert shown == whole.logprobs


# --- tools ---


@pytest.mark.parametrize("streams", [False, True])
async def test_tools_are_called(
    http: httpx.AsyncClient, client: ollama.AsyncClient, fake: FakeOrchestrator, streams: bool
):
    fake.text = f"Let me see.\n{CALL}\n{CALL}"
    if streams:
        stream = await client.chat(model=MODEL, messages=CHAT, tools=[TOOL], stream=True)
        messages = [part.message async for part in stream]
    else:
        messages = [(await client.chat(model=MODEL, messages=CHAT, tools=[TOOL])).message]
    assert "".join(message.content for message in messages).strip() == "Let me see."
    calls = [call for message in messages for call in message.tool_calls or ()]
    assert [(c.function.name, c.function.arguments) for c in calls] == [
        ("weather", {"city": "Köln"})
    ] * 2
    (given,) = fake.templates[0].tools
    assert given["function"]["parameters"] == TOOL["function"]["parameters"]
    shown = await lines(http, "/api/chat", messages=CHAT, tools=[TOOL], stream=streams)
    calls = [call for line in shown for call in line["message"].get("tool_calls", ())]
    assert [call["function"]["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2


async def test_half_a_call_is_left_out(client: ollama.AsyncClient, fake: FakeOrchestrator):
    fake.text = CALL
    wish: Any = {"messages": CHAT, "tools": [TOOL], "options": {"num_predict": 60}}
    whole = await client.chat(model=MODEL, **wish)
    parts = [part async for part in await client.chat(model=MODEL, stream=True, **wish)]
    assert (whole.message.tool_calls, whole.message.content) == (None, "")
    assert not any(part.message.tool_calls for part in parts)
    assert [whole.done_reason, parts[-1].done_reason] == ["length", "length"]


def asked(name: str, **arguments: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


async def test_results_belong_to_the_calls_that_their_client_leaves_without_ids(
    client: ollama.AsyncClient, fake: FakeOrchestrator
):
    calls = [asked("weather", city="a"), asked("time"), asked("weather", city="b")]
    results = [
        {"role": "tool", "content": "noon", "tool_name": "time"},
        {"role": "tool", "content": "rain"},
        {"role": "tool", "content": "sun"},
    ]
    said = {"role": "assistant", "thinking": "Hm.", "tool_calls": calls}
    await client.chat(model=MODEL, messages=[*CHAT, said, *results], tools=[TOOL])
    _, turn, *shown = fake.templates[0].chat
    assert turn["reasoning_content"] == "Hm."
    first, second, third = [call["id"] for call in turn["tool_calls"]]
    assert [each["tool_call_id"] for each in shown] == [second, first, third]
    assert [each["name"] for each in shown] == ["time", "weather", "weather"]
    assert first.startswith("functions.weather:"), "some templates read the name in the id"


def test_results_keep_the_ids_that_they_have():
    body = shapes.OllamaChat.model_validate(
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "x", **asked("a")}, asked("a")]},
                {"role": "Tool", "content": "1", "tool_call_id": "unknown"},
                {"role": "tool", "content": "2", "tool_name": "unknown"},
                {"role": "tool", "content": "3", "tool_call_id": "x"},
            ]
        }
    )
    _, *results = shapes.read_chat(body).messages
    assert [each.get("tool_call_id") for each in results] == ["unknown", None, "x"]
    assert [each.get("name") for each in results] == [None, "unknown", "a"]


# --- models ---


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
async def test_the_model_is_described(client: ollama.AsyncClient, name: str):
    about = await client.show(name)
    assert about.details.parameter_size == "1.0B"
    assert (about.details.format, about.details.quantization_level) == ("gguf", "F16")
    assert about.modelinfo["general.parameter_count"] == 10**9
    kind = about.modelinfo["general.architecture"]
    assert about.modelinfo[f"{kind}.context_length"] == 512
    assert about.parameters == "num_ctx 512"
    assert about.template.startswith(HERMES)
    assert about.capabilities == ["completion", "insert", "tools"]


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("llama-cpp-deepseek-r1", ["completion", "tools", "thinking"]),
        ("openai-gpt-oss-120b", ["completion", "tools", "thinking"]),
        ("Qwen-Qwen3-0.6B", ["completion", "tools", "thinking"]),
        ("SmolVLM-Instruct", ["completion"]),
    ],
)
def test_what_a_model_can_do_is_read_in_its_template(name: str, capabilities: list[str]):
    model = common.GetModelResponse(model_name="a")
    about = shapes.description(model, chat_formats.template(name), "")
    assert about["capabilities"] == capabilities
    assert shapes.description(model, None, "")["capabilities"] == ["completion"]


async def test_a_model_that_is_not_there_is_not_described(client: ollama.AsyncClient):
    for name in ("another", f"{MODEL}:another"):
        with pytest.raises(ollama.ResponseError, match=f"'{name}' not found") as refused:
            await client.show(name)
        assert refused.value.status_code == 404


async def test_any_name_is_answered_by_the_target(client: ollama.AsyncClient):
    assert (await client.chat(model="another", messages=CHAT)).model == MODEL


async def test_the_models_are_listed(client: ollama.AsyncClient, fake: FakeOrchestrator):
    (listed,) = (await client.list()).models
    (running,) = (await client.ps()).models
    assert (listed.model, running.model) == (f"{MODEL}:latest",) * 2
    assert (listed.size, listed.details.format) == (2 * 10**9, "gguf")
    assert len(listed.digest) == 64
    assert listed.modified_at < running.expires_at
    assert running.context_length == 512


def test_a_name_with_a_tag_is_whole():
    assert shapes.full_name("qwen3:32b") == "qwen3:32b"
    assert shapes.is_named("qwen3:32b", "qwen3:32b")
    assert not shapes.is_named("", ":latest")


async def test_clients_find_what_they_probe(http: httpx.AsyncClient):
    assert (await http.head("/")).status_code == 200
    assert (await http.head("/api/version")).status_code == 200
    version = (await http.get("/api/version")).json()["version"]
    assert [int(part) for part in version.split(".")] > [0, 6, 4]


# --- embeddings ---


async def test_texts_are_embedded(client: ollama.AsyncClient):
    several = await client.embed(model=MODEL, input=["a", "bb"])
    first, second = several.embeddings
    assert [*first, *second] == pytest.approx([0.6, 0.8, 0.8, -0.6])
    assert (several.model, several.prompt_eval_count) == (MODEL, 3)
    assert 0 < several.total_duration < 60 * SECOND
    assert len((await client.embed(model=MODEL, input="a")).embeddings) == 1
    assert not (await client.embed(model=MODEL, input=[])).embeddings
    one = await client.embeddings(model=MODEL, prompt="a")
    assert list(one.embedding) == pytest.approx([3.0, 4.0]), "in the model's own length"
    assert not (await client.embeddings(model=MODEL)).embedding


# --- errors ---


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/chat", {"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images"),
        ("/api/chat", {"messages": [{"content": "Hi"}]}, "messages"),
        ("/api/chat", {"messages": CHAT, "options": {"top_k": "many"}}, "options"),
        ("/api/chat", {"messages": CHAT, "think": 7}, "think"),
        ("/api/chat", {"messages": CHAT, "format": "yaml"}, "format"),
        ("/api/generate", {"prompt": "Hi", "images": ["aGk="]}, "images"),
        ("/api/generate", {"prompt": "Hi", "template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"prompt": "Hi", "suffix": "there", "system": "Be brief."}, "system"),
        ("/api/generate", {"prompt": "Hi", "context": [1, 2]}, "context"),
        ("/api/generate", {"prompt": "Hi", "raw": True, "system": "Be brief."}, "system"),
        ("/api/embed", {"input": "a", "dimensions": 5}, "dimensions"),
        ("/api/embed", {"input": 5}, "input"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    http: httpx.AsyncClient, fake: FakeOrchestrator, path: str, body: Any, field: str
):
    refused = await http.post(path, json=body)
    assert refused.status_code == 400
    assert list(refused.json()) == ["error"]
    assert refused.json()["error"].startswith(field)
    assert not fake.requests


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("token_limit", "options.num_predict"),
        ("temperature", "options.temperature"),
        ("json_schema", "format"),
        ("prompt", "messages"),
        ("shift", "shift"),
    ],
)
async def test_a_field_is_refused_by_the_name_it_has_here(
    http: httpx.AsyncClient, fake: FakeOrchestrator, field: str, name: str
):
    fake.error = InvalidRequest(field, "is wrong")
    body = {"messages": CHAT, "options": {"num_predict": 5, "temperature": 1}, "format": "json"}
    refused = await http.post("/api/chat", json=body)
    assert refused.json() == {"error": f"{name}: is wrong"}


async def test_errors_have_the_form_that_the_client_reads(
    client: ollama.AsyncClient, fake: FakeOrchestrator, url: str
):
    for error, status, words in (
        (PromptTooLong(900, 508, 512), 400, "900"),
        (EngineBusy("full", retry_seconds=2), 503, "full"),
    ):
        fake.error = error
        with pytest.raises(ollama.ResponseError, match=words) as refused:
            await client.chat(model=MODEL, messages=CHAT)
        assert refused.value.status_code == status
        with pytest.raises(ollama.ResponseError, match=words):
            async for _ in await client.chat(model=MODEL, messages=CHAT, stream=True):
                pass
    fake.error_after = 2
    begun = []
    with pytest.raises(ollama.ResponseError, match="full"):
        async for part in await client.chat(model=MODEL, messages=CHAT, stream=True):
            begun.append(part)
    assert begun, "what was written before is shown"
    async with ollama.AsyncClient(url) as stranger:
        with pytest.raises(ollama.ResponseError, match="API key") as refused:
            await stranger.list()
    assert refused.value.status_code == 401
    with pytest.raises(ollama.ResponseError) as refused:
        await client.pull(MODEL)
    assert refused.value.status_code == 404


async def test_a_request_that_is_repeated_gets_the_same_lines(
    http: httpx.AsyncClient, fake: FakeOrchestrator
):
    headers = {"Idempotency-Key": "once"}
    first, second = [
        await http.post("/api/chat", json={"messages": CHAT}, headers=headers) for _ in range(2)
    ]
    assert (first.text, len(fake.requests)) == (second.text, 1)
    assert second.headers["content-type"] == first.headers["content-type"]
    assert second.headers["idempotent-replayed"] == "true"


# --- other clients ---


@pytest.mark.skipif(
    not (NODE / "node_modules/ollama").is_dir(), reason="scripts/node-clients has not installed it"
)
async def test_ollama_s_client_in_javascript_chats(url: str, fake: FakeOrchestrator):
    fake.texts = [fake.text, fake.text, CALL]
    said = await run_program("node", str(NODE / "ollama.mjs"), url, KEY, MODEL)
    calls = [["weather", {"city": "Köln"}]]
    does = ["completion", "insert", "tools"]
    expected = [fake.text, fake.text, calls, f"{MODEL}:latest", does]
    assert json.loads(said) == expected


async def test_langchain_chats_and_calls_a_tool(url: str, fake: FakeOrchestrator):
    script = """
import json, sys
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
known = {"model": sys.argv[2], "base_url": sys.argv[1], "validate_model_on_init": True}
chat = ChatOllama(**known, temperature=0.5, num_predict=400, num_ctx=2048)
def weather(city: str) -> str:
    "Reports the weather."
tools = chat.bind_tools([weather])
called = tools.invoke("Weather?")
(call,) = called.tool_calls
shown = tools.invoke(["Weather?", called, ToolMessage("Rain.", tool_call_id=call["id"])])
print(json.dumps([
    call["args"], shown.content, shown.usage_metadata["output_tokens"],
    "".join(chunk.text for chunk in chat.stream("Hi")),
    chat.with_structured_output({"title": "A", "type": "object"}).invoke("Hi"),
    OllamaLLM(**known).invoke("Hi"),
    len(OllamaEmbeddings(**known).embed_documents(["a", "bb"])),
]))
"""
    fake.texts = [CALL, fake.text, fake.text, '{"a": 1}']
    said = await run_python(script, url, MODEL, OLLAMA_API_KEY=KEY)
    count = len(ids_of(fake.text)) + 1
    expected = [{"city": "Köln"}, fake.text, count, fake.text, {"a": 1}, fake.text, 2]
    assert json.loads(said) == expected
    result = fake.templates[1].chat[-1]
    assert result["tool_call_id"] == fake.templates[1].chat[-2]["tool_calls"][0]["id"]


async def test_litellm_chats_and_calls_a_tool(url: str, fake: FakeOrchestrator):
    script = """
import json, sys, litellm
litellm.telemetry = False
url, model, key, tool = sys.argv[1:]
chat = [{"role": "user", "content": "Hi"}]
parsed = {"model": f"ollama_chat/{model}", "messages": chat, "api_base": url, "api_key": key}
whole = litellm.completion(**parsed, max_tokens=400)
pieces = list(litellm.completion(**parsed, stream=True))
called = litellm.completion(**parsed, tools=[json.loads(tool)])
(call,) = called.choices[0].message.tool_calls
print(json.dumps([
    whole.choices[0].message.content, whole.usage.completion_tokens,
    "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices),
    json.loads(call.function.arguments), called.choices[0].finish_reason,
]))
"""
    fake.texts = [fake.text, fake.text, CALL]
    said = await run_python(script, url, MODEL, KEY, json.dumps(TOOL))
    count = len(ids_of(fake.text)) + 1
    assert json.loads(said) == [fake.text, count, fake.text, {"city": "Köln"}, "tool_calls"]
    assert fake.requests[0].token_limit == 400
