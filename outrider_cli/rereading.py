"""Reads the command line, the environment and the file of this process again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_arguments: list[str] = []
_reading: list[list[Any]] = []  # while it is read again: what the command makes of it


def note(arguments: Sequence[str]) -> None:
    """This process was started with these arguments."""
    if not _reading:
        _arguments[:] = arguments


def takes(config: Any) -> bool:
    """Return whether a command is only to say what its configuration is, and take it."""
    if _reading:
        _reading[-1].append(config)
    return bool(_reading)


def read() -> Any:
    """Return the configuration that the command would be started with now.

    Raises what the command raises for one that it refuses.
    """
    from outrider_cli.app import app

    _reading.append([])
    try:
        app(_arguments, prog_name="outrider", standalone_mode=False)
        [config] = _reading[-1]
        return config
    finally:
        _reading.pop()
