"""Inputs that are messages: a line with the method, then one for each message, to be read by eye.

`outrider.v1.TargetService/Verify` is what a client sends, `< outrider.v1.TargetService/Verify` what
the service answers. A message is in protobuf's text format, or hexadecimal where that cannot say
it: bytes that are no message.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from outrider.v1 import (
    draft_registry_service_pb2,
    draft_service_pb2,
    orchestrator_service_pb2,
    target_service_pb2,
)
from tests.fuzz.mutate import mutate_messages

ANSWERS = "< "
_HEX = "hex"
_SERVICES: dict[str, ServiceDescriptor] = {
    service.full_name: service
    for service in (
        orchestrator_service_pb2.DESCRIPTOR.services_by_name["OrchestratorService"],
        target_service_pb2.DESCRIPTOR.services_by_name["TargetService"],
        draft_service_pb2.DESCRIPTOR.services_by_name["DraftService"],
        draft_registry_service_pb2.DESCRIPTOR.services_by_name["DraftRegistryService"],
    )
}


def methods() -> Iterator[str]:
    """Yield SERVICE/METHOD of all that our services serve."""
    for service in _SERVICES.values():
        for method in service.methods:
            yield f"{service.full_name}/{method.name}"


@dataclass(frozen=True)
class Case:
    """Messages of one call, as they are on the wire."""

    name: str
    messages: Sequence[bytes]

    @property
    def path(self) -> str:
        """SERVICE/METHOD."""
        return self.name.removeprefix(ANSWERS)

    @property
    def method(self) -> MethodDescriptor:
        """The method. Raises KeyError for one that is not there any more."""
        service, _, name = self.path.partition("/")
        return _SERVICES[service].methods_by_name[name]

    @property
    def kind(self) -> type[Message]:
        """The class of the messages."""
        method = self.method
        answers = self.name.startswith(ANSWERS)
        described: Any = method.output_type if answers else method.input_type
        return described._concrete_class  # type: ignore[no-any-return]

    def read(self) -> Iterator[Any]:
        """Yield those that are messages."""
        for data in self.messages:
            try:
                yield self.kind.FromString(data)
            except DecodeError:
                continue

    def mutated(self, rng: random.Random) -> Case:
        """Return a case with something changed."""
        return Case(self.name, mutate_messages(self.kind, self.messages, rng))


def parse(data: bytes) -> Case:
    """Return the case that a file holds. Raises ValueError for what is none."""
    name, *lines = data.decode("utf-8").split("\n")
    case = Case(name, ())
    return Case(name, [_parse(line, case.kind) for line in lines if line])


def _parse(line: str, kind: type[Message]) -> bytes:
    word, _, rest = line.partition(" ")
    if word == _HEX:
        return bytes.fromhex(rest)
    message = text_format.Parse(line, kind(), allow_unknown_field=True)
    return message.SerializePartialToString()


def write(case: Case) -> bytes:
    """Return the file of a case."""
    lines = [case.name, *(_line(data, case.kind) for data in case.messages)]
    return "\n".join(lines).encode() + b"\n"


def _line(data: bytes, kind: type[Message]) -> str:
    plain = f"{_HEX} {data.hex()}".rstrip()
    try:
        line = text_format.MessageToString(kind.FromString(data), as_one_line=True).strip()
        is_same = bool(line) and _parse(line, kind) == data
    except (DecodeError, text_format.ParseError, ValueError):
        return plain
    return line if is_same and len(line.splitlines()) == 1 else plain
