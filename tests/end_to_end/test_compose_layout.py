"""What deploy/compose.yaml starts, as processes on this machine: a draft that dials in.

Docker itself, its networks and health checks are for deploy/test_compose.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider_cli.services.pair import BUNDLED_DRAFT, BUNDLED_TARGET
from tests.support.commands import Command, environment, run_here, until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
ON_LOOPBACK = "127.0.0.1:0"


def services(text: str) -> dict[str, Any]:
    """Return the services of a compose file, its variables at their defaults."""
    filled = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    found: dict[str, Any] = yaml.safe_load(filled)["services"]
    return found


def overrides() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the services of deploy/README.md's override files: for HTTP, and a dialled draft."""
    texts = re.findall(r"```yaml\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    http, dialled = map(services, texts)
    return http, dialled


@contextmanager
def started(name: str, service: dict[str, Any], reached: dict[str, str]) -> Iterator[None]:
    """Run what a container would, and add where it listens to `reached`."""
    role, *words = [_here(word, reached) for word in service["command"]]
    said = {key: str(value) for key, value in service["environment"].items()}
    said |= {"OUTRIDER_LISTEN": ON_LOOPBACK, "OUTRIDER_TOKEN_FILE": reached["token"]}
    if "OUTRIDER_MODEL" in said:
        said["OUTRIDER_MODEL"] = str({"target": BUNDLED_TARGET, "draft": BUNDLED_DRAFT}[role])
        said["OUTRIDER_THREADS"] = "1"
    command = Command(role, *words, env=environment(**said))
    try:
        line = command.wait_for_line(" listening on ")
        reached[name] = line.partition(" listening on ")[2].strip()
        yield
    finally:
        command.process.terminate()
        command.finish()


def _here(word: str, reached: dict[str, str]) -> str:
    name, _, port = word.partition(":")
    return reached[name] if port == "50060" else word


@pytest.fixture
def reached(tmp_path: Path) -> dict[str, str]:
    token = tmp_path / "token"
    token.write_text("a token of the tests")
    return {"token": str(token)}


def asked(command: str, reached: dict[str, str], *more: str) -> Any:
    """Return what the command says to a client in the orchestrator's container."""
    place = ("--orchestrator", reached["orchestrator"], "--token-file", reached["token"])
    return run_here(command, *place, *more)


def test_the_draft_of_the_compose_file_dials_in_and_is_used(reached: dict[str, str]) -> None:
    all_of_them = services(COMPOSE.read_text())
    assert all_of_them["draft"]["environment"]["OUTRIDER_LISTEN"].startswith("127.0.0.1:")
    with ExitStack() as stack:
        for name in ("target", "orchestrator", "draft"):
            stack.enter_context(started(name, all_of_them[name], reached))
        until(lambda: ", joined" in asked("status", reached).out)
        words = ("--n-draft", "3", "--n-predict", "40", "--json", "--prompt", "def main():")
        made = json.loads(asked("generate", reached, *words).out)
    assert "drafted" in made["origins"]


def test_nothing_waits_for_the_draft_that_dials_in() -> None:
    all_of_them = services(COMPOSE.read_text())
    assert list(all_of_them["orchestrator"]["depends_on"]) == ["target"]
    assert list(all_of_them["draft"]["depends_on"]) == ["token"]
    assert not any("ports" in all_of_them[name] for name in ("target", "draft"))
    models, front = ["models"], ["models", "front"]
    networks = {name: all_of_them[name]["networks"] for name in ("target", "draft", "orchestrator")}
    assert networks == {"target": models, "draft": models, "orchestrator": front}


def test_the_override_for_http_publishes_the_port_that_is_served() -> None:
    http, _ = overrides()
    changed = http["orchestrator"]
    served = changed["environment"]["OUTRIDER_HTTP"].rpartition(":")[2]
    assert changed["ports"] == [f"127.0.0.1:{served}:{served}"]


def test_the_override_for_a_draft_that_is_dialled_works_too(reached: dict[str, str]) -> None:
    merged = services(COMPOSE.read_text())
    _, dialled = overrides()
    for name, changed in dialled.items():
        merged[name]["command"] = changed["command"]
        merged[name]["environment"] |= changed.get("environment", {})
    with ExitStack() as stack:
        for name in ("target", "draft", "orchestrator"):
            stack.enter_context(started(name, merged[name], reached))
        until(lambda: "\nspeculating with " in asked("status", reached).out)
        assert ", joined" not in asked("status", reached).out
