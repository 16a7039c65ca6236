"""One structured line per event on stderr: level, where, message, fields. Never text of users."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import platform
import queue
import secrets
import sys
import threading
import time
from importlib import metadata

import outrider
from outrider import request_scope
from outrider.errors import DecodeFailed


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "where": record.name,
            "message": record.getMessage(),
            **_whose(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _whose() -> dict[str, str]:
    """Return the id of the request that the logging task works for, if it is for one."""
    scope = request_scope.current()
    return {} if scope is None else {"request": scope.id}


_MOST_LINES = 4096
_LAST_SECONDS = 2.0


class BackgroundLines(logging.Handler):
    """Writes lines to a file descriptor from a thread of its own: nothing that logs ever waits.

    When nobody reads the other end, `_lines` fills up; what comes then is dropped and counted in
    `_dropped`, and the next line that is written says how many those were.
    """

    def __init__(self, descriptor: int, most_lines: int = _MOST_LINES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(most_lines)
        self._dropped = 0  # lines for which there was no room, since the last that said so
        self._thread = threading.Thread(target=self._write, name="logs", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line."""
        try:
            line = self.format(record).encode(errors="replace") + b"\n"
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1
        except Exception:
            self.handleError(record)  # a line that cannot be written is no reason to end its work

    def finish(self, seconds: float = _LAST_SECONDS) -> None:
        """Wait until everything is written, but no longer than so."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
            self._thread.join(seconds)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line += (
                    b'{"level": "warning", "message": "log lines dropped", "count": %d}\n' % dropped
                )
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                return  # nobody will ever read the rest


LEVELS = ("debug", "info", "warning", "error")


def start_logging(level: str = "info") -> None:
    """Log to stderr from now on, what is at least of a level."""
    handler = BackgroundLines(sys.stderr.fileno())
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    atexit.register(handler.finish)


def set_level(level: str) -> None:
    """Log what is at least of another level from now on."""
    logging.getLogger().setLevel(level.upper())


def event(where: str, message: str, **fields: object) -> None:
    """Log one event with its fields."""
    logging.getLogger(where).info(message, extra={"fields": fields})


def starting(where: str, **fields: object) -> None:
    """Log that a process starts, and of what it is made."""
    event(
        where,
        "starting",
        outrider=outrider.__version__,
        python=platform.python_version(),
        grpc=metadata.version("grpcio"),
        pid=os.getpid(),
        **fields,
    )


def internal_error(where: str, error: BaseException) -> DecodeFailed:
    """Log a bug with an id; return an error with the id alone, as its text may hold a prompt."""
    error_id = secrets.token_hex(4)
    logging.getLogger(where).error("internal error id=%s", error_id, exc_info=error)
    return DecodeFailed(f"internal error {error_id}", errorId=error_id)


def warning(where: str, message: str, **fields: object) -> None:
    """Log one event that an operator may act on."""
    logging.getLogger(where).warning(message, extra={"fields": fields})
