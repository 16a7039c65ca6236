"""`outrider up`: three services on one machine, or some of them elsewhere, until Ctrl-C."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from outrider.client import CallFailed, Client, Request, Started
from outrider_cli.services.pair import BUNDLED_DRAFT, BUNDLED_TARGET
from tests.support.certificates import token_of, write_certificates, write_tokens
from tests.support.commands import GREEDY, Command, outrider_json, run_here, service, status, until
from tests.support.tiny_heads import write_eagle3, write_llama

FAST = ("--threads", "1", "--draft-threads", "1", "--n-draft", "4", "--listen", "127.0.0.1:0")


@contextmanager
def up(*arguments: str) -> Iterator[Command]:
    """Run `outrider up` and leave nothing behind."""
    command = Command("up", *FAST, *arguments)
    try:
        yield command
    finally:
        command.kill_all()


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    write_certificates(folder)
    write_tokens(folder / "tokens.toml")
    certificate = trustme.CA().issue_cert("gpu")
    certificate.private_key_pem.write_to_path(folder / "gpu.key")
    certificate.cert_chain_pems[0].write_to_path(folder / "gpu.pem")
    return folder


def ready(command: Command) -> list[str]:
    """Return what is printed when everything is ready, up to how it ends: last, what to try."""
    assert command.process.stdout is not None
    lines = []
    for line in command.process.stdout:
        if line.startswith(b"stop: "):
            return lines
        lines.append(line.decode().removesuffix("\n"))
    raise AssertionError(f"up ended: {command.finish()}")


def tried(line: str, *more: str) -> Any:
    """Run the command that `up` suggests and return its JSON object."""
    program, *words = shlex.split(line.removeprefix("try:  "))
    assert program == "outrider"
    return run_here(*words, *GREEDY, "--json", "-n", "24", *more).json


def test_a_pair_is_ready_survives_its_draft_and_stops():
    with up() as command:
        lines = ready(command)
        address = lines[0].split()[1]
        assert re.fullmatch(
            r"orchestrator 127\.0\.0\.1:\d+ \(version \S+\), 0 generations in flight", lines[0]
        )
        assert [line.split()[0] for line in lines[1:4]] == ["target", "draft", "speculating"]
        assert " ready " in lines[1] and " ready " in lines[2]
        assert lines[4:] == [f"try:  outrider generate --orchestrator={address}"]

        found = tried(lines[-1])
        assert found["statistics"]["accepted_token_count"] > 5

        # The draft is killed, comes back where it was, and is used again.
        before = command.services()["draft"]
        where = lines[2].split()[1]
        before.kill()
        assert command.process.stderr is not None
        note = command.process.stderr.readline().decode()
        assert note.startswith("note: draft: ended unexpectedly (SIGKILL)")
        assert note.endswith("; starting it again\n")
        until(lambda: "\nspeculating with " in status(address).out)
        assert status(address).out.splitlines()[2].split()[1] == where
        assert command.services()["draft"].pid != before.pid
        again = tried(lines[-1])
        assert again["token_ids"] == found["token_ids"]
        assert again["statistics"]["accepted_token_count"] > 5

        begin = time.monotonic()
        command.process.send_signal(signal.SIGINT)
        told = command.finish()
        assert (told.code, told.out, told.err) == (130, "", "")
        assert time.monotonic() - begin < 10.0
        assert command.services() == {}


def test_texts_in_flight_have_the_grace_that_is_asked_for():
    with up("--no-draft", "--grace", "60") as command:
        address = ready(command)[0].split()[1]
        asked = Request("import os\n", token_limit=900, seed=7, ignore_eos=True)
        with Client(address) as client:
            events = client.generate(asked)
            assert isinstance(next(events), Started)
            next(events)
            command.process.send_signal(signal.SIGINT)
            *_, finished = events
        assert finished.statistics.generated_token_count == 900
        assert command.process.wait(60) in (0, 130)


def test_a_text_ends_at_the_deadline_that_up_sets():
    with up("--no-draft", "--request-timeout", "0.5") as command:
        address = ready(command)[0].split()[1]
        asked = Request("import os\n", token_limit=900, seed=7, ignore_eos=True)
        with Client(address) as client, pytest.raises(CallFailed) as failed:
            list(client.generate(asked))
        assert failed.value.reason == "DEADLINE_PASSED"


def test_chats_may_have_another_template(tmp_path: Path):
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0].content }}!")
    words = ("--no-draft", "--http", "127.0.0.1:0", "--chat-template-file", str(template))
    with up(*words) as command:
        url = ready(command)[-2].split()[1]
        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        answer = httpx.post(f"{url}apply-template", json=chat)
        assert answer.json() == {"prompt": "Hi!"}


@pytest.mark.parametrize(
    "options",
    [
        ("--token-file=right.token", "--tls-cert=gpu.pem", "--tls-key=gpu.key"),
        ("--tokens=tokens.toml",),
        ("--tls-cert=server.pem", "--tls-key=server.key", "--tls-client-ca=ca.pem"),
    ],
)
def test_the_curl_line_works_as_it_is_printed(
    options: tuple[str, ...], secrets: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(secrets)
    with up("--no-draft", "--http", "127.0.0.1:0", *options) as command:
        [line] = [line for line in ready(command) if line.startswith("try: ")]
        typed = line.removeprefix("try:  ").replace("TOKEN", token_of("alice"))
        answer = subprocess.run(["bash", "-c", typed], stdout=subprocess.PIPE, check=True).stdout
    assert json.loads(answer)["choices"][0]["text"]


def test_a_template_that_is_wrong_is_refused_before_anything_starts(tmp_path: Path):
    template = tmp_path / "chat.jinja"
    template.write_text("{% nonsense %}")
    command = Command("up", "--chat-template-file", str(template))
    told = command.finish()
    assert (told.code, told.out) == (1, "")
    assert told.err.startswith("outrider: chat-template-file: ")


def test_killing_up_leaves_no_process_behind():
    with up() as command:
        command.wait_for_services("target", "draft", "orchestrator")
        command.process.kill()
        # A service that is loading notices when it has loaded.
        until(lambda: not command.services())


def test_a_port_in_use_is_one_line_and_leaves_no_process_behind():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = Command("up", "--threads", "1", "--draft-threads", "1", "--listen", address)
        told = command.finish()
    assert (told.code, told.out) == (1, "")
    assert told.err == (
        f"outrider: orchestrator: listen: cannot listen on {address}: "
        "in use, or not an address here\n"
    )
    assert command.services() == {}


def test_a_target_that_dies_ends_up_with_one_line():
    with up("--no-draft") as command:
        ready(command)
        command.services()["target"].kill()
        told = command.finish()
        assert told.code == 1 and told.err.count("\n") == 1
        assert told.err.startswith("outrider: target: ended unexpectedly (SIGKILL)")
        assert command.services() == {}


# --- a target elsewhere ---


def test_a_target_started_by_hand_is_joined(orchestrator: str):
    target = status(orchestrator).out.splitlines()[1].split()[1]
    with up("--target", target) as command:
        lines = ready(command)
        assert lines[1].split()[1] == target
        assert command.services().keys() == {"draft", "orchestrator"}
        found = tried(lines[-1])
        asked = ("--orchestrator", orchestrator, *GREEDY, "-n", "24")
        assert found["token_ids"] == outrider_json(*asked)["token_ids"]
        assert found["statistics"]["accepted_token_count"] > 5


def test_a_target_behind_tls_and_a_token_is_joined(secrets: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(secrets)
    guarded = ("--token-file=right.token", "--tls-cert=server.pem", "--tls-key=server.key")
    model = ("--model", str(BUNDLED_TARGET), "--threads", "1")
    with (
        service("target", *model, *guarded) as target,
        up("--target", target, "--tls-ca=ca.pem", *guarded) as command,
    ):
        lines = ready(command)
        assert lines[3].startswith("speculating with ")
        assert shlex.split(lines[-1])[-2:] == ["--token-file=right.token", "--tls-ca=server.pem"]
        assert tried(lines[-1])["statistics"]["accepted_token_count"] > 5
        address = lines[0].split()[1]
        told = status(address, "--tls-ca=ca.pem", "--token-file=wrong.token")
        assert told.err == (
            f"outrider: the orchestrator at {address} does not accept this token (--token-file)\n"
        )


def test_a_target_behind_tls_is_joined_by_a_plain_orchestrator(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(secrets)
    model = ("--model", str(BUNDLED_TARGET), "--threads", "1")
    tls = ("--tls-cert=server.pem", "--tls-key=server.key")
    with (
        service("target", *model, *tls) as target,
        up("--no-draft", "--target", target, "--tls-ca=ca.pem") as command,
    ):
        lines = ready(command)
        address = lines[0].split()[1]
        assert lines[-1] == f"try:  outrider generate --orchestrator={address}"
        assert set(tried(lines[-1])["origins"]) == {"plain"}


# --- drafts that dial in ---


@contextmanager
def dialling(address: str, *options: str) -> Iterator[Command]:
    """Run a draft that dials an orchestrator."""
    command = Command("draft", f"--model={BUNDLED_DRAFT}", f"--join={address}", *options)
    try:
        yield command
    finally:
        command.kill_all()


def test_a_target_alone_takes_in_the_draft_that_shows_its_token(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(secrets)
    guarded = ("--token-file=right.token", "--tls-cert=server.pem", "--tls-key=server.key")
    asked = ("--tls-ca=ca.pem", "--token-file=right.token")
    with up("--model", str(BUNDLED_TARGET), *guarded) as command:
        lines = ready(command)
        address = lines[0].split()[1]
        assert lines[2].startswith("not speculating: no draft has joined")
        assert command.services().keys() == {"target", "orchestrator"}
        with dialling(address, "--threads=1", "--tls-ca=ca.pem", "--token-file=wrong.token") as bad:
            told = bad.finish()
            assert told.code == 1 and "does not accept this token" in told.err.splitlines()[-1]
        with dialling(address, "--threads=1", *asked) as draft:
            until(lambda: "\nspeculating with " in status(address, *asked).out)
            assert ", joined" in status(address, *asked).out.splitlines()[2]
            found = tried(lines[-1])
            assert found["statistics"]["accepted_token_count"] > 5
            draft.process.send_signal(signal.SIGTERM)
            told = draft.finish()
            assert (told.code, told.out) == (0, "")
        assert tried(lines[-1])["token_ids"] == found["token_ids"]


def test_clients_may_be_asked_for_certificates(secrets: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(secrets)
    tls = ("--tls-cert=server.pem", "--tls-key=server.key", "--tls-client-ca=ca.pem")
    with up("--no-draft", *tls) as command:
        lines = ready(command)
        assert len(tried(lines[-1])["token_ids"]) == 24
        address = lines[0].split()[1]
        asked = ("--tls-ca=ca.pem", "--tls-cert=client.pem", "--tls-key=client.key")
        assert status(address, *asked).code == 0


def test_a_draft_that_dies_before_the_pair_is_ready_is_one_line() -> None:
    # As long as the target does not answer, the pair cannot be ready. It is stopped before there
    # is anyone to ask it; with a thread each, the draft does not wait for its processor.
    with up("--verbose") as command:
        command.wait_for_services("target", "draft", "orchestrator")
        command.services()["target"].suspend()
        assert command.process.stderr is not None
        for line in command.process.stderr:
            assert b'"target ready"' not in line
            if b'"draft ready"' in line:
                break
        command.services()["draft"].kill()
        told = command.finish()
        assert told.code == 1
        assert told.err.endswith("\noutrider: draft: ended unexpectedly (SIGKILL)\n")


def test_a_head_in_a_file_of_its_own_drafts_in_its_targets_process_alone(tmp_path: Path) -> None:
    files = write_llama(tmp_path / "target.gguf"), write_eagle3(tmp_path / "head.gguf")
    with up(f"--model={files[0]}", f"--draft-model={files[1]}") as command:
        lines = ready(command)
        assert any(line.startswith("speculating with eagle3") for line in lines)
        assert sorted(command.services()) == ["orchestrator", "target"]
        assert tried(lines[-1])["statistics"]["accepted_token_count"] > 3
