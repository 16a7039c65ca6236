"""Which texts a model service probably holds, by digests: no text is kept. Pure.

A prompt becomes a chain of digests, one after each block of tokens, each over all before it. They
begin with the caller's cache salt and a key of this process, so what is known of one caller's texts
says nothing of those of a caller with another salt, and nothing to a reader of the memory.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

BLOCK = 16
"""Tokens between two digests: less than a turn of most chats, and 256 digests of a full context."""

_DIGEST_BYTES = 8
_KEPT_TEXTS, _KEPT_DIGESTS = 1024, 1 << 16


def digests_of(token_ids: Sequence[int], salt: bytes, key: bytes) -> tuple[bytes, ...]:
    """Return a digest of each prefix of a text that is a whole number of blocks long."""
    ids = np.asarray(token_ids, np.int32)
    found, last = [], salt
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        block = last + ids[end - BLOCK : end].tobytes()
        last = blake2b(block, digest_size=_DIGEST_BYTES, key=key).digest()
        found.append(last)
    return tuple(found)


class HeldTexts:
    """The texts that a model service was last seen to hold: as many as it has sessions.

    A guess: the service says nothing of what it forgets. It costs time where it is wrong, and
    nothing else.
    """

    def __init__(self) -> None:
        # By the last digest, the one used longest ago first; no text is a prefix of another.
        self._texts: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()
        self._known: Counter[bytes] = Counter()  # texts that each digest is of; none is 0

    def __len__(self) -> int:
        return len(self._texts)

    def count(self, digests: Sequence[bytes]) -> int:
        """Return how many tokens of a text, at least, are a prefix of one that is held."""
        blocks = 0
        for each in digests:
            if each not in self._known:
                break
            blocks += 1
        return BLOCK * blocks

    def note(self, digests: tuple[bytes, ...], session_count: int) -> None:
        """A text was read or written there, in one of so many sessions."""
        if not digests:
            return
        if digests[-1] in self._known:  # of this text, or of a longer one: that is used again
            place = len(digests) - 1
            longer = (key for key, text in self._texts.items() if text[place:][:1] == digests[-1:])
            self._texts.move_to_end(next(longer))
            return
        for each in digests[:-1]:  # the text that it continues
            if each in self._texts:
                self._forget(each)
        self._texts[digests[-1]] = digests
        self._known.update(digests)
        most = max(1, min(session_count, _KEPT_TEXTS))
        while len(self._texts) > 1 and self._is_over(most):
            self._forget(next(iter(self._texts)))

    def _is_over(self, most: int) -> bool:
        return len(self._texts) > most or len(self._known) > _KEPT_DIGESTS

    def correct(self, digests: Sequence[bytes], count: int) -> None:
        """The service said that it held so many tokens of a text: what had more is gone."""
        if count + BLOCK > self.count(digests):
            return
        missing = digests[count // BLOCK]
        for last in [last for last, text in self._texts.items() if missing in text]:
            self._forget(last)

    def clear(self) -> None:
        """The service was started again, and holds nothing."""
        self._texts.clear()
        self._known.clear()

    def _forget(self, last: bytes) -> None:
        for each in self._texts.pop(last):
            self._known[each] -= 1
            if not self._known[each]:
                del self._known[each]
