import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from outrider.v1 import common_pb2 as _common_pb2
from outrider.v1 import draft_service_pb2 as _draft_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenOrigin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_ORIGIN_UNSPECIFIED: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_DRAFTED: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_CORRECTED: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_BONUS: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_PLAIN: _ClassVar[TokenOrigin]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_END_OF_TEXT: _ClassVar[FinishReason]
    FINISH_REASON_TOKEN_LIMIT: _ClassVar[FinishReason]
    FINISH_REASON_STOP_SEQUENCE: _ClassVar[FinishReason]
    FINISH_REASON_CONTEXT_FULL: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]

class RoundDetail(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUND_DETAIL_UNSPECIFIED: _ClassVar[RoundDetail]
    ROUND_DETAIL_TOKENS: _ClassVar[RoundDetail]
    ROUND_DETAIL_CANDIDATES: _ClassVar[RoundDetail]

class DraftEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_END_UNSPECIFIED: _ClassVar[DraftEnd]
    DRAFT_END_LENGTH: _ClassVar[DraftEnd]
    DRAFT_END_END_OF_TEXT: _ClassVar[DraftEnd]
    DRAFT_END_TOKEN_LIMIT: _ClassVar[DraftEnd]
    DRAFT_END_CONTEXT: _ClassVar[DraftEnd]
    DRAFT_END_SHORT: _ClassVar[DraftEnd]
    DRAFT_END_LATE: _ClassVar[DraftEnd]
    DRAFT_END_PAUSED: _ClassVar[DraftEnd]
    DRAFT_END_ABSENT: _ClassVar[DraftEnd]
    DRAFT_END_OFF: _ClassVar[DraftEnd]
    DRAFT_END_PROMPT: _ClassVar[DraftEnd]
    DRAFT_END_DOUBT: _ClassVar[DraftEnd]
    DRAFT_END_ENOUGH: _ClassVar[DraftEnd]

class DraftPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_POLICY_UNSPECIFIED: _ClassVar[DraftPolicy]
    DRAFT_POLICY_MEASURED: _ClassVar[DraftPolicy]
    DRAFT_POLICY_FIXED: _ClassVar[DraftPolicy]
    DRAFT_POLICY_CLASSIC: _ClassVar[DraftPolicy]

class DraftTemplate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_TEMPLATE_UNSPECIFIED: _ClassVar[DraftTemplate]
    DRAFT_TEMPLATE_TARGET: _ClassVar[DraftTemplate]
    DRAFT_TEMPLATE_OWN: _ClassVar[DraftTemplate]

class Verification(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERIFICATION_UNSPECIFIED: _ClassVar[Verification]
    VERIFICATION_BLOCK: _ClassVar[Verification]
    VERIFICATION_TOKEN: _ClassVar[Verification]

class RollbackMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLLBACK_MODE_UNSPECIFIED: _ClassVar[RollbackMode]
    ROLLBACK_MODE_SPAN: _ClassVar[RollbackMode]
    ROLLBACK_MODE_RPC: _ClassVar[RollbackMode]

class PeerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PEER_STATE_UNSPECIFIED: _ClassVar[PeerState]
    PEER_STATE_CONNECTING: _ClassVar[PeerState]
    PEER_STATE_LOADING: _ClassVar[PeerState]
    PEER_STATE_READY: _ClassVar[PeerState]
    PEER_STATE_REFUSED: _ClassVar[PeerState]
    PEER_STATE_LOST: _ClassVar[PeerState]
TOKEN_ORIGIN_UNSPECIFIED: TokenOrigin
TOKEN_ORIGIN_DRAFTED: TokenOrigin
TOKEN_ORIGIN_CORRECTED: TokenOrigin
TOKEN_ORIGIN_BONUS: TokenOrigin
TOKEN_ORIGIN_PLAIN: TokenOrigin
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_END_OF_TEXT: FinishReason
FINISH_REASON_TOKEN_LIMIT: FinishReason
FINISH_REASON_STOP_SEQUENCE: FinishReason
FINISH_REASON_CONTEXT_FULL: FinishReason
FINISH_REASON_CANCELLED: FinishReason
ROUND_DETAIL_UNSPECIFIED: RoundDetail
ROUND_DETAIL_TOKENS: RoundDetail
ROUND_DETAIL_CANDIDATES: RoundDetail
DRAFT_END_UNSPECIFIED: DraftEnd
DRAFT_END_LENGTH: DraftEnd
DRAFT_END_END_OF_TEXT: DraftEnd
DRAFT_END_TOKEN_LIMIT: DraftEnd
DRAFT_END_CONTEXT: DraftEnd
DRAFT_END_SHORT: DraftEnd
DRAFT_END_LATE: DraftEnd
DRAFT_END_PAUSED: DraftEnd
DRAFT_END_ABSENT: DraftEnd
DRAFT_END_OFF: DraftEnd
DRAFT_END_PROMPT: DraftEnd
DRAFT_END_DOUBT: DraftEnd
DRAFT_END_ENOUGH: DraftEnd
DRAFT_POLICY_UNSPECIFIED: DraftPolicy
DRAFT_POLICY_MEASURED: DraftPolicy
DRAFT_POLICY_FIXED: DraftPolicy
DRAFT_POLICY_CLASSIC: DraftPolicy
DRAFT_TEMPLATE_UNSPECIFIED: DraftTemplate
DRAFT_TEMPLATE_TARGET: DraftTemplate
DRAFT_TEMPLATE_OWN: DraftTemplate
VERIFICATION_UNSPECIFIED: Verification
VERIFICATION_BLOCK: Verification
VERIFICATION_TOKEN: Verification
ROLLBACK_MODE_UNSPECIFIED: RollbackMode
ROLLBACK_MODE_SPAN: RollbackMode
ROLLBACK_MODE_RPC: RollbackMode
PEER_STATE_UNSPECIFIED: PeerState
PEER_STATE_CONNECTING: PeerState
PEER_STATE_LOADING: PeerState
PEER_STATE_READY: PeerState
PEER_STATE_REFUSED: PeerState
PEER_STATE_LOST: PeerState

class GenerateRequest(_message.Message):
    __slots__ = ("prompt_text", "prompt_tokens", "prompt_parts", "sampling", "seed", "token_limit", "stop_sequences", "speculative", "round_detail", "json_schema", "ignore_eos", "logprobs", "stop_token_ids", "completion_count", "prompt_logprobs", "parse_special", "overflow", "beam_count", "control_token_names", "running_statistics", "model", "cache_salt", "finish_character", "prediction", "ignore_cached_prefix", "conversation")
    PROMPT_TEXT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_PARTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LIMIT_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_FIELD_NUMBER: _ClassVar[int]
    ROUND_DETAIL_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_COUNT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PARSE_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    BEAM_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTROL_TOKEN_NAMES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_STATISTICS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    FINISH_CHARACTER_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    IGNORE_CACHED_PREFIX_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    prompt_text: str
    prompt_tokens: PromptTokens
    prompt_parts: PromptParts
    sampling: _common_pb2.SamplingParameters
    seed: int
    token_limit: int
    stop_sequences: _containers.RepeatedScalarFieldContainer[str]
    speculative: SpeculativeOptions
    round_detail: RoundDetail
    json_schema: str
    ignore_eos: bool
    logprobs: _common_pb2.LogprobOptions
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    completion_count: int
    prompt_logprobs: bool
    parse_special: bool
    overflow: ContextOverflow
    beam_count: int
    control_token_names: _containers.RepeatedScalarFieldContainer[str]
    running_statistics: bool
    model: _common_pb2.ModelReference
    cache_salt: str
    finish_character: bool
    prediction: Prediction
    ignore_cached_prefix: bool
    conversation: Conversation
    def __init__(self, prompt_text: _Optional[str] = ..., prompt_tokens: _Optional[_Union[PromptTokens, _Mapping]] = ..., prompt_parts: _Optional[_Union[PromptParts, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParameters, _Mapping]] = ..., seed: _Optional[int] = ..., token_limit: _Optional[int] = ..., stop_sequences: _Optional[_Iterable[str]] = ..., speculative: _Optional[_Union[SpeculativeOptions, _Mapping]] = ..., round_detail: _Optional[_Union[RoundDetail, str]] = ..., json_schema: _Optional[str] = ..., ignore_eos: bool = ..., logprobs: _Optional[_Union[_common_pb2.LogprobOptions, _Mapping]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., completion_count: _Optional[int] = ..., prompt_logprobs: bool = ..., parse_special: bool = ..., overflow: _Optional[_Union[ContextOverflow, _Mapping]] = ..., beam_count: _Optional[int] = ..., control_token_names: _Optional[_Iterable[str]] = ..., running_statistics: bool = ..., model: _Optional[_Union[_common_pb2.ModelReference, _Mapping]] = ..., cache_salt: _Optional[str] = ..., finish_character: bool = ..., prediction: _Optional[_Union[Prediction, _Mapping]] = ..., ignore_cached_prefix: bool = ..., conversation: _Optional[_Union[Conversation, _Mapping]] = ...) -> None: ...

class Conversation(_message.Message):
    __slots__ = ("chat", "continuation")
    CHAT_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    chat: ApplyTemplateRequest
    continuation: str
    def __init__(self, chat: _Optional[_Union[ApplyTemplateRequest, _Mapping]] = ..., continuation: _Optional[str] = ...) -> None: ...

class ContextOverflow(_message.Message):
    __slots__ = ("truncate_prompt", "shift", "keep_token_count")
    TRUNCATE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    KEEP_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    truncate_prompt: bool
    shift: bool
    keep_token_count: int
    def __init__(self, truncate_prompt: bool = ..., shift: bool = ..., keep_token_count: _Optional[int] = ...) -> None: ...

class PromptParts(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[PromptPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[PromptPart, _Mapping]]] = ...) -> None: ...

class PromptPart(_message.Message):
    __slots__ = ("text", "token_id")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_id: int
    def __init__(self, text: _Optional[str] = ..., token_id: _Optional[int] = ...) -> None: ...

class PromptTokens(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SpeculativeOptions(_message.Message):
    __slots__ = ("enabled", "n_max", "acceptance", "row_form", "rollback", "n_min", "p_min", "run_ahead", "policy", "verification", "drafters", "n_parallel", "p_split", "draft_template")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    N_MAX_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    ROW_FORM_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    N_MIN_FIELD_NUMBER: _ClassVar[int]
    P_MIN_FIELD_NUMBER: _ClassVar[int]
    RUN_AHEAD_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    N_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    P_SPLIT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    n_max: int
    acceptance: _common_pb2.AcceptanceRule
    row_form: _common_pb2.RowForm
    rollback: RollbackMode
    n_min: int
    p_min: float
    run_ahead: bool
    policy: DraftPolicy
    verification: Verification
    drafters: _containers.RepeatedScalarFieldContainer[str]
    n_parallel: int
    p_split: float
    draft_template: DraftTemplate
    def __init__(self, enabled: bool = ..., n_max: _Optional[int] = ..., acceptance: _Optional[_Union[_common_pb2.AcceptanceRule, str]] = ..., row_form: _Optional[_Union[_common_pb2.RowForm, str]] = ..., rollback: _Optional[_Union[RollbackMode, str]] = ..., n_min: _Optional[int] = ..., p_min: _Optional[float] = ..., run_ahead: bool = ..., policy: _Optional[_Union[DraftPolicy, str]] = ..., verification: _Optional[_Union[Verification, str]] = ..., drafters: _Optional[_Iterable[str]] = ..., n_parallel: _Optional[int] = ..., p_split: _Optional[float] = ..., draft_template: _Optional[_Union[DraftTemplate, str]] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("text", "tokens")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: PromptTokens
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Union[PromptTokens, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "delta", "finished", "choice_index")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    started: GenerationStarted
    delta: GenerationDelta
    finished: GenerationFinished
    choice_index: int
    def __init__(self, started: _Optional[_Union[GenerationStarted, _Mapping]] = ..., delta: _Optional[_Union[GenerationDelta, _Mapping]] = ..., finished: _Optional[_Union[GenerationFinished, _Mapping]] = ..., choice_index: _Optional[int] = ...) -> None: ...

class GenerationStarted(_message.Message):
    __slots__ = ("prompt_token_ids", "seed", "acceptance_rule", "cached_token_count", "truncated", "context_token_count", "prompt_logprobs", "sampling", "token_limit", "model_name", "untruncated_token_count", "model_identity")
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RULE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    UNTRUNCATED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MODEL_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    seed: int
    acceptance_rule: _common_pb2.AcceptanceRule
    cached_token_count: int
    truncated: bool
    context_token_count: int
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    sampling: _common_pb2.SamplingParameters
    token_limit: int
    model_name: str
    untruncated_token_count: int
    model_identity: bytes
    def __init__(self, prompt_token_ids: _Optional[_Iterable[int]] = ..., seed: _Optional[int] = ..., acceptance_rule: _Optional[_Union[_common_pb2.AcceptanceRule, str]] = ..., cached_token_count: _Optional[int] = ..., truncated: bool = ..., context_token_count: _Optional[int] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParameters, _Mapping]] = ..., token_limit: _Optional[int] = ..., model_name: _Optional[str] = ..., untruncated_token_count: _Optional[int] = ..., model_identity: _Optional[bytes] = ...) -> None: ...

class GenerationDelta(_message.Message):
    __slots__ = ("token_ids", "origins", "token_texts", "pieces", "report", "logprobs", "statistics", "prompt_logprobs")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TEXTS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    origins: _containers.RepeatedScalarFieldContainer[TokenOrigin]
    token_texts: _containers.RepeatedScalarFieldContainer[bytes]
    pieces: _containers.RepeatedCompositeFieldContainer[TextPiece]
    report: RoundReport
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    statistics: GenerationStatistics
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., origins: _Optional[_Iterable[_Union[TokenOrigin, str]]] = ..., token_texts: _Optional[_Iterable[bytes]] = ..., pieces: _Optional[_Iterable[_Union[TextPiece, _Mapping]]] = ..., report: _Optional[_Union[RoundReport, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., statistics: _Optional[_Union[GenerationStatistics, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("log_probability", "alternatives")
    LOG_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    log_probability: float
    alternatives: _containers.RepeatedCompositeFieldContainer[Alternative]
    def __init__(self, log_probability: _Optional[float] = ..., alternatives: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ...) -> None: ...

class Alternative(_message.Message):
    __slots__ = ("token", "log_probability")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    token: Token
    log_probability: float
    def __init__(self, token: _Optional[_Union[Token, _Mapping]] = ..., log_probability: _Optional[float] = ...) -> None: ...

class RoundReport(_message.Message):
    __slots__ = ("round", "committed_token_count", "draft", "accepted_token_count", "target", "draft_end", "positions", "draft_sources", "draft_lines")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFT_END_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SOURCES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LINES_FIELD_NUMBER: _ClassVar[int]
    round: int
    committed_token_count: int
    draft: _containers.RepeatedCompositeFieldContainer[Token]
    accepted_token_count: int
    target: Token
    draft_end: DraftEnd
    positions: _containers.RepeatedCompositeFieldContainer[PositionCandidates]
    draft_sources: _containers.RepeatedScalarFieldContainer[str]
    draft_lines: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, round: _Optional[int] = ..., committed_token_count: _Optional[int] = ..., draft: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., accepted_token_count: _Optional[int] = ..., target: _Optional[_Union[Token, _Mapping]] = ..., draft_end: _Optional[_Union[DraftEnd, str]] = ..., positions: _Optional[_Iterable[_Union[PositionCandidates, _Mapping]]] = ..., draft_sources: _Optional[_Iterable[str]] = ..., draft_lines: _Optional[_Iterable[int]] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("token_id", "text")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: bytes
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[bytes] = ...) -> None: ...

class PositionCandidates(_message.Message):
    __slots__ = ("target", "draft")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    target: _containers.RepeatedCompositeFieldContainer[Candidate]
    draft: _containers.RepeatedCompositeFieldContainer[Candidate]
    def __init__(self, target: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., draft: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("token", "probability")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    token: Token
    probability: float
    def __init__(self, token: _Optional[_Union[Token, _Mapping]] = ..., probability: _Optional[float] = ...) -> None: ...

class TextPiece(_message.Message):
    __slots__ = ("text", "origin", "control")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    text: str
    origin: TokenOrigin
    control: bool
    def __init__(self, text: _Optional[str] = ..., origin: _Optional[_Union[TokenOrigin, str]] = ..., control: bool = ...) -> None: ...

class GenerationFinished(_message.Message):
    __slots__ = ("reason", "statistics", "stop_sequence", "truncated")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    statistics: GenerationStatistics
    stop_sequence: str
    truncated: bool
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., statistics: _Optional[_Union[GenerationStatistics, _Mapping]] = ..., stop_sequence: _Optional[str] = ..., truncated: bool = ...) -> None: ...

class GenerationStatistics(_message.Message):
    __slots__ = ("prompt_token_count", "generated_token_count", "drafted_token_count", "accepted_token_count", "round_count", "drafted_round_count", "draft_length", "accepted_by_position", "drafted_by_position", "first_token_duration", "prompt_duration", "generation_duration", "draft_wait_duration", "verify_wait_duration", "target_time", "draft_time", "wire_byte_count", "draft_fault_count", "target_fault_count", "verify_network_duration", "draft_network_duration", "plain_round_duration", "controller", "cached_token_count", "accepted_by_round", "drafted_by_round", "sources", "accepted_prediction_token_count", "rejected_prediction_token_count", "forked_miss_count", "foreseen_miss_count")
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROUND_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_ROUND_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_DURATION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_DURATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_DURATION_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WAIT_DURATION_FIELD_NUMBER: _ClassVar[int]
    VERIFY_WAIT_DURATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_TIME_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TIME_FIELD_NUMBER: _ClassVar[int]
    WIRE_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FAULT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FAULT_COUNT_FIELD_NUMBER: _ClassVar[int]
    VERIFY_NETWORK_DURATION_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NETWORK_DURATION_FIELD_NUMBER: _ClassVar[int]
    PLAIN_ROUND_DURATION_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_ROUND_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_BY_ROUND_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PREDICTION_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    REJECTED_PREDICTION_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    FORKED_MISS_COUNT_FIELD_NUMBER: _ClassVar[int]
    FORESEEN_MISS_COUNT_FIELD_NUMBER: _ClassVar[int]
    prompt_token_count: int
    generated_token_count: int
    drafted_token_count: int
    accepted_token_count: int
    round_count: int
    drafted_round_count: int
    draft_length: int
    accepted_by_position: _containers.RepeatedScalarFieldContainer[int]
    drafted_by_position: _containers.RepeatedScalarFieldContainer[int]
    first_token_duration: _duration_pb2.Duration
    prompt_duration: _duration_pb2.Duration
    generation_duration: _duration_pb2.Duration
    draft_wait_duration: _duration_pb2.Duration
    verify_wait_duration: _duration_pb2.Duration
    target_time: EngineTime
    draft_time: EngineTime
    wire_byte_count: int
    draft_fault_count: int
    target_fault_count: int
    verify_network_duration: _duration_pb2.Duration
    draft_network_duration: _duration_pb2.Duration
    plain_round_duration: _duration_pb2.Duration
    controller: ControllerView
    cached_token_count: int
    accepted_by_round: _containers.RepeatedScalarFieldContainer[int]
    drafted_by_round: _containers.RepeatedScalarFieldContainer[int]
    sources: _containers.RepeatedCompositeFieldContainer[SourceStatistics]
    accepted_prediction_token_count: int
    rejected_prediction_token_count: int
    forked_miss_count: int
    foreseen_miss_count: int
    def __init__(self, prompt_token_count: _Optional[int] = ..., generated_token_count: _Optional[int] = ..., drafted_token_count: _Optional[int] = ..., accepted_token_count: _Optional[int] = ..., round_count: _Optional[int] = ..., drafted_round_count: _Optional[int] = ..., draft_length: _Optional[int] = ..., accepted_by_position: _Optional[_Iterable[int]] = ..., drafted_by_position: _Optional[_Iterable[int]] = ..., first_token_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prompt_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., generation_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., draft_wait_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., verify_wait_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., target_time: _Optional[_Union[EngineTime, _Mapping]] = ..., draft_time: _Optional[_Union[EngineTime, _Mapping]] = ..., wire_byte_count: _Optional[int] = ..., draft_fault_count: _Optional[int] = ..., target_fault_count: _Optional[int] = ..., verify_network_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., draft_network_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., plain_round_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., controller: _Optional[_Union[ControllerView, _Mapping]] = ..., cached_token_count: _Optional[int] = ..., accepted_by_round: _Optional[_Iterable[int]] = ..., drafted_by_round: _Optional[_Iterable[int]] = ..., sources: _Optional[_Iterable[_Union[SourceStatistics, _Mapping]]] = ..., accepted_prediction_token_count: _Optional[int] = ..., rejected_prediction_token_count: _Optional[int] = ..., forked_miss_count: _Optional[int] = ..., foreseen_miss_count: _Optional[int] = ...) -> None: ...

class SourceStatistics(_message.Message):
    __slots__ = ("name", "drafted_token_count", "accepted_token_count", "decided_token_count", "agreed_token_count", "duration")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DECIDED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    AGREED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    drafted_token_count: int
    accepted_token_count: int
    decided_token_count: int
    agreed_token_count: int
    duration: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., drafted_token_count: _Optional[int] = ..., accepted_token_count: _Optional[int] = ..., decided_token_count: _Optional[int] = ..., agreed_token_count: _Optional[int] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ControllerView(_message.Message):
    __slots__ = ("token_rate", "plain_token_rate", "acceptance", "draft_token_duration", "draft_latency_duration", "round_overhead_duration", "run_ahead", "decode_costs", "takes_turns", "target_alone_token_rate", "forecast_token_rate", "head")
    TOKEN_RATE_FIELD_NUMBER: _ClassVar[int]
    PLAIN_TOKEN_RATE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_DURATION_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LATENCY_DURATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_OVERHEAD_DURATION_FIELD_NUMBER: _ClassVar[int]
    RUN_AHEAD_FIELD_NUMBER: _ClassVar[int]
    DECODE_COSTS_FIELD_NUMBER: _ClassVar[int]
    TAKES_TURNS_FIELD_NUMBER: _ClassVar[int]
    TARGET_ALONE_TOKEN_RATE_FIELD_NUMBER: _ClassVar[int]
    FORECAST_TOKEN_RATE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    token_rate: float
    plain_token_rate: float
    acceptance: float
    draft_token_duration: _duration_pb2.Duration
    draft_latency_duration: _duration_pb2.Duration
    round_overhead_duration: _duration_pb2.Duration
    run_ahead: bool
    decode_costs: _containers.RepeatedCompositeFieldContainer[_common_pb2.DecodeCost]
    takes_turns: bool
    target_alone_token_rate: float
    forecast_token_rate: float
    head: bool
    def __init__(self, token_rate: _Optional[float] = ..., plain_token_rate: _Optional[float] = ..., acceptance: _Optional[float] = ..., draft_token_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., draft_latency_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., round_overhead_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., run_ahead: bool = ..., decode_costs: _Optional[_Iterable[_Union[_common_pb2.DecodeCost, _Mapping]]] = ..., takes_turns: bool = ..., target_alone_token_rate: _Optional[float] = ..., forecast_token_rate: _Optional[float] = ..., head: bool = ...) -> None: ...

class EngineTime(_message.Message):
    __slots__ = ("queue_duration", "decode_duration", "sample_duration", "prompt_duration", "step_count", "runner_up_duration")
    QUEUE_DURATION_FIELD_NUMBER: _ClassVar[int]
    DECODE_DURATION_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_DURATION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_DURATION_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    RUNNER_UP_DURATION_FIELD_NUMBER: _ClassVar[int]
    queue_duration: _duration_pb2.Duration
    decode_duration: _duration_pb2.Duration
    sample_duration: _duration_pb2.Duration
    prompt_duration: _duration_pb2.Duration
    step_count: int
    runner_up_duration: _duration_pb2.Duration
    def __init__(self, queue_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decode_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., sample_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prompt_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., step_count: _Optional[int] = ..., runner_up_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SubmitGenerationRequest(_message.Message):
    __slots__ = ("request", "idempotency_key")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    request: GenerateRequest
    idempotency_key: str
    def __init__(self, request: _Optional[_Union[GenerateRequest, _Mapping]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class SubmitGenerationResponse(_message.Message):
    __slots__ = ("job_id", "started")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    started: GenerationStarted
    def __init__(self, job_id: _Optional[str] = ..., started: _Optional[_Union[GenerationStarted, _Mapping]] = ...) -> None: ...

class PollGenerationRequest(_message.Message):
    __slots__ = ("job_id", "cursor", "wait_duration")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    WAIT_DURATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    cursor: int
    wait_duration: _duration_pb2.Duration
    def __init__(self, job_id: _Optional[str] = ..., cursor: _Optional[int] = ..., wait_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PollGenerationResponse(_message.Message):
    __slots__ = ("responses", "next_cursor", "finished", "error")
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[GenerateResponse]
    next_cursor: int
    finished: bool
    error: JobError
    def __init__(self, responses: _Optional[_Iterable[_Union[GenerateResponse, _Mapping]]] = ..., next_cursor: _Optional[int] = ..., finished: bool = ..., error: _Optional[_Union[JobError, _Mapping]] = ...) -> None: ...

class JobError(_message.Message):
    __slots__ = ("reason", "message", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CancelGenerationRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class CancelGenerationResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokenizeTextRequest(_message.Message):
    __slots__ = ("text", "add_special", "parse_special", "model")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    PARSE_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    text: str
    add_special: bool
    parse_special: bool
    model: _common_pb2.ModelReference
    def __init__(self, text: _Optional[str] = ..., add_special: bool = ..., parse_special: bool = ..., model: _Optional[_Union[_common_pb2.ModelReference, _Mapping]] = ...) -> None: ...

class TokenizeTextResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("token_ids", "model", "show_special")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SHOW_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    model: _common_pb2.ModelReference
    show_special: bool
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., model: _Optional[_Union[_common_pb2.ModelReference, _Mapping]] = ..., show_special: bool = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class ApplyTemplateRequest(_message.Message):
    __slots__ = ("messages_json", "tools_json", "variables_json", "add_generation_prompt")
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_JSON_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    messages_json: str
    tools_json: str
    variables_json: str
    add_generation_prompt: bool
    def __init__(self, messages_json: _Optional[str] = ..., tools_json: _Optional[str] = ..., variables_json: _Optional[str] = ..., add_generation_prompt: bool = ...) -> None: ...

class ApplyTemplateResponse(_message.Message):
    __slots__ = ("prompt", "model")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    model: _common_pb2.ModelReference
    def __init__(self, prompt: _Optional[str] = ..., model: _Optional[_Union[_common_pb2.ModelReference, _Mapping]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("inputs", "model", "truncate")
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[PromptParts]
    model: _common_pb2.ModelReference
    truncate: bool
    def __init__(self, inputs: _Optional[_Iterable[_Union[PromptParts, _Mapping]]] = ..., model: _Optional[_Union[_common_pb2.ModelReference, _Mapping]] = ..., truncate: bool = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("embeddings", "model")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedCompositeFieldContainer[Embedding]
    model: _common_pb2.ModelReference
    def __init__(self, embeddings: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ..., model: _Optional[_Union[_common_pb2.ModelReference, _Mapping]] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("values", "token_count", "norm")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    token_count: int
    norm: float
    def __init__(self, values: _Optional[_Iterable[float]] = ..., token_count: _Optional[int] = ..., norm: _Optional[float] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("service_version", "active_generation_count", "peers", "speculating", "reason", "controller", "job_count", "draining", "refused_drafts", "generated_token_count", "generations", "text_sources")
    SERVICE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_GENERATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    SPECULATING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    JOB_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REFUSED_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    TEXT_SOURCES_FIELD_NUMBER: _ClassVar[int]
    service_version: str
    active_generation_count: int
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    speculating: bool
    reason: str
    controller: ControllerView
    job_count: int
    draining: bool
    refused_drafts: _containers.RepeatedCompositeFieldContainer[RefusedDraft]
    generated_token_count: int
    generations: _containers.RepeatedCompositeFieldContainer[GenerationView]
    text_sources: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, service_version: _Optional[str] = ..., active_generation_count: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., speculating: bool = ..., reason: _Optional[str] = ..., controller: _Optional[_Union[ControllerView, _Mapping]] = ..., job_count: _Optional[int] = ..., draining: bool = ..., refused_drafts: _Optional[_Iterable[_Union[RefusedDraft, _Mapping]]] = ..., generated_token_count: _Optional[int] = ..., generations: _Optional[_Iterable[_Union[GenerationView, _Mapping]]] = ..., text_sources: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerationView(_message.Message):
    __slots__ = ("age_duration", "prompt_token_count", "token_count", "speculates")
    AGE_DURATION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SPECULATES_FIELD_NUMBER: _ClassVar[int]
    age_duration: _duration_pb2.Duration
    prompt_token_count: int
    token_count: int
    speculates: bool
    def __init__(self, age_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prompt_token_count: _Optional[int] = ..., token_count: _Optional[int] = ..., speculates: bool = ...) -> None: ...

class RefusedDraft(_message.Message):
    __slots__ = ("address", "model_name", "reason", "attempt_count", "since_duration")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SINCE_DURATION_FIELD_NUMBER: _ClassVar[int]
    address: str
    model_name: str
    reason: str
    attempt_count: int
    since_duration: _duration_pb2.Duration
    def __init__(self, address: _Optional[str] = ..., model_name: _Optional[str] = ..., reason: _Optional[str] = ..., attempt_count: _Optional[int] = ..., since_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("role", "address", "state", "detail", "model", "round_trip_duration", "joined", "generation_count", "tokens_per_second", "trusted", "translation")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_DURATION_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_FIELD_NUMBER: _ClassVar[int]
    TRANSLATION_FIELD_NUMBER: _ClassVar[int]
    role: str
    address: str
    state: PeerState
    detail: str
    model: _common_pb2.GetModelResponse
    round_trip_duration: _duration_pb2.Duration
    joined: bool
    generation_count: int
    tokens_per_second: float
    trusted: bool
    translation: _draft_service_pb2.LearnVocabularyResponse
    def __init__(self, role: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[_Union[PeerState, str]] = ..., detail: _Optional[str] = ..., model: _Optional[_Union[_common_pb2.GetModelResponse, _Mapping]] = ..., round_trip_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., joined: bool = ..., generation_count: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., trusted: bool = ..., translation: _Optional[_Union[_draft_service_pb2.LearnVocabularyResponse, _Mapping]] = ...) -> None: ...
