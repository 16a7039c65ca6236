"""How the output looks: colours on terminals alone, and a help that comes at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer

from outrider_cli import settings
from outrider_cli.app import app
from tests.support.commands import GREEDY, PROMPT, Command, environment, on_a_terminal, run_here
from tests.support.thorough import THOROUGH

HELP_SECONDS = 0.5
HELP_IMPORTS = 8
"""Times what importing typer alone takes: on a machine that is slow just now, more is allowed."""
"""Of the processor; importing gRPC and numpy alone would cost as much."""

COMMANDS = [[], ["config"], *map(str.split, settings.commands(typer.main.get_command(app)))]
QUICK = COMMANDS if THOROUGH else [[], ["generate"], ["bench"]]
"""The help of all, of a command and of one of an entry point: each imports other things."""


@pytest.fixture
def asked(orchestrator: str) -> tuple[str, ...]:
    """A generation with everything that could be coloured or animated."""
    return ("generate", *GREEDY, "--orchestrator", orchestrator, "-n", "16", "--compare")


def test_a_terminal_gets_colours(asked: tuple[str, ...]):
    shown = on_a_terminal(*asked)
    assert b"\x1b[32m" in shown and b"\x1b[2m" + PROMPT.encode() in shown


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_none_gets_no_escape_codes(
    asked: tuple[str, ...], variable: tuple[str, str]
):
    shown = on_a_terminal(*asked, **dict([variable]))
    assert b"\x1b" not in shown
    assert shown.startswith(PROMPT.encode()) and b"\r\nverdict   " in shown


def test_a_pipe_gets_no_escape_codes(asked: tuple[str, ...]):
    told = Command(*asked).finish()
    assert (told.code, told.err) == (0, "")
    assert "\x1b" not in told.out and told.out.startswith(PROMPT)


def test_a_status_has_colours_on_terminals_alone(orchestrator: str):
    asked = ("status", "--orchestrator", orchestrator)
    assert b"\x1b[32mready" in on_a_terminal(*asked)
    assert b"\x1b" not in on_a_terminal(*asked, NO_COLOR="1")
    assert "\x1b" not in Command(*asked).finish().out


def name(words: list[str]) -> str:
    return " ".join(words) or "-"


@pytest.mark.parametrize("words", COMMANDS, ids=name)
def test_help_fits_a_terminal(words: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = run_here(*words, "--help").out
    assert out.lstrip().startswith(" ".join(["Usage: outrider", *words]))
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


@pytest.mark.parametrize("words", QUICK, ids=name)
def test_help_comes_at_once(words: list[str]):
    seconds = 0.0
    for _ in range(3):
        out, seconds = help_of(words)
        assert out.lstrip().startswith(" ".join(["Usage: outrider", *words]))
        if seconds < max(HELP_SECONDS, HELP_IMPORTS * run_python("-c", "import typer")[1]):
            return
    raise AssertionError(f"it took {seconds:.2f} s of the processor")


def help_of(words: list[str]) -> tuple[str, float]:
    """Return the help of a command, and the processor's time that it took."""
    return run_python("-m", "outrider_cli", *words, "--help")


def run_python(*words: str) -> tuple[str, float]:
    """Return what a Python program prints, and the processor's time that it took."""
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        env=environment(COLUMNS="80"),
    )
    assert process.stdout is not None
    with process.stdout as stream:
        out = stream.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return out, usage.ru_utime + usage.ru_stime
