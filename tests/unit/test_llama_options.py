"""llama-server's options: each is taken under its name, or answered by one line."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer

from outrider_cli import run, settings
from outrider_cli.app import app
from outrider_cli.llama_options import FORMS, SPELLINGS, refusals
from outrider_cli.llama_words import our_words

LIST = Path(__file__).resolve().parents[1] / "support" / "llama_server_options.txt"
"""Of llama-server as in llama-cpp-python 0.3.36: an option a line, in all its spellings."""

COMMANDS = settings.commands(typer.main.get_command(app))
OURS = {flag for each in COMMANDS.values() for one in each.params for flag in one.opts}
OFF = {flag for each in COMMANDS.values() for one in each.params for flag in one.secondary_opts}
ELSEWHERE = {"-h", "--help", "--usage", "--version", "--host", "--port", "--spec-type"}


def spellings() -> list[str]:
    return LIST.read_text("utf-8").split()


def test_each_option_of_llama_server_is_taken_or_answered() -> None:
    answered = OURS | OFF | FORMS.keys() | refusals().keys() | ELSEWHERE
    assert [name for name in spellings() if name not in answered] == []


def test_the_tables_have_what_llama_cpp_has() -> None:
    named = {name for names in SPELLINGS.values() for name in names} | FORMS.keys()
    former = {"-cd", "--ctx-size-draft"}  # of llama-server until 2025
    of_llama_cli = {
        "-cnv",
        "--conversation",
        "-no-cnv",
        "--no-conversation",
        "-i",
        "-co",
        "--color",
    }
    of_llama_cli |= {"--interactive", "-st", "--single-turn", "-sysf", "--system-prompt-file"}
    of_llama_cli |= {"-sys", "--system-prompt", "--verbose-prompt"}
    known = {*spellings(), *former, *of_llama_cli}
    assert [name for name in (*named, *refusals()) if name not in known] == []


def test_no_spelling_stands_for_two_options() -> None:
    counts = Counter(name for names in SPELLINGS.values() for name in names)
    counts.update(FORMS.keys())
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("names", [SPELLINGS, {key: () for key, _ in FORMS.values()}])
def test_what_the_tables_call_ours_is_ours(names: dict[str, Any]) -> None:
    known = {name for each in COMMANDS.values() for name in settings.options(each)}
    assert names.keys() <= known


TAKEN = [
    ("up", "-hf org/repo:Q8_0", "model", "hf:org/repo:Q8_0"),
    ("target", "-hfr=org/repo", "model", "hf:org/repo"),
    ("generate", "--hf-repo org/repo", "model", "hf:org/repo"),
    ("draft", "--hf-repo=org/repo", "model", "hf:org/repo"),
    ("chat", "-hfd org/repo", "draft-model", "hf:org/repo"),
    ("target", "--spec-draft-hf org/repo", "draft-model", "hf:org/repo"),
    ("generate", "--grammar-file g.gbnf", "grammar", "@g.gbnf"),
    ("generate", "-jf s.json", "json-schema", "@s.json"),
    ("generate", "-r END", "stop", ["END"]),
    ("up", "-kvu", "kv-cache", "pool"),
    ("up", "--no-kv-unified", "kv-cache", "streams"),
    ("up", "-ngl all", "n-gpu-layers", -1),
    ("up", "--gpu-layers=7", "n-gpu-layers", 7),
    ("target", "-ngld auto", "draft-n-gpu-layers", -1),
    ("up", "--slots", "http-slots", True),
    ("orchestrator", "--ssl-cert-file c.pem", "tls-cert", "c.pem"),
    ("up", "-lcd cache.bin", "lookup-cache-dynamic", "cache.bin"),
    ("generate", "-p --port", "prompt", "--port"),
    ("generate", "--prompt --jinja -n 7", "prompt", "--jinja"),
    ("up", "-a -hf", "alias", "-hf"),
    ("up", "--host 0.0.0.0 --port -1", "http", "0.0.0.0:-1"),
    ("up", "-c 4096", "ctx", 4096),
]


@pytest.mark.parametrize(("command", "words", "name", "value"), TAKEN)
def test_what_llama_cpp_calls_otherwise_is_taken(
    command: str, words: str, name: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "show", "--json", command, "--", *words.split()]) == 0
    assert json.loads(capsys.readouterr().out)[command][name] == [value, "flag"]


REFUSED = [
    ("up --jinja", "--jinja changes nothing here, leave it out: chats follow the model's template"),
    ("up -m a.gguf -cb", "-cb changes nothing here, leave it out: requests always share decodes"),
    ("up --api-key secret", "--http-key-file"),
    ("target -m a.gguf -ub 512", "-ub is no option here: a decode is not split; give --batch"),
    ("up -hf a/b -hff b.gguf", "write --model hf:ORG/REPO/FILE.gguf"),
    ("up -hft=token", "-hft is no option here: set HF_TOKEN"),
    ("up --temp 0.5", "a service has no such default"),
    ("up --grammar-file g", "a service has no such default"),
    ("generate --draft 5", "--n-max"),
    ("chat -sm row", "--main-gpu takes one card alone"),
    ("draft -dev CUDA0", "--main-gpu"),
    ("orchestrator --api-prefix /v2", "let a reverse proxy do that"),
    ("generate -fit on", "outrider doctor says whether it fits"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_has_no_counterpart_is_answered_by_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_command_that_has_an_option_of_the_name_takes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert {"--timeout", "--file", "--verbose"} <= refusals().keys()
    assert run(["config", "show", "--json", "health", "--timeout", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["health"]["timeout"] == [5.0, "flag"]


def test_what_is_said_instead_names_options_that_are_there() -> None:
    said = " ".join(text.partition(": ")[2] for text in refusals().values())
    assert {word for word in re.findall(r"--[a-z][a-z-]+", said)} <= {
        *OURS,
        *OFF,
        "--install-completion",
    }


def test_where_words_end_nothing_is_read_as_llama_cpps() -> None:
    params = COMMANDS["up"].params
    assert our_words(["--port", "1", "--", "--jinja", "-hf"], params) == [
        *("--http=127.0.0.1:1", "--", "--jinja", "-hf")
    ]
    assert our_words(["--jinja", "-hf"], COMMANDS["status"].params) == ["--jinja", "-hf"]
