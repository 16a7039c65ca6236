"""Finds the tokens of a vocabulary that a grammar allows next. Pure."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from outrider.grammar.matcher import Matcher, Place

_LAST = "\U0010ffff"


class Tokens:
    """The texts of a vocabulary in their order, so that a prefix is followed once for all.

    Where a grammar allows little this is quick; where it allows most tokens, it is quicker to ask
    `Matcher.follow` of the likeliest few.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._fragments: list[tuple[int, bytes]] = []  # of characters
        whole = []
        for token_id, text in enumerate(texts):
            try:
                whole.append((text.decode(), token_id))
            except UnicodeDecodeError:
                self._fragments.append((token_id, text))
        whole.sort()
        self._texts = [text for text, _ in whole]
        self._ids = [token_id for _, token_id in whole]

    def allowed(self, matcher: Matcher, place: Place) -> list[int]:
        """Return the tokens that may come next, in no order; none has an empty text.

        Raises InvalidRequest at `MAX_STACKS`.
        """
        found = [i for i, text in self._fragments if matcher.follow(place, text)]
        return found if place.pending else found + self._allowed_whole(matcher, place)

    def _allowed_whole(self, matcher: Matcher, place: Place) -> list[int]:
        found = []
        states = [place.state]  # after each character of `last` that was let
        last = ""
        index = bisect(self._texts, "")
        while index < len(self._texts):
            text = self._texts[index]
            del states[_common(last, text, len(states) - 1) + 1 :]
            last = text
            for char in text[len(states) - 1 :]:
                after = matcher.advance(states[-1], ord(char)) if char != "\0" else None
                if after is None:
                    # Neither are the others that begin so.
                    index = bisect(self._texts, text[: len(states)] + _LAST, index)
                    break
                states.append(after)
            else:
                found.append(self._ids[index])
                index += 1
        return found


def _common(one: str, other: str, most: int) -> int:
    """Return the length of the common prefix, up to `most`."""
    for i in range(min(most, len(other))):
        if one[i] != other[i]:
            return i
    return min(most, len(other))
