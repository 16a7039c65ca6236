"""Requests that are sent again with the same `Idempotency-Key`: which answer they get. Pure.

As in the IETF's draft-ietf-httpapi-idempotency-key-header: the key of a request that is over brings
its answer again, and with another request it is refused with 422. Where the draft lets a server
refuse the key of a request in flight (409), both get the one answer here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, TypeVar

from outrider.errors import KeyReused
from outrider.idempotency import check_key

HEADER = "Idempotency-Key"
MOST_KEYS = 4096
MOST_BYTES = 64 * 2**20
MOST_ANSWER_BYTES = 4 * 2**20
"""A longer answer is sent once, and not kept."""
KEEP_SECONDS = 600.0

Answer = TypeVar("Answer")


def read_key(values: Iterable[bytes]) -> str | None:
    """Return the key of a request that may have the header; None without one.

    The draft's quotes around it are no part of it, and most clients send none. Raises
    InvalidRequest.
    """
    found = [value.decode("latin-1").strip() for value in values]
    if not found:
        return None
    key = found[0]
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    return check_key(HEADER, key if len(found) == 1 else "")


def fingerprint(method: str, path: str, query: bytes, body: bytes) -> bytes:
    """Return what is equal for equal requests."""
    digest = sha256()
    for part in (method.encode(), path.encode(), query, body):
        digest.update(sha256(part).digest())
    return digest.digest()


@dataclass(slots=True)
class _Known(Generic[Answer]):
    request: bytes  # its fingerprint
    answer: Answer
    end: float | None = None  # None while it is in flight
    byte_count: int = 0


class KnownKeys(Generic[Answer]):
    """The answers of keys, in flight or over; what is over is bounded in age, number and size.

    Times are seconds of a clock that nobody sets.
    """

    def __init__(
        self,
        most_keys: int = MOST_KEYS,
        most_bytes: int = MOST_BYTES,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._most_keys, self._most_bytes = most_keys, most_bytes
        self._keep_seconds = keep_seconds
        self._in_flight: dict[bytes, _Known[Answer]] = {}
        self._over: OrderedDict[bytes, _Known[Answer]] = OrderedDict()  # the oldest end first
        self.byte_count = 0  # of those that are over

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._over)

    def find(self, name: bytes, request: bytes, now: float) -> Answer | None:
        """Return the answer of a key; None where it is new.

        Raises InvalidRequest where it was used for another request.
        """
        self._forget(now)
        known = self._in_flight.get(name) or self._over.get(name)
        if known is None:
            return None
        if known.request != request:
            raise KeyReused(HEADER)
        return known.answer

    def begin(self, name: bytes, request: bytes, answer: Answer) -> None:
        """A request with a new key is in flight."""
        self._in_flight[name] = _Known(request, answer)

    def end(self, name: bytes, byte_count: int, now: float) -> None:
        """It is over, and its answer is kept."""
        known = self._in_flight.pop(name)
        known.end, known.byte_count = now, byte_count
        self._over[name] = known
        self.byte_count += byte_count
        self._forget(now)

    def drop(self, name: bytes) -> None:
        """It failed, or its answer is too long: sent again it is a new request."""
        self._in_flight.pop(name, None)

    def _forget(self, now: float) -> None:
        while self._over:
            oldest = next(iter(self._over.values()))
            assert oldest.end is not None
            is_old = now - oldest.end > self._keep_seconds
            is_much = self.byte_count > self._most_bytes or len(self._over) > self._most_keys
            if not (is_old or is_much):
                return
            self._over.popitem(last=False)
            self.byte_count -= oldest.byte_count
