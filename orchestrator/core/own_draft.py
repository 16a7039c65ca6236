"""What a target's own draft is to do. Pure.

It is in the target's process, which asks it before each decode without a message. How many tokens
it drafts, and how sure it has to be to continue, is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.core.estimates import Acceptance, OwnDraftEstimates
from orchestrator.core.forecast import Conditions, Forecast, Mode, serial

_READING_PAYS = 3.0
"""Times the draft's time for reading the text that drafting is expected to save: it may not, and
after a long text both a draft's tokens and the rows that verify them take longer than before."""
_PROBE_PAYS = 1.5
"""The same of a probe."""


@dataclass(frozen=True, slots=True)
class OwnDraftOrder:
    """What rounds say of the target's own draft."""

    count: int = 0  # tokens for a decode at most; 0: it is not asked
    stop_below: int = 0  # a token less sure than this is the last one
    is_probe: bool = False  # only to see how good it is

    def is_news(self, known: OwnDraftOrder) -> bool:
        """Return whether a target that was sent `known` should be sent this."""
        return (self.count, self.stop_below) != (known.count, known.stop_below)


NO_OWN_DRAFT = OwnDraftOrder()
_PROBE_LENGTH, _PROBE_TIME = 3, 1.5
"""Tokens of a probe, if the draft takes no more for them than so many tokens of the target do."""
_PROBE_GAIN = 0.1
"""Of a token's time a draft that is only tried is taken to save: what it may read for a probe."""
_PROBE_SHARE = 0.015
"""Of the time since the last one that a probe, or reading a text at last, may take."""
_READ_HOPE = 0.3
"""Of the time for reading a text it may take in truth: it may have been timed in a busy moment."""
_PROBE_MESSAGES = 0.003
"""Seconds of the target's cores that a probe takes beside its decodes: its order and its answer."""
_SILENT_ROUNDS, _READ_AT_ONCE = 16, 64
"""Rounds in a row that it was asked for and drafted nothing, after which it is not counted on; and
tokens of a text that it reads in one of them, at least, before it can draft."""


def forecast(
    conditions: Conditions,
    draft: OwnDraftEstimates,
    acceptance: Acceptance,
    n_max: int,
) -> Forecast:
    """Return the best that a target does which drafts by itself.

    That is drafting and verifying in turn, without a way between the two. `length` is of a draft
    that is ordered, so it is 0, and `own_length` what the target drafts.
    """
    here = replace(
        conditions,
        overhead=draft.gap.value,
        acceptance=min(0.99, acceptance.mean),
        latency=0.0,
        token_time=draft.token_time.value,
        confidences=acceptance.confidences,
    )
    best = serial(here, n_max)
    return replace(best, mode=Mode.OWN, length=0, hit_length=0, own_length=best.length)


class OwnDraft:
    """The target's own draft in one generation: whether to use it, and what for."""

    def __init__(self, estimates: OwnDraftEstimates) -> None:
        self._estimates = estimates
        self._has_read = False  # it drafted, so it holds the text up to a few tokens
        self._rounds_in_vain = 0  # that it was asked for and drafted nothing, in a row
        self._read_seconds = 0.0  # that it worked in those, before it drafted at all
        self.is_silent = False
        """Whether it drafts nothing for this text, and nobody knows why.

        The text may be longer than its context, or have tokens that it does not know; it may have
        no room for one more, or have failed.
        """

    def note_drafted(self, seconds: float, count: int, pays: bool, length: int = 0) -> None:
        """It drafted after a text of `length` tokens; `pays` says whether the forecast wants it."""
        if not self._has_read and length > _READ_AT_ONCE:
            reading = seconds - count * self._estimates.token_time.value
            self._estimates.note_reading(self._read_seconds + max(0.0, reading), length)
        self._has_read, self.is_silent, self._rounds_in_vain = True, False, 0
        self._estimates.note(seconds, count, pays)

    def note_nothing(self, length: int, rounds: int = 1, seconds: float = 0.0) -> bool:
        """It was asked in some rounds and drafted nothing after a text of `length` tokens.

        In them it worked for so many seconds. Returns whether it is found to be silent now.
        """
        self._read_seconds += seconds
        self._rounds_in_vain += rounds
        reading = 0 if self._has_read else length // _READ_AT_ONCE
        if self._rounds_in_vain < _SILENT_ROUNDS + reading:
            return False
        was_silent, self.is_silent, self._rounds_in_vain = self.is_silent, True, 0
        self._estimates.note_silence()
        return not was_silent

    def order(
        self,
        known: Forecast,
        plain_seconds: float,
        length: int,
        likely: int,
        sessions: float,
    ) -> OwnDraftOrder:
        """Return what it is to do after a text of `length` tokens, of which `likely` follow.

        So many `sessions` share a decode.
        """
        estimates = self._estimates
        times = _READING_PAYS if known.own_length else _PROBE_PAYS
        if known.own_length:
            saved = likely * (plain_seconds - 1.0 / known.rate)
            order = OwnDraftOrder(known.own_length, known.stop_below)
        elif estimates.unused_rounds >= estimates.probe_after:
            saved = likely * _PROBE_GAIN * plain_seconds
            most = _PROBE_TIME * plain_seconds / estimates.token_time.value
            most = min(most, _PROBE_LENGTH / sessions)  # all of them may probe in one decode
            order = OwnDraftOrder(max(1, int(most)), is_probe=True)
            if not self._may_probe(length, plain_seconds, sessions):
                return NO_OWN_DRAFT
        else:
            return NO_OWN_DRAFT
        reading = self._reading_seconds(length)
        if self._is_worth(sessions * reading, plain_seconds):
            # What is not tried could not be found to take less.
            reading = min(_READ_HOPE * reading, estimates.reading_at_load(length))
        return order if saved >= times * reading else NO_OWN_DRAFT

    def _may_probe(self, length: int, plain_seconds: float, sessions: float) -> bool:
        """Return whether the decodes since the last probe were worth the time of one.

        A text that is short, or was read before, is read in passing. All who share a decode may
        find so at once.
        """
        seconds = _PROBE_MESSAGES
        if length > _READ_AT_ONCE:
            seconds = max(seconds, self._reading_seconds(length))
        return self._is_worth(sessions * seconds, plain_seconds)

    def _reading_seconds(self, length: int) -> float:
        """Return the expected time of reading a text of so many tokens, unless that was done."""
        return 0.0 if self._has_read else self._estimates.reading_seconds(length)

    def _is_worth(self, seconds: float, plain_seconds: float) -> bool:
        """Return whether so long is a small share of the decodes since it was last used."""
        return seconds <= _PROBE_SHARE * self._estimates.unused_rounds * plain_seconds
