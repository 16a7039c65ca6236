"""What an orchestrator answers besides what generations bring, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider.errors import OutriderError
from outrider.messages import PeerState
from outrider.response import NOTHING_LEARNED, ControllerView, Event


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job ended without being finished."""

    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Polled:
    """What a job has brought after a cursor; `finished`: these are its last events."""

    events: tuple[Event, ...]
    next_cursor: int
    finished: bool
    failure: JobFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTimes:
    """Milliseconds of the decode of one token with no draft; 0 where not known."""

    alone_milliseconds: float = 0.0  # unpadded, as llama.cpp runs the model by itself
    native_milliseconds: float = 0.0
    exact_milliseconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """How an engine has spent its time; a few seconds old at most."""

    open_seconds: float = 0.0  # in which there was an open stream
    decode_seconds: float = 0.0  # of these, inside decodes
    open_session_count: int = 0  # sessions with an open stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model that a service hosts."""

    name: str
    description: str
    parameter_count: int
    weight_byte_count: int
    context_token_count: int
    session_count: int
    thread_count: int
    numerics_profile: str  # "exact", "native" or "unspecified"
    load_seconds: float
    vocabulary_token_count: int = 0
    has_chat_template: bool = False  # in its file
    identity: str = ""  # 64 hexadecimal digits: equal for equal weights and settings
    plain_costs: PlainTimes = PlainTimes()
    cache_layout: str = ""  # of the KV cache, and what was measured of others; in words
    cpu_kernels: str = ""  # llama.cpp's, by the name of their plug-in, and why; in words
    thread_choice: str = ""  # how many threads, and why; in words, where there was a choice
    activity: Activity = Activity()
    own_draft: str = ""  # what drafts in a target's own process: a model by name, "mtp"; "": none
    rollback_capability: str = "unspecified"  # "full", "window", "snapshots", "checkpoints", "none"
    snapshot_token_count: int = 0  # that are taken back at no cost, with "snapshots"
    checkpoint_milliseconds: float = 0.0  # before a draft; 0 where none is made
    restore_milliseconds: float = 0.0  # after a rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """A model service as the orchestrator sees it; `detail` says what is waited for."""

    role: str
    address: str
    state: PeerState
    detail: str
    model: ModelInfo | None
    round_trip_seconds: float
    joined: bool = False  # a draft that dialled in
    generation_count: int = 0  # that a draft drafts for now, or that are at a target
    tokens_per_second: float = 0.0  # of a draft's own time
    trusted: bool = False  # whether a draft may draft under the rejection rule
    level: str = "native"  # of a draft: "native", or what it translates: "token" or "string"
    shared_mass: float = 1.0  # of the tokens that it shares with the target, on a sample, in [0, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedDraft:
    """The latest draft of a host that was refused; `address` is of its last attempt."""

    address: str
    model_name: str  # empty where it did not come so far
    reason: str
    attempt_count: int
    since_seconds: float  # since the last attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationView:
    """A request whose text is being written."""

    age_seconds: float  # since it began; of a job, since its turn
    prompt_token_count: int
    token_count: int  # so far, of all its completions together
    speculates: bool  # whether drafts may be used


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of an orchestrator; `reason` says why it does not speculate."""

    version: str
    active_generation_count: int
    peers: tuple[PeerStatus, ...]
    speculating: bool
    reason: str
    controller: ControllerView = NOTHING_LEARNED  # for a greedy generation that begins now
    job_count: int = 0
    draining: bool = False
    refused_drafts: tuple[RefusedDraft, ...] = ()  # the latest first
    generated_token_count: int = 0  # since the start
    generations: tuple[GenerationView, ...] = ()  # in flight, the oldest first; at most 64
    text_sources: tuple[str, ...] = ()  # that draft without a draft model

    def peer(self, role: str) -> PeerStatus | None:
        """Return the peer of a role, one that is ready if any is; None where none is configured."""
        peers = [peer for peer in self.peers if peer.role == role]
        ready = [peer for peer in peers if peer.state is PeerState.READY]
        return next(iter(ready or peers), None)


class CallFailed(OutriderError):
    """The orchestrator answered with an error, or not at all.

    `reason` is the one of the answer's ErrorInfo, or else the name of its gRPC status.
    """

    def __init__(self, reason: str, status: str, message: str, metadata: dict[str, str]) -> None:
        super().__init__(message, **metadata)
        self.reason = reason
        self.status = status
