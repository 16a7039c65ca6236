from outrider.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TranslationLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSLATION_LEVEL_UNSPECIFIED: _ClassVar[TranslationLevel]
    TRANSLATION_LEVEL_TOKENS: _ClassVar[TranslationLevel]
    TRANSLATION_LEVEL_STRINGS: _ClassVar[TranslationLevel]
TRANSLATION_LEVEL_UNSPECIFIED: TranslationLevel
TRANSLATION_LEVEL_TOKENS: TranslationLevel
TRANSLATION_LEVEL_STRINGS: TranslationLevel

class LearnVocabularyRequest(_message.Message):
    __slots__ = ("introduction", "tokens")
    INTRODUCTION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    introduction: VocabularyIntroduction
    tokens: _common_pb2.ListVocabularyResponse
    def __init__(self, introduction: _Optional[_Union[VocabularyIntroduction, _Mapping]] = ..., tokens: _Optional[_Union[_common_pb2.ListVocabularyResponse, _Mapping]] = ...) -> None: ...

class VocabularyIntroduction(_message.Message):
    __slots__ = ("key", "vocabulary")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    vocabulary: _common_pb2.Vocabulary
    def __init__(self, key: _Optional[bytes] = ..., vocabulary: _Optional[_Union[_common_pb2.Vocabulary, _Mapping]] = ...) -> None: ...

class LearnVocabularyResponse(_message.Message):
    __slots__ = ("level", "shared_token_count", "shared_mass", "differences")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    SHARED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHARED_MASS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    level: TranslationLevel
    shared_token_count: int
    shared_mass: float
    differences: str
    def __init__(self, level: _Optional[_Union[TranslationLevel, str]] = ..., shared_token_count: _Optional[int] = ..., shared_mass: _Optional[float] = ..., differences: _Optional[str] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("open", "order")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    open: _common_pb2.OpenSession
    order: DraftOrder
    def __init__(self, open: _Optional[_Union[_common_pb2.OpenSession, _Mapping]] = ..., order: _Optional[_Union[DraftOrder, _Mapping]] = ...) -> None: ...

class DraftOrder(_message.Message):
    __slots__ = ("order", "committed", "draft_until", "frame_token_count", "stop_below_confidence", "parallel_line_count", "split_probability", "hidden_rows")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_UNTIL_FIELD_NUMBER: _ClassVar[int]
    FRAME_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    STOP_BELOW_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_LINE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SPLIT_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_ROWS_FIELD_NUMBER: _ClassVar[int]
    order: int
    committed: _common_pb2.TokenSpan
    draft_until: int
    frame_token_count: int
    stop_below_confidence: int
    parallel_line_count: int
    split_probability: float
    hidden_rows: _common_pb2.HiddenRows
    def __init__(self, order: _Optional[int] = ..., committed: _Optional[_Union[_common_pb2.TokenSpan, _Mapping]] = ..., draft_until: _Optional[int] = ..., frame_token_count: _Optional[int] = ..., stop_below_confidence: _Optional[int] = ..., parallel_line_count: _Optional[int] = ..., split_probability: _Optional[float] = ..., hidden_rows: _Optional[_Union[_common_pb2.HiddenRows, _Mapping]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("frame", "missing", "busy", "context_full", "completed_order", "service_time")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FULL_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_ORDER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIME_FIELD_NUMBER: _ClassVar[int]
    frame: DraftFrame
    missing: _common_pb2.Missing
    busy: _common_pb2.Busy
    context_full: _common_pb2.ContextFull
    completed_order: int
    service_time: _common_pb2.ServiceTime
    def __init__(self, frame: _Optional[_Union[DraftFrame, _Mapping]] = ..., missing: _Optional[_Union[_common_pb2.Missing, _Mapping]] = ..., busy: _Optional[_Union[_common_pb2.Busy, _Mapping]] = ..., context_full: _Optional[_Union[_common_pb2.ContextFull, _Mapping]] = ..., completed_order: _Optional[int] = ..., service_time: _Optional[_Union[_common_pb2.ServiceTime, _Mapping]] = ...) -> None: ...

class DraftFrame(_message.Message):
    __slots__ = ("base", "position", "token_ids", "confidences", "distributions", "candidates", "line", "runner_up_lines")
    BASE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    RUNNER_UP_LINES_FIELD_NUMBER: _ClassVar[int]
    base: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    confidences: bytes
    distributions: _containers.RepeatedCompositeFieldContainer[DraftDistribution]
    candidates: _containers.RepeatedCompositeFieldContainer[_common_pb2.Candidates]
    line: int
    runner_up_lines: _containers.RepeatedCompositeFieldContainer[RunnerUpLine]
    def __init__(self, base: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., confidences: _Optional[bytes] = ..., distributions: _Optional[_Iterable[_Union[DraftDistribution, _Mapping]]] = ..., candidates: _Optional[_Iterable[_Union[_common_pb2.Candidates, _Mapping]]] = ..., line: _Optional[int] = ..., runner_up_lines: _Optional[_Iterable[_Union[RunnerUpLine, _Mapping]]] = ...) -> None: ...

class RunnerUpLine(_message.Message):
    __slots__ = ("line", "parent_line", "fork_position", "position", "token_ids", "confidences")
    LINE_FIELD_NUMBER: _ClassVar[int]
    PARENT_LINE_FIELD_NUMBER: _ClassVar[int]
    FORK_POSITION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    line: int
    parent_line: int
    fork_position: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    confidences: bytes
    def __init__(self, line: _Optional[int] = ..., parent_line: _Optional[int] = ..., fork_position: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., confidences: _Optional[bytes] = ...) -> None: ...

class DraftDistribution(_message.Message):
    __slots__ = ("token_ids", "weights")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[int]] = ...) -> None: ...
