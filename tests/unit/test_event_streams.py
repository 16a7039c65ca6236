"""Several generations of one HTTP request, where fewer may be in flight than it has prompts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, contextmanager
from functools import partial

import pytest

from gateway.event_streams import numbered
from outrider.errors import EngineBusy, LimitReached, OutriderError
from outrider.limits import Ledger, TokenLimits


class Room:
    """A caller's generations: as many at the same time as its limit lets."""

    def __init__(self, most: int) -> None:
        self.limits, self.ledger = TokenLimits(generations=most), Ledger()
        self.tries = 0

    @contextmanager
    def place(self):
        self.tries += 1
        self.ledger.begin("a", self.limits, 1, 0.0)
        try:
            yield
        finally:
            self.ledger.end("a", 1)

    async def stream(self, number: int) -> AsyncGenerator[str]:
        with self.place():
            for text in ("a", "b", "c"):
                yield f"{number}{text}"


async def brought(room: Room, count: int) -> list[tuple[int, str]]:
    streams = [partial(room.stream, number) for number in range(count)]
    async with aclosing(numbered(streams)) as found:
        return [item async for item in found]


@pytest.mark.fault(
    "others",
    "A list of prompts by a key that may have fewer generations in flight",
    before="The request was refused with 429 on an idle server, however often it was tried.",
    now="Prompts wait for those before them; an `n` above the key's limit is a 400.",
)
@pytest.mark.parametrize("most", [1, 2, 3, 9])
async def test_prompts_that_a_limit_keeps_out_come_after_the_others(most: int) -> None:
    room = Room(most)
    found = await brought(room, 9)
    assert sorted(found) == [(i, f"{i}{text}") for i in range(9) for text in "abc"]
    assert room.tries <= 9 + 3, "a refused one is not tried over and over"


async def test_what_others_of_the_caller_hold_is_refused() -> None:
    room = Room(2)
    with room.place(), room.place(), pytest.raises(LimitReached):
        await brought(room, 5)
    assert len(await brought(room, 5)) == 15


@pytest.mark.parametrize(
    ("refusal", "after"),
    [(LimitReached("tokens_per_minute", 5, 1.0), 0), (EngineBusy("full"), 1)],
)
async def test_what_the_end_of_others_does_not_mend_ends_the_request(
    refusal: OutriderError, after: int
) -> None:
    tries: list[int] = []

    async def stream(number: int) -> AsyncGenerator[str]:
        tries.append(number)
        if number == 1:
            for _ in range(after):
                yield "a"
            raise refusal
        yield "b"

    with pytest.raises(EngineBusy) as refused:
        async for _ in numbered([partial(stream, number) for number in range(3)]):
            pass
    assert refused.value is refusal and tries.count(1) == 1
