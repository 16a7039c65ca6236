"""A link that delivers late, on loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outrider_cli.delayed_link import delayed_link

ROUND_TRIP = 0.05  # seconds


@asynccontextmanager
async def an_echo() -> AsyncIterator[str]:
    """Give the address of a server that sends back what it reads."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_an_answer_takes_a_round_trip_and_many_overlap():
    async with an_echo() as address, delayed_link(address, ROUND_TRIP) as link:
        reader, writer = await connect(link)
        begin = time.perf_counter()
        sent = [bytes([i]) * 1000 for i in range(10)]
        for data in sent:
            writer.write(data)
            await asyncio.sleep(0.001)
        first = await reader.readexactly(1)
        assert time.perf_counter() - begin >= ROUND_TRIP
        rest = await reader.readexactly(sum(map(len, sent)) - 1)
        assert time.perf_counter() - begin < 5 * ROUND_TRIP  # not one after the other
        assert first + rest == b"".join(sent)
        writer.close()


async def test_an_end_arrives_after_all_that_was_sent():
    async with an_echo() as address, delayed_link(address, ROUND_TRIP) as link:
        reader, writer = await connect(link)
        writer.write(b"the last")
        writer.write_eof()
        assert await reader.read() == b"the last"
        writer.close()


async def test_a_connection_ends_where_nobody_listens():
    async with an_echo() as address:
        pass
    async with delayed_link(address, ROUND_TRIP) as link:
        reader, writer = await connect(link)
        assert await reader.read() == b""
        writer.close()


async def test_what_is_open_ends_with_the_link():
    async with an_echo() as address:
        async with delayed_link(address, ROUND_TRIP) as link:
            reader, writer = await connect(link)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        with pytest.raises(ConnectionError):
            await connect(link)
        assert await reader.read() == b""
        writer.close()
