"""Remembers which hosts' drafts were refused lately, and why: a screenful at most. Pure.

A draft tries again for ever, each time from another port, and a hostile one under any names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MOST_REFUSED = 16
"""Hosts; what a terminal shows."""

REMEMBERED_SECONDS = 600.0
"""Seconds after the last attempt: a draft that still tries does so every few seconds."""

_MOST_NAME, _MOST_REASON = 64, 300  # characters of each that are shown


@dataclass(frozen=True, slots=True)
class Refusal:
    """What became of the attempts of one host's drafts."""

    address: str  # of the last one
    model_name: str  # of the last one; empty where it did not come so far
    reason: str
    attempt_count: int
    time: float  # of the last one


class RefusedDrafts:
    """The latest refusals, one of each host."""

    def __init__(self) -> None:
        self._refusals: dict[str, Refusal] = {}  # by host, the latest attempt last

    def note(self, address: str, model_name: str, reason: str, now: float) -> None:
        """A draft was refused."""
        before = self._refusals.pop(_host(address), None)
        count = before.attempt_count + 1 if before is not None else 1
        name, why = _one_line(model_name, _MOST_NAME), _one_line(reason, _MOST_REASON)
        self._refusals[_host(address)] = Refusal(address, name, why, count, now)
        if len(self._refusals) > MOST_REFUSED:
            del self._refusals[next(iter(self._refusals))]

    def forget(self, address: str) -> None:
        """A draft joined: what its host was refused for before is over."""
        self._refusals.pop(_host(address), None)

    def latest(self, now: float) -> Iterator[Refusal]:
        """Yield those that are not long ago, the latest first."""
        known = reversed(self._refusals.values())
        return (each for each in known if now - each.time < REMEMBERED_SECONDS)


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _one_line(text: str, most: int) -> str:
    """Return a text without what a terminal or a page would not show as it is."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
