"""Programs that work with tools by themselves, against the gateway: requests that they have sent.

The programs themselves run where they are installed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.anthropic import MessagesBody, read_messages
from gateway.openai.requests import ChatBody
from gateway.openai.response_input import ResponseBody, read_chat, read_tools
from orchestrator.chat.template import ChatTemplate
from tests.support.agents import AGENTS, events_of, session
from tests.support.clients import HERMES, KEY, run_program
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.gateway import serving

JSON = dict[str, Any]

PAGE = Path(__file__).parents[2] / "docs/clients.md"
QUESTION = "-p 'What does a.py print?'"
TEMPLATES = sorted((Path(__file__).parents[1] / "support/templates").rglob("*.jinja"))
ONE_CALL_AT_A_TIME = {"llama3.jinja", "meta-llama-Llama-3.3-70B-Instruct.jinja"}
"""Templates that refuse an earlier message with two calls, as their models never write one."""

LARGEST = 9007199254740991
"""2^53 - 1, JavaScript's largest: the `maximum` of whole numbers in tools of Claude Code."""


def called(name: str, **arguments: str) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"Let me look.\n<tool_call>\n{call}\n</tool_call>"


READ = called("Read", file_path="/project/a.py")
CALLS = {
    "claude_code": READ,
    "codex": called("exec_command", cmd="cat a.py"),
    "continue": called("Read", filepath="/project/a.py"),
    "aider": "Let me look.",
    "open_webui": called("get_current_timestamp"),
}
"""What the model answers, by the program: a call of one of its tools, where it has any."""


@pytest_asyncio.fixture
async def fake() -> FakeOrchestrator:
    one = FakeOrchestrator(template=HERMES)
    one.renders = True
    return one


@pytest_asyncio.fixture
async def url(fake: FakeOrchestrator) -> AsyncIterator[str]:
    async with serving(fake, api_key=KEY) as address:
        yield address


async def send(url: str, asked: JSON) -> httpx.Response:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(timeout=30, headers=headers) as client:
        return await client.post(url + asked["path"], json=asked["body"])


@pytest.mark.parametrize("name", AGENTS)
async def test_every_request_of_a_session_is_answered(name: str, url: str, fake: FakeOrchestrator):
    for asked in session(name):
        fake.text = CALLS[name]
        answer = await send(url, asked)
        assert answer.status_code == 200, answer.text
    assert len(fake.requests) == sum("count_tokens" not in each["path"] for each in session(name))


async def test_claude_code_gets_text_then_its_call_then_what_was_read(
    url: str, fake: FakeOrchestrator
):
    fake.text = READ
    asked = session("claude_code")[0]
    events = list(events_of((await send(url, asked)).text))
    deltas = [event for event in events if event["type"] == "content_block_delta"]
    blocks = [e["content_block"] for e in events if e["type"] == "content_block_start"]
    assert [block["type"] for block in blocks] == ["text", "tool_use"]
    assert (blocks[1]["name"], blocks[1]["input"]) == ("Read", {})
    parts = [each["delta"].get("partial_json", "") for each in deltas]
    assert json.loads("".join(parts)) == {"file_path": "/project/a.py"}
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    start, end = events[0]["message"]["usage"], events[-2]["usage"]
    assert start["input_tokens"] == end["input_tokens"] + end["cache_read_input_tokens"] > 1000
    assert end["output_tokens"] == len(READ) + 1


async def test_codex_gets_its_events_in_order(url: str, fake: FakeOrchestrator):
    fake.text = CALLS["codex"]
    answer = await send(url, session("codex")[0])
    events = list(events_of(answer.text))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    shown = [kind for kind, before in zip(kinds, ["", *kinds], strict=False) if kind != before]
    assert shown == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done[1]["name"] == "exec_command" and done[1]["call_id"]
    assert json.loads(done[1]["arguments"]) == {"cmd": "cat a.py"}
    whole = events[-1]["response"]
    assert [item["id"] for item in whole["output"]] == [item["id"] for item in done]
    assert whole["usage"]["total_tokens"] == whole["usage"]["input_tokens"] + len(fake.text) + 1
    assert "web_search" in answer.headers["outrider-warning"]


async def test_continue_gets_its_call_and_the_usage(url: str, fake: FakeOrchestrator):
    fake.text = CALLS["continue"]
    *chunks, last = events_of((await send(url, session("continue")[0])).text)
    calls = [call for each in chunks for call in each["choices"][0]["delta"].get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "Read"
    written = "".join(call["function"].get("arguments", "") for call in calls)
    assert json.loads(written) == {"filepath": "/project/a.py"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert last["usage"]["completion_tokens"] == len(fake.text) + 1


@pytest.mark.fault(
    "others",
    "An agent that looked at a picture was refused from then on",
    before="The picture in the result of its tool got 400, and so did all that it sent after it.",
    now="The model reads in its place that a picture was left out, and answers.",
)
@pytest.mark.parametrize("name", ["claude_code", "codex"])
async def test_a_picture_that_a_tool_returned_is_named_in_its_place(
    name: str, url: str, fake: FakeOrchestrator
):
    (asked,) = [each for each in session(name) if "iVBOR" in json.dumps(each)]
    assert (await send(url, asked)).status_code == 200
    result = fake.templates[0].chat[-1]
    assert result["role"] == "tool"
    assert "[image left out: this model reads text only]" in json.dumps(result["content"])


def chats_of(name: str) -> Iterator[ChatBody]:
    for asked in session(name):
        if "/messages" in asked["path"]:
            yield read_messages(MessagesBody.model_validate({"max_tokens": 1, **asked["body"]}))
        elif "/responses" in asked["path"]:
            body = ResponseBody.model_validate(asked["body"])
            yield read_chat(body, read_tools(body.tools or []))
        else:
            yield ChatBody.model_validate(asked["body"])


def has_two_calls(chat: ChatBody) -> bool:
    return any(len(each.get("tool_calls", ())) > 1 for each in chat.messages)


@pytest.mark.fault(
    "others",
    "A template refused the tools of an agent as too much work",
    before="A number that a template's macro was given counted as that many characters.",
    now="It counts where something is padded to it.",
)
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_every_template_that_takes_tools_takes_those_of_every_agent(path: Path):
    template = ChatTemplate(path.read_text(encoding="utf-8"))
    assert str(LARGEST) in json.dumps(session("claude_code"))
    chats = [chat for name in AGENTS for chat in chats_of(name)]
    for chat in chats:
        if chat.tools and not template.takes_tools:
            continue
        if has_two_calls(chat) and path.name in ONE_CALL_AT_A_TIME:
            continue
        assert template.render(chat.messages, strftime_now=str, tools=chat.tools)


# --- the programs, where they are installed, as docs/clients.md says ---


def recipe(heading: str, language: str, url: str) -> str:
    """Return a block of a program's recipe, for the gateway at a URL."""
    part = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    block = part.split(f"```{language}\n")[1].split("```")[0]
    return block.replace("http://127.0.0.1:8080", url)


async def run_recipe(name: str, commands: str, more: str = "") -> str:
    """Run a recipe with more words behind its last command; return what that prints."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return await run_program("bash", "-euc", f"{commands.rstrip()} {more}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is home and project, without settings of the one who runs the tests."""
    for name in [each for each in os.environ if each.startswith(("ANTHROPIC", "CLAUDE", "OPENAI"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("print(1)\n")
    return tmp_path


@pytest_asyncio.fixture
async def open_url(fake: FakeOrchestrator) -> AsyncIterator[str]:
    """A gateway without a key, as the recipes have it."""
    async with serving(fake) as address:
        yield address


@pytest.mark.timeout(120)
async def test_claude_code_reads_a_file_and_answers(
    home: Path, open_url: str, fake: FakeOrchestrator
):
    fake.texts, fake.text = [called("Read", file_path=str(home / "a.py"))], "It prints 1."
    commands = recipe("Claude Code", "sh", open_url)
    shown = json.loads(await run_recipe("claude", commands, f"{QUESTION} --output-format json"))
    assert (shown["result"], shown["num_turns"]) == (fake.text, 2)
    assert shown["modelUsage"]["outrider"]["contextWindow"] == 32768
    assert shown["usage"]["output_tokens"] > len(fake.text)
    assert "print(1)" in json.dumps(fake.templates[-1].chat)


@pytest.mark.timeout(120)
async def test_codex_runs_a_command_and_answers(home: Path, open_url: str, fake: FakeOrchestrator):
    fake.texts, fake.text = [called("exec_command", cmd="cat a.py")], "It prints 1."
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").write_text(recipe("Codex", "toml", open_url))
    command = f"codex exec --skip-git-repo-check --strict-config {QUESTION[2:]} </dev/null"
    assert (await run_recipe("codex", command)).strip() == fake.text
    # A byte is a token here, so that its prompt is too long for it: it has it summarized, too.
    _, second, *_ = fake.templates
    assert "print(1)" in json.dumps(second.chat)


@pytest.mark.timeout(120)
async def test_continue_reads_a_file_and_answers(home: Path, open_url: str, fake: FakeOrchestrator):
    fake.texts, fake.text = [called("Read", filepath=str(home / "a.py"))], "It prints 1."
    (home / ".continue").mkdir()
    (home / ".continue/config.yaml").write_text(recipe("Continue", "yaml", open_url))
    said = await run_recipe("cn", recipe("Continue", "sh", open_url), "</dev/null")
    assert fake.text in said
    assert "print(1)" in json.dumps(fake.templates[-1].chat)


@pytest.mark.timeout(120)
async def test_aider_edits_a_file(home: Path, open_url: str, fake: FakeOrchestrator):
    fence = "```"
    fake.text = f"a.py\n{fence}python\nprint(2)\n{fence}\n"
    flags = "--message 'Print 2.' --no-git --yes-always --no-pretty --no-show-release-notes"
    said = await run_recipe("aider", recipe("aider", "sh", open_url), f"{flags} </dev/null")
    assert "Applied edit to a.py" in said and "received" in said
    assert (home / "a.py").read_text() == "print(2)\n"
