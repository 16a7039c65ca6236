"""The command that names drafts and heads for a target."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from outrider_cli.hub.pairs import KnownPair

_FOOTNOTE = """
Acceptance is what the source says of its own tests. Whether a pair pays here:
outrider generate --model ... --draft-model ... --compare"""


def pair(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A target, or a part of its name; else all.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Name drafts and heads that people use for a target, with their sources."""
    from outrider.errors import InvalidConfig
    from outrider_cli.hub.pairs import pairs_named

    found = pairs_named(name)
    if as_json:
        print(json.dumps({"pairs": [asdict(each) for each in found]}))
        return
    if not found:
        teach = "outrider pair names all that are known, outrider teach makes one"
        raise InvalidConfig("name", f"no draft is known for {name}; {teach}")
    print("\n\n".join("\n".join(_lines(each)) for each in found))
    print(_FOOTNOTE)


def _lines(known: KnownPair) -> Iterator[str]:
    """Yield what is printed of a pair."""
    yield f"{known.target}: {known.words}{'' if known.draft else ' in its file'}"
    yield f"  --model {known.model}"
    if known.draft:
        yield f"  --draft-model {known.draft}"
    yield f"  vocabulary {known.vocabulary}, acceptance {known.acceptance}"
    yield f"  {known.source}"
