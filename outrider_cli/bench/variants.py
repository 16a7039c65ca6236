"""The ways to generate that a benchmark compares: names and what each asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.errors import InvalidRequest
from outrider.messages import MAX_DRAFT, Rule
from outrider.speculation import Policy, Speculation
from outrider_cli.bench.peer_drafters import PeerDrafter, draft_model

PLAIN = "plain"
SERIAL = "serial"
PEER = "llama-server"
PREDICTION = "prediction"

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
    peer_drafters: tuple[PeerDrafter, ...] = ()
    """In the order in which a peer asks them."""

    @property
    def predicts(self) -> bool:
        """Whether it is sent the text that will follow, as a caller who knows it would."""
        return PREDICTION in self.changes.get("drafters", ())


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

_ONLY = "only:"
_RULES = ("match", "rejection")  # greedy text knows no other distribution


def named_variants(names: Sequence[str], greedy: bool) -> list[Variant]:
    """Return variants by name, the one without drafts first; without names all that make sense.

    Raises InvalidRequest for a name that is not known.
    """
    only = [name for name in names if name.startswith(_ONLY)]
    for name in names:
        if name not in NAMED and name not in only:
            known = f"{', '.join(NAMED)} and {_ONLY}DRAFTER"
            raise InvalidRequest("variants", f"has {name}, which is none of {known}")
    wanted = names or [name for name in NAMED if not (greedy and name in _RULES)]
    named = [variant for name, variant in NAMED.items() if name == PLAIN or name in wanted]
    return [*named, *map(only_variant, only)]


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


def only_variant(name: str) -> Variant:
    """Return what `only:suffix+model` asks for: these drafters and no others.

    Raises InvalidRequest for a name that is no drafter's.
    """
    drafters = frozenset(name.removeprefix(_ONLY).split("+"))
    return Variant(name, {"drafters": Speculation(drafters=drafters).drafters})


def peer_variants(
    lengths: Iterable[int], drafters: Iterable[tuple[PeerDrafter, ...]] = ()
) -> list[Variant]:
    """Return what a peer is run as: without a draft, with each draft length, with each drafters."""
    return [
        Variant(PEER, length=0),
        *(Variant(f"{PEER} n={each}", {}, each, (draft_model(each),)) for each in lengths),
        *(Variant(f"{PEER} {'+'.join(map(str, each))}", peer_drafters=each) for each in drafters),
    ]
