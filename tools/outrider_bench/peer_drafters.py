"""The drafters of llama-server: their names, their sizes, and how its command line says them.

Read in common/arg.cpp and common/common.h of the llama.cpp that llama-cpp-python
0.3.36 ships. What has no size here keeps the default:

- `ngram-simple/N/M`, `ngram-map-k/N/M` and `ngram-map-k4v/N/M`: the M tokens that
  followed the last N (12 and 48). A third number is the least count of hits (1).
- `ngram-mod/MATCH/MIN/MAX`: between MIN and MAX tokens after MATCH (24, 48, 64).
- `ngram-cache`: no sizes; it drafts 8 tokens at most.
- `draft-simple/MAX`: the draft model, at most MAX tokens (3); `draft-mtp/MAX` and the like: a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from outrider.errors import InvalidRequest

_DRAFT_MODEL = "draft-simple"
_HEADS = ("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")
DRAFT_MODELS = (_DRAFT_MODEL, *_HEADS)
"""What drafts with weights of its own."""

_LOOKUP_SIZES = ("size-n", "size-m", "min-hits")
_SIZES = {
    "ngram-simple": tuple(f"--spec-ngram-simple-{size}" for size in _LOOKUP_SIZES),
    "ngram-map-k": tuple(f"--spec-ngram-map-k-{size}" for size in _LOOKUP_SIZES),
    "ngram-map-k4v": tuple(f"--spec-ngram-map-k4v-{size}" for size in _LOOKUP_SIZES),
    "ngram-mod": tuple(f"--spec-ngram-mod-{size}" for size in ("n-match", "n-min", "n-max")),
    "ngram-cache": (),
    **dict.fromkeys(DRAFT_MODELS, ("--spec-draft-n-max",)),
}
"""The options that take the sizes, by drafter."""

_ALL = (
    *(name for name in _SIZES if name not in _HEADS),
    f"ngram-mod+{_DRAFT_MODEL}",
    f"ngram-map-k4v+{_DRAFT_MODEL}",
)

# Matches that real texts have often, and drafts from short to its own default.
_LOOKUP_GRID = ("/3/8", "/4/16", "/8/48")
_GRID = {
    **dict.fromkeys(("ngram-simple", "ngram-map-k", "ngram-map-k4v"), _LOOKUP_GRID),
    "ngram-mod": ("/4/2/16", "/8/4/32", "/16/8/64"),
    _DRAFT_MODEL: ("/2", "/4", "/7"),
}


@dataclass(frozen=True, slots=True)
class PeerDrafter:
    """A drafter of llama-server and its sizes, in the order of its options; fewer: the first."""

    name: str
    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "/".join([self.name, *map(str, self.sizes)])


def draft_model(length: int, kind: str = _DRAFT_MODEL) -> PeerDrafter:
    """Return the draft model or a head, with so many tokens at most."""
    return PeerDrafter(kind, (length,))


def drafting_options(drafters: Sequence[PeerDrafter], draft: Path | None) -> list[str]:
    """Return what turns drafters on, asked in this order; nothing for none.

    Without a draft's file a head is the one in the target's.
    """
    if not drafters:
        return []
    options = ["--spec-type", ",".join(each.name for each in drafters)]
    for each in drafters:
        if each.name in DRAFT_MODELS and draft is not None:
            options += ["--spec-draft-model", str(draft)]
        for option, size in zip(_SIZES[each.name], each.sizes, strict=False):
            options += [option, str(size)]
    return options


def read_peer_drafters(words: Sequence[str]) -> list[tuple[PeerDrafter, ...]]:
    """Return drafters such as `ngram-mod/8/4/32+draft-simple`, each once.

    `all` stands for every drafter and pair at its defaults, `grid` for all and
    the sizes worth trying. Raises InvalidRequest.
    """
    found: dict[tuple[PeerDrafter, ...], None] = {}
    for word in words:
        for each in {"all": _ALL, "grid": tuple(_grid())}.get(word, (word,)):
            found[tuple(map(_read, each.split("+")))] = None
    return list(found)


def _grid() -> Iterator[str]:
    """Yield what is in `all`, each with the sizes to try; in pairs the model keeps its own."""
    for word in _ALL:
        first, *others = word.split("+")
        yield word
        for sizes, rest in product(_GRID.get(first, ()), ["".join(f"+{each}" for each in others)]):
            yield f"{first}{sizes}{rest}"


def _read(text: str) -> PeerDrafter:
    name, *sizes = text.split("/")
    if name not in _SIZES:
        known = ", ".join(_SIZES)
        raise InvalidRequest("peer_drafters", f"has {name}, which is none of {known}")
    most = len(_SIZES[name])
    if len(sizes) > most or not all(size.isdecimal() for size in sizes):
        raise InvalidRequest("peer_drafters", f"has {text}; {name} takes {most} numbers at most")
    return PeerDrafter(name, tuple(map(int, sizes)))
