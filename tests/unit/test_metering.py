"""What of a status a client may see that is no operator."""

from __future__ import annotations

from orchestrator.metering import HIDDEN, for_client
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
