"""How a model writes a turn, as its chat template shows it: thoughts, tool calls, the end."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import Enum

ID = "\ue000"
"""Stands for a call's id in a text of a format; what is between marks is an id there."""

TYPE = "\ue001"
"""Stands for the name of a value's type."""

KEY = "\ue002"
"""Stands for the argument's name, in what closes its value."""

MARK = re.compile(
    r"<\|(?:open|close)\|>\w+<\|sep\|>|\]<\]\w+\[>\[|<[^<>\s][^<>\n]*>|\[/?[A-Z][A-Z_ ]+\]|>>>"
)
"""What a template spells as one mark: most are a token, or a tag that models never break up."""


HEADER = "<|message|>"
"""What ends a header, where a turn is several messages: gpt-oss and those that took it over."""


class Style(Enum):
    """How the inside of a call is written."""

    JSON = "json"  # {"name": "f", "arguments": {"k": "v"}}, or {"f": {"k": "v"}}
    NAMED = "name-json"  # f, a mark, {"k": "v"}
    PARAMETERS = "parameters"  # f, and each argument between marks with its name
    KEYED = "keyed"  # f(k="v") of Python, or Gemma's f{k:"v"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """What is around one argument of a call; `string_type` is what TYPE is for a text."""

    open: str = ""
    after_key: str = ""
    close: str = ""
    string_type: str = ""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The texts around calls. `begin` and `end` stand around all calls of a turn.

    `open` is before each call's name or JSON object, `after_name` between the name and the
    arguments. The keys are those of JSON; without `name_key` the name is the key of the arguments.
    `quote` is around texts where that is no quotation mark. `several`: the template shows two
    calls in one turn. `bare`: what is around them may be missing, then they begin the answer.
    """

    style: Style
    begin: str = ""
    open: str = ""
    after_name: str = ""
    close: str = ""
    separator: str = ""
    end: str = ""
    name_key: str = ""
    arguments_key: str = ""
    parameter: Parameter = Parameter()
    quote: str = '"'
    several: bool = True
    bare: bool = False

    @property
    def opening(self) -> str:
        """What is written before the first call's name or object."""
        return self.begin + self.open


class Ids(Enum):
    """The ids of calls that a template takes."""

    ANY = "any"
    NINE = "nine letters and digits"
    NAMED = "functions.NAME:NUMBER"  # the name of the called function is only in the id


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a model writes a turn.

    `turn` ends the prompt before the assistant writes. Thoughts stand between `think` and
    `end_think`, the answer between `content` and `end_content`; `end` is after a turn.
    `thoughts_as` is the member of a message under which the template takes thoughts. `headers`:
    a turn is several messages, each with a header that names its channel or recipient. `controls`:
    those of its marks that are control tokens of the model.
    """

    turn: str = ""
    think: str = ""
    end_think: str = ""
    content: str = ""
    end_content: str = ""
    end: str = ""
    thoughts_as: str = ""
    calls: CallFormat | None = None
    ids: Ids = Ids.ANY
    headers: bool = False
    controls: tuple[str, ...] = ()

    def written(self, prompt: str, last: str = "") -> str:
        """Return what a prompt holds of the turn that the model is to write.

        `last` is what it answers: where that is the result of a call, some turns continue after it.
        """
        if not self.turn or self.turn not in prompt:
            return ""
        rest = prompt[prompt.rfind(self.turn) + len(self.turn) :]
        goes_on = self.calls and self.calls.opening.strip() and self.calls.opening in rest
        return rest.rpartition(last.strip())[2] if goes_on and last.strip() else rest

    def summary(self) -> dict[str, str]:
        """Return the style of calls and how one begins, the marks of a thought, and the ids."""
        calls = self.calls
        return {
            "calls": calls.style.value if calls else "",
            "call_opening": calls.opening if calls else "",
            "thoughts": f"{self.think} {self.end_think}",
            "ids": self.ids.value,
        }

    @property
    def marks(self) -> list[str]:
        """The marks in it, which are control tokens in some models."""
        parts = [self.think, self.end_think, self.content, self.end_content, self.end, self.turn]
        if self.calls:
            parts += [
                x for f in fields(self.calls) if isinstance(x := getattr(self.calls, f.name), str)
            ]
            p = self.calls.parameter
            parts += [p.open, p.after_key, p.close]
        found = [m for part in parts for m in re.findall(r"<\|[^<>\s]+?\|>|" + MARK.pattern, part)]
        return list(dict.fromkeys(found))
