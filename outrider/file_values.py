"""Values read from files, and read again when the files change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from outrider import logs
from outrider.errors import InvalidConfig

Value = TypeVar("Value")

_LOOK_SECONDS = 1.0
"""Between two looks at the files, at least."""

FileState = tuple[int, ...] | None
_Signature = tuple[FileState, ...]


class Reread(Generic[Value]):
    """What `read` makes of some files; called, it returns what they hold now.

    The files are looked at when the value is asked for, once a second at most: nothing runs
    meanwhile. New ones that cannot be used are one line in the log, and the value stays. Any
    thread may ask. Raises what `read` raises, at first alone: InvalidConfig.
    """

    def __init__(
        self,
        files: Sequence[Path],
        read: Callable[[], Value],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = tuple(files)
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._signature = _signature(self._files)  # of the files as they were read, or refused
        self._value = read()
        self._next_look = clock() + _LOOK_SECONDS

    def __call__(self) -> Value:
        """Return the value."""
        if self._clock() >= self._next_look:
            with self._lock:
                self._look()
        return self._value

    def _look(self) -> None:
        now = self._clock()
        if now < self._next_look:
            return  # another thread has looked
        self._next_look = now + _LOOK_SECONDS
        signature = _signature(self._files)
        if signature == self._signature:
            return
        names = ", ".join(map(str, self._files))
        try:
            value = self._read()
        except (InvalidConfig, OSError) as error:
            self._signature = signature
            message = "a changed file cannot be used; what it held before stays valid"
            logs.warning("outrider.files", message, files=names, detail=str(error))
            return
        if _signature(self._files) != signature:
            return  # they changed while they were read, and may not belong together
        self._signature, self._value = signature, value
        logs.event("outrider.files", "read again", files=names)


def _signature(files: Sequence[Path]) -> _Signature:
    """Return what differs once a file was written again, or another took its place."""
    return tuple(map(state_of, files))


def state_of(path: Path) -> FileState:
    """Return what differs once a file was written again or replaced; None where there is none."""
    try:
        state = path.stat()
    except OSError:
        return None
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
