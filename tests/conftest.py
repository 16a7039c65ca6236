"""What holds for every test."""

from __future__ import annotations

import os
import sys
import tempfile

import pytest

# Hundreds of processes import the product: they share its bytecode, whatever the shell says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_configure(config: pytest.Config) -> None:
    """Keep what services keep between starts apart from the user's own, for all workers alike."""
    cache = getattr(config, "cache", None)
    folder = cache.mkdir("outrider") if cache else tempfile.mkdtemp(prefix="outrider-tests-")
    os.environ["XDG_CACHE_HOME"] = str(folder)
