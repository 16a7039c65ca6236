"""Where option values come from, and what a wrong setting is called."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from outrider_cli import run, settings
from outrider_cli.app import app

COMMANDS = [name for name in settings.commands(typer.main.get_command(app)) if " " not in name]

Show = Callable[..., Any]
Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OUTRIDER")]:
        monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | bytes], None]:
    """Write the settings file; every run reads it from then on."""

    def write_file(text: str | bytes) -> None:
        path = tmp_path / "outrider.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OUTRIDER_CONFIG", "outrider.toml")

    return write_file


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Return the value and the origin of an option, or all of a command."""

    def ask(command: str, key: str = "", *flags: str) -> Any:
        assert run(["config", "show", "--json", command, *flags]) == 0, capsys.readouterr().err
        found = json.loads(capsys.readouterr().out)[command]
        return found[key] if key else found

    return ask


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return the one line that a command line ends with."""

    def ask(*arguments: str) -> str:
        assert run(arguments) != 0
        told = capsys.readouterr()
        assert told.out == "" and told.err.count("\n") == 1
        return told.err.removeprefix("outrider: ").removesuffix("\n")

    return ask


# --- which one wins ---

FILE = "threads = 2\n[target]\nthreads = 3\n"
SOURCES: list[tuple[str, int, str, dict[str, str], tuple[str, ...]]] = [
    ("", 0, "default", {}, ()),
    ("threads = 2", 2, "outrider.toml", {}, ()),
    (FILE, 3, "outrider.toml", {}, ()),
    (FILE, 4, "OUTRIDER_THREADS", {"OUTRIDER_THREADS": "4"}, ()),
    (
        FILE,
        5,
        "OUTRIDER_TARGET_THREADS",
        {"OUTRIDER_THREADS": "4", "OUTRIDER_TARGET_THREADS": "5"},
        (),
    ),
    (FILE, 6, "flag", {"OUTRIDER_TARGET_THREADS": "5"}, ("--threads", "6")),
    (FILE, 0, "flag", {"OUTRIDER_TARGET_THREADS": "5"}, ("--threads", "0")),
]


@pytest.mark.parametrize(("text", "value", "origin", "variables", "flags"), SOURCES)
def test_the_nearest_source_wins(
    write: Any,
    show: Show,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    value: int,
    origin: str,
    variables: dict[str, str],
    flags: tuple[str, ...],
):
    write(text)
    for name, setting in variables.items():
        monkeypatch.setenv(name, setting)
    assert show("target", "threads", *flags) == [value, origin]


def test_a_section_and_an_own_variable_are_for_one_command(
    write: Any, show: Show, monkeypatch: pytest.MonkeyPatch
):
    write("batch = 100\n[target]\nbatch = 200\n")
    monkeypatch.setenv("OUTRIDER_TARGET_NICE", "7")
    assert show("target", "batch")[0] == 200 and show("draft", "batch")[0] == 100
    assert show("target", "nice")[0] == 7 and show("draft", "nice")[0] == -1


def test_a_commands_own_variable_is_the_prefixed_option_of_another(
    show: Show, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OUTRIDER_DRAFT_THREADS", "3")
    assert show("draft", "threads") == [3, "OUTRIDER_DRAFT_THREADS"]
    assert show("generate", "draft-threads") == [3, "OUTRIDER_DRAFT_THREADS"]
    assert show("generate", "threads") == [0, "default"]


def test_what_is_shown_is_what_a_command_gets(write: Any, refused: Refused):
    write('[status]\norchestrator = "127.0.0.1:1"')
    assert refused("status").startswith("no orchestrator answers at 127.0.0.1:1")
    assert "answers at 127.0.0.1:2" in refused("status", "--orchestrator", "127.0.0.1:2")


def test_the_flag_of_the_file_wins_over_its_variable(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write("threads = 2")
    (tmp_path / "other.toml").write_text("threads = 3")
    assert run(["--config", "other.toml", "config", "show", "target"]) == 0
    assert "threads = 3  # other.toml\n" in capsys.readouterr().out


def test_keys_are_spelled_with_dashes_or_underscores(write: Any, show: Show):
    write('n_gpu_layers = 4\n[generate]\ndraft-ctx = 5\ncache_type_k = "q8_0"')
    assert show("generate", "n-gpu-layers")[0] == 4
    assert show("generate", "draft-ctx")[0] == 5
    assert show("generate", "cache-type-k")[0] == "q8_0"


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("[orchestrator]\ntarget = 'a:1'", ["a:1"]),
        ("[orchestrator]\ntarget = ['a:1', 'b:1']", ["a:1", "b:1"]),
    ],
)
def test_an_option_that_may_be_repeated_takes_a_list_or_one_text(
    write: Any, show: Show, text: str, targets: list[str]
):
    write(text)
    assert show("orchestrator", "target") == [targets, "outrider.toml"]


def test_an_option_may_be_repeated_and_a_variable_has_spaces_between_the_values(
    show: Show, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OUTRIDER_ORCHESTRATOR_TARGET", "a:1 b:1")
    its = [["a:1", "b:1"], "OUTRIDER_ORCHESTRATOR_TARGET"]
    assert show("orchestrator", "target") == its
    flags = ("--draft", "a:1", "--draft", "b:1")
    assert show("orchestrator", "draft", *flags) == [["a:1", "b:1"], "flag"]


@pytest.mark.parametrize("variable", ["OUTRIDER_THREADS", "OUTRIDER_TARGET_THREADS"])
def test_an_empty_variable_is_as_if_it_were_not_set(
    write: Any, show: Show, monkeypatch: pytest.MonkeyPatch, variable: str
):
    write("threads = 2")
    monkeypatch.setenv(variable, "")
    assert show("target", "threads") == [2, "outrider.toml"]


def test_an_empty_own_variable_leaves_the_shared_one(show: Show, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTRIDER_TARGET_THREADS", "")
    monkeypatch.setenv("OUTRIDER_THREADS", "4")
    assert show("target", "threads") == [4, "OUTRIDER_THREADS"]


def test_an_empty_variable_of_the_file_means_no_file(show: Show, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTRIDER_CONFIG", "")
    assert show("target", "threads") == [0, "default"]


# --- kinds of values ---


@pytest.mark.parametrize(
    ("setting", "command", "key", "value"),
    [
        ('model = "m.gguf"', "target", "model", "m.gguf"),
        ("no-draft = true", "up", "no-draft", True),
        ("no-draft = false", "generate", "no-draft", False),
        ("grace = 2", "target", "grace", 2.0),
        ("temperature = 0.5", "generate", "temperature", 0.5),
        ("verbose = 2", "generate", "verbose", 2),
        ("verbose = true", "generate", "verbose", 1),
        ('stop = ["a b", "c"]', "generate", "stop", ["a b", "c"]),
        ('acceptance = "match"', "generate", "acceptance", "match"),
        ('prompt = ""', "generate", "prompt", ""),
        ('prompt = "é\\n"', "generate", "prompt", "é\n"),
    ],
)
def test_a_file_sets_every_kind_of_option(
    write: Any, show: Show, setting: str, command: str, key: str, value: Any
):
    write(setting)
    assert show(command, key) == [value, "outrider.toml"]


@pytest.mark.parametrize(
    ("variable", "text", "command", "key", "value"),
    [
        ("OUTRIDER_MODEL", "m.gguf", "target", "model", "m.gguf"),
        ("OUTRIDER_NO_DRAFT", "1", "up", "no-draft", True),
        ("OUTRIDER_NO_DRAFT", "false", "up", "no-draft", False),
        ("OUTRIDER_ALLOW_REMOTE", "yes", "target", "allow-remote", True),
        ("OUTRIDER_GENERATE_VERBOSE", "2", "generate", "verbose", 2),
        ("OUTRIDER_TEMPERATURE", "0", "generate", "temperature", 0.0),
        ("OUTRIDER_N_PREDICT", "-1", "generate", "n-predict", -1),
        ("OUTRIDER_CTX", "77", "draft", "ctx", 77),
        ("OUTRIDER_TOKEN_FILE", "t", "status", "token-file", "t"),
    ],
)
def test_the_environment_sets_every_kind_of_option(
    show: Show,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    text: str,
    command: str,
    key: str,
    value: Any,
):
    monkeypatch.setenv(variable, text)
    assert show(command, key) == [value, variable]


# --- what is refused ---


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("OUTRIDER_THREDS", "OUTRIDER_THREDS: is no option; did you mean OUTRIDER_THREADS?"),
        ("OUTRIDER_MMAPP", "OUTRIDER_MMAPP: is no option; did you mean OUTRIDER_MMAP?"),
        ("OUTRIDER_1234567890", "OUTRIDER_1234567890: is no option"),
    ],
)
def test_an_unknown_variable_is_refused_by_every_command(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, variable: str, line: str
):
    monkeypatch.setenv(variable, "1")
    assert refused("target", "--model", "m") == refused("status") == line


@pytest.mark.parametrize("service", ["OUTRIDER", "OUTRIDER_TARGET", "OUTRIDER_MY_POD"])
def test_what_kubernetes_sets_beside_our_services_is_tolerated(
    show: Show, monkeypatch: pytest.MonkeyPatch, service: str
):
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT", "PORT_50060_TCP"):
        monkeypatch.setenv(f"{service}_{name}", "tcp://10.0.0.1:50060")
    for name in ("ADDR", "PORT", "PROTO"):
        monkeypatch.setenv(f"{service}_PORT_50060_TCP_{name}", "tcp")
    assert {origin for _, origin in show("target").values()} == {"default"}


def test_what_a_draft_for_vllm_reads_is_tolerated(show: Show, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTRIDER_VLLM_DRAFT", "localhost:50061")
    assert {origin for _, origin in show("draft").values()} == {"default"}


def test_variables_of_others_are_not_ours(show: Show, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTRIDERS_CLUB", "1")
    monkeypatch.setenv("outrider_threads", "1")
    assert show("target", "threads") == [0, "default"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("threds = 2", "threds is no option; did you mean threads?"),
        ("zzz = 2", "zzz is no option"),
        ("[targt]\nthreads = 2", "targt is no command; did you mean target?"),
        ("[target]\nthreds = 2", "threds is no option of target; did you mean threads?"),
        ("[target]\nseed = 2", "seed is no option of target"),
        ("[target]\nhelp = true", "help is no option of target"),
        ("[target.threads]\nx = 2", "[target.threads] is no section"),
        ("config = 'x'", "config is no option"),
        ("threads = true", "threads is not true or false"),
        ("threads = [1]", "threads takes one value, not a list"),
        ("tensor-split = [3, 1]", "tensor-split takes one value, not a list"),
        ("stop = 7", "stop takes a list"),
    ],
)
def test_a_wrong_file_is_refused_by_every_command(
    write: Any, refused: Refused, text: str, words: str
):
    write(text)
    line = refused("status")
    assert line == refused("target", "--model", "m")
    assert line == f"config: outrider.toml: {words}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"threads = ", "outrider.toml is not TOML: "),
        (b"threads = 1\nthreads = 2", "outrider.toml is not TOML: "),
        (b'alias = "\xff"', "outrider.toml is not UTF-8 text"),
        (b"\xff\xfet\x00", "outrider.toml is not UTF-8 text"),
    ],
)
def test_a_file_that_is_not_toml_is_refused(write: Any, refused: Refused, text: bytes, words: str):
    write(text)
    assert refused("status").startswith(f"config: {words}")


def test_a_file_that_cannot_be_read_is_refused(refused: Refused, tmp_path: Path):
    missing = tmp_path / "missing.toml"
    line = f"config: cannot read {missing}: No such file or directory"
    assert refused("--config", str(missing), "status") == line
    line = f"config: cannot read {tmp_path}: Is a directory"
    assert refused("--config", str(tmp_path), "status") == line


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ('threads = "two"', "--threads"),
        ("threads = 2.5", "--threads"),
        ('[target]\nmmap = "maybe"', "--mmap"),
        ("grace = 1979-05-27", "--grace"),
    ],
)
def test_a_wrong_type_names_the_file(write: Any, refused: Refused, text: str, flag: str):
    write(text)
    told = refused("target", "--model", "m.gguf")
    assert told.startswith(f"Invalid value for '{flag}'")
    assert told.endswith("(set by outrider.toml)")
    assert refused("config", "show", "target") == told


@pytest.mark.parametrize("variable", ["OUTRIDER_THREADS", "OUTRIDER_TARGET_THREADS"])
def test_a_wrong_type_names_the_variable(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, variable: str
):
    monkeypatch.setenv(variable, "two")
    told = refused("target", "--model", "m.gguf")
    assert told.startswith("Invalid value for '--threads'")
    assert told.endswith(f"(set by {variable})")


def test_a_wrong_flag_names_no_source(refused: Refused):
    told = refused("target", "--model", "m.gguf", "--threads", "two")
    assert told.startswith("Invalid value for '--threads'") and "set by" not in told


def test_a_flag_makes_a_wrong_setting_harmless(write: Any, show: Show):
    write('threads = "two"')
    assert show("target", "threads", "--threads", "2") == [2, "flag"]


# --- config show ---


def test_every_command_shows_every_option(capsys: pytest.CaptureFixture[str]):
    assert run(["config", "show", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == COMMANDS and {"generate", "up", "target"} < found.keys()
    known = settings.commands(typer.main.get_command(app))
    for name in COMMANDS:
        seen = {key for key, one in settings.options(known[name]).items() if not one.hidden}
        assert found[name].keys() == seen
        assert {origin for _, origin in found[name].values()} <= {"default"}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_shown_is_a_file_that_says_the_same(
    write: Any, show: Show, capsys: pytest.CaptureFixture[str], name: str
):
    before = show(name)
    assert run(["config", "show", name]) == 0
    write(capsys.readouterr().out)
    after = show(name)
    assert {key: value for key, (value, _) in after.items()} == {
        key: value for key, (value, _) in before.items()
    }


def test_the_output_is_toml_with_the_origins_as_comments(
    write: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write('alias = "a \\"b\\" é"\n')
    monkeypatch.setenv("OUTRIDER_THREADS", "2")
    assert run(["config", "show", "target", "--nice", "3"]) == 0
    out = capsys.readouterr().out
    assert tomllib.loads(out)["target"]["alias"] == 'a "b" é'
    assert "\nthreads = 2  # OUTRIDER_THREADS\n" in out
    assert "\nnice = 3  # flag\n" in out
    assert "\nbatch = 512\n" in out and "\n# model is not set\n" in out
    assert "alias = " in out and "# outrider.toml\n" in out


def test_files_and_choices_are_shown_as_a_file_takes_them(show: Show):
    assert show("teach", "texts", "--texts", "a", "--texts", "b") == [["a", "b"], "flag"]
    assert show("teach", "kind", "--kind", "draft") == ["draft", "flag"]


def test_flags_of_a_command_may_look_like_those_of_show(show: Show):
    assert show("generate", "prompt", "-p", "x") == ["x", "flag"]
    assert show("generate", "verbose", "-vv") == [2, "flag"]
    assert show("generate", "stop", "--stop=a", "--stop", "b") == [["a", "b"], "flag"]


def test_an_unknown_flag_of_a_command_is_refused(refused: Refused):
    assert refused("config", "show", "target", "--thread=3").startswith("No such option: --thread")


def test_show_tells_what_a_missing_command_is(refused: Refused):
    assert "there is no command 'targt'" in refused("config", "show", "targt")
