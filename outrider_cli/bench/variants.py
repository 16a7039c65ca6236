"""The ways to generate that a benchmark compares: names and what each asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.errors import InvalidRequest
from outrider.messages import MAX_DRAFT, Rule
from outrider.speculation import Policy

PLAIN = "plain"
SERIAL = "serial"
PEER = "llama-server"

_SERIAL_LENGTH = 3
_FIXED = {"policy": Policy.FIXED, "n_max": _SERIAL_LENGTH}


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to generate."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of GenerateOptions; a peer has none."""
    length: int | None = None
    """Of every draft, where it is fixed."""


NAMED = {
    variant.name: variant
    for variant in (
        Variant(PLAIN, {"enabled": False}, 0),
        Variant(SERIAL, {**_FIXED, "run_ahead": False}, _SERIAL_LENGTH),
        Variant("ahead", {**_FIXED, "run_ahead": True}, _SERIAL_LENGTH),
        Variant("measured", {"policy": Policy.MEASURED}),
        Variant("classic", {"policy": Policy.CLASSIC}),
        Variant("match", {"acceptance": Rule.MATCH}),
        Variant("rejection", {"acceptance": Rule.REJECTION}),
    )
}
DISTANT = (PLAIN, SERIAL, "measured")
"""What is measured at every round trip."""

_RULES = ("match", "rejection")  # greedy text knows no other distribution


def named_variants(names: Sequence[str], greedy: bool) -> list[Variant]:
    """Return variants by name, the one without drafts first; without names all that make sense.

    Raises InvalidRequest for a name that is not known.
    """
    for name in names:
        if name not in NAMED:
            raise InvalidRequest("variants", f"has {name}, which is none of {', '.join(NAMED)}")
    wanted = names or [name for name in NAMED if not (greedy and name in _RULES)]
    return [variant for name, variant in NAMED.items() if name == PLAIN or name in wanted]


def length_variants(lengths: Iterable[int]) -> list[Variant]:
    """Return a variant per draft length, each as --n-draft asks for it. Raises InvalidRequest."""
    for length in lengths:
        if not 1 <= length <= MAX_DRAFT:
            raise InvalidRequest("draft_lengths", f"must be in [1, {MAX_DRAFT}], not {length}")
    return [
        Variant(f"n={length}", {"policy": Policy.FIXED, "n_max": length}, length)
        for length in lengths
    ]


def numerics_variants(profile: str) -> list[Variant]:
    """Return what runs under other numerics: without drafts, and as measured."""
    both = (NAMED[PLAIN], NAMED["measured"])
    return [replace(each, name=f"{each.name}, {profile}") for each in both]


def peer_variants(lengths: Iterable[int]) -> list[Variant]:
    """Return what a peer is run as: without a draft, and with each draft length."""
    return [
        Variant(PEER, length=0),
        *(Variant(f"{PEER} n={length}", length=length) for length in lengths),
    ]
