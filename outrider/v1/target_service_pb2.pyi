from outrider.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenizeRequest(_message.Message):
    __slots__ = ("texts", "add_special", "parse_special", "model")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    PARSE_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    add_special: bool
    parse_special: bool
    model: _common_pb2.ModelReference
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., add_special: bool = ..., parse_special: bool = ..., model: _Optional[_Union[_common_pb2.ModelReference, _Mapping]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedCompositeFieldContainer[TokenizedText]
    def __init__(self, texts: _Optional[_Iterable[_Union[TokenizedText, _Mapping]]] = ...) -> None: ...

class TokenizedText(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CountCachedRequest(_message.Message):
    __slots__ = ("token_ids", "model", "cache_salt")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    model: _common_pb2.ModelReference
    cache_salt: bytes
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., model: _Optional[_Union[_common_pb2.ModelReference, _Mapping]] = ..., cache_salt: _Optional[bytes] = ...) -> None: ...

class CountCachedResponse(_message.Message):
    __slots__ = ("cached_token_count",)
    CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    cached_token_count: int
    def __init__(self, cached_token_count: _Optional[int] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("open", "token_ids")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    open: _common_pb2.OpenSession
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, open: _Optional[_Union[_common_pb2.OpenSession, _Mapping]] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("logprobs",)
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.Logprobs]
    def __init__(self, logprobs: _Optional[_Iterable[_Union[_common_pb2.Logprobs, _Mapping]]] = ...) -> None: ...

class SearchBeamsRequest(_message.Message):
    __slots__ = ("open", "token_ids", "beam_count", "end_token_ids")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BEAM_COUNT_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    open: _common_pb2.OpenSession
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    beam_count: int
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, open: _Optional[_Union[_common_pb2.OpenSession, _Mapping]] = ..., token_ids: _Optional[_Iterable[int]] = ..., beam_count: _Optional[int] = ..., end_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SearchBeamsResponse(_message.Message):
    __slots__ = ("token_ids", "logprobs", "service_time", "cached_token_count")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIME_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.Logprobs]
    service_time: _common_pb2.ServiceTime
    cached_token_count: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.Logprobs, _Mapping]]] = ..., service_time: _Optional[_Union[_common_pb2.ServiceTime, _Mapping]] = ..., cached_token_count: _Optional[int] = ...) -> None: ...

class EmbedTokensRequest(_message.Message):
    __slots__ = ("token_ids", "model")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    model: _common_pb2.ModelReference
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., model: _Optional[_Union[_common_pb2.ModelReference, _Mapping]] = ...) -> None: ...

class EmbedTokensResponse(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class CompileGrammarRequest(_message.Message):
    __slots__ = ("grammar", "json_schema", "model")
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    grammar: str
    json_schema: str
    model: _common_pb2.ModelReference
    def __init__(self, grammar: _Optional[str] = ..., json_schema: _Optional[str] = ..., model: _Optional[_Union[_common_pb2.ModelReference, _Mapping]] = ...) -> None: ...

class CompileGrammarResponse(_message.Message):
    __slots__ = ("grammar",)
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    grammar: str
    def __init__(self, grammar: _Optional[str] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("open", "round")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    open: _common_pb2.OpenSession
    round: VerifyRound
    def __init__(self, open: _Optional[_Union[_common_pb2.OpenSession, _Mapping]] = ..., round: _Optional[_Union[VerifyRound, _Mapping]] = ...) -> None: ...

class VerifyRound(_message.Message):
    __slots__ = ("round", "prefix", "row_form", "sent_ahead", "mirostat_mu", "draft", "continuation", "wants_hidden_rows")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    ROW_FORM_FIELD_NUMBER: _ClassVar[int]
    SENT_AHEAD_FIELD_NUMBER: _ClassVar[int]
    MIROSTAT_MU_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    WANTS_HIDDEN_ROWS_FIELD_NUMBER: _ClassVar[int]
    round: int
    prefix: _common_pb2.TokenSpan
    row_form: _common_pb2.RowForm
    sent_ahead: bool
    mirostat_mu: float
    draft: RoundDraft
    continuation: Continuation
    wants_hidden_rows: bool
    def __init__(self, round: _Optional[int] = ..., prefix: _Optional[_Union[_common_pb2.TokenSpan, _Mapping]] = ..., row_form: _Optional[_Union[_common_pb2.RowForm, str]] = ..., sent_ahead: bool = ..., mirostat_mu: _Optional[float] = ..., draft: _Optional[_Union[RoundDraft, _Mapping]] = ..., continuation: _Optional[_Union[Continuation, _Mapping]] = ..., wants_hidden_rows: bool = ...) -> None: ...

class RoundDraft(_message.Message):
    __slots__ = ("token_ids", "survivals", "parents", "decode_token_limit")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SURVIVALS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKEN_LIMIT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    survivals: bytes
    parents: bytes
    decode_token_limit: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., survivals: _Optional[bytes] = ..., parents: _Optional[bytes] = ..., decode_token_limit: _Optional[int] = ...) -> None: ...

class Continuation(_message.Message):
    __slots__ = ("token_count", "gathers", "own_draft_token_count", "own_draft_stop_below")
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    GATHERS_FIELD_NUMBER: _ClassVar[int]
    OWN_DRAFT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    OWN_DRAFT_STOP_BELOW_FIELD_NUMBER: _ClassVar[int]
    token_count: int
    gathers: bool
    own_draft_token_count: int
    own_draft_stop_below: int
    def __init__(self, token_count: _Optional[int] = ..., gathers: bool = ..., own_draft_token_count: _Optional[int] = ..., own_draft_stop_below: _Optional[int] = ...) -> None: ...

class OwnDraftTokens(_message.Message):
    __slots__ = ("token_ids", "confidences", "service_time")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIME_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    confidences: bytes
    service_time: _common_pb2.ServiceTime
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., confidences: _Optional[bytes] = ..., service_time: _Optional[_Union[_common_pb2.ServiceTime, _Mapping]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("round", "rows", "missing", "busy", "superseded", "context_full", "service_time", "cached_token_count", "position", "drafted_token_count", "own_drafts", "hidden_rows")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FULL_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIME_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    OWN_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_ROWS_FIELD_NUMBER: _ClassVar[int]
    round: int
    rows: Rows
    missing: _common_pb2.Missing
    busy: _common_pb2.Busy
    superseded: _common_pb2.Superseded
    context_full: _common_pb2.ContextFull
    service_time: _common_pb2.ServiceTime
    cached_token_count: int
    position: int
    drafted_token_count: int
    own_drafts: _containers.RepeatedCompositeFieldContainer[OwnDraftTokens]
    hidden_rows: _common_pb2.HiddenRows
    def __init__(self, round: _Optional[int] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., missing: _Optional[_Union[_common_pb2.Missing, _Mapping]] = ..., busy: _Optional[_Union[_common_pb2.Busy, _Mapping]] = ..., superseded: _Optional[_Union[_common_pb2.Superseded, _Mapping]] = ..., context_full: _Optional[_Union[_common_pb2.ContextFull, _Mapping]] = ..., service_time: _Optional[_Union[_common_pb2.ServiceTime, _Mapping]] = ..., cached_token_count: _Optional[int] = ..., position: _Optional[int] = ..., drafted_token_count: _Optional[int] = ..., own_drafts: _Optional[_Iterable[_Union[OwnDraftTokens, _Mapping]]] = ..., hidden_rows: _Optional[_Union[_common_pb2.HiddenRows, _Mapping]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("first_row", "token_ids", "distributions", "logits", "candidates", "logprobs", "mirostat_mus", "answered_row_count")
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIROSTAT_MUS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    first_row: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    distributions: _containers.RepeatedCompositeFieldContainer[RowDistribution]
    logits: _containers.RepeatedScalarFieldContainer[bytes]
    candidates: _containers.RepeatedCompositeFieldContainer[_common_pb2.Candidates]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.Logprobs]
    mirostat_mus: _containers.RepeatedScalarFieldContainer[float]
    answered_row_count: int
    def __init__(self, first_row: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., distributions: _Optional[_Iterable[_Union[RowDistribution, _Mapping]]] = ..., logits: _Optional[_Iterable[bytes]] = ..., candidates: _Optional[_Iterable[_Union[_common_pb2.Candidates, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.Logprobs, _Mapping]]] = ..., mirostat_mus: _Optional[_Iterable[float]] = ..., answered_row_count: _Optional[int] = ...) -> None: ...

class RowDistribution(_message.Message):
    __slots__ = ("token_ids", "weights")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...
