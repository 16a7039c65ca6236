"""A SQLite file that one thread writes and reads, so that the event loop never waits for the disk.

Statements are written in order, and together with what comes meanwhile. A process that is killed
loses nothing that was reported as stored; a machine that loses its power may lose the last moments.
While the disk takes nothing, what waits is kept and tried again, and `failure` says why.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from outrider import logs
from outrider.errors import RETRY_SECONDS, InvalidConfig, StateUnavailable

_MOST_STATEMENTS = 1024  # of one transaction at most: some 10 ms, for which a reader waits
_PAUSE_SECONDS = 0.02  # s; between two transactions: what comes meanwhile shares the next one
_LOCK_SECONDS = 5.0  # s; for the process that had the file before to be gone
_WAL_BYTES = 16 * 2**20  # the write-ahead log is cut to this once its pages are in the file


class Store:
    """One file, locked for this process and readable to its own user alone."""

    def __init__(self, path: Path, schema: str, version: int, most_bytes: int) -> None:
        """Open or make it, with its tables; the file has `most_bytes` at most.

        Raises InvalidConfig where it cannot be read or written, or is another process's.
        """
        self.path = path
        self.failure = ""
        """Why nothing can be written now, in one line."""
        self._waiting: deque[tuple[str, tuple[Any, ...], Callable[[], None]]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._news = asyncio.Event()  # set when something was written, or could not be
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "store")
        try:
            self._connection = _open(path, schema, version, most_bytes)
        except (OSError, sqlite3.Error) as error:
            self._thread.shutdown()
            raise InvalidConfig("state", f"{path}: {_words_of(error)}") from None

    def read_now(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, before anything else happens. Raises InvalidConfig."""
        try:
            with self._connection:
                return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise InvalidConfig("state", f"{self.path}: {_words_of(error)}") from None

    async def read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement. Raises StateUnavailable."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._thread, lambda: self._connection.execute(statement, values).fetchall()
            )
        except sqlite3.Error as error:
            raise StateUnavailable(f"{self.path}: {_words_of(error)}") from None

    def put(self, statement: str, *values: Any, stored: Callable[[], None] = lambda: None) -> None:
        """Have a statement written; `stored` is called once it is."""
        if self._is_closed:
            return
        self._waiting.append((statement, values, stored))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def settle(self) -> None:
        """Wait until everything that was put in by now is stored. Raises StateUnavailable."""
        done = asyncio.Event()
        self.put("SELECT 1", stored=done.set)
        while not (done.is_set() or self._is_closed):
            self.check()
            self._news.clear()
            await self._news.wait()

    def check(self) -> None:
        """Raise StateUnavailable while nothing can be written."""
        if self.failure:
            raise StateUnavailable(self.failure)

    async def close(self) -> None:
        """Write what waits, if that is possible, and give the file back."""
        with suppress(StateUnavailable):
            await self.settle()
        self._is_closed = True
        self._news.set()
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()

    async def _write(self) -> None:
        """Write what waits until nothing does."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            some = list(self._waiting)[:_MOST_STATEMENTS]
            try:
                await loop.run_in_executor(self._thread, self._apply, some)
            except sqlite3.Error as error:
                self._note_failure(_words_of(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._note_failure("")
            for _, _, stored in some:
                self._waiting.popleft()
                stored()
            self._news.set()
            await asyncio.sleep(_PAUSE_SECONDS)
        self._writing = None

    def _apply(self, some: list[tuple[str, tuple[Any, ...], Any]]) -> None:
        with self._connection:
            for statement, values, _ in some:
                self._connection.execute(statement, values)

    def _note_failure(self, words: str) -> None:
        """Log it where the disk takes nothing any more, or does again; once each."""
        failure = f"{self.path}: {words}" if words else ""
        if failure and failure != self.failure:
            logs.warning("outrider.state", "the state cannot be written", detail=failure)
        elif self.failure and not failure:
            logs.event("outrider.state", "the state is written again", path=str(self.path))
        self.failure = failure
        self._news.set()


def _open(path: Path, schema: str, version: int, most_bytes: int) -> sqlite3.Connection:
    """Return a connection to the file, whole and with its tables. Raises sqlite3.Error, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # What is in it is text of users: nobody else on this machine may read it.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=_LOCK_SECONDS, check_same_thread=False)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # a second process is refused
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        [page_bytes] = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {most_bytes // page_bytes}")
        [found] = connection.execute("PRAGMA user_version").fetchone()
        if found > version:
            raise sqlite3.DatabaseError("it was written by a newer version of Outrider")
        [verdict] = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {verdict}")
        with connection:
            for statement in filter(str.strip, schema.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("PRAGMA incremental_vacuum").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _words_of(error: Exception) -> str:
    """Return what is wrong, in one line."""
    if isinstance(error, OSError):
        return str(error.strerror or error)
    words = " ".join(str(error).split())
    if words == "database is locked":
        return "another orchestrator uses it"
    if words in ("file is not a database", "database disk image is malformed"):
        return f"it is damaged ({words}); move it away to start without its contents"
    return words
