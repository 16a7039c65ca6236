from outrider.v1 import common_pb2 as _common_pb2
from outrider.v1 import draft_service_pb2 as _draft_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("model", "vocabulary", "learned", "not_learned", "process_id")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    NOT_LEARNED_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    model: _common_pb2.GetModelResponse
    vocabulary: _common_pb2.ListVocabularyResponse
    learned: _draft_service_pb2.LearnVocabularyResponse
    not_learned: LessonFailure
    process_id: bytes
    def __init__(self, model: _Optional[_Union[_common_pb2.GetModelResponse, _Mapping]] = ..., vocabulary: _Optional[_Union[_common_pb2.ListVocabularyResponse, _Mapping]] = ..., learned: _Optional[_Union[_draft_service_pb2.LearnVocabularyResponse, _Mapping]] = ..., not_learned: _Optional[_Union[LessonFailure, _Mapping]] = ..., process_id: _Optional[bytes] = ...) -> None: ...

class LessonFailure(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("get_model", "list_vocabulary", "joined", "invitation", "rollback", "learn_vocabulary")
    GET_MODEL_FIELD_NUMBER: _ClassVar[int]
    LIST_VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    LEARN_VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    get_model: _common_pb2.GetModelRequest
    list_vocabulary: _common_pb2.ListVocabularyRequest
    joined: DraftJoined
    invitation: SessionInvitation
    rollback: _common_pb2.RollbackRequest
    learn_vocabulary: _draft_service_pb2.LearnVocabularyRequest
    def __init__(self, get_model: _Optional[_Union[_common_pb2.GetModelRequest, _Mapping]] = ..., list_vocabulary: _Optional[_Union[_common_pb2.ListVocabularyRequest, _Mapping]] = ..., joined: _Optional[_Union[DraftJoined, _Mapping]] = ..., invitation: _Optional[_Union[SessionInvitation, _Mapping]] = ..., rollback: _Optional[_Union[_common_pb2.RollbackRequest, _Mapping]] = ..., learn_vocabulary: _Optional[_Union[_draft_service_pb2.LearnVocabularyRequest, _Mapping]] = ...) -> None: ...

class DraftJoined(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionInvitation(_message.Message):
    __slots__ = ("ticket", "open", "order", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TICKET_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    open: _common_pb2.OpenSession
    order: _draft_service_pb2.DraftOrder
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, ticket: _Optional[bytes] = ..., open: _Optional[_Union[_common_pb2.OpenSession, _Mapping]] = ..., order: _Optional[_Union[_draft_service_pb2.DraftOrder, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("ticket", "response", "failure")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    response: _draft_service_pb2.DraftResponse
    failure: AttendFailure
    def __init__(self, ticket: _Optional[bytes] = ..., response: _Optional[_Union[_draft_service_pb2.DraftResponse, _Mapping]] = ..., failure: _Optional[_Union[AttendFailure, _Mapping]] = ...) -> None: ...

class AttendFailure(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ("order",)
    ORDER_FIELD_NUMBER: _ClassVar[int]
    order: _draft_service_pb2.DraftOrder
    def __init__(self, order: _Optional[_Union[_draft_service_pb2.DraftOrder, _Mapping]] = ...) -> None: ...
