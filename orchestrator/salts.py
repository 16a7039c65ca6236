"""Whose cached prefixes a generation may reuse: by the caller's credentials and its own salt. Pure.

A cached prefix shows those who can reuse it what the text is: by the count of cached
tokens, and by the time that reading the prompt takes.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from outrider.messages import SALT_BYTES
from outrider.request import Request

_OF_CREDENTIALS = "credentials "
"""Before what `separated` gives to a request that has no salt of its own."""


def separated(request: Request, credentials: bytes) -> Request:
    """Return the request with a salt that no caller with other credentials can give to its own.

    Without credentials callers cannot be distinguished, and the salt stays as it is.
    """
    if not credentials:
        return request
    kind = "" if request.cache_salt else _OF_CREDENTIALS
    own = sha256(credentials).digest() + request.cache_salt.encode()
    return replace(request, cache_salt=kind + sha256(own).hexdigest())


def has_its_own(request: Request) -> bool:
    """Return whether a request's caller gave it a salt, before `separated` changed it."""
    return bool(request.cache_salt) and not request.cache_salt.startswith(_OF_CREDENTIALS)


def digest(salt: str) -> bytes:
    """Return what model services are given for a salt; they never see the text itself."""
    return sha256(salt.encode()).digest()[:SALT_BYTES] if salt else b""
