"""The containers' health check presents what `outrider health` would."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.rpc.probe import main, read_security
from outrider.rpc.security import ANONYMOUS, ClientSecurity


def test_the_environment_names_the_token_and_the_certificates() -> None:
    environment = {"OUTRIDER_TOKEN_FILE": "/t", "OUTRIDER_HEALTH_TLS_CA": "/ca", "OTHER": "x"}
    assert read_security(environment) == ClientSecurity(token_file=Path("/t"), tls_ca=Path("/ca"))
    assert read_security({"OUTRIDER_TOKEN_FILE": ""}) == ANONYMOUS


def test_the_commands_own_name_comes_first() -> None:
    environment = {"OUTRIDER_HEALTH_TOKEN_FILE": "/mine", "OUTRIDER_TOKEN_FILE": "/all"}
    assert read_security(environment) == ClientSecurity(token_file=Path("/mine"))


def test_a_service_that_is_not_there_is_one_line_and_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUTRIDER_TOKEN_FILE", raising=False)
    assert main("127.0.0.1:1") == 1
    assert capsys.readouterr().out == "no service answers at 127.0.0.1:1\n"


def test_other_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("127.0.0.1:1", "--life") == 2
    assert capsys.readouterr().out.startswith("usage: ")
