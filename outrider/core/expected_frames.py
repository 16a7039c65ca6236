"""When a draft's next frame is due, by what it was asked for, and what its frames took. Pure."""

from __future__ import annotations

from outrider.core.rates import DraftRates


class ExpectedFrames:
    """The orders that a draft has not answered, and the frame that is expected next.

    Times are seconds of the caller's clock. The rates, which are the draft's, learn from what
    comes.
    """

    def __init__(self) -> None:
        self.due = 0.0
        """When the next frame of the oldest order is expected."""
        self._size = 1  # tokens of each frame of the newest order
        self._orders: list[tuple[int, float]] = []  # committed length and time, unanswered ones
        self._reading = 0  # tokens of the text that came with the newest order

    def note_order(
        self, rates: DraftRates, now: float, length: int, size: int, reading: int
    ) -> None:
        """An order went out that may start the line over at the committed length `length`.

        The draft first reads `reading` tokens of the text. Its answer comes in frames of `size`.
        """
        self._reading, self._size = reading, size
        if not self._orders:
            self.due = self._first_due(rates, now)
        self._orders.append((length, now))

    def _first_due(self, rates: DraftRates, order_time: float) -> float:
        return order_time + rates.latency.value + self._size * rates.token_time.value

    def note_frame(
        self,
        rates: DraftRates,
        now: float,
        base: int,
        count: int,
        seconds: float,
        waited: float,
        is_first: bool,
    ) -> None:
        """A frame of `count` tokens came, after the draft's own `seconds`.

        It is of the line that started over at `base`; `is_first` says that it is the first one of
        its base, before which the draft `waited` for its turn.
        """
        if is_first:
            rates.doubt()
        way = self._way(now, base, seconds + waited)
        if seconds > 0.0:
            self._note_token_time(rates, seconds, count, is_first)
        if is_first and way is not None:
            rates.latency.note(way)
        self.due = now + self._size * rates.token_time.value

    def note_better(
        self,
        rates: DraftRates,
        now: float,
        base: int,
        count: int,
        seconds: float,
        waited: float,
    ) -> None:
        """The first frame of a stream came: it says only that a draft is better than was thought.

        Of short texts each has one probe at most, which is answered with this frame: a draft that
        was slow or far away for a while would be thought so for ever.
        """
        rates.doubt()
        way = self._way(now, base, seconds + waited)
        if way is not None and way < rates.latency.value:
            rates.latency.note(way)
        reading = self._reading * rates.read_time.value
        own = max(seconds - reading, min(seconds, count * rates.loaded_token_time))
        if 0.0 < own < count * rates.token_time.value:
            rates.token_time.note(own / count)

    def _way(self, now: float, base: int, spent: float) -> float | None:
        """Return what a frame took since the order that it answers beside what was `spent`."""
        times = [time for length, time in self._orders if length == base]
        return max(0.0, now - times[0] - spent) if times else None

    def _note_token_time(
        self, rates: DraftRates, seconds: float, count: int, is_first: bool
    ) -> None:
        """Learn what a token of a frame took, or of the text that was read before the first.

        That is what took most of the time. A text may have been cached: of what reading a token
        took before, half is the least that is taken in at once.
        """
        loaded, token_time, read_time = rates.loaded_token_time, rates.token_time, rates.read_time
        if not loaded:
            token_time.note(seconds / count)
            return
        read = max(0, self._reading - 1) if is_first else 0
        reading, drafting = read * read_time.value, count * token_time.value
        was_read = read > 0 and seconds > 2.0 * max(drafting, count * loaded)
        if reading <= count * loaded and not was_read:
            own = max(seconds - reading, min(seconds, count * loaded))
            token_time.note(own / count, token_time.value)
        else:
            its = max((seconds - drafting) / read, 0.5 * read_time.value)
            read_time.note(its, read_time.value)

    def line_agrees(self, end: int) -> None:
        """The line agrees with the text and reaches to `end`; it answers the orders up to there."""
        self._orders = [order for order in self._orders if order[0] > end]

    def line_lost(self, rates: DraftRates, length: int) -> None:
        """The line disagrees with the text at position `length`; a later order starts it over."""
        self._orders = [order for order in self._orders if order[0] > length]
        if self._orders:
            self.due = self._first_due(rates, self._orders[0][1])
