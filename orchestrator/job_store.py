"""Jobs on disk: what each was asked for and all that it brought, so that they survive the process.

Nothing that a job brought is changed or written again. It is dropped with its job.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.reporting import PAGE_BYTES, PAGE_RESPONSES
from orchestrator.store import StateFile
from outrider.v1 import orchestrator_service_pb2 as messages

STATE_BYTES = 2**30
"""What all jobs together may take."""

_VERSION = 1
_MOST_AWAY_SECONDS = 24 * 3600.0
"""A job that nobody looked at for so long by the machine's clock is gone after a restart."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, caller TEXT NOT NULL, owner TEXT NOT NULL,
    note TEXT NOT NULL, request BLOB NOT NULL, started BLOB NOT NULL, used REAL NOT NULL,
    first INTEGER NOT NULL, attempts INTEGER NOT NULL, over INTEGER NOT NULL, error BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS responses (
    job INTEGER NOT NULL, number INTEGER NOT NULL, response BLOB NOT NULL,
    PRIMARY KEY (job, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS submissions (
    name BLOB PRIMARY KEY, request BLOB NOT NULL, job INTEGER NOT NULL) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as it is on disk."""

    key: int
    job_id: str
    caller: str
    owner: str  # the name of the token that it was submitted with; may be empty
    note: str  # of who submitted it
    request: messages.GenerateRequest
    started: messages.GenerationStarted
    first: int  # responses before it were taken
    end: int  # the number of responses
    byte_count: int  # of these
    attempts: int  # restarts that it was continued after
    is_over: bool
    error: messages.JobError | None
    key_name: bytes = b""  # of the key that it was submitted with; empty without one
    key_request: bytes = b""  # a digest of the request that came with it


class JobStore:
    """The jobs of a state folder. `byte_count` is what they take."""

    def __init__(self, folder: Path, most_bytes: int = STATE_BYTES) -> None:
        """Open the folder, or make it. Raises InvalidConfig where that cannot be."""
        self.most_bytes = most_bytes
        # What SQLite itself adds to a response is some 10 bytes.
        self.file = StateFile(folder / "jobs.sqlite", _SCHEMA, _VERSION, 2 * most_bytes)
        self.file.read_now(partial(_forget_old, oldest=time.time() - _MOST_AWAY_SECONDS))
        self.found = self.file.read_now(lambda connection: list(_jobs(connection)))
        """The jobs of before, in the order in which they were submitted."""
        self.byte_count = sum(job.byte_count for job in self.found)
        self._next_key = max([job.key for job in self.found], default=0) + 1

    def add(
        self,
        job_id: str,
        caller: str,
        owner: str,
        note: str,
        request: messages.GenerateRequest,
        started: messages.GenerationStarted,
        submission: tuple[bytes, bytes] = (b"", b""),
    ) -> tuple[int, int]:
        """Have a job stored; return its key, and how many bytes it takes.

        `submission` has the name of the key that it was submitted with, which may be empty, and a
        digest of what came with it.
        """
        key, self._next_key = self._next_key, self._next_key + 1
        asked, begun = request.SerializeToString(), started.SerializeToString()
        byte_count = len(asked) + len(begun) + len(note)
        self.byte_count += byte_count
        row = (key, job_id, caller, owner, note, asked, begun, time.time(), 0, 0, 0, b"")
        self.file.put(
            lambda its: its.execute(f"INSERT INTO jobs VALUES ({','.join('?' * len(row))})", row)
        )
        if submission[0]:
            self._put("INSERT OR REPLACE INTO submissions VALUES (?, ?, ?)", *submission, key)
        return key, byte_count

    def note_use(self, key: int, first: int) -> None:
        """Somebody looked at a job, and took what is before `first`."""
        self._put("UPDATE jobs SET used = ?, first = ? WHERE key = ?", time.time(), first, key)

    def note_attempt(self, key: int) -> None:
        """A job is continued after a restart."""
        self._put("UPDATE jobs SET attempts = attempts + 1 WHERE key = ?", key)

    def drop(self, key: int, byte_count: int) -> None:
        """Forget a job, whose responses take so many bytes."""
        self.byte_count -= byte_count
        self._put("DELETE FROM responses WHERE job = ?", key)
        self._put("DELETE FROM jobs WHERE key = ?", key)
        self._put("DELETE FROM submissions WHERE job = ?", key)

    async def page(self, key: int, first: int, end: int) -> list[messages.GenerateResponse]:
        """Return the responses from one to before another, as many as go into one message."""
        return await self.file.read(partial(_page, key=key, first=first, end=end))

    def _put(self, statement: str, *values: object) -> None:
        self.file.put(lambda its: its.execute(statement, values))


def _forget_old(connection: sqlite3.Connection, oldest: float) -> None:
    """Forget jobs that nobody looked at since; those of a clock that went back are kept."""
    with connection:
        connection.execute("DELETE FROM jobs WHERE used < ?", (oldest,))
        for table in ("responses", "submissions"):
            connection.execute(f"DELETE FROM {table} WHERE job NOT IN (SELECT key FROM jobs)")


def _jobs(connection: sqlite3.Connection) -> Iterator[StoredJob]:
    sizes = connection.execute(
        "SELECT job, max(number) + 1, sum(length(response)) FROM responses GROUP BY job"
    )
    known = {key: (end, byte_count) for key, end, byte_count in sizes}
    submitted = {
        job: (name, request)
        for name, request, job in connection.execute("SELECT name, request, job FROM submissions")
    }
    columns = "key, id, caller, owner, note, request, started, first, attempts, over, error"
    for (
        key,
        job_id,
        caller,
        owner,
        note,
        asked,
        begun,
        first,
        attempts,
        over,
        error,
    ) in connection.execute(f"SELECT {columns} FROM jobs ORDER BY key"):
        end, byte_count = known.get(key, (0, 0))
        key_name, key_request = submitted.get(key, (b"", b""))
        yield StoredJob(
            key=key,
            job_id=job_id,
            caller=caller,
            owner=owner,
            note=note,
            request=messages.GenerateRequest.FromString(asked),
            started=messages.GenerationStarted.FromString(begun),
            first=first,
            end=end,
            byte_count=byte_count + len(asked) + len(begun) + len(note),
            attempts=attempts,
            is_over=bool(over),
            error=messages.JobError.FromString(error) if error else None,
            key_name=key_name,
            key_request=key_request,
        )


def _page(
    connection: sqlite3.Connection, key: int, first: int, end: int
) -> list[messages.GenerateResponse]:
    found: list[messages.GenerateResponse] = []
    byte_count = 0
    for [data] in connection.execute(
        "SELECT response FROM responses WHERE job = ? AND number >= ? AND number < ? "
        "ORDER BY number LIMIT ?",
        (key, first, end, PAGE_RESPONSES),
    ):
        byte_count += len(data)
        if found and byte_count > PAGE_BYTES:
            break
        found.append(messages.GenerateResponse.FromString(data))
    return found
