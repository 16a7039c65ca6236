"""Thoughts, text and calls of models come over three APIs, whole and streamed, and go back."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from canitoolcall.probe import BUILTIN_SCENARIOS, probe

from tests.support.chat_formats import form, source, template
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.gateway import serving
from tests.support.grammars import compiled, follow
from tests.support.thorough import cells

QWEN, HERMES, HARMONY = "Qwen3.5-4B", "Qwen-Qwen3-0.6B", "openai-gpt-oss-120b"
GLM, GEMMA, KIMI = "GLM-4.6", "google-gemma-4-31B-it", "moonshotai-Kimi-K2"
MINISTRAL, LLAMA = "mistralai-Ministral-3-14B-Reasoning-2512", "meta-llama-Llama-3.3-70B-Instruct"
NEMO, LFM = "mistralai-Mistral-Nemo-Instruct-2407", "LFM2-8B-A1B"

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
FUNCTION = {"name": "get_weather", "description": "Tells it.", "parameters": PARAMETERS}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": FUNCTION}]
PARIS = [("get_weather", {"city": "Paris", "days": 2})]
ROUTES = ["chat", "messages", "responses"]

T, J = "Look it up.", '{"city": "Paris", "days": 2}'
XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)
CALLING: dict[str, tuple[str, str, str]] = {
    # by template: what the model writes, the thought and the text in it
    QWEN: (f"{T}\n</think>\n\n{XML}", T, ""),
    "Qwen3-Coder": (f"Sure.\n{XML}", "", "Sure."),
    HERMES: (
        f'<think>\n{T}\n</think>\n\nSure.\n<tool_call>\n{{"name": "get_weather", '
        f'"arguments": {J}}}\n</tool_call>',
        T,
        "Sure.",
    ),
    GLM: (
        f"\n<think>{T}</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris"
        "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        T,
        "",
    ),
    HARMONY: (
        f"<|channel|>analysis<|message|>{T}<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.get_weather <|constrain|>json<|message|>{J}<|call|>",
        T,
        "",
    ),
    GEMMA: ('<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>', "", ""),
    KIMI: (
        "Sure.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{J}<|tool_call_end|><|tool_calls_section_end|>",
        "",
        "Sure.",
    ),
    MINISTRAL: (f"[THINK]{T}[/THINK]Sure.[TOOL_CALLS]get_weather[ARGS]{J}", T, "Sure."),
    NEMO: (f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {J}, "id": "a1b2c3d4e"}}]', "", ""),
    LFM: ('<|tool_call_start|>[get_weather(city="Paris", days=2)]<|tool_call_end|>', "", ""),
    LLAMA: (f'{{"name": "get_weather", "parameters": {J}}}', "", ""),
}


@dataclass
class Reply:
    """An answer of any route: what it says, and what a client keeps of it for the next request."""

    status: int
    text: str = ""
    thoughts: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    end: str | None = None
    turn: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""

    def take_call(self, id_: str, name: str, arguments: str) -> None:
        self.ids.append(id_)
        try:
            self.calls.append((name, json.loads(arguments)))
        except ValueError:
            self.calls.append((name, arguments))


def body_of(route: str, chat: list[dict[str, Any]], tools: Any, **more: Any) -> dict[str, Any]:
    if route == "chat":
        return {"messages": chat, **({"tools": tools} if tools else {}), **more}
    functions = [tool["function"] for tool in tools or ()]
    if route == "messages":
        named = [{"name": f["name"], "input_schema": f["parameters"]} for f in functions]
        return {"messages": chat, "max_tokens": more.pop("max_tokens", 900), "tools": named, **more}
    flat = [{"type": "function", **function} for function in functions]
    if "max_tokens" in more:
        more["max_output_tokens"] = more.pop("max_tokens")
    return {"input": chat, "tools": flat, **more}


PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


async def ask(
    url: str,
    route: str,
    chat: list[dict[str, Any]],
    *,
    stream: bool,
    tools: Any = None,
    **more: Any,
) -> Reply:
    body = body_of(route, chat, tools, **more) | {"stream": stream}
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(url + PATHS[route], json=body)
    reply = Reply(answer.status_code)
    if answer.status_code != 200:
        reply.error = answer.text
        return reply
    if stream:
        events = [json.loads(line[6:]) for line in answer.text.split("\n") if line[:7] == "data: {"]
        whole = STREAMED[route](events)
    else:
        whole = answer.json()
    READ[route](reply, whole)
    return reply


def read_chat(reply: Reply, answer: dict[str, Any]) -> None:
    (choice,) = answer["choices"]
    message = choice["message"]
    reply.text, reply.end = message["content"] or "", choice["finish_reason"]
    reply.thoughts = message.get("reasoning_content", "")
    for call in message.get("tool_calls", []):
        reply.take_call(call["id"], call["function"]["name"], call["function"]["arguments"])
    reply.turn = [message]


def read_messages(reply: Reply, answer: dict[str, Any]) -> None:
    reply.end = {"tool_use": "tool_calls", "end_turn": "stop", "max_tokens": "length"}[
        answer["stop_reason"]
    ]
    for block in answer["content"]:
        reply.text += block.get("text", "")
        reply.thoughts += block.get("thinking", "")
        if block["type"] == "tool_use":
            given = block["input"]
            given = given if isinstance(given, str) else json.dumps(given)
            reply.take_call(block["id"], block["name"], given)
    reply.turn = [{"role": "assistant", "content": answer["content"]}]


def read_responses(reply: Reply, answer: dict[str, Any]) -> None:
    for item in answer["output"]:
        texts = "".join(part["text"] for part in item.get("content", []))
        reply.text += texts if item["type"] == "message" else ""
        reply.thoughts += texts if item["type"] == "reasoning" else ""
        if item["type"] == "function_call":
            reply.take_call(item["call_id"], item["name"], item["arguments"])
    is_whole = answer["status"] == "completed"
    reply.end = ("tool_calls" if reply.calls else "stop") if is_whole else "length"
    reply.turn = answer["output"]


def chat_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    reason = None
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            reason = choice["finish_reason"] or reason
            for name in ("content", "reasoning_content"):
                if delta.get(name):
                    message[name] = message.get(name, "") + delta[name]
            for part in delta.get("tool_calls", []):
                empty = {"type": "function", "function": {"name": "", "arguments": ""}}
                call = calls.setdefault(part["index"], empty)
                call["id"] = part.get("id") or call["id"]
                for name, text in part["function"].items():
                    call["function"][name] += text
    if calls:
        message["tool_calls"] = list(calls.values())
    return {"choices": [{"message": message, "finish_reason": reason}]}


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    reason = None
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = dict(event["delta"])
            kind = delta.pop("type")
            ((name, text),) = delta.items()
            assert kind == {"partial_json": "input_json"}.get(name, name) + "_delta"
            name = "input" if name == "partial_json" else name
            blocks[-1][name] = (blocks[-1][name] or "") + text
        elif event["type"] == "message_delta":
            reason = event["delta"]["stop_reason"]
    for block in blocks:
        if block["type"] == "tool_use":
            with suppress(ValueError):  # it was cut
                block["input"] = json.loads(block["input"] or "{}")
    return {"content": blocks, "stop_reason": reason}


def response_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last event's response, which says what the others said."""
    (last,) = [
        e["response"] for e in events if e["type"] in ("response.completed", "response.incomplete")
    ]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == last["output"]
    for kind, name in (("output_text", "text"), ("reasoning_text", "text")):
        deltas = "".join(e["delta"] for e in events if e["type"] == f"response.{kind}.delta")
        assert deltas == "".join(e[name] for e in events if e["type"] == f"response.{kind}.done")
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(len(events)))
    whole: dict[str, Any] = last
    return whole


READ = {"chat": read_chat, "messages": read_messages, "responses": read_responses}
STREAMED = {"chat": chat_of, "messages": message_of, "responses": response_of}


def results_of(route: str, reply: Reply) -> list[dict[str, Any]]:
    """Return what a client adds after an answer: the results of its calls, or a question."""
    if not reply.calls:
        return [{"role": "user", "content": "And then?"}]
    if route == "chat":
        return [{"role": "tool", "tool_call_id": i, "content": "sunny"} for i in reply.ids]
    if route == "messages":
        results = [{"type": "tool_result", "tool_use_id": i, "content": "sunny"} for i in reply.ids]
        return [{"role": "user", "content": results}]
    return [{"type": "function_call_output", "call_id": i, "output": "sunny"} for i in reply.ids]


def speaking(name: str, text: str) -> FakeOrchestrator:
    fake = FakeOrchestrator(text, template=source(name))
    fake.renders = True
    known = form(name).marks
    fake.controls = tuple(mark for mark in known if mark.startswith(("<|", "[")) and mark in text)
    return fake


@pytest.mark.parametrize(("name", "route", "stream"), cells(CALLING, ROUTES, [False, True]))
async def test_a_call_comes_and_goes_back(name: str, route: str, stream: bool) -> None:
    text, thought, content = CALLING[name]
    fake = speaking(name, text)
    async with serving(fake) as url:
        reply = await ask(url, route, ASK, stream=stream, tools=TOOLS)
        assert (reply.status, reply.calls, reply.end) == (200, PARIS, "tool_calls"), reply.error
        assert (reply.thoughts.strip(), reply.text.strip()) == (thought, content)
        chat = [*ASK, *reply.turn, *results_of(route, reply)]
        again = await ask(url, route, chat, stream=stream, tools=TOOLS)
    assert again.status == 200, again.error
    (said,) = [m for m in fake.templates[-1].chat if m["role"] == "assistant"]
    assert said.get("reasoning_content", "").strip() == thought
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["get_weather"]


@pytest.mark.parametrize(
    ("name", "route", "stream"), cells([QWEN, HARMONY, GEMMA, MINISTRAL], ROUTES, [False, True])
)
async def test_a_thought_comes_apart_and_goes_back(name: str, route: str, stream: bool) -> None:
    text = {
        QWEN: "A sum.\n</think>\n\nIt is 4.",
        HARMONY: "<|channel|>analysis<|message|>A sum.<|end|><|start|>assistant<|channel|>final"
        "<|message|>It is 4.",
        GEMMA: "<|channel>thought\nA sum.\n<channel|>It is 4.",
        MINISTRAL: "[THINK]A sum.[/THINK]It is 4.",
    }[name]
    fake = speaking(name, text)
    async with serving(fake) as url:
        reply = await ask(url, route, ASK, stream=stream)
        found = (reply.text.strip(), reply.thoughts.strip(), reply.calls, reply.end)
        assert found == ("It is 4.", "A sum.", [], "stop")
        chat = [*ASK, *reply.turn, *results_of(route, reply)]
        assert (await ask(url, route, chat, stream=stream)).status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
async def test_a_thought_that_the_limit_cut_is_a_thought(route: str, stream: bool) -> None:
    async with serving(speaking(QWEN, "A sum.\n</think>\n\nIt is 4.")) as url:
        reply = await ask(url, route, ASK, stream=stream, max_tokens=4)
    assert (reply.text, reply.thoughts, reply.end) == ("", "A su", "length")


@pytest.mark.parametrize("route", ROUTES)
async def test_where_thinking_is_off_text_is_text(route: str) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    async with serving(speaking(QWEN, "It is 4.")) as url:
        reply = await ask(url, route, ASK, stream=False, **off)
        assert (reply.text, reply.thoughts) == ("It is 4.", "")
        if route == "messages":
            disabled = {"thinking": {"type": "disabled"}}
            reply = await ask(url, route, ASK, stream=False, **disabled)
            assert (reply.text, reply.thoughts) == ("It is 4.", "")


SUM = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMED: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"schema": SUM}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": SUM}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "a", "schema": SUM}}},
}


def lets(fake: FakeOrchestrator, text: str) -> bool:
    """Say whether the latest request's grammar lets a model write a text."""
    place = follow(compiled(fake.requests[-1].sampling.grammar), text.encode())
    return place is not None and place.can_end


@pytest.mark.fault(
    "text",
    "A schema for the answer of a model that thinks, or that has tools",
    before="The thought had to be of the schema, the answer was empty, and no tool was called.",
    now="The thought ends first, and a call may come in the answer's place.",
)
@pytest.mark.parametrize("route", ROUTES)
async def test_a_schema_is_that_of_the_answer_after_a_thought(route: str) -> None:
    fake = speaking(QWEN, 'A sum.\n</think>\n\n{"a": 4}')
    async with serving(fake) as url:
        reply = await ask(url, route, ASK, stream=False, **FORMED[route])
        assert (reply.thoughts.strip(), reply.text.strip()) == ("A sum.", '{"a": 4}')
        assert lets(fake, fake.text) and not lets(fake, '{"a": 4}') and not lets(fake, T)
        reply = await ask(url, route, ASK, stream=False, tools=TOOLS, **FORMED[route])
        assert reply.text.strip() == '{"a": 4}'
        assert lets(fake, fake.text) and lets(fake, CALLING[QWEN][0]) and not lets(fake, T)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_call_may_come_in_place_of_a_text_of_the_schema(route: str) -> None:
    fake = speaking(HERMES, CALLING[HERMES][0].partition("Sure.\n")[2])
    async with serving(fake) as url:
        reply = await ask(url, route, ASK, stream=False, tools=TOOLS, **FORMED[route])
    assert (reply.calls, reply.text) == (PARIS, "")
    assert lets(fake, fake.text) and lets(fake, '{"a": 4}') and not lets(fake, "Sure.")


async def test_a_choice_is_that_of_the_answer_after_a_thought() -> None:
    fake = speaking(QWEN, "A sum.\n</think>\n\nyes")
    async with serving(fake) as url:
        grammar = 'root ::= "yes" | "no"'
        for said in ({"guided_choice": ["yes", "no"]}, {"guided_grammar": grammar}):
            reply = await ask(url, "chat", ASK, stream=False, **said)
            assert reply.text == "yes" and lets(fake, fake.text) and not lets(fake, "yes")
        reply = await ask(url, "chat", ASK, stream=False, guided_grammar="root ::= yes")
        assert reply.status == 400 and "guided_grammar: line 1" in reply.error
        await ask(url, "chat", ASK, stream=False, tools=TOOLS, grammar=grammar)
        assert fake.requests[-1].sampling.grammar == grammar, "it is of all that is written"


async def test_what_no_grammar_keeps_of_a_schema_after_a_thought_is_named() -> None:
    async with serving(speaking(QWEN, "")) as url, httpx.AsyncClient() as client:
        said = {"type": "string", "format": "color"}
        body = {"messages": ASK, "json_schema": said}
        answer = await client.post(f"{url}/v1/chat/completions", json=body)
    assert "format" in answer.headers["outrider-warning"]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_call_that_the_limit_cut_goes_back(route: str) -> None:
    fake = speaking(HERMES, CALLING[HERMES][0])
    async with serving(fake) as url:
        limit = CALLING[HERMES][0].index("Paris") + 2
        reply = await ask(url, route, ASK, stream=True, tools=TOOLS, max_tokens=limit)
        assert (reply.calls, reply.end) == ([("get_weather", '{"city": "Pa')], "length")
        chat = [*ASK, *reply.turn, *results_of(route, reply)]
        assert (await ask(url, route, chat, stream=False, tools=TOOLS)).status == 200
    (said,) = [m for m in fake.templates[-1].chat if m["role"] == "assistant"]
    assert said["tool_calls"][0]["function"]["arguments"] == '{"city": "Pa'


@pytest.mark.parametrize(("route", "stream"), cells(ROUTES, [False, True]))
async def test_a_call_that_turns_out_to_be_none_is_text(route: str, stream: bool) -> None:
    broken = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", oops'
    async with serving(speaking(HERMES, f"Sure.\n{broken}")) as url:
        reply = await ask(url, route, ASK, stream=stream, tools=TOOLS)
    assert broken in reply.text
    if route == "responses" or not stream:  # the others have no word for it in a stream
        assert (reply.calls, reply.end) == ([], "stop")


@pytest.mark.parametrize("route", ROUTES)
async def test_one_call_comes_where_only_one_is_wanted(route: str) -> None:
    single: dict[str, Any] = {"parallel_tool_calls": False}
    if route == "messages":
        single = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    one = CALLING[HERMES][0].partition("Sure.")[2]
    async with serving(speaking(HERMES, one + one)) as url:
        both = await ask(url, route, ASK, stream=False, tools=TOOLS)
        reply = await ask(url, route, ASK, stream=True, tools=TOOLS, **single)
    assert (len(both.calls), len(set(both.ids)), reply.calls) == (2, 2, PARIS)


@pytest.mark.parametrize("route", ROUTES)
async def test_tools_are_refused_where_no_call_can_be_learned(route: str) -> None:
    fake = FakeOrchestrator(template="{{ tools }}{{ messages[0].content }}")
    async with serving(fake) as url:
        reply = await ask(url, route, ASK, stream=False, tools=TOOLS)
    assert reply.status == 400 and "does not show how it writes calls" in reply.error
    assert fake.requests == []


async def test_ids_are_such_as_the_template_takes() -> None:
    async with serving(speaking(NEMO, CALLING[NEMO][0])) as url:
        for route in ROUTES:
            reply = await ask(url, route, ASK, stream=True, tools=TOOLS)
            assert all(len(id_) == 9 and id_.isalnum() for id_ in reply.ids)
    async with serving(speaking(KIMI, CALLING[KIMI][0])) as url:
        reply = await ask(url, "chat", ASK, stream=False, tools=TOOLS)
    assert reply.ids == ["functions.get_weather:0"]


async def test_the_effort_of_a_request_reaches_the_template() -> None:
    fake = speaking(HARMONY, "<|channel|>final<|message|>Hi")
    async with serving(fake) as url:
        await ask(url, "chat", ASK, stream=False, reasoning_effort="high")
        await ask(url, "responses", ASK, stream=False, reasoning={"effort": "high"})
    for each in fake.templates:
        assert each.variables == {"reasoning_effort": "high"}


async def test_the_items_of_a_turn_of_responses_are_one_message() -> None:
    items = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "content": None,
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "So."}],
        },
        {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": J},
        {"type": "function_call", "call_id": "b", "name": "get_weather", "arguments": J},
        {"type": "function_call_output", "call_id": "a", "output": "sunny"},
        {
            "type": "function_call_output",
            "call_id": "b",
            "output": [{"type": "input_text", "text": "x"}],
        },
        {"type": "reasoning", "summary": [], "encrypted_content": None},
    ]
    fake = FakeOrchestrator()
    async with serving(fake) as url:
        assert (await ask(url, "responses", items, stream=False)).status == 200
    chat = fake.templates[0].chat
    assert [message["role"] for message in chat] == [
        "developer",
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    assert chat[2]["content"] == "So." and chat[2]["reasoning_content"] == "Hm."
    assert [call["id"] for call in chat[2]["tool_calls"]] == ["a", "b"]


# --- Codex: the members of its requests (0.159), with texts of ours ---


def said_by(role: str, text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "id": f"msg_{role}", "role": role, "content": content}


PATCH = "*** Begin Patch\n*** Add File: a\n+b\n*** End Patch\n"
CODEX_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "strict": False, **FUNCTION},
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
    },
    {
        "type": "namespace",
        "name": "mcp__docs",
        "description": "Documents.",
        "tools": [{"type": "function", "strict": False, **FUNCTION, "name": "look_up"}],
    },
    {"type": "web_search", "external_web_access": False},
]
CODEX: dict[str, Any] = {
    "model": "any",
    "input": [
        said_by("developer", "Mind the sandbox."),
        said_by("user", "The folder is /work."),
        said_by("user", "Write the file a."),
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "A file."}],
            "content": None,
            "encrypted_content": "AAAA",
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "name": "look_up",
            "namespace": "mcp__docs",
            "arguments": "{}",
            "call_id": "call_1",
        },
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "none"},
        {
            "type": "custom_tool_call",
            "id": "ctc_1",
            "status": "completed",
            "call_id": "call_2",
            "name": "apply_patch",
            "input": PATCH,
        },
        {
            "type": "custom_tool_call_output",
            "id": "ctco_1",
            "call_id": "call_2",
            "output": [{"type": "input_text", "text": "Done."}],
        },
    ],
    "tools": CODEX_TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0",
    "client_metadata": {"session_id": "0"},
}
WRITES = {
    "Qwen3-Coder": "<tool_call>\n<function={name}>\n<parameter={key}>\n{text}\n</parameter>\n"
    "</function>\n</tool_call>",
    MINISTRAL: "[TOOL_CALLS]{name}[ARGS]{json}",
}
OURS = ("name", "namespace", "input", "arguments", "type")


@pytest.mark.fault(
    "text",
    "Codex, whose requests hold tools that are no functions",
    before="`/v1/responses` refused all of them, and two messages of the user with many templates.",
    now="A tool that takes a text, and one in a namespace, is called; a hosted one is left out.",
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", WRITES)
@pytest.mark.parametrize(
    ("name", "key", "text", "item"),
    [
        ("apply_patch", "input", PATCH, {"type": "custom_tool_call", "input": PATCH}),
        (
            "mcp__docs__look_up",
            "city",
            "Paris",
            {
                "type": "function_call",
                "name": "look_up",
                "namespace": "mcp__docs",
                "arguments": json.dumps({"city": "Paris"}),
            },
        ),
    ],
)
async def test_codex_is_served(
    model: str, stream: bool, name: str, key: str, text: str, item: dict[str, Any]
) -> None:
    written = WRITES[model].format(name=name, key=key, text=text, json=json.dumps({key: text}))
    fake = speaking(model, written)
    async with serving(fake) as url, httpx.AsyncClient() as client:
        answer = await client.post(f"{url}/v1/responses", json=CODEX | {"stream": stream})
    assert answer.status_code == 200, answer.text
    assert answer.headers["outrider-warning"] == (
        "passed over: tools[3], web_search: it runs at OpenAI"
    )
    if stream:
        lines = [line[6:] for line in answer.text.split("\n") if line[:7] == "data: {"]
        whole = response_of([json.loads(line) for line in lines])
    else:
        whole = answer.json()
    assert whole["tools"] == CODEX_TOOLS
    (found,) = whole["output"]
    assert {each: found[each] for each in OURS if each in found} == {"name": name} | item
    chat = fake.templates[0].chat
    names = [call["function"]["name"] for each in chat for call in each.get("tool_calls", ())]
    assert names == ["mcp__docs__look_up", "apply_patch"]
    offered = [tool["function"]["name"] for tool in list(fake.templates[0].tools)]
    assert offered == ["get_weather", "apply_patch", "mcp__docs__look_up"]


async def test_a_tool_of_no_known_type_is_refused_by_name() -> None:
    tools: list[Any] = [
        {"type": "function", **FUNCTION},
        {"type": "namespace", "name": "x", "tools": [{"type": "local_shell"}, 7]},
    ]
    async with serving() as url, httpx.AsyncClient() as client:
        for i, place in enumerate(("tools[1].tools[0].type", "tools[1].tools[0]")):
            tools[1]["tools"] = tools[1]["tools"][i:]
            answer = await client.post(f"{url}/v1/responses", json={"input": "a", "tools": tools})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, place)


async def test_completions_stay_raw_text() -> None:
    text = CALLING[HERMES][0]
    async with serving(speaking(HERMES, text)) as url, httpx.AsyncClient() as client:
        answer = await client.post(f"{url}/completion", json={"prompt": "a", "n_predict": 900})
    assert answer.json()["content"] == text


async def test_properties_say_what_was_learned() -> None:
    async with serving(speaking(QWEN, "")) as url, httpx.AsyncClient() as client:
        properties = (await client.get(f"{url}/props")).json()
    assert properties["chat_format"] == {
        "calls": "parameters",
        "call_opening": "<tool_call>\n<function=",
        "thoughts": "<think> </think>",
        "ids": "any",
    }


def forced(name: str, thought: str, content: str, calls: list[tuple[str, Any]]) -> str:
    """Return a turn as the template writes it, from the generation prompt on."""
    one = template(name)
    said: dict[str, Any] = {"role": "assistant", "content": content}
    said |= {"reasoning_content": thought} if thought else {}
    if calls:
        said["tool_calls"] = [
            {"id": f"abcdefgh{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(calls)
        ]
    options: dict[str, Any] = {"strftime_now": str, "add_generation_prompt": False}
    asked, whole = one.render(ASK, **options), one.render([*ASK, said], **options)
    turn = whole[len(asked) :].removeprefix(one.form.turn)
    return turn.rstrip().removesuffix("<EOS>").removesuffix(one.form.end)


@pytest.mark.parametrize("name", [HERMES, GLM, MINISTRAL, KIMI])
async def test_the_probe_of_canitoolcall_finds_nothing(name: str) -> None:
    notes = {"title": "Grüße aus Zürich", "body": "Café ☕ in 東京 — naïve résumé 🚀"}
    event = {
        "title": "Design review",
        "start": "2026-10-01T15:00:00Z",
        "attendees": [{"name": "Ana", "email": "ana@example.com"}],
        "location": {"city": "Berlin", "room": "4.12"},
    }
    weather = [("get_weather", {"city": "Paris"})]
    turns: dict[str, tuple[str, str, list[tuple[str, Any]]]] = {
        "single-call": ("", "", weather),
        "parallel-calls": ("", "", [*weather, ("get_weather", {"city": "Tokyo"})]),
        "no-call": ("", "42", []),
        "nested-args": ("", "", [("create_event", event)]),
        "unicode-args": ("", "", [("save_note", notes)]),
        "empty-args": ("", "", [("get_server_time", {})]),
        "forced-tool-choice": ("", "", weather),
        "tool-result-followup": ("", "It is 18 degrees.", []),
        "reasoning-then-call": ("9.9 is.", "", [("record_answer", {"answer": "9.9"})]),
    }
    fake = FakeOrchestrator(template=source(name))
    fake.renders = True
    for scenario in BUILTIN_SCENARIOS:
        text = forced(name, *turns[scenario.id])
        if scenario.id == "forced-tool-choice":
            calls = form(name).calls
            assert calls
            text = text.partition(calls.opening)[2]
        fake.texts += [text, text]
    async with serving(fake) as url:
        report = await asyncio.to_thread(probe, f"{url}/v1", "any", concurrency=1)
    assert [f"{o.scenario} {o.detail}" for o in report.outcomes if o.status != "pass"] == []
