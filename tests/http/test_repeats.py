"""Requests that are sent again with their `Idempotency-Key`: one generation, one answer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import repeats
from outrider.errors import DecodeFailed, EngineBusy
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.gateway import serving
from tests.support.services import PATIENCE, eventually

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ("/v1/responses", {"input": "a"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 50}),
    ("/completion", {"prompt": "a"}),
]
BODY = {"prompt": "a"}


async def post(url: str, body: Any, key: str = "a-key", **headers: str) -> httpx.Response:
    sent = {**({"Idempotency-Key": key} if key else {}), **headers}
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.post(url, json=body, headers=sent)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_the_same_key_brings_the_same_answer(
    path: str, body: dict[str, Any], streams: bool
) -> None:
    fake = FakeOrchestrator()
    async with serving(fake) as url:
        first = await post(url + path, body | {"stream": streams})
        again = await post(url + path, body | {"stream": streams})
        other = await post(url + path, body | {"stream": streams}, key="another")
    assert first.status_code == again.status_code == 200
    assert again.content == first.content, "ids, times and all"
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert "idempotent-replayed" not in other.headers
    assert len(fake.requests) == 2


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_another_request_with_the_key_is_refused_in_the_shape_of_the_route(
    path: str, body: dict[str, Any]
) -> None:
    fake = FakeOrchestrator()
    async with serving(fake) as url:
        await post(url + path, body)
        refused = await post(url + path, body | {"temperature": 0.5})
    assert refused.status_code == 422
    assert "another request" in refused.json()["error"]["message"]
    assert len(fake.requests) == 1


async def test_a_bad_key_is_refused() -> None:
    async with serving() as url:
        refused = await post(f"{url}/v1/completions", BODY, key="x" * 256)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "Idempotency-Key"


async def test_without_a_key_nothing_is_repeated() -> None:
    fake = FakeOrchestrator()
    async with serving(fake) as url:
        for _ in range(2):
            await post(f"{url}/v1/completions", BODY, key="")
    assert len(fake.requests) == 2


@pytest.mark.parametrize("streams", [False, True])
async def test_who_comes_while_it_is_in_flight_gets_the_same_answer(streams: bool) -> None:
    fake = FakeOrchestrator()
    fake.stalls_after = 2
    body = BODY | {"stream": streams}
    async with serving(fake) as url:
        asking = [asyncio.create_task(post(f"{url}/v1/completions", body)) for _ in range(3)]
        await asyncio.wait_for(fake.stalled.wait(), PATIENCE)
        asking += [asyncio.create_task(post(f"{url}/v1/completions", body)) for _ in range(3)]
        refused = await post(f"{url}/v1/completions", body | {"seed": 1})
        assert refused.status_code == 422
        fake.go_on.set()
        found = await asyncio.gather(*asking)
    assert len({each.content for each in found}) == 1
    assert {each.status_code for each in found} == {200}
    assert len(fake.requests) == 1


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_lost_its_connection_finds_its_answer(streams: bool) -> None:
    fake = FakeOrchestrator()
    fake.stalls_after = 1
    body = BODY | {"stream": streams}
    async with serving(fake) as url:
        asking = asyncio.create_task(post(f"{url}/v1/completions", body))
        await asyncio.wait_for(fake.stalled.wait(), PATIENCE)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        again = asyncio.create_task(post(f"{url}/v1/completions", body))
        fake.go_on.set()
        found = await again
    assert found.status_code == 200
    assert found.text.endswith("data: [DONE]\n\n") if streams else "Hello" in found.text
    assert len(fake.requests) == 1


async def test_what_nobody_comes_back_for_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "ABANDONED_SECONDS", 0.05)
    fake = FakeOrchestrator()
    fake.stalls_after = 1
    async with serving(fake) as url:
        asking = asyncio.create_task(post(f"{url}/v1/completions", BODY | {"stream": True}))
        await asyncio.wait_for(fake.stalled.wait(), PATIENCE)
        asking.cancel()
        await eventually(lambda: fake.closed_count == 1)
        fake.stalls_after = None
        again = await post(f"{url}/v1/completions", BODY | {"stream": True})
    assert "idempotent-replayed" not in again.headers
    assert len(fake.requests) == 2


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("error", [DecodeFailed("no"), EngineBusy("no", 1.0)])
async def test_what_failed_is_tried_again(streams: bool, after: int, error: Exception) -> None:
    fake = FakeOrchestrator()
    fake.error, fake.error_after = error, after
    async with serving(fake) as url:
        first = await post(f"{url}/v1/completions", BODY | {"stream": streams})
        assert first.status_code != 200 or "error" in first.text
        fake.error = None
        again = await post(f"{url}/v1/completions", BODY | {"stream": streams})
    assert again.status_code == 200 and "error" not in again.text
    assert len(fake.requests) == 2


async def test_a_key_is_its_callers() -> None:
    """Who shows another API key than the right one does not come as far."""
    fake = FakeOrchestrator()
    key = "a key of sixteen characters"
    async with serving(fake, api_key=key) as url:
        first = await post(f"{url}/v1/completions", BODY, Authorization=f"Bearer {key}")
        assert first.status_code == 200
        for headers in ({}, {"Authorization": "Bearer another"}):
            assert (await post(f"{url}/v1/completions", BODY, **headers)).status_code == 401


async def test_an_answer_beyond_the_bound_is_sent_and_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeats, "MOST_ANSWER_BYTES", 2000)
    fake = FakeOrchestrator(text="Hello! " * 100)
    body = BODY | {"stream": True, "max_tokens": 400}
    async with serving(fake) as url:
        first = await post(f"{url}/v1/completions", body)
        again = await post(f"{url}/v1/completions", body)
    assert first.text.endswith("data: [DONE]\n\n") and len(first.content) > 2000
    assert again.text.endswith("data: [DONE]\n\n")
    assert len(fake.requests) == 2


async def test_a_body_that_is_too_long_is_refused_as_without_a_key() -> None:
    async with serving(body_bytes=100) as url:
        refused = await post(f"{url}/v1/completions", {"prompt": "a" * 200})
    assert refused.status_code == 413


@pytest.mark.parametrize("streams", [False, True])
async def test_a_server_that_stops_says_so_to_all_who_listen(streams: bool) -> None:
    fake = FakeOrchestrator()
    fake.stalls_after = 1
    body = BODY | {"stream": streams}
    async with serving(fake) as url:
        asking = [asyncio.create_task(post(f"{url}/v1/completions", body)) for _ in range(2)]
        await asyncio.wait_for(fake.stalled.wait(), PATIENCE)
    found = await asyncio.wait_for(asyncio.gather(*asking), PATIENCE)
    for each in found:
        assert "the server is stopping" in each.text
    assert fake.closed_count == 1


@pytest.mark.parametrize("streams", [False, True])
async def test_answers_outlive_the_process_with_a_state(tmp_path: Path, streams: bool) -> None:
    fake = FakeOrchestrator()
    body = BODY | {"stream": streams}
    async with serving(fake, state=tmp_path) as url:
        first = await post(f"{url}/v1/completions", body)
    async with serving(fake, state=tmp_path) as url:
        again = await post(f"{url}/v1/completions", body)
        other = await post(f"{url}/v1/completions", body | {"seed": 2})
    assert again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers["idempotent-replayed"] == "true"
    assert other.status_code == 422
    assert len(fake.requests) == 1


async def test_kept_answers_are_bounded_in_age_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeOrchestrator()
    body = {"prompt": "a" * 40_000, "echo": True}
    async with serving(fake, state=tmp_path) as url:
        size = len((await post(f"{url}/v1/completions", body)).content)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 601.0)
    async with serving(fake, state=tmp_path) as url:
        assert "idempotent-replayed" not in (await post(f"{url}/v1/completions", body)).headers
    monkeypatch.undo()
    fake.requests.clear()
    monkeypatch.setattr(repeats, "MOST_BYTES", 3 * size)
    async with serving(fake, state=tmp_path / "small") as url:
        for key in "abcd":
            await post(f"{url}/v1/completions", body, key=key)
    async with serving(fake, state=tmp_path / "small") as url:
        await post(f"{url}/v1/completions", body, key="a")
        assert len(fake.requests) == 5, "the oldest made room"
        await post(f"{url}/v1/completions", body, key="d")
        assert len(fake.requests) == 5
