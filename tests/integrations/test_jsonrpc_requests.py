"""Requests to /rpc as HTTP has them: late, hung up on, repeated, large, and with an id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.hostile import Vitals
from tests.support.json_rpc import json_rpc
from tests.support.services import Gate, Trio, eventually, three_services, toy

PROMPT = [5, 6, 7]
BODY = {"prompt": PROMPT, "n_predict": 200, "temperature": 0.8, "seed": 3, "repeat_penalty": 1.0}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "get_completion", "params": BODY}


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[Trio, httpx.AsyncClient]]:
    async with (
        three_services(toy, lambda: toy(seed=9, agreement=0.7), **options) as trio,
        json_rpc(trio.orchestrator.address) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
        yield trio, client


async def rpc(client: httpx.AsyncClient, method: str, **params: Any) -> Any:
    """Return the result of a method."""
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = (await client.post("/rpc", json=call)).json()
    assert "error" not in answer, answer
    return answer["result"]


async def test_a_completion_that_runs_out_of_time_brings_what_there_is() -> None:
    async with served(request_seconds=1.5) as (trio, client):
        gate = Gate(trio.target.model, shut=False)
        asking = asyncio.create_task(rpc(client, "get_completion", **BODY, origins=True))
        await eventually(lambda: trio.target.decode_count > 5)
        await gate.shut()
        answer = await asking
        await gate.open()
        whole = await rpc(client, "get_completion", **BODY)
    assert answer["status"] == 500 and answer["stop"]
    assert answer["error"]["reason"] == "DEADLINE_PASSED"
    assert answer["content"] and whole["content"].startswith(answer["content"])
    assert answer["tokens_predicted"] == len(answer["origins"]) > 0
    assert answer["prompt_stats"]["total_prompt_tokens"] == len(PROMPT)
    assert not any(answer[f"stopped_{name}"] for name in ("eos", "word", "limit"))


@pytest.mark.parametrize(
    "body", [CALL, [{"jsonrpc": "2.0", "method": "deinit"}, CALL]], ids=["call", "batch"]
)
async def test_a_client_that_hangs_up_frees_both_services_within_a_second(body: Any) -> None:
    async with served() as (trio, client):
        gate = Gate(trio.target.model, shut=False)
        asking = asyncio.create_task(client.post("/rpc", json=body))
        await eventually(lambda: trio.target.decode_count > 3)
        await gate.shut()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await gate.open()

        async def are_free() -> bool:
            activities = [await trio.target.activity(), await trio.draft.activity()]
            return not any(activity.open_session_count for activity in activities)

        await eventually(are_free, seconds=1.0)


async def test_errors_have_the_id_of_the_request() -> None:
    async with served() as (_, client):
        for method, params in (("detokenize", {"tokens": "x"}), ("get_completion", {"seed": "x"})):
            call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = await client.post("/rpc", json=call, headers={"X-Request-Id": "mine-7"})
            assert answer.json()["error"]["data"]["metadata"]["requestId"] == "mine-7"
            assert answer.headers["x-request-id"] == "mine-7"


async def test_a_job_that_is_started_again_with_its_key_is_the_same_one() -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "async_completion_init", "params": BODY}
    async with served() as (_, client):
        ids = [
            (await client.post("/rpc", json=call, headers={"Idempotency-Key": key})).json()[
                "result"
            ]["job_id"]
            for key in ("one", "one", "two")
        ]
    assert ids[0] == ids[1] != ids[2]


async def test_the_loop_runs_while_a_large_body_is_read() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"x","params":[' + b"[5]," * 499_000 + b"5]}"
    async with served() as (_, client), Vitals(time.process_time) as vitals:
        answer = await client.post("/rpc", content=body)
    assert answer.status_code == 200 and "error" in answer.json()
    assert vitals.longest_block < 0.25


async def test_a_body_that_is_too_large_and_another_method_are_refused_in_json_rpc() -> None:
    async with served() as (_, client):
        large = await client.post("/rpc", content=b" " * (2 * 2**20 + 1))
        assert (large.status_code, large.json()["id"]) == (413, None)
        got = await client.get("/rpc")
        assert (got.status_code, got.json()["jsonrpc"]) == (405, "2.0")
