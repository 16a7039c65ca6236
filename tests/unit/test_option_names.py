"""Every option has one name: on the command line, in environment, file and guides."""

from __future__ import annotations

import json
import os
import re
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer

from outrider_cli import run, settings
from outrider_cli.app import app

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [
    *(ROOT / "README.md", ROOT / "deploy" / "README.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]
COMMANDS = settings.commands(typer.main.get_command(app))
SHOWN = [name for name in COMMANDS if " " not in name]

FILES = {"texts"}
"""Repeatable options whose values are files: in a variable colons are between them."""

_COMPARING = {"drafts.md", "http-api.md", "json-rpc.md", "configuration.md", "other-engines.md"}
"""Guides that name options of llama.cpp beside ours."""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OUTRIDER")]:
        monkeypatch.delenv(name)


def options_of(command: str) -> dict[str, Any]:
    """Return the options of a command that are shown, by flag."""
    found = settings.options(COMMANDS[command])
    return {name: each for name, each in found.items() if not each.hidden}


def another(option: Any) -> Any:
    """Return a value that is not an option's default."""
    kind = option.type_descriptor.annotation
    if option.count:
        return 2
    if option.is_flag:
        return not option.default
    if get_origin(kind) is Literal:
        return next(word for word in get_args(kind) if word != option.default)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(each.value for each in kind if each is not option.default)
    value = {int: 5, float: 7.5}.get(kind, "some words")
    return [value, value] if option.multiple else value


def words_of(name: str, option: Any, value: Any) -> list[str]:
    """Return what gives an option a value on a command line."""
    if option.count:
        return [f"--{name}"] * value
    if option.is_flag:
        return [f"--{name}" if value else option.secondary_opts[0]]
    return [f"--{name}={each}" for each in (value if option.multiple else [value])]


def shown(capsys: Any, command: str, *words: str) -> dict[str, tuple[Any, str]]:
    assert run(["config", "show", "--json", command, "--", *words]) == 0, capsys.readouterr().err
    found: dict[str, tuple[Any, str]] = json.loads(capsys.readouterr().out)[command]
    return found


def values(found: dict[str, tuple[Any, str]]) -> dict[str, Any]:
    return {name: value for name, (value, _) in found.items()}


@pytest.mark.parametrize("command", SHOWN)
def test_command_line_environment_and_file_know_an_option_by_one_name(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    options = options_of(command)
    wanted = {name: another(option) for name, option in options.items()}
    words = [word for name in wanted for word in words_of(name, options[name], wanted[name])]
    typed = shown(capsys, command, *words)
    assert {origin for _, origin in typed.values()} <= {"flag"}
    assert values(typed) == wanted

    file = tmp_path / "o.toml"
    rows = [f"{name} = {json.dumps(value)}" for name, value in wanted.items()]
    file.write_text("\n".join([f"[{command}]", *rows]))
    with monkeypatch.context() as patch:
        patch.setenv("OUTRIDER_CONFIG", str(file))
        filed = shown(capsys, command)
    assert {origin for _, origin in filed.values()} <= {str(file)}
    assert values(filed) == wanted

    for name, value in wanted.items():
        [variable] = {f"OUTRIDER_{command}_{name}".upper().replace("-", "_")}
        between = os.pathsep if name in FILES else " "
        text = between.join(["some", "words"]) if options[name].multiple else str(value)
        monkeypatch.setenv(variable, text)
    set_ = shown(capsys, command)
    assert all(origin.startswith("OUTRIDER_") for _, origin in set_.values())
    split = {name: ["some", "words"] for name, option in options.items() if option.multiple}
    assert values(set_) == wanted | split


@pytest.mark.parametrize("command", SHOWN)
def test_an_option_is_named_as_its_flag_with_dashes(command: str) -> None:
    for name, option in options_of(command).items():
        assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", name) and option.opts[0] in (f"--{name}", "-p")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda page: page.name)
def test_a_guide_names_options_as_we_do(guide: Path) -> None:
    ours = {name for command in COMMANDS for name in settings.options(COMMANDS[command])}
    spelled = {
        flag.removeprefix("--")
        for command in COMMANDS.values()
        for option in command.params
        for flag in option.opts
    }
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)", guide.read_text("utf-8")))
    if guide.name not in _COMPARING:
        assert named & (spelled - ours) == set()


@pytest.mark.parametrize("guide", GUIDES, ids=lambda page: page.name)
def test_a_variable_in_a_guide_is_an_options(guide: Path) -> None:
    known = {
        variable
        for command in COMMANDS
        for name in settings.options(COMMANDS[command])
        for variable in settings.variables(command, name)
    }
    named = set(re.findall(r"OUTRIDER_[A-Z_]+[A-Z]", guide.read_text("utf-8")))
    others = {each for each in named if each.startswith(("OUTRIDER_VLLM_", "OUTRIDER_CONFIG"))}
    assert named - others <= known


# --- a draft that another command starts ---


@pytest.mark.parametrize("command", ["up", "generate", "chat", "target", "doctor", "bench"])
def test_the_section_of_drafts_is_for_the_draft_of_any_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    file = tmp_path / "o.toml"
    file.write_text(
        'draft-threads = 1\n[draft]\nthreads = 2\nn_gpu_layers = 0\nmlock = true\nmodel = "s.gguf"'
    )
    monkeypatch.setenv("OUTRIDER_CONFIG", str(file))
    found = shown(capsys, command)
    for name, value in {"threads": 2, "n-gpu-layers": 0, "mlock": True}.items():
        assert found[f"draft-{name}"] == [value, str(file)]
    assert found["threads"] == [0, "default"]
    assert found["draft-model"] == [None, "default"], "which model it is, the command says"


def test_a_commands_own_section_goes_before_that_of_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    file = tmp_path / "o.toml"
    file.write_text("[draft]\nthreads = 2\nctx = 512\n[up]\ndraft-threads = 3\n")
    monkeypatch.setenv("OUTRIDER_CONFIG", str(file))
    assert shown(capsys, "up")["draft-threads"][0] == 3
    assert shown(capsys, "up")["draft-ctx"][0] == shown(capsys, "draft")["ctx"][0] == 512
    monkeypatch.setenv("OUTRIDER_DRAFT_THREADS", "4")
    assert shown(capsys, "up")["draft-threads"][0] == 4


@pytest.mark.parametrize(
    ("key", "name"), [("ctx-size", "ctx"), ("ngl", "n-gpu-layers"), ("parallel", "sessions")]
)
def test_a_file_with_llama_cpps_name_is_told_ours(
    key: str, name: str, tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "o.toml"
    file.write_text(f"[target]\n{key} = 1")
    assert run(["--config", str(file), "status"]) == 1
    assert f"{key} is no option of target; it is called {name} here" in capsys.readouterr().err
