"""What a person reads of calls that gRPC itself ended: words, none of gRPC's."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from draft_service import joining
from draft_service.joining import Joining
from outrider.rpc.security import ClientSecurity
from outrider.rpc.statuses import describe
from outrider.v1.draft_registry_service_pb2_grpc import DraftRegistryServiceStub


def ended(code: str, details: str) -> AioRpcError:
    return AioRpcError(grpc.StatusCode[code], Metadata(), Metadata(), details)


@pytest.mark.parametrize(
    ("code", "details", "words"),
    [
        ("UNAVAILABLE", "Cancelling all calls", "it is stopping"),
        ("UNAVAILABLE", "recvmsg:Connection reset by peer", "the connection was closed"),
        ("UNAVAILABLE", "ping timeout", "the connection is dead"),
        (
            "UNAVAILABLE",
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to"
            " connect to remote host: Connection refused",
            "the connection is refused",
        ),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", "it did not answer in time"),
        ("UNIMPLEMENTED", "Method not found!", "it does not know this call"),
        ("RESOURCE_EXHAUSTED", "the queue is full", "RESOURCE_EXHAUSTED: the queue is full"),
        ("INTERNAL", "", "INTERNAL: no details"),
    ],
)
def test_what_grpc_ended_is_said_in_words_and_what_a_peer_says_is_kept(
    code: str, details: str, words: str
) -> None:
    assert describe(ended(code, details)) == words


class _Orchestrator(grpc.GenericRpcHandler):
    """Takes in a draft and says nothing, until it is stopped."""

    def __init__(self) -> None:
        self.called = asyncio.Event()

    def service(self, handler_call_details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._hang)

    async def _hang(self, requests: Any, context: Any) -> None:
        self.called.set()
        await asyncio.Event().wait()


async def _started() -> tuple[grpc.aio.Server, _Orchestrator, str]:
    server, orchestrator = grpc.aio.server(), _Orchestrator()
    server.add_generic_rpc_handlers([orchestrator])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, orchestrator, f"127.0.0.1:{port}"


async def test_a_server_that_stops_is_said_to_be_stopping() -> None:
    server, orchestrator, address = await _started()
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = DraftRegistryServiceStub(channel).Join()
        await orchestrator.called.wait()
        await server.stop(0)
        with pytest.raises(AioRpcError) as caught:
            await call.read()
    assert describe(caught.value) == "it is stopping"


async def test_a_draft_says_that_the_orchestrator_stops_and_that_it_connects_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(
        joining.logs, "warning", lambda where, message, detail: said.put_nowait(detail)
    )
    server, orchestrator, address = await _started()
    staying = asyncio.create_task(Joining(address, ClientSecurity()).stay(None))  # type: ignore
    await orchestrator.called.wait()
    await server.stop(0)
    assert await asyncio.wait_for(said.get(), 20.0) == (
        f"lost the orchestrator at {address}: it is stopping; connecting again within 5 s"
    )
    staying.cancel()
    await asyncio.gather(staying, return_exceptions=True)
