"""Stands in for a library that llama.cpp's tests download models with.

Nothing is downloaded: the shim replaces every model by a bundled one anyway.
"""

from __future__ import annotations

from pathlib import Path


def download(url: str, out: str) -> None:
    """Leave an empty file where the one of this address would be."""
    Path(out).parent.mkdir(exist_ok=True)
    Path(out).touch()
