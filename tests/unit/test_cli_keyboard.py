"""Lines that are piped into a chat."""

from __future__ import annotations

import io

import pytest

from outrider_cli.chat.line_input import Keyboard, open_keyboard
from outrider_cli.chat.state import NotDone


def piped(monkeypatch: pytest.MonkeyPatch, text: bytes) -> Keyboard:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    keyboard = open_keyboard([], None)
    assert not keyboard.is_interactive
    return keyboard


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\n\n two \n", ["one", "", " two "]),
        (b"one\\\ntwo\\\n\nthree", ["one\ntwo\n", "three"]),
        (b"one\\", ["one"]),
        ("ä\n".encode(), ["ä"]),
    ],
)
def test_a_line_is_a_text_unless_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, text: bytes, lines: list[str]
):
    keyboard = piped(monkeypatch, text)
    assert list(iter(keyboard.read, None)) == lines


def test_what_is_no_text_is_refused_and_the_next_line_read(monkeypatch: pytest.MonkeyPatch):
    keyboard = piped(monkeypatch, b"\xff\nnext\n")
    with pytest.raises(NotDone, match="not UTF-8"):
        keyboard.read()
    assert keyboard.read() == "next"


def test_without_a_standard_input_the_chat_is_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", None)
    assert open_keyboard([], None).read() is None
