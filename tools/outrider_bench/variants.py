"""The ways to generate that a benchmark compares: names and what each asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.errors import InvalidRequest
from outrider.messages import MAX_DRAFT, Rule
from outrider.speculation import Policy, Speculation
from outrider_bench.peer_drafters import PeerDrafter, draft_model

PLAIN = "plain"
SERIAL = "serial"
MEASURED = "measured"
PEER = "llama-server"
PREDICTION = "prediction"

_SERIAL_LENGTH = 3
_FIXED = {"policy": Policy.FIXED, "n_max": _SERIAL_LENGTH}


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to generate."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of a Request; a peer has none."""
    length: int | None = None
    """Of every draft, where it is fixed."""
    peer_drafters: tuple[PeerDrafter, ...] = ()
    """In the order in which a peer asks them."""
    about: str = ""
    """What it is, for whoever reads its name in a table."""

    @property
    def predicts(self) -> bool:
        """Whether it is sent the text that will follow, as a caller who knows it would."""
        return PREDICTION in self.changes.get("drafters", ())


NAMED = {
    variant.name: variant
    for variant in (
        Variant(PLAIN, {"enabled": False}, 0, about="without drafts"),
        Variant(
            SERIAL,
            {**_FIXED, "run_ahead": False},
            _SERIAL_LENGTH,
            about="3 draft tokens a round, then the target verifies them",
        ),
        Variant(
            "ahead",
            {**_FIXED, "run_ahead": True},
            _SERIAL_LENGTH,
            about="the same, and the draft continues while the target verifies",
        ),
        Variant(
            MEASURED,
            {"policy": Policy.MEASURED},
            about="the default: as many draft tokens as pay by what was measured, or none",
        ),
        Variant(
            "classic",
            {"policy": Policy.CLASSIC},
            about="longer drafts after accepted ones, shorter after rejected ones",
        ),
        Variant("match", {"acceptance": Rule.MATCH}, about="accepts what the target draws too"),
        Variant(
            "rejection",
            {"acceptance": Rule.REJECTION},
            about="accepts by the probabilities of draft and target",
        ),
    )
}
_DISTANT = (PLAIN, SERIAL, MEASURED)

_ONLY, _LINES = "only:", "lines:"
_RULES = ("match", "rejection")  # greedy text knows no other distribution


def named_variants(names: Sequence[str], greedy: bool) -> list[Variant]:
    """Return variants by name, the one without drafts first; without names all that make sense.

    Raises InvalidRequest for a name that is not known.
    """
    made = {_ONLY: only_variant, _LINES: lines_variant}
    more = [
        make(name) for name in names for prefix, make in made.items() if name.startswith(prefix)
    ]
    for name in names:
        if name not in NAMED and name not in [each.name for each in more]:
            known = f"{', '.join(NAMED)}, {_ONLY}DRAFTER and {_LINES}N"
            raise InvalidRequest("variants", f"has {name}, which is none of {known}")
    wanted = names or [name for name in NAMED if not (greedy and name in _RULES)]
    named = [variant for name, variant in NAMED.items() if name == PLAIN or name in wanted]
    return [*named, *more]


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
    both = (NAMED[PLAIN], NAMED[MEASURED])
    return [replace(each, name=f"{each.name}, {profile}") for each in both]


def only_variant(name: str) -> Variant:
    """Return what `only:suffix+model` asks for: these drafters and no others.

    Raises InvalidRequest for a name that is no drafter's.
    """
    drafters = frozenset(name.removeprefix(_ONLY).split("+"))
    return Variant(name, {"drafters": Speculation(drafters=drafters).drafters})


def lines_variant(name: str) -> Variant:
    """Return what `lines:4` asks for: as many lines of the draft at once at most; 1 is one line.

    Raises InvalidRequest for a number that no request may have.
    """
    count = name.removeprefix(_LINES)
    if not count.isdecimal():
        raise InvalidRequest("variants", f"has {name}, which needs a number")
    return Variant(name, {"n_parallel": Speculation(n_parallel=int(count)).n_parallel})


def distant_variants(variants: Iterable[Variant]) -> list[Variant]:
    """Return what is measured at every round trip: beside the usual, numbers of lines."""
    lines = [each for each in variants if each.name.startswith(_LINES)]
    return [*(NAMED[name] for name in _DISTANT), *lines]


def peer_variants(
    lengths: Iterable[int], drafters: Iterable[tuple[PeerDrafter, ...]] = ()
) -> list[Variant]:
    """Return what a peer is run as: without a draft, with each draft length, with each drafters."""
    return [
        Variant(PEER, length=0),
        *(Variant(f"{PEER} n={each}", {}, each, (draft_model(each),)) for each in lengths),
        *(Variant(f"{PEER} {'+'.join(map(str, each))}", peer_drafters=each) for each in drafters),
    ]
