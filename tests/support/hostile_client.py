"""Clients that keep to nothing but the encoding, in a process of their own.

    python -m tests.support.hostile_client ORCHESTRATOR TARGET DRAFT SECONDS [TOKEN_FILE]

prints the number of their calls, which carry the token in the file. With inf for SECONDS it attacks
after a line "go" on stdin until a line "rest", by turns, and ends with stdin.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from outrider.rpc.channel import open_channel
from outrider.rpc.security import ClientSecurity, Metadata, call_metadata
from outrider.v1 import draft_service_pb2, orchestrator_service_pb2, target_service_pb2
from outrider.v1.draft_service_pb2_grpc import DraftServiceStub
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from outrider.v1.target_service_pb2_grpc import TargetServiceStub
from tests.support.hostile import ROOT, RandomMessages

ATTACKERS = 4
CALL_SECONDS = 5.0
_ENDS = (  # of a call: refused, misused, too long, or over when it was written to
    *(grpc.aio.AioRpcError, grpc.aio.UsageError, TimeoutError, asyncio.InvalidStateError),
)
_SERVICES = (
    (orchestrator_service_pb2, "OrchestratorService", OrchestratorServiceStub),
    (target_service_pb2, "TargetService", TargetServiceStub),
    (draft_service_pb2, "DraftService", DraftServiceStub),
)

Stubs = list[tuple[ServiceDescriptor, Any]]


class HostileClient:
    """Calls any method of the three services with random messages, in any way; `seed` decides."""

    def __init__(self, stubs: Stubs, seed: int, metadata: Metadata = ()) -> None:
        self._metadata = metadata
        self._messages = RandomMessages(seed)
        self._random = self._messages.random
        self._stubs = stubs
        self.calls = 0

    async def call(self) -> None:
        """Make one call, and see it through or not."""
        self.calls += 1
        service, stub = self._random.choice(self._stubs)
        method = self._random.choice(service.methods)
        make = getattr(stub, method.name)
        with suppress(*_ENDS):
            async with asyncio.timeout(CALL_SECONDS):
                await self._use(method, make)

    async def _use(self, method: Any, make: Callable[..., Any]) -> None:
        kind = method.input_type._concrete_class
        if not method.client_streaming:
            call = make(self._message(kind), timeout=CALL_SECONDS, metadata=self._metadata)
            await (self._read(call) if method.server_streaming else call)
            return
        call = make(timeout=CALL_SECONDS, metadata=self._metadata)
        try:
            for _ in range(self._random.choice((0, 1, 2, 5, 40))):
                await call.write(self._message(kind))
                if method.server_streaming and self._random.random() < 0.3:
                    await asyncio.wait_for(call.read(), 0.2)
            if self._random.random() < 0.5:
                await call.done_writing()
                await (self._read(call) if method.server_streaming else call)
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


async def _attack(addresses: list[str], seconds: float, token_file: str = "") -> None:
    shown = ClientSecurity(token_file=Path(token_file) if token_file else None)
    metadata = call_metadata(shown)
    may, is_over = asyncio.Event(), False

    async def attack(client: HostileClient) -> None:
        while await may.wait() and not is_over:
            await client.call()

    async with AsyncExitStack() as stack:
        stubs: Stubs = []
        for (module, name, stub), address in zip(_SERVICES, addresses, strict=True):
            channel = await stack.enter_async_context(open_channel(address))
            stubs.append((module.DESCRIPTOR.services_by_name[name], stub(channel)))
        clients = [HostileClient(stubs, seed, metadata) for seed in range(ATTACKERS)]
        attacks = [asyncio.create_task(attack(client)) for client in clients]
        if math.isfinite(seconds):
            may.set()
            await asyncio.sleep(seconds)
        else:
            await _by_word(may)
        is_over = True
        may.set()
        await asyncio.gather(*attacks)
    print(sum(client.calls for client in clients), flush=True)


async def _by_word(may: asyncio.Event) -> None:
    """Let the attack begin and rest by what is said on stdin, until its end."""
    while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if word == "go":
            may.set()
        else:
            may.clear()


@asynccontextmanager
async def hostile_clients(
    addresses: tuple[str, str, str], seconds: float
) -> AsyncIterator[Callable[[], Any]]:
    """Let clients attack the three services for so long; what is yielded waits for their count."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.hostile_client", *addresses, str(seconds)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )

    async def calls() -> int:
        output, _ = await process.communicate()
        return int(output)

    try:
        yield calls
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    asyncio.run(_attack(sys.argv[1:4], float(sys.argv[4]), *sys.argv[5:6]))
