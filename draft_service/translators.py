"""Drafts a session's line in the target's ids with a model that has other ones."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from outrider.engine.guesser import Guess, Guesser
from outrider.engine.job import Step
from outrider.engine.model import Row
from outrider.engine.string_guesser import MOST_OPEN, StringGuesser
from outrider.translation import TranslatedReader


class TextReader(Protocol):
    """Reads a session's text in the draft's tokens."""

    def read(self, line: Sequence[int], base: int) -> list[int]:
        """Return a line that started over at `base`; valid until the next call."""


class Cache(Protocol):
    """What it looks at of a `Lease`."""

    @property
    def capacity(self) -> int:
        """Tokens that the session can hold."""

    def reconcile(self, wanted: list[int], row_count: int) -> list[int]:
        """Cut the session to what it shares with a text; return what is left to decode of it."""


MOST_FOR_EACH = 8
"""Tokens of the target's that a text may have for each of the draft's that its context holds."""

MOST_AT_ONCE = 1024
"""Tokens of the target's that one order may add to a text; it is encoded in the engine's thread. A
text that is sent as a whole is encoded before, and may be longer."""

Asking = Generator[Step, list[Row], list[Guess]]


class Translator(Protocol):
    """Between a line of the target's and a model that reads it in other tokens."""

    def take(self, reader: Any) -> None:
        """Use a reader that has read the text already; from any thread."""

    def own_text(self, line: Sequence[int], base: int) -> list[int]:
        """Return a line that started over at `base` in the draft's ids."""

    def certain(self, line: Sequence[int], base: int, count: int) -> int:
        """Return how many of the draft's tokens stay if the line's first `count` do, about."""

    def ask(
        self, lease: Cache, line: Sequence[int], base: int, rivals: int, certain: int
    ) -> Asking:
        """Return the model's guess of the next token; none where there is none, or no room.

        The line's first `certain` tokens stay in any case.
        """


class TokenTranslator:
    """At token level: each token of the draft's is one of the target's.

    So it is where both have the same ids, and the draft a prompt of its own.
    """

    def __init__(self, guess: Guesser, reader: TextReader) -> None:
        self._guess = guess
        self._reader = reader

    def take(self, reader: TextReader) -> None:
        """Use another reader."""
        self._reader = reader

    def own_text(self, line: Sequence[int], base: int) -> list[int]:
        """Return a line in the draft's ids."""
        return self._reader.read(line, base)

    def certain(self, line: Sequence[int], base: int, count: int) -> int:
        """Return it: what is drafted after them is one token of the draft's each."""
        return max(0, len(self.own_text(line, base)) - max(0, len(line) - count))

    def ask(
        self, lease: Cache, line: Sequence[int], base: int, rivals: int, certain: int
    ) -> Asking:
        """Return the model's guess."""
        own = self.own_text(line, base)
        if not 0 < len(own) <= lease.capacity:
            return []
        stays = self.certain(line, base, certain)
        rows = yield Step(lease.reconcile(own, 1), 1, certain=stays)
        guess = self._guess(rows[0], base, line, rivals)
        return [] if guess.doubtful else [guess]


class NoTranslator:
    """Where nothing is shared and no text may be sent: the model reads and drafts nothing."""

    def take(self, reader: TranslatedReader) -> None:
        """Leave it."""

    def own_text(self, line: Sequence[int], base: int) -> list[int]:
        """Return nothing: the target's ids mean nothing to the model."""
        return []

    def certain(self, line: Sequence[int], base: int, count: int) -> int:
        """Return nothing."""
        return 0

    def ask(
        self, lease: Cache, line: Sequence[int], base: int, rivals: int, certain: int
    ) -> Asking:
        """Return no guess."""
        yield from ()
        return []


class StringTranslator:
    """At string level: the draft writes on until a token of the target's is settled."""

    def __init__(self, guesser: StringGuesser) -> None:
        self._guesser = guesser

    def take(self, reader: TranslatedReader) -> None:
        """Use another reader."""
        self._guesser.reader = reader

    def own_text(self, line: Sequence[int], base: int) -> list[int]:
        """Return a line in the draft's ids, and what it wrote beyond it."""
        return self._guesser.text(line, base)

    def certain(self, line: Sequence[int], base: int, count: int) -> int:
        """Return the draft's tokens up to the base: what they are after it may change."""
        self._guesser.text(line, base)
        return self._guesser.settled_count

    def ask(
        self, lease: Cache, line: Sequence[int], base: int, rivals: int, certain: int
    ) -> Asking:
        """Return the next settled token; its rivals are not known."""
        guesser = self._guesser
        for _ in range(MOST_OPEN):
            own = guesser.text(line, base)
            if guess := guesser.settled():
                return [guess]
            if guesser.is_over or not 0 < len(own) <= lease.capacity:
                break
            stays = guesser.settled_count
            rows = yield Step(lease.reconcile(own, 1), 1, certain=stays)
            guesser.write(rows[0], line)
        return []
