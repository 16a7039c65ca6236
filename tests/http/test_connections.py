"""Connections that send nothing, too slowly, too much or no HTTP at all harm nobody else."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from gateway.config import HttpConfig
from gateway.connections import Connection
from gateway.middleware import is_known_host
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.gateway import serving

PATIENCE = 20.0
BODY = {"prompt": "a", "n_predict": 2}


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    try:
        yield reader, writer
    finally:
        writer.close()


async def is_served(url: str) -> bool:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return (await client.post(f"{url}/completion", json=BODY)).status_code == 200


async def drip(url: str, begin: bytes, part: bytes) -> bytes:
    """Send a byte or two at a time until the server closes; return what it said."""
    async with connected(url) as (reader, writer):
        writer.write(begin)
        answer = asyncio.ensure_future(reader.read())
        while not answer.done():
            writer.write(part)
            await asyncio.wait({answer}, timeout=0.02)
        return answer.result()


@pytest.mark.fault(
    "hang",
    "connections that never finish their request",
    before="300 of them stayed open for ever",
    now="the head of a request has 10 seconds, and its body 60",
)
@pytest.mark.parametrize("begin", [b"", b"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
async def test_a_head_that_does_not_come_in_time_ends_the_connection(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.2)
    async with serving() as url, asyncio.timeout(PATIENCE):
        assert await drip(url, begin, b"X-A: b\r\n" if begin else b"") == b""
        assert await is_served(url)


async def test_a_body_that_does_not_come_in_time_gets_408() -> None:
    head = b"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3000000\r\n\r\n"
    async with serving(body_seconds=0.2) as url, asyncio.timeout(PATIENCE):
        async with connected(url) as (reader, writer):
            writer.write(head + b'{"prompt": "')
            assert b" 408 " in await reader.readline()
        assert await is_served(url)


async def test_a_stream_may_take_longer_than_a_head_or_a_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.1)
    async with serving(body_seconds=0.1) as url, httpx.AsyncClient(timeout=PATIENCE) as client:
        for _ in range(2):
            await asyncio.sleep(0.15)
            assert (await client.post(f"{url}/completion", json=BODY)).status_code == 200


async def test_an_idle_connection_is_kept_for_as_long_as_is_said() -> None:
    balancers_keep_it = 60
    assert HttpConfig(listen="127.0.0.1:0").idle_seconds > balancers_keep_it
    async with serving(idle_seconds=1) as url, asyncio.timeout(PATIENCE):
        async with connected(url) as (reader, writer):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b" 200 " in await reader.readline()
            await reader.read()  # until it is closed
        assert await is_served(url)


async def test_connections_are_bounded_and_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "max_connections", 3)
    async with serving() as url, asyncio.timeout(PATIENCE):
        held = [await asyncio.open_connection("127.0.0.1", int(url[-5:])) for _ in range(3)]
        await asyncio.sleep(0)
        async with connected(url) as (reader, _):
            assert await reader.read() == b""
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        assert await is_served(url)


@pytest.mark.parametrize(
    "junk",
    [
        bytes(4000),
        b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{",
        b"GET " + b"a" * 200_000,
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
    ids=["zeros", "endless body", "long line", "tls"],
)
async def test_what_is_no_request_is_answered_or_closed(junk: bytes) -> None:
    async with serving() as url, asyncio.timeout(PATIENCE):
        async with connected(url) as (reader, writer):
            writer.write(junk)
            writer.write_eof()
            with suppress(ConnectionResetError):  # closed before all of it was read
                assert (await reader.read())[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 413")
        assert await is_served(url)


# --- the host that a request names ---


@pytest.mark.fault(
    "others",
    "a web page whose name is made to lead to this machine (DNS rebinding)",
    before="it could generate through a gateway on loopback, and read the answers",
    now="without a key, a Host that is not this machine is refused",
)
async def test_a_foreign_host_is_refused_where_there_is_no_key() -> None:
    async with serving() as url, httpx.AsyncClient() as client:
        for host in ("evil.example:8080", "evil.example", "127.0.0.1.evil.example", "10.0.0.1"):
            response = await client.post(f"{url}/completion", json=BODY, headers={"Host": host})
            assert response.status_code == 403, host
        for host in ("localhost:1", "127.0.0.1", "[::1]:80", "LOCALHOST."):
            response = await client.post(f"{url}/completion", json=BODY, headers={"Host": host})
            assert response.status_code == 200, host


async def test_the_operator_names_further_hosts() -> None:
    async with serving(allowed_hosts=("box.lan",)) as url, httpx.AsyncClient() as client:
        for host, status in (("box.lan:80", 200), ("evil.example", 403)):
            response = await client.get(f"{url}/health", headers={"Host": host})
            assert response.status_code == status


def test_a_key_makes_every_host_good_unless_hosts_are_named() -> None:
    assert HttpConfig(listen="127.0.0.1:0", api_key="k").hosts is None
    named = HttpConfig(listen="127.0.0.1:0", api_key="k", allowed_hosts=("box",)).hosts
    assert named == {"127.0.0.1", "box"}


@pytest.mark.parametrize(
    "header", ["", "::1:80.evil", "localhost.evil", "notlocalhost", "127.1.evil:80", "[x]"]
)
def test_no_other_host_is_taken_for_loopback(header: str) -> None:
    assert not is_known_host(header, frozenset())


async def unread_stream(url: str) -> socket.socket:
    """Ask for a long stream on a connection that holds little, and read nothing of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", int(url.rsplit(":", 1)[1])))
    body = json.dumps({"prompt": "a", "n_predict": -1, "stream": True}).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    await loop.sock_sendall(client, head.encode() + body)
    return client


@pytest.mark.fault(
    "hang",
    "clients that stop reading an HTTP stream",
    before="their generation and its sequence were held for 600 seconds",
    now="a client that takes nothing for 30 seconds is cut off, and its generation ends",
)
async def test_a_client_that_stops_reading_is_cut_off() -> None:
    fake = FakeOrchestrator("a" * 30_000)
    async with serving(fake, stall_seconds=0.3) as url, asyncio.timeout(PATIENCE):
        with await unread_stream(url):
            await fake.idle.wait()
        assert fake.closed_count == 1


async def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    fake = FakeOrchestrator("a" * 6_000)
    loop = asyncio.get_running_loop()
    async with serving(fake, stall_seconds=0.3) as url, asyncio.timeout(PATIENCE):
        with await unread_stream(url) as client:
            tail = b""
            while chunk := await loop.sock_recv(client, 32_768):
                tail = (tail + chunk)[-4096:]
                await asyncio.sleep(0.02)
                if b'"stop":true' in tail:
                    break
        assert b'"stop":true' in tail
