"""The `outrider` command as children of a replica, which do not outlive it."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from outrider.errors import InvalidConfig
from outrider.processes import Child

_LOG = logging.getLogger("ray.serve")  # goes to the replica's own log


def command() -> tuple[str, ...]:
    """Return what runs a role: the command that is installed beside this Python.

    Raises InvalidConfig.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("outrider", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise InvalidConfig("outrider", "the command is not installed in this environment")
    return (found,)


async def start(
    role: str, listen: str, words: Sequence[str], settings: Sequence[str] = ()
) -> Child:
    """Start a service; `settings` are options of the command itself, before the role."""
    return await Child.start((*command(), *settings), role, listen, words, _log)


def _log(role: str, line: str) -> None:
    _LOG.info("%s: %s", role, line)
