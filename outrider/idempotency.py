"""Keys by which a request that is sent again is known: their bounds, and whose each is. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from outrider.errors import InvalidRequest

MOST_KEY_CHARACTERS = 255


def check_key(field: str, key: str) -> str:
    """Return a key. Raises InvalidRequest, of the field that it came in, for none there can be."""
    if not 1 <= len(key) <= MOST_KEY_CHARACTERS or not key.isprintable():
        raise InvalidRequest(field, f"must be one of 1 to {MOST_KEY_CHARACTERS} characters")
    return key


def name_of(key: str, credentials: Iterable[bytes]) -> bytes:
    """Return what a key is known by: nobody with other credentials comes upon it."""
    digest = sha256()
    for part in (*sorted(credentials), key.encode()):
        digest.update(sha256(part).digest())
    return digest.digest()
