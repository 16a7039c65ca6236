"""What tests of integrations that start services need: one event loop, as in tests/services."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.conftest import _collect_servers, on_one_loop

__all__ = ["_collect_servers"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of this folder on one loop, but not those in a folder of their own."""
    on_one_loop(item for item in items if item.path.parent == Path(__file__).parent)
