"""Several completions of a request come as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from orchestrator.completions import merged
from outrider.response import Delta, Event


class Stream:
    """A completion that brings messages as fast as they are taken."""

    def __init__(self, choice: int, count: int = 1000, error: BaseException | None = None) -> None:
        self.brought, self.is_closed = 0, False
        self._choice, self._count, self._error = choice, count, error

    async def events(self) -> AsyncGenerator[Event]:
        try:
            for _ in range(self._count):
                self.brought += 1
                yield Delta((), (), (), choice=self._choice)
                await asyncio.sleep(0.0)
            if self._error is not None:
                raise self._error
        finally:
            self.is_closed = True


def merge(streams: list[Stream]) -> AsyncGenerator[Event]:
    first, *others = [each.events() for each in streams]
    return merged(first, others)


async def test_all_that_they_bring_comes() -> None:
    streams = [Stream(i, 50) for i in range(3)]
    came = [each.choice async for each in merge(streams) if isinstance(each, Delta)]
    assert [came.count(i) for i in range(3)] == [50] * 3
    assert came[0] == 0


@pytest.mark.fault(
    "hang",
    "A client asks for several completions and reads none of them",
    before="all of what they brought was kept, with a message for every token",
    now="they wait after 16 messages, as a single one does",
)
async def test_they_wait_for_a_client_that_does_not_read() -> None:
    streams = [Stream(i) for i in range(3)]
    merging = merge(streams)
    await anext(merging)
    for _ in range(200):
        await asyncio.sleep(0.0)
    assert sum(each.brought for each in streams) <= 1 + 16 + len(streams)
    await merging.aclose()
    assert all(each.is_closed for each in streams if each.brought)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError("one of them")])
@pytest.mark.parametrize("place", [0, 1])
async def test_what_one_of_them_raises_ends_all(error: BaseException, place: int) -> None:
    streams = [Stream(i, 1000 if i != place else 3, error) for i in range(3)]
    with pytest.raises(type(error)):
        async with asyncio.timeout(5.0):
            async for _ in merge(streams):
                pass
    assert all(each.is_closed for each in streams if each.brought)
