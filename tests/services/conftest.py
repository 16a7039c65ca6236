"""What every test of whole services needs."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator

import pytest


@pytest.fixture(autouse=True)
async def _collect_servers() -> AsyncIterator[None]:
    """Free gRPC's servers while their loop runs: freed later, they fail whatever test is next."""
    yield
    gc.collect()
