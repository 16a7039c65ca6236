"""Jobs that write runner-up lines beside a session's own line, each in a session of the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from outrider.engine.host import EngineHost
from outrider.engine.job import Lease, Ticket
from outrider.errors import Draining, EngineBusy
from outrider.messages import MAX_DRAFT, SessionParameters

Help = Callable[[int, Lease], Any]
"""Starts a helper with a number, from 1, that has a session."""


class Helpers:
    """The helpers of one stream: sequences of the pool that the line's own is in.

    What they share with the line are its cells, so that to begin a runner-up line copies nothing.
    They take sequences that are free, or of texts that were idle for long.
    """

    def __init__(
        self, host: EngineHost, opening: SessionParameters, help_: Help, room: int | None = None
    ) -> None:
        """Each holds `room` tokens at most; None: what the text itself may have, and its draft."""
        self._host = host
        self._opening = opening
        self._room = room or opening.prompt_count + opening.token_limit + MAX_DRAFT
        self._help = help_
        self._tickets: dict[int, Ticket] = {}  # of those at work, by number
        self._used = 0  # the highest number so far
        self._is_closed = False

    def session_id(self, number: int) -> bytes:
        """Return the engine's session of a helper; nobody else can guess or name it by chance."""
        return hashlib.blake2b(
            self._opening.session_id, digest_size=17, person=b"helper %d" % number
        ).digest()

    def wake(self, count: int) -> None:
        """Let helpers up to a number work; called in the engine's thread."""
        for number in range(1, count + 1):
            before = self._tickets.get(number)
            if before is not None and before.future.done() and before.future.exception():
                self._is_closed = True  # there is no room for it, nor will there be soon
            if self._is_closed or (before is not None and not before.future.done()):
                continue
            try:
                self._tickets[number] = self._submit(number)
            except (EngineBusy, Draining):
                return
            self._used = max(self._used, number)

    def _submit(self, number: int) -> Ticket:
        opening = self._opening
        return self._host.submit(
            self.session_id(number),
            lambda lease: self._help(number, lease),
            salt=opening.salt,
            room=self._room,
            is_modest=True,
        )

    def close(self) -> None:
        """Stop them all and free what they held."""
        self._is_closed = True
        for ticket in self._tickets.values():
            self._host.cancel(ticket)
        for number in range(1, self._used + 1):
            try:
                self._host.forget(self.session_id(number))
            except Draining:
                return
