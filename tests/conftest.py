"""What holds for every test."""

from __future__ import annotations

import os
import sys
import tempfile

import pytest

# Hundreds of processes import the product: they share its bytecode, whatever the shell says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


_DETERMINISTIC = {"unit", "exact"}
"""Folders of tests that are never tried again: no process and no clock has a say in them."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Try a test of threads or processes once more: a machine may have had no time for them.

    The summary names each of those (`R`): it is a fault of the test or of the product, to be found.
    """
    if not config.pluginmanager.hasplugin("rerunfailures"):  # with -p no:rerunfailures
        return
    for item in items:
        folder = item.path.relative_to(config.rootpath).parts
        if folder[0] == "tests" and _DETERMINISTIC.isdisjoint(folder):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_configure(config: pytest.Config) -> None:
    """Keep what services keep between starts apart from the user's own, for all workers alike."""
    cache = getattr(config, "cache", None)
    folder = cache.mkdir("outrider") if cache else tempfile.mkdtemp(prefix="outrider-tests-")
    os.environ["XDG_CACHE_HOME"] = str(folder)
