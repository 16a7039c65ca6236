"""Help comes in a short form and a long one, and fits 80 columns."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from outrider.speculation import DRAFTERS, HeadKind
from outrider_cli import run
from outrider_cli.help import COMMON
from outrider_cli.llama_options import SPEC_TYPES

_MOST_LINES = 56


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(words) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def options(text: str) -> set[str]:
    """Return the options that have a row."""
    return set(re.findall(r"^│ [* ]{0,3}(--[a-z-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("command", COMMON)
def test_the_short_form_has_the_common_options_in_groups(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    short = shown(capsys, command, "-h")
    names = [name for group in COMMON[command].values() for name in group]
    assert options(short) == {f"--{name}" for name in names} and len(names) <= 15
    assert re.findall(r"─ (\w[\w ]+) ─", short) == list(COMMON[command])
    assert len(short.splitlines()) <= _MOST_LINES
    assert short == shown(capsys, command, "--help")
    assert re.fullmatch(r"--help-all shows \d+ options\.", short.split("╯")[-1].strip())


@pytest.mark.parametrize("command", COMMON)
def test_the_long_form_has_every_option_and_llama_cpps_short_names(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    long = shown(capsys, command, "--help-all")
    assert options(long) > options(shown(capsys, command, "-h"))
    assert command in ("up", "orchestrator") or "…" not in long, "nothing is cut"
    if command != "orchestrator":
        assert re.search(r"--n-gpu-layers +-ngl ", long)


@pytest.mark.parametrize("command", [*COMMON, "status", "top", "plan", "health", "certs"])
def test_a_flag_has_no_type(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "bool" not in shown(capsys, command, "--help-all" if command in COMMON else "-h")


SPELLED = [
    ("target", ("-ngl", "99"), "n-gpu-layers", 99),
    ("target", ("-ngl=99",), "n-gpu-layers", 99),
    ("generate", ("--gpu-layers", "7"), "n-gpu-layers", 7),
    ("bench", ("-ngl", "99"), "n-gpu-layers", 99),
    ("draft", ("-ngl", "99"), "n-gpu-layers", 99),
    ("doctor", ("-ngl", "99"), "n-gpu-layers", 99),
    ("chat", ("-ngld", "3"), "draft-n-gpu-layers", 3),
    ("up", ("-m", "a.gguf"), "model", "a.gguf"),
    ("up", ("-md", "a.gguf"), "draft-model", "a.gguf"),
    ("up", ("-c", "2048"), "ctx", 2048),
    ("up", ("--ctx-size", "2048"), "ctx", 2048),
    ("up", ("-t", "3"), "threads", 3),
    ("up", ("-np", "2"), "sessions", 2),
    ("up", ("-fa", "on"), "flash-attention", "on"),
    ("up", ("--draft-max", "5"), "n-max", 5),
    ("up", ("--spec-draft-n-max", "5"), "n-max", 5),
    ("up", ("--spec-draft-model", "a.gguf"), "draft-model", "a.gguf"),
    ("target", ("-md", "a.gguf"), "draft-model", "a.gguf"),
    ("target", ("--spec-draft-ngl", "9"), "draft-n-gpu-layers", 9),
    ("up", ("--spec-type", "draft-mtp"), "drafters", "mtp"),
    ("generate", ("--spec-type=draft-simple,ngram-cache",), "drafters", "model,ngram"),
    ("orchestrator", ("--spec-type", "draft-eagle3"), "drafters", "eagle3"),
    ("up", ("--spec-type", "none", "--spec-draft-n-max", "3"), "n-max", 0),
    ("up", ("--spec-type", "none"), "own-draft", False),
    ("target", ("--spec-type", "none", "-md", "a.gguf"), "own-draft", False),
    ("target", ("--spec-type", "ngram-mod"), "own-draft", False),
    ("up", ("--port", "9000"), "http", "127.0.0.1:9000"),
    ("up", ("--host=0.0.0.0",), "http", "0.0.0.0:8080"),
    ("orchestrator", ("--port=1", "--host", "[::1]"), "http", "[::1]:1"),
    ("generate", ("--temp", "0.5", "-n", "7"), "temperature", 0.5),
    ("generate", ("-s", "42"), "seed", 42),
    ("chat", ("-sys", "Be brief."), "system", "Be brief."),
]


@pytest.mark.parametrize(("command", "words", "key", "value"), SPELLED)
def test_llama_cpps_spellings_mean_the_same_here(
    command: str, words: tuple[str, ...], key: str, value: object, capsys: Any
) -> None:
    found = json.loads(shown(capsys, "config", "show", "--json", command, *words))
    assert found[command][key] == [value, "flag"]


@pytest.mark.parametrize("command", ["up", "target"])
def test_a_head_stays_on_where_a_spec_type_drafts_with_a_model(command: str, capsys: Any) -> None:
    words = ("--spec-type", "ngram-mod", "--spec-type", "draft-dflash")
    found = json.loads(shown(capsys, "config", "show", "--json", command, *words))
    assert found[command]["own-draft"][0] is True


def test_every_spec_type_names_drafters_and_every_head_has_one() -> None:
    named = {name for names in SPEC_TYPES.values() for name in names}
    assert {kind.value for kind in HeadKind} < named <= set(DRAFTERS)
    for kind in HeadKind:
        assert SPEC_TYPES[f"draft-{kind.value}"] == (kind.value,)


def test_an_unknown_spec_type_is_refused_with_those_that_are_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["up", "--spec-type", "draft-oracle"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "'draft-oracle' is none of none, draft-simple" in said


def test_an_unknown_spelling_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["up", "--ctx-sise", "7"]) == 2
    assert "--ctx-size" in capsys.readouterr().err


def test_serve_is_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "outrider.toml").write_text("[up]\nctx = 777\n")
    for first in ((), ("--config", str(tmp_path / "outrider.toml"))):
        assert shown(capsys, *first, "serve", "-h") == shown(capsys, *first, "up", "-h")


def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "help") == shown(capsys, "--help")
    assert shown(capsys, "help", "status") == shown(capsys, "status", "--help")


@pytest.mark.parametrize(
    "command",
    [
        *("generate", "chat", "up", "status", "top", "plan", "bench", "teach", "health", "doctor"),
        *("pair", "target", "draft", "orchestrator", "certs", "lookup create", "lookup stats"),
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
