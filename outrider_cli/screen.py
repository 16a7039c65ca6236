"""Where the command prints: coloured on a terminal, plain text anywhere else."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from outrider_cli.render import Line, Words
from outrider_cli.terminal import say, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.status import Status


class Screen(Protocol):
    """Takes words as they come."""

    def show(self, words: Words) -> None:
        """Print words at once."""


def open_screen() -> Screen:
    """Return a screen on standard output."""
    return _Colors() if _takes_codes(sys.stdout) else _Plain(sys.stdout)


def open_console() -> Console:
    """Return rich's console on standard output, with escape codes where they are welcome."""
    from outrider_cli.console import SafeConsole

    takes_codes = _takes_codes(sys.stdout)
    return SafeConsole(force_terminal=takes_codes, color_system="auto" if takes_codes else None)


def _takes_codes(stream: TextIO) -> bool:
    """Whether escape codes are welcome there."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not plain


def show_lines(screen: Screen, lines: Iterable[Line]) -> None:
    """Print lines, each with its end."""
    for line in lines:
        for words in [*line, Words("\n")]:
            screen.show(words)


_UNBROKEN = 10_000  # columns: only a terminal has an edge


def show_view(view: RenderableType) -> None:
    """Print what rich lays out on standard output, within a terminal's edge."""
    from outrider_cli.console import SafeConsole

    console = SafeConsole(
        color_system="auto" if _takes_codes(sys.stdout) else None,
        width=None if sys.stdout.isatty() else _UNBROKEN,
    )
    with console.capture() as shown:
        console.print(view)
    screen = _Plain(sys.stdout)
    for line in shown.get().splitlines():
        screen.write(f"{line.rstrip()}\n")


class FirstThatFits:
    """Shows the first of several views that the terminal has the width for; else the last."""

    def __init__(self, *views: RenderableType) -> None:
        self._views = views

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield that view."""
        *others, last = self._views
        roomy = options.update(max_width=_UNBROKEN)
        widths = ((each, console.measure(each, options=roomy).maximum) for each in others)
        yield next((each for each, width in widths if width <= options.max_width), last)


class _Plain:
    """Prints the text alone; to a file or a pipe exactly as it is."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = stream.encoding or "utf-8"
        self._is_terminal = stream.isatty()

    def show(self, words: Words) -> None:
        self.write(visible(words.text) if self._is_terminal else words.text)

    def write(self, text: str) -> None:
        self._stream.write(text.encode(self._encoding, "replace").decode(self._encoding))
        self._stream.flush()


class _Colors:
    """Prints with styles."""

    def __init__(self) -> None:
        from outrider_cli.console import SafeConsole

        self._console = SafeConsole()

    def show(self, words: Words) -> None:
        self._console.out(visible(words.text), style=words.style or None, end="")


_PARTS = re.compile(r"\n|[^\S\n]+|[\u2e80-\uffef]|[^\s\u2e80-\uffef]+")
"""Of a text: ends of lines, blanks, letters of scripts that have none between words, words."""


class Prose:
    """Shows a text as it comes, a word once it has ended: none is broken at a terminal's edge."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._column = 0
        self._blank = Words("")
        self._word: list[Words] = []

    def show(self, words: Words) -> None:
        """Take words, and print those that have ended."""
        for part in _PARTS.findall(words.text):
            is_blank = part.isspace()
            if is_blank or part >= "\u2e80":
                self.flush()
            if part == "\n":
                self._screen.show(Words(part))
                self._column, self._blank = 0, Words("")
            elif is_blank:
                self._blank = Words(self._blank.text + part, words.style)
            else:
                self._word.append(Words(part, words.style))

    def flush(self) -> None:
        """Print what there is of a word."""
        from rich.cells import cell_len

        if not self._word:
            return
        width = sum(cell_len(visible(each.text)) for each in self._word)
        column = self._column + cell_len(self._blank.text)
        if self._column and column + width > shutil.get_terminal_size().columns:
            self._blank, column = Words("\n"), 0
        for each in (self._blank, *self._word):
            self._screen.show(each)
        self._column, self._blank, self._word = column + width, Words(""), []


class Progress:
    """One line on standard error about what is waited for. Shown on terminals only.

    As a context manager it leaves nothing on the screen.
    """

    def __init__(self) -> None:
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    @property
    def is_live(self) -> bool:
        """Whether anything is shown."""
        return _takes_codes(sys.stderr)

    def say(self, text: str) -> None:
        """Show this text in place of the last one."""
        if not self.is_live:
            return
        from rich.status import Status
        from rich.text import Text

        from outrider_cli.console import SafeConsole

        if self._status is None:
            self._status = Status("", console=SafeConsole(stderr=True))
            self._status.start()
        self._status.update(Text(text))

    def clear(self) -> None:
        """Take the line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None


def own_command() -> str:
    """Return how this command is called from where the user is."""
    if shutil.which("outrider") or Path(sys.argv[0]).name != "outrider":
        return "outrider"
    return os.path.relpath(sys.argv[0])


def note(text: str) -> None:
    """Print one line that is good to know on standard error; a terminal wraps it between words."""
    say(f"note: {text}")
