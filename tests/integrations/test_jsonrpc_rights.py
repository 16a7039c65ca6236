"""Named tokens at JSON-RPC and the orchestrator behind it: who may what, and how much of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from gateway.config import HttpConfig
from gateway.serving import AppServer
from outrider.client import OutriderClient
from outrider_jsonrpc.app import create_app
from outrider_jsonrpc.methods import LibraryRpc
from outrider_jsonrpc.pairs import Pairs, WantedPair
from tests.services.test_rights import Guarded, guarded
from tests.support.certificates import token_of
from tests.support.services import PATIENCE


class CountedPairs(Pairs):
    """Loads nothing, and counts how often it should."""

    begun = 0

    async def begin(self, wanted: WantedPair) -> None:  # type: ignore[override]
        self.begun += 1


@asynccontextmanager
async def served(one: Guarded) -> AsyncIterator[tuple[str, CountedPairs]]:
    """Yield the URL of JSON-RPC whose tokens are the orchestrator's."""
    pairs = CountedPairs(OutriderClient(one.orchestrator.address))
    config = HttpConfig(listen="127.0.0.1:0", tokens=one.folder / "tokens.toml")
    server = AppServer(config, create_app(LibraryRpc(pairs, may_load=True), config))
    await server.start()
    try:
        yield f"http://{server.address}", pairs
    finally:
        await server.stop()
        await pairs.close()


def http(url: str, name: str = "") -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {token_of(name)}"} if name else {}
    headers["Outrider-Client"] = "editor"
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE)


async def rpc(client: httpx.AsyncClient, method: str, **params: Any) -> Any:
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return (await client.post("/rpc", json=call)).json()


async def test_who_shows_no_token_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    async with guarded(tmp_path) as one, served(one) as (url, _), http(url) as nobody:
        answer = await nobody.post("/rpc", content=b"{")
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == -32008


async def test_init_is_for_operators(tmp_path: Path) -> None:
    async with guarded(tmp_path) as one, served(one) as (url, pairs):
        for name, begun in (("alice", 0), ("olga", 1)):
            async with http(url, name) as client:
                told = await rpc(client, "init_async", model="model.gguf")
            assert pairs.begun == begun
            refused = told.get("error", {}).get("code") == -32019
            assert refused is (begun == 0)


async def test_callers_of_one_name_with_two_tokens_are_two(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as one,
        served(one) as (url, _),
        http(url, "alice") as alice,
        http(url, "bob") as bob,
    ):
        started = await rpc(alice, "async_completion_init", prompt="ab", n_predict=4)
        for named in ({}, {"job_id": started["result"]["job_id"]}):
            refused = await rpc(bob, "async_completion_poll", **named)
            assert refused["error"]["data"]["reason"] == "NOT_FOUND"
        assert (await rpc(bob, "deinit"))["result"] == {"success": True}
        assert "result" in await rpc(alice, "async_completion_poll")


async def test_a_batch_counts_each_text_that_it_asks_for(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, alice="requests_per_minute = 4") as one,
        served(one) as (url, _),
        http(url, "alice") as alice,
    ):
        asked = {"prompt": "ab", "n_predict": 1, "repeat_penalty": 1.0}
        calls = [
            {"jsonrpc": "2.0", "id": number, "method": "get_completion", "params": asked}
            for number in range(6)
        ]
        answers = (await alice.post("/rpc", json=calls)).json()
        assert [each["id"] for each in answers] == [*range(6)]
        assert ["result" in each for each in answers] == [True] * 4 + [False] * 2
        for each in answers[4:]:
            assert each["error"]["code"] == -32018
            assert each["error"]["data"]["metadata"]["retrySeconds"] == "15.0"
