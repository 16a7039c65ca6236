"""Remembers which drafts were sent away lately, and why: a screenful of them at most. Pure.

A draft tries again for ever, each time from another port, and a hostile one under any names: one
host takes a few entries at most, however often it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MOST_REFUSED = 16
MOST_OF_A_HOST = 4
REMEMBERED_SECONDS = 600.0
"""After the last attempt."""

_MOST_NAME, _MOST_REASON = 64, 300


@dataclass(frozen=True, slots=True)
class Refusal:
    """What became of the attempts of one draft."""

    address: str  # of the last one
    model_name: str  # empty where it did not come so far
    reason: str
    attempt_count: int
    time: float  # of the last one


class RefusedDrafts:
    """The latest refusals, by host and model."""

    def __init__(self) -> None:
        self._refusals: dict[tuple[str, str], Refusal] = {}  # the latest attempt last

    def note(self, address: str, model_name: str, reason: str, now: float) -> None:
        """Take note of an attempt."""
        name = _one_line(model_name, _MOST_NAME)
        key = _host(address), name
        before = self._refusals.pop(key, None)
        count = before.attempt_count + 1 if before is not None else 1
        self._refusals[key] = Refusal(address, name, _one_line(reason, _MOST_REASON), count, now)
        of_host = [each for each in self._refusals if each[0] == key[0]]
        for each in of_host[:-MOST_OF_A_HOST]:
            del self._refusals[each]
        for each in list(self._refusals)[:-MOST_REFUSED]:
            del self._refusals[each]

    def forget(self, address: str, model_name: str) -> None:
        """A draft joined: what it was refused for before is over."""
        host = _host(address)
        for name in (_one_line(model_name, _MOST_NAME), ""):
            self._refusals.pop((host, name), None)

    def latest(self, now: float) -> Iterator[Refusal]:
        """Yield those that are not long ago, the latest first."""
        self._refusals = {
            key: each
            for key, each in self._refusals.items()
            if now - each.time < REMEMBERED_SECONDS
        }
        yield from reversed(self._refusals.values())


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _one_line(text: str, most: int) -> str:
    """Return a text without what a terminal or a page would not show as it is."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
