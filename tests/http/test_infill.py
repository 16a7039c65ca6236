"""What editors ask for: llama.vim's and Continue's bodies against the gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.fake_orchestrator import BOS, MODEL, FakeOrchestrator, ids_of, shown
from tests.support.gateway import serving
from tests.support.lazy import Lazy

ollama, openai = Lazy("ollama"), Lazy("openai")

VIM: dict[str, Any] = {
    "input_prefix": "int main() {\n",
    "input_suffix": ";\n}\n",
    "input_extra": [
        {"text": "int add(int a, int b);\n", "time": [1, 2], "filename": "add.h"},
        {"text": "int two;\n", "time": [1, 3]},
    ],
    "prompt": "    int n = ",
    "n_predict": 128,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.90,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "response_fields": ["content", "timings/prompt_n", "timings/predicted_n", "truncated"],
}
"""What llama.vim asks for at a cursor."""

CONTINUE = {
    "model": MODEL,
    "prompt": "def f():\n    ",
    "suffix": "\n    return x\n",
    "options": {"temperature": 0.01, "num_predict": 64, "stop": ["\n\n"], "num_ctx": 8192},
    "keep_alive": 1800,
}
"""What Continue asks Ollama for."""

NO_TOKENS = "this model has no tokens by which it fills in a text (FIM prefix, suffix, middle)"


@pytest_asyncio.fixture
async def fake() -> FakeOrchestrator:
    return FakeOrchestrator(text="add(1, 2)")


@pytest_asyncio.fixture
async def http(fake: FakeOrchestrator) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(fake) as url, httpx.AsyncClient(base_url=url) as one:
        yield one


def asked(fake: FakeOrchestrator) -> str:
    """Return the only prompt that was asked for."""
    (request,) = fake.requests
    assert not isinstance(request.prompt, str)
    return shown(part for part in request.prompt if isinstance(part, int))


def without(names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in VIM.items() if name not in names}


async def test_llama_vim_is_given_what_is_missing(http: httpx.AsyncClient, fake: FakeOrchestrator):
    response = await http.post("/infill", json=VIM)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["content"] == fake.text
    assert answer["timings/predicted_n"] == len(ids_of(fake.text)) + 1
    assert answer["timings/prompt_n"] > 0 and answer["truncated"] is False
    assert asked(fake) == (
        "<s><REP>myproject\n<FILE>add.h\nint add(int a, int b);\n<FILE>tmp\nint two;\n"
        "<FILE>filename\n<PRE>int main() {\n    int n = <SUF>;\n}\n<MID>"
    )
    (request,) = fake.requests
    assert (request.token_limit, request.sampling.top_p) == (128, 0.9)
    assert [stage.value for stage in request.sampling.stages] == ["top_k", "top_p"]


async def test_what_is_not_kept_of_a_request_is_said(http: httpx.AsyncClient):
    response = await http.post("/infill", json=VIM)
    assert response.headers["outrider-warning"] == ("passed over: n_indent; the sampler `infill`")
    kept = without(["n_indent", "samplers"])
    response = await http.post("/infill", json=kept)
    assert "outrider-warning" not in response.headers


async def test_llama_vim_has_files_read_beforehand(http: httpx.AsyncClient, fake: FakeOrchestrator):
    body = {**VIM, "input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0}
    body |= {"temperature": 0.0, "samplers": [], "t_max_predict_ms": 1, "response_fields": [""]}
    response = await http.post("/infill", json={**body, "id_slot": 0})
    assert (response.status_code, response.json()) == (200, {})
    assert asked(fake).endswith("int two;\n<FILE>filename\n<PRE><SUF><MID>")


async def test_what_is_missing_is_streamed(http: httpx.AsyncClient, fake: FakeOrchestrator):
    response = await http.post("/infill", json={**without(["response_fields"]), "stream": True})
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(event["content"] for event in events) == fake.text
    assert events[-1]["stop"] and len(events) > 2


@pytest.mark.parametrize(
    ("text", "milliseconds", "is_cut"),
    [
        ("one\ntwo and three", 20, True),
        ("one and two and three", 20, False),  # no whole line yet
        ("one\ntwo and three", 60_000, False),
        ("one\ntwo and three", -1, False),
    ],
)
@pytest.mark.parametrize("path", ["/infill", "/completion"])
async def test_a_text_ends_with_a_line_when_its_time_is_over(
    http: httpx.AsyncClient,
    fake: FakeOrchestrator,
    path: str,
    text: str,
    milliseconds: int,
    is_cut: bool,
):
    fake.text, fake.round_seconds = text, 0.03
    body = without(["response_fields", "n_indent", "samplers"])
    response = await http.post(path, json={**body, "t_max_predict_ms": milliseconds})
    answer = response.json()
    assert response.status_code == 200 and text.startswith(answer["content"])
    assert ("\n" in answer["content"]) == ("\n" in text)
    assert (answer["content"] != text) == is_cut
    assert answer["stop_type"] == ("limit" if is_cut else "eos")
    assert answer["tokens_predicted"] == len(ids_of(answer["content"])) + (not is_cut)
    assert fake.closed_count == 1


async def test_only_one_completion_of_a_prompt_has_a_time(http: httpx.AsyncClient):
    response = await http.post("/completion", json={"prompt": "a", "n": 2, "t_max_predict_ms": 9})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("t_max_predict_ms: ")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 3}, "input_suffix"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"input_extra": {"text": "a"}}, "input_extra"),
        ({"input_extra": [{}]}, "input_extra"),
        ({"input_extra": [{"filename": "ok"}]}, "input_extra"),
        ({"input_extra": [{"filename": 123, "text": "abc"}]}, "input_extra"),
        ({"lora": [{"id": 0}]}, "lora"),
        ({"top_p": 7}, "top_p"),
    ],
)
async def test_a_wrong_value_is_named(http: httpx.AsyncClient, changed: dict[str, Any], field: str):
    response = await http.post("/infill", json=VIM | changed)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{field}: ")


async def test_a_text_is_continued_up_to_a_suffix(fake: FakeOrchestrator):
    async with serving(fake) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as api:
        answer = await api.completions.create(
            model=MODEL, prompt="def f():\n    ", suffix="\n    return x\n", max_tokens=64
        )
    assert answer.choices[0].text == fake.text
    assert asked(fake) == (
        "<s><REP>myproject\n<FILE>filename\n<PRE>def f():\n    <SUF>\n    return x\n<MID>"
    )
    (request,) = fake.requests
    assert answer.usage.prompt_tokens == len(request.prompt)


async def test_each_of_several_prompts_has_the_suffix(
    http: httpx.AsyncClient, fake: FakeOrchestrator
):
    body = {"prompt": ["a", "b"], "suffix": "c"}
    answer = (await http.post("/v1/completions", json=body)).json()
    assert [choice["text"] for choice in answer["choices"]] == [fake.text] * 2
    ends = [shown(request.prompt)[-12:] for request in fake.requests]  # type: ignore[arg-type]
    assert ends == ["<PRE>a<SUF>c<MID>"[-12:], "<PRE>b<SUF>c<MID>"[-12:]]


@pytest.mark.parametrize(
    "body", [{"prompt": [BOS], "suffix": "c"}, {"prompt": "a", "suffix": "c", "echo": True}]
)
async def test_a_suffix_needs_a_text_alone(http: httpx.AsyncClient, body: dict[str, Any]):
    response = await http.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "suffix"


async def test_continue_asks_whether_ollama_takes_a_suffix(
    http: httpx.AsyncClient, fake: FakeOrchestrator
):
    about = (await http.post("/api/show", json={"name": MODEL})).json()
    assert ".Suffix" in about["template"] and "insert" in about["capabilities"]
    fake.fim = None
    about = (await http.post("/api/show", json={"name": MODEL})).json()
    assert ".Suffix" not in about["template"] and "insert" not in about["capabilities"]


async def test_ollamas_client_is_given_what_is_missing(fake: FakeOrchestrator):
    async with serving(fake) as url, ollama.AsyncClient(url) as client:
        answer = await client.generate(model=MODEL, prompt="a = ", suffix="\n")
    assert answer.response == fake.text
    assert asked(fake).endswith("<PRE>a = <SUF>\n<MID>")


async def test_continue_is_given_what_is_missing_by_ollama(
    http: httpx.AsyncClient, fake: FakeOrchestrator
):
    response = await http.post("/api/generate", json={**CONTINUE, "stream": True})
    parts = [json.loads(line) for line in response.text.splitlines()]
    assert "".join(part["response"] for part in parts) == fake.text
    assert asked(fake).endswith("<PRE>def f():\n    <SUF>\n    return x\n<MID>")
    (request,) = fake.requests
    assert (request.token_limit, request.stop_sequences) == (64, ("\n\n",))


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/infill", VIM, "input_suffix"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/api/generate", CONTINUE, "suffix"),
    ],
)
async def test_a_model_without_the_tokens_is_one_line(
    http: httpx.AsyncClient, fake: FakeOrchestrator, path: str, body: dict[str, Any], field: str
):
    fake.fim = None
    response = await http.post(path, json=body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error if isinstance(error, str) else error["message"]) == f"{field}: {NO_TOKENS}"
