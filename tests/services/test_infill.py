"""Editors in front of whole services and a GGUF file that knows what fills in a text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from tests.support.gateway import serving
from tests.support.services import (
    DRAFT,
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    running,
)
from tests.support.tiny_gguf import Shape, Vocabulary, write_model

FIRST = 320  # the first id after the vocabulary's own
SUFFIX, PREFIX, MIDDLE, REPOSITORY, FILE = range(FIRST, FIRST + 5)
NAMES = ("fim_suffix", "fim_prefix", "fim_middle", "repo_name", "file_sep")
LITTLE = {"n_predict": 24, "temperature": 0.8, "seed": 3, "return_tokens": True}
TEXT = {"input_prefix": "def read(path):\n", "input_suffix": "\n<|fim_middle|>\n"}
CONTEXT = 256


def load(path: Path) -> LlamaModel:
    config = LlamaConfig(
        path=path,
        context=CONTEXT,
        sequence_count=4,
        thread_count=1,
        pad_multiple=4,
        batch_rows=128,
    )
    return LlamaModel(config)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def http(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway over a target with a draft of the same vocabulary."""
    folder, shape = tmp_path_factory.mktemp("models"), Shape(layers=1)
    changed = {FIRST + i: f"<|{name}|>" for i, name in enumerate(NAMES)}
    vocabulary = Vocabulary(tail_count=len(NAMES), changed=changed)
    path = write_model(folder / "target.gguf", shape=shape, vocabulary=vocabulary)
    its_path = write_model(folder / "draft.gguf", shape=shape, vocabulary=vocabulary)
    async with (
        running(ModelProcess(TARGET, partial(load, path))) as target,
        running(ModelProcess(DRAFT, partial(load, its_path))) as draft,
        running(OrchestratorProcess(target.address, draft.address)) as orchestrator,
        serving(orchestrator.orchestrator) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
        await orchestrator.until_ready()
        yield client


async def answered(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def ids_of(http: httpx.AsyncClient, text: str) -> list[int]:
    answer = await answered(http, "/tokenize", content=text, parse_special=False)
    ids: list[int] = answer["tokens"]
    return ids


async def prompt_of(http: httpx.AsyncClient, prefix: str, suffix: str, *files: str) -> list[int]:
    """Return a prompt, of files of the name a.py."""
    ids = [0, REPOSITORY, *await ids_of(http, "myproject\n")]
    for file in files:
        ids += [FILE, *await ids_of(http, "a.py\n"), *await ids_of(http, file)]
    ids += [FILE, *await ids_of(http, "filename\n"), PREFIX, *await ids_of(http, prefix)]
    return [*ids, SUFFIX, *await ids_of(http, suffix), MIDDLE]


async def test_a_text_is_filled_in_as_its_tokens_are_continued(http: httpx.AsyncClient):
    files = [{"text": "for line in lines: print(line)\n", "filename": "a.py"}]
    filled = await answered(http, "/infill", **TEXT, **LITTLE, input_extra=files)
    prompt = await prompt_of(http, *TEXT.values(), files[0]["text"])
    continued = await answered(http, "/completion", **LITTLE, prompt=prompt)
    assert filled["tokens"] == continued["tokens"] and len(filled["tokens"]) > 4
    assert filled["tokens_evaluated"] == len(prompt)


async def test_a_control_token_in_a_file_is_text(http: httpx.AsyncClient):
    assert MIDDLE not in await ids_of(http, TEXT["input_suffix"])
    filled = await answered(http, "/infill", **TEXT, **LITTLE)
    assert filled["tokens_evaluated"] == len(await prompt_of(http, *TEXT.values()))


async def test_every_surface_asks_for_the_same_text(http: httpx.AsyncClient):
    filled = await answered(http, "/infill", **TEXT, **LITTLE)
    prefix, suffix = TEXT.values()
    how = {"temperature": 0.8, "seed": 3}
    completed = await answered(
        http, "/v1/completions", prompt=prefix, suffix=suffix, max_tokens=24, **how
    )
    assert completed["choices"][0]["text"] == filled["content"]
    options = how | {"num_predict": 24}
    generated = await answered(
        http, "/api/generate", prompt=prefix, suffix=suffix, options=options, stream=False
    )
    assert generated["response"] == filled["content"]


async def test_files_that_were_read_beforehand_are_cached(http: httpx.AsyncClient):
    files = [{"text": "with open(path) as file: return file.read()\n" * 2, "filename": "b.py"}]
    await answered(
        http, "/infill", input_prefix="", input_suffix="", input_extra=files, n_predict=0
    )
    answer = await answered(http, "/infill", **TEXT, **LITTLE, input_extra=files)
    assert answer["timings"]["cache_n"] > len(await ids_of(http, files[0]["text"]))


async def test_a_text_that_is_too_long_is_cut(http: httpx.AsyncClient):
    long = {"input_prefix": "import os\n" * 400, "input_suffix": "print(os)\n" * 400}
    answer = await answered(http, "/infill", **long, **LITTLE)
    assert CONTEXT / 2 < answer["tokens_evaluated"] < CONTEXT - 24


@pytest.mark.parametrize("path", ["/infill", "/completion"])
async def test_a_text_is_over_when_its_time_is(http: httpx.AsyncClient, path: str):
    body = {**TEXT, "prompt": "def read(path):", "n_predict": 100, "ignore_eos": True, "seed": 3}
    body |= {"logit_bias": [["\n", 6.0]]}  # lines are short
    whole = await answered(http, path, **body, t_max_predict_ms=60_000)
    assert (whole["tokens_predicted"], whole["timings"]["predicted_n"]) == (100, 100)
    late = await answered(http, path, **body, t_max_predict_ms=1)
    assert late["tokens_predicted"] == late["timings"]["predicted_n"] < 100
    assert late["stop_type"] == "limit" and "\n" in late["content"]
    assert whole["content"].startswith(late["content"])
