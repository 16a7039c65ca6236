"""One event per line on stderr: words on a terminal, JSON elsewhere. Never text of users."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import platform
import queue
import re
import secrets
import sys
import textwrap
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from datetime import datetime
from importlib import metadata
from typing import Any

import outrider
from outrider import request_scope
from outrider.errors import DecodeFailed

Event = MutableMapping[str, Any]


class _Events(logging.Formatter):
    """Makes an event of a record, and a line of that."""

    def __init__(self, render: Callable[[Event], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, and the trace of a bug in it or below it."""
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return self._render(
            {
                "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)),
                "level": record.levelname.lower(),
                "where": record.name,
                "message": record.getMessage(),
                **_whose(),
                **getattr(record, "fields", {}),
                **({"exception": trace} if trace else {}),
            }
        )


def _whose() -> dict[str, str]:
    """Return the id of the request that the logging task works for, if it is for one."""
    scope = request_scope.current()
    return {} if scope is None else {"request": scope.id}


_SHOWN = {
    "starting": ("outrider", "file"),
    "serving": ("model", "context", "sessions", "threads", "threads_chosen", "upstream"),
    "measured": ("numerics",),
    "chat template": ("calls", "thoughts"),
    "generated": ("tokens", "drafted", "accepted", "generation_ms"),
    "request": ("route", "status", "tokens", "seconds"),
}
"""Of messages with many fields, those that a terminal shows; of any other it shows all."""

_HIDDEN = ("where", "request")  # from a terminal
_PREFIX = len("12:34:56 [warning  ] ")
_NARROW = 80  # columns, where a terminal does not say how many it has
_DIM = 2  # of a terminal's styles
_LEVEL_STYLES = {"debug": _DIM, "warning": 33, "error": 31}
_FIELD = re.compile(r"(?<!\S)[a-z_]+=")


def renderer(descriptor: int, name: str = "") -> Callable[[Event], str]:
    """Return what makes a line of an event: JSON, or words where the descriptor is a terminal.

    There a name stands before each message, of the service whose events they are.
    """
    if not os.isatty(descriptor):
        return lambda event: json.dumps(event, default=repr)
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    paint = _uncoloured if plain else _coloured
    return lambda event: _words(event, name, _columns(descriptor), paint)


def _uncoloured(text: str, style: int) -> str:
    return text


def _coloured(text: str, style: int) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style else text


def _columns(descriptor: int) -> int:
    try:
        return os.get_terminal_size(descriptor).columns or _NARROW
    except OSError:
        return _NARROW


def _words(event: Event, name: str, columns: int, paint: Callable[[str, int], str]) -> str:
    """Return what a person reads of an event, wrapped, and without orders to the terminal."""
    event = {key: _visible(value) for key, value in event.items() if key not in _HIDDEN}
    when = datetime.fromisoformat(f"{event.pop('time')}+00:00").astimezone()
    level = event.pop("level")
    exception = event.pop("exception", "")
    lines = _lines(event, name, max(20, columns - _PREFIX))
    painted = [_FIELD.sub(lambda found: paint(found[0], _DIM), line) for line in lines]
    shown_level = paint(f"{level:<9}", _LEVEL_STYLES.get(level, 0))
    painted[0] = f"{paint(f'{when:%H:%M:%S}', _DIM)} [{shown_level}] {painted[0]}"
    shown = f"\n{' ' * _PREFIX}".join(painted)
    return f"{shown}\n{exception}" if exception else shown


def _lines(event: Event, name: str, room: int) -> list[str]:
    """Return an event's message and its fields, in lines with room for so many columns."""
    message, detail = event.pop("message"), event.pop("detail", "")
    shown = _SHOWN.get(message, event)
    fields = [f"{key}={_quoted(event[key])}" for key in event if key in shown and event[key] != ""]
    said = ": ".join(filter(None, (name, message, detail)))
    lines = textwrap.wrap(said, room, break_long_words=False) or [""]
    whole = " ".join([lines[-1], *fields])
    # Fields that do not fit begin a line of their own.
    return [*lines[:-1], whole] if len(whole) <= room else [*lines, *_filled(fields, room)]


def _filled(fields: Sequence[str], room: int) -> list[str]:
    """Return lines of as many fields as fit, at least one each."""
    lines = [*fields[:1]]
    for field in fields[1:]:
        longer = f"{lines[-1]} {field}"
        lines[-1:] = [longer] if len(longer) <= room else [lines[-1], field]
    return lines


def _quoted(value: Any) -> str:
    """Return a value so that its end is seen."""
    is_word = isinstance(value, str) and not re.search(r"[\s\"'=]", value)
    return value if is_word else repr(value)


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
    return _Events(renderer(descriptor))


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
