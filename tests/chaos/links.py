"""The way to a service: TCP through this process, held up, cut or left half open at will.

What TCP carries is never lost, only late. Packets are lost and reordered on a shaped link.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import ExitStack, suppress

from outrider_bench.shaper import Link, Shape

_PIECE = 1 << 16
SMOOTH = Shape()
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Gate:
    """Holds up one direction while it is shut."""

    def __init__(self) -> None:
        self._way = asyncio.Event()
        self._way.set()

    def shut(self) -> None:
        self._way.clear()

    def open(self) -> None:
        self._way.set()

    async def passed(self) -> None:
        await self._way.wait()


class Connection:
    """Two sockets, and what goes between them."""

    def __init__(self, way: TcpWay, near: Streams) -> None:
        self._way = way
        self._near = near
        self._far: asyncio.StreamWriter | None = None
        self.frozen = asyncio.Event()  # set: it carries nothing any more, and stays open

    async def run(self) -> None:
        reader, writer = self._near
        try:
            far_reader, self._far = await asyncio.open_connection(*self._way.upstream)
            up = self._pump(reader, self._far, self._way.up, True)
            down = self._pump(far_reader, writer, self._way.down, False)
            tasks = [asyncio.ensure_future(up), asyncio.ensure_future(down)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        except OSError:
            pass
        finally:
            self.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: Gate, is_up: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_PIECE):
                if is_up:
                    self._way.note_up()
                await gate.passed()
                if self.frozen.is_set():
                    await asyncio.Event().wait()
                writer.write(data)
                await writer.drain()

    def abort(self) -> None:
        for writer in (self._near[1], self._far):
            if writer is not None:
                writer.transport.abort()


class TcpWay:
    """Listens for those who dial a service, and dials it."""

    def __init__(self, upstream: tuple[str, int], host: str = "127.0.0.1") -> None:
        self.upstream = upstream
        self.up, self.down = Gate(), Gate()
        self.refuses = False
        self._host = host
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._waiting: Callable[[], None] | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        connection = Connection(self, (reader, writer))
        task = asyncio.ensure_future(connection.run())
        self._connections[task] = connection
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    def note_up(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting()

    async def next_up(self) -> None:
        """Wait until something is sent to the service."""
        happened = asyncio.Event()
        self._waiting = happened.set
        await happened.wait()

    def cut(self) -> None:
        """Reset every connection."""
        for connection in list(self._connections.values()):
            connection.abort()

    def freeze(self) -> None:
        """Let the connections of now carry nothing any more, and stay open."""
        for connection in self._connections.values():
            connection.frozen.set()

    async def close(self) -> None:
        self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class ShapedWay:
    """A link on the way: over it into a network namespace, and back again."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._stack = ExitStack()
        self._relay: Process | None = None

    async def start(self) -> None:
        self._link = self._stack.enter_context(Link(SMOOTH))
        self._near = TcpWay(self._upstream, self._link.near_address)
        await self._near.start()
        words = [sys.executable, "-m", "tests.chaos.relay", self._link.far_address]
        words += [self._link.near_address, str(self._near.port)]
        self._relay = await asyncio.create_subprocess_exec(
            *self._link.inside(words), stdout=PIPE, stdin=PIPE
        )
        assert self._relay.stdout is not None
        port = int((await self._relay.stdout.readline()).decode())
        self.upstream = (self._link.far_address, port)

    def reshape(self, shape: Shape) -> None:
        """Change the link."""
        self._link.reshape(shape)

    async def close(self) -> None:
        if self._relay is not None and self._relay.returncode is None:
            self._relay.kill()
            await self._relay.wait()
        await self._near.close()
        await asyncio.to_thread(self._stack.close)
