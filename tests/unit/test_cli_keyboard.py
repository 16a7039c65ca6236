"""Lines that are piped into a chat, and lines that are edited on a terminal."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from outrider.errors import InvalidConfig
from outrider_cli.chat.line_input import Interrupted, line_editor, open_keyboard
from outrider_cli.chat.state import NotDone

UP, LEFT = "\x1b[A", "\x1b[D"


async def no_notice() -> str:
    raise AssertionError("nothing is shown above a prompt that is not there")


def piped(monkeypatch: pytest.MonkeyPatch, text: bytes | None) -> list[str]:
    """Return the texts of a standard input; what is no text is its error."""
    stdin = None if text is None else io.TextIOWrapper(io.BytesIO(text))
    monkeypatch.setattr("sys.stdin", stdin)
    texts: list[str] = []
    with asyncio.Runner() as runner, open_keyboard(runner, [], None) as keyboard:
        assert not keyboard.is_interactive
        while True:
            try:
                read = keyboard.read(no_notice)
            except NotDone as error:
                read = f"error: {error}"
            if read is None:
                return texts
            texts.append(read)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (None, []),
        (b"", []),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\n\n two \n", ["one", "", " two "]),
        (b"one\\\ntwo\\\n\nthree", ["one\ntwo\n", "three"]),
        (b"one\\", ["one"]),
        ("ä\n".encode(), ["ä"]),
        (b"\xff\nnext\n", ["error: this is not UTF-8 text", "next"]),
    ],
)
def test_a_piped_line_is_a_text_unless_it_continues(
    monkeypatch: pytest.MonkeyPatch, text: bytes | None, lines: list[str]
):
    assert piped(monkeypatch, text) == lines


def typed(*keys: str | bytes, history: Path | None = None) -> list[str]:
    """Return the texts of prompts, each with its keys."""
    texts: list[str] = []
    with create_pipe_input() as keyboard, asyncio.Runner() as runner:
        with create_app_session(keyboard, DummyOutput()):
            editor = line_editor(["/stats", "/save", "/quit"], history)
        for pressed in keys:
            keyboard.send_bytes(pressed.encode() if isinstance(pressed, str) else pressed)
            texts.append(runner.run(editor.prompt_async()))
    return texts


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("one\r", "one"),
        ("one\n", "one"),  # as the terminal keeps it while an answer streams
        (f"ac{LEFT}b\r", "abc"),
        ("b\x01a\x05c\r", "abc"),
        ("one two\x17three\r", "one three"),
        ("one\x15two\r", "two"),
        (f"one{LEFT}{LEFT}\x0b\r", "o"),
        ("/q\t\r", "/quit "),
        ("/s\tave f\r", "/save f"),  # which both begin with
        ("see /q\t\r", "see /q"),
        ("one\\\rtwo\r", "one\ntwo"),
        (f"one two{LEFT}\\\r", "one tw\\o"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("\x1b[200~if a:\r\n\tb \\\r\n\tc\x1b[201~\r", "if a:\n\tb \\\n\tc"),
        (b"a\xff\r\x15b\r", "b"),  # refused while it can be mended
    ],
)
def test_a_line_is_edited_as_in_a_shell(keys: str | bytes, text: str):
    assert typed(keys) == [text]


def test_earlier_lines_come_back():
    assert typed("one\\\rtwo\r", "three\r", f"{UP}{UP}!\r")[2] == "one\ntwo!"
    assert typed("one\r", "two\r", "\x12on\r\r")[2] == "one"


def test_a_history_is_kept_for_its_user_alone(tmp_path: Path):
    path = tmp_path / "typed"
    typed("one\\\rtwo\r", history=path)
    assert typed(f"{UP}\r", history=path) == ["one\ntwo"]
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidConfig, match="Is a directory"):
        typed("one\r", history=tmp_path)


@pytest.mark.parametrize(("key", "end"), [("one\x03", Interrupted), ("\x04", EOFError)])
def test_ctrl_c_and_ctrl_d_are_no_text(key: str, end: type[Exception]):
    with pytest.raises(end):
        typed(key)
