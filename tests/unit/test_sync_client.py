"""The blocking client: what an interrupted call leaves of its work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outrider.client import Client, Request, sync


class Endless:
    """A client whose texts have one event and no end."""

    def __init__(self) -> None:
        self.waits, self.is_stopped = threading.Event(), False

    async def generate(self, request: Request, seconds: float | None) -> AsyncIterator[Any]:
        try:
            yield "first"
            self.waits.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # as a call takes a moment to end
            self.is_stopped = True

    async def close(self) -> None:
        """Close nothing."""


@pytest.mark.fault(
    "hang",
    "Ctrl-C while the blocking client waits for the next event of a text",
    before="it raised RuntimeError, and the text was written on",
    now="the text is stopped, and KeyboardInterrupt comes through",
)
def test_an_interrupted_wait_stops_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    endless, begin = Endless(), asyncio.run_coroutine_threadsafe

    async def make(*_: object) -> Endless:
        return endless

    def begin_and_interrupt(*work: Any) -> Any:
        future = begin(*work)

        def result() -> Any:
            """Wait as before, but for the event that never comes: that wait is interrupted."""
            monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", begin)
            endless.waits.wait()
            raise KeyboardInterrupt

        future.result = result
        return future

    monkeypatch.setattr(sync, "_make", make)
    with Client("unused:1") as client:
        events = client.generate(Request("x"))
        assert next(events) == "first"  # type: ignore[comparison-overlap]
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", begin_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(events)
        assert endless.is_stopped
