"""Lines for a person on standard error, where a text is shown and never obeyed."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TextIO

CONTROLS = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
"""Characters by which a text could move a terminal's cursor or change its settings."""

_SHOWN = {code: f"\\x{code:02x}" for code in CONTROLS}


def visible(text: str) -> str:
    """Return text that cannot move a terminal's cursor or change its settings."""
    return text.translate(_SHOWN)


def wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return a text in lines of at most so many columns, of which later ones are indented.

    Only a terminal has an edge: without a width the text stays one line. No word is broken; one
    that is longer than a line has a line of its own.
    """
    if width is None or not text:
        return [text]
    return textwrap.wrap(
        text,
        max(20, width),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def say(text: str, stream: TextIO | None = None, indent: int = 2) -> None:
    """Print a line, on standard error unless elsewhere; a terminal wraps it between words.

    Later lines are indented by so many columns.
    """
    stream = stream or sys.stderr
    width = shutil.get_terminal_size().columns if stream.isatty() else None
    print(*wrapped(visible(text), width, " " * indent), sep="\n", file=stream, flush=True)
