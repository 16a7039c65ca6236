"""The draft in the target's own process, in one generation: what it costs there. Pure.

The target asks it before each decode for which a round has brought no other draft, without a
message.
"""

from __future__ import annotations

from outrider.core.rates import LATE_ROUNDS, DraftRates

_READ_AT_ONCE = 64
"""Tokens of a text that it reads in a round, at least, before it can draft: those of one decode."""


class OwnDraftState:
    """Whether it holds the text, and whether it answers at all."""

    def __init__(self, rates: DraftRates) -> None:
        self.rates = rates
        """Of all generations at the target."""
        self.drafts_nothing = False
        """Whether it drafts nothing for this text, and nobody knows why.

        The text may be longer than its context, or have tokens that it does not know; it may have
        no room for one more, or have failed.
        """
        self.has_read = False
        """It drafted, so it holds the text up to a few tokens."""
        self._rounds_in_vain = 0  # that it was asked for and drafted nothing, in a row
        self._read_seconds = 0.0  # that it worked in those, before it drafted at all

    def note_drafted(
        self, seconds: float, count: int, pays: bool, length: int, ratio: float
    ) -> None:
        """It drafted `count` tokens after a text of `length`; `pays`: not only for a probe.

        All sessions' tokens took `ratio` times as long as one's alone.
        """
        rates = self.rates
        rates.doubt()
        if not self.has_read and length > _READ_AT_ONCE:
            reading = self._read_seconds + seconds - ratio * count * rates.token_time.value
            rates.read_time.note(max(0.0, reading) / length, rates.read_time.value)
        elif count and seconds > 0.0:
            rates.token_time.note(seconds / count / ratio, rates.token_time.value)
        self.has_read, self.drafts_nothing, self._rounds_in_vain = True, False, 0
        rates.retry.note_tried(pays)

    def note_nothing(self, length: int, rounds: int, seconds: float) -> bool:
        """It was asked in some rounds and drafted nothing after a text of `length` tokens.

        In them it worked for so many seconds. Returns whether that is newly found to be so.
        """
        self._read_seconds += seconds
        self._rounds_in_vain += rounds
        reading = 0 if self.has_read else length // _READ_AT_ONCE
        if self._rounds_in_vain < LATE_ROUNDS + reading:
            return False
        did_nothing, self.drafts_nothing, self._rounds_in_vain = self.drafts_nothing, True, 0
        self.rates.retry.note_tried(pays=False)
        return not did_nothing

    def reading_seconds(self, length: int) -> float:
        """Return the expected time of reading a text of so many tokens, unless that was done."""
        return 0.0 if self.has_read else length * self.rates.read_time.value
