"""Clients that keep to nothing but the encoding: those beside them get their texts in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from tests.support.hostile import Vitals
from tests.support.hostile_client import hostile_clients
from tests.support.services import (
    Completion,
    Trio,
    generate,
    request,
    three_services,
    toy,
    written_alone,
)
from tests.support.thorough import THOROUGH
from tests.support.toy import NEVER, ToyModel

LENGTH = 40
RANDOM_SECONDS = 600.0 if THOROUGH else 4.0


def target() -> ToyModel:
    return toy(keeps_decodes=False, seed=1, eos_bias=NEVER, sequence_count=6)


def draft() -> ToyModel:
    return toy(
        keeps_decodes=False,
        seed=2,
        like=1,
        agreement=0.9,
        eos_bias=NEVER,
        sequence_count=6,
    )


async def ask(trio: Trio, number: int) -> None:
    asked = request(f"text {number}", seed=number, token_limit=LENGTH, temperature=number % 2 * 0.8)
    completion = Completion()
    await _patiently(lambda: generate(trio.orchestrator, asked, into=completion, timeout=30.0))
    alone = await asyncio.to_thread(written_alone, target(), asked)
    assert completion.token_ids == alone, f"text {number}"


async def _patiently(make: Callable[[], Awaitable[Any]]) -> None:
    """Try again where the orchestrator says that it is full, as clients are asked to."""
    for _ in range(50):
        try:
            await make()
            return
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            await asyncio.sleep(0.1)
    raise AssertionError("the orchestrator was full for five seconds")


@pytest.mark.fault(
    "hang",
    "clients call at random: any method, any field, any value, half of a stream",
    before="not tried",
    now="they change no other text, miss no deadline, and fill or block no process",
)
@pytest.mark.timeout(RANDOM_SECONDS + 120)
async def test_nothing_that_clients_send_harms_those_beside_them() -> None:
    async with three_services(target, draft, request_seconds=30.0) as trio:
        addresses = (trio.orchestrator.address, trio.target.address, trio.draft.address)
        async with hostile_clients(addresses, RANDOM_SECONDS) as calls, Vitals() as vitals:
            end = time.monotonic() + RANDOM_SECONDS
            number = 0
            while time.monotonic() < end:
                number += 1
                await ask(trio, number)
            assert await calls() > 20
            await ask(trio, number + 1)
        assert trio.orchestrator.pool.target.ready
    assert vitals.growth < 100e6
    assert vitals.longest_block < 0.2
