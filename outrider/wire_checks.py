"""Checks of what comes in that any message needs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from outrider.errors import InvalidRequest


def read_ids(field: str, token_ids: Sequence[int], size: int) -> list[int]:
    """Return token ids, every one in [0, size)."""
    ids = list(token_ids)
    if ids and not (min(ids) >= 0 and max(ids) < size):
        wrong = next(i for i in ids if not 0 <= i < size)
        raise InvalidRequest(field, f"token id {wrong} is outside [0, {size})")
    return ids


def read_text(field: str, value: str, most: int) -> str:
    """Return a text; raise InvalidRequest for one of more than `most` bytes in UTF-8."""
    count = len(value.encode())
    if count > most:
        raise InvalidRequest(field, f"{count} bytes, at most {most}")
    return value


def within(field: str, value: float, least: float, most: float) -> float:
    """Return a value; raise InvalidRequest for one outside of bounds."""
    if not least <= value <= most:
        raise InvalidRequest(field, f"must be in [{least}, {most}], not {value}")
    return value


def at_least(field: str, value: int, minimum: int) -> int:
    """Return a value; raise InvalidRequest for one below the minimum."""
    if value < minimum:
        raise InvalidRequest(field, f"must be at least {minimum}, not {value}")
    return value


def check_log_probabilities(field: str, values: Sequence[float]) -> None:
    """Raise InvalidRequest for a value that is no log probability."""
    for each in values:
        if not each < math.inf:  # nor is what is no number
            raise InvalidRequest(field, f"{each} is no log probability")
