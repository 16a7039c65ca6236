"""A draft that dials in ends where it is refused for good, and waits for what may come."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outrider_cli.services.pair import BUNDLED_TARGET
from tests.end_to_end.test_mistakes import OTHER_TOKEN
from tests.support.commands import Command, service, status, until
from tests.support.tiny_gguf import write_model

FIRST, SECOND = "a" * 32, "b" * 32  # tokens
ACCEPTING = ("--no-draft", "--accept-drafts")


@contextmanager
def draft(address: str, *options: str) -> Iterator[Command]:
    """Run a draft that dials an orchestrator, by default one without a model."""
    command = Command("draft", *(options or ("--drafters=lookup",)), f"--join={address}")
    try:
        yield command
    finally:
        command.kill_all()


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with service("target", f"--model={BUNDLED_TARGET}", "--threads=1") as address:
        yield address


@contextmanager
def orchestrator_at(address: str, target: str) -> Iterator[None]:
    """Run an orchestrator at a certain port, which was free a moment ago."""
    command = Command("orchestrator", f"--target={target}", *ACCEPTING, f"--listen={address}")
    try:
        command.wait_for_line(" listening on ")
        yield
    finally:
        command.process.terminate()
        command.finish()


def joined(address: str) -> None:
    until(lambda: ", joined" in status(address).out)


def test_a_model_that_is_refused_ends_its_draft(tmp_path: Path) -> None:
    tiny = write_model(tmp_path / "tiny.gguf")
    other = write_model(tmp_path / "other.gguf", vocabulary=OTHER_TOKEN)
    with (
        service("target", f"--model={tiny}") as target,
        service("orchestrator", f"--target={target}", *ACCEPTING, "--same-vocabulary") as address,
        draft(address, f"--model={other}") as command,
    ):
        told = command.finish()
    assert told.code == 1
    assert told.err.splitlines()[-1] == (
        f"outrider: join: the orchestrator at {address} refuses this draft: "
        "token 310 differs: target 'Ġwritt', draft 'otter'"
    )


def test_an_orchestrator_that_accepts_no_drafts_ends_a_draft(target: str) -> None:
    with (
        service("orchestrator", f"--target={target}", "--no-draft") as address,
        draft(address) as command,
    ):
        told = command.finish()
    assert told.code == 1
    assert "accepts no drafts (--accept-drafts)" in told.err.splitlines()[-1]


def test_a_draft_waits_for_an_orchestrator_and_for_one_that_is_started_again(target: str) -> None:
    with service("orchestrator", f"--target={target}", *ACCEPTING) as address:
        pass  # its port is free again
    with draft(address) as command:
        assert command.process.stderr is not None
        while json.loads(command.process.stderr.readline())["message"] != "not joined":
            pass
        for _ in range(2):
            with orchestrator_at(address, target):
                joined(address)
        command.process.send_signal(signal.SIGTERM)
        assert command.finish().code == 0


def test_a_draft_that_joined_outlives_a_refusal(target: str, tmp_path: Path) -> None:
    """Its token may be changed on one machine before it is on the other."""
    token = tmp_path / "token"
    token.write_text(f"{FIRST}\n")
    shown = tmp_path / "shown"
    shown.write_text(f"{FIRST}\n")
    guarded = (f"--target={target}", "--no-draft", f"--token-file={token}")
    asked = ("--token-file", str(token))
    with (
        service("orchestrator", *guarded) as address,
        draft(address, "--drafters=lookup", f"--token-file={shown}") as command,
    ):
        until(lambda: ", joined" in status(address, *asked).out)
        token.write_text(f"{SECOND}\n")
        assert command.process.stderr is not None
        while b"does not accept this token" not in command.process.stderr.readline():
            pass
        shown.write_text(f"{SECOND}\n")
        until(lambda: ", joined" in status(address, *asked).out)
