"""A virtual clock, and the engine of a target that several simulated generations share on it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from outrider.costs import CostTable
from outrider.engine.batching import (
    Awaited,
    Limits,
    Offer,
    decode_seconds,
    gains_that_pay,
    wait_until,
    widths,
)
from outrider.engine.model import MAX_PADDED, MAX_ROWS_OUT
from outrider.messages import ServiceTime

_FIRST_TURNAROUND = 0.001
_STREAMS = Limits(2048, MAX_ROWS_OUT, MAX_PADDED)


@dataclass(frozen=True, slots=True)
class Decode:
    """What one session has ready to be decoded."""

    session: Hashable
    rows: int
    length: int  # of the text before them
    slowdown: float  # of the decode, by what else the machine does
    ready_time: float
    take_turn: Callable[[float], float]  # returns how long to wait before so many seconds
    done: Callable[[ServiceTime, int], None]  # with the rows that were decoded
    drafted: int = 0  # tokens of the target's own draft among the rows
    draft_token: float = 0.0  # seconds of each of them, were it drafted alone
    draft_reading: float = 0.0  # seconds in which that draft first reads the text
    gains: Sequence[float] = ()  # of the last rows, which may be left out where others wait


class SharedEngine:
    """Decodes together what is ready, and waits for those just answered as the scheduler does."""

    def __init__(self, costs: CostTable) -> None:
        self.now = 0.0
        self._costs = costs
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._ready: list[Decode] = []
        self._is_busy = False
        self._decoding = 0.0  # seconds of all decodes so far
        self._awaited: dict[Hashable, Awaited] = {}
        self._turnarounds: dict[Hashable, float] = {}
        self._sequences: dict[Hashable, int] = {}  # adjacent, in order of arrival

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Make something happen later."""
        self._scheduled += 1
        heapq.heappush(self._queue, (self.now + seconds, self._scheduled, event))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let time pass until all is over."""
        while self._queue and not is_over():
            self.now, _, event = heapq.heappop(self._queue)
            event()
        assert is_over(), "nothing happens any more"

    def leave(self, session: Hashable) -> None:
        """Wait for a session no more."""
        self._awaited.pop(session, None)

    def decode(self, decode: Decode) -> None:
        """Decode as soon as what is being decoded is done, with all that is ready then."""
        awaited = self._awaited.pop(decode.session, None)
        if awaited is not None:
            seconds = self.now - self._decoding - awaited.answer_time
            self._turnarounds[decode.session] = 0.7 * awaited.turnaround + 0.3 * seconds
        self._sequences.setdefault(decode.session, len(self._sequences))
        self._ready.append(decode)
        self.after(0.0, self._consider)

    def _consider(self) -> None:
        if self._is_busy or not self._ready:
            return
        ready = {self._sequences[each.session]: each.rows for each in self._ready}
        awaited = list(self._awaited.values())
        idle = self.now - self._decoding
        until = self._decoding + wait_until(idle, ready, awaited, self._costs)
        if until > self.now + 1e-9:
            self.after(until - self.now, self._consider)
        else:
            self._decode()

    def _decode(self) -> None:
        together, self._ready = self._ready, []
        self._is_busy = True
        counts = self._kept(together)
        rows = [self._costs.padded(count) for count in counts]
        attended = [(count, each.length) for count, each in zip(rows, together, strict=True)]
        computed = widths([int(count) for count in rows], _STREAMS, self._costs)
        seconds = decode_seconds(computed, _STREAMS, self._costs) + self._costs.attending(attended)
        seconds *= max(each.slowdown for each in together)
        drafting = self._drafting(together)
        wait = max(each.take_turn(drafting + seconds) for each in together)
        for each, count in zip(together, counts, strict=True):
            spent = ServiceTime(
                seconds,
                self.now + wait - each.ready_time,
                rows=int(sum(rows)),
                attended=int(sum(count * length for count, length in attended)),
                draft=drafting if each.drafted else 0.0,
                sessions=len(together),
            )
            self.after(wait + drafting + seconds, partial(self._answer, each, spent, count))
        self.after(wait + drafting + seconds, partial(self._note_done, drafting + seconds))

    def _drafting(self, together: Sequence[Decode]) -> float:
        """Return the time of the own drafts of a decode, which all in it wait for.

        The n-th tokens of all drafts share one decode of the draft, whose rows cost in proportion
        what they cost the target.
        """
        seconds = sum(each.draft_reading for each in together)
        alone = self._costs.seconds(self._costs.padded(1))
        for place in range(max((each.drafted for each in together), default=0)):
            drafts = [each for each in together if each.drafted > place]
            ratio = self._costs.seconds(len(drafts) * self._costs.padded(1)) / alone
            seconds += ratio * max(each.draft_token for each in drafts)
        return seconds

    def _kept(self, together: Sequence[Decode]) -> list[int]:
        """Return the rows of each session, of those that may be left out as many as pay."""
        offers = [Offer(each.rows - len(each.gains), each.gains, each.length) for each in together]
        kept = gains_that_pay(offers, _STREAMS, self._costs, self._padded)
        return [offer.row_count + count for offer, count in zip(offers, kept, strict=True)]

    def _padded(self, count: int) -> int:
        return int(self._costs.padded(count))

    def _answer(self, decode: Decode, spent: ServiceTime, row_count: int) -> None:
        turnaround = self._turnarounds.get(decode.session, _FIRST_TURNAROUND)
        answer_time = self.now - self._decoding - spent.decode - spent.draft
        sequence = self._sequences[decode.session]
        self._awaited[decode.session] = Awaited(answer_time, turnaround, row_count, sequence)
        decode.done(spent, row_count)

    def _note_done(self, seconds: float) -> None:
        self._decoding += seconds
        self._is_busy = False
        self._consider()
