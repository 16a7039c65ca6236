"""A typed client of the orchestrator: values in, values out, one exception."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from outrider import wire
from outrider.errors import InvalidRequest, OutriderError
from outrider.messages import Form, Rule
from outrider.rpc.channel import explain_refusal, open_channel
from outrider.rpc.security import ANONYMOUS, ClientSecurity, call_metadata
from outrider.sampling import SamplingParameters
from outrider.speculation import Policy, Speculation
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub

_STATUS_SECONDS = 5.0
_NO_ANSWER = {
    grpc.StatusCode.CANCELLED: "the orchestrator at {address} is stopping",
    grpc.StatusCode.UNAVAILABLE: "no orchestrator answers at {address}",
    grpc.StatusCode.DEADLINE_EXCEEDED: "the orchestrator at {address} did not answer in time",
    grpc.StatusCode.UNIMPLEMENTED: "what answers at {address} is not an orchestrator",
}
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

# --- what is asked ---


class Detail(Enum):
    """How much to tell about each round."""

    NOTHING = 0
    TOKENS = 1
    CANDIDATES = 2


class Rollback(Enum):
    """How the model services learn of a rejection."""

    SPAN = "span"  # with the next message
    RPC = "rpc"  # by a call of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """How to generate. None leaves the choice to the orchestrator.

    Raises InvalidRequest when a value is outside its range.
    """

    token_limit: int = 128  # -1: until the end of the text or a full context
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    seed: int | None = None
    stop_sequences: tuple[str, ...] = ()
    enabled: bool = True  # whether to speculate
    n_max: int | None = None
    n_min: int | None = None
    p_min: float | None = None
    run_ahead: bool | None = None
    policy: Policy | None = None
    acceptance: Rule | None = None
    rows: Form | None = None
    rollback: Rollback | None = None
    detail: Detail = Detail.NOTHING

    def __post_init__(self) -> None:
        _check("n_predict", self.token_limit, -1, _INT32_MAX)
        _check("seed", self.seed or 0, -_INT64_MAX - 1, _INT64_MAX)
        Speculation(**self.speculation)
        for stop in self.stop_sequences:
            _check_text("stop", stop)

    @property
    def speculation(self) -> dict[str, Any]:
        """What is said about speculating, by the names of Speculation's fields."""
        names = ("enabled", "n_max", "n_min", "p_min", "run_ahead", "policy")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


# --- what is told ---


class Origin(Enum):
    """Where a token came from."""

    UNSPECIFIED = "unspecified"
    DRAFTED = "drafted"  # proposed by the draft and accepted
    CORRECTED = "corrected"  # the target's, in place of a rejected one
    BONUS = "bonus"  # the target's, after a fully accepted draft
    PLAIN = "plain"  # the target's, in a round without a draft


class FinishReason(Enum):
    """Why a generation ended."""

    UNSPECIFIED = "unspecified"
    END_OF_TEXT = "end of text"
    TOKEN_LIMIT = "token limit"
    STOP_SEQUENCE = "stop sequence"
    CONTEXT_FULL = "context full"


class DraftEnd(Enum):
    """Why a round's draft is as long as it is."""

    UNSPECIFIED = "unspecified"
    LENGTH = "it has the length that was asked for"
    END_OF_TEXT = "it ends the text"
    TOKEN_LIMIT = "the token limit leaves no more"
    CONTEXT = "a context leaves no more"
    SHORT = "no more was there when the target was free"
    LATE = "the draft is past its deadline"
    PAUSED = "plain rounds follow a draft that failed or was dropped"
    ABSENT = "there is no draft service"
    OFF = "none is wanted"
    PROMPT = "the first round is the prompt's"
    DOUBT = "the draft was not sure enough of the next token"
    ENOUGH = "more would not have paid"


class PeerState(Enum):
    """Where a model service stands."""

    UNSPECIFIED = "unspecified"
    CONNECTING = "connecting"
    LOADING = "loading"
    READY = "ready"
    REFUSED = "refused"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of whole characters and the origin of the token that completed it."""

    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Token:
    """A token and what it adds to a text; that need not be whole characters."""

    token_id: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token and its probability."""

    token: Token
    probability: float


@dataclass(frozen=True, slots=True)
class Position:
    """What both models thought about one position; no candidates where none were told."""

    target: tuple[Candidate, ...]
    draft: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one round verified, from 1, and what came of it."""

    round: int
    committed_token_count: int
    draft: tuple[Token, ...]
    accepted_token_count: int
    target: Token
    draft_end: DraftEnd
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is read."""

    prompt_token_ids: tuple[int, ...]
    seed: int
    acceptance: Rule


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round added; text may lag behind the ids."""

    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    pieces: tuple[Piece, ...]
    report: Report | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeconds:
    """A model service's own time over a generation."""

    queue_seconds: float = 0.0
    decode_seconds: float = 0.0
    sample_seconds: float = 0.0
    prompt_seconds: float = 0.0  # of the decoding, what the first answer took


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerView:
    """What decides about drafts goes by, all of it measured; rates are tokens per second."""

    token_rate: float = 0.0  # over the last rounds
    plain_token_rate: float = 0.0  # expected without a draft
    acceptance: float = 0.0  # of a draft token of which nothing is known
    draft_token_seconds: float = 0.0  # the draft's own time for one
    draft_latency_seconds: float = 0.0  # from an order to its first frame, beside that
    round_overhead_seconds: float = 0.0  # of a round, beside the target's decode
    slowdown: float = 0.0  # of a decode while the draft is busy
    run_ahead: bool = False
    takes_turns: bool = False  # draft and target share cores and decode one after the other
    decode_costs: tuple[tuple[int, float], ...] = ()  # rows and seconds, as of now


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a generation took: the fields of GenerationStatistics, durations in seconds."""

    prompt_token_count: int
    generated_token_count: int
    drafted_token_count: int
    accepted_token_count: int
    round_count: int
    drafted_round_count: int
    draft_length: int
    accepted_by_position: tuple[int, ...]
    drafted_by_position: tuple[int, ...]
    first_token_seconds: float
    prompt_seconds: float
    generation_seconds: float
    draft_wait_seconds: float
    verify_wait_seconds: float
    target_time: EngineSeconds
    draft_time: EngineSeconds
    wire_byte_count: int
    draft_fault_count: int
    target_fault_count: int
    verify_network_seconds: float
    draft_network_seconds: float
    plain_round_seconds: float  # estimated for a round without a draft; 0 when unknown
    controller: ControllerView = ControllerView()

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted per drafted token; None when nothing was drafted."""
        return _ratio(self.accepted_token_count, self.drafted_token_count)

    @property
    def tokens_per_round(self) -> float | None:
        """Generated tokens per round of the target; None without a round."""
        return _ratio(self.generated_token_count, self.round_count)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first, per second since it; None when there are none."""
        return _ratio(max(0, self.generated_token_count - 1), self.generation_seconds)

    @property
    def prompt_tokens_per_second(self) -> float | None:
        """Tokens of the prompt per second of its round; None without a round."""
        return _ratio(self.prompt_token_count, self.prompt_seconds)

    @property
    def estimated_speedup(self) -> float | None:
        """Generation against the target alone, estimated; None when nothing was drafted."""
        if not self.drafted_token_count or not self.plain_round_seconds:
            return None
        plain = self.plain_round_seconds * (self.generated_token_count - 1)
        return _ratio(plain, self.generation_seconds)

    @property
    def network_seconds(self) -> float:
        """Of the waiting, what the services' own times do not explain."""
        return self.verify_network_seconds + self.draft_network_seconds

    @property
    def total_seconds(self) -> float:
        """From the request to the last token."""
        return self.first_token_seconds + self.generation_seconds

    @property
    def other_seconds(self) -> float:
        """Neither waiting for the draft nor for the target."""
        return max(0.0, self.total_seconds - self.draft_wait_seconds - self.verify_wait_seconds)


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a generation."""

    reason: FinishReason
    statistics: Statistics


Event = Started | Delta | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model that a service hosts."""

    name: str
    description: str
    parameter_count: int
    weight_byte_count: int
    context_token_count: int
    session_count: int
    thread_count: int
    numerics_profile: str  # "exact", "law" or "unspecified"
    load_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A model service as the orchestrator sees it; `detail` says what is waited for."""

    role: str
    address: str
    state: PeerState
    detail: str
    model: Model | None
    round_trip_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of an orchestrator; `reason` says why it does not speculate."""

    version: str
    active_generation_count: int
    peers: tuple[Peer, ...]
    speculating: bool
    reason: str
    controller: ControllerView = ControllerView()  # for a greedy generation that begins now

    def peer(self, role: str) -> Peer | None:
        """Return the peer of a role, if one is configured."""
        return next((peer for peer in self.peers if peer.role == role), None)


class CallFailed(OutriderError):
    """The orchestrator answered with an error, or not at all.

    `reason` is the one of the answer's ErrorInfo, or else the name of its gRPC status.
    """

    def __init__(self, reason: str, status: str, message: str, metadata: dict[str, str]) -> None:
        super().__init__(message, **metadata)
        self.reason = reason
        self.status = status


# --- the client ---


class OutriderClient:
    """A client of one orchestrator. Make it inside a running event loop, and close it.

    Raises InvalidConfig for an address, a token or a certificate that cannot be used.
    """

    def __init__(self, address: str, security: ClientSecurity = ANONYMOUS) -> None:
        self.address = address
        self._security = security
        self._metadata = call_metadata(security)
        self._channel = open_channel(address, security)
        self._stub: Any = OrchestratorServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel; generations under way end."""
        await self._channel.close()

    async def generate(
        self,
        prompt: str | Sequence[int],
        options: GenerateOptions | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield one Started, any number of Delta and one Finished.

        `prompt` is text, or token ids of the target's vocabulary. Closing
        this iterator stops the work at both models. Raises CallFailed, or
        InvalidRequest for what need not be sent to be refused.
        """
        request = write_request(prompt, options or GenerateOptions())
        call = self._stub.Generate(request, timeout=timeout_seconds, metadata=self._metadata)
        try:
            async for response in call:
                yield read_event(response)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None
        finally:
            call.cancel()

    async def status(self) -> Status:
        """Return the state of the orchestrator. Raises CallFailed."""
        request = messages.GetStatusRequest()
        try:
            response = await self._stub.GetStatus(
                request, timeout=_STATUS_SECONDS, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None
        return _read_status(response)

    def _failure(self, error: grpc.aio.AioRpcError) -> CallFailed:
        status = error.code().name
        refusal = explain_refusal(error, "orchestrator", self.address, self._security)
        if refusal is not None:
            return CallFailed(status, status, str(refusal), {})
        info = _error_info(error)
        if info is not None:
            return CallFailed(info.reason, status, error.details() or "", dict(info.metadata))
        message = _NO_ANSWER.get(error.code(), f"{status}: {error.details() or 'no details'}")
        return CallFailed(status, status, message.format(address=self.address), {})


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo | None:
    """Return the ErrorInfo of a rich status, if the error has one."""
    rich = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    found = rich is not None and any(detail.Unpack(info) for detail in rich.details)
    return info if found else None


# --- from options to a request ---


def write_request(prompt: str | Sequence[int], options: GenerateOptions) -> Any:
    """Return the message that asks for a generation."""
    request = messages.GenerateRequest(
        sampling=wire.write_sampling(options.sampling),
        seed=options.seed,
        token_limit=options.token_limit,
        stop_sequences=options.stop_sequences,
        speculative=_write_speculative(options),
        round_detail=_DETAILS[options.detail],
    )
    if isinstance(prompt, str):
        request.prompt_text = _check_text("prompt", prompt)
    else:
        ids = wire.read_ids("prompt", prompt, _INT32_MAX)
        request.prompt_tokens.token_ids.extend(ids)
    return request


def _write_speculative(options: GenerateOptions) -> messages.SpeculativeOptions:
    known = options.speculation
    policy = known.pop("policy", None)
    message = messages.SpeculativeOptions(**known)
    if policy is not None:
        message.policy = wire.write_policy(policy)
    if options.acceptance is not None:
        message.acceptance = wire.write_rule(options.acceptance)
    if options.rows is not None:
        message.row_form = wire.write_form(options.rows)
    if options.rollback is not None:
        message.rollback = (
            messages.ROLLBACK_MODE_RPC
            if options.rollback is Rollback.RPC
            else messages.ROLLBACK_MODE_SPAN
        )
    return message


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(name, f"must be in [{low}, {high}], not {value}")


def _check_text(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(name, "is not valid Unicode text") from None
    return text


# --- from responses to values ---


def read_event(response: messages.GenerateResponse) -> Event:
    """Return the event of one message of a generation."""
    if response.HasField("started"):
        return _read_started(response.started)
    if response.HasField("finished"):
        return _read_finished(response.finished)
    return _read_delta(response.delta)


def _read_started(message: messages.GenerationStarted) -> Started:
    return Started(
        tuple(message.prompt_token_ids), message.seed, wire.read_rule(message.acceptance_rule)
    )


def _read_delta(message: messages.GenerationDelta) -> Delta:
    return Delta(
        tuple(message.token_ids),
        tuple(_read_origin(value) for value in message.origins),
        tuple(Piece(piece.text, _read_origin(piece.origin)) for piece in message.pieces),
        _read_report(message.report) if message.HasField("report") else None,
    )


def _read_report(message: messages.RoundReport) -> Report:
    return Report(
        round=message.round,
        committed_token_count=message.committed_token_count,
        draft=tuple(_read_token(token) for token in message.draft),
        accepted_token_count=message.accepted_token_count,
        target=_read_token(message.target),
        draft_end=_DRAFT_ENDS.get(message.draft_end, DraftEnd.UNSPECIFIED),
        positions=tuple(
            Position(_read_candidates(position.target), _read_candidates(position.draft))
            for position in message.positions
        ),
    )


def _read_token(message: messages.Token) -> Token:
    return Token(message.token_id, message.text)


def _read_candidates(listed: Iterable[messages.Candidate]) -> tuple[Candidate, ...]:
    return tuple(Candidate(_read_token(one.token), one.probability) for one in listed)


def _read_finished(message: messages.GenerationFinished) -> Finished:
    reason = _REASONS.get(message.reason, FinishReason.UNSPECIFIED)
    return Finished(reason, Statistics(**_read_fields(message.statistics)))


def _read_origin(value: int) -> Origin:
    return _ORIGINS.get(value, Origin.UNSPECIFIED)


def _read_status(message: messages.GetStatusResponse) -> Status:
    return Status(
        version=message.service_version,
        active_generation_count=message.active_generation_count,
        peers=tuple(_read_peer(peer) for peer in message.peers),
        speculating=message.speculating,
        reason=message.reason,
        controller=ControllerView(**_read_fields(message.controller)),
    )


def _read_peer(message: messages.PeerStatus) -> Peer:
    return Peer(
        role=message.role,
        address=message.address,
        state=_STATES.get(message.state, PeerState.UNSPECIFIED),
        detail=message.detail,
        model=_read_model(message.model) if message.HasField("model") else None,
        round_trip_seconds=message.round_trip_duration.ToNanoseconds() / 1e9,
    )


def _read_model(message: common.GetModelResponse) -> Model:
    return Model(
        name=message.model_name,
        description=message.description,
        parameter_count=message.parameter_count,
        weight_byte_count=message.weight_byte_count,
        context_token_count=message.context_token_count,
        session_count=message.session_count,
        thread_count=message.thread_count,
        numerics_profile=_PROFILES.get(message.numerics_profile, "unspecified"),
        load_seconds=message.load_duration.ToNanoseconds() / 1e9,
    )


def _read_fields(message: Message) -> dict[str, Any]:
    """Return every field under its name; `x_duration` becomes `x_seconds`."""
    fields: dict[str, Any] = {}
    for name in (descriptor.name for descriptor in message.DESCRIPTOR.fields):
        value = getattr(message, name)
        if isinstance(value, Duration):
            fields[name.removesuffix("duration") + "seconds"] = value.ToNanoseconds() / 1e9
        elif isinstance(value, messages.EngineTime):
            fields[name] = EngineSeconds(**_read_fields(value))
        elif isinstance(value, messages.ControllerView):
            fields[name] = ControllerView(**_read_fields(value))
        elif name == "decode_costs":
            fields[name] = tuple((cost.row_count, cost.milliseconds / 1e3) for cost in value)
        else:
            fields[name] = value if isinstance(value, int | float) else tuple(value)
    return fields


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


Member = TypeVar("Member", bound=Enum)


def _members(ours: type[Member], theirs: Any, prefix: str) -> dict[int, Member]:
    return {theirs.Value(prefix + member.name): member for member in ours}


# Values added later are not in here, and read as unspecified.
_ORIGINS = _members(Origin, messages.TokenOrigin, "TOKEN_ORIGIN_")
_REASONS = _members(FinishReason, messages.FinishReason, "FINISH_REASON_")
_STATES = _members(PeerState, messages.PeerState, "PEER_STATE_")
_DRAFT_ENDS = _members(DraftEnd, messages.DraftEnd, "DRAFT_END_")
_DETAILS = {
    Detail.NOTHING: messages.ROUND_DETAIL_UNSPECIFIED,
    Detail.TOKENS: messages.ROUND_DETAIL_TOKENS,
    Detail.CANDIDATES: messages.ROUND_DETAIL_CANDIDATES,
}
_PROFILES = {common.NUMERICS_PROFILE_EXACT: "exact", common.NUMERICS_PROFILE_LAW: "law"}
