"""Clients that ask and do not read: their work ends, and what waits for them is bounded."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import aclosing
from functools import partial

import pytest

from outrider.rpc.server import ServerConfig
from outrider.v1 import common_pb2 as common
from outrider.wire_requests import read_request
from target_service.servicer import _VerifyStream
from tests.support import services
from tests.support.hostile import Vitals
from tests.support.services import (
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    request,
    running,
)
from tests.support.streams import VerifyStream
from tests.support.toy import NEVER, ToyModel


def large() -> ToyModel:
    return ToyModel(vocabulary_size=20_000, context=9000, order=2, batch_rows=512, eos_bias=NEVER)


@pytest.mark.fault(
    "others",
    "A client reads nothing of its text, or its prompt is read for long",
    before="it counted among those who share decodes, and others' drafts were shorter for it",
    now="those count whose rows came within a second, or four times the time between two of them",
)
async def test_a_text_that_stands_still_does_not_count_among_those_who_share_decodes() -> None:
    asked = request(token_limit=8000, temperature=0.0)
    async with (
        running(ModelProcess(TARGET, large, pace=0.002)) as target,
        running(OrchestratorProcess(target.address, request_seconds=600.0)) as orchestrator,
    ):
        await orchestrator.until_ready()
        costs = orchestrator.pool.standing.costs
        stalled, read = (orchestrator.orchestrator.generate(read_request(asked)) for _ in range(2))
        async with aclosing(stalled), aclosing(read):
            for stream in (stalled, read):
                for _ in range(3):
                    await anext(stream)
            assert costs.generation_count == 2
            begin = time.monotonic()
            while time.monotonic() - begin < 1.5:
                await anext(read)
            assert costs.generation_count == 1
            assert (await orchestrator.status()).active_generation_count == 2


@pytest.mark.fault(
    "hang",
    "gRPC clients that do not read what they asked for",
    before="their generation, and a sequence of the target, lasted until its time limit",
    now="a stream of which nothing is read for 30 seconds (--stall-timeout) ends",
)
async def test_a_generation_that_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = partial(ServerConfig, stall_seconds=0.5)
    monkeypatch.setattr(services, "ServerConfig", impatient)
    asked = request(token_limit=8000, temperature=0.0)
    asked.logprobs.top_count = 128
    async with (
        running(ModelProcess(TARGET, large)) as target,
        running(OrchestratorProcess(target.address, request_seconds=600.0)) as orchestrator,
    ):
        await orchestrator.until_ready()
        call = orchestrator.stub.Generate(asked)
        await call.read()
        assert (await orchestrator.status()).active_generation_count == 1

        async def is_over() -> bool:
            return (await orchestrator.status()).active_generation_count == 0

        await eventually(is_over, 90)  # some megabytes fill what is between them
        call.cancel()


@pytest.mark.fault(
    "hang",
    "a client pushes rounds into a target and reads no answers",
    before="all of them were decoded and kept: the target grew to 2 GB",
    now="of one stream 16 rounds wait at most; the rest stays with the client",
)
async def test_rounds_whose_answers_nobody_reads_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    receive = _VerifyStream._receive

    def counted(stream: _VerifyStream, message: object) -> None:
        taken.append(1)
        receive(stream, message)  # type: ignore[arg-type]

    monkeypatch.setattr(_VerifyStream, "_receive", counted)
    async with (
        running(ModelProcess(TARGET, large)) as target,
        Vitals() as vitals,
        VerifyStream(target, vocabulary_token_count=20_000) as stream,
    ):

        async def push() -> None:
            for number in range(1, 400):
                span = list(range(5, 5 + number))
                await stream.send_round(number, 0, span, form=common.ROW_FORM_LOGITS)

        pushing = asyncio.create_task(push())
        await asyncio.wait([pushing], timeout=3.0)
        pushing.cancel()
        gc.collect()
        # Answers of 80 kB: some are written, as far as gRPC's buffers go.
        assert 16 <= len(taken) < 200
        assert vitals.growth < 100e6
