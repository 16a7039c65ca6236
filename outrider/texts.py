"""What can be said of texts before they are tokenized. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outrider.errors import InvalidRequest

MAX_TEXTS = 4096
"""Texts of one call at most."""

_ALWAYS_TAKEN = 1 << 20  # bytes of the texts of a call, at least, for any context
_NEVER_TAKEN = 8 << 20  # bytes of the texts of a call at most, for any context


def longest_token(texts: Iterable[bytes], names: Iterable[bytes]) -> int:
    """Return the most bytes of a text that one token can stand for, at least 1."""
    return max(1, *(len(each) for each in (b"", *texts, *names)))


def least_token_count(byte_count: int, longest: int) -> int:
    """Return how many tokens a text has at least, of a vocabulary with this longest token."""
    return -(-byte_count // longest)


def most_bytes(context: int, longest: int) -> int:
    """Return the bytes that the texts of one call may have together.

    As many as could fit the context; more, up to a limit, for those that are cut to fit.
    """
    return min(max(context * longest, _ALWAYS_TAKEN), _NEVER_TAKEN)


def starts(parts: Sequence[int | str], byte_count: int) -> list[int | str]:
    """Return the start of a prompt whose texts have so many bytes at most, cut on a character."""
    kept: list[int | str] = []
    for part in parts:
        text = part.encode() if isinstance(part, str) else b""
        if len(text) > byte_count:
            return [*kept, text[:byte_count].decode(errors="ignore")]
        kept.append(part)
        byte_count -= len(text)
    return kept


def check_count(field: str, count: int) -> None:
    """Raise InvalidRequest for more texts than one call takes."""
    if count > MAX_TEXTS:
        raise InvalidRequest(field, f"{count} texts, at most {MAX_TEXTS}")
