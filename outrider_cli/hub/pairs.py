"""Drafts and heads that people use for well-known targets, from the table beside this file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from outrider.speculation import MODEL, HeadKind


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPair:
    """A target and what drafts for it, as somebody published it; the table says what each is."""

    target: str
    architecture: str
    model: str
    draft: str = ""  # none: a head in the files of `model`
    kind: str
    vocabulary: str
    acceptance: str = "not measured"
    source: str

    @property
    def words(self) -> str:
        """What drafts, for people."""
        return "a draft model" if self.kind == MODEL else HeadKind(self.kind).words

    @property
    def option(self) -> str:
        """The option that takes it into use."""
        return f"--draft-model {self.draft}" if self.draft else f"--model {self.model}"


@cache
def known_pairs() -> Sequence[KnownPair]:
    """Return all that are known."""
    text = files(__package__).joinpath("pairs.toml").read_text(encoding="utf-8")
    return [KnownPair(**each) for each in tomllib.loads(text)["pair"]]


def pairs_named(name: str) -> Sequence[KnownPair]:
    """Return the pairs whose target a name means: a part of its own, or one that it is part of."""
    wanted = _plain(name)
    return [
        each
        for each in known_pairs()
        if wanted in (its := _plain(each.target)) or (wanted and its in wanted)
    ]


def pair_for(architecture: str, names: Iterable[str]) -> KnownPair | None:
    """Return the first pair for a target of an architecture that has one of these names."""
    plain = [_plain(name) for name in names]
    for each in known_pairs():
        if each.architecture == architecture and any(_plain(each.target) in one for one in plain):
            return each
    return None


def _plain(name: str) -> str:
    """Return a name as those compare who write it with spaces, dashes, or capitals."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())
