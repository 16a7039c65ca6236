"""What a parser reports of a text that a model writes in a chat. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A control token of a text, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call begins: of the function of this name, with the id that the model wrote, if any."""

    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next part of the JSON of the call's arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call that has begun is complete, or is none: then its text follows as content."""

    is_sound: bool = True


TurnEvent = Content | Thought | CallBegun | Arguments | CallEnded


def parse(events: Iterable[TurnEvent]) -> tuple[str, str, list[tuple[CallBegun, str]]]:
    """Return the content, the thoughts, and the calls that are complete with their arguments."""
    content, thoughts, arguments = "", "", ""
    calls: list[tuple[CallBegun, str]] = []
    for event in events:
        match event:
            case Content(text):
                content += text
            case Thought(text):
                thoughts += text
            case CallBegun():
                begun, arguments = event, ""
            case Arguments(text):
                arguments += text
            case CallEnded(is_sound):
                calls += [(begun, arguments)] if is_sound else []
    return content, thoughts, calls
