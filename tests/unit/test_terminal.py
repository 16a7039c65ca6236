"""What others wrote is shown on a terminal, and never obeyed by it."""

from __future__ import annotations

import ast
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import outrider_cli
from outrider_cli import _complain
from outrider_cli.console import SafeConsole
from outrider_cli.services.up import _log_shower
from outrider_cli.terminal import say

EVIL = "a\x1b[2Jb\x9bc\r\x07"
FOLDER = Path(outrider_cli.__file__).parent

OWN_WORDS = {
    "app.py": "its version",
    "health_command.py": "one of two answers",
    "hub/command.py": "a table of the repository",
    "services/up.py": "its own addresses, and lines that outrider.logs renders",
    "show_config.py": "what the user set",
    "terminal.py": "the door",
}
"""Files that print something else than constants and JSON, and whose words that are."""


def test_a_console_drops_the_orders_of_texts_and_reads_no_markup_in_them() -> None:
    console = SafeConsole(file=io.StringIO(), width=40, color_system=None)
    table = Table(box=None, pad_edge=False)
    table.add_column(EVIL)
    table.add_row(Text(EVIL), "[link=x]:cat:[/]")
    console.print(EVIL, table, "[red]")
    console.out(EVIL)
    shown = console.file.getvalue()
    assert shown.splitlines()[0] == "a[2Jbc" and shown.splitlines()[-1] == "a[2Jbc"
    assert "[link=x]:cat:[/]" in shown and "[red]" in shown
    assert all(letter.isprintable() or letter == "\n" for letter in shown)


def test_a_console_keeps_its_own_styles() -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=True, color_system="standard", _environ={})
    console.print(Text("a\x1b[2J", "green"))
    assert file.getvalue() == "\x1b[32ma[2J\x1b[0m\n"


def test_a_line_for_a_person_shows_what_a_terminal_would_obey(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say(EVIL)
    _complain(f"refused: {EVIL}", 1)
    assert capsys.readouterr().err.splitlines() == [
        r"a\x1b[2Jb\x9bc\x0d\x07",
        r"outrider: refused: a\x1b[2Jb\x9bc \x07",
    ]


@pytest.mark.parametrize("line", [EVIL, json.dumps([EVIL]), json.dumps({"event": EVIL}), "null"])
def test_what_a_service_prints_is_shown(
    line: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.isatty", lambda descriptor: True)
    monkeypatch.setattr(sys, "stderr", _Stderr())
    _log_shower()("target", line)
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert shown.startswith("target: ") and "\x1b" not in shown and "\x9b" not in shown


class _Stderr(io.StringIO):
    def fileno(self) -> int:
        return 2


def test_only_the_doors_write_to_a_terminal() -> None:
    """What is printed elsewhere is constant, JSON, or nobody else's."""
    for path in sorted(FOLDER.rglob("*.py")):
        name = path.relative_to(FOLDER).as_posix()
        calls = [each for each in ast.walk(ast.parse(path.read_text())) if _is_call(each)]
        assert name == "console.py" or not any(map(_makes_console, calls)), name
        assert name in OWN_WORDS or not list(_free_prints(calls)), name


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call)


def _makes_console(call: ast.AST) -> bool:
    return ast.unparse(call).startswith("Console(")


def _free_prints(calls: list[ast.AST]) -> Iterator[str]:
    """Yield the prints of what is neither constant nor JSON, which escapes all but ASCII."""
    for call in calls:
        assert isinstance(call, ast.Call)
        if ast.unparse(call.func) in ("print", "sys.stdout.write", "sys.stderr.write"):
            for text in call.args:
                if not isinstance(text, ast.Constant) and not _is_json(text):
                    yield ast.unparse(call)


def _is_json(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "json.dumps"
