"""A TCP forwarder on loopback that delivers late: a link of some length, without root."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_READ_BYTES = 1 << 16  # bytes that are carried at once


@asynccontextmanager
async def delayed_link(address: str, round_trip_seconds: float) -> AsyncIterator[str]:
    """Forward to `address` ("HOST:PORT"), and give the address to connect to in its place.

    Every byte arrives half a round trip late, in both directions. Connecting does not, and the
    link has no limit of its rate; `outrider_bench.shaper` has both, and needs root.
    """
    host, _, port = address.rpartition(":")
    tasks = set[asyncio.Task[None]]()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        writers = [writer]
        try:
            other_reader, other_writer = await asyncio.open_connection(host, int(port))
            writers.append(other_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(_carry(reader, other_writer, round_trip_seconds / 2.0))
                group.create_task(_carry(other_reader, writer, round_trip_seconds / 2.0))
        except* (OSError, asyncio.CancelledError):  # either end is gone, or the link is
            pass
        finally:
            for each in writers:
                each.close()
            tasks.discard(task)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        near_host, near_port = server.sockets[0].getsockname()[:2]
        yield f"{near_host}:{near_port}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_seconds: float
) -> None:
    """Copy from one to the other, late, until the end of what is read."""
    clock = asyncio.get_running_loop().time
    held = asyncio.Queue[tuple[float, bytes]]()  # when due, and what; nothing at the end

    async def deliver() -> None:
        while True:
            due, data = await held.get()
            await asyncio.sleep(due - clock())
            if not data:
                return writer.write_eof()
            writer.write(data)
            await writer.drain()

    async with asyncio.TaskGroup() as group:
        group.create_task(deliver())
        while data := await reader.read(_READ_BYTES):
            held.put_nowait((clock() + delay_seconds, data))
        held.put_nowait((clock() + delay_seconds, b""))
