"""Takes tool calls out of generated text, written as the model's template shows them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class CallFormat(Enum):
    """How a model writes a call."""

    HERMES = "hermes"  # <tool_call>{"name": "f", "arguments": {}}</tool_call>, also Qwen
    MISTRAL = "mistral"  # [TOOL_CALLS] [{"name": "f", "arguments": {}}]
    MISTRAL_ARGS = "mistral-args"  # [TOOL_CALLS]f[ARGS]{}, of later models
    FUNCTION = "function"  # <function=f>{}</function>
    LLAMA = "llama"  # <|python_tag|>{"name": "f", "parameters": {}}, the tag only at times


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call; `arguments` is a JSON object as text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins: its name is known, and its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPart:
    """The next part of the arguments of the call that has started, as the model writes them."""

    text: str


Event = str | CallStart | ArgumentsPart | ToolCall
"""Content, or what is known of a call: its start, parts of its arguments, and the whole of it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A control token that belongs to a call, by its name; it is never content."""

    name: str


def text_of(pieces: Iterable[str | Mark]) -> str:
    """Return the text without marks."""
    return "".join(piece for piece in pieces if isinstance(piece, str))


def detect_format(template: str) -> CallFormat | None:
    """Return how a model with this chat template writes calls; None when that is not known."""
    if any(mark in template for mark in ("<parameter=", "<arg_key>")):
        return None  # Qwen3-Coder and GLM put XML into the tags that others fill with JSON
    if "<tool_call>" in template:
        return CallFormat.HERMES
    if "[TOOL_CALLS]" in template:
        return CallFormat.MISTRAL_ARGS if "[ARGS]" in template else CallFormat.MISTRAL
    if "<function=" in template:
        return CallFormat.FUNCTION
    if "<|python_tag|>" in template or ('{"name": ' in template and '"parameters": ' in template):
        return CallFormat.LLAMA
    return None


def mark_names(form: CallFormat) -> list[str]:
    """Return the parts of calls that are control tokens in some models."""
    syntax = _SYNTAX[form]
    return [name for name in (syntax.opening, *syntax.inner, syntax.closing) if name]


def opening_of(form: CallFormat) -> str:
    """Return what a call begins with."""
    return _SYNTAX[form].opening


def parse(pieces: Iterable[str | Mark], form: CallFormat) -> tuple[str, list[ToolCall]]:
    """Return the text around the calls, and the calls."""
    parser = ToolCallParser(form)
    read = [each for piece in pieces for each in parser.add(piece)] + parser.finish()
    content = "".join(each for each in read if isinstance(each, str))
    return content, [each for each in read if isinstance(each, ToolCall)]


@dataclass(frozen=True, slots=True)
class _Syntax:
    """`header` is what may stand between the opening and the JSON, and may hold the name.

    `starts` fits every start of a header, `inner` are the marks in it. `bare`: JSON
    may also come without an opening, where no text is before it.
    """

    opening: str
    closing: str = ""
    header: re.Pattern[str] = re.compile(r"\s{0,8}(?P<name>)")
    starts: re.Pattern[str] = re.compile(r"\s{0,8}")
    inner: Sequence[str] = ()
    bare: bool = False


_MISTRAL = _Syntax(
    "[TOOL_CALLS]",
    header=re.compile(r"\s{0,8}(?P<name>[\w.-]{0,128})(\[CALL_ID\]\w{1,64})?(\[ARGS\])?\s{0,8}"),
    starts=re.compile(r"\s{0,8}[\w.-]{0,128}(\[[\w\[\]]{0,90})?\s{0,8}"),
    inner=("[CALL_ID]", "[ARGS]"),
)
_SYNTAX = {
    CallFormat.HERMES: _Syntax("<tool_call>", "</tool_call>"),
    CallFormat.MISTRAL: _MISTRAL,
    CallFormat.MISTRAL_ARGS: _MISTRAL,
    CallFormat.FUNCTION: _Syntax(
        "<function=",
        "</function>",
        header=re.compile(r"(?P<name>[\w.-]{1,128})>\s{0,8}"),
        starts=re.compile(r"[\w.-]{1,128}(>\s{0,8})?"),
    ),
    CallFormat.LLAMA: _Syntax("<|python_tag|>", bare=True),
}

_FIRST_MEMBER = re.compile(r'\[?\s*\{\s*"(name|arguments|parameters|type|id)"')
"""How JSON begins that names the function itself."""

_TEXT_MEMBERS = r'(?:"(?!name"|arguments"|parameters")\w{1,32}"\s*:\s*"[^"\\]*"\s*,\s*)*'
_BEFORE_ARGUMENTS = re.compile(
    rf'\{{\s*{_TEXT_MEMBERS}"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*{_TEXT_MEMBERS}'
    r'"(?:arguments|parameters)"\s*:\s*\{'
)
"""A call as JSON up to where its arguments begin, with other members only if they are texts."""

_LONGEST_BEFORE_ARGUMENTS = 1024  # characters; what is longer is not searched again and again

_UNQUOTED = frozenset(" \t\r\n,:+-.0123456789eE" + "truefalsenull")
"""What stands between the strings and brackets of JSON."""

_IN_JSON = _UNQUOTED | frozenset('"{}[]')


class ToolCallParser:
    """Divides a growing text into content and calls.

    Goes character by character, so that it does not matter how the text is cut.
    Nothing of a call is shown as content, nor what may still become one; what
    turns out to be none is shown as it was. White space is dropped where nothing but
    calls is next to it. A control token is a mark, or nothing.

    A call is reported while it is written, from the start of its arguments on, and
    once more as a ToolCall when it is complete and its JSON sound. One that
    has started and turns out to be none is content, too, as it was.
    """

    def __init__(self, form: CallFormat) -> None:
        self._syntax = _SYNTAX[form]
        self._read = self._read_text
        self._pieces: list[Event] = []  # to hand out
        self._text: list[str] = []  # content after them
        self._has_called = False
        self._space: str | None = ""  # since the start or the last call; None after other text
        self._held = ""  # a start of the opening, or of the closing
        self._begun: list[str | Mark] = []  # what is no content if it becomes a call
        self._header = ""
        self._json_start = 0  # in `_begun`
        self._name = ""
        self._depth = 0
        self._is_quoted = self._is_escaped = self._is_checked = False
        self._element_start = 0  # in `_begun`: the JSON of the call that is read
        self._element_depth = 1  # `_depth` within it; 2 in a list of calls
        self._element_count = 0
        self._started_count = 0  # of these calls: the first so many have been reported
        self._arguments_depth = 0  # `_depth` within the arguments that are handed out; 0: none
        self._arguments: list[str] = []  # to hand out after `_pieces`

    def add(self, piece: str | Mark) -> list[Event]:
        """Return the content and the calls that are certain now, in order; no text is empty."""
        if isinstance(piece, Mark):
            self._read_mark(piece)
        else:
            for character in piece:
                self._read(character)
        return self._take()

    def finish(self) -> list[Event]:
        """Return the rest; a call that is not complete is content."""
        rest = text_of(self._begun) + self._held
        if rest.strip() or not self._has_called:
            self._show(rest)
        return self._take()

    def _take(self) -> list[Event]:
        self._end_arguments_part()
        self._end_text()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _end_text(self) -> None:
        if self._text:
            self._pieces.append("".join(self._text))
            self._text = []

    def _end_arguments_part(self) -> None:
        if self._arguments:
            self._pieces.append(ArgumentsPart("".join(self._arguments)))
            self._arguments = []

    def _show(self, text: str) -> None:
        self._text += filter(None, (self._space, text))
        self._space = None

    def _read_mark(self, mark: Mark) -> None:
        if mark.name == self._syntax.opening and not self._is_quoted:
            self._give_up()
            self._begin(mark)
        elif self._read == self._read_header and mark.name in self._syntax.inner:
            self._begun.append(mark)
            self._header += mark.name
        elif self._is_quoted:
            self._begun.append(mark)
            if self._arguments_depth:
                self._arguments.append(mark.name)
        elif self._read == self._read_closing and mark.name == self._syntax.closing:
            self._held = ""
            self._read = self._read_text
        else:
            self._give_up()

    def _begin(self, opening: str | Mark) -> None:
        self._begun, self._held, self._header = [opening], "", ""
        self._read = self._read_header

    def _give_up(self) -> None:
        """Make content of what has begun."""
        rest = text_of(self._begun) + self._held
        self._begun, self._held = [], ""
        self._close_arguments()
        self._is_quoted = self._is_escaped = False
        self._read = self._read_text
        if self._space is not None and not rest.strip():
            self._space += rest
        elif rest:
            self._show(rest)

    # Each of these reads one character in one state.

    def _read_text(self, character: str) -> None:
        if self._space is not None and not self._held:
            if character.isspace() or (character == ";" and self._syntax.bare and self._has_called):
                self._space += character
                return
            if character == "{" and self._syntax.bare:
                self._header = ""
                self._read_header(character)
                return
        self._held += character
        while not self._syntax.opening.startswith(self._held):
            self._show(self._held[0])
            self._held = self._held[1:]
        if self._held == self._syntax.opening:
            self._begin(self._held)

    def _read_header(self, character: str) -> None:
        self._begun.append(character)
        if character == "{" or (character == "[" and not self._header.strip()):
            header = self._syntax.header.fullmatch(self._header)
            if header:
                self._name = header["name"]
                self._json_start = len(self._begun) - 1
                self._depth = 1
                self._is_checked = bool(self._name)
                self._read = self._read_json
                self._begin_calls(character)
                return
        self._header += character
        if not self._syntax.starts.fullmatch(self._header):
            begun, self._begun = self._begun, []
            text, shown = text_of(begun), int(isinstance(begun[0], str))
            if shown:
                self._show(text[:1])
            self._read_again(text[shown:])  # the next opening may be in there

    def _begin_calls(self, character: str) -> None:
        self._element_count = self._started_count = 0
        self._element_depth = 1 if character == "{" else 2
        if character == "{":
            self._begin_object()

    def _begin_object(self) -> None:
        """See whether a call's JSON begins, or its arguments."""
        if self._depth == self._element_depth:
            self._element_start = len(self._begun) - 1
            self._element_count += 1
            if self._name and self._element_depth == 1:
                self._start_call(self._name)
        elif self._depth == self._element_depth + 1 and not self._name:
            if len(self._begun) - self._element_start > _LONGEST_BEFORE_ARGUMENTS:
                return
            before = _BEFORE_ARGUMENTS.fullmatch(self._json(self._element_start))
            if before and before["name"].isprintable():
                self._start_call(before["name"])

    def _start_call(self, name: str) -> None:
        """Report a call where its arguments begin, unless one before it is not reported yet."""
        if self._started_count != self._element_count - 1:
            return
        self._started_count += 1
        self._end_text()
        self._pieces.append(CallStart(name))
        self._arguments = ["{"]
        self._arguments_depth = self._depth

    def _close_arguments(self) -> None:
        self._end_arguments_part()
        self._arguments_depth = 0

    def _read_json(self, character: str) -> None:
        self._begun.append(character)
        if self._arguments_depth and (self._is_quoted or character in _IN_JSON):
            self._arguments.append(character)
        if self._is_quoted:
            self._read_quoted(character)
        elif character == '"':
            self._is_quoted = True
        elif character in "{[":
            self._depth += 1
            if character == "{" and not self._arguments_depth:
                self._begin_object()
        elif character in "}]":
            self._depth -= 1
            if self._depth < self._arguments_depth:
                self._close_arguments()
            if not self._depth:
                self._end_call(_read_calls(self._name, self._json(self._json_start)))
        elif character not in _UNQUOTED:
            again = text_of([self._begun.pop()])
            before = text_of(self._begun[-1:])
            if self._syntax.opening.startswith(before + again):  # Mistral's, at [T
                again = before + again
                self._begun.pop()
            self._end_call([])
            self._read_again(again)

    def _read_quoted(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_quoted = False
            if not self._is_checked and not _FIRST_MEMBER.fullmatch(self._json(self._json_start)):
                self._end_call([])  # without waiting for the end
            self._is_checked = True

    def _json(self, start: int) -> str:
        begun = self._begun[start:]
        return "".join(each.name if isinstance(each, Mark) else each for each in begun)

    def _end_call(self, calls: Sequence[ToolCall]) -> None:
        begun, self._begun = text_of(self._begun), []
        self._close_arguments()
        self._read = self._read_text
        if not calls:
            self._show(begun)
            return
        self._end_text()
        for call in calls[self._started_count :]:
            self._pieces += (CallStart(call.name), ArgumentsPart(call.arguments))
        self._pieces += calls
        self._has_called = True
        self._space = ""
        if self._syntax.closing:
            self._read = self._read_closing

    def _read_closing(self, character: str) -> None:
        self._held += character
        found = self._held.lstrip()
        if found == self._syntax.closing:
            self._held = ""
            self._read = self._read_text
        elif not self._syntax.closing.startswith(found):
            held, self._held = self._held, ""
            self._read_again(held)

    def _read_again(self, text: str) -> None:
        self._read = self._read_text
        for character in text:
            self._read(character)


def _read_calls(name: str, text: str) -> list[ToolCall]:
    """Return the calls in a JSON text, none if malformed; with a name it is the arguments."""
    try:
        value = json.loads(text)
        if name:
            return [_call(name, value)]
        return [
            _call(call["name"], call["arguments" if "arguments" in call else "parameters"])
            for call in (value if isinstance(value, list) else [value])
        ]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def _call(name: object, arguments: object) -> ToolCall:
    if isinstance(arguments, str):  # some models write JSON in JSON
        arguments = json.loads(arguments)
    if not (isinstance(arguments, dict) and isinstance(name, str)):
        raise TypeError
    if not name or not name.isprintable():
        raise ValueError
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()  # ValueError at half of a surrogate pair, which JSON can spell
    return ToolCall(name, text)
