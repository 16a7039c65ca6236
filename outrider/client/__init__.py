"""A typed client of the orchestrator: values in, values out, one exception.

`OutriderClient` is for asyncio, `Client` for everyone else.
"""

from outrider.client.asynchronous import OutriderClient
from outrider.client.sync import Client
from outrider.client.values import (
    Activity,
    CallFailed,
    GenerationView,
    JobFailure,
    ModelInfo,
    PeerStatus,
    PlainTimes,
    Polled,
    RefusedDraft,
    Status,
)
from outrider.messages import DraftEnd, FinishReason, Origin, PeerState
from outrider.request import Conversation, Detail, Request, RollbackMode
from outrider.response import (
    Candidate,
    ControllerView,
    Delta,
    EngineTime,
    Event,
    Finished,
    Logprob,
    Position,
    RoundReport,
    SourceStatistics,
    Started,
    Statistics,
    TextPiece,
    Token,
)
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
    "EngineTime",
    "Event",
    "FinishReason",
    "Finished",
    "GenerationView",
    "JobFailure",
    "Logprob",
    "ModelInfo",
    "Origin",
    "OutriderClient",
    "PeerState",
    "PeerStatus",
    "PlainTimes",
    "Polled",
    "Position",
    "RefusedDraft",
    "Request",
    "RollbackMode",
    "RoundReport",
    "SourceStatistics",
    "Started",
    "Statistics",
    "Status",
    "TextPiece",
    "Token",
]
