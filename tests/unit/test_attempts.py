"""The streams of one session: numbered, counted, and silent once they are closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.event_queue import EventQueue
from orchestrator.link import Attempts, Link
from orchestrator.streams import StreamLost
from outrider.messages import Rule, SessionParameters
from outrider.sampling import SamplingParameters

OPENING = SessionParameters(
    session_id=bytes(16),
    attempt=0,
    rule=Rule.MATCH,
    sampling=SamplingParameters(),
    seed=1,
    choice=0,
    prompt_count=1,
    token_limit=1,
    vocabulary=8,
)


class Fake:
    """A stream that brings what is put into it, and ends when it is asked to."""

    def __init__(self, byte_count: int = 0) -> None:
        self.byte_count = byte_count
        self.messages = asyncio.Queue[str]()

    async def write(self, message: Any) -> None:
        """Take it."""

    async def __aiter__(self) -> AsyncIterator[str]:
        while message := await self.messages.get():
            yield message
        raise StreamLost.gone("over")

    def cancel(self) -> None:
        self.messages.put_nowait("")


class Side:
    """Attempts, and what came of them."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.lost: list[Link] = []
        self.events = EventQueue[str](lambda: ())
        self.attempts = Attempts(
            OPENING, self.events, self.got.append, lambda link, _: self.lost.append(link)
        )

    def begin(self, stream: Any) -> None:
        self.attempts.begin(self.attempts.next_opening(), stream)


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - any task may make it true
            await asyncio.sleep(0.001)


async def test_each_attempt_has_the_next_number_and_the_bytes_of_all_are_counted() -> None:
    side = Side()
    assert (side.attempts.link, side.attempts.byte_count) == (None, 0)
    for number, byte_count in ((1, 10), (2, 15)):
        assert side.attempts.next_opening() == replace(OPENING, attempt=number)
        side.begin(Fake(10 if number == 1 else 5))
        assert side.attempts.byte_count == byte_count
        side.attempts.close()


async def test_what_still_waits_of_a_closed_stream_is_read_by_nobody() -> None:
    side, stream = Side(), Fake()
    side.begin(stream)

    stream.messages.put_nowait("first")
    await until(lambda: side.got == ["first"])
    assert side.attempts.link is not None
    take = partial(side.attempts.link._take, "late")

    def close_it() -> None:
        side.events.happen(take)  # it joins what waits, as this event is not over
        side.attempts.close()

    side.events.happen(close_it)
    assert side.got == ["first"]


async def test_a_stream_that_ends_is_lost_once() -> None:
    side, stream = Side(), Fake()
    side.begin(stream)
    link = side.attempts.link
    stream.messages.put_nowait("")
    await until(lambda: side.lost)
    assert side.lost == [link]
