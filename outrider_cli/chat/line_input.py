"""Where a chat's lines come from: a terminal with line editing, or a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from outrider.errors import InvalidConfig
from outrider_cli.chat.state import NotDone
from outrider_cli.screen import note

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.validation import Validator

_PROMPT, _MORE = "> ", ". "

Notice = Callable[[], Awaitable[str]]
"""Waits for what a user should know, however long, and returns it."""


class Keyboard(Protocol):
    """Gives what is typed; a line that ends in a backslash continues in the next one."""

    is_interactive: bool

    def read(self, notice: Notice) -> str | None:
        """Return the next text, None at the end; a terminal shows the notice above its prompt.

        Raises NotDone for what is no text.
        """


@contextmanager
def open_keyboard(
    runner: asyncio.Runner, words: Sequence[str], history: Path | None
) -> Iterator[Keyboard]:
    """Give what reads standard input; tab completes `words`, `history` keeps what was typed."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _Piped()
        return
    keyboard = _Terminal(runner, words, history)
    before = termios.tcgetattr(sys.stdin)
    # What is typed during an answer waits for the prompt: unseen till then, whole after Ctrl-C.
    flags = before[3] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(sys.stdin, termios.TCSANOW, [*before[:3], flags, *before[4:]])
    try:
        yield keyboard
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


class _Piped:
    """Every line is a text; nothing is printed to ask for it."""

    is_interactive = False

    def read(self, notice: Notice) -> str | None:
        parts: list[str] = []
        for line in sys.stdin.buffer if sys.stdin is not None else ():
            parts.append(_decoded(line).rstrip("\r\n"))
            if not parts[-1].endswith("\\"):
                break
        return "\n".join(part.removesuffix("\\") for part in parts) if parts else None


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise NotDone("this is not UTF-8 text") from None


class Interrupted(Exception):
    """Ctrl-C at the prompt."""


class _Terminal:
    """Asks with a prompt; Ctrl-C clears the line, and at an empty one twice is the end."""

    is_interactive = True

    def __init__(self, runner: asyncio.Runner, words: Sequence[str], history: Path | None) -> None:
        self._runner = runner
        from prompt_toolkit.application import create_app_session
        from prompt_toolkit.output import create_output
        from prompt_toolkit.output.plain_text import PlainTextOutput
        from prompt_toolkit.utils import is_dumb_terminal

        # What a dying chat asked of the terminal would be answered to the shell.
        os.environ["PROMPT_TOOLKIT_NO_CPR"] = "1"
        # Standard output is for the answers alone.
        stream = sys.stdout if sys.stdout.isatty() else sys.stderr
        output = PlainTextOutput(stream) if is_dumb_terminal() else create_output(stream)
        with create_app_session(output=output):
            self._session = line_editor(words, history)

    def read(self, notice: Notice) -> str | None:
        interrupts = 0
        while interrupts < 2:
            try:
                return self._runner.run(self._edit(notice))
            except EOFError:
                break
            except (Interrupted, KeyboardInterrupt):  # the latter just before the keys are ours
                interrupts = 0 if self._session.default_buffer.text else interrupts + 1
                if interrupts == 1:
                    print("(once more, or Ctrl-D, ends the chat)", file=sys.stderr)
        return None

    async def _edit(self, notice: Notice) -> str:
        from prompt_toolkit.application import run_in_terminal

        async def show() -> None:
            text = await notice()
            await run_in_terminal(lambda: note(text))

        def begin() -> None:
            self._session.app.create_background_task(show())

        return await self._session.prompt_async(pre_run=begin)


def line_editor(words: Sequence[str], history: Path | None) -> PromptSession[str]:
    """Return what asks for one text after the other. Raises InvalidConfig."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.shortcuts import CompleteStyle

    return PromptSession(
        _PROMPT,
        prompt_continuation=_MORE,
        completer=WordCompleter([f"{word} " for word in sorted(words)], sentence=True),
        complete_style=CompleteStyle.READLINE_LIKE,
        complete_while_typing=False,
        validator=_only_text(),
        validate_while_typing=False,
        history=_open_history(history),
        key_bindings=_new_lines(),
        enable_suspend=True,
        interrupt_exception=Interrupted,
    )


def _only_text() -> Validator:
    from prompt_toolkit.validation import Validator

    def is_text(typed: str) -> bool:
        return typed == typed.encode(errors="ignore").decode()

    return Validator.from_callable(is_text, "this is not UTF-8 text", move_cursor_to_end=True)


def _open_history(path: Path | None) -> History:
    """Return what the up arrow brings back. Raises InvalidConfig."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if path is None:
        return InMemoryHistory()
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise InvalidConfig("history", f"cannot use {path}: {error.strerror}") from None
    return FileHistory(path)


def _new_lines() -> KeyBindings:
    """Return the keys that begin a new line: Enter after a backslash, and Alt-Enter."""
    from prompt_toolkit.application import get_app
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @Condition
    def is_after_backslash() -> bool:
        document = get_app().current_buffer.document
        return document.is_cursor_at_the_end and document.text.endswith("\\")

    @keys.add("enter", filter=is_after_backslash)
    def continue_line(event: KeyPressEvent) -> None:
        event.current_buffer.delete_before_cursor()
        break_line(event)

    @keys.add("escape", "enter")
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys
