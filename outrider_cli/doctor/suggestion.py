"""Says what people draft with, of a target that is hosted without a draft."""

from __future__ import annotations

from collections.abc import Sequence

from outrider_cli.doctor.checks import Finding, ModelFile, Severity
from outrider_cli.hub.pairs import pair_for


def suggest_draft(files: Sequence[ModelFile]) -> list[Finding]:
    """Return a draft or head for a target that has none; nothing where none is known."""
    if [file.role for file in files] != ["target"]:
        return []
    [target] = files
    known = pair_for(target.architecture, target.names)
    if known is None or target.error or target.head is not None:
        return []
    message = (
        f"target: {known.words} is known for {known.target} (vocabulary {known.vocabulary}, "
        f"acceptance {known.acceptance}); source: outrider pair {known.target}"
    )
    return [Finding("pair", Severity.NOTE, message, f"try {known.option}")]
