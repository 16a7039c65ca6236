"""Runs the commands of the guides as they are printed.

Shell blocks of one page run one after the other, in a folder that looks like
a checkout. A comment before a block can say `test: background`, for services
that live until the next heading, or `test: skip` with the reason. The names
large.gguf and small.gguf are the bundled pair, and the machine `gpu` is here.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.own_network import own_network
from tests.support.processes import DRAFT, EXACT, TARGET
from tests.support.thorough import THOROUGH

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "docs/clients.md",
    *("README.md", "docs/tuning.md", "docs/troubleshooting.md", "docs/operations.md"),
    *("docs/drafts.md", "docs/two-machines.md", "docs/team.md", "docs/upgrade.md"),
    *("docs/reference/sampling.md", "docs/reference/grammars.md", "docs/reference/json-rpc.md"),
    *("docs/reference/configuration.md", "docs/chat.md", "docs/gpu.md"),
)
PATIENCE = 300.0
"""On a busy machine; the longest block takes half a minute on a quiet one."""

READY = ('"serving"', "stop: Ctrl-C")
"""What a service, and `up`, say once they can be used."""

TAKEN = "cannot listen on"
"""What one says whose port is in use: the guides' ports are among those that the system lends
to any connection, so another worker's may hold one for a moment."""

_BLOCK = re.compile(
    r"^(?P<heading>#+ [^\n]*)$"
    r"|^(?:<!-- test: (?P<how>\w+).*?-->\n)?(?P<indent> *)```sh\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_LEFT_OUT = re.compile(
    r"^make test\b.*$" if THOROUGH else r"^make (test|temperature-demo|creative|technical)\b.*$",
    re.MULTILINE,
)
"""The tests themselves; and what does the same as others with other options takes half a minute."""

_ALONE = re.compile(
    r"^ *(\.venv/bin/outrider (?:doctor|generate) --model [^#\\\n]*?) *(?:#.*)?$", re.MULTILINE
)
"""A command that needs nothing before it and leaves nothing: another page may have it, too."""


@dataclass(frozen=True)
class Block:
    """Commands of a page. `how` is "", "background" or "skip"."""

    how: str
    text: str


def blocks(page: str) -> Iterator[Block | None]:
    """Yield the blocks of a page, and None for every heading."""
    for found in _BLOCK.finditer((ROOT / page).read_text()):
        if found["heading"]:
            yield None
        else:
            text = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
            yield Block(found["how"] or "", text)


class Shell:
    """Runs blocks in one folder; what runs in the background is stopped by `settle`."""

    def __init__(self, folder: Path, done: set[str]) -> None:
        """`done` are the commands that worked on other pages, which are not run again."""
        self._folder = folder
        self._done = done
        self._running: list[subprocess.Popen[bytes]] = []
        kept = {key: value for key, value in os.environ.items() if key != "MAKEFLAGS"}
        # One thread: two would wait for each other whenever the machine is busy. And texts
        # that are not of a length that the page names are short.
        self._environment = {
            **kept,
            **EXACT,  # so that each pair is measured once
            "OUTRIDER_THREADS": "1",
            "OUTRIDER_DRAFT_THREADS": "1",
            "OUTRIDER_N_PREDICT": "16",
            "N_PREDICT": "16",
            # No test needs the network: `make demo` runs the bundled pair.
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "",
            "PIP_CONFIG_FILE": os.devnull,
            "OUTRIDER_DEMO_SECONDS": "10",
        }

    def run(self, block: Block) -> None:
        """Run a block; fail if any of its commands does."""
        text = _LEFT_OUT.sub("", re.sub(r"\bgpu\b(?!-)", "localhost", block.text))
        text = _ALONE.sub(lambda found: "" if found[1] in self._done else found[0], text)
        if block.how == "background":
            self._start(text)
        elif block.how != "skip":
            # Output goes to a file: a child that lives on would hold a pipe open.
            with (self._folder / "output").open("w+b") as output:
                code = self._popen(text, output).wait(PATIENCE)
                output.seek(0)
                assert code == 0, f"{text}\n{output.read().decode()}"
            self._done.update(_ALONE.findall(text))

    def _popen(self, text: str, output: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", "-eu", "-o", "pipefail", "-c", text],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,  # type: ignore[arg-type]
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _start(self, text: str) -> None:
        log = self._folder / f"background-{len(self._running)}"
        deadline = time.monotonic() + PATIENCE
        while not self._has_started(text, log, deadline):
            assert time.monotonic() < deadline, f"{text}\n{log.read_text()}"
            time.sleep(1)

    def _has_started(self, text: str, log: Path, deadline: float) -> bool:
        """Start a block and wait until it can be used. False where its port was in use."""
        with log.open("wb") as output:
            process = self._popen(text, output)
        self._running.append(process)
        while not any(word in log.read_text() for word in READY):
            if process.poll() is not None and TAKEN in log.read_text():
                self._running.pop()
                return False
            assert process.poll() is None, f"{text}\n{log.read_text()}"
            assert time.monotonic() < deadline, f"{text}\n{log.read_text()}"
            time.sleep(0.05)
        return True

    def settle(self) -> None:
        """Stop what runs in the background, as Ctrl-C does."""
        for process in reversed(self._running):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(PATIENCE)
        self._running.clear()

    def kill(self) -> None:
        """Leave nothing behind."""
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def done() -> set[str]:
    """The commands that worked on some page and leave nothing."""
    return set()


@pytest.fixture
def shell(tmp_path: Path, done: set[str]) -> Iterator[Shell]:
    for entry in ROOT.iterdir():
        if entry.name not in (".git", "build", "README.md"):
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "large.gguf").symlink_to(TARGET)
    (tmp_path / "small.gguf").symlink_to(DRAFT)
    shell = Shell(tmp_path, done)
    with own_network():
        yield shell
        shell.kill()


def is_set_up() -> bool:
    """Return whether `make setup` has nothing to do: from a page's folder it would point the
    environment, which is ours, to that folder."""
    made = subprocess.run(["make", "-q", "setup"], check=False, cwd=ROOT, capture_output=True)
    return made.returncode == 0 and (ROOT / ".venv" / "bin" / "outrider").exists()


@pytest.mark.skipif(not is_set_up(), reason="needs `make setup`")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work(page: str, shell: Shell) -> None:
    for block in blocks(page):
        if block is None:
            shell.settle()
        else:
            shell.run(block)
    shell.settle()


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert ((ROOT / page).parent / link).exists(), link


def test_a_page_has_its_ports_though_another_test_holds_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = other.getsockname()
        with own_network() as is_own:
            if not is_own:
                pytest.skip("this user may not make a network")
            with socket.create_server(address) as own:
                assert own.getsockname() == address
        with pytest.raises(OSError, match="in use"):
            socket.create_server(address)
