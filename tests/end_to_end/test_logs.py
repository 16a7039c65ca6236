"""What the services log: one JSON object a line, what they are made of, and no text of users."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider_cli.services.pair import BUNDLED_DRAFT, BUNDLED_TARGET
from tests.support.commands import run_here, service, status, until

CANARY = "canary_in_the_prompt"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The standard error of three services over some generations, by role."""
    folder = tmp_path_factory.mktemp("logs")
    one = ("--threads", "1")
    with (
        log(folder / "target").open("wb") as of_target,
        log(folder / "draft").open("wb") as of_draft,
        log(folder / "orchestrator").open("wb") as of_orchestrator,
        service(
            "target", "--model", str(BUNDLED_TARGET), *one, stderr=of_target.fileno()
        ) as target,
        service("draft", "--model", str(BUNDLED_DRAFT), *one, stderr=of_draft.fileno()) as draft,
        service(
            "orchestrator", "--target", target, "--draft", draft, stderr=of_orchestrator.fileno()
        ) as orchestrator,
    ):
        until(lambda: "\nspeculating with " in status(orchestrator).out)
        ask = ("generate", "--orchestrator", orchestrator, "--n-predict", "20", "--prompt")
        assert run_here(*ask, f"def {CANARY}():").code == 0
        # Errors are where a text slips into a log.
        assert run_here(*ask, f"{CANARY} " * 2000).code == 1
        assert run_here(*ask, CANARY, "--stop", CANARY * 250).code == 1
    return {role: log(folder / role).read_text() for role in ("target", "draft", "orchestrator")}


def log(path: Path) -> Path:
    return path.with_suffix(".log")


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("role", ["target", "draft", "orchestrator"])
def test_every_line_is_an_event(role: str, logs: dict[str, str]) -> None:
    for event in events(logs[role]):
        assert {"time", "level", "where", "message"} <= event.keys()
        assert event["level"] in ("info", "warning", "error")


@pytest.mark.parametrize("role", ["target", "draft", "orchestrator"])
def test_a_service_says_what_it_is_made_of_and_how_it_ends(role: str, logs: dict[str, str]) -> None:
    told = {event["message"]: event for event in events(logs[role])}
    assert {"outrider", "python", "grpc", "pid"} <= told["starting"].keys()
    if role != "orchestrator":
        assert {"llama_cpp_python", "system", "file", "bytes"} <= told["starting"].keys()
    assert {"serving", "draining", "stopped"} <= told.keys()
    if role != "orchestrator":
        assert told["serving"]["threads"] == 1
        promises = told["serving"]["prompt_beside"]
        assert list(promises) == ["1", "2", "4", "8"]
        assert all(each["ms"] > 0 and each["tokens"] >= 8 for each in promises.values())


def test_a_generation_is_one_line_of_counts(logs: dict[str, str]) -> None:
    generated = [e for e in events(logs["orchestrator"]) if e["message"] == "generated"]
    assert [event["tokens"] for event in generated] == [20]
    assert generated[0]["reason"] == "token limit" and generated[0]["rounds"] > 0


@pytest.mark.parametrize("role", ["target", "draft", "orchestrator"])
def test_nothing_that_users_wrote_is_logged(role: str, logs: dict[str, str]) -> None:
    assert logs[role] and CANARY not in logs[role]
