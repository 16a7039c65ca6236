"""A TCP forwarder on loopback that delivers late: a link of some length, without root."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_READ_BYTES = 1 << 16


@asynccontextmanager
async def delayed_link(address: str, round_trip_seconds: float) -> AsyncIterator[str]:
    """Forward to `address` ("HOST:PORT"), and give the address to connect to in its place.

    Every byte arrives half a round trip late, in both directions. Connecting does not, and the
    link has no limit of its rate; `outrider_cli.bench.shaper` has both, and needs root.
    """
    host, _, port = address.rpartition(":")
    tasks = set[asyncio.Task[None]]()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            other_reader, other_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(
                _carry(reader, other_writer, round_trip_seconds / 2.0),
                _carry(other_reader, writer, round_trip_seconds / 2.0),
            )
        except (OSError, asyncio.CancelledError):
            writer.close()
        finally:
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
    """Copy from one to the other, late, until either ends."""
    clock = asyncio.get_running_loop().time
    held = asyncio.Queue[tuple[float, bytes]]()

    async def deliver() -> None:
        while True:
            due, data = await held.get()
            await asyncio.sleep(due - clock())
            if not data:
                break
            writer.write(data)
            await writer.drain()
        writer.close()

    delivering = asyncio.create_task(deliver())
    try:
        with suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                held.put_nowait((clock() + delay_seconds, data))
        held.put_nowait((clock() + delay_seconds, b""))
        with suppress(ConnectionError):
            await delivering
    finally:
        delivering.cancel()
