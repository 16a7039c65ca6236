"""When a draft's next frame is due, by what it was asked for, and what its frames took. Pure."""

from __future__ import annotations

from orchestrator.core.estimates import PairEstimates

_TEXT = 32  # tokens of which it is noticed that they were not cached
_LEAST_READ = 0.2  # of what a token of a text takes as measured at load
_LATENCY_RISE = 0.002  # beside twice of what is known, at once: a first answer may meet anything


class ExpectedFrames:
    """The orders that a draft has not answered, and the frame that is expected next.

    Times are seconds of the caller's clock. The estimates, which are the draft's, learn from what
    comes.
    """

    def __init__(self) -> None:
        self.due = 0.0
        """When the next frame of the oldest order is expected."""
        self.size = 1
        """The tokens of each frame of the newest order."""
        self._orders: list[tuple[int, float]] = []  # committed length and time, unanswered ones
        self._reading = 0  # tokens of the text that came with the newest order
        self._line_end: int | None = None  # of the line, while it agrees with the text

    def note_order(
        self, estimates: PairEstimates, now: float, length: int, size: int, reading: int
    ) -> None:
        """An order went out that may start the line over at the committed length `length`.

        The draft first reads `reading` tokens of the text. Its answer comes in frames of `size`.
        """
        self._reading, self.size = reading, size
        if not self._orders:
            self.due = self._first_due(estimates, now)
        self._orders.append((length, now))

    def _first_due(self, estimates: PairEstimates, order_time: float) -> float:
        return order_time + estimates.latency.value + self.size * estimates.token_time.value

    def note_frame(
        self,
        estimates: PairEstimates,
        now: float,
        base: int,
        count: int,
        seconds: float,
        is_first: bool,
        queue: float,
        reads_prompt: bool,
    ) -> None:
        """A frame of `count` tokens came, after the draft's own `seconds`.

        It is of the line that started over at `base`; `is_first` says that it is the first one of
        its base, before which the draft waited for `queue` seconds. With `reads_prompt` both
        models read the prompt before it: that says nothing of how far away the draft is.
        """
        # While the target has its turn nothing is lost by waiting.
        turn = queue if estimates.takes_turns else 0.0
        way = self._way(now, base, seconds + turn)
        if seconds > 0.0:
            self._note_token_time(estimates, seconds, count, is_first)
        if is_first and way is not None and not reads_prompt:
            estimates.turn.note(turn)
            latency = estimates.latency
            latency.note(way, latency.value + _LATENCY_RISE)
        self.due = now + self.size * estimates.token_time.value

    def note_better(
        self,
        estimates: PairEstimates,
        now: float,
        base: int,
        count: int,
        seconds: float,
        queue: float,
    ) -> None:
        """The first frame of a stream came: it says only that a draft is better than was thought.

        Of short texts each has one probe at most, which is answered with this frame: a draft that
        was slow or far away for a while would be thought so for ever.
        """
        way = self._way(now, base, seconds + (queue if estimates.takes_turns else 0.0))
        if way is not None and way < estimates.latency.value:
            estimates.latency.note(way)
        reading = self._reading * estimates.read_time.value
        own = max(seconds - reading, min(seconds, count * estimates.loaded_token_time))
        if 0.0 < own < count * estimates.token_time.value:
            estimates.token_time.note(own / count)

    def _way(self, now: float, base: int, spent: float) -> float | None:
        """Return what a frame took since the order that it answers beside what was `spent`."""
        times = [time for length, time in self._orders if length == base]
        return max(0.0, now - times[0] - spent) if times else None

    def _note_token_time(
        self, estimates: PairEstimates, seconds: float, count: int, is_first: bool
    ) -> None:
        """Learn what a token of a frame took, or of the text that was read before the first.

        That is what took most of the time. A text may have been cached: less than half of what
        reading took before is not believed at once, nor so little that a text which was read would
        be taken for slow tokens.
        """
        loaded, token_time, read_time = (
            estimates.loaded_token_time,
            estimates.token_time,
            estimates.read_time,
        )
        if not loaded:
            token_time.note(seconds / count)
            return
        read = max(0, self._reading - 1) if is_first else 0
        reading, drafting = read * read_time.value, count * token_time.value
        was_read = read >= _TEXT and seconds > 2.0 * max(drafting, count * loaded)
        if reading <= count * loaded and not was_read:
            own = max(seconds - reading, min(seconds, count * loaded))
            token_time.note(own / count, token_time.value)
        else:
            least = max(0.5 * read_time.value, _LEAST_READ * read_time.prior)
            read_time.note(max((seconds - drafting) / read, least), read_time.value)

    def line_agrees(self, end: int) -> None:
        """The line agrees with the text and reaches to `end`; it answers the orders up to there."""
        self._line_end = end
        self._orders = [order for order in self._orders if order[0] > end]

    def line_lost(self, estimates: PairEstimates, length: int) -> None:
        """The line disagrees with the text at position `length`; a later order starts it over."""
        self._line_end = None
        self._orders = [order for order in self._orders if order[0] > length]
        if self._orders:
            self.due = self._first_due(estimates, self._orders[0][1])

    def next_position(self, length: int, runs_ahead: bool) -> int:
        """Return where the next token stands that will come, after a text of `length` tokens.

        The text may be further by now. A draft that does not run ahead stands still until it is
        sent more, and then starts there.
        """
        if not runs_ahead:
            return self._orders[-1][0] if self._orders else length
        if self._line_end is not None:
            return self._line_end
        return self._orders[0][0] if self._orders else length
