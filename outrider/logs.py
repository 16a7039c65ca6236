"""One structured line per event on stderr: level, where, message, fields. Never text of users."""

from __future__ import annotations

import json
import logging
import os
import platform
import secrets
import sys
import time
from importlib import metadata

import outrider
from outrider.errors import DecodeFailed


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "where": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def start_logging(level: int = logging.INFO) -> None:
    """Log to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)


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
