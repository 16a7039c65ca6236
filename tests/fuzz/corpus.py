"""The inputs that are kept, a file each: corpus/SUBJECT/NAME."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
MOST_BYTES = 8192
"""Of one input that is kept because it was found; what made a fault is kept whatever its size."""

FOUND = "found"
FAULT = "fault"


def read_corpus(subject: str, folder: Path = FOLDER) -> dict[str, bytes]:
    """Return the inputs of a subject by their names, in the order of these."""
    files = sorted((folder / subject).iterdir()) if (folder / subject).is_dir() else []
    return {file.name: file.read_bytes() for file in files}


def keep(subject: str, data: bytes, why: str, folder: Path = FOLDER) -> Path | None:
    """Keep an input; return its file, or None where it is too large or there already."""
    path = folder / subject / f"{why}-{hashlib.sha256(data).hexdigest()[:12]}"
    if path.exists() or (why == FOUND and len(data) > MOST_BYTES):
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
