"""Keeps the line of one session, with a llama-server that continues it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from draft_service.drafter import DraftedText, FrameBuilder
from outrider import wire, wire_drafts
from outrider.errors import ContextExhausted, EngineBusy, PeerUnavailable, PositionPastCache
from outrider.messages import (
    FRAME_TOKENS,
    Order,
    Rule,
    ServiceTime,
    SessionParameters,
    check_room,
)
from outrider.tasks import first_of
from outrider.v1 import draft_service_pb2 as messages
from outrider_llama_server.answers import Said, Served
from outrider_llama_server.guesses import Guessing

Ask = Callable[[Sequence[int], int], Awaitable[list[Said]]]
"""Asks for so many tokens after a text. Raises PeerUnavailable."""

Outcome = PositionPastCache | ContextExhausted | EngineBusy
Write = Callable[[messages.DraftResponse], Awaitable[None]]
WriteOutcome = Callable[[int, Outcome], messages.DraftResponse]


class Session:
    """One open stream: each order replaces the one before; frames go out as they come.

    `served` is the model that the stream was opened for.
    """

    def __init__(
        self, opening: SessionParameters, served: Served, ask: Ask, outcome: WriteOutcome
    ) -> None:
        self._opening = opening
        self._ask = ask
        self._outcome = outcome
        self._served = served
        self._line = DraftedText(opening.rule)
        self._frames = FrameBuilder(0, 0, time.perf_counter)
        self._guessing = Guessing(opening)
        # A block of the rejection rule has a fixed length, with any tokens.
        self._ends = () if opening.rule is Rule.REJECTION else opening.end_token_ids
        self._order: Order | None = None  # the newest one, while it is not completed
        self._refused: list[messages.DraftResponse] = []  # answers to orders that cannot be met
        self._arrived = asyncio.Event()  # something of both is there
        self._asking: asyncio.Task[list[Said]] | None = None
        self._spent = 0.0  # seconds of waiting for llama-server that no frame has said yet
        self._spent_tokens = 0

    async def run(self, orders: AsyncIterator[Order], write: Write) -> None:
        """Carry out orders until there are no more."""
        try:
            await first_of(self._read(orders), self._work(write))
        finally:
            self._stop_asking()

    async def _read(self, orders: AsyncIterator[Order]) -> None:
        async for order in orders:
            self._take(order)

    def _take(self, order: Order) -> None:
        """Take in an order; what is asked continues where the line stays."""
        self._order = None
        try:
            check_room(order.committed.end, self._served.context)
            if self._line.follow(order.committed, ()):
                assert self._line.base is not None
                self._frames = FrameBuilder(self._line.base, self._line.base, time.perf_counter)
                self._stop_asking()
            self._order = order
        except (PositionPastCache, ContextExhausted) as error:
            self._refused = [self._outcome(order.number, error)]
        self._arrived.set()

    def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _work(self, write: Write) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            refused, self._refused = self._refused, []
            for response in refused:
                await write(response)
            while (order := self._order) is not None:
                await self._extend(order, write)

    async def _extend(self, order: Order, write: Write) -> None:
        """Bring the line a few tokens further, or complete the order."""
        line = self._line.token_ids
        until = min(order.draft_until, self._served.context - 1)
        if self._is_over(until):
            await self._complete(order, write)
            return
        count = min(until - len(line), order.frame_tokens or FRAME_TOKENS)
        try:
            said = await self._said(count)
        except PeerUnavailable as error:
            if order is self._order:
                self._order = None
                await write(self._outcome(order.number, EngineBusy(str(error))))
            return
        if said is None:  # the line is another one by now
            return
        order = self._order or order
        is_done = not self._add(said, order) or not said
        if is_done and order is self._order:
            await self._complete(order, write)
        elif self._frames.due(order.frame_tokens):
            await self._emit(write)

    async def _said(self, count: int) -> list[Said] | None:
        """Ask for tokens after the line; None where it started over meanwhile."""
        begin = time.perf_counter()
        known = [min(i, self._served.vocabulary - 1) for i in self._line.token_ids]
        asking = asyncio.ensure_future(self._ask(known, count))
        self._asking = asking
        try:
            await asyncio.wait([asking])
        finally:
            self._asking = None
            asking.cancel()
        self._spent += time.perf_counter() - begin
        if asking.cancelled():
            return None
        said = asking.result()
        self._spent_tokens += len(said)
        return said

    def _add(self, said: Sequence[Said], order: Order) -> bool:
        """Add what fits to the line; return whether more may follow."""
        line = self._line.token_ids
        for guess in self._guessing.guesses(said, len(line)):
            if guess.doubtful:
                return False
            line.append(guess.token_id)
            self._frames.add(guess)
            if guess.confidence < order.stop_below:
                return False
            if guess.token_id in self._ends:
                return False
        return True

    def _is_over(self, until: int) -> bool:
        line, base = self._line.token_ids, self._line.base
        assert base is not None
        return len(line) >= until or (len(line) > base and line[-1] in self._ends)

    async def _complete(self, order: Order, write: Write) -> None:
        self._order = None
        await self._emit(write, order.number)

    async def _emit(self, write: Write, completed: int = 0) -> None:
        message = wire_drafts.write_frame(self._frames.take(completed))
        spent, tokens = self._spent, self._spent_tokens
        self._spent, self._spent_tokens = 0.0, 0
        time_ = wire.write_time(ServiceTime(spent, rows=tokens, steps=tokens))
        message.service_time.CopyFrom(time_)
        await write(message)
