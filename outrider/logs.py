"""One event per line on stderr: words on a terminal, JSON elsewhere. Never text of users."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import platform
import queue
import secrets
import sys
import textwrap
import threading
import time
from collections.abc import Callable, MutableMapping
from datetime import datetime
from importlib import metadata
from typing import Any

import outrider
from outrider import request_scope
from outrider.errors import DecodeFailed

Event = MutableMapping[str, Any]


def _read(logger: Any, method: str, event: Event) -> Event:
    """Return a record as an event, to be rendered."""
    record = event["_record"]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)),
        "level": record.levelname.lower(),
        "where": record.name,
        "message": event["event"],
        **_whose(),
        **getattr(record, "fields", {}),
        "exc_info": event.get("exc_info"),
    }


def _whose() -> dict[str, str]:
    """Return the id of the request that the logging task works for, if it is for one."""
    scope = request_scope.current()
    return {} if scope is None else {"request": scope.id}


_SHOWN = {
    "starting": ("outrider", "file"),
    "serving": ("model", "context", "sessions", "threads", "threads_chosen", "upstream"),
    "measured": ("numerics",),
    "generated": ("tokens", "drafted", "accepted", "generation_ms"),
    "request": ("route", "status", "tokens", "seconds"),
}
"""Of messages with many fields, those that a terminal shows; of any other it shows all."""

_PREFIX = len("12:34:56 [warning  ] ")
_NARROW = 80  # columns, where a terminal does not say how many it has


def renderer(descriptor: int) -> Callable[[Event], str]:
    """Return what makes a line of an event: JSON, or words where the descriptor is a terminal."""
    from structlog import dev, processors

    if not os.isatty(descriptor):
        as_json = processors.JSONRenderer()
        return lambda event: str(as_json(None, "", event))
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    console = dev.ConsoleRenderer(
        colors=not plain,
        timestamp_key="time",
        event_key="message",
        pad_event_to=0,
        sort_keys=False,
        exception_formatter=dev.plain_traceback,  # rich's would show variables, so texts of users
    )
    return lambda event: console(None, "", _shortened(event, _columns(descriptor)))


def _columns(descriptor: int) -> int:
    try:
        return os.get_terminal_size(descriptor).columns or _NARROW
    except OSError:
        return _NARROW


def _shortened(event: Event, columns: int) -> Event:
    """Return what a person reads of an event, wrapped, and without orders to the terminal."""
    event = {name: _visible(value) for name, value in event.items() if name != "where"}
    when = datetime.fromisoformat(f"{event.pop('time')}+00:00").astimezone()
    level, message = event.pop("level"), event.pop("message")
    exception = event.pop("exception", None)
    shown = _SHOWN.get(message, event)
    if detail := event.pop("detail", ""):
        message = f"{message}: {detail}"
    fields = {name: value for name, value in event.items() if name in shown}
    room = max(20, columns - _PREFIX)
    lines = textwrap.wrap(message, room, break_long_words=False)
    if len(lines[-1]) + sum(len(f" {name}={value}") for name, value in fields.items()) > room:
        lines.append("")  # they begin a line of their own
    return {
        "time": f"{when:%H:%M:%S}",
        "level": level,
        "message": f"\n{' ' * _PREFIX}".join(lines).removesuffix(" "),
        **fields,
        **({"exception": exception} if exception else {}),
    }


def _visible(value: Any) -> Any:
    """Return a value with escapes for what is not printable, other than the ends of lines."""
    if not isinstance(value, str):
        return value
    return "\n".join(each if each.isprintable() else repr(each)[1:-1] for each in value.split("\n"))


_MOST_LINES = 4096  # lines that wait for a slow reader of the log; later ones are dropped
_LAST_SECONDS = 2.0  # s; for the lines that wait when the process ends


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
                line += self._dropped_line(dropped)
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                return  # nobody will ever read the rest

    def _dropped_line(self, count: int) -> bytes:
        record = logging.makeLogRecord(
            {
                "name": "outrider.logs",
                "levelno": logging.WARNING,
                "levelname": "WARNING",
                "msg": "log lines dropped",
                "fields": {"count": count},
            }
        )
        return self.format(record).encode() + b"\n"


LEVELS = ("debug", "info", "warning", "error")


def formatter(descriptor: int) -> logging.Formatter:
    """Return what makes lines of records, for a terminal or for anything else."""
    from structlog import processors, stdlib

    render = renderer(descriptor)
    return stdlib.ProcessorFormatter(
        processors=[_read, processors.format_exc_info, lambda _, __, event: render(event)]
    )


def start_logging(level: str = "info") -> None:
    """Log to stderr from now on, what is at least of a level."""
    handler = BackgroundLines(sys.stderr.fileno())
    handler.setFormatter(formatter(sys.stderr.fileno()))
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
