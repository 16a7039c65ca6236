"""How what a model writes in a chat is read: as thoughts, an answer and calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from gateway.accumulator import Addition, Completion
from orchestrator.chat.events import CallBegun, CallEnded, TurnEvent, parse
from orchestrator.chat.format import ChatFormat, Ids
from orchestrator.chat.parser import ChatParser
from outrider.messages import FinishReason

_CUTS = (FinishReason.TOKEN_LIMIT, FinishReason.CONTEXT_FULL)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is complete; `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What a completion says."""

    content: str
    thoughts: str
    calls: list[Call]


@dataclass(frozen=True, slots=True)
class ChatReading:
    """How completions are read: `prompt` is what the prompt already holds of the turn.

    `tools` are the schemas of those that may be called, by name; `single` is for at most one call.
    """

    form: ChatFormat = field(default_factory=ChatFormat)
    tools: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = ""
    single: bool = False

    def parser(self) -> ChatParser:
        """Return a parser of one completion."""
        return ChatParser(self.form, self.tools, self.prompt, single=self.single)

    def turn(self, completion: Completion, choice: int, kind: str, nonce: str) -> Turn:
        """Return what a whole completion says."""
        stream = TurnStream(self, choice, kind, nonce)
        events = [*stream.add(Addition(tuple(completion.pieces), ())), *stream.finish(completion)]
        content, thoughts, calls = parse(events)
        return Turn(content, thoughts, [Call(begun.id, begun.name, text) for begun, text in calls])


class TurnStream:
    """Follows one completion. Ids of its calls begin with `kind`, and `nonce` is of the request."""

    def __init__(self, reading: ChatReading, choice: int, kind: str, nonce: str) -> None:
        self._parser = reading.parser()
        self._ids = reading.form.ids
        self._place = (kind, nonce, choice)
        self._begun_count = 0
        self.has_called = False
        """Whether a call is complete."""

    def add(self, addition: Addition) -> list[TurnEvent]:
        """Return what an addition makes certain."""
        return self._named(event for piece in addition.pieces for event in self._parser.add(piece))

    def finish(self, completion: Completion) -> list[TurnEvent]:
        """Return the rest."""
        assert completion.finished is not None
        return self._named(self._parser.finish(is_cut=completion.finished.reason in _CUTS))

    def _named(self, events: Any) -> list[TurnEvent]:
        named: list[TurnEvent] = []
        for event in events:
            is_begin = isinstance(event, CallBegun)
            named.append(CallBegun(event.name, self._id(event)) if is_begin else event)
            self._begun_count += is_begin
            self.has_called |= event == CallEnded()
        return named

    def _id(self, begun: CallBegun) -> str:
        """Return an id that the template takes."""
        kind, nonce, choice = self._place
        if self._ids is Ids.NAMED:
            return begun.id or f"functions.{begun.name}:{self._begun_count}"
        own = f"{kind}_{nonce}_{choice}_{self._begun_count}"
        return sha256(own.encode()).hexdigest()[:9] if self._ids is Ids.NINE else own
