"""How often short matches stand in a text, learned from all of them together. Pure.

A match passes each length once, so that one stretch of copied text says little of each. But where
those of three tokens stand, those of two and of five mostly do, too: a text copies or it does not.
So one number is learned, by which all of their chances differ from the usual ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_MEMORY = 0.99
_TRUSTED = 12.0  # tokens: what is expected of a length counts for so many seen
_STEADY = 0.995  # how what the shift weighs fades with each token
_LEAST_NEWS = 0.02  # of a token, however sure it was
_MOST = 1.5  # of the shift: 4.5 times the odds
_KEPT = 0.5  # of the shift, for the next text


class ShortMatches:
    """The chances of tokens after short matches, by how short: a logistic regression with one
    free number, the shift of all log-odds, and what was seen of each length on top."""

    def __init__(self, usual: Sequence[float], shift: float = 0.0) -> None:
        """`usual` are the chances over all texts."""
        self._usual = [min(0.99, chance) for chance in usual]
        self._shift, self._weight = shift, 1.0
        self._stood, self._seen = [0.0] * len(usual), [0.0] * len(usual)

    def __len__(self) -> int:
        """The number of lengths that count as short."""
        return len(self._usual)

    def for_next_text(self) -> ShortMatches:
        """Return what is expected of another text: half as far from the usual."""
        return ShortMatches(self._usual, _KEPT * self._shift)

    def note(self, which: int, stood: bool) -> None:
        """A token after such a match is decided."""
        expected = self._shifted(which)
        self._weight = _STEADY * self._weight + max(_LEAST_NEWS, expected * (1.0 - expected))
        shift = self._shift + (stood - expected) / self._weight
        self._shift = max(-_MOST, min(_MOST, shift))
        self._stood[which] = _MEMORY * self._stood[which] + stood
        self._seen[which] = _MEMORY * self._seen[which] + 1.0

    def chance(self, which: int) -> float:
        """Return the chance of a token after such a match."""
        trusted = _TRUSTED * self._shifted(which)
        return (self._stood[which] + trusted) / (self._seen[which] + _TRUSTED)

    def _shifted(self, which: int) -> float:
        usual = self._usual[which]
        return 1.0 / (1.0 + math.exp(-self._shift) * (1.0 - usual) / usual)
