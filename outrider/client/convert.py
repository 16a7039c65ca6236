"""Protobuf messages of what an orchestrator answers to values."""

from __future__ import annotations

from outrider import wire
from outrider.client.values import (
    Activity,
    GenerationView,
    JobFailure,
    ModelInfo,
    PeerStatus,
    PlainTimes,
    Polled,
    RefusedDraft,
    Status,
)
from outrider.descriptions import own_source, rollback_kind, translation_level
from outrider.messages import PeerState
from outrider.speculation import MODEL
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.wire_responses import made, read_event


def read_polled(response: messages.PollGenerationResponse) -> Polled:
    """Return what a job has brought."""
    failure = None
    if response.HasField("error"):
        failure = JobFailure(
            response.error.reason, response.error.message, dict(response.error.metadata)
        )
    events = tuple(read_event(each) for each in response.responses)
    return Polled(events, response.next_cursor, response.finished, failure)


def read_status(message: messages.GetStatusResponse) -> Status:
    """Return the state of an orchestrator."""
    peers = tuple(_read_peer(peer) for peer in message.peers)
    refused = tuple(made(RefusedDraft, each) for each in message.refused_drafts)
    return made(
        Status,
        message,
        version=message.service_version,
        peers=peers,
        refused_drafts=refused,
        generations=tuple(made(GenerationView, each) for each in message.generations),
    )


def _read_peer(message: messages.PeerStatus) -> PeerStatus:
    return made(
        PeerStatus,
        message,
        state=wire.PEER_STATES.read(message.state, PeerState.UNSPECIFIED),
        model=_read_model(message.model) if message.HasField("model") else None,
        level=translation_level(message),
        shared_mass=message.translation.shared_mass if message.HasField("translation") else 1.0,
    )


def _read_model(message: common.GetModelResponse) -> ModelInfo:
    return made(
        ModelInfo,
        message,
        name=message.model_name,
        vocabulary_token_count=message.vocabulary.token_count,
        numerics_profile=_PROFILES.get(message.numerics_profile, "unspecified"),
        has_chat_template=bool(message.chat_template),
        identity=message.identity.hex(),
        rollback_capability=rollback_kind(message),
        own_draft=_name_of(message.own_draft),
        plain_costs=made(PlainTimes, message.plain_costs),
        activity=made(Activity, message.activity),
    )


def _name_of(draft: common.OwnDraft) -> str:
    """Return how people know a target's own draft: a head by its kind, a model by its name."""
    source = own_source(draft)
    return draft.model_name if source == MODEL else source


# Values added later are not in here, and read as unspecified.
_PROFILES = {common.NUMERICS_PROFILE_EXACT: "exact", common.NUMERICS_PROFILE_NATIVE: "native"}
