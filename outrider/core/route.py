"""Where a text goes: which target writes it, which draft drafts for it. Pure.

Both are chosen by the seconds that are expected, among those that `health` admits. A prefix that a
peer probably holds has not to be read there: texts stay where theirs is until a queue costs more.

A prompt becomes a chain of digests, one after each block of tokens, each over all before it. They
begin with the caller's cache salt and a key of this process, so what is known of one caller's texts
says nothing of those of a caller with another salt, and nothing to a reader of the memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

BLOCK = 16
"""Tokens between two digests: less than a turn of most chats, and 256 digests of a full context."""

MOST_RECORDS = 256
"""Services of one name, at most; those of more records are not dialled."""

MOST_PASSED_OVER = 128
"""Leases of others after which an idle peer is tried again: what is known of it may be old. Less
than 1 % of texts go to the worse of two by that."""

_TEXT_TOKENS = 128
"""Tokens that a text is taken to have, where what they cost is compared with reading its prompt."""

_DRAFT_LENGTH = 4
"""Tokens over which the way to a draft is spread: about what one order brings."""

_DIGEST_BYTES = 8  # two texts with one digest would cost time, and nothing else
_MOST_DIGESTS = 1 << 16
"""Digests of all texts that one peer holds: a million tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPeer:
    """What is known of a peer that a text could lease; the better one is the lesser."""

    seconds: float  # until a target has written the text; of each accepted token of a draft
    text_count: int = 0  # that lease it now
    is_full: bool = False  # it has no room
    passed_over: int = 0  # leases of others since its own last one

    def __lt__(self, other: RankedPeer) -> bool:
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[bool, bool, float, int]:
        is_forgotten = self.passed_over >= MOST_PASSED_OVER and not self.text_count
        return self.is_full, not is_forgotten, self.seconds, self.text_count


def seconds_of_draft(
    *,
    text_count: int,
    token_seconds: float,
    latency_seconds: float,
    acceptance: float,
    unread_seconds: float = 0.0,
) -> float:
    """Return the time of each accepted token of a draft that one text more leases.

    Its token takes `token_seconds` for each text that leases it: they share its engine. From an
    order to its first token `latency_seconds` pass besides, `unread_seconds` until it has read the
    text.
    """
    drafting = token_seconds * (text_count + 1)
    seconds = (latency_seconds / _DRAFT_LENGTH + drafting) / max(acceptance, 0.01)
    return seconds + unread_seconds / _TEXT_TOKENS


def seconds_of_target(
    *,
    text_count: int,
    session_count: int,
    token_seconds: float,
    read_seconds: float,
    queued_count: int,
    unread_count: int,
) -> float:
    """Return the time until a target has written another text.

    `queued_count` tokens of others' prompts are read first and texts end where no session is free;
    then `unread_count` tokens of its own are read, each in `read_seconds`.
    """
    ends = max(0, text_count - session_count + 1) * _TEXT_TOKENS * token_seconds / session_count
    reading = (queued_count + max(1, unread_count)) * read_seconds
    return ends + reading + _TEXT_TOKENS * token_seconds


def weights_served(current: bytes, hosted: Sequence[bytes]) -> bytes:
    """Return the identity of the weights that a pool serves, empty before any is known.

    `current` is what was written with, empty before there was a text; `hosted` is what each target
    hosts, or hosted last, in their order. Weights stay for as long as any target has them: one that
    comes with others does not write, rather than that one chat were written by two models.
    """
    if current and current in hosted:
        return current
    return next((identity for identity in hosted if identity), current)


def dialled(records: Sequence[str], before: Collection[str] = ()) -> list[str]:
    """Return which records of a name are dialled, each as a service; none: the name itself is.

    `records` are IP addresses, `before` those that were dialled until now. A name with one record
    is dialled by name, so that what comes up under another address in its place is the same
    service. One that has had several is a service for each record, also while it has one. Where
    nobody answers for the name, what was dialled stays. Of records of both kinds the IPv4 ones
    count: a machine has one of each.
    """
    if not records:
        return sorted(before)
    chosen = sorted({ip for ip in records if ":" not in ip} or set(records))[:MOST_RECORDS]
    return chosen if before or len(chosen) > 1 else []


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
        # By their digests, the one used longest ago first; no text is a prefix of another.
        self._texts: list[tuple[bytes, ...]] = []

    def __len__(self) -> int:
        return len(self._texts)

    def count(self, digests: Sequence[bytes]) -> int:
        """Return how many tokens of a text, at least, are a prefix of one that is held."""
        return BLOCK * max((_shared(digests, each) for each in self._texts), default=0)

    def note(self, digests: tuple[bytes, ...], session_count: int) -> None:
        """A text was read or written there, in one of so many sessions."""
        if not digests:
            return
        longest = next((e for e in self._texts if _shared(digests, e) == len(digests)), digests)
        self._texts = [each for each in self._texts if _shared(longest, each) < len(each)]
        self._texts.append(longest)
        del self._texts[: -max(1, session_count)]
        while len(self._texts) > 1 and sum(map(len, self._texts)) > _MOST_DIGESTS:
            del self._texts[0]

    def correct(self, digests: Sequence[bytes], count: int) -> None:
        """The service said that it held so many tokens of a text: what had more is gone."""
        if count + BLOCK <= self.count(digests):
            kept = count // BLOCK
            self._texts = [each for each in self._texts if _shared(digests, each) <= kept]

    def clear(self) -> None:
        """The service was started again, and holds nothing."""
        self._texts.clear()


def _shared(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Return how many digests two texts begin with; each is of all before it."""
    places = range(min(len(one), len(other)))
    return bisect_left(places, True, key=lambda place: one[place] != other[place])
