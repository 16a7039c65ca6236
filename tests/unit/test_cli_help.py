"""Help comes in a short form and a long one, and fits 80 columns."""

from __future__ import annotations

import itertools

import pytest

from outrider_cli import run

GROUPS = ("Sampling", "Speculation", "Target", "Draft", "Connection")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(words) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_the_short_form_has_the_common_options_and_names_the_groups(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    short = shown(capsys, command, "-h")
    for option in ("--model", "--draft-model", "--temperature", "--orchestrator", "--help"):
        assert option in short
    for option in ("--top-k", "--n-draft", "--threads", "--draft-threads", "--tls-ca"):
        assert option not in short
    assert all(group in short.split("--help shows all options")[1] for group in GROUPS)
    assert len(short.splitlines()) <= 44, "a screen, and not three as the long form"


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_the_long_form_begins_with_the_short_one_and_has_every_group(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    short = shown(capsys, command, "-h").split("╰")[0]
    long = shown(capsys, command, "--help")
    assert long.startswith(short)
    assert all(f"─ {group} ─" in long for group in GROUPS)
    assert "…" not in long, "nothing is cut"


@pytest.mark.parametrize("command", ["up", "plan", "status"])
def test_commands_with_few_options_have_one_form(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, command, "-h") == shown(capsys, command, "--help")


def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "help") == shown(capsys, "--help")
    assert shown(capsys, "help", "status") == shown(capsys, "status", "--help")


@pytest.mark.parametrize(
    "command",
    [
        *("generate", "chat", "up", "status", "top", "plan", "bench", "health", "doctor"),
        *("target", "draft", "orchestrator", "certs", "lookup create", "lookup stats"),
        "config show",
    ],
)
def test_what_a_command_does_is_wrapped_at_the_edge_alone(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, *command.split(), "--help").split("╭")[0].split("Usage")[1]
    for paragraph in text.split("\n" + " " * 80 + "\n")[1:]:
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        for line, after in itertools.pairwise(lines):
            assert len(line) + 1 + len(after.split()[0]) > 78, (line, after)
