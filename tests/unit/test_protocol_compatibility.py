"""Today's protocol reads what peers of before say, and is read by them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf import descriptor_pb2

from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.protocols import NAMES, Dialect, breaks, load, today

Protocol = descriptor_pb2.FileDescriptorSet


@pytest.mark.parametrize("name", NAMES)
def test_no_field_was_changed_reused_or_removed(name: str) -> None:
    assert breaks(load(name), today()) == []


def message_of(protocol: Protocol, name: str) -> descriptor_pb2.DescriptorProto:
    return next(m for file in protocol.file for m in file.message_type if m.name == name)


def field_of(protocol: Protocol, message: str, name: str) -> descriptor_pb2.FieldDescriptorProto:
    return next(each for each in message_of(protocol, message).field if each.name == name)


def another_type(protocol: Protocol) -> None:
    field = field_of(protocol, "GenerateRequest", "seed")
    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_STRING


def repeated(protocol: Protocol) -> None:
    field = field_of(protocol, "PollGenerationRequest", "cursor")
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED


def reused(protocol: Protocol) -> None:
    field_of(protocol, "PollGenerationRequest", "cursor").name = "offset"


def removed(protocol: Protocol) -> None:
    message = message_of(protocol, "PollGenerationRequest")
    message.field.remove(field_of(protocol, "PollGenerationRequest", "cursor"))


def out_of_its_choice(protocol: Protocol) -> None:
    field_of(protocol, "GenerateResponse", "delta").ClearField("oneof_index")


def another_message(protocol: Protocol) -> None:
    field_of(protocol, "SubmitGenerationResponse", "started").type_name = ".outrider.v1.Token"


def value_renumbered(protocol: Protocol) -> None:
    [enum] = [e for f in protocol.file for e in f.enum_type if e.name == "FinishReason"]
    enum.value[1].number = 99


def value_reused(protocol: Protocol) -> None:
    [enum] = [e for f in protocol.file for e in f.enum_type if e.name == "FinishReason"]
    enum.value[1].name = "FINISH_REASON_OTHER"


def method_removed(protocol: Protocol) -> None:
    [service] = [s for f in protocol.file for s in f.service if s.name == "TargetService"]
    del service.method[0]


def method_streams(protocol: Protocol) -> None:
    [service] = [s for f in protocol.file for s in f.service if s.name == "TargetService"]
    service.method[0].server_streaming = not service.method[0].server_streaming


def reserved_taken(protocol: Protocol) -> None:
    """The number of a field that was reserved before, for something new."""
    message = message_of(protocol, "PollGenerationRequest")
    message.field.add(name="news", number=77, type=5, label=1)


BREAKS: list[Callable[[Protocol], None]] = [
    *(another_type, repeated, reused, removed, out_of_its_choice, another_message),
    *(value_renumbered, value_reused, method_removed, method_streams, reserved_taken),
]


@pytest.mark.parametrize("change", BREAKS, ids=[each.__name__ for each in BREAKS])
def test_what_would_break_a_peer_is_found(change: Callable[[Protocol], None]) -> None:
    before, now = today(), today()
    message_of(before, "PollGenerationRequest").reserved_range.add(start=77, end=78)
    change(now)
    assert len(breaks(before, now)) == 1


def test_what_breaks_nobody_is_allowed() -> None:
    before, now = today(), today()
    removed(now)
    message = message_of(now, "PollGenerationRequest")
    message.reserved_range.add(start=2, end=3)
    message.field.add(name="news", number=9, type=5, label=1)
    now.file[0].message_type.add(name="Another")
    assert breaks(before, now) == []


def test_an_older_peer_reads_and_says_the_fields_of_then() -> None:
    """What is newer gets lost both ways, and nothing else."""
    dialect, method = Dialect("2026-11-23"), "/outrider.v1.OrchestratorService/Generate"
    asked = messages.GenerateRequest(prompt_text="a", seed=3, ignore_cached_prefix=True)
    read = messages.GenerateRequest.FromString(dialect.request(method, asked.SerializeToString()))
    assert read == messages.GenerateRequest(prompt_text="a", seed=3)
    finished = messages.GenerationFinished(
        statistics=messages.GenerationStatistics(round_count=3, forked_miss_count=2)
    )
    response = messages.GenerateResponse(finished=finished)
    read_back = messages.GenerateResponse.FromString(
        dialect.response(method, response.SerializeToString())
    )
    assert read_back.finished.statistics.round_count == 3
    assert not read_back.finished.statistics.forked_miss_count
    assert dialect.knows(method) and not dialect.knows("/outrider.v1.OrchestratorService/New")
