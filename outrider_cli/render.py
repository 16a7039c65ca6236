"""What the command prints, as values: words with styles, and lines of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from outrider.client import (
    Delta,
    Event,
    Finished,
    Origin,
    Started,
)
from outrider.speculation import MODELS

_T = TypeVar("_T")

FAINT = "dim"

STYLES = {
    Origin.DRAFTED: "green",
    Origin.CORRECTED: "underline yellow",
    Origin.BONUS: "bold cyan",
    Origin.PLAIN: "",
    Origin.UNSPECIFIED: "",
}
_SOURCE_STYLES = {
    **dict.fromkeys(MODELS, "green"),
    "prediction": "magenta",
    "forced": "bright_blue",
    "suffix": "yellow",
    "copy": "cyan",
    "ngram": "bright_red",
    "past": "bright_magenta",
}
_BRANCH_STYLES = ("underline cyan", "underline magenta", "underline bright_blue", "underline red")
"""Of runner-up lines, as many as the page has; underlined, which no source is."""


@dataclass(frozen=True, slots=True)
class Words:
    """A run of text in one style, as rich names it."""

    text: str
    style: str = ""


Line = Sequence[Words]


def source_style(name: str) -> str:
    """Return the style of a source of draft tokens; none for one that is not known here."""
    return _SOURCE_STYLES.get(name, "")


def branch_style(number: int, first: str = "") -> str:
    """Return the style of a draft's line by its number; `first` is that of line 0."""
    return _BRANCH_STYLES[(number - 1) % len(_BRANCH_STYLES)] if number else first


@dataclass(slots=True)
class Transcript:
    """The events of one generation, collected."""

    started: Started | None = None
    finished: Finished | None = None
    token_ids: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    # Who proposed each token, None for the target's own and where no round was reported.
    sources: list[str | None] = field(default_factory=list)
    # The draft's line that each is of, 0 its first, else a runner-up line; None as in `sources`.
    lines: list[int | None] = field(default_factory=list)
    text: str = ""

    def add(self, event: Event) -> None:
        """Take in an event."""
        if isinstance(event, Delta):
            self.token_ids += event.token_ids
            self.origins += event.origins
            report = event.report
            self.sources += _of_drafted(event, report.sources if report else ())
            numbers = report.draft_lines or (0,) * len(report.draft) if report else ()
            self.lines += _of_drafted(event, numbers)
            self.text += "".join(piece.text for piece in event.pieces)
        elif isinstance(event, Started):
            self.started = event
        else:
            self.finished = event

    @staticmethod
    def words(event: Event) -> list[Words]:
        """Return what to show for an event."""
        if not isinstance(event, Delta):
            return []
        return [Words(piece.text, STYLES[piece.origin]) for piece in event.pieces]


def _of_drafted(delta: Delta, known: Sequence[_T]) -> list[_T | None]:
    """Return what is known of each token of a delta: its drafted ones are a round's first."""
    return [
        known[i] if origin is Origin.DRAFTED and i < len(known) else None
        for i, origin in enumerate(delta.origins)
    ]
