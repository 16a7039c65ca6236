"""The gateway on its port: who is let in, what is refused, and what a client's going away does."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from gateway.config import HttpConfig
from gateway.http_server import HttpServer
from gateway.serving import _listen
from outrider.errors import (
    DeadlinePassed,
    DecodeFailed,
    EngineBusy,
    InvalidConfig,
    OutriderError,
    PeerUnavailable,
    PromptTooLong,
    Unauthenticated,
)
from outrider.speculation import DraftTemplate
from outrider.v1 import common_pb2 as common
from tests.support.fake_orchestrator import VOCABULARY, FakeOrchestrator
from tests.support.gateway import serving

KEY = "a key of sixteen characters"
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ("/v1/responses", {"input": "a"}),
    ("/completion", {"prompt": "a"}),
]


async def post(url: str, body: Any, **options: Any) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(url, json=body, **options)


async def get(url: str, **options: Any) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(url, **options)


def events(text: str) -> list[Any]:
    """Return the data of server-sent events; comments and the end are left out."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# --- going away ---


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_client_that_hangs_up_stops_its_generation(
    path: str, body: dict[str, Any], streams: bool
):
    fake = FakeOrchestrator()
    fake.stalls_after = 1
    async with serving(fake) as url:
        asking = asyncio.create_task(post(url + path, body | {"stream": streams}))
        await asyncio.wait_for(fake.stalled.wait(), 5)
        assert fake.open_count == 1
        asking.cancel()
        await asyncio.wait_for(fake.idle.wait(), 1)
    assert fake.closed_count == 1


async def test_a_client_that_hangs_up_stops_all_of_its_prompts():
    fake = FakeOrchestrator()
    fake.stalls_after = 0
    async with serving(fake) as url:
        asking = asyncio.create_task(post(f"{url}/v1/completions", {"prompt": ["a"] * 7}))
        await asyncio.wait_for(fake.stalled.wait(), 5)
        asking.cancel()
        await asyncio.wait_for(fake.idle.wait(), 1)
    assert fake.closed_count == len(fake.requests) <= 7


async def test_a_generation_that_is_stopped_counts_as_cancelled():
    fake = FakeOrchestrator()
    fake.stalls_after = 1
    async with serving(fake) as url:
        asking = asyncio.create_task(post(f"{url}/completion", {"prompt": "a", "stream": True}))
        await asyncio.wait_for(fake.stalled.wait(), 5)
        asking.cancel()
        await asyncio.wait_for(fake.idle.wait(), 1)
        text = (await get(f"{url}/metrics")).text
    assert 'outrider_requests_total{outcome="cancelled"} 1.0' in text
    assert "outrider_running_requests 0.0" in text


@pytest.mark.parametrize(("stalls_after", "status"), [(0, 503), (1, 200)])
async def test_a_server_that_stops_says_so_to_those_it_leaves(stalls_after: int, status: int):
    fake = FakeOrchestrator()
    fake.stalls_after = stalls_after
    async with serving(fake) as url:
        body = {"prompt": "a", "stream": True}
        asking = asyncio.create_task(post(f"{url}/completion", body))
        await asyncio.wait_for(fake.stalled.wait(), 5)
    assert fake.open_count == 0
    response = await asking
    assert response.status_code == status
    assert "the server is stopping" in response.text


# --- chats ---


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}),
        ("/v1/responses", {"input": "a"}),
    ],
)
async def test_a_chat_comes_with_the_conversation_that_it_was_rendered_from(
    path: str, body: dict[str, Any]
):
    fake = FakeOrchestrator()
    async with serving(fake) as url:
        speculative = {"draft_template": "own"}
        await post(url + path, {"model": "any", **body, "speculative": speculative})
        await post(f"{url}/completion", {"prompt": "a"})
    chat, plain = fake.requests
    assert chat.conversation == fake.templates[0]
    assert fake.templates[0].chat == [{"role": "user", "content": "a"}]
    assert chat.draft_template is DraftTemplate.OWN
    assert plain.conversation is None


# --- errors ---

ERRORS: list[tuple[OutriderError, int, str]] = [
    (PromptTooLong(900, 508, 512), 400, "exceed_context_size_error"),
    (EngineBusy("64 generations are in flight", 2.0), 429, "rate_limit_error"),
    (PeerUnavailable("the target is gone"), 503, "unavailable_error"),
    (DeadlinePassed("too late"), 504, "server_error"),
    (Unauthenticated("the target wants a token"), 502, "server_error"),
    (DecodeFailed("llama_decode failed"), 500, "server_error"),
]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(("error", "status", "kind"), ERRORS)
async def test_an_error_before_the_first_token_is_a_status(
    error: OutriderError, status: int, kind: str, streams: bool
):
    fake = FakeOrchestrator()
    fake.error = error
    async with serving(fake) as url:
        openai = await post(f"{url}/v1/completions", {"prompt": "a", "stream": streams})
        llama = await post(f"{url}/completion", {"prompt": "a", "stream": streams})
    assert (openai.status_code, llama.status_code) == (status, status)
    told = openai.json()["error"]
    assert told.keys() >= {"message", "type", "param", "code"}
    assert told["message"].endswith(str(error)) and told["type"] == kind
    told = llama.json()["error"]
    assert told["code"] == status and told["message"].startswith(str(error))
    assert openai.headers.get("Retry-After") == ("2" if status == 429 else None)


@pytest.mark.fault(
    "text",
    "a prompt longer than the context, sent to an OpenAI route by a client of llama-server",
    before="No `exceed_context_size_error`, no counts; elsewhere an `n_ctx` unlike `/props`.",
    now="Every route says it, with `n_prompt_tokens` and the `n_ctx` of `/props`.",
)
async def test_a_prompt_that_is_too_long_is_told_as_both_apis_tell_it():
    fake = FakeOrchestrator()
    fake.error = PromptTooLong(900, 508, 512)
    async with serving(fake) as url:
        openai = await post(f"{url}/v1/completions", {"prompt": "a"})
        llama = await post(f"{url}/completion", {"prompt": "a"})
    told = openai.json()["error"]
    assert (told["code"], told["param"]) == ("context_length_exceeded", "prompt")
    assert told["message"].startswith("This model's maximum context length is 508 tokens: ")
    excess = {"type": "exceed_context_size_error", "n_prompt_tokens": 900, "n_ctx": 512}
    assert excess.items() <= told.items()
    assert llama.json()["error"] == {
        "code": 400,
        "message": "prompt too long (900 tokens, max 508): it exceeds the available context size",
        **excess,
    }


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_an_error_after_the_first_token_is_an_event_and_the_end(
    path: str, body: dict[str, Any]
):
    fake = FakeOrchestrator()
    fake.error, fake.error_after = PeerUnavailable("the target is gone"), 2
    async with serving(fake) as url:
        response = await post(url + path, body | {"stream": True})
    assert response.status_code == 200
    *_, last = events(response.text)
    assert last["error"]["message"] == "the target is gone"
    assert not response.text.endswith("[DONE]\n\n")


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_bug_tells_the_client_an_id_and_nothing_else(
    path: str, body: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    fake = FakeOrchestrator()
    fake.error = ZeroDivisionError("secret prompt")
    async with serving(fake) as url:
        response = await post(url + path, body)
    assert response.status_code == 500
    error_id = response.json()["error"]["message"].removeprefix("internal error ")
    assert error_id in caplog.text
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": "a", "best_of": 4}, "best_of"),
        ("/v1/completions", {"prompt": [5], "suffix": "b"}, "suffix"),
        ("/v1/completions", {"prompt": "a", "n": 0}, "n"),
        ("/v1/completions", {"prompt": "a", "n": 1000}, "n"),
        ("/v1/completions", {"prompt": []}, "n"),
        ("/v1/completions", {"prompt": [[1], 2]}, "prompt"),
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": 5}, "prompt"),
        ("/v1/completions", {"prompt": "a", "temperature": "hot"}, "temperature"),
        ("/v1/completions", {"prompt": "a", "seed": 2**70}, "seed"),
        ("/v1/completions", {"prompt": "a", "samplers": ["nonsense"]}, "samplers"),
        (
            "/v1/completions",
            {"prompt": "a", "response_format": {"type": "json_schema"}},
            "response_format",
        ),
        ("/v1/chat/completions", {"messages": [], "functions": [{}]}, "functions"),
        ("/v1/chat/completions", {"messages": [], "tool_choice": "required"}, "tool_choice"),
        ("/v1/chat/completions", {"messages": [], "modalities": ["audio"]}, "modalities"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2},
            "top_logprobs",
        ),
        ("/v1/embeddings", {"input": "a", "dimensions": 8}, "dimensions"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/responses", {"input": "a", "previous_response_id": "r"}, "previous_response_id"),
        ("/v1/responses", {"input": [{"type": "function_call"}]}, "input[0].name"),
    ],
)
async def test_what_is_wrong_or_not_supported_is_refused_by_name(
    path: str, body: dict[str, Any], field: str
):
    async with serving() as url:
        response = await post(url + path, body)
    assert response.status_code == 400
    told = response.json()["error"]
    assert told["param"] == field
    assert told["type"] == "invalid_request_error"
    assert field.partition(".")[0] in told["message"]


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("number", ["1e999", "-1e999", "Infinity", "NaN"])
async def test_a_number_that_no_answer_can_hold_is_refused(number: str, stream: str):
    body = f'{{"input": "a", "stream": {stream}, "metadata": {{"a": [{number}]}}}}'
    async with serving() as url, httpx.AsyncClient() as client:
        response = await client.post(f"{url}/v1/responses", content=body)
    assert response.status_code == 400
    assert "not finite" in response.json()["error"]["message"]


async def test_a_number_that_is_no_id_is_a_text_to_bias():
    fake, digits = FakeOrchestrator(), "0" * 11 + "9" * 5000
    async with serving(fake) as url:
        body = {"prompt": "a", "logit_bias": {digits: 1, "5": 2, str(2**31): 3}}
        response = await post(f"{url}/v1/completions", body)
    assert response.status_code == 200
    assert fake.requests[-1].logit_bias == ((digits, 1), (5, 2), (str(2**31), 3))


async def test_unknown_fields_and_nulls_are_ignored():
    body = {"prompt": "a", "max_tokens": 4, "user": "me", "no_such_field": {"x": [1]}}
    body |= dict.fromkeys(("stop", "temperature", "suffix", "best_of", "logit_bias", "seed"))
    async with serving() as url:
        response = await post(f"{url}/v1/completions", body)
    assert response.json()["choices"][0]["text"] == "Hell"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_body_is_json_whatever_it_is_called_unless_a_web_page_sends_it(
    path: str, body: dict[str, Any], kind: str | None
):
    called = {"Content-Type": kind} if kind else {}
    async with serving(FakeOrchestrator()) as url, httpx.AsyncClient() as client:
        sent = {"url": url + path, "content": json.dumps(body)}
        assert (await client.post(**sent, headers=called)).status_code == 200
        from_page = await client.post(**sent, headers=called | {"Origin": "https://a.example"})
        assert from_page.status_code == 400


@pytest.mark.fault(
    "text",
    "a body that is no JSON",
    before="The offset of a character was the `param` of the error.",
    now="`param` is null: no field is at fault.",
)
async def test_a_body_that_is_no_json_is_refused():
    async with serving() as url:
        for content in (b"{", b"\xff", b"[" * 100_000, b'{"prompt": NaN}'):
            response = await post(
                f"{url}/v1/completions",
                None,
                content=content,
                headers={"Content-Type": "application/json"},
            )
            assert response.status_code == 400, content[:10]
            told = response.json()["error"]
            assert told["type"] == "invalid_request_error"
            assert told["param"] == ("prompt" if b"NaN" in content else None)


@pytest.mark.parametrize("path", ["/v1/completions", "/completion", "/v1/messages"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"n": 1', "the body is not JSON: Expecting ',' delimiter at character 7"),
        (b"", "the body is empty; it must be a JSON object"),
        (b"[1]", "the body must be a JSON object"),
        (b'"text"', "the body must be a JSON object"),
    ],
)
async def test_what_is_wrong_with_a_whole_body_is_said(path: str, content: bytes, words: str):
    async with serving() as url:
        json_type = {"Content-Type": "application/json"}
        response = await post(url + path, None, content=content, headers=json_type)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == words


async def test_an_unknown_path_is_told_in_the_shape_of_its_api():
    async with serving() as url:
        openai = await get(f"{url}/v1/nothing")
        llama = await get(f"{url}/nothing")
        method = await get(f"{url}/v1/completions")
    assert (openai.status_code, llama.status_code, method.status_code) == (404, 404, 405)
    assert openai.json()["error"]["type"] == "not_found_error"
    assert llama.json()["error"]["code"] == 404


async def test_a_path_that_is_not_there_is_named():
    async with serving() as url:
        rerank = await post(f"{url}/v1/rerank", {"query": "a", "documents": ["b"]})
        long = await get(f"{url}/{'x' * 999}")
    said = "there is no POST /v1/rerank; /openapi.json has what there is"
    assert rerank.json()["error"]["message"] == said
    assert len(long.json()["error"]["message"]) < 200


# --- who is let in ---


@pytest.mark.fault(
    "text",
    "`HEAD`, by which load balancers and clients ask whether a route is there",
    before="405, also where GET answers.",
    now="The status and the headers of GET, without the body.",
)
async def test_head_is_answered_as_get_is_without_the_body():
    async with serving() as url, httpx.AsyncClient() as client:
        for path in ("/", "/health", "/v1/models", "/props", "/metrics"):
            whole, head = await client.get(url + path), await client.head(url + path)
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-type"] == whole.headers["content-type"]
        assert (await client.head(f"{url}/completion")).status_code == 405


async def test_with_a_key_only_the_health_and_the_page_are_open():
    async with serving(api_key=KEY) as url:
        for path in ("/health", "/v1/health", "/"):
            assert (await get(url + path)).status_code == 200
        for path in ("/v1/models", "/metrics", "/props", "/status", "/openapi.json", "/nothing"):
            refused = await get(url + path)
            assert refused.status_code == 401
            assert refused.headers["WWW-Authenticate"] == "Bearer"
        for headers in ({"Authorization": f"Bearer {KEY}"}, {"X-Api-Key": KEY}):
            assert (await get(f"{url}/v1/models", headers=headers)).status_code == 200
        for wrong in (KEY[:-1], f"{KEY}x", "x", "ä" * 30):
            headers = {"Authorization": f"Bearer {wrong}".encode()}
            assert (await get(f"{url}/v1/models", headers=headers)).status_code == 401
        refused = await get(f"{url}/v1/models")
        assert refused.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({}, "--allow-remote and --http-key-file"),
        ({"allow_remote": True}, "--http-key-file"),
        ({"api_key": KEY}, "--allow-remote"),
    ],
)
def test_an_address_that_others_reach_needs_a_key_and_a_word(options: Any, needs: str):
    with pytest.raises(InvalidConfig, match=f"needs {needs}$"):
        HttpConfig(listen="0.0.0.0:8080", **options)
    HttpConfig(listen="0.0.0.0:8080", api_key=KEY, allow_remote=True)


async def test_an_address_in_use_is_a_wrong_option():
    async with serving() as url:
        server = HttpServer(HttpConfig(listen=url.removeprefix("http://")), FakeOrchestrator())
        with pytest.raises(InvalidConfig, match="in use"):
            await server.start()


async def test_pages_from_elsewhere_may_call_only_where_that_is_said():
    origin = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    async with serving(api_key=KEY) as url:
        assert (
            "access-control-allow-origin"
            not in (await get(f"{url}/health", headers=origin)).headers
        )
    async with (
        serving(cors_origins=("https://a.example",), api_key=KEY) as url,
        httpx.AsyncClient() as client,
    ):
        preflight = await client.options(f"{url}/v1/completions", headers=origin)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        other = await get(f"{url}/health", headers=origin | {"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


async def test_a_long_body_is_refused_whether_it_says_its_length_or_not():
    async def chunks():
        for _ in range(40):
            yield b" " * 100

    async with serving(body_bytes=1000) as url:
        told = await post(f"{url}/v1/completions", {"prompt": "a" * 1000})
        untold = await post(
            f"{url}/v1/completions",
            None,
            content=chunks(),
            headers={"Content-Type": "application/json"},
        )
        short = await post(f"{url}/v1/completions", {"prompt": "a"})
    assert (told.status_code, untold.status_code, short.status_code) == (413, 413, 200)
    assert "1000 bytes" in untold.json()["error"]["message"]


# --- streams ---


async def test_a_silent_stream_gets_pings():
    fake = FakeOrchestrator()
    fake.stalls_after = 1
    async with serving(fake, ping_seconds=0.05) as url, httpx.AsyncClient() as client:
        body = {"prompt": "a", "stream": True}
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            lines = []
            async for line in response.aiter_lines():
                lines.append(line)
                if lines.count(": ping") == 2:
                    fake.go_on.set()
    assert lines[-2:] == ["data: [DONE]", ""]
    assert "".join(each["choices"][0]["text"] for each in events("\n".join(lines))) == fake.text


async def test_a_stream_begins_without_a_token_when_the_prompt_takes_long():
    fake = FakeOrchestrator()
    fake.stalls_after = 0
    async with serving(fake, ping_seconds=0.05) as url, httpx.AsyncClient() as client:
        body = {"prompt": "a", "stream": True}
        async with client.stream("POST", f"{url}/completion", json=body) as response:
            assert response.status_code == 200
            assert fake.closed_count == 0
            fake.go_on.set()
            await response.aread()
    assert "".join(each["content"] for each in events(response.text)) == fake.text


async def test_a_stream_is_not_to_be_cached_or_buffered():
    async with serving() as url:
        response = await post(f"{url}/completion", {"prompt": "a", "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


# --- llama-server's other routes ---


async def test_health_says_whether_the_target_is_ready():
    fake = FakeOrchestrator()
    async with serving(fake) as url:
        assert (await get(f"{url}/health")).json() == {"status": "ok"}
        fake.is_ready = False
        loading = await get(f"{url}/health")
    assert loading.status_code == 503
    told = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
    assert loading.json() == {"error": told}


@pytest.mark.fault(
    "text",
    "`/slots` where it is off",
    before="404, as if the server knew no such route.",
    now="501 and `not_supported_error`, as in llama-server.",
)
async def test_slots_are_shown_only_where_that_is_said():
    fake = FakeOrchestrator()
    async with serving(fake) as url:
        off = await get(f"{url}/slots")
    assert (off.status_code, off.json()["error"]["type"]) == (501, "not_supported_error")
    fake.stalls_after = 1
    async with serving(fake, slots=True) as url:
        asking = asyncio.create_task(post(f"{url}/completion", {"prompt": "a"}))
        await asyncio.wait_for(fake.stalled.wait(), 5)
        slots = (await get(f"{url}/slots")).json()
        fake.go_on.set()
        await asking
        idle = (await get(f"{url}/slots")).json()
    assert [slot["is_processing"] for slot in slots] == [True, False, False, False]
    assert slots[0]["next_token"] == [{"n_decoded": 3}]
    assert not any(slot["is_processing"] or "next_token" in slot for slot in idle)


@pytest.mark.fault(
    "text",
    "what `/props` says of the chat template",
    before="No `bos_token`, `eos_token` or capabilities, and not the template of --chat-template.",
    now="They are those of the template in use.",
)
async def test_properties_describe_the_template_in_use():
    loop = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
    async with serving(FakeOrchestrator(template=loop)) as url:
        properties = (await get(f"{url}/props")).json()
    assert (properties["bos_token"], properties["eos_token"]) == ("<s>", "</s>")
    assert properties["model_ftype"] == "F16"
    assert properties["chat_template"] == loop and not properties["chat_template_stands_in"]
    assert properties["chat_format"]["calls"] == ""
    assert properties["chat_template_caps"] == {
        "supports_string_content": True,
        "supports_typed_content": False,
        "supports_system_role": True,
        "supports_tools": False,
        "supports_tool_calls": False,
        "supports_parallel_tool_calls": False,
        "supports_object_arguments": True,
        "supports_preserve_reasoning": False,
        "supports_reasoning_effort": False,
    }
    async with serving(FakeOrchestrator(template="{% nonsense %}")) as url:
        properties = (await get(f"{url}/props")).json()
    assert properties["chat_template"] == "{% nonsense %}"
    assert properties["chat_template_caps"] == {}
    async with serving(FakeOrchestrator(template="")) as url:
        properties = (await get(f"{url}/props")).json()
    assert properties["chat_template"] and properties["chat_template_stands_in"]


@pytest.mark.fault(
    "text",
    "`response_fields` with a path into an object",
    before="The value came under its last name, where clients of llama-server do not look.",
    now="It comes under the path.",
)
async def test_response_fields_come_under_their_paths():
    paths = ["content", "generation_settings/n_predict", "no/such", "content/deeper"]
    async with serving() as url:
        body = {"prompt": "a", "n_predict": 4, "response_fields": paths}
        answer = (await post(f"{url}/completion", body)).json()
    assert answer == {"content": "Hell", "generation_settings/n_predict": 4}


async def test_properties_describe_the_target():
    fake = FakeOrchestrator(template="{{ messages }}")
    async with serving(fake) as url:
        properties = (await get(f"{url}/props")).json()
    assert properties["default_generation_settings"]["n_ctx"] == 512
    assert properties["default_generation_settings"]["params"]["top_k"] == 40
    assert (properties["total_slots"], properties["chat_template"]) == (4, "{{ messages }}")


@pytest.mark.parametrize(
    ("own_draft", "name"),
    [
        (common.OwnDraft(head=common.HEAD_KIND_MTP), "mtp"),
        (common.OwnDraft(model_name="small"), "model"),
        (None, None),
    ],
)
async def test_properties_name_what_drafts_in_the_targets_process(
    own_draft: common.OwnDraft | None, name: str | None
) -> None:
    async with serving(FakeOrchestrator(own_draft=own_draft)) as url:
        assert (await get(f"{url}/props")).json()["own_draft"] == name


@pytest.mark.fault(
    "text",
    "control tokens at `/detokenize`",
    before="They were left out, so that a prompt sent as ids and read back had lost its marks.",
    now="They show as their names, as in llama-server.",
)
async def test_text_becomes_tokens_and_tokens_text():
    async with serving() as url:
        ids = (await post(f"{url}/tokenize", {"content": "á", "add_special": True})).json()
        pieces = (await post(f"{url}/tokenize", {"content": "aá", "with_pieces": True})).json()
        text = (await post(f"{url}/detokenize", {"tokens": ids["tokens"]})).json()
        chat = {"messages": [{"role": "user", "content": "a"}]}
        prompt = (await post(f"{url}/apply-template", chat)).json()
    assert ids == {"tokens": [1, 198, 164]}
    assert [each["piece"] for each in pieces["tokens"]] == ["a", [195], [161]]
    assert text == {"content": "<s>á"}
    assert prompt == {"prompt": "user: a\n"}


async def test_the_state_of_the_peers_is_told():
    async with serving() as url:
        status = (await get(f"{url}/status")).json()
        models = (await get(f"{url}/v1/models")).json()["data"]
        model = await get(f"{url}/v1/models/fake-1b")
        missing = await get(f"{url}/v1/models/gpt-5")
    assert [peer["role"] for peer in status["peers"]] == ["draft", "target"]
    assert [each["id"] for each in models] == ["fake-1b"]
    assert model.json() == models[0]
    assert missing.status_code == 404


@pytest.mark.fault(
    "text",
    "what `/v1/models` says of the model",
    before="No `n_ctx_train`, `n_embd` or `ftype`, no list `models`, no `aliases` and `tags`.",
    now="All that llama-server has, under its names.",
)
async def test_the_list_of_models_has_what_llama_server_has():
    async with serving() as url:
        listed = (await get(f"{url}/v1/models")).json()
    [card], [other] = listed["data"], listed["models"]
    assert card["meta"] == {
        "vocab_type": 0,
        "n_vocab": VOCABULARY,
        "n_ctx": 512,
        "n_ctx_train": 8192,
        "n_embd": 64,
        "n_params": 10**9,
        "size": 2 * 10**9,
        "ftype": "F16",
    }
    assert card["aliases"] == card["tags"] == []
    assert other["name"] == other["model"] == card["id"]
    assert other["capabilities"] == ["completion"]


async def test_the_state_that_the_page_asks_for_has_no_chat_templates():
    async with serving(FakeOrchestrator(template="{{ messages }}")) as url:
        draft, target = (await get(f"{url}/status")).json()["peers"]
    assert "chat_template" not in target["model"]
    assert target["model"]["model_name"] == "fake-1b"
    assert "model" not in draft


async def test_an_event_is_sent_at_once_and_not_when_the_one_before_was_received():
    listening = _listen("127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    accepted = loop.create_future()

    class Keep(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            accepted.set_result(transport.get_extra_info("socket"))

    server = await loop.create_server(Keep, sock=listening)
    _, writer = await asyncio.open_connection(*listening.getsockname())
    connection = await accepted
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()
    server.close()
