"""Garbage is collected often and in small pieces, because a collection holds every thread."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from outrider.rpc.server import keep_collections_short

ALIVE = 400_000  # a service with its libraries has 86,000, a test process more


@pytest.fixture
def collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.fault(
    "hang",
    "A thousand generations left garbage, one collection took it away",
    before="the event loop stood still for .34 s",
    now="what was alive at the start is not looked at again, and the rest is collected in pieces",
)
def test_one_collection_never_has_much_to_do(collector: None) -> None:
    alive: list[Any] = [[] for _ in range(ALIVE)]
    gc.collect()  # as a start does that loads much
    most = 0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal most
        if phase == "stop":
            most = max(most, info["collected"])

    keep_collections_short()
    gc.callbacks.append(note)
    try:
        kept: list[Any] = []
        for _ in range(1_000_000):  # what outlives a young collection, and is garbage then
            cycle: list[Any] = []
            cycle.append(cycle)
            kept.append(cycle)
            if len(kept) > 20_000:
                kept.clear()
    finally:
        gc.callbacks.remove(note)
    assert len(alive) == ALIVE
    assert 0 < most < 40_000  # without it 100,000 and more
