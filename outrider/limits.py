"""How much a named token may ask for: in flight, and in a minute. Pure: the time is an argument.

What is counted by the minute drains steadily: with 60 a minute one more is free after each second,
and after an idle minute 60 may come at once. Tokens are counted as they are written, so a text may
take its holder beyond the limit; the next one then waits until that has drained.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.errors import InvalidRequest, LimitReached

MINUTE = 60.0  # s; over which a rate is counted
IN_FLIGHT_RETRY = 1.0
"""Seconds after which to ask again where only the end of a generation makes room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """What a token may ask for; None: as much as there is."""

    generations: int | None = None  # completions in flight, of streams and of jobs
    tokens_per_minute: int | None = None  # of prompts and texts
    requests_per_minute: int | None = None  # calls, HTTP requests


NO_LIMITS = TokenLimits()


@dataclass(slots=True)
class Meter:
    """What was used and has not drained: `level` at `time`, in seconds of one clock."""

    level: float = 0.0
    time: float = 0.0

    def drain(self, per_minute: int, now: float) -> None:
        """Let drain what has by `now`; a clock that stands or goes back drains nothing."""
        passed = max(0.0, now - self.time)
        self.level = max(0.0, self.level - passed * per_minute / MINUTE)
        self.time = max(self.time, now)

    def wait_seconds(self, per_minute: int, now: float) -> float:
        """Return after how many seconds one more is free; 0 if it is now."""
        self.drain(per_minute, now)
        return max(0.0, (self.level + 1.0 - per_minute) * MINUTE / per_minute)


@dataclass(slots=True)
class Account:
    """What the holder of one token uses."""

    in_flight: int = 0
    tokens: Meter = field(default_factory=Meter)
    requests: Meter = field(default_factory=Meter)


class Ledger:
    """The accounts of all tokens, by their names. Limits may differ from one call to the next."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}

    def count_request(self, name: str, limits: TokenLimits, now: float) -> None:
        """Count a request. Raises LimitReached, and counts nothing, if it is one too many."""
        most = limits.requests_per_minute
        if most is None:
            return
        meter = self._of(name).requests
        wait = meter.wait_seconds(most, now)
        if wait:
            raise LimitReached("requests_per_minute", most, wait)
        meter.level += 1.0

    def begin(self, name: str, limits: TokenLimits, count: int, now: float) -> None:
        """Count so many completions as in flight. Raises LimitReached, and counts nothing.

        Raises InvalidRequest for more than are ever let.
        """
        account = self._of(name)
        most = limits.generations
        if most is not None and count > most:
            reason = f"this token may have {most} generations in flight, not {count}"
            raise InvalidRequest("completion_count", reason)
        if most is not None and account.in_flight + count > most:
            raise LimitReached("generations", most, IN_FLIGHT_RETRY)
        self.check_tokens(name, limits, now)
        account.in_flight += count

    def check_tokens(self, name: str, limits: TokenLimits, now: float) -> None:
        """Raise LimitReached if the tokens of this minute are used."""
        most = limits.tokens_per_minute
        if most is not None:
            wait = self._of(name).tokens.wait_seconds(most, now)
            if wait:
                raise LimitReached("tokens_per_minute", most, wait)

    def end(self, name: str, count: int) -> None:
        """Count so many completions as over."""
        self._of(name).in_flight -= count

    def spend(self, name: str, limits: TokenLimits, token_count: int, now: float) -> None:
        """Count tokens, whether there is room for them or not."""
        most = limits.tokens_per_minute
        if most is not None:
            meter = self._of(name).tokens
            meter.drain(most, now)
            meter.level += token_count

    def _of(self, name: str) -> Account:
        return self._accounts.setdefault(name, Account())
