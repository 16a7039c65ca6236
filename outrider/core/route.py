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
class Offer:
    """What is known of a peer that a text could lease."""

    session_count: int  # that it can hold at the same time
    generation_count: int = 0  # that lease it now
    passed_over: int = 0  # leases of others since its own last one
    token_seconds: float  # of each token, of a target with as many texts as now and this one

    @property
    def is_full(self) -> bool:
        """Whether another session would cost one of those that it holds."""
        return self.generation_count >= self.session_count


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOffer(Offer):
    """Of a draft; those that lease it share its engine."""

    latency_seconds: float  # from an order to its first token, what its own time does not explain
    acceptance: float  # the chance that one of its tokens is accepted
    unread_seconds: float = 0.0  # until it has read of the text what it does not hold

    @property
    def seconds(self) -> float:
        """The time that one accepted token takes."""
        drafting = self.token_seconds * (self.generation_count + 1)
        seconds = (self.latency_seconds / _DRAFT_LENGTH + drafting) / max(self.acceptance, 0.01)
        return seconds + self.unread_seconds / _TEXT_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOffer(Offer):
    """Of a target."""

    unread_count: int  # tokens of the prompts there that it has still to read
    prompt_count: int  # tokens of the text before it is continued
    cached_count: int  # of these, what it probably holds
    read_seconds: float  # of each token that it reads
    is_full: bool = False  # it said lately that it has no room

    @property
    def queue_seconds(self) -> float:
        """The time until it begins to read: prompts before it, and texts that have to end."""
        waiting = self.generation_count - self.session_count + 1
        ends = max(0, waiting) * _TEXT_TOKENS * self.token_seconds / self.session_count
        return self.unread_count * self.read_seconds + ends

    @property
    def seconds(self) -> float:
        """The time until the text is written."""
        reading = max(1, self.prompt_count - self.cached_count) * self.read_seconds
        return self.queue_seconds + reading + _TEXT_TOKENS * self.token_seconds


def choose(offers: Sequence[DraftOffer] | Sequence[TargetOffer]) -> int:
    """Return the index of the peer to lease: the quickest with room, the first of equal ones."""
    return min(range(len(offers)), key=lambda i: _rank(offers[i]))


def _rank(offer: DraftOffer | TargetOffer) -> tuple[bool, bool, float, int]:
    is_forgotten = offer.passed_over >= MOST_PASSED_OVER and not offer.generation_count
    return offer.is_full, not is_forgotten, offer.seconds, offer.generation_count


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
