"""Follows the tool calls of one streamed completion. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.gathering import Addition
from orchestrator.chat.tool_calls import (
    ArgumentsPart,
    CallFormat,
    CallStart,
    Event,
    Mark,
    ToolCall,
    ToolCallParser,
)

Shown = str | CallStart | ArgumentsPart
"""What a stream shows: content, the start of a call, or more of its arguments."""


@dataclass(slots=True)
class CallStream:
    """Content and calls in the order in which they become certain.

    Without a `parser` everything is content. `has_called`: a call was completed.
    """

    parser: ToolCallParser | None
    has_called: bool = False
    _open_count: int = 0  # calls that have started and are not complete yet

    @classmethod
    def after(cls, opening: str, form: CallFormat | None) -> CallStream:
        """Return one for a completion whose prompt ends in `opening`, the start of a call."""
        if form is None:
            return cls(None)
        parser = ToolCallParser(form)
        if opening:
            parser.add(Mark(opening))
        return cls(parser)

    def add(self, addition: Addition) -> list[Shown]:
        """Return what an addition makes certain."""
        if self.parser is None:
            return [addition.text] if addition.text else []
        events = [event for piece in addition.pieces for event in self.parser.add(piece)]
        return self._follow(events)

    def finish(self) -> list[Shown]:
        """Return the rest. What a call that was cut off has shown already is not content again."""
        if self.parser is None:
            return []
        was_cut_off = self._open_count > 0
        shown = self._follow(self.parser.finish())
        return [] if was_cut_off else shown

    def _follow(self, events: list[Event]) -> list[Shown]:
        for event in events:
            if isinstance(event, CallStart):
                self._open_count += 1
            elif isinstance(event, ToolCall):
                self._open_count -= 1
                self.has_called = True
            elif isinstance(event, str):
                self._open_count = 0  # what had started was no call
        return [event for event in events if not isinstance(event, ToolCall)]
