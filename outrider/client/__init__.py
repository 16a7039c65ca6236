"""A typed client of the orchestrator: values in, values out, one exception.

`OutriderClient` is for asyncio, `Client` for everyone else.
"""

from outrider.client.calls import OutriderClient
from outrider.client.convert import read_event, write_request
from outrider.client.sync import Client
from outrider.client.values import (
    Activity,
    CallFailed,
    Candidate,
    ControllerView,
    Conversation,
    Delta,
    Detail,
    EngineSeconds,
    Event,
    Finished,
    GenerateOptions,
    JobFailure,
    Logprob,
    Model,
    Peer,
    Piece,
    PlainCosts,
    Polled,
    Position,
    RefusedDraft,
    Report,
    Rollback,
    SourceStatistics,
    Started,
    Statistics,
    Status,
    Token,
)
from outrider.messages import DraftEnd, FinishReason, Origin, PeerState
from outrider.speculation import DraftTemplate

__all__ = [
    "Activity",
    "CallFailed",
    "Candidate",
    "Client",
    "ControllerView",
    "Conversation",
    "Delta",
    "Detail",
    "DraftEnd",
    "DraftTemplate",
    "EngineSeconds",
    "Event",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "JobFailure",
    "Logprob",
    "Model",
    "Origin",
    "OutriderClient",
    "Peer",
    "PeerState",
    "Piece",
    "PlainCosts",
    "Polled",
    "Position",
    "RefusedDraft",
    "Report",
    "Rollback",
    "SourceStatistics",
    "Started",
    "Statistics",
    "Status",
    "Token",
    "read_event",
    "write_request",
]
