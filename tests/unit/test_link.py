"""How a link to a peer ends: at once for its generation, and without a read that is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from orchestrator import link as links
from orchestrator.event_queue import EventQueue
from orchestrator.link import Link
from orchestrator.streams import JoinedStream, StreamLost
from outrider.errors import ReaderStalled
from outrider.v1.draft_service_pb2 import DraftRequest
from tests.unit.test_attempts import OPENING as SESSION

OPENING: Any = None  # the link keeps it for others


class Fake:
    """A stream that brings a message and then waits until it is cancelled."""

    def __init__(self) -> None:
        self.byte_count = 0
        self.was_interrupted = False  # a read was cancelled
        self._over = asyncio.Event()

    async def write(self, message: Any) -> None:
        """Take it."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        yield "first"
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            self.was_interrupted = True
            raise
        yield "late"
        raise StreamLost.gone("over")

    def cancel(self) -> None:
        self._over.set()


class Events(EventQueue[Any]):
    """Events that happen at once, of which too many wait where that is said."""

    def __init__(self, is_full: bool) -> None:
        super().__init__(lambda: ())
        self._says_full = is_full

    @property
    def is_full(self) -> bool:
        return self._says_full


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_link_that_is_closed_cancels_its_stream_and_no_read(is_full: bool) -> None:
    """gRPC keeps some 100 bytes for each stream whose read was cancelled."""
    stream, got, lost = Fake(), list[Any](), list[Any]()
    events = Events(is_full)
    link = Link(OPENING, stream, events, got.append, lambda *each: lost.append(each))
    await asyncio.sleep(0.02)
    assert got == ["first"]
    link.close()
    async with asyncio.timeout(5):
        await link._reader
        await asyncio.gather(link._writer, return_exceptions=True)
    assert (got, lost) == (["first"], []), "nobody hears of what comes after the end"
    assert not stream.was_interrupted and not link._reader.cancelled()
    await asyncio.sleep(0)
    assert link._reader not in links._readers


def test_a_message_that_is_too_large_breaks_the_protocol_and_what_is_unread_does_not() -> None:
    detail = "CLIENT: Received message larger than max (4194305 vs. 4194304)"
    lost = StreamLost(grpc.StatusCode.RESOURCE_EXHAUSTED, detail)
    assert lost.breaks_protocol and lost.final
    for other in (StreamLost.unread(256), StreamLost.gone(detail)):
        assert not other.breaks_protocol and not other.final


@pytest.mark.fault(
    "hang",
    "A draft that joined reads none of its orders for as long as `--stall-timeout`",
    before="an exception that nobody read, and a stream that counted as open until its text ended",
    now="the stream is lost, and another draft may take its place",
)
async def test_a_draft_that_joined_and_reads_nothing_is_lost() -> None:
    stream, lost, over = JoinedStream(SESSION, lambda *_: None), list[str](), asyncio.Event()

    async def requests() -> AsyncIterator[Any]:
        await over.wait()
        raise grpc.aio.UsageError
        yield

    async def write(message: Any) -> None:
        raise ReaderStalled(30.0)

    link = Link(
        SESSION, stream, Events(False), list[Any]().append, lambda _, why: lost.append(str(why))
    )
    serving = asyncio.create_task(stream.serve(requests(), write))
    for _ in range(2):  # the first goes with the invitation
        link.send(DraftRequest())
    async with asyncio.timeout(5):
        await serving
        over.set()  # as reading ends with its call
        await link._reader
    [why] = lost
    assert stream.is_over and "nothing of the stream was read for 30 s" in why
