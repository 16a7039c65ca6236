"""Whose cached prefixes a generation may reuse: by the caller's credentials and its own salt. Pure.

A cached prefix shows those who can reuse it what the text is: by the count of cached
tokens, and by the time that reading the prompt takes.
"""

from __future__ import annotations

from hashlib import sha256

from outrider.errors import InvalidRequest
from outrider.messages import SALT_BYTES
from outrider.v1 import orchestrator_service_pb2 as messages

MAX_SALT_BYTES = 256

_OF_CREDENTIALS = "credentials "
"""Before what `separate` gives to a request that has no salt of its own."""


def separate(request: messages.GenerateRequest, credentials: bytes) -> None:
    """Give the request a salt that no caller with other credentials can give to its own.

    Without credentials callers cannot be distinguished, and the salt stays as it is.
    Raises InvalidRequest.
    """
    check(request.cache_salt)
    if credentials:
        kind = "" if request.cache_salt else _OF_CREDENTIALS
        own = sha256(credentials).digest() + request.cache_salt.encode()
        request.cache_salt = kind + sha256(own).hexdigest()


def has_its_own(request: messages.GenerateRequest) -> bool:
    """Return whether a request's caller gave it a salt, before `separate` changed it."""
    return bool(request.cache_salt) and not request.cache_salt.startswith(_OF_CREDENTIALS)


def digest(salt: str) -> bytes:
    """Return what model services are given for a salt; they never see the text itself.

    Raises InvalidRequest.
    """
    check(salt)
    return sha256(salt.encode()).digest()[:SALT_BYTES] if salt else b""


def check(salt: str) -> None:
    """Raise InvalidRequest for a salt that is too long."""
    if len(salt.encode()) > MAX_SALT_BYTES:
        raise InvalidRequest("cache_salt", f"at most {MAX_SALT_BYTES} bytes")
