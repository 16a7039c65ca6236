"""Asks one HTTP server for JSON: a bound for every size and time, and connections that are kept."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

import h11

from outrider.errors import InvalidConfig, PeerUnavailable

MOST_BYTES = 16 << 20
"""Of one answer; that of a completion of 16 tokens with 64 candidates each is a tenth of 1 MB."""

_MOST_IDLE = 16
_CONNECT_SECONDS = 3.0
_PIECE = 1 << 16


class HttpServer:
    """One server. Raises InvalidConfig for a URL that is none."""

    def __init__(self, url: str, key: Callable[[], str] = lambda: "") -> None:
        """`key` returns what is shown as a bearer token then; empty: nothing."""
        self._to = _read_url(url)
        self._tls = ssl.create_default_context() if self._to.scheme == "https" else None
        self._key = key
        self._idle: list[_Connection] = []  # the newest last
        self.url = url

    async def call(self, method: str, path: str, body: Any = None, *, seconds: float) -> Any:
        """Return the JSON of an answer with status 200.

        Raises PeerUnavailable for everything else: nobody there, too slow, too long, no JSON.
        """
        try:
            async with asyncio.timeout(seconds):
                status, data = await self._exchange(method, path, body)
        except TimeoutError:
            raise PeerUnavailable(f"{self.url} did not answer in {seconds:g} s") from None
        except (OSError, EOFError, h11.ProtocolError) as error:
            said = str(error) or type(error).__name__
            raise PeerUnavailable(f"{self.url} does not answer: {said}") from None
        if status != 200:
            said = data[:200].decode("utf-8", "replace")
            raise PeerUnavailable(f"{self.url}{path} answers {status}: {said}")
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise PeerUnavailable(f"{self.url}{path} answers what is not JSON") from None

    def close(self) -> None:
        """Close what is kept."""
        while self._idle:
            self._idle.pop().close()

    async def _exchange(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        data = b"" if body is None else json.dumps(body).encode()
        while self._idle:
            # The server may have closed one that was idle: then another one is tried.
            connection = self._idle.pop()
            with suppress(OSError, EOFError, h11.ProtocolError):
                return await self._on(connection, method, path, data)
        return await self._on(await self._connect(), method, path, data)

    async def _connect(self) -> _Connection:
        host, port = self._to.hostname, self._to.port or (443 if self._tls else 80)
        async with asyncio.timeout(_CONNECT_SECONDS):
            streams = await asyncio.open_connection(host, port, ssl=self._tls)
        return _Connection(*streams)

    async def _on(
        self, connection: _Connection, method: str, path: str, data: bytes
    ) -> tuple[int, bytes]:
        headers = [("Host", self._to.netloc.rpartition("@")[2]), ("Content-Length", str(len(data)))]
        if data:
            headers.append(("Content-Type", "application/json"))
        if key := self._key():
            headers.append(("Authorization", f"Bearer {key}"))
        request = h11.Request(
            method=method, target=self._to.path.rstrip("/") + path, headers=headers
        )
        is_done = False
        try:
            answer = await connection.exchange(request, data)
            is_done = True
        finally:
            # Closing is how llama-server learns that nobody waits for a completion any more.
            if not (is_done and connection.can_be_kept and len(self._idle) < _MOST_IDLE):
                connection.close()
        if connection.can_be_kept and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        return answer


class _Connection:
    """One TCP connection, of one exchange after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self.can_be_kept = False

    async def exchange(self, request: h11.Request, data: bytes) -> tuple[int, bytes]:
        """Return status and body. Raises OSError, EOFError, h11.ProtocolError."""
        self.can_be_kept = False
        parts = (request, h11.Data(data=data), h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(part) or b"" for part in parts))
        await self._writer.drain()
        status, body = 0, bytearray()
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MOST_BYTES:
                    raise h11.RemoteProtocolError(f"an answer of more than {MOST_BYTES} bytes")
        if self._http.our_state is self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self.can_be_kept = True
        return status, bytes(body)

    async def _next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(_PIECE)
            self._http.receive_data(data)
        if isinstance(event, h11.ConnectionClosed):
            raise EOFError("it closed the connection")
        return event

    def close(self) -> None:
        """Close it at once, with answers on their way."""
        self._writer.transport.abort()


def _read_url(text: str) -> SplitResult:
    try:
        url = urlsplit(text)
        is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_url = False
    if not is_url or url.query or url.fragment or not text.isascii() or not text.isprintable():
        raise InvalidConfig("llama-server", f"must be http://HOST:PORT, not {text!r}")
    return url
