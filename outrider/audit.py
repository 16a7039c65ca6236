"""Writes down who was refused what and why: a line each, but never a flood of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from outrider import logs
from outrider.errors import OutriderError
from outrider.limits import Meter

AT_ONCE = 20
"""Lines that may come together; after that, as many in a minute."""

_MOST_CHARACTERS = 128  # characters of a name in a line of the audit log

_WHERE = "outrider.audit"


class Audit:
    """One line for each refusal, or for many of them how many were left out.

    What a line says of the caller is the name of its token and where it calls from, never what it
    showed.
    """

    def __init__(self, at_once: int = AT_ONCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_once = at_once
        self._clock = clock
        self._meter = Meter(time=clock())
        self.left_out = 0  # since the last line
        self._summary: asyncio.TimerHandle | None = None  # set while a line with the count is due

    def refused(self, who: str, peer: str, what: str, error: OutriderError) -> None:
        """Note that `who`, the name of a token or nothing, was refused `what`."""
        wait = self._meter.wait_seconds(self._at_once, self._clock())
        if wait:
            self.left_out += 1
            self._plan_summary(wait)
            return
        self._meter.level += 1.0
        logs.warning(
            _WHERE,
            "refused",
            who=who or "nobody known",
            peer=peer[:_MOST_CHARACTERS],
            what=what[:_MOST_CHARACTERS],
            why=error.reason,
            **self._counted(),
        )

    def _counted(self) -> dict[str, int]:
        count, self.left_out = self.left_out, 0
        return {"left_out": count} if count else {}

    def _plan_summary(self, wait: float) -> None:
        """See to it that the count is written down, also if no other refusal comes."""
        if self._summary is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # the next line says it
        self._summary = loop.call_later(wait, self._summarize)

    def _summarize(self) -> None:
        self._summary = None
        if self.left_out:
            self._meter.wait_seconds(self._at_once, self._clock())
            self._meter.level += 1.0
            logs.warning(_WHERE, "refusals left out", **self._counted())
