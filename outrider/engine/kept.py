"""Small results that outlive a process, one file each, in the user's cache folder.

Where nothing can be written, nothing is kept; a file that says nothing sensible is the reader's to
find out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

_NO_DISK = (OSError, RuntimeError)  # the latter from Path.home() where there is none


def cache_folder() -> Path:
    """Return the user's folder for what can be had again. Raises RuntimeError without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "outrider"


class KeptFiles:
    """What is kept in a folder of its own, by keys; of more than `most` the oldest go."""

    def __init__(self, folder: str, most: int) -> None:
        self._folder = folder
        self._most = most

    def find(self, key: str) -> bytes | None:
        """Return what was kept under a key."""
        with contextlib.suppress(*_NO_DISK):
            return self._path(key).read_bytes()
        return None

    def keep(self, key: str, content: bytes) -> None:
        """Keep this under a key, in one step."""
        with contextlib.suppress(*_NO_DISK):
            path = self._path(key)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(content)
            os.replace(file.name, path)
            by_age = sorted(path.parent.iterdir(), key=lambda each: each.stat().st_mtime)
            for each in by_age[: -self._most]:
                each.unlink(missing_ok=True)

    def forget(self) -> int:
        """Forget everything; return how much that was."""
        count = 0
        with contextlib.suppress(*_NO_DISK):
            for each in self._path("").parent.iterdir():
                each.unlink(missing_ok=True)
                count += 1
        return count

    def _path(self, key: str) -> Path:
        return cache_folder() / self._folder / hashlib.sha256(key.encode()).hexdigest()
