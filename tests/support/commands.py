"""The `outrider` command as a user runs it: in a process of its own, with its services."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

import outrider
import outrider_cli
from tests.support.processes import EXACT

PROMPT = "def read_config(path):"
GREEDY = ("--temperature", "0", "--prompt", PROMPT)
LOCAL = (*GREEDY, "--threads", "1", "--draft-threads", "1")
"""One thread: two would wait for each other whenever the machine is busy."""

PATIENCE = 60.0
"""Nothing in these tests takes as long, unless it hangs."""

_SPACE = re.compile(r"\x08\x1b\[2C")  # the line editor goes over it: one back, two forward
_ESCAPES = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")
_MARK = "TEST_MARK_OF_OUTRIDER"


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with nothing that changes what the command does."""
    kept = {k: v for k, v in os.environ.items() if k != "NO_COLOR" and not k.startswith("OUTRIDER")}
    root = str(Path(outrider.__file__).parents[1])
    return {**kept, "PYTHONPATH": root, "TERM": "xterm-256color", **EXACT, **more}


class Command:
    """One run of the command; it and its services carry a mark, so that none is overlooked."""

    def __init__(
        self,
        *arguments: str,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        terminal: str = "",
    ) -> None:
        self.mark = secrets.token_hex(8)
        # The first terminal that the leader of a session opens is where its signals come from.
        on_it = ("sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', terminal) if terminal else ()
        self.process = subprocess.Popen(
            [*on_it, sys.executable, "-m", "outrider_cli", *arguments],
            start_new_session=bool(terminal),
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env={**environment(**(env or {})), _MARK: self.mark},
        )

    def services(self) -> dict[str, psutil.Process]:
        """Return the services that live, by role."""
        found = {}
        for process in psutil.process_iter():
            try:
                if process.pid != self.process.pid and process.environ().get(_MARK) == self.mark:
                    words = process.cmdline()
                    role = words[words.index("outrider_cli") + 1]
                    found[role] = process
            except (psutil.Error, ValueError):
                continue
        return found

    def wait_for_text(self) -> None:
        """Return when text streams, so that every service is up and at work."""
        assert self.process.stdout is not None
        assert self.process.stdout.read(len(PROMPT) + 1)

    def wait_for_line(self, words: str) -> str:
        """Return the first line of standard output that has these words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line.decode():
                return line.decode()
        raise AssertionError(f"the command ended without {words!r}")

    def wait_for_services(self, *roles: str) -> None:
        """Return when services of these roles live."""
        until(lambda: self.services().keys() >= set(roles))

    def finish(self, input: bytes = b"") -> Result:
        """Wait for the end and return what came of it."""
        out, err = self.process.communicate(input, timeout=PATIENCE)
        return Result(self.process.returncode, (out or b"").decode(), (err or b"").decode())

    def kill_all(self) -> None:
        """Leave nothing behind, whatever the test did."""
        for process in [*self.services().values(), self.process]:
            process.kill()
        self.finish()


@dataclass(frozen=True, slots=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object of standard output; anything beside it fails."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out)


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def run_here(*arguments: str, input: bytes = b"") -> Result:
    """Run a command that starts no service in this process: one of its own takes half a second.

    It reads `input` and prints to a pipe, as far as it can tell.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        patch.dict(os.environ, environment(), clear=True),
        patch("sys.stdin", io.TextIOWrapper(io.BytesIO(input))),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = outrider_cli.run(arguments)
    return Result(code, *(_written(each) for each in (out, err)))


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def outrider_json(*arguments: str) -> Any:
    """Return the JSON object of a generation, which starts services unless it names some."""
    words = ("generate", "--json", *arguments)
    return (run_here(*words) if "--orchestrator" in words else Command(*words).finish()).json


def status(address: str, *options: str) -> Result:
    """Ask an orchestrator how it is."""
    return run_here("status", "--orchestrator", address, *options)


@contextmanager
def service(role: str, *options: str, stderr: int = subprocess.DEVNULL) -> Iterator[str]:
    """Run one service and return where it says that it listens; `stderr` takes its log."""
    command = Command(role, *options, "--listen", "127.0.0.1:0", stderr=stderr)
    try:
        line = command.wait_for_line(" listening on ")
        yield line.removeprefix(f"outrider {role} listening on ").strip()
    finally:
        command.process.terminate()
        command.finish()


def on_a_terminal(*arguments: str, **env: str) -> bytes:
    """Return what a command shows on a terminal of its own, standard error included."""
    ours, theirs = pty.openpty()
    command = Command(*arguments, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    parts: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(ours, parts))
    reader.start()
    told = command.finish()
    reader.join()
    os.close(ours)
    assert told.code == 0, b"".join(parts)
    return b"".join(parts)


class Terminal:
    """A command on a terminal of its own, with a keyboard; Ctrl-C and Ctrl-D are typed."""

    def __init__(self, *arguments: str, **env: str) -> None:
        self._ours, theirs = pty.openpty()
        self.command = Command(*arguments, env=env, terminal=os.ttyname(theirs))
        self._theirs = theirs
        self._parts: list[bytes] = []
        self._seen = 0
        self._reader = threading.Thread(target=_read_all, args=(self._ours, self._parts))
        self._reader.start()

    @property
    def shown(self) -> str:
        """Everything that was shown, without escape codes."""
        text = self.raw.decode(errors="replace")
        return re.sub("\r+\n", "\n", _ESCAPES.sub("", _SPACE.sub(" ", text)))

    @property
    def raw(self) -> bytes:
        """Everything that was shown, as it came."""
        return b"".join(self._parts)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def enter(self, line: str) -> None:
        """Type a line."""
        self.type(f"{line}\r")

    def wait_for(self, words: str) -> str:
        """Return what is shown behind what was waited for last, up to these words and with them."""
        until(lambda: self.shown.find(words, self._seen) >= 0)
        start, self._seen = self._seen, self.shown.find(words, self._seen) + len(words)
        return self.shown[start : self._seen]

    def wait_for_end(self) -> int:
        """Return the exit code."""
        return self.command.process.wait(PATIENCE)

    def close(self) -> None:
        """Leave nothing behind."""
        self.command.kill_all()
        os.close(self._theirs)
        self._reader.join()
        os.close(self._ours)


def _read_all(descriptor: int, parts: list[bytes]) -> None:
    try:
        while part := os.read(descriptor, 65536):
            parts.append(part)
    except OSError:
        pass  # the other end is closed
