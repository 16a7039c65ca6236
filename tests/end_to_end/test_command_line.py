"""The `outrider` command with the bundled pair, as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import outrider
from outrider.cli.generate import BUNDLED_DRAFT, BUNDLED_TARGET
from tests.support.tiny_gguf import write_model

GREEDY = ("--temperature", "0", "--prompt", "def read_config(path):")
LOCAL = (*GREEDY, "--threads", "1")
"""One thread: two would wait for each other whenever the machine is busy."""

PATIENCE = 60.0
"""Nothing in these tests takes as long, unless it hangs."""

_MARK = "OUTRIDER_TEST_MARK"


class Command:
    """One run of the command; it and its services carry a mark, so that none is overlooked."""

    def __init__(
        self, *arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
    ) -> None:
        self.mark = secrets.token_hex(8)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "outrider.cli", *arguments],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env={
                **{key: value for key, value in os.environ.items() if key != "NO_COLOR"},
                "PYTHONPATH": str(Path(outrider.__file__).parents[1]),
                "TERM": "xterm-256color",
                _MARK: self.mark,
            },
        )

    def services(self) -> dict[str, psutil.Process]:
        """Return the services that live, by role."""
        found = {}
        for process in psutil.process_iter():
            try:
                if process.pid != self.process.pid and process.environ().get(_MARK) == self.mark:
                    words = process.cmdline()
                    role = words[words.index("outrider.cli") + 1]
                    found[role] = process
            except (psutil.Error, ValueError):
                continue
        return found

    def wait_for_text(self) -> None:
        """Return when text streams, so that every service is up and at work."""
        assert self.process.stdout is not None
        assert self.process.stdout.read(len("def read_config(path):") + 1)

    def wait_for_services(self, *roles: str) -> None:
        """Return when services of these roles live."""
        until(lambda: self.services().keys() >= set(roles))

    def finish(self, input: bytes = b"") -> Result:
        """Wait for the end and return what came of it."""
        out, err = self.process.communicate(input, timeout=PATIENCE)
        return Result(self.process.returncode, (out or b"").decode(), (err or b"").decode())


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


def until(condition: Any, seconds: float = PATIENCE) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def outrider_json(*arguments: str) -> Any:
    """Return the JSON object of a generation."""
    return Command("generate", "--json", *arguments).finish().json


@pytest.fixture(scope="module")
def orchestrator() -> Iterator[str]:
    """Three services started by hand; the address to ask."""
    with (
        service("target", "--model", str(BUNDLED_TARGET), "--threads", "1") as target,
        service("draft", "--model", str(BUNDLED_DRAFT), "--threads", "1") as draft,
        service("orchestrator", "--target", target, "--draft", draft) as address,
    ):
        until(lambda: "\nspeculating\n" in status(address).out)
        yield address


@contextmanager
def service(role: str, *options: str) -> Iterator[str]:
    """Run one service and return where it says that it listens."""
    command = Command(role, *options, "--listen", "127.0.0.1:0", stderr=subprocess.DEVNULL)
    try:
        assert command.process.stdout is not None
        line = command.process.stdout.readline().decode()
        yield line.removeprefix(f"outrider {role} listening on ").strip()
    finally:
        command.process.terminate()
        command.finish()


def status(address: str) -> Result:
    return Command("status", "--orchestrator", address).finish()


# --- the text ---


@pytest.fixture(scope="module")
def alone() -> Any:
    """What the target writes without a draft."""
    return outrider_json(*LOCAL, "--no-draft", "-n", "64")


def test_the_target_alone_drafts_nothing(alone: Any):
    assert len(alone["token_ids"]) == 64
    assert set(alone["origins"]) == {"plain"}
    assert alone["statistics"]["acceptance_rate"] is None
    assert alone["models"].keys() == {"target"}


@pytest.mark.parametrize("length", ["1", "4", "8"])
def test_greedy_text_is_the_targets_whatever_the_draft_length(alone: Any, length: str):
    drafted = outrider_json(*LOCAL, "--n-draft", length, "-n", "64")
    assert drafted["token_ids"] == alone["token_ids"]
    assert drafted["text"] == alone["text"]
    assert drafted["origins"].count("drafted") == drafted["statistics"]["accepted_token_count"] > 20
    assert drafted["statistics"]["draft_length"] == int(length)


def test_a_running_orchestrator_gives_the_same_text(alone: Any, orchestrator: str):
    remote = outrider_json(*GREEDY, "--orchestrator", orchestrator, "-n", "64")
    assert remote["token_ids"] == alone["token_ids"]
    assert remote["statistics"]["accepted_token_count"] > 20
    plain = outrider_json(*GREEDY, "--orchestrator", orchestrator, "-n", "64", "--no-draft")
    assert plain["token_ids"] == alone["token_ids"]
    assert plain["statistics"]["drafted_token_count"] == 0


def test_the_textbook_mode_gives_the_same_text(alone: Any, orchestrator: str):
    modes = ("--acceptance", "rejection", "--rows", "logits", "--rollback", "rpc")
    textbook = outrider_json(*GREEDY, "--orchestrator", orchestrator, "-n", "64", *modes)
    assert textbook["token_ids"] == alone["token_ids"]
    assert textbook["acceptance"] == "rejection"


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_exactly_as_many_tokens_as_asked_for(count: int, orchestrator: str):
    found = outrider_json(*GREEDY, "--orchestrator", orchestrator, "-n", str(count))
    assert len(found["token_ids"]) == len(found["origins"]) == count
    assert found["statistics"]["generated_token_count"] == count
    assert len(found["prompt_token_ids"]) == found["statistics"]["prompt_token_count"] > 0
    assert found["finish_reason"] == "token limit"


def test_the_seed_that_is_told_gives_the_text_again(orchestrator: str):
    asked = ("--orchestrator", orchestrator, "-n", "32", "--prompt", "import ")
    first = outrider_json(*asked)
    again = outrider_json(*asked, "--seed", str(first["seed"]))
    assert first["acceptance"] == "shared-noise"
    assert first["token_ids"] == again["token_ids"]


def test_text_ends_before_a_stop_sequence(orchestrator: str):
    asked = (*GREEDY, "--orchestrator", orchestrator, "-n", "64")
    whole = outrider_json(*asked)["text"]
    stopped = outrider_json(*asked, "--stop", "return")
    assert stopped["text"] == whole[: whole.index("return")]
    assert stopped["finish_reason"] == "stop sequence"


def test_a_piped_prompt_is_continued_and_the_output_is_plain_text(orchestrator: str):
    command = Command("generate", "--orchestrator", orchestrator, "-n", "8", "--temperature", "0")
    told = command.finish(b"import os\n")
    assert told.code == 0 and told.err == ""
    assert told.out.startswith("import os")
    assert "\nfinished     token limit\n" in told.out
    assert "\x1b" not in told.out


def test_a_terminal_gets_colours(orchestrator: str):
    ours, theirs = pty.openpty()
    command = Command(
        "generate", *GREEDY, "--orchestrator", orchestrator, "-n", "32", stdout=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # the other end is closed
    os.close(ours)
    assert command.finish().code == 0
    assert b"\x1b[32m" in shown and b"\x1b[2mdef read_config(path):" in shown


def test_the_status_shows_both_models(orchestrator: str):
    lines = status(orchestrator).out.splitlines()
    assert [line.split()[0] for line in lines] == ["orchestrator", "target", "draft", "speculating"]
    assert "stdlib-target-q8_0, 1024 tokens of context" in lines[1]


def test_a_service_that_is_no_orchestrator_is_recognised():
    with service("target", "--model", str(BUNDLED_TARGET)) as target:
        assert status(target).err == (
            f"outrider: what answers at {target} is not an orchestrator\n"
        )


def test_a_draft_with_another_vocabulary_is_refused(tmp_path: Path):
    draft = write_model(tmp_path / "tiny.gguf")
    told = Command("generate", "--draft-model", str(draft)).finish()
    assert (told.code, told.out) == (1, "")
    assert told.err == (
        "outrider: draft refused: vocabulary sizes differ by more than 128: "
        "target 4096, draft 320\n"
    )


# --- nothing is left behind ---


def test_no_service_outlives_the_command():
    command = Command("generate", *LOCAL, "-n", "16")
    command.wait_for_services("target", "draft", "orchestrator")
    assert command.finish().code == 0
    assert command.services() == {}


def test_interrupting_stops_the_services():
    command = Command("generate", *LOCAL, "-n", "900")
    command.wait_for_text()
    command.process.send_signal(signal.SIGINT)
    told = command.finish()
    assert (told.code, told.err) == (130, "")
    assert command.services() == {}


@pytest.mark.parametrize("loaded", [False, True], ids=["while loading", "while generating"])
def test_killing_the_command_stops_the_services(loaded: bool):
    command = Command("generate", *LOCAL, "-n", "900")
    command.wait_for_text() if loaded else command.wait_for_services("target", "draft")
    command.process.kill()
    command.finish()
    # A service that is loading notices when it has loaded.
    until(lambda: not command.services())


def test_a_target_that_dies_is_noticed_at_once():
    command = Command("generate", *LOCAL, "-n", "900")
    command.wait_for_text()
    command.services()["target"].kill()
    told = command.finish()
    assert (told.code, told.err.count("\n")) == (1, 1)
    assert told.err.startswith("outrider: target: ended unexpectedly (SIGKILL)")
    assert command.services() == {}


def test_a_draft_that_dies_costs_no_text():
    command = Command("generate", *LOCAL, "-n", "400")
    command.wait_for_text()
    command.services()["draft"].kill()
    told = command.finish()
    assert told.code == 0
    assert "\ngenerated    400 tokens in " in told.out
    assert told.err == "note: the draft ended early; the rest was generated without it\n"
