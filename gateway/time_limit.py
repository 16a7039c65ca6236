"""Ends a text whose time is over, as t_max_predict_ms does in llama-server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from outrider.messages import FinishReason
from outrider.response import Delta, Event, Finished


async def in_time(
    events: AsyncGenerator[Event], seconds: float, clock: Callable[[], float]
) -> AsyncGenerator[Event]:
    """Yield what a generation of one completion brings; each delta has its statistics.

    `seconds` after its first token the text ends as at its token limit, once it has a whole line.
    """
    begin: float | None = None
    has_line = False
    async with aclosing(events):
        async for event in events:
            yield event
            if not isinstance(event, Delta) or event.statistics is None:
                continue
            begin = clock() if begin is None else begin
            has_line = has_line or any("\n" in piece.text for piece in event.pieces)
            if has_line and clock() - begin >= seconds:
                yield Finished(FinishReason.TOKEN_LIMIT, event.statistics)
                return
