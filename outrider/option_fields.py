"""Fields of a dataclass that a command has an option for, with what the option's help says."""

from __future__ import annotations

from dataclasses import Field, field, fields
from typing import Any, TypeVar

Value = TypeVar("Value")


def option(
    default: Value,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    words: tuple[str, ...] = (),
    flag: str = "",
    metavar: str = "",
) -> Value:
    """Return a field for an option: its default, what its help says, and what it may be.

    That is a number in [low, high] or one of `words`. The option is called as the field unless a
    `flag` is given, such as "--ctx", or "--mmap/--no-mmap" for yes and no.
    """
    metadata = {"help": help, "low": low, "high": high, "words": words}
    made: Value = field(default=default, metadata={**metadata, "flag": flag, "metavar": metavar})
    return made


def flag_of(one: Field[Any]) -> str:
    """Return the flag of a field's option, such as "--n-max"; for a yes and a no both."""
    return str(one.metadata["flag"]) or "--" + one.name.replace("_", "-")


def numbers_of(kind: Any) -> tuple[Field[Any], ...]:
    """Return the fields that are a number in a range."""
    return tuple(each for each in fields(kind) if each.metadata.get("low") is not None)
