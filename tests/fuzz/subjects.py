"""What reads files and HTTP bodies, each fed with bytes."""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import httpx

from gateway.config import HttpConfig
from gateway.routes import create_app
from outrider.drafters.ngram_file import load_cache
from outrider.drafters.ngram_format import DamagedCache, decode, encode
from outrider.engine.gguf_check import check_gguf
from outrider.errors import InvalidConfig
from tests.fuzz.mutate import mutate_bytes, mutate_json
from tests.support.fake_orchestrator import FakeOrchestrator

SECONDS = 60.0
"""What no input may take longer for; an idle machine needs milliseconds."""

VOCABULARY = 64


class Fault(Exception):
    """What an input did that none may do."""


class Subject(Protocol):
    """Something that reads what others send or wrote."""

    name: str

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: object) -> None: ...

    def mutate(self, data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
        """Return an input with something changed; `others` are further ones."""

    async def feed(self, data: bytes) -> str:
        """Let it read an input; return what came of it in a word. Raises Fault, or anything."""


class _File:
    """A reader of files."""

    name = ""

    async def __aenter__(self) -> Any:
        self._folder = tempfile.TemporaryDirectory(prefix="outrider-fuzz-")
        self._path = Path(self._folder.name) / "input"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._folder.cleanup()

    def mutate(self, data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
        """Return a file with something changed."""
        return mutate_bytes(data, others, rng)


class Gguf(_File):
    """What refuses a model before llama.cpp reads it."""

    name = "gguf"

    async def feed(self, data: bytes) -> str:
        """Check a file: it passes, or it is refused in one line."""
        self._path.write_bytes(data)
        try:
            check_gguf(self._path)
        except InvalidConfig as error:
            if "\n" in str(error):
                raise Fault(f"several lines: {error}") from None
            return "refused"
        return "passed"


class Lookup(_File):
    """What reads llama.cpp's caches of n-grams."""

    name = "lookup"

    async def feed(self, data: bytes) -> str:
        """Read a file: it is refused at an offset, or a cache that is written and read the same."""
        self._path.write_bytes(data)
        try:
            cache = decode(data, VOCABULARY)
        except DamagedCache as error:
            if not 0 <= error.offset <= len(data):
                raise Fault(f"an offset of {error.offset} in {len(data)} bytes") from None
            with suppress(InvalidConfig):
                load_cache(self._path, VOCABULARY)
                raise Fault("refused as bytes, and read as a file") from None
            return "refused"
        if 20 * len(cache) + 8 * cache.pair_count > len(data):
            raise Fault("it holds more than the file")
        again = decode(b"".join(encode(cache)), VOCABULARY)
        if dict(again.items()) != dict(cache.items()):
            raise Fault("it reads another cache from what it wrote")
        return "read"


class Bugs(logging.Handler):
    """Collects what the product itself logs as a bug, and what its event loop was left with."""

    def __enter__(self) -> Bugs:
        self._found: list[str] = []
        logging.getLogger().addHandler(self)
        asyncio.get_running_loop().set_exception_handler(self._left)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
        asyncio.get_running_loop().set_exception_handler(None)

    def emit(self, record: logging.LogRecord) -> None:
        """Take in a line of the log."""
        if record.getMessage().startswith("internal error"):
            error = record.exc_info[1] if record.exc_info else None
            place = _place(error.__traceback__) if error else ""
            self._found.append(f"{record.name}: {type(error).__name__}: {error} {place}")

    def _left(self, loop: object, context: dict[str, Any]) -> None:
        self._found.append(f"{context.get('message')}: {context.get('exception')!r}")

    def check(self) -> None:
        """Raise Fault with what was found since the last time."""
        found, self._found = self._found, []
        if found:
            raise Fault("; ".join(found))


def _place(traceback: TracebackType | None) -> str:
    """Return where something was raised."""
    place = ""
    while traceback is not None:
        place = f"({Path(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place


class Bodies:
    """The gateway's routes. An input is a line with the method and the path, and the body."""

    name = "bodies"

    async def __aenter__(self) -> Any:
        app = create_app(FakeOrchestrator(), HttpConfig(listen="127.0.0.1:0", slots=True))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        self._bugs = Bugs()
        self._bugs.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._bugs.__exit__()
        await self._client.aclose()

    def mutate(self, data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
        """Return a request with another body; at times for another route."""
        head, _, body = data.partition(b"\n")
        heads = [each.partition(b"\n")[0] for each in others] or [head]
        bodies = [each.partition(b"\n")[2] for each in others]
        if rng.random() < 0.1:
            head = rng.choice(heads)
        return head + b"\n" + mutate_json(body, bodies, rng)

    async def feed(self, data: bytes) -> str:
        """Send a request; any answer but one of a server's own error will do."""
        head, _, body = data.partition(b"\n")
        method, _, path = head.decode("ascii").partition(" ")
        headers = {"Content-Type": "application/json", "Outrider-Client": "fuzz"}
        async with asyncio.timeout(SECONDS):
            answer = await self._client.request(method, path, content=body, headers=headers)
        self._bugs.check()
        if answer.status_code >= 500:
            raise Fault(f"{answer.status_code}: {answer.text[:300]}")
        return str(answer.status_code)
