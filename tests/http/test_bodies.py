"""Bodies of megabytes are read without stopping the event loop."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from gateway.bodies import LARGE_BYTES, parse
from tests.support.gateway import serving

VALUES: list[Any] = [
    {"a": [1, -2.5e3, True, None, "ä\n\U0001f600", {"b": []}]},
    [[i, 0.5] for i in range(100)],
    "text",
    12,
]


@pytest.mark.parametrize("value", VALUES)
def test_it_reads_what_json_reads(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert parse(text.encode()) == value


@pytest.mark.parametrize("text", [b"", b"{", b"[1,]", b'{"a" 1}', b"[1] 2", b"nul"])
def test_it_refuses_what_json_refuses(text: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse(text)


@pytest.mark.fault(
    "others",
    "a body of megabytes, and everybody else's streams",
    before="reading its JSON stopped the event loop, for 0.4 s with 4 MB of small lists",
    now="large bodies are read in a thread that gives way",
)
async def test_the_loop_runs_while_a_large_body_is_read() -> None:
    body = json.dumps([[i % 200, 0.5] for i in range(200_000)]).encode()
    reading = asyncio.ensure_future(asyncio.to_thread(parse, body))
    turns, begin = 0, time.monotonic()
    while not reading.done():
        await asyncio.sleep(0.001)
        turns += 1
    # Between two turns are some milliseconds, and in C there would be one or two turns in all.
    assert turns >= 10, f"{turns} turns in {time.monotonic() - begin:.2f} s"


async def test_large_bodies_are_answered_like_small_ones() -> None:
    async with serving() as url, httpx.AsyncClient(timeout=20) as client:
        for size in (1, LARGE_BYTES + 1):
            padding = " " * size
            good = f'{{"prompt": "a", "n_predict": 2{padding}}}'
            assert (await client.post(f"{url}/completion", content=good)).status_code == 200
            bad = f'{{"prompt": "a"{padding}'
            assert (await client.post(f"{url}/completion", content=bad)).status_code == 400


@pytest.mark.parametrize(
    "field",
    [
        {"x": [[0.5]] * 20_000},
        {"prompt": [1] * (2**18 + 1)},
        {"x": {str(i): 1 for i in range(15_000)}},
    ],
    ids=["lists", "ids", "names"],
)
async def test_a_body_of_too_many_values_is_refused(field: dict[str, Any]) -> None:
    async with serving() as url, httpx.AsyncClient(timeout=20) as client:
        answer = await client.post(
            f"{url}/completion", json={"prompt": "a", "n_predict": 2} | field
        )
    assert answer.status_code == 400
    assert "more than" in answer.json()["error"]["message"]
