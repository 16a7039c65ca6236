"""Runs a generation whose tokens a beam search at the target finds, in place of two streams."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from orchestrator.pool import Pool
from orchestrator.timings import Timings
from outrider import wire
from outrider.core.actions import Commit, End
from outrider.core.generation import Generation
from outrider.errors import DeadlinePassed, InvalidRequest, PeerUnavailable
from outrider.messages import MAX_FINISHING, Answer, Round, Rows
from outrider.v1 import target_service_pb2 as messages
from outrider.wire_checks import within


class BeamDriver:
    """Runs one generation by beam search. `run` is used once."""

    def __init__(self, generation: Generation, pool: Pool, deadline: float) -> None:
        self.timings = Timings(time.perf_counter())
        self.wire_bytes = 0
        self._generation = generation
        self._pool = pool
        self._deadline = deadline

    async def run(self) -> AsyncGenerator[Commit | End]:
        """Yield what is committed and, last, the end.

        Raises PeerUnavailable when the target is away until the deadline.
        """
        generation, timings = self._generation, self.timings
        generation.target_opened()
        async with aclosing(self._tokens()) as tokens:
            while True:
                for action in generation.next_actions(time.perf_counter()):
                    if isinstance(action, Round):
                        begin = time.perf_counter()
                        rows = await anext(tokens, None)
                        now = time.perf_counter()
                        timings.verify_wait += now - begin
                        timings.prompt = timings.prompt or now - begin
                        if rows is None:
                            generation.target_full(action.number)
                        else:
                            answer = Answer(action.number, len(generation.committed), 0, rows)
                            generation.target_answered(answer, now)
                    elif isinstance(action, Commit | End):
                        timings.note_commit(time.perf_counter())
                        yield action
                        if isinstance(action, End):
                            return

    async def _tokens(self) -> AsyncGenerator[Rows]:
        """Yield the search's tokens, each as the row that a target would have answered."""
        plan = self._generation.plan
        request = messages.SearchBeamsRequest(
            open=wire.write_opening(plan.opening),
            token_ids=plan.prompt,
            beam_count=plan.beam_count,
            end_token_ids=sorted(plan.end_token_ids),
        )
        self.wire_bytes += request.ByteSize()
        pool = self._pool
        found = pool.calls().stream(
            "SearchBeams", request, self._deadline, lambda: _Attempt(self), _token_of
        )
        try:
            async with aclosing(found) as parts:
                async for part in parts:
                    for rows in part:
                        yield rows
        except PeerUnavailable:
            if pool.ready and time.monotonic() >= self._deadline:
                raise DeadlinePassed("the generation took longer than its deadline") from None
            raise

    def take(self, part: messages.SearchBeamsResponse) -> list[Rows]:
        """Return the tokens of a part, each as a row. Raises InvalidRequest for what cannot be."""
        self.wire_bytes += part.ByteSize()
        plan = self._generation.plan
        size, limit = plan.opening.vocabulary, plan.opening.token_limit
        within("cached_token_count", part.cached_token_count, 0, len(plan.prompt))
        within("token_ids", len(part.token_ids), 0, limit + MAX_FINISHING)
        token_ids = wire.read_ids("token_ids", part.token_ids, size)
        logprobs = wire.read_logprobs(part.logprobs, size, len(token_ids))
        self.timings.note_target(wire.read_time(part.service_time))
        self._generation.target_cached(part.cached_token_count)
        return [
            Rows(sampled=[token_id], logprobs=logprobs[i : i + 1])
            for i, token_id in enumerate(token_ids)
        ]

    def check_end(self, text: Sequence[int]) -> None:
        """Raise InvalidRequest where a search may not end after it found this text."""
        plan = self._generation.plan
        opening, length = plan.opening, len(plan.prompt) + len(text)
        is_over = len(text) >= opening.token_limit or {*text[-1:]} & plan.end_token_ids
        if not is_over and not self._pool.may_be_full(length, plan.target_context):
            raise InvalidRequest("token_ids", f"the search ends after {len(text)}, too early")


class _Attempt:
    """Reads what one search brings."""

    def __init__(self, driver: BeamDriver) -> None:
        self._driver = driver
        self._text: list[int] = []

    def read(self, part: messages.SearchBeamsResponse) -> list[Rows]:
        """Return the tokens of a part, each as a row. Raises InvalidRequest for what cannot be."""
        rows = self._driver.take(part)
        self._text += part.token_ids
        return rows

    def finish(self) -> None:
        """Raise InvalidRequest for a search that ended before its time."""
        self._driver.check_end(self._text)


def _token_of(rows: Rows) -> object:
    return tuple(rows.sampled)
