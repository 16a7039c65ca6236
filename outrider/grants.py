"""Who may do what: named tokens with rights and limits, read from the text of a file. Pure.

    [tokens.alice]
    token = "a line of at least 16 characters"
    rights = ["client"]
    generations = 4

A text never becomes part of a message: it holds the tokens.
"""

from __future__ import annotations

import hmac
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any

from outrider.errors import InvalidRequest, PermissionDenied
from outrider.limits import NO_LIMITS, TokenLimits

LEAST_TOKEN = 16  # characters of a token
MOST_TOKEN = 4096  # gRPC takes 16 KiB of metadata
MOST_GRANTS = 1024
"""Every one of them is compared with what a caller shows."""

MOST_BYTES = 8 << 20  # bytes of a file of tokens

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PLACE = re.compile(r"\(at (line \d+, column \d+|end of document)\)")
_LIMITS = ("generations", "tokens_per_minute", "requests_per_minute")
_KEYS = ("token", "sha256", "rights", *_LIMITS)
_MOST = 1_000_000_000  # the highest limit that a token may have


class Right(StrEnum):
    """What a token is for."""

    CLIENT = "client"  # have texts written, and ask about tokens and templates
    DRAFT = "draft"  # join an orchestrator as a draft: it sees texts
    OPERATOR = "operator"  # what a client may, the state of everything, other models, all of a peer


ALL_RIGHTS = frozenset(Right)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the holder of one token may do. `digest` is the token's SHA-256."""

    name: str
    digest: bytes
    rights: frozenset[Right] = ALL_RIGHTS
    limits: TokenLimits = NO_LIMITS

    def allows(self, right: Right) -> bool:
        """Return whether it has a right; an operator may what a client may."""
        if right is Right.CLIENT and Right.OPERATOR in self.rights:
            return True
        return right in self.rights

    def check(self, right: Right) -> None:
        """Raise PermissionDenied unless it has a right."""
        if not self.allows(right):
            raise PermissionDenied(f"the token {self.name!r} has no right {right.value!r}")


def grant_of(token: str, name: str) -> Grant:
    """Return the grant of a token that may everything."""
    return Grant(name=name, digest=digest_of(token.encode()))


def digest_of(token: bytes) -> bytes:
    """Return what a token is known by."""
    return sha256(token).digest()


def find(grants: Iterable[Grant], token: bytes) -> Grant | None:
    """Return the grant of a token. The time that it takes says nothing about any token."""
    digest, found = digest_of(token), None
    for grant in grants:
        if hmac.compare_digest(digest, grant.digest):
            found = grant  # and on to the last one
    return found


# --- the file ---


def read_grants(text: str) -> tuple[Grant, ...]:
    """Return the grants in a text. Raises InvalidRequest, which names the place at fault."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        place = _PLACE.search(str(error))
        raise InvalidRequest(place[1] if place else "file", "is not TOML") from None
    if set(document) - {"tokens"}:
        raise InvalidRequest("file", "may hold nothing but tables [tokens.NAME]")
    tables = document.get("tokens")
    if not isinstance(tables, dict) or not 1 <= len(tables) <= MOST_GRANTS:
        raise InvalidRequest("tokens", f"needs 1 to {MOST_GRANTS} tables [tokens.NAME]")
    grants = tuple(_read_grant(name, table) for name, table in tables.items())
    named: dict[bytes, str] = {}
    for grant in grants:
        if grant.digest in named:
            raise InvalidRequest(f"tokens.{grant.name}", f"is the token of {named[grant.digest]}")
        named[grant.digest] = grant.name
    return grants


def _read_grant(name: str, table: Any) -> Grant:
    if _NAME.fullmatch(name) is None:
        message = "a name has 1 to 64 of A-Z a-z 0-9 . _ -, the first no sign"
        raise InvalidRequest("tokens", message)
    place = f"tokens.{name}"
    if not isinstance(table, dict):
        raise InvalidRequest(place, "must be a table")
    if any(key not in _KEYS for key in table):
        raise InvalidRequest(place, f"may have {', '.join(_KEYS)} alone")
    return Grant(
        name=name,
        digest=_read_digest(place, table),
        rights=_read_rights(place, table),
        limits=TokenLimits(
            **{key: _read_limit(f"{place}.{key}", table.get(key)) for key in _LIMITS}
        ),
    )


def _read_digest(place: str, table: Mapping[str, Any]) -> bytes:
    if ("token" in table) == ("sha256" in table):
        raise InvalidRequest(place, "needs either token or sha256")
    if "token" in table:
        return digest_of(check_token(f"{place}.token", table["token"]).encode())
    value = table["sha256"]
    if not isinstance(value, str) or re.fullmatch(r"[0-9a-fA-F]{64}", value) is None:
        raise InvalidRequest(f"{place}.sha256", "must be 64 hexadecimal digits, of a token's bytes")
    return bytes.fromhex(value)


def check_token(name: str, token: Any) -> str:
    """Return what can be a token. Raises InvalidRequest."""
    if not isinstance(token, str) or not LEAST_TOKEN <= len(token) <= MOST_TOKEN:
        raise InvalidRequest(name, f"a token has {LEAST_TOKEN} to {MOST_TOKEN} characters")
    if not (token.isascii() and token.isprintable()) or token != token.strip():
        raise InvalidRequest(name, "a token is one line of printable ASCII")
    return token


def _read_rights(place: str, table: Mapping[str, Any]) -> frozenset[Right]:
    names = [right.value for right in Right]
    value = table.get("rights")
    if not isinstance(value, list) or not value or any(each not in names for each in value):
        raise InvalidRequest(f"{place}.rights", f"must list some of {', '.join(names)}")
    return frozenset(map(Right, value))


def _read_limit(place: str, value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= _MOST:
        raise InvalidRequest(place, f"must be a whole number in [1, {_MOST}]")
    return value
