"""The text that the bundled pair is made of, Python's standard library, and what is held out."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

LIBRARY = Path(sysconfig.get_paths()["stdlib"])

_SKIPPED_FOLDERS = {
    *("site-packages", "encodings", "__pycache__", "data", "pydoc_data", "ensurepip"),
    *("cjkencodings", "crashers"),
}


def is_held_out(name: str) -> bool:
    """Return whether a file, named by its path below the library, is kept for validation.

    One in fifty is, by a hash of the name.
    """
    return hashlib.sha256(name.encode()).digest()[0] % 50 == 7


def sources(library: Path = LIBRARY) -> Iterator[tuple[str, str]]:
    """Yield (name, text) in a fixed order: mostly ASCII, each text once, tables left out."""
    seen = set()
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if _SKIPPED_FOLDERS & set(name.parts[:-1]):
            continue
        try:
            text = path.read_text(encoding="utf-8").replace("\t", "    ").replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        beyond_ascii = sum(ord(character) > 126 for character in text)
        if len(text) < 200 or beyond_ascii > 0.02 * len(text) or text in seen:
            continue
        seen.add(text)
        yield name.as_posix(), text
