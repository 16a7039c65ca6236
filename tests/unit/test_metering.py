"""What of a status, and of an error, a client may see that is no operator."""

from __future__ import annotations

import pytest

from orchestrator.jobs import _write_error
from orchestrator.metering import for_client
from outrider.access import ANYONE, HIDDEN, Access, Caller, said, without_addresses, work_for
from outrider.errors import InvalidRequest, PeerUnavailable
from outrider.grants import Grant, Right
from outrider.v1 import orchestrator_service_pb2 as messages


def test_a_client_sees_nothing_of_what_others_have_written() -> None:
    status = messages.GetStatusResponse(
        service_version="1",
        active_generation_count=3,
        peers=[messages.PeerStatus(role="target", address="10.0.0.5:1", generation_count=2)],
        speculating=True,
        reason="waits for 10.0.0.5:1",
        job_count=4,
        draining=True,
        text_sources=["suffix"],
        refused_drafts=[messages.RefusedDraft(address="10.0.0.6:1")],
        generated_token_count=5000,
        generations=[messages.GenerationView(token_count=7)],
    )
    assert for_client(status) == messages.GetStatusResponse(
        service_version="1",
        peers=[messages.PeerStatus(role="target", address=HIDDEN)],
        speculating=True,
        reason=f"waits for {HIDDEN}",
        draining=True,
        text_sources=["suffix"],
    )


@pytest.mark.parametrize("address", ["10.0.0.5:1", "plain://targets.svc:50061", "[fd00::5]:443"])
@pytest.mark.parametrize(
    "text", ["waiting for the target at {} (the connection is refused)", "{}", "lost ({}); 12 left"]
)
def test_an_address_is_hidden_and_nothing_else(address: str, text: str) -> None:
    assert without_addresses(text.format(address)) == text.format(HIDDEN)


@pytest.mark.parametrize(
    "text",
    ["it hosts qwen3:8b (0a1b) and not x", "UNAVAILABLE: no", "x: 5 tokens", "--ctx 4096; 1.5 s"],
)
def test_what_is_no_address_stays(text: str) -> None:
    assert without_addresses(text) == text


@pytest.mark.fault(
    "others",
    "A target of `--target plain://HOST:PORT` is away, or any target fails a text",
    before="the status and the errors that a client without the right `operator` gets named it",
    now="they name no address, over gRPC, over HTTP and in a job",
)
def test_an_error_names_addresses_to_operators_alone() -> None:
    away = PeerUnavailable("waiting for the target at 10.0.0.5:1")
    own = InvalidRequest("stop", "10.0.0.5:1 is too long")
    for right, shown in ((Right.CLIENT, HIDDEN), (Right.OPERATOR, "10.0.0.5:1")):
        work_for(Caller(Grant(name="x", digest=b"", rights=frozenset([right]))))
        assert said(away) == f"waiting for the target at {shown}"
        failure = messages.JobError.FromString(_write_error(away))
        assert failure.message == said(away)
        assert said(own) == str(own)
    for caller in (ANYONE, Access().returning(ANYONE.name)):
        work_for(caller)
        assert said(away) == str(away)


def test_a_client_sees_no_address_in_a_detail() -> None:
    detail = "waiting for the target at host:1"
    peer = messages.PeerStatus(address="plain://host:1", detail=detail)
    shown = for_client(messages.GetStatusResponse(peers=[peer], reason=detail))
    assert "host" not in str(shown)
