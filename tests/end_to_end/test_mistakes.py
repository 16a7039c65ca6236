"""Every mistake is one line that says what is wrong. mistakes.md beside it lists them.

REWRITE_MISTAKES=1 writes that file anew; read the difference before you commit it.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest

from outrider_cli import run
from tests.support.certificates import write_certificates
from tests.support.commands import (
    GREEDY,
    LOCAL,
    Command,
    Result,
    service,
    status,
    until,
)
from tests.support.tiny_gguf import Vocabulary, write_model

TABLE = Path(__file__).parent / "mistakes.md"
REWRITE = bool(os.environ.get("REWRITE_MISTAKES"))

# Capital words stand for addresses, the other names for files that `_write_files` makes.
FLAGS = """
outrider genrate
outrider generate hello
outrider generate --thread 2
outrider generate --n-predict many
outrider generate --n-predict -2
outrider generate --temperature nan
outrider generate --top-p 1.5
outrider generate --n-draft 65
outrider generate --acceptance hope
outrider generate --seed 9223372036854775808
outrider generate --no-draft --compare
outrider generate --orchestrator NOBODY --model tiny.gguf
outrider up --target NOBODY --model tiny.gguf
outrider up --draft NOBODY --no-draft
outrider target
outrider target --model hf:qwen3
outrider draft
outrider draft --drafters sufix
outrider target --model tiny.gguf --sessions 0
outrider target --model tiny.gguf --cache-type-k q9
outrider target --model tiny.gguf --tensor-split 3,x
outrider up --model tiny.gguf --jinja
outrider target --model tiny.gguf -ub 512
outrider up --api-key secret
outrider generate --grammar @missing.gbnf
outrider orchestrator --chat-template-file missing.jinja
outrider up --chat-template-file latin1.toml
outrider config show targt
printf '\\377' | outrider generate
"""
SETTINGS = """
OUTRIDER_THREDS=2 outrider generate
OUTRIDER_THREADS=two outrider generate
outrider --config missing.toml status
outrider --config folder status
outrider --config broken.toml status
outrider --config latin1.toml status
outrider --config unknown-key.toml status
outrider --config unknown-command.toml status
outrider --config wrong-kind.toml generate
outrider --config wrong-type.toml generate
"""
MODELS = """
outrider generate --model missing.gguf
outrider generate --model folder
outrider generate --draft-model missing.gguf
outrider generate --model text.gguf --no-draft
outrider generate --model half.gguf --no-draft
outrider generate --model damaged.gguf --no-draft
outrider generate --model tiny.gguf --draft-model text.gguf
outrider up --model text.gguf --no-draft
outrider up --model tiny.gguf --draft-model tiny.gguf --draft-ctx 16
outrider up --model tiny.gguf --draft-model other-token.gguf --same-vocabulary
outrider up --model tiny.gguf --draft-model other-size.gguf --same-vocabulary
outrider generate --model tiny.gguf --no-draft --ctx 16
"""
ADDRESSES = """
outrider orchestrator --listen IN_USE
outrider target --model tiny.gguf --listen IN_USE
outrider up --model tiny.gguf --listen IN_USE
outrider orchestrator --listen 127.0.0.1:http
outrider orchestrator --listen 127.0.0.1:65536
outrider orchestrator --listen 192.0.2.1:50060 --allow-remote --token-file right.token
outrider orchestrator --http localhost
outrider up --http localhost
outrider up --host 0.0.0.0 --port 8080
outrider orchestrator --listen 0.0.0.0:50060
outrider orchestrator --listen 0.0.0.0:50060 --allow-remote
outrider orchestrator --target nowhere
outrider status --orchestrator nowhere
outrider status --orchestrator NOBODY
outrider generate --orchestrator NOBODY
outrider status --orchestrator TARGET
outrider status --orchestrator WEB_SERVER
outrider health WEB_SERVER
outrider up --target nowhere --no-draft
outrider draft --model tiny.gguf --join nowhere
outrider draft --drafters lookup --join TARGET
outrider draft --drafters lookup --join WEB_SERVER
"""
TOKENS = """
outrider orchestrator --token-file missing.token
outrider orchestrator --token-file empty.token
outrider status --orchestrator WITH_TOKEN
outrider status --orchestrator WITH_TOKEN --token-file wrong.token
outrider generate --orchestrator WITH_TOKEN
outrider generate --orchestrator WITH_TOKEN --token-file wrong.token
outrider generate --orchestrator WITH_TOKEN --token-file missing.token
outrider draft --drafters lookup --join WITH_TOKEN
outrider draft --drafters lookup --join WITH_TOKEN --token-file wrong.token
"""
CERTIFICATES = """
outrider orchestrator --tls-cert server.pem
outrider orchestrator --tls-cert missing.pem --tls-key server.key
outrider orchestrator --tls-cert text.pem --tls-key server.key
outrider orchestrator --tls-cert server.pem --tls-key text.pem
outrider orchestrator --tls-cert server.pem --tls-key client.key
outrider orchestrator --tls-client-ca ca.pem
outrider status --orchestrator WITH_TLS
outrider generate --orchestrator WITH_TLS
outrider status --orchestrator WITH_TLS --tls-ca other-ca.pem
outrider status --orchestrator WITH_TLS --tls-ca text.pem
outrider draft --drafters lookup --join WITH_TLS --tls-ca other-ca.pem
outrider status --orchestrator WITH_TOKEN --tls-ca ca.pem
outrider status --orchestrator FOR_CLIENTS --tls-ca ca.pem
outrider status --orchestrator FOR_CLIENTS --tls-ca ca.pem --tls-cert foreign.pem --tls-key foreign.key
"""  # noqa: E501
SECTIONS = {
    "Flags": FLAGS,
    "Environment and file": SETTINGS,
    "Models": MODELS,
    "Addresses": ADDRESSES,
    "Tokens": TOKENS,
    "Certificates": CERTIFICATES,
}
KILLED = {
    "target": "outrider generate, and its target is killed",
    "orchestrator": "outrider generate --orchestrator KILLED, and that is killed",
}
TYPED = [line for lines in SECTIONS.values() for line in lines.strip().splitlines()]

OTHER_TOKEN = Vocabulary(changed={310: "otter"})
OTHER_SIZE = Vocabulary(tail_count=160)

_HEAD = """# What a mistake looks like

A mistake ends a command with one line on standard error and an exit code that is not 0. These lines
are what `tests/end_to_end/test_mistakes.py` got; with `REWRITE_MISTAKES=1` it writes this file.
Words in capitals stand for addresses.
"""
_rows: dict[str, str] = {}


@dataclass(slots=True)
class World:
    """A folder with good and bad files, and what the capital words stand for."""

    folder: Path
    addresses: dict[str, str] = field(default_factory=dict)

    def fill_in(self, typed: str) -> str:
        for word, address in self.addresses.items():
            typed = typed.replace(word, address)
        return typed

    def take_out(self, text: str) -> str:
        for word, address in self.addresses.items():
            text = text.replace(address, word)
        return text


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, orchestrator: str) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("mistakes"))
    _write_files(world.folder)
    nobody = ("orchestrator", "--no-draft", "--target", "127.0.0.1:1")
    files = {name: str(world.folder / name) for name in ("right.token", "server.pem", "server.key")}
    token = ("--token-file", files["right.token"])
    tls = ("--tls-cert", files["server.pem"], "--tls-key", files["server.key"])
    clients = ("--tls-client-ca", str(world.folder / "ca.pem"))
    with ExitStack() as stack:
        for port in ("IN_USE", "NOBODY"):
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            world.addresses[port] = f"127.0.0.1:{taken.getsockname()[1]}"
            if port == "IN_USE":
                taken.listen()
        world.addresses |= {
            "WEB_SERVER": stack.enter_context(web_server()),
            "WITH_TOKEN": stack.enter_context(service(*nobody, *token)),
            "WITH_TLS": stack.enter_context(service(*nobody, *tls)),
            "FOR_CLIENTS": stack.enter_context(service(*nobody, *tls, *clients)),
            "TARGET": status(orchestrator).out.splitlines()[1].split()[1],
        }
        yield world


@contextmanager
def web_server() -> Iterator[str]:
    """Run a server that speaks HTTP/1 and nothing else."""
    with ThreadingTCPServer(("127.0.0.1", 0), _NotFound) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _NotFound(StreamRequestHandler):
    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


def _write_files(folder: Path) -> None:
    write_certificates(folder)
    (folder / "folder").mkdir()
    (folder / "empty.token").write_text("\n")
    (folder / "text.pem").write_text("no certificate\n")
    (folder / "text.gguf").write_text("GGML, almost\n")
    tiny = write_model(folder / "tiny.gguf").read_bytes()
    (folder / "half.gguf").write_bytes(tiny[: len(tiny) // 2])
    (folder / "damaged.gguf").write_bytes(tiny[:8] + b"\x77" * 16 + tiny[24:])
    write_model(folder / "other-token.gguf", vocabulary=OTHER_TOKEN)
    write_model(folder / "other-size.gguf", vocabulary=OTHER_SIZE)
    (folder / "broken.toml").write_text("threads = \n")
    (folder / "latin1.toml").write_bytes('alias = "é"\n'.encode("latin-1"))
    (folder / "unknown-key.toml").write_text("[target]\nthreds = 2\n")
    (folder / "unknown-command.toml").write_text("[targt]\nthreads = 2\n")
    (folder / "wrong-kind.toml").write_text("stop = 7\n")
    (folder / "wrong-type.toml").write_text('threads = "two"\n')


# --- one line each ---


@pytest.mark.parametrize("typed", TYPED)
def test_a_mistake_is_one_line(
    world: World,
    typed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(world.folder)
    told = _run(world.fill_in(typed), monkeypatch, capsys)
    assert told.code in (1, 2) and "Traceback" not in told.err
    # A model service listens first: whoever waits for it sees that it loads.
    listens = told.out.startswith("outrider target listening on ") and told.out.count("\n") == 1
    assert told.out == "" or (listens and "target --model" in typed)
    record(world, typed, "".join(filter(_is_no_event, told.err.splitlines(keepends=True))))


def _is_no_event(line: str) -> bool:
    """Whether a service that had begun to work did not log this."""
    return not line.startswith("{")


def _run(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Result:
    """Run what was typed, here where this process becomes no service and no input is read."""
    before, piped, typed = line.rpartition(" | ")
    words = shlex.split(typed)
    start = words.index("outrider")
    variables = dict(word.split("=", 1) for word in words[:start])
    words = words[start + 1 :]
    # Of those among FLAGS an option is refused first.
    may_serve = words[0] in ("orchestrator", "target", "draft") and line not in FLAGS.splitlines()
    if not piped and not may_serve:
        # Where nothing else is typed: guides that run at the same time have the usual address.
        monkeypatch.setenv("OUTRIDER_UP_LISTEN", "127.0.0.1:0")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdin", None)
        code = run(words)
        told = capsys.readouterr()
        return Result(code, told.out, told.err)
    input = subprocess.check_output(["bash", "-c", before]) if piped else b""
    return Command(*words, env=variables).finish(input)


def record(world: World, typed: str, told: str, prefix: str = "outrider: ") -> None:
    """Compare a line with the table's, or keep it for a new one."""
    assert told.startswith(prefix) and told.count("\n") == 1 and told.endswith("\n"), told
    row = _row(typed, world.take_out(told.removesuffix("\n")))
    _rows[typed] = row
    if not REWRITE:
        assert row in TABLE.read_text().splitlines()


def _row(typed: str, line: str) -> str:
    typed, line = (text.replace("|", "\\|") for text in (typed, line))
    return f"| `{typed}` | `{line}` |"


# --- killed on the way ---


def test_a_target_killed_midway_is_one_line(world: World):
    command = Command("generate", *LOCAL, "-n", "900")
    command.wait_for_text()
    command.services()["target"].kill()
    told = command.finish()
    assert told.code == 1 and command.services() == {}
    record(world, KILLED["target"], told.err)


def test_an_orchestrator_killed_midway_is_one_line(world: World):
    words = ("--target", world.addresses["TARGET"], "--no-draft", "--listen", "127.0.0.1:0")
    asked = Command("orchestrator", *words, stderr=subprocess.DEVNULL)
    address = asked.wait_for_line(" listening on ").rpartition(" ")[2].strip()
    until(lambda: " ready " in status(address).out)
    asking = ("generate", *GREEDY, "--orchestrator", address, "-n", "900", "--no-draft")
    command = Command(*asking)
    command.wait_for_text()
    asked.process.kill()
    asked.finish()
    told = command.finish()
    assert told.code == 1
    world.addresses["KILLED"] = address
    record(world, KILLED["orchestrator"], told.err)


def test_a_draft_killed_midway_is_no_mistake(world: World):
    command = Command("generate", *LOCAL, "-n", "300")
    command.wait_for_text()
    command.services()["draft"].kill()
    told = command.finish()
    assert told.code == 0 and "\ngenerated 300 tokens in " in told.out
    assert told.err == "note: the draft ended early; the rest was generated without it\n"


# --- the table ---


def test_the_table_has_a_row_for_every_mistake_and_no_others():
    if REWRITE:
        TABLE.write_text(_table())
    typed = [*TYPED, KILLED["target"], KILLED["orchestrator"]]
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(typed) == len(set(typed)) > 30
    for row, one in zip(rows, typed, strict=True):
        assert row.startswith(_row(one, "").removesuffix("` |"))


def _table() -> str:
    sections = {title: lines.strip().splitlines() for title, lines in SECTIONS.items()}
    sections["Killed on the way"] = [KILLED["target"], KILLED["orchestrator"]]
    parts = [_HEAD]
    for title, lines in sections.items():
        rows = "\n".join(_rows[line] for line in lines)
        parts.append(f"## {title}\n\n| typed | printed |\n|---|---|\n{rows}\n")
    return "\n".join(parts)
