"""One id of a request everywhere: headers, errors, logs, and at the services that it reaches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from outrider.request_scope import current
from outrider.rpc.statuses import read_error_info
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.gateway import serving
from tests.support.services import (
    TARGET,
    JoiningDraft,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    running,
    three_services,
    toy,
)

ID = (("x-request-id", "mine-7"),)
BODY = {"prompt": [5, 6, 7], "n_predict": 24, "seed": 3}


class Lines(logging.Handler):
    """The fields of what is logged, with the request that it is for."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        scope = current()
        fields = {"message": record.getMessage(), "request": scope.id if scope else ""}
        self.all.append({**fields, **getattr(record, "fields", {})})

    def of_routes(self, end: str) -> list[dict[str, Any]]:
        """Return the lines of the access log for routes that end so."""
        return [line for line in self.all if line.get("route", "").endswith(end)]


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger("outrider"), Lines()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


def trio() -> Any:
    return three_services(toy, lambda: toy(seed=9, agreement=0.7))


async def test_an_id_reaches_every_service_of_a_generation(lines: Lines) -> None:
    async with trio() as services:
        call = services.orchestrator.stub.Generate(request(), metadata=ID)
        assert dict(await call.initial_metadata())["x-request-id"] == "mine-7"
        count = prompt = 0
        async for response in call:
            count += len(response.delta.token_ids)
            prompt += len(response.started.prompt_token_ids)
        ends = ("/Generate", "/Verify", "/Draft")
        await eventually(lambda: all(lines.of_routes(end) for end in ends), 60.0)
        for end in ends:
            assert [line["request"] for line in lines.of_routes(end)] == ["mine-7"]
        [line] = lines.of_routes("/Generate")
        assert (line["over"], line["status"], line["tokens"]) == ("grpc", "OK", count)
        assert line["prompt_tokens"] == prompt > 0
        assert line["seconds"] > 0
        [ended] = [line for line in lines.all if line["message"] == "generated"]
        assert ended["request"] == "mine-7"
        # What services say by themselves is nobody's.
        assert not [line for line in lines.all if line.get("route", "").endswith("/GetModel")]


async def test_a_draft_that_joined_knows_whose_session_it_is(lines: Lines) -> None:
    async with (
        running(ModelProcess(TARGET, toy)) as target,
        running(OrchestratorProcess(target.address, accept_drafts=True)) as orchestrator,
        running(JoiningDraft(orchestrator.address, lambda: toy(seed=9, agreement=0.7))),
    ):
        await orchestrator.until_ready()

        async def attended() -> bool:
            asked = request(token_limit=16)
            async for _ in orchestrator.stub.Generate(asked, metadata=ID):
                pass
            return bool(lines.of_routes("/Attend"))

        await eventually(attended, 60.0)
        assert {line["request"] for line in lines.of_routes("/Attend")} == {"mine-7"}


async def test_an_error_says_which_request_it_is_of(lines: Lines) -> None:
    async with trio() as services:
        wrong = messages.GenerateRequest(token_limit=-5, prompt_text="a")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in services.orchestrator.stub.Generate(wrong, metadata=ID):
                pass
        info = read_error_info(caught.value.trailing_metadata())
        assert info is not None
        assert info.metadata["requestId"] == "mine-7"
        await eventually(lambda: bool(lines.of_routes("/Generate")))
        [line] = lines.of_routes("/Generate")
        assert (line["request"], line["status"]) == ("mine-7", "INVALID_ARGUMENT")


async def test_http_and_its_generation_have_one_id(lines: Lines) -> None:
    async with (
        trio() as services,
        serving(services.orchestrator.orchestrator) as url,
        httpx.AsyncClient(timeout=60) as client,
    ):
        for stream in (False, True):
            lines.all.clear()
            body = BODY | {"stream": stream}
            answer = await client.post(f"{url}/completion", json=body, headers=dict(ID))
            assert answer.headers["x-request-id"] == "mine-7"
            await eventually(lambda: bool(lines.of_routes("/completion")))
            await eventually(lambda: bool(lines.of_routes("/Verify")))
            [line] = lines.of_routes("/completion")
            assert line["over"] == "http"
            assert (line["method"], line["status"], line["tokens"]) == ("POST", 200, 24)
            assert line["prompt_tokens"] == 3
            assert "cut_off" not in line
            assert [each["request"] for each in lines.of_routes("/Verify")] == ["mine-7"]


async def test_two_requests_without_an_id_get_two(lines: Lines) -> None:
    async with trio() as services:
        for _ in range(2):
            await generate(services.orchestrator, request(token_limit=2))
        await eventually(lambda: len(lines.of_routes("/Generate")) == 2)
        ids = {line["request"] for line in lines.of_routes("/Generate")}
        assert len(ids) == 2
        assert all(len(each) == 32 for each in ids)
