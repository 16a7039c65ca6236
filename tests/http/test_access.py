"""Request ids over HTTP, and the line of the log that each request is."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.gateway import serving

KEY = "a key of sixteen characters"
MINE = {"X-Request-Id": "mine-7"}


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the lines of the access log."""
    return [each.fields for each in caplog.records if each.name == "outrider.access"]  # type: ignore[attr-defined]


async def until_logged(caplog: pytest.LogCaptureFixture, count: int) -> list[dict[str, Any]]:
    """Return the lines once there are so many: they come after the answer."""
    async with asyncio.timeout(30):
        while len(fields(caplog)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return fields(caplog)


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "outrider")


async def test_every_answer_has_an_id_refusals_too(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(api_key=KEY) as url, httpx.AsyncClient() as client:
        refused = await client.get(f"{url}/v1/models", headers=MINE)
        assert (refused.status_code, refused.headers["x-request-id"]) == (401, "mine-7")
        client.headers["Authorization"] = f"Bearer {KEY}"
        made = await client.get(f"{url}/v1/models")
        assert len(made.headers["x-request-id"]) == 32
        odd = await client.get(f"{url}/v1/models", headers={"X-Request-Id": "x" * 200})
        assert len(odd.headers["x-request-id"]) == 32
        lines = await until_logged(caplog, 3)
    assert [(line["route"], line["status"]) for line in lines] == [
        ("/v1/models", 401),
        ("/v1/models", 200),
        ("/v1/models", 200),
    ]


async def test_no_line_holds_what_a_user_wrote(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as url, httpx.AsyncClient() as client:
        await client.get(f"{url}/secret?secret=secret")
        await client.get(f"{url}/v1/models/secret")
        await client.get(f"{url}/page/secret")
        lines = await until_logged(caplog, 3)
    assert [line["route"] for line in lines] == [
        *("none", "/v1/models/{model:path}", "/page/{name:path}"),
    ]
    assert {line["status"] for line in lines} == {404}
    assert "secret" not in str(lines)


async def test_what_machines_ask_for_all_the_time_is_a_line_where_it_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as url, httpx.AsyncClient() as client:
        for path in ("/livez", "/metrics", "/status"):
            assert (await client.get(url + path)).status_code == 200
        await client.post(f"{url}/metrics")
        [line] = await until_logged(caplog, 1)
    assert (line["method"], line["route"], line["status"]) == ("POST", "/metrics", 405)


async def test_a_client_that_hangs_up_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeOrchestrator()
    fake.stalls_after = 1
    async with serving(fake) as url, httpx.AsyncClient() as client:
        body = {"prompt": "a"}
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{url}/completion", json=body, timeout=httpx.Timeout(60, read=0.5))
        [line] = await until_logged(caplog, 1)
    assert (line["route"], line["status"]) == ("/completion", 499)


async def test_errors_have_the_id_where_their_shape_has_a_place() -> None:
    async with serving() as url, httpx.AsyncClient() as client:
        message = await client.post(f"{url}/v1/messages", json={}, headers=MINE)
        assert message.json()["request_id"] == "mine-7" == message.headers["request-id"]
        chat = await client.post(f"{url}/v1/completions", json={}, headers=MINE)
        assert set(chat.json()["error"]) == {"message", "type", "param", "code"}
        assert chat.headers["x-request-id"] == "mine-7"


SET: Any = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
SAYS = "passed over: `uniqueItems` (at #/properties/a)"
FORM: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SET}}
CHAT: Any = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a", "b"], "response_format": FORM}),
        ("/v1/chat/completions", {**CHAT, "response_format": FORM}),
        ("/v1/chat/completions", {**CHAT, "response_format": FORM, "stream": True}),
        ("/v1/responses", {"input": "a", "text": {"format": {**FORM["json_schema"], **FORM}}}),
        (
            "/v1/messages",
            {**CHAT, "output_config": {"format": {"type": "json_schema", "schema": SET}}},
        ),
        ("/completion", {"prompt": "a", "json_schema": SET, "stream": True}),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": SET}}),
    ],
)
async def test_what_a_schema_asks_for_and_no_grammar_keeps_is_named(path: str, body: Any) -> None:
    async with serving() as url, httpx.AsyncClient() as client:
        answer = await client.post(f"{url}{path}", json=body)
        assert (answer.status_code, answer.headers["outrider-warning"]) == (200, SAYS)
        kept = await client.post(f"{url}/completion", json={"prompt": "a", "json_schema": {}})
        assert kept.status_code == 200 and "outrider-warning" not in kept.headers


async def test_the_header_ends_after_some_keywords() -> None:
    texts = [{"type": "string", "format": f"{i}\n" + "é" * 100} for i in range(40)]
    schema = {"properties": {f"{i}" + "é\n" * 60: text for i, text in enumerate(texts)}}
    async with serving() as url, httpx.AsyncClient() as client:
        answer = await client.post(f"{url}/completion", json={"prompt": "a", "json_schema": schema})
    said = answer.headers["outrider-warning"]
    assert said.endswith("; and 32 more") and len(said) < 2000 and said.isprintable()
