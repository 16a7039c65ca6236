"""Salts: equal only for the same salt under the same credentials."""

from __future__ import annotations

import pytest

from outrider.errors import InvalidRequest
from outrider.request import MAX_SALT_BYTES, Request


def salt_of(credentials: bytes, salt: str = "") -> bytes:
    return Request("", cache_salt=salt).separated(credentials).salt_digest


def test_a_salt_is_the_same_only_under_the_same_credentials() -> None:
    salts = [salt_of(who, what) for who in (b"", b"one", b"two") for what in ("", "x", "y")]
    assert len(set(salts)) == len(salts)
    assert salt_of(b"one", "x") == salt_of(b"one", "x")
    assert salt_of(b"") == b"", "nobody to tell apart"
    assert {len(each) for each in salts[1:]} == {16}


def test_what_a_caller_sends_does_not_reach_the_salt_of_another() -> None:
    theirs = Request("").separated(b"a key")
    assert salt_of(b"another key", theirs.cache_salt) != theirs.salt_digest


@pytest.mark.parametrize("credentials", [b"", b"a key"])
def test_a_salt_that_the_caller_gave_is_told_from_that_of_its_key(credentials: bytes) -> None:
    for salt in ("", "mine"):
        request = Request("", cache_salt=salt).separated(credentials)
        assert request.has_own_salt == bool(salt)


def test_a_long_salt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="cache_salt"):
        Request("", cache_salt="ä" * (MAX_SALT_BYTES // 2 + 1))
