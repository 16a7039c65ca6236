"""Where a chat's lines come from: a terminal with line editing, or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Protocol

from outrider.errors import InvalidConfig
from outrider_cli.chat.state import NotDone

_PROMPT, _MORE = "> ", ". "
_HISTORY_LINES = 1000


class Keyboard(Protocol):
    """Gives what is typed; a line that ends in a backslash continues in the next one."""

    is_interactive: bool

    def read(self) -> str | None:
        """Return the next text, None at the end. Raises NotDone for what is no text."""

    def close(self) -> None:
        """Nothing more is read."""


def open_keyboard(words: Sequence[str], history: Path | None) -> Keyboard:
    """Return what reads standard input; tab completes `words`, `history` keeps what was typed."""
    if sys.stdin is None or not sys.stdin.isatty():
        return _Piped()
    return _Terminal(words, history)


class _Piped:
    """Every line is a text; nothing is printed to ask for it."""

    is_interactive = False

    def read(self) -> str | None:
        parts: list[str] = []
        for line in sys.stdin.buffer if sys.stdin is not None else ():
            parts.append(_decoded(line).rstrip("\r\n"))
            if not parts[-1].endswith("\\"):
                break
        return _joined(parts) if parts else None

    def close(self) -> None:
        pass


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise NotDone("this is not UTF-8 text") from None


def _joined(parts: Sequence[str]) -> str:
    """Return one text of lines; all but the last end in a backslash, and it may."""
    return "\n".join(part.removesuffix("\\") for part in parts)


class _Terminal:
    """Asks with a prompt; Ctrl-C clears the line, and at an empty one twice is the end."""

    is_interactive = True

    def __init__(self, words: Sequence[str], history: Path | None) -> None:
        self._words = sorted(words)
        self._history = history
        self._readline = self._open_readline()

    def _open_readline(self) -> ModuleType | None:
        try:
            import readline
        except ImportError:
            return None
        readline.set_completer_delims(" ")
        readline.set_completer(self._complete)
        readline.parse_and_bind("tab: complete")
        readline.set_history_length(_HISTORY_LINES)
        if self._history is not None:
            try:
                with suppress(FileNotFoundError):
                    readline.read_history_file(self._history)
            except OSError as error:
                raise self._unusable(error) from None
        return readline

    def _unusable(self, error: OSError) -> InvalidConfig:
        return InvalidConfig("history", f"cannot use {self._history}: {error.strerror}")

    def _complete(self, text: str, state: int) -> str | None:
        assert self._readline is not None
        is_first = self._readline.get_begidx() == 0 and text.startswith("/")
        found = [word for word in self._words if is_first and word.startswith(text)]
        return f"{found[state]} " if state < len(found) else None

    def read(self) -> str | None:
        interrupts = 0
        while interrupts < 2:
            try:
                return self._read_lines()
            except EOFError:
                break
            except UnicodeDecodeError:
                raise NotDone("this is not UTF-8 text") from None
            except KeyboardInterrupt:
                print(file=sys.stderr)
                interrupts = 0 if self._typed() else interrupts + 1
                if interrupts == 1:
                    print("(once more, or Ctrl-D, ends the chat)", file=sys.stderr)
                continue
        print(file=sys.stderr)
        return None

    def _typed(self) -> str:
        """Return what stood in the line that was interrupted."""
        return self._readline.get_line_buffer() if self._readline is not None else ""

    def _read_lines(self) -> str:
        parts = [_input(_PROMPT)]
        while parts[-1].endswith("\\"):
            try:
                parts.append(_input(_MORE))
            except EOFError:
                break
        return _joined(parts)

    def close(self) -> None:
        if self._readline is not None and self._history is not None:
            try:
                self._readline.write_history_file(self._history)
            except OSError as error:
                raise self._unusable(error) from None


def _input(prompt: str) -> str:
    if sys.stdout.isatty():
        return input(prompt)
    # Standard output is for the answers alone.
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()
