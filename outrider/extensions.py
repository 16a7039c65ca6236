"""What other installed packages add to this one: by their entry points, and by its extras."""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from outrider.errors import InvalidConfig


def load_extensions(group: str) -> dict[str, Any]:
    """Return what the entry points of a group refer to, by name, in alphabetical order.

    One that cannot be imported is not raised: an InvalidConfig that says why stands in its place.
    """
    found = sorted(entry_points(group=group), key=lambda point: point.name)
    return {point.name: _load(point) for point in found}


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # any error of another package's import
        reason = f"{type(error).__name__}: {error}"
        return InvalidConfig(point.name, f"cannot be loaded from {point.module}: {reason}")


def installing(extra: str) -> str:
    """Return the command that adds an extra to this very Python, which may not be the shell's."""
    return f"{shlex.quote(sys.executable)} -m pip install 'outrider[{extra}]'"
