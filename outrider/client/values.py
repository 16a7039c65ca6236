"""What is asked of an orchestrator, and what it answers, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from outrider.errors import InvalidRequest, OutriderError
from outrider.messages import DraftEnd, FinishReason, Form, LogprobOptions, Origin, PeerState, Rule
from outrider.sampling import SamplingParameters
from outrider.speculation import MODEL, DraftTemplate, Policy, Speculation, Verification

INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class Detail(Enum):
    """How much to report of each round, by the numbers of the protobuf enum RoundDetail."""

    NOTHING = 0
    TOKENS = 1
    CANDIDATES = 2


class RollbackMode(Enum):
    """How the model services learn of a rejection."""

    SPAN = "span"  # with the next message
    RPC = "rpc"  # by a call of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """What a prompt was rendered from; the arguments of `apply_template`."""

    chat: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    continuation: str = ""  # what the prompt has after the rendered chat


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """How to generate. None leaves the choice to the orchestrator.

    Raises InvalidRequest when a value is outside its range.
    """

    token_limit: int = 128  # -1: until the end of the text or a full context
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    logit_bias: tuple[tuple[int | str, float], ...] = ()  # by id or by text; -inf: never
    ignore_eos: bool = False
    finish_character: bool = False  # with up to 3 tokens beyond the limit
    json_schema: str = ""
    logprobs: LogprobOptions | None = None
    seed: int | None = None
    stop_sequences: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    completion_count: int = 1
    beam_count: int = 1  # more: search the most probable completion in place of drawing one
    prompt_logprobs: bool = False  # needs `logprobs`
    parse_special: bool = False  # read control tokens in the prompt's text
    truncate_prompt: bool = False  # drop the middle of a prompt that is too long
    shift: bool = False  # continue when the context is full, without half of it
    keep_token_count: int = 0  # tokens at the start that are never dropped; -1: the prompt
    prediction: str | tuple[int, ...] = ""  # the completion is expected to be much like it
    cache_salt: str = ""  # only generations with the same one share cached prefixes
    ignore_cached_prefix: bool = False  # read the whole prompt anew
    enabled: bool = True  # whether to speculate
    n_max: int | None = None
    n_min: int | None = None
    p_min: float | None = None
    n_parallel: int | None = None
    p_split: float | None = None
    run_ahead: bool | None = None
    policy: Policy | None = None
    acceptance: Rule | None = None
    verification: Verification | None = None  # under the rejection rule
    drafters: frozenset[str] | None = None  # None: the orchestrator's
    draft_template: DraftTemplate | None = None  # in which a draft reads the conversation
    conversation: ChatPrompt | None = None  # what the prompt was rendered from
    rows: Form | None = None
    rollback: RollbackMode | None = None
    detail: Detail = Detail.NOTHING

    def __post_init__(self) -> None:
        _check("n_predict", self.token_limit, -1, INT32_MAX)
        _check("seed", self.seed or 0, -_INT64_MAX - 1, _INT64_MAX)
        Speculation(**self.speculation)
        for stop in self.stop_sequences:
            check_text("stop", stop)

    @property
    def speculation(self) -> dict[str, Any]:
        """What is said about speculating, by the names of Speculation's fields."""
        names = [field.name for field in fields(Speculation)]
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A run of whole characters and the origin of the token that completed it."""

    text: str
    origin: Origin
    control: bool = False  # the text is the name of a control token


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
    """What both models thought about one position; no candidates where none were reported."""

    target: tuple[Candidate, ...]
    draft: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What one round verified, from 1, and what came of it."""

    round: int
    committed_token_count: int
    draft: tuple[Token, ...]
    accepted_token_count: int
    target: Token
    draft_end: DraftEnd
    positions: tuple[Position, ...]
    draft_sources: tuple[str, ...] = ()  # of each draft token; none: all are the draft model's
    # The draft's line that each is of: 0 its first one, else a runner-up line; none: all are 0.
    draft_lines: tuple[int, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Who proposed each draft token."""
        return self.draft_sources or (MODEL,) * len(self.draft)


@dataclass(frozen=True, slots=True)
class Logprob:
    """The natural logarithm of a token's probability, and of the most probable tokens there."""

    value: float
    alternatives: tuple[tuple[Token, float], ...]


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is read."""

    prompt_token_ids: tuple[int, ...]
    seed: int
    acceptance: Rule
    cached_token_count: int = 0  # of the prompt; jobs report it
    truncated: bool = False  # the middle of the prompt was dropped
    context_token_count: int = 0
    model_name: str = ""
    sampling: SamplingParameters = field(default_factory=SamplingParameters)  # that is used
    prompt_logprobs: tuple[Logprob, ...] = ()  # if they were asked for; the first says nothing
    untruncated_token_count: int = 0  # of the prompt, with what was dropped


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round added; text may lag behind the ids.

    `logprobs` has one for every id if they were asked for. `prompt_logprobs`
    continues those of Started where they are too many for one message.
    """

    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    pieces: tuple[TextPiece, ...]
    report: RoundReport | None = None
    logprobs: tuple[Logprob, ...] = ()
    choice: int = 0  # which completion, of several
    prompt_logprobs: tuple[Logprob, ...] = ()
    token_texts: tuple[bytes, ...] = ()  # what each id adds to the text


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics:
    """What became of the draft tokens of one source."""

    name: str  # as among the drafters of a request
    drafted_token_count: int  # verified
    accepted_token_count: int
    decided_token_count: int | None  # proposed, drafted or not, and compared with the text
    agreed_token_count: int | None  # and of them, those that agree: it would have had accepted
    seconds: float | None  # that it took: in the orchestrator, of the model in the draft service

    @property
    def microseconds_per_token(self) -> float | None:
        """What one of its drafted tokens cost; None when none was drafted."""
        if self.seconds is None:
            return None
        return _ratio(1e6 * self.seconds, self.drafted_token_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTime:
    """A model service's own time over a generation."""

    queue_seconds: float = 0.0
    decode_seconds: float = 0.0
    sample_seconds: float = 0.0
    prompt_seconds: float = 0.0  # of the decoding, what the first answer took
    step_count: int | None = None  # decodes that gave rows for it; None where it does not say
    runner_up_seconds: float = 0.0  # of a draft, beside these: decodes for runner-up lines alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerView:
    """What decides about drafts goes by, all of it measured; rates are tokens per second."""

    token_rate: float = 0.0  # over the last rounds
    plain_token_rate: float = 0.0  # expected without a draft
    forecast_token_rate: float = 0.0  # expected with what pays most; 0 where the policy is another
    target_alone_token_rate: float = 0.0  # in llama.cpp, without messages; 0 where not known
    acceptance: float = 0.0  # of a draft token of which nothing is known
    draft_token_seconds: float = 0.0  # the draft's own time for one
    draft_latency_seconds: float = 0.0  # from an order to its first frame, beside that
    round_overhead_seconds: float = 0.0  # of a round, beside the target's decode
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
    target_time: EngineTime
    draft_time: EngineTime
    wire_byte_count: int
    draft_fault_count: int
    target_fault_count: int
    verify_network_seconds: float
    draft_network_seconds: float
    plain_round_seconds: float  # estimated for a round without a draft; 0 when unknown
    controller: ControllerView = ControllerView()
    cached_token_count: int = 0  # of the prompt
    accepted_by_round: tuple[int, ...] = ()  # in each round that carried a draft
    drafted_by_round: tuple[int, ...] = ()  # in the same rounds
    sources: tuple[SourceStatistics, ...] = ()
    accepted_prediction_token_count: int = 0  # of the request's prediction
    rejected_prediction_token_count: int = 0
    forked_miss_count: int = 0  # tokens in which a draft that wrote several lines was wrong
    foreseen_miss_count: int = 0  # of these, those that another of its lines had right

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
    def speedup(self) -> float | None:
        """Speed over the target's alone, as llama.cpp runs it; None when nothing was drafted."""
        if not self.drafted_token_count or self.tokens_per_second is None:
            return None
        return _ratio(self.tokens_per_second, self.controller.target_alone_token_rate)

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
    """The end of a completion."""

    reason: FinishReason
    statistics: Statistics
    stop_sequence: str = ""  # the one that ended it
    truncated: bool = False  # something was dropped from the context
    choice: int = 0


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


Event = Started | Delta | Finished


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
    activity: Activity = Activity()
    own_draft: str = ""  # the name of what drafts in a target's own process; empty: nothing does
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
    controller: ControllerView = ControllerView()  # for a greedy generation that begins now
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


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(name, f"must be in [{low}, {high}], not {value}")


def check_text(name: str, text: str) -> str:
    """Return a text that can be sent. Raises InvalidRequest."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(name, "is not valid Unicode text") from None
    return text
