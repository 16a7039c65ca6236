"""Texts on their way to the target: bounded before they are tokenized, and in nobody's way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1 import target_service_pb2
from tests.support.services import (
    PATIENCE,
    TARGET,
    Gate,
    ModelProcess,
    OrchestratorProcess,
    Trio,
    generate,
    request,
    running,
    three_services,
    toy,
)
from tests.support.toy import NEVER, ToyModel


class Listening(ToyModel):
    """A toy that notes the texts it tokenizes."""

    def __init__(self) -> None:
        super().__init__(context=256, order=256, batch_rows=128, eos_bias=NEVER)
        self.heard: list[bytes] = []

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        self.heard.append(text)
        return super().tokenize(text, add_special, parse_special)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trio() -> AsyncIterator[Trio]:
    async with three_services(Listening, toy) as services:
        yield services


async def refusal(trio: Trio, asked: messages.GenerateRequest) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(trio.orchestrator, asked)
    return str(caught.value.details())


@pytest.mark.fault(
    "others",
    "a prompt far beyond the context",
    before="3.9 MB were tokenized on the engine's thread, 7 s in which no text continued",
    now="refused before it is tokenized",
)
async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(trio: Trio) -> None:
    trio.target.model.heard.clear()
    asked = request("the rain " * 400_000)
    assert (await refusal(trio, asked)).startswith("prompt too long (at least ")
    asked.prompt_parts.parts.add().text = "the rain " * 400_000
    assert (await refusal(trio, asked)).startswith("prompt too long (at least ")
    asked.overflow.truncate_prompt = True
    assert "bytes, at most 1048576" in await refusal(trio, asked)
    assert trio.target.model.heard == []


@pytest.mark.fault(
    "others",
    "100,000 logit biases by text",
    before="one call to the target for each, before they were counted",
    now="counted first, and tokenized in one call",
)
async def test_logit_biases_are_counted_before_they_are_tokenized(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)  # a toy fails of them
    asked = request(token_limit=2)
    for _ in range(4097):
        asked.sampling.logit_biases.add(text="rain", bias=1.0)
    trio.target.model.heard.clear()
    assert "4097 of them, at most 4096" in await refusal(trio, asked)
    assert trio.target.model.heard == []
    del asked.sampling.logit_biases[2:]
    asked.sampling.logit_biases.add(text="the rain in spain " * 300, bias=1.0)
    assert "at most 4096" in await refusal(trio, asked)
    asked.sampling.logit_biases.pop()
    assert "is not for toys" in await refusal(trio, asked)
    assert trio.target.model.heard[-3:-1] == [b"rain", b"rain"]


async def test_so_many_tokens_are_turned_into_text_and_no_more(trio: Trio) -> None:
    stub = trio.orchestrator.stub
    with pytest.raises(grpc.aio.AioRpcError, match="token_ids: 1048577, at most 1048576"):
        await stub.Detokenize(messages.DetokenizeRequest(token_ids=[5] * 1048577))


async def test_a_prompt_has_so_many_parts_and_no_more(trio: Trio) -> None:
    asked = request(token_limit=2)
    for _ in range(4097):
        asked.prompt_parts.parts.add().text = "a"
    trio.target.model.heard.clear()
    assert await refusal(trio, asked) == "prompt: 4097 texts, at most 4096"
    assert trio.target.model.heard == []


@pytest.mark.fault(
    "others",
    "a decode that takes long",
    before="GetModel and Tokenize waited for it: a second orchestrator was not ready for 12 s",
    now="none of them waits for a decode",
)
async def test_what_reads_no_cells_waits_for_no_decode() -> None:
    async with running(ModelProcess(TARGET, toy)) as target:
        gate = Gate(target.model)
        async with running(OrchestratorProcess(target.address)) as first:
            await first.until_ready()
            writing = asyncio.create_task(generate(first, request(token_limit=2)))
            await gate.reached()
            assert (await target.activity()).open_session_count == 1
            tokenize = target_service_pb2.TokenizeRequest(texts=["the rain"])
            await target.stub.Tokenize(tokenize, timeout=PATIENCE)
            async with running(OrchestratorProcess(target.address)) as second:
                await second.until_ready()
            assert not writing.done()
            await gate.open()
            await writing


async def test_a_short_text_does_not_wait_for_long_ones() -> None:
    way = threading.Event()
    model = toy(context=65536)
    tokenize = model.tokenize

    def wait_if_long(text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        assert len(text) < 1000 or way.wait(PATIENCE)
        return tokenize(text[:1000], add_special, parse_special)

    model.tokenize = wait_if_long
    async with running(ModelProcess(TARGET, lambda: model)) as target:
        long = target_service_pb2.TokenizeRequest(texts=["a" * 100_000])
        short = target_service_pb2.TokenizeRequest(texts=["a"])
        many = [asyncio.create_task(_tokenize(target, long)) for _ in range(64)]
        for _ in range(64):
            await _tokenize(target, short)
        assert not any(each.done() for each in many)
        way.set()
        await asyncio.gather(*many)


async def _tokenize(target: ModelProcess, asked: target_service_pb2.TokenizeRequest) -> None:
    await target.stub.Tokenize(asked, timeout=PATIENCE)
