import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HeadKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEAD_KIND_UNSPECIFIED: _ClassVar[HeadKind]
    HEAD_KIND_MTP: _ClassVar[HeadKind]
    HEAD_KIND_EAGLE3: _ClassVar[HeadKind]
    HEAD_KIND_DFLASH: _ClassVar[HeadKind]
    HEAD_KIND_DSPARK: _ClassVar[HeadKind]

class Sampler(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SAMPLER_UNSPECIFIED: _ClassVar[Sampler]
    SAMPLER_PENALTIES: _ClassVar[Sampler]
    SAMPLER_DRY: _ClassVar[Sampler]
    SAMPLER_TOP_N_SIGMA: _ClassVar[Sampler]
    SAMPLER_TOP_K: _ClassVar[Sampler]
    SAMPLER_TFS_Z: _ClassVar[Sampler]
    SAMPLER_TYPICAL_P: _ClassVar[Sampler]
    SAMPLER_TOP_P: _ClassVar[Sampler]
    SAMPLER_MIN_P: _ClassVar[Sampler]
    SAMPLER_XTC: _ClassVar[Sampler]
    SAMPLER_TEMPERATURE: _ClassVar[Sampler]

class AcceptanceRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPTANCE_RULE_UNSPECIFIED: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_MATCH: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_SHARED_NOISE: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_REJECTION: _ClassVar[AcceptanceRule]

class RowForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_FORM_UNSPECIFIED: _ClassVar[RowForm]
    ROW_FORM_SAMPLED: _ClassVar[RowForm]
    ROW_FORM_DISTRIBUTIONS: _ClassVar[RowForm]
    ROW_FORM_LOGITS: _ClassVar[RowForm]

class RollbackCapability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLLBACK_CAPABILITY_UNSPECIFIED: _ClassVar[RollbackCapability]
    ROLLBACK_CAPABILITY_FULL: _ClassVar[RollbackCapability]
    ROLLBACK_CAPABILITY_NONE: _ClassVar[RollbackCapability]
    ROLLBACK_CAPABILITY_WINDOW: _ClassVar[RollbackCapability]
    ROLLBACK_CAPABILITY_SNAPSHOTS: _ClassVar[RollbackCapability]
    ROLLBACK_CAPABILITY_CHECKPOINTS: _ClassVar[RollbackCapability]

class NumericsProfile(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NUMERICS_PROFILE_UNSPECIFIED: _ClassVar[NumericsProfile]
    NUMERICS_PROFILE_EXACT: _ClassVar[NumericsProfile]
    NUMERICS_PROFILE_NATIVE: _ClassVar[NumericsProfile]
HEAD_KIND_UNSPECIFIED: HeadKind
HEAD_KIND_MTP: HeadKind
HEAD_KIND_EAGLE3: HeadKind
HEAD_KIND_DFLASH: HeadKind
HEAD_KIND_DSPARK: HeadKind
SAMPLER_UNSPECIFIED: Sampler
SAMPLER_PENALTIES: Sampler
SAMPLER_DRY: Sampler
SAMPLER_TOP_N_SIGMA: Sampler
SAMPLER_TOP_K: Sampler
SAMPLER_TFS_Z: Sampler
SAMPLER_TYPICAL_P: Sampler
SAMPLER_TOP_P: Sampler
SAMPLER_MIN_P: Sampler
SAMPLER_XTC: Sampler
SAMPLER_TEMPERATURE: Sampler
ACCEPTANCE_RULE_UNSPECIFIED: AcceptanceRule
ACCEPTANCE_RULE_MATCH: AcceptanceRule
ACCEPTANCE_RULE_SHARED_NOISE: AcceptanceRule
ACCEPTANCE_RULE_REJECTION: AcceptanceRule
ROW_FORM_UNSPECIFIED: RowForm
ROW_FORM_SAMPLED: RowForm
ROW_FORM_DISTRIBUTIONS: RowForm
ROW_FORM_LOGITS: RowForm
ROLLBACK_CAPABILITY_UNSPECIFIED: RollbackCapability
ROLLBACK_CAPABILITY_FULL: RollbackCapability
ROLLBACK_CAPABILITY_NONE: RollbackCapability
ROLLBACK_CAPABILITY_WINDOW: RollbackCapability
ROLLBACK_CAPABILITY_SNAPSHOTS: RollbackCapability
ROLLBACK_CAPABILITY_CHECKPOINTS: RollbackCapability
NUMERICS_PROFILE_UNSPECIFIED: NumericsProfile
NUMERICS_PROFILE_EXACT: NumericsProfile
NUMERICS_PROFILE_NATIVE: NumericsProfile

class TokenSpan(_message.Message):
    __slots__ = ("position", "token_ids")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SamplingParameters(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "dynatemp_range", "dynatemp_exponent", "typical_p", "top_n_sigma", "tfs_z", "xtc_probability", "xtc_threshold", "min_keep", "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty", "penalize_newline", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta", "logit_biases", "grammar", "samplers")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    DYNATEMP_RANGE_FIELD_NUMBER: _ClassVar[int]
    DYNATEMP_EXPONENT_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    TOP_N_SIGMA_FIELD_NUMBER: _ClassVar[int]
    TFS_Z_FIELD_NUMBER: _ClassVar[int]
    XTC_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    XTC_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MIN_KEEP_FIELD_NUMBER: _ClassVar[int]
    REPEAT_LAST_N_FIELD_NUMBER: _ClassVar[int]
    REPEAT_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PENALIZE_NEWLINE_FIELD_NUMBER: _ClassVar[int]
    DRY_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    DRY_BASE_FIELD_NUMBER: _ClassVar[int]
    DRY_ALLOWED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DRY_PENALTY_LAST_N_FIELD_NUMBER: _ClassVar[int]
    DRY_SEQUENCE_BREAKERS_FIELD_NUMBER: _ClassVar[int]
    MIROSTAT_FIELD_NUMBER: _ClassVar[int]
    MIROSTAT_TAU_FIELD_NUMBER: _ClassVar[int]
    MIROSTAT_ETA_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIASES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    SAMPLERS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    dynatemp_range: float
    dynatemp_exponent: float
    typical_p: float
    top_n_sigma: float
    tfs_z: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalize_newline: bool
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: SequenceBreakers
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    logit_biases: _containers.RepeatedCompositeFieldContainer[LogitBias]
    grammar: str
    samplers: _containers.RepeatedScalarFieldContainer[Sampler]
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., dynatemp_range: _Optional[float] = ..., dynatemp_exponent: _Optional[float] = ..., typical_p: _Optional[float] = ..., top_n_sigma: _Optional[float] = ..., tfs_z: _Optional[float] = ..., xtc_probability: _Optional[float] = ..., xtc_threshold: _Optional[float] = ..., min_keep: _Optional[int] = ..., repeat_last_n: _Optional[int] = ..., repeat_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., penalize_newline: bool = ..., dry_multiplier: _Optional[float] = ..., dry_base: _Optional[float] = ..., dry_allowed_length: _Optional[int] = ..., dry_penalty_last_n: _Optional[int] = ..., dry_sequence_breakers: _Optional[_Union[SequenceBreakers, _Mapping]] = ..., mirostat: _Optional[int] = ..., mirostat_tau: _Optional[float] = ..., mirostat_eta: _Optional[float] = ..., logit_biases: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., grammar: _Optional[str] = ..., samplers: _Optional[_Iterable[_Union[Sampler, str]]] = ...) -> None: ...

class SequenceBreakers(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token_id", "text", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: str
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[str] = ..., bias: _Optional[float] = ...) -> None: ...

class ModelReference(_message.Message):
    __slots__ = ("identity", "name")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    identity: bytes
    name: str
    def __init__(self, identity: _Optional[bytes] = ..., name: _Optional[str] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("session_id", "attempt", "acceptance_rule", "sampling", "seed", "choice_index", "prompt_token_count", "token_limit", "vocabulary_token_count", "candidate_count", "draft_min_probability", "draft_min_ratio", "logprobs", "dropped", "model", "cache_salt", "end_token_ids", "vocabulary_key", "own_prompt")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RULE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LIMIT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MIN_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MIN_RATIO_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_KEY_FIELD_NUMBER: _ClassVar[int]
    OWN_PROMPT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    attempt: int
    acceptance_rule: AcceptanceRule
    sampling: SamplingParameters
    seed: int
    choice_index: int
    prompt_token_count: int
    token_limit: int
    vocabulary_token_count: int
    candidate_count: int
    draft_min_probability: float
    draft_min_ratio: float
    logprobs: LogprobOptions
    dropped: TokenSpan
    model: ModelReference
    cache_salt: bytes
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    vocabulary_key: bytes
    own_prompt: str
    def __init__(self, session_id: _Optional[bytes] = ..., attempt: _Optional[int] = ..., acceptance_rule: _Optional[_Union[AcceptanceRule, str]] = ..., sampling: _Optional[_Union[SamplingParameters, _Mapping]] = ..., seed: _Optional[int] = ..., choice_index: _Optional[int] = ..., prompt_token_count: _Optional[int] = ..., token_limit: _Optional[int] = ..., vocabulary_token_count: _Optional[int] = ..., candidate_count: _Optional[int] = ..., draft_min_probability: _Optional[float] = ..., draft_min_ratio: _Optional[float] = ..., logprobs: _Optional[_Union[LogprobOptions, _Mapping]] = ..., dropped: _Optional[_Union[TokenSpan, _Mapping]] = ..., model: _Optional[_Union[ModelReference, _Mapping]] = ..., cache_salt: _Optional[bytes] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., vocabulary_key: _Optional[bytes] = ..., own_prompt: _Optional[str] = ...) -> None: ...

class LogprobOptions(_message.Message):
    __slots__ = ("top_count", "after_sampling")
    TOP_COUNT_FIELD_NUMBER: _ClassVar[int]
    AFTER_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    top_count: int
    after_sampling: bool
    def __init__(self, top_count: _Optional[int] = ..., after_sampling: bool = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("token_ids", "log_probabilities")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    log_probabilities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., log_probabilities: _Optional[_Iterable[float]] = ...) -> None: ...

class Candidates(_message.Message):
    __slots__ = ("token_ids", "probabilities")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., probabilities: _Optional[_Iterable[float]] = ...) -> None: ...

class ServiceTime(_message.Message):
    __slots__ = ("queue_us", "decode_us", "sample_us", "decoded_row_count", "attended_token_count", "step_count", "own_draft_us", "runner_up_us", "generating_session_count")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    DECODED_ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    ATTENDED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    OWN_DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    RUNNER_UP_US_FIELD_NUMBER: _ClassVar[int]
    GENERATING_SESSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    decode_us: int
    sample_us: int
    decoded_row_count: int
    attended_token_count: int
    step_count: int
    own_draft_us: int
    runner_up_us: int
    generating_session_count: int
    def __init__(self, queue_us: _Optional[int] = ..., decode_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., decoded_row_count: _Optional[int] = ..., attended_token_count: _Optional[int] = ..., step_count: _Optional[int] = ..., own_draft_us: _Optional[int] = ..., runner_up_us: _Optional[int] = ..., generating_session_count: _Optional[int] = ...) -> None: ...

class Missing(_message.Message):
    __slots__ = ("held_token_count",)
    HELD_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    held_token_count: int
    def __init__(self, held_token_count: _Optional[int] = ...) -> None: ...

class Busy(_message.Message):
    __slots__ = ("retry_delay_duration",)
    RETRY_DELAY_DURATION_FIELD_NUMBER: _ClassVar[int]
    retry_delay_duration: _duration_pb2.Duration
    def __init__(self, retry_delay_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Superseded(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ContextFull(_message.Message):
    __slots__ = ("context_token_count",)
    CONTEXT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    context_token_count: int
    def __init__(self, context_token_count: _Optional[int] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("protocol_version", "service_version", "model_name", "description", "weight_byte_count", "parameter_count", "context_token_count", "session_count", "vocabulary", "rollback_capability", "numerics_profile", "decode_costs", "thread_count", "system_info", "load_duration", "round_draft_token_limit", "activity", "machine_digest", "cores_digest", "core_count", "chat_template", "identity", "trained_context_token_count", "embedding_width", "file_type", "plain_costs", "continues", "cache_layout", "cpu_kernels", "thread_choice", "rough_decode_costs", "own_draft", "parallel_line_count", "tree_leaf_limit", "snapshot_token_count", "checkpoint_milliseconds", "restore_milliseconds", "translates", "known_vocabulary_keys", "bos_token_text", "eos_token_text", "architecture", "hidden_row_width", "head")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVICE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SESSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_PROFILE_FIELD_NUMBER: _ClassVar[int]
    DECODE_COSTS_FIELD_NUMBER: _ClassVar[int]
    THREAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_INFO_FIELD_NUMBER: _ClassVar[int]
    LOAD_DURATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_DRAFT_TOKEN_LIMIT_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    MACHINE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CORES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CORE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    TRAINED_CONTEXT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_WIDTH_FIELD_NUMBER: _ClassVar[int]
    FILE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PLAIN_COSTS_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    CACHE_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    CPU_KERNELS_FIELD_NUMBER: _ClassVar[int]
    THREAD_CHOICE_FIELD_NUMBER: _ClassVar[int]
    ROUGH_DECODE_COSTS_FIELD_NUMBER: _ClassVar[int]
    OWN_DRAFT_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_LINE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TREE_LEAF_LIMIT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    TRANSLATES_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VOCABULARY_KEYS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_TEXT_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_TEXT_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_ROW_WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    service_version: str
    model_name: str
    description: str
    weight_byte_count: int
    parameter_count: int
    context_token_count: int
    session_count: int
    vocabulary: Vocabulary
    rollback_capability: RollbackCapability
    numerics_profile: NumericsProfile
    decode_costs: _containers.RepeatedCompositeFieldContainer[DecodeCost]
    thread_count: int
    system_info: str
    load_duration: _duration_pb2.Duration
    round_draft_token_limit: int
    activity: EngineActivity
    machine_digest: bytes
    cores_digest: bytes
    core_count: int
    chat_template: str
    identity: bytes
    trained_context_token_count: int
    embedding_width: int
    file_type: str
    plain_costs: PlainCosts
    continues: bool
    cache_layout: str
    cpu_kernels: str
    thread_choice: str
    rough_decode_costs: bool
    own_draft: OwnDraft
    parallel_line_count: int
    tree_leaf_limit: int
    snapshot_token_count: int
    checkpoint_milliseconds: float
    restore_milliseconds: float
    translates: bool
    known_vocabulary_keys: _containers.RepeatedScalarFieldContainer[bytes]
    bos_token_text: str
    eos_token_text: str
    architecture: str
    hidden_row_width: int
    head: HeadKind
    def __init__(self, protocol_version: _Optional[int] = ..., service_version: _Optional[str] = ..., model_name: _Optional[str] = ..., description: _Optional[str] = ..., weight_byte_count: _Optional[int] = ..., parameter_count: _Optional[int] = ..., context_token_count: _Optional[int] = ..., session_count: _Optional[int] = ..., vocabulary: _Optional[_Union[Vocabulary, _Mapping]] = ..., rollback_capability: _Optional[_Union[RollbackCapability, str]] = ..., numerics_profile: _Optional[_Union[NumericsProfile, str]] = ..., decode_costs: _Optional[_Iterable[_Union[DecodeCost, _Mapping]]] = ..., thread_count: _Optional[int] = ..., system_info: _Optional[str] = ..., load_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., round_draft_token_limit: _Optional[int] = ..., activity: _Optional[_Union[EngineActivity, _Mapping]] = ..., machine_digest: _Optional[bytes] = ..., cores_digest: _Optional[bytes] = ..., core_count: _Optional[int] = ..., chat_template: _Optional[str] = ..., identity: _Optional[bytes] = ..., trained_context_token_count: _Optional[int] = ..., embedding_width: _Optional[int] = ..., file_type: _Optional[str] = ..., plain_costs: _Optional[_Union[PlainCosts, _Mapping]] = ..., continues: bool = ..., cache_layout: _Optional[str] = ..., cpu_kernels: _Optional[str] = ..., thread_choice: _Optional[str] = ..., rough_decode_costs: bool = ..., own_draft: _Optional[_Union[OwnDraft, _Mapping]] = ..., parallel_line_count: _Optional[int] = ..., tree_leaf_limit: _Optional[int] = ..., snapshot_token_count: _Optional[int] = ..., checkpoint_milliseconds: _Optional[float] = ..., restore_milliseconds: _Optional[float] = ..., translates: bool = ..., known_vocabulary_keys: _Optional[_Iterable[bytes]] = ..., bos_token_text: _Optional[str] = ..., eos_token_text: _Optional[str] = ..., architecture: _Optional[str] = ..., hidden_row_width: _Optional[int] = ..., head: _Optional[_Union[HeadKind, str]] = ...) -> None: ...

class HiddenRows(_message.Message):
    __slots__ = ("position", "rows")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    position: int
    rows: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, position: _Optional[int] = ..., rows: _Optional[_Iterable[bytes]] = ...) -> None: ...

class OwnDraft(_message.Message):
    __slots__ = ("model_name", "token_milliseconds", "read_milliseconds", "weight_byte_count", "head", "token_limit")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    TOKEN_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    READ_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LIMIT_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    token_milliseconds: float
    read_milliseconds: float
    weight_byte_count: int
    head: HeadKind
    token_limit: int
    def __init__(self, model_name: _Optional[str] = ..., token_milliseconds: _Optional[float] = ..., read_milliseconds: _Optional[float] = ..., weight_byte_count: _Optional[int] = ..., head: _Optional[_Union[HeadKind, str]] = ..., token_limit: _Optional[int] = ...) -> None: ...

class PlainCosts(_message.Message):
    __slots__ = ("alone_milliseconds", "native_milliseconds", "exact_milliseconds")
    ALONE_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    NATIVE_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    EXACT_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    alone_milliseconds: float
    native_milliseconds: float
    exact_milliseconds: float
    def __init__(self, alone_milliseconds: _Optional[float] = ..., native_milliseconds: _Optional[float] = ..., exact_milliseconds: _Optional[float] = ...) -> None: ...

class EngineActivity(_message.Message):
    __slots__ = ("decode_count", "chunk_count", "token_count", "session_count", "open_session_count", "open_duration", "decode_duration", "decoding_token_count")
    DECODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SESSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    OPEN_DURATION_FIELD_NUMBER: _ClassVar[int]
    DECODE_DURATION_FIELD_NUMBER: _ClassVar[int]
    DECODING_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    decode_count: int
    chunk_count: int
    token_count: int
    session_count: int
    open_session_count: int
    open_duration: _duration_pb2.Duration
    decode_duration: _duration_pb2.Duration
    decoding_token_count: int
    def __init__(self, decode_count: _Optional[int] = ..., chunk_count: _Optional[int] = ..., token_count: _Optional[int] = ..., session_count: _Optional[int] = ..., open_session_count: _Optional[int] = ..., open_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decode_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decoding_token_count: _Optional[int] = ...) -> None: ...

class Vocabulary(_message.Message):
    __slots__ = ("type", "token_count", "bos_token_id", "eos_token_id", "eot_token_id", "adds_bos", "adds_eos", "digest", "end_token_ids", "fits_any", "fim_tokens")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EOT_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ADDS_BOS_FIELD_NUMBER: _ClassVar[int]
    ADDS_EOS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FITS_ANY_FIELD_NUMBER: _ClassVar[int]
    FIM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    type: int
    token_count: int
    bos_token_id: int
    eos_token_id: int
    eot_token_id: int
    adds_bos: bool
    adds_eos: bool
    digest: bytes
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    fits_any: bool
    fim_tokens: FimTokens
    def __init__(self, type: _Optional[int] = ..., token_count: _Optional[int] = ..., bos_token_id: _Optional[int] = ..., eos_token_id: _Optional[int] = ..., eot_token_id: _Optional[int] = ..., adds_bos: bool = ..., adds_eos: bool = ..., digest: _Optional[bytes] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., fits_any: bool = ..., fim_tokens: _Optional[_Union[FimTokens, _Mapping]] = ...) -> None: ...

class FimTokens(_message.Message):
    __slots__ = ("prefix_token_id", "suffix_token_id", "middle_token_id", "repository_token_id", "file_token_id")
    PREFIX_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    MIDDLE_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    prefix_token_id: int
    suffix_token_id: int
    middle_token_id: int
    repository_token_id: int
    file_token_id: int
    def __init__(self, prefix_token_id: _Optional[int] = ..., suffix_token_id: _Optional[int] = ..., middle_token_id: _Optional[int] = ..., repository_token_id: _Optional[int] = ..., file_token_id: _Optional[int] = ...) -> None: ...

class DecodeCost(_message.Message):
    __slots__ = ("row_count", "milliseconds", "microseconds_per_token")
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    MICROSECONDS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    row_count: int
    milliseconds: float
    microseconds_per_token: float
    def __init__(self, row_count: _Optional[int] = ..., milliseconds: _Optional[float] = ..., microseconds_per_token: _Optional[float] = ...) -> None: ...

class ListVocabularyRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ModelReference
    def __init__(self, model: _Optional[_Union[ModelReference, _Mapping]] = ...) -> None: ...

class ListVocabularyResponse(_message.Message):
    __slots__ = ("first_token_id", "token_texts", "token_names")
    FIRST_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TEXTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_NAMES_FIELD_NUMBER: _ClassVar[int]
    first_token_id: int
    token_texts: _containers.RepeatedScalarFieldContainer[bytes]
    token_names: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, first_token_id: _Optional[int] = ..., token_texts: _Optional[_Iterable[bytes]] = ..., token_names: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("session_id", "token_count", "attempt", "round")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    token_count: int
    attempt: int
    round: int
    def __init__(self, session_id: _Optional[bytes] = ..., token_count: _Optional[int] = ..., attempt: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

class RollbackResponse(_message.Message):
    __slots__ = ("held_token_count",)
    HELD_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    held_token_count: int
    def __init__(self, held_token_count: _Optional[int] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
