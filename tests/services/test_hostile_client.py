"""Clients that keep to nothing but the encoding: those beside them get their texts in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from outrider.v1 import draft_service_pb2, orchestrator_service_pb2, target_service_pb2
from tests.support.hostile import RandomMessages, Vitals
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
RANDOM_SECONDS = 600.0 if THOROUGH else 8.0
ATTACKERS = 4
CALL_SECONDS = 5.0
_ENDS = (  # of a call: refused, misused, too long, or over when it was written to
    *(grpc.aio.AioRpcError, grpc.aio.UsageError, TimeoutError, asyncio.InvalidStateError),
)


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER, sequence_count=6)


def draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.9, eos_bias=NEVER, sequence_count=6)


class HostileClient:
    """Calls any method of the three services with random messages, in any way; `seed` decides."""

    def __init__(self, trio: Trio, seed: int) -> None:
        self._messages = RandomMessages(seed)
        self._random = self._messages.random
        self._targets = [
            (orchestrator_service_pb2, "OrchestratorService", trio.orchestrator.stub),
            (target_service_pb2, "TargetService", trio.target.stub),
            (draft_service_pb2, "DraftService", trio.draft.stub),
        ]
        self.calls = 0

    async def call(self) -> None:
        """Make one call, and see it through or not."""
        self.calls += 1
        module, name, stub = self._random.choice(self._targets)
        service = module.DESCRIPTOR.services_by_name[name]
        method = self._random.choice(service.methods)
        make = getattr(stub, method.name)
        with suppress(*_ENDS):
            async with asyncio.timeout(CALL_SECONDS):
                await self._use(method, make)

    async def _use(self, method: Any, make: Callable[..., Any]) -> None:
        kind = method.input_type._concrete_class
        if not method.client_streaming:
            call = make(self._message(kind), timeout=CALL_SECONDS)
            await (self._read(call) if method.server_streaming else call)
            return
        call = make(timeout=CALL_SECONDS)
        try:
            for _ in range(self._random.choice((0, 1, 2, 5, 40))):
                await call.write(self._message(kind))
                if self._random.random() < 0.3:
                    await asyncio.wait_for(call.read(), 0.2)
            if self._random.random() < 0.5:
                await call.done_writing()
                await self._read(call)
        finally:
            call.cancel()

    async def _read(self, call: Any) -> None:
        """Read to the end, a little, or nothing."""
        for _ in range(self._random.choice((0, 1, 10, 1000))):
            if await call.read() is grpc.aio.EOF:
                return
        await asyncio.sleep(self._random.choice((0.0, 0.5)))
        call.cancel()

    def _message(self, kind: type[Message]) -> Message:
        """Return a random message; most openings are of a session that could be."""
        message: Any = self._messages.message(kind)
        fields = kind.DESCRIPTOR.fields_by_name
        if "session_id" in fields and self._random.random() < 0.8:
            message.session_id = self._random.randrange(8).to_bytes(16, "big")
        if "open" in fields and self._random.random() < 0.5:
            message.Clear()
            self._open(message.open)
        if "prompt_text" in fields and self._random.random() < 0.5:
            message.prompt_text = "the rain in spain"
        return message  # type: ignore[no-any-return]

    def _open(self, opening: Any) -> None:
        opening.session_id = self._random.randrange(8).to_bytes(16, "big")
        opening.attempt = self._random.randrange(5)
        opening.acceptance_rule = self._random.choice((1, 2, 3))
        opening.prompt_token_count = 4
        opening.token_limit = 100
        opening.vocabulary_token_count = 64


async def attack(client: HostileClient, end: float) -> None:
    while time.monotonic() < end:
        await client.call()


async def ask(trio: Trio, number: int) -> None:
    asked = request(f"text {number}", seed=number, token_limit=LENGTH, temperature=number % 2 * 0.8)
    completion = Completion()
    await _patiently(lambda: generate(trio.orchestrator, asked, into=completion, timeout=30.0))
    assert completion.token_ids == written_alone(target(), asked), f"text {number}"


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
    async with three_services(target, draft, request_seconds=30.0) as trio, Vitals() as vitals:
        end = time.monotonic() + RANDOM_SECONDS
        clients = [HostileClient(trio, seed) for seed in range(ATTACKERS)]
        attacks = [asyncio.create_task(attack(client, end)) for client in clients]
        number = 0
        while time.monotonic() < end:
            number += 1
            await ask(trio, number)
        await asyncio.gather(*attacks)
        await ask(trio, number + 1)
        assert trio.orchestrator.pair.target.ready
    assert sum(client.calls for client in clients) > 20
    assert vitals.growth < 100e6
    assert vitals.longest_block < 0.2
