"""What `up` says can be done next."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from outrider_cli.options import ClientOptions
from outrider_cli.services.next_steps import NextSteps, from_here

TOKEN = ClientOptions(token_file=Path("token"))
PLAIN: dict[str, Any] = {
    **{"address": "127.0.0.1:50060", "http": "", "name": "", "shown": ClientOptions()},
    **{"key_file": None, "tokens": None},
}
CURL = "try:  curl http://127.0.0.1:8080/v1/completions"
ASKED = """-d '{"prompt": "Hello"}'"""


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, ["try:  outrider generate --orchestrator=127.0.0.1:50060"]),
        (
            {"http": "127.0.0.1:8080"},
            ["open: http://127.0.0.1:8080/ (page; OpenAI API at /v1)", f"{CURL} {ASKED}"],
        ),
        (
            {"shown": TOKEN},
            ["try:  outrider generate --orchestrator=127.0.0.1:50060 --token-file=token"],
        ),
        (
            {"tokens": Path("tokens.toml")},
            [
                "try:  outrider generate --orchestrator=127.0.0.1:50060 --token-file=TOKEN",
                "      TOKEN: a file with a token of tokens.toml",
            ],
        ),
        (
            {"name": "gpu", "shown": ClientOptions(tls_ca=Path("gpu.pem"))},
            [
                "try:  outrider generate --orchestrator=gpu:50060 --tls-ca=gpu.pem",
                "      The certificate is for gpu: that name must lead here.",
            ],
        ),
    ],
)
def test_what_is_printed_fits_how_it_was_started(changes: dict[str, Any], lines: list[str]) -> None:
    assert NextSteps(**PLAIN | changes).lines() == [*lines, "stop: Ctrl-C"]


def test_what_listens_everywhere_is_reached_at_this_machine() -> None:
    assert from_here("0.0.0.0:8080") == "127.0.0.1:8080"
    assert from_here("[::]:8080") == "[::1]:8080"
    assert from_here("10.0.0.5:8080") == "10.0.0.5:8080"


def test_the_command_to_try_is_called_as_this_one_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv" / "bin" / "outrider"), "up"])
    first, *_ = NextSteps(**PLAIN).lines()
    assert first.startswith("try:  .venv/bin/outrider generate ")
