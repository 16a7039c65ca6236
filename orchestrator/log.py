"""Requests that may be asked again: what each was asked for, what it brought so far, how it ended.

One log serves jobs (`orchestrator/jobs.py`) and HTTP requests with an `Idempotency-Key`
(`gateway/repeats.py`), each with its own bounds and, with `--state`, its own file. It promises:

- *Once.* A request that comes again with its key is the same submission: it joins the one in
  flight or gets what that one brought. Another request with the key is refused (KeyReused). A key
  belongs to the credentials that it came with. What failed to start leaves its key new.
- *In order.* Events have numbers from 0 on and never change. Who reads on from a number misses
  nothing and gets nothing twice. What was taken is not given again.
- *Durable.* With a file an event can be read once it is stored: nobody sees what could be lost.
  After a restart, `kill -9` included, a submission is there under its id and key, with its end or
  all events so far, which are enough to continue it.
- *Bounded.* What is over goes some time after its last use; it makes room, the longest unused
  first, where there are too many submissions or bytes. What is in flight is never dropped.
- *Honest.* While the disk takes nothing, `check` says why, and what comes is kept for it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from pathlib import Path

from orchestrator.store import Store
from outrider.errors import InvalidRequest, KeyReused

MOST_KEY_CHARACTERS = 255  # of an idempotency key, as in Stripe's API; a UUID has 36

_VERSION = 1
_COLUMNS = (
    *("number", "id", "key", "digest", "caller", "owner", "request", "opening"),
    *("attempts", "first", "is_over", "error"),
)
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS submissions (
    number INTEGER PRIMARY KEY, {", ".join(_COLUMNS[1:])}, used);
CREATE TABLE IF NOT EXISTS events (
    submission INTEGER NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (submission, number)) WITHOUT ROWID
"""


def check_key(field: str, key: str) -> str:
    """Return a key. Raises InvalidRequest, of the field that it came in, for none there can be."""
    if not 1 <= len(key) <= MOST_KEY_CHARACTERS or not key.isprintable():
        raise InvalidRequest(field, f"must be one of 1 to {MOST_KEY_CHARACTERS} characters")
    return key


def digest_of(*parts: bytes) -> bytes:
    """Return 32 bytes that are equal for equal parts."""
    return sha256(b"".join(sha256(part).digest() for part in parts)).digest()


def owned_key(key: str, credentials: Iterable[bytes]) -> bytes:
    """Return what a key is known by: nobody with other credentials comes upon it."""
    return digest_of(*sorted(credentials), key.encode())


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept, and for how long."""

    seconds: float  # after the last use of what is over, by a clock that cannot be set
    count: int  # submissions, in flight or over
    byte_count: int  # of all of them; the file is twice as large at most
    away_seconds: float  # more, without a process, by the machine's clock


@dataclass(slots=True, eq=False)
class Entry:
    """One submission. The first fields, up to `error`, are on disk in this order."""

    number: int  # in the order of submission
    id: str
    key: bytes  # as `owned_key` returns it; empty without one
    digest: bytes  # of the request
    caller: str = ""
    owner: str = ""  # the name of the token that it came with; may be empty
    request: bytes = b""  # that repeats it after a restart
    opening: bytes = b""  # what its submission is answered with; empty until that is known
    attempts: int = 0  # restarts that it was continued after
    first: int = 0  # events before it were taken
    is_over: bool = False
    error: bytes = b""  # that ended it, empty for none
    events: list[bytes] = field(default_factory=list)  # from `first` on
    stored: int = 0  # the number after the last event that may be read
    byte_count: int = 0
    is_kept: bool = False  # on disk
    is_settled: bool = False  # nobody waits for its end any more
    last_use: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None  # that works for it
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def end(self) -> int:
        """The number after the last event, stored or not."""
        return self.first + len(self.events)

    def wake(self) -> None:
        """Let those continue who wait for what is new."""
        self.news.set()
        self.news = asyncio.Event()


class Log:
    """Submissions by id and by key, within the bounds of `retention`."""

    def __init__(self, retention: Retention, path: Path | None = None) -> None:
        """Open the file, or make it; without a path nothing outlives the process.

        Raises InvalidConfig where the file cannot be used.
        """
        self.retention = retention
        self.byte_count = 0
        self.entries: dict[str, Entry] = {}  # by id, the oldest first
        self._by_key: dict[bytes, Entry] = {}
        self.store: Store | None = None
        if path is not None:
            self.store = Store(path, _SCHEMA, _VERSION, 2 * retention.byte_count)
            self._restore(self.store)
        newest = max((entry.number for entry in self.entries.values()), default=0)
        self._numbers = count(newest + 1)

    def _restore(self, store: Store) -> None:
        """Take over what the process before this one has left."""
        # Nothing says when that process ended: until then `seconds` held, and from then on the
        # other bound, so what is over goes once it is older than both.
        oldest = time.time() - self.retention.seconds - self.retention.away_seconds
        store.read_now("DELETE FROM submissions WHERE is_over AND used < ?", oldest)
        store.read_now(
            "DELETE FROM events WHERE submission NOT IN (SELECT number FROM submissions)"
        )
        for row in store.read_now(f"SELECT {', '.join(_COLUMNS)} FROM submissions ORDER BY number"):
            entry = Entry(*row)
            entry.is_kept = True
            [[size]] = store.read_now(
                "SELECT total(length(data)) FROM events WHERE submission = ?", entry.number
            )
            left = "SELECT data FROM events WHERE submission = ? AND number >= ? ORDER BY number"
            entry.events = [data for [data] in store.read_now(left, entry.number, entry.first)]
            entry.stored = entry.end
            self._add(entry, int(size))

    def _add(self, entry: Entry, byte_count: int = 0) -> None:
        self.entries[entry.id] = entry
        if entry.key:
            self._by_key[entry.key] = entry
        self._count(entry, byte_count + len(entry.request) + len(entry.opening))

    def _count(self, entry: Entry, more: int) -> None:
        entry.byte_count += more
        if entry.id in self.entries:
            self.byte_count += more

    # --- a request comes ---

    def repeated(self, key: bytes, digest: bytes, name: str) -> Entry | None:
        """Return the submission of a key; None where it is new.

        Raises KeyReused, of the field that the key came in by its name, where it is another
        request's.
        """
        self.forget_old()
        entry = self._by_key.get(key)
        if entry is not None and entry.digest != digest:
            raise KeyReused(name)
        return entry

    def begin(
        self,
        digest: bytes,
        key: bytes = b"",
        *,
        caller: str = "",
        owner: str = "",
    ) -> Entry:
        """Take in a submission. It is in memory alone until `keep`."""
        entry = Entry(next(self._numbers), secrets.token_hex(16), key, digest, caller, owner)
        self._add(entry)
        return entry

    def keep(self, entry: Entry, request: bytes = b"", opening: bytes = b"") -> None:
        """Put a submission and all that it has brought on disk, and what follows as it comes."""
        entry.request, entry.opening = request, opening
        self._count(entry, len(request) + len(opening))
        if self.store is None:
            return
        entry.is_kept = True
        values = [getattr(entry, name) for name in _COLUMNS]
        marks = ", ".join("?" * (len(values) + 1))
        self.store.put(f"INSERT INTO submissions VALUES ({marks})", *values, time.time())
        for number, data in enumerate(entry.events, entry.first):
            self._put_event(entry, number, data)

    # --- it brings something ---

    def append(self, entry: Entry, data: bytes) -> None:
        """Take in an event."""
        entry.events.append(data)
        self._count(entry, len(data))
        self._put_event(entry, entry.end - 1, data)

    def _put_event(self, entry: Entry, number: int, data: bytes) -> None:
        def note_stored() -> None:
            entry.stored = max(entry.stored, number + 1)
            entry.wake()

        statement = "INSERT INTO events VALUES (?, ?, ?)"
        self._put(entry, statement, entry.number, number, data, stored=note_stored)

    def finish(self, entry: Entry, error: bytes = b"") -> None:
        """Take in the end; with an error where that ended it."""

        def note_over() -> None:
            entry.is_over, entry.error, entry.last_use = True, error, time.monotonic()
            entry.wake()

        statement = "UPDATE submissions SET is_over = 1, error = ?, used = ? WHERE number = ?"
        self._put(entry, statement, error, time.time(), entry.number, stored=note_over)

    def take(self, entry: Entry, number: int) -> None:
        """Note that events before a number were taken: they stay on disk alone, if there."""
        taken = entry.events[: max(0, number - entry.first)]
        if not taken:
            return
        del entry.events[: len(taken)]
        entry.first += len(taken)
        if not entry.is_kept:
            self._count(entry, -sum(map(len, taken)))
        self.note(entry)

    def note(self, entry: Entry) -> None:
        """Write how much of a submission was taken, and how often it was continued."""
        statement = "UPDATE submissions SET used = ?, first = ?, attempts = ? WHERE number = ?"
        self._put(entry, statement, time.time(), entry.first, entry.attempts, entry.number)

    async def read(self, entry: Entry) -> list[bytes]:
        """Return all events, those that were taken included, as far as they are on disk.

        Raises StateUnavailable.
        """
        if self.store is None:
            return []
        statement = "SELECT data FROM events WHERE submission = ? ORDER BY number"
        return [data for [data] in await self.store.read(statement, entry.number)]

    # --- what is kept ---

    def make_room(self, more: int = 0) -> bool:
        """Forget what the bounds leave no room for, with so many more submissions.

        Return whether they hold: what is in flight stays.
        """
        self.forget_old()
        bounds = self.retention
        while len(self.entries) + more > bounds.count or self.byte_count > bounds.byte_count:
            over = [entry for entry in self.entries.values() if entry.is_over]
            if not over:
                return False
            self.forget(min(over, key=lambda entry: entry.last_use))
        return True

    def forget_old(self) -> None:
        """Forget what is over and was not used for long."""
        oldest = time.monotonic() - self.retention.seconds
        for entry in list(self.entries.values()):
            if entry.is_over and entry.last_use < oldest:
                self.forget(entry)

    def forget(self, entry: Entry) -> None:
        """Forget a submission, in memory and on disk; its key is new again."""
        if self.entries.pop(entry.id, None) is None:
            return
        self.byte_count -= entry.byte_count
        if self._by_key.get(entry.key) is entry:
            del self._by_key[entry.key]
        self._put(entry, "DELETE FROM events WHERE submission = ?", entry.number)
        self._put(entry, "DELETE FROM submissions WHERE number = ?", entry.number)
        entry.is_kept = False  # what still comes is not written

    def check(self) -> None:
        """Raise StateUnavailable while nothing can be stored."""
        if self.store is not None:
            self.store.check()

    async def settle(self) -> None:
        """Wait until all that came is stored. Raises StateUnavailable."""
        if self.store is not None:
            await self.store.settle()

    async def close(self) -> None:
        """Write what waits, if that is possible, and keep nothing from then on."""
        if self.store is not None:
            await self.store.close()

    def _put(
        self,
        entry: Entry,
        statement: str,
        *values: object,
        stored: Callable[[], None] = lambda: None,
    ) -> None:
        """Write about a submission that is kept; `stored` is called once that is done."""
        if entry.is_kept and self.store is not None:
            self.store.put(statement, *values, stored=stored)
        else:
            stored()
