"""What drafting gained in truth, and when it is left alone because it lost. Pure.

A forecast rests on what a draft says of itself and on a model of how rounds follow each other. A
draft that is dishonest, or behaves in a way that the model does not have, could so make every text
slower for good. Here only two things count: the tokens that came, and when.
"""

from __future__ import annotations

_MOST_LOST = 12.0  # tokens that the target alone would have written meanwhile
_FIRST_REST, _REST_STEP, _LAST_REST = 64, 4, 1024  # decodes without the draft after such a loss
_MOST_OF_A_ROUND = 4.0
"""Times a plain token's seconds that a round counts for each of its tokens, at most: one that took
longer says more of the machine than of the draft."""


class Gain:
    """The gain of one draft beside its target, over all generations that use it."""

    def __init__(self) -> None:
        # Plain tokens that were lost by drafting, less those gained since: never below 0.
        self._lost = 0.0
        self._gained = 0.0  # the same the other way round
        self._rest = 0.0  # decodes until it may be used again
        self._next_rest = _FIRST_REST

    @property
    def is_resting(self) -> bool:
        """Whether it lost so much that it is not used now."""
        return self._rest > 0.0

    def note_rounds(self, committed: int, seconds: float, plain_seconds: float) -> None:
        """Rounds of a generation that uses it committed so many tokens in so many seconds.

        `plain_seconds` is of a token without it. What is lost is a sum that starts over at nothing
        with every gain (Page's CUSUM), so that a good draft's bad luck does not add up.
        """
        if self.is_resting or not committed:
            return
        most = _MOST_OF_A_ROUND * committed
        lost = min(seconds / plain_seconds, most) - committed
        self._lost = max(0.0, self._lost + lost)
        self._gained = max(0.0, self._gained - lost)
        if self._gained >= _MOST_LOST:
            self._next_rest = _FIRST_REST
        if self._lost >= _MOST_LOST:
            self._lost = self._gained = 0.0
            self._rest = self._next_rest
            self._next_rest = min(_LAST_REST, _REST_STEP * self._next_rest)

    def note_unused(self, decodes: float) -> None:
        """A generation made so many decodes without it."""
        self._rest = max(0.0, self._rest - decodes)
