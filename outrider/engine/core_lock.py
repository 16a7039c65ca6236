"""Lets engines decode one after the other where their threads do not fit the cores at once.

Two OpenMP programs on the same cores wait at each other's barriers: beside a
busy draft a decode of 53 ms took 920 (docs/decisions/0008). So every engine
on a CPU locks as many bytes of a file as it has threads; the file has one for
every core. Locks of this kind end with their process, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from outrider import logs
from outrider.threads import available_cores

_POLL = 0.001
"""Seconds between two looks: each takes a core from who decodes."""

_LONGEST_WAIT = 2.0
"""Seconds for which a holder is waited for: more than any decode but of a long prompt takes."""

_NOTED_SECONDS = 3.0
"""s; of a wait before a start that is logged: a person who watches it wonders soon after."""


class CoreLock(Protocol):
    """Whose turn it is to decode."""

    cores_digest: bytes
    """Equal for engines that take turns with each other; empty for one that waits for nobody."""

    core_count: int

    def take(self, now: float) -> float:
        """Take the turn and return 0.0, or return the seconds after which to try again."""
        ...

    def give(self) -> None:
        """Let others decode."""
        ...

    def wait(self, seconds: float) -> None:
        """Take the turn, if it comes within so many seconds."""
        ...

    def try_take(self) -> bool:
        """Take the turn if nobody else has it; who does is not waited for, however long."""
        ...


class NoCoreLock:
    """Every turn is one's own."""

    cores_digest = b""
    core_count = 0

    def take(self, now: float) -> float:
        """Return 0.0."""
        return 0.0

    def give(self) -> None:
        """Do nothing."""

    def wait(self, seconds: float) -> None:
        """Do nothing."""

    def try_take(self) -> bool:
        """Return True."""
        return True


class SharedCores:
    """CoreLock on the cores that this process may use, among all engines of one user.

    A holder that keeps them for `_LONGEST_WAIT`, such as a stopped process, is waited for no more
    until the cores are seen free again.
    """

    def __init__(self, file: int, core_count: int, thread_count: int) -> None:
        """Take turns by the locks on an open file."""
        self.core_count = core_count
        self.cores_digest = _identity(file)
        self._file = file
        self._count = min(thread_count, core_count)
        self._held: int | None = None  # the first core that is locked; None while none is
        self._waiting_since: float | None = None  # None while it does not wait
        self._is_noted = False  # whether a wait was logged; one line is enough

    def take(self, now: float) -> float:
        """Lock free cores; see CoreLock."""
        if self._lock_any():
            self._waiting_since = None
            return 0.0
        if self._waiting_since is None:
            self._waiting_since = now
        return _POLL if now - self._waiting_since < _LONGEST_WAIT else 0.0

    def give(self) -> None:
        """Unlock them."""
        if self._held is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, self._count, self._held)
            self._held = None

    def wait(self, seconds: float) -> None:
        """Lock free cores, however long others hold them up to a limit; see CoreLock."""
        begin = time.monotonic()
        while not self._lock_any() and (waited := time.monotonic() - begin) < seconds:
            if waited >= _NOTED_SECONDS and not self._is_noted:
                self._is_noted = True
                self._note_wait(seconds)
            time.sleep(_POLL)

    def _note_wait(self, seconds: float) -> None:
        cores = f"{self._count} of {self.core_count} cores, on which other models of yours decode"
        detail = f"{cores}; after {seconds:.0f} s it measures beside them"
        logs.event("outrider.engine", "waiting for cores", detail=detail)

    def try_take(self) -> bool:
        """Lock free cores if there are any now; see CoreLock."""
        return self._lock_any()

    def _lock_any(self) -> bool:
        for start in range(self.core_count - self._count + 1):
            with suppress(OSError):
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, self._count, start)
                self._held = start
                return True
        return False


def shared_core_lock(thread_count: int, folder: Path | None = None) -> CoreLock:
    """Return the lock of an engine of so many threads; one that is always free without sharing."""
    cores = sorted(available_cores())
    name = hashlib.sha256(repr(cores).encode()).hexdigest()[:16]
    try:
        folder = folder or Path(tempfile.gettempdir(), f"outrider-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            return NoCoreLock()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return SharedCores(
            os.open(folder / f"cores-{name}", flags, 0o600), len(cores), thread_count
        )
    except OSError:
        return NoCoreLock()


def _identity(file: int) -> bytes:
    """Return what two open files have in common only if they are one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        boot = b""
    stat = os.fstat(file)
    return hashlib.sha256(boot + f"{stat.st_dev} {stat.st_ino}".encode()).digest()[:16]
