"""HTTP in front of whole services: the same text as over gRPC, and slots that come free."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from orchestrator.planner import without_end
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.gateway import serving
from tests.support.services import (
    Gate,
    Trio,
    eventually,
    generate,
    three_services,
    toy,
)

PROMPT = [5, 6, 7]
BODY = {"prompt": PROMPT, "n_predict": 24, "temperature": 0.8, "seed": 3}


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[Trio, str]]:
    async with (
        three_services(toy, lambda: toy(seed=9, agreement=0.7), **options) as trio,
        serving(trio.orchestrator.orchestrator) as url,
    ):
        yield trio, url


async def test_http_brings_what_grpc_brings_with_and_without_a_draft():
    async with served() as (trio, url), httpx.AsyncClient(timeout=20) as client:
        request = messages.GenerateRequest(token_limit=24, seed=3)
        request.prompt_tokens.token_ids.extend(PROMPT)
        expected = await generate(trio.orchestrator, request)
        for enabled in (True, False):
            body = BODY | {"return_tokens": True, "speculative": {"enabled": enabled}}
            answer = (await client.post(f"{url}/completion", json=body)).json()
            assert answer["tokens"] == expected.token_ids
            assert answer["content"] == expected.text
            assert ("draft_n" in answer["timings"]) is enabled


async def test_a_report_tells_every_token_and_every_round():
    async with served() as (_, url), httpx.AsyncClient(timeout=20) as client:
        body = BODY | {"stream": True, "report": True, "n_probs": 1}
        text = (await client.post(f"{url}/completion", json=body)).text
    *pieces, last = [json.loads(line[6:]) for line in text.splitlines() if line]
    tokens = [token for piece in pieces for token in piece["tokens"]]
    rounds = [piece["round"] for piece in pieces if "round" in piece]
    numbers = last["statistics"]
    assert len(tokens) == last["tokens_predicted"]
    assert [token["position"] for token in tokens] == [*range(3, 3 + len(tokens))]
    assert sum(each["accepted"] for each in rounds) == numbers["accepted_token_count"]
    assert sum(len(each["draft"]) for each in rounds) == numbers["drafted_token_count"]
    drafted = sum(token["origin"] == "drafted" for token in tokens)
    assert drafted == numbers["accepted_token_count"] > 0
    assert len(rounds) == numbers["round_count"]
    assert all(token["text"] for token in tokens[:-1])
    assert all(token["logprob"] <= 0 for token in tokens)


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
async def test_a_stream_tells_how_far_it_is(path: str):
    body = BODY | {"prompt": list(range(40)), "stream": True, "timings_per_token": True}
    body["messages"] = [{"role": "user", "content": "to be read " * 5}]
    async with served() as (_, url), httpx.AsyncClient(timeout=20) as client:
        await client.post(url + path, json=body)
        text = (await client.post(url + path, json=body | {"return_progress": True})).text
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    start, end, *chunks = [json.loads(line) for line in lines]
    before, behind = start["prompt_progress"], end["prompt_progress"]
    assert before["processed"] == before["cache"] == behind["cache"] >= 16
    assert behind["processed"] == behind["total"] == before["total"] > before["cache"]
    assert before["time_ms"] == 0 <= behind["time_ms"]
    timings = [chunk["timings"] for chunk in chunks]
    assert not any("prompt_progress" in chunk for chunk in chunks)
    for name in ("predicted_n", "predicted_ms", "draft_n", "draft_n_accepted"):
        told = [each.get(name, 0) for each in timings]
        assert told == sorted(told)
    assert timings[0]["predicted_n"] < timings[-1]["predicted_n"]
    assert timings[-1]["draft_n"] > 0
    assert {each["prompt_n"] for each in timings} == {behind["total"] - behind["cache"]}


async def test_usage_tells_what_was_cached_of_the_prompts():
    body = {"prompt": [list(range(40)), list(range(60, 20, -1))], "n": 2, "max_tokens": 3}
    async with served() as (_, url), httpx.AsyncClient(timeout=20) as client:
        usages = [
            (await client.post(f"{url}/v1/completions", json=body)).json()["usage"]
            for _ in range(2)
        ]
        found = await counted(client, url)
    fresh, again = (usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert fresh == 0 and 32 <= again < 80
    assert found["outrider_cached_prompt_tokens_total"] == again


async def counted(client: httpx.AsyncClient, url: str) -> dict[str, float]:
    """Return the metrics by their names, labels included."""
    lines = (await client.get(f"{url}/metrics")).text.splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


async def test_every_generation_is_counted_once_whoever_asks_for_it():
    async with served() as (trio, url), httpx.AsyncClient(timeout=20) as client:
        request = messages.GenerateRequest(token_limit=24, seed=3)
        request.prompt_tokens.token_ids.extend(PROMPT)
        length = len((await generate(trio.orchestrator, request)).token_ids)
        await client.post(f"{url}/completion", json=BODY)
        jobs = messages.SubmitGenerationRequest(request=request)
        await trio.orchestrator.stub.SubmitGeneration(jobs)

        async def are_over() -> bool:
            return (await counted(client, url))["outrider_running_requests"] == 0

        await eventually(are_over)
        found = await counted(client, url)
    assert found['outrider_requests_total{outcome="token_limit"}'] == 3
    assert found["outrider_time_to_first_token_seconds_count"] == 3
    assert found["outrider_prompt_tokens_total"] == 3 * len(PROMPT)
    assert found["outrider_generated_tokens_total"] == 3 * length
    drafted = found["outrider_spec_decode_num_draft_tokens_total"]
    assert 0 < found["outrider_spec_decode_num_accepted_tokens_total"] <= drafted
    for phase in ("draft", "verify", "network", "queue", "decode", "sample"):
        name, label = "outrider_round_seconds", f'phase="{phase}"'
        assert found[f"{name}_count{{{label}}}"] == found["outrider_rounds_total"]
        seconds = found[f"outrider_phase_seconds_total{{{label}}}"]
        assert found[f"{name}_sum{{{label}}}"] == pytest.approx(seconds, abs=1e-4)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_hangs_up_frees_both_services_within_a_second(streams: bool):
    body = BODY | {"n_predict": 200, "stream": streams}
    async with served() as (trio, url), httpx.AsyncClient(timeout=20) as client:
        gate = Gate(trio.target.model, shut=False)
        asking = asyncio.create_task(client.post(f"{url}/completion", json=body))
        await eventually(lambda: trio.target.decode_count > 3)
        await gate.shut()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await gate.open()

        async def are_free() -> bool:
            activities = [await trio.target.activity(), await trio.draft.activity()]
            return not any(activity.open_session_count for activity in activities)

        await eventually(are_free, seconds=1.0)


@pytest.mark.fault(
    "others",
    "/slots while jobs and gRPC callers keep the target busy",
    before="it showed only what came by HTTP, so a full target looked idle",
    now="it shows every generation in flight, over every interface",
)
async def test_slots_show_jobs_and_grpc_generations_too():
    asked = messages.GenerateRequest(token_limit=24, seed=3)
    asked.prompt_tokens.token_ids.extend(PROMPT)
    async with (
        three_services(toy, toy) as trio,
        serving(trio.orchestrator.orchestrator, slots=True) as url,
        httpx.AsyncClient(timeout=20) as client,
    ):

        async def busy_count() -> int:
            slots = (await client.get(f"{url}/slots")).json()
            return sum(slot["is_processing"] for slot in slots)

        async def is_idle() -> bool:
            return await busy_count() == 0

        gate = Gate(trio.target.model)
        generating = asyncio.create_task(generate(trio.orchestrator, asked))
        submission = messages.SubmitGenerationRequest(request=asked)
        await trio.orchestrator.stub.SubmitGeneration(submission)
        await gate.reached()
        assert await busy_count() == 2
        await gate.open()
        await generating
        await eventually(is_idle)


@pytest.mark.fault(
    "text",
    "a text to embed that is longer than the context",
    before="The error named `token_ids`, which nobody had sent, and not which text it was.",
    now="It names the field that was sent and the text in it, with the counts of other routes.",
)
async def test_a_text_that_is_too_long_to_embed_is_named_as_it_was_sent():
    long = "rain " * 5000
    async with served() as (_, url), httpx.AsyncClient(timeout=20) as client:
        bodies: list[tuple[str, dict[str, Any], str]] = [
            ("/v1/embeddings", {"input": long}, "input"),
            ("/v1/embeddings", {"input": ["a"] * 70 + [long]}, "input[70]"),
        ]
        for path, body, field in bodies:
            error = (await client.post(url + path, json=body)).json()["error"]
            assert error["param"] == field
            assert error["type"] == "exceed_context_size_error"
            assert error["n_prompt_tokens"] > error["n_ctx"] > 0
        native = await client.post(f"{url}/embedding", json={"content": [[1, 64]]})
        assert native.status_code == 400
        assert native.json()["error"]["message"].startswith("content: token id 64 is outside")


async def test_of_a_text_that_is_too_long_ollama_embeds_the_start_unless_refused_that():
    long = {"input": ["rain " * 300_000, "rain"]}  # more than a target tokenizes at once
    async with served() as (_, url), httpx.AsyncClient(timeout=20) as client:
        short = (await client.post(f"{url}/api/embed", json={"input": "rain"})).json()
        refused = (await client.post(f"{url}/v1/embeddings", json=long)).json()["error"]
        for more in ({}, {"truncate": True}):
            answer = await client.post(f"{url}/api/embed", json=long | more)
            found = answer.json()
            assert answer.status_code == 200, found
            count = refused["n_ctx"] + short["prompt_eval_count"]
            assert found["prompt_eval_count"] == count and len(found["embeddings"]) == 2
        answer = await client.post(f"{url}/api/embed", json=long | {"truncate": False})
    assert answer.status_code == 400 and "too long" in answer.text


def test_the_eos_of_a_text_to_embed_stays_where_its_end_is_dropped():
    first = [0, 1, 2, 3]
    assert without_end(range(9), 4, ["a"], adds_eos=True) == [0, 1, 2, 8]
    assert without_end(range(9), 4, ["a"], adds_eos=False) == first
    assert without_end(range(9), 4, ["a", 8], adds_eos=True) == first
    assert without_end(range(9), 4, range(9), adds_eos=True) == first
    assert without_end(range(4), 4, ["a"], adds_eos=True) == first
    assert without_end(range(4), 9, ["a"], adds_eos=False) == first


@pytest.mark.parametrize("enabled", [True, False])
async def test_log_probabilities_come_with_the_text_of_their_token(enabled: bool):
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "logprobs": 2}
    async with served() as (_, url), httpx.AsyncClient(timeout=20) as client:
        body["speculative"] = {"enabled": enabled}
        choice = (await client.post(f"{url}/v1/completions", json=body)).json()["choices"][0]
    told = choice["logprobs"]
    assert len(told["tokens"]) == 40 and all(told["tokens"])
    assert "".join(told["tokens"]) == choice["text"]
    for token, alternatives in zip(told["tokens"], told["top_logprobs"], strict=True):
        assert token in alternatives
