"""Answers of requests with an `Idempotency-Key` on disk, so that they outlive the process."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from starlette.types import Message

from gateway.idempotency import HEADER, KEEP_SECONDS, MOST_BYTES, MOST_KEYS
from orchestrator.store import StateFile
from outrider.errors import KeyReused, StateUnavailable

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    name BLOB PRIMARY KEY, request BLOB NOT NULL, status INTEGER NOT NULL, headers TEXT NOT NULL,
    body BLOB NOT NULL, ended REAL NOT NULL)
"""


class KeptAnswers:
    """The answers of a state folder."""

    def __init__(self, folder: Path, keep_seconds: float = KEEP_SECONDS) -> None:
        """Open the folder, or make it. Raises InvalidConfig where that cannot be."""
        self._keep_seconds = keep_seconds
        self._file = StateFile(folder / "answers.sqlite", _SCHEMA, _VERSION, 2 * MOST_BYTES)

    async def find(self, name: bytes, request: bytes) -> list[Message] | None:
        """Return the answer of a key; None where there is none, or it cannot be read.

        Raises KeyReused where it was another request's.
        """
        row = None
        with suppress(StateUnavailable):
            row = await self._file.read(partial(_find, name=name))
        if row is None or time.time() - row[4] > self._keep_seconds:
            return None
        if row[0] != request:
            raise KeyReused(HEADER)
        headers = [(each.encode("latin-1"), value.encode("latin-1")) for each, value in row[2]]
        return [
            {"type": "http.response.start", "status": row[1], "headers": headers},
            {"type": "http.response.body", "body": row[3], "more_body": False},
        ]

    def add(self, name: bytes, request: bytes, messages: Sequence[Message]) -> None:
        """Keep an answer: what an application sent, from the start to the end."""
        start, *parts = messages
        headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in start["headers"]]
        body = b"".join(part.get("body", b"") for part in parts)
        now = time.time()
        row = (name, request, start["status"], json.dumps(headers), body, now)
        self._file.put(partial(_add, row=row, oldest=now - self._keep_seconds))

    async def close(self) -> None:
        """Write what waits, and give the file back."""
        await self._file.close()


def _find(
    connection: sqlite3.Connection, name: bytes
) -> tuple[bytes, int, list[tuple[str, str]], bytes, float] | None:
    found = connection.execute(
        "SELECT request, status, headers, body, ended FROM answers WHERE name = ?", (name,)
    ).fetchone()
    if found is None:
        return None
    request, status, headers, body, ended = found
    return request, status, json.loads(headers), body, ended


def _add(connection: sqlite3.Connection, row: tuple[object, ...], oldest: float) -> None:
    """Write an answer; the oldest make room for it."""
    connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", row)
    # What is beyond the bounds, counted from the newest on.
    connection.execute(
        "DELETE FROM answers WHERE ended < ? OR name IN (SELECT name FROM (SELECT name, "
        "sum(length(body)) OVER newest AS bytes, count(*) OVER newest AS number FROM answers "
        "WINDOW newest AS (ORDER BY ended DESC, name)) WHERE bytes > ? OR number > ?)",
        (oldest, MOST_BYTES, MOST_KEYS),
    )
