"""The protocol as it was, and what of it today's may not change.

`landed.binpb` is what main had last; `2026-11-23.binpb` is older, from before trees of draft
tokens, runner-up lines, a target's own draft and pools. Each is a FileDescriptorSet with its
imports, as protoc writes it: `python scripts/protos.py --keep NAME` makes one of the protos of now.
At a release the set of that release takes the place of `landed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

FOLDER = Path(__file__).parent
NAMES = ("landed", "2026-11-23")

_Field = descriptor_pb2.FieldDescriptorProto


def load(name: str) -> descriptor_pb2.FileDescriptorSet:
    """Return a protocol that was kept."""
    data = (FOLDER / f"{name}.binpb").read_bytes()
    return descriptor_pb2.FileDescriptorSet.FromString(data)


def today() -> descriptor_pb2.FileDescriptorSet:
    """Return the protocol of the stubs."""
    from outrider.v1 import (
        common_pb2,
        draft_registry_service_pb2,
        draft_service_pb2,
        orchestrator_service_pb2,
        target_service_pb2,
    )

    stubs = (
        common_pb2,
        draft_registry_service_pb2,
        draft_service_pb2,
        orchestrator_service_pb2,
        target_service_pb2,
    )
    found = descriptor_pb2.FileDescriptorSet()
    for each in stubs:
        each.DESCRIPTOR.CopyToProto(found.file.add())
    return found


# --- what may not change ---


def breaks(
    before: descriptor_pb2.FileDescriptorSet, now: descriptor_pb2.FileDescriptorSet
) -> list[str]:
    """Return what of `now` a peer that speaks `before` would read otherwise, a line each."""
    ours = [each for each in before.file if each.package.startswith("outrider")]
    messages = {name: message for file in now.file for name, message in _messages(file)}
    enums = {name: enum for file in now.file for name, enum in _enums(file)}
    services = {f"{f.package}.{s.name}": s for f in now.file for s in f.service}
    found: list[str] = []
    for file in ours:
        for name, message in _messages(file):
            found += _message_breaks(name, message, messages.get(name))
        for name, enum in _enums(file):
            found += _enum_breaks(name, enum, enums.get(name))
        for service in file.service:
            name = f"{file.package}.{service.name}"
            found += _service_breaks(name, service, services.get(name))
    return found


def _messages(
    file: descriptor_pb2.FileDescriptorProto,
) -> Iterator[tuple[str, descriptor_pb2.DescriptorProto]]:
    waiting = [(f"{file.package}.{each.name}", each) for each in file.message_type]
    while waiting:
        name, message = waiting.pop()
        yield name, message
        waiting += [(f"{name}.{each.name}", each) for each in message.nested_type]


def _enums(
    file: descriptor_pb2.FileDescriptorProto,
) -> Iterator[tuple[str, descriptor_pb2.EnumDescriptorProto]]:
    for each in file.enum_type:
        yield f"{file.package}.{each.name}", each
    for name, message in _messages(file):
        for each in message.enum_type:
            yield f"{name}.{each.name}", each


def _message_breaks(
    name: str,
    before: descriptor_pb2.DescriptorProto,
    now: descriptor_pb2.DescriptorProto | None,
) -> Iterator[str]:
    if now is None:
        yield f"{name} is gone"
        return
    fields = {each.number: each for each in now.field}
    reserved = [range(each.start, each.end) for each in now.reserved_range]
    for was in before.field:
        field = fields.get(was.number)
        if field is None:
            if not any(was.number in each for each in reserved):
                yield f"{name}.{was.name} = {was.number} is gone, and the number not reserved"
        elif field.name != was.name:
            yield f"{name}.{was.name} = {was.number} is {field.name} now"
        elif _kind(field, now) != _kind(was, before):
            yield f"{name}.{was.name} = {was.number} is of another kind now"
    for each in before.reserved_range:
        for number in sorted(set(fields) & set(range(each.start, each.end))):
            yield f"{name}.{fields[number].name} = {number} takes a reserved number"


def _kind(
    field: descriptor_pb2.FieldDescriptorProto, message: descriptor_pb2.DescriptorProto
) -> tuple[object, ...]:
    """Return what the bytes of a field depend on; explicit presence is none of it."""
    is_choice = field.HasField("oneof_index") and not field.proto3_optional
    choice = message.oneof_decl[field.oneof_index].name if is_choice else ""
    return field.type, field.label == _Field.LABEL_REPEATED, field.type_name, choice


def _enum_breaks(
    name: str,
    before: descriptor_pb2.EnumDescriptorProto,
    now: descriptor_pb2.EnumDescriptorProto | None,
) -> Iterator[str]:
    if now is None:
        yield f"{name} is gone"
        return
    values = {each.number: each.name for each in now.value}
    # An enum's reserved range has its last number in it.
    reserved = [range(each.start, each.end + 1) for each in now.reserved_range]
    for was in before.value:
        if was.number not in values:
            if not any(was.number in each for each in reserved):
                yield f"{name}.{was.name} = {was.number} is gone, and the number not reserved"
        elif values[was.number] != was.name:
            yield f"{name}.{was.name} = {was.number} is {values[was.number]} now"


def _service_breaks(
    name: str,
    before: descriptor_pb2.ServiceDescriptorProto,
    now: descriptor_pb2.ServiceDescriptorProto | None,
) -> Iterator[str]:
    methods = {} if now is None else {each.name: each for each in now.method}
    for was in before.method:
        if was.name not in methods:
            yield f"{name}.{was.name} is gone"
        elif _call(methods[was.name]) != _call(was):
            yield f"{name}.{was.name} takes or returns something else now"


def _call(method: descriptor_pb2.MethodDescriptorProto) -> tuple[object, ...]:
    return (
        method.input_type,
        method.output_type,
        method.client_streaming,
        method.server_streaming,
    )


# --- a peer of then ---


class Dialect:
    """What a peer of a kept protocol understands: its methods, and the fields of its messages."""

    def __init__(self, name: str) -> None:
        pool = descriptor_pool.DescriptorPool()
        self._methods: dict[str, tuple[type[Message], type[Message]]] = {}
        files = load(name)
        for file in files.file:
            pool.Add(file)  # type: ignore[no-untyped-call]
        for file in files.file:
            for service in file.service:
                for method in service.method:
                    types = [method.input_type, method.output_type]
                    found = [pool.FindMessageTypeByName(each[1:]) for each in types]  # type: ignore[no-untyped-call]
                    sent, returned = map(message_factory.GetMessageClass, found)
                    path = f"/{file.package}.{service.name}/{method.name}"
                    self._methods[path] = sent, returned

    def knows(self, method: str) -> bool:
        """Return whether the peer has a method."""
        return method in self._methods

    def request(self, method: str, data: bytes) -> bytes:
        """Return what the peer reads of a request, or says in one."""
        return _without_unknown(self._methods[method][0], data)

    def response(self, method: str, data: bytes) -> bytes:
        """Return what the peer says in a response, or reads of one."""
        return _without_unknown(self._methods[method][1], data)


def _without_unknown(kind: type[Message], data: bytes) -> bytes:
    message = kind.FromString(data)
    message.DiscardUnknownFields()
    return message.SerializeToString()
