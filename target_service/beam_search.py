"""Beam search: the most probable completion that can be found, in place of a drawn one.

A beam is ranked by the logarithm of its probability, not divided by its length, and the search
ends when the best one has: all others can only lose. This is llama.cpp's former search.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, Container, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from outrider.distribution import Distribution, logprobs, softmax
from outrider.engine.host import EngineHost
from outrider.engine.job import Lease, Step, Ticket
from outrider.engine.model import Model, Row, Sampler
from outrider.engine.sampler_state import SamplerTracker
from outrider.errors import ContextExhausted, EngineBusy, InvalidRequest, RoundSuperseded
from outrider.messages import Logprobs, ServiceTime, SessionParameters, check_room
from outrider.wire import SESSION_ID_BYTES

_FINISHING_TOKENS = 3
"""What the best beam is continued by after the limit, for a character that is cut there."""


@dataclass(frozen=True, slots=True)
class Beam:
    """A completion in view; `score` is the natural logarithm of its probability."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    score: float = 0.0
    is_over: bool = False
    session_id: bytes = b""
    sampler: Sampler | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Next:
    """A token that may follow a beam, its log probability, and what is listed at its place."""

    token_id: int
    score: float
    listed: Logprobs = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Tokens that all beams agree on, after those found before."""

    token_ids: Sequence[int]
    logprobs: Sequence[Logprobs]
    spent: ServiceTime
    cached_count: int


def grow(
    beams: Sequence[Beam], nexts: Sequence[Sequence[Next]], count: int, end_ids: Container[int]
) -> list[Beam]:
    """Return the `count` best of the beams that are over and of all that may follow the others.

    The best comes first; among equals it is the one whose beam was better, then
    the one that is listed first.
    """
    ranked: list[tuple[float, Beam, Next | None]] = []
    for beam, its in zip(beams, nexts, strict=True):
        if beam.is_over:
            ranked.append((beam.score, beam, None))
        ranked += [(beam.score + each.score, beam, each) for each in its]
    ranked.sort(key=lambda one: -one[0])
    return [_behind(beam, each, end_ids) for _, beam, each in ranked[:count]]


def _behind(beam: Beam, following: Next | None, end_ids: Container[int]) -> Beam:
    """Return the beam, one token longer unless it is over."""
    if following is None:
        return beam
    sampler, token_id = beam.sampler, following.token_id
    is_over = token_id in end_ids
    if sampler is not None and sampler.has_state and not is_over:
        sampler = sampler.clone()
        sampler.accept(token_id)
    return Beam(
        token_ids=(*beam.token_ids, token_id),
        logprobs=(*beam.logprobs, following.listed),
        score=beam.score + following.score,
        is_over=is_over,
        session_id=beam.session_id,
        sampler=sampler,
    )


def agreed_count(beams: Sequence[Beam], start: int = 0) -> int:
    """Return how many tokens all beams have in common; the first `start` are known to be."""
    columns = zip(*(beam.token_ids[start:] for beam in beams), strict=False)
    return start + sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


class BeamSearch:
    """One search over an engine; every beam has a session there.

    Sessions are not pinned: one that is evicted meanwhile is decoded anew.
    Raises InvalidRequest for sampling parameters that do not go with the model.
    """

    def __init__(
        self,
        host: EngineHost,
        model: Model,
        opening: SessionParameters,
        prompt: Sequence[int],
        count: int,
        end_ids: frozenset[int],
    ) -> None:
        self._host = host
        self._opening = opening
        self._prompt = list(prompt)
        self._count = count
        self._end_ids = end_ids
        text = opening.whole(prompt)
        tracker = SamplerTracker(model.sampler(opening.sampling), opening.prompt_count)
        first = Beam(session_id=opening.session_id, sampler=tracker.at(text, len(text)))
        self._beams = [first]  # best first; never empty
        # Whose cells are this search's; given back at the end.
        self._sessions = {opening.session_id}
        self._tickets: set[Ticket] = set()  # of jobs that are not done
        self._spent = ServiceTime()  # since the last answer
        self._cached_count = 0  # tokens of the prompt that the cache held
        self._is_stopped = False  # the reader is gone; no further job starts

    async def run(self) -> AsyncGenerator[Found]:
        """Yield the tokens; closing the iterator stops the work.

        Raises ContextExhausted when the prompt does not fit, and InvalidRequest when
        the grammar leaves nothing to write.
        """
        limit, reported = self._opening.token_limit, 0
        try:
            for step in range(limit + _FINISHING_TOKENS + 1):
                if step == limit or self._beams[0].is_over:
                    del self._beams[1:]
                count = agreed_count(self._beams, reported)
                if count > reported:
                    yield self._found(reported, count)
                    reported = count
                if self._beams[0].is_over:
                    return
                try:
                    await self._grow()
                except ContextExhausted:
                    if not step:
                        raise
                    yield self._found(reported, step)
                    return
        finally:
            self._stop()

    def _found(self, first: int, end: int) -> Found:
        """Return a part of the best beam."""
        beam, spent, self._spent = self._beams[0], self._spent, ServiceTime()
        its = beam.token_ids[first:end], beam.logprobs[first:end]
        return Found(*its, spent, self._cached_count)

    async def _grow(self) -> None:
        """Make all beams one token longer, in one decode where they fit into one."""
        answers = await asyncio.gather(*(self._what_follows(beam) for beam in self._beams))
        nexts, spent = zip(*answers, strict=True)
        together = ServiceTime(  # the decodes that they share
            decode=max(each.decode for each in spent),
            queue=max(each.queue for each in spent),
            sample=sum(each.sample for each in spent),
            rows=max(each.rows for each in spent),
            attended=max(each.attended for each in spent),
            sessions=max(each.sessions for each in spent),
            steps=max(each.steps or 0 for each in spent),
        )
        self._spent.add(together)
        beams = grow(self._beams, nexts, self._count, self._end_ids)
        if not beams:
            raise InvalidRequest("grammar", "leaves no token that may follow")
        self._beams = self._settle(beams)

    async def _what_follows(self, beam: Beam) -> tuple[list[Next], ServiceTime]:
        """Return the tokens that may follow a beam, and what it took to know."""
        text = [*self._prompt, *beam.token_ids]
        while not beam.is_over:
            try:
                return await self._run(beam, text)
            except EngineBusy as busy:
                await asyncio.sleep(busy.retry_seconds)
            except RoundSuperseded:  # somebody closed the session; it starts anew
                if self._is_stopped:
                    raise
        return [], ServiceTime()

    async def _run(self, beam: Beam, text: list[int]) -> tuple[list[Next], ServiceTime]:
        ticket = self._host.submit(
            beam.session_id,
            lambda lease: self._decode(lease, beam, text),
            text,
            self._opening.salt,
            len(text),
        )
        self._tickets.add(ticket)
        try:
            nexts: list[Next] = await asyncio.wrap_future(ticket.future)
        finally:
            if ticket.future.done():
                self._tickets.discard(ticket)
        assert ticket.lease is not None
        return nexts, ticket.lease.take_spent()

    def _decode(
        self, lease: Lease, beam: Beam, text: list[int]
    ) -> Generator[Step, list[Row], list[Next]]:
        check_room(len(text), lease.capacity)
        missing = lease.reconcile(text, 1)
        if not beam.token_ids:
            self._cached_count = len(lease.held)
        rows = yield Step(missing, 1)
        assert beam.sampler is not None
        try:
            distribution = beam.sampler.distribution(rows[0])
        except InvalidRequest:
            return []  # the grammar leads nowhere from here
        return self._best(rows[0], distribution)

    def _best(self, row: Row, distribution: Distribution) -> list[Next]:
        """Return the tokens that can be among the best of all, with what is listed there."""
        best = [
            (i, value) for i, value in logprobs(distribution, self._count, ()) if value > -math.inf
        ]
        options = self._opening.logprobs
        if options is None:
            return [Next(token_id, value) for token_id, value in best]
        row_ = distribution if options.after_sampling else softmax(row)
        return [
            Next(token_id, value, logprobs(row_, options.top_count, [token_id]))
            for token_id, value in best
        ]

    def _settle(self, beams: Sequence[Beam]) -> list[Beam]:
        """Give every beam a session: the best heir of a beam has its own."""
        settled: list[Beam] = []
        taken: set[bytes] = set()
        for beam in beams:
            session_id = beam.session_id
            if session_id in taken and not beam.is_over:
                session_id = secrets.token_bytes(SESSION_ID_BYTES)
            if not beam.is_over:
                taken.add(session_id)
            settled.append(replace(beam, session_id=session_id))
        self._forget(self._sessions - taken - {beams[0].session_id})
        self._sessions |= taken
        return settled

    def _forget(self, sessions: Iterable[bytes]) -> None:
        for session_id in list(sessions):
            self._sessions.discard(session_id)
            self._host.forget(session_id)

    def _stop(self) -> None:
        """Leave nothing but what the next turn of a chat can use: the cache of the best beam."""
        self._is_stopped = True
        for ticket in self._tickets:
            self._host.cancel(ticket)
        self._forget(self._sessions - {self._beams[0].session_id})
