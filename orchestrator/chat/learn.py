"""Learns from a chat template how its model writes, by what probes of it render to. Pure.

A probe is a chat with a thought, a text or calls whose words occur nowhere else. What the template
writes around these words is what the model was trained to write around its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.chat.format import (
    HEADER,
    ID,
    KEY,
    MARK,
    TYPE,
    CallFormat,
    ChatFormat,
    Ids,
    Parameter,
    Style,
)

Render = Callable[..., str]
"""(messages, tools, **variables) to the prompt; empty where the template fails."""

USER = {"role": "user", "content": "USERPROBE"}
CONTENT, THOUGHT, TEXT = "CONTENTPROBE", "THOUGHTPROBE", "VALUEPROBE"
NAMES, KEYS, PROBE_ID = ("probe_alpha", "probe_omega"), ("key_one", "key_two"), "idprobe01"
_SCHEMA = {
    "type": "object",
    "properties": {key: {"type": "string", "description": "x"} for key in KEYS},
    "required": list(KEYS),
}
TOOLS: Sequence[Any] = [
    {"type": "function", "function": {"name": name, "description": "x", "parameters": _SCHEMA}}
    for name in NAMES
]

_THINKING: Sequence[dict[str, object]] = (
    {"enable_thinking": True, "thinking": True},
    {},
    {"enable_thinking": False, "thinking": False},
)
_THOUGHT_MEMBERS = ("reasoning_content", "reasoning", "thinking")

_PYTHON = CallFormat(
    Style.KEYED,
    begin="<|tool_call_start|>[",
    after_name="(",
    close=")",
    separator=", ",
    end="]<|tool_call_end|>",
    parameter=Parameter(after_key="=", close=", "),
)
_UNSHOWN = {
    "<|tool_list_start|>": _PYTHON,  # LFM2: calls are left to the model
    "List of tools: [": _PYTHON,  # LFM2.5, the same
    "<|tool_call|> followed by a JSON list": CallFormat(  # Granite 3.3 is instructed in words
        Style.JSON,
        begin="<|tool_call|>[",
        separator=", ",
        end="]",
        name_key="name",
        arguments_key="arguments",
    ),
}
"""What no probe shows, as the template renders no call: by a text of the prompt with tools."""


def learn(render: Render, source: str) -> ChatFormat:
    """Return how the model of a template writes; `calls` is None where no probe shows them."""
    probe = _Prober(render)
    before, _, after = probe.turn({"content": CONTENT}).partition(CONTENT)
    prompts = [probe.turn(add_generation_prompt=True, **thinking) for thinking in _THINKING]
    openings = [text for text in prompts if text]
    user_end = probe.user_end()
    if not openings:  # the template always writes a generation prompt, or none
        openings, before = [user_end], user_end + before
    turn = _shared_start(openings[0], *openings[1:], before or openings[0])
    think, end_think, member = _thoughts(probe, turn, openings[0], source)
    turn = turn.split(think)[0] if think else turn
    content = _without_thought(before.removeprefix(turn), think, end_think).strip()
    calls, tail = _calls(probe, turn, after)
    shared = _shared_end(after, tail)
    end = shared if tail and content and shared else after
    marks = list(MARK.finditer(after))
    if content and end == after and len(marks) > 1:  # the first closes the text, not the turn
        end = after[marks[0].end() :]
    end_content = after.removesuffix(end).strip()
    first = MARK.search(end)
    end = first[0] if first else end.strip()
    if calls:
        before_calls = _without_thought(calls.begin or calls.open, think, end_think)
        before_calls = before_calls.removeprefix(content + end_content).removeprefix(content)
        calls = _alone(calls, before_calls, shared, end + turn + user_end)
        if HEADER not in content:
            calls = _bare(calls, source)
        if calls.open and turn.endswith(calls.open):
            turn = turn.removesuffix(calls.open)
            content = before.removeprefix(turn).strip()
    return ChatFormat(
        turn=turn,
        think=think,
        end_think=end_think,
        content=content,
        end_content=end_content,
        end=end,
        thoughts_as=member,
        calls=calls,
        ids=_ids(probe, calls),
        headers=HEADER in content,
    )


def _alone(calls: CallFormat, opening: str, turn_end: str, turn_marks: str) -> CallFormat:
    """Return the format without what is of the turn: its `opening` is that of the calls alone."""
    if not calls.begin:  # then what follows the calls ends the turn
        return replace(calls, open=opening, end="")
    end = calls.end.removesuffix(turn_end)
    others = [mark.start() for mark in MARK.finditer(end) if mark[0] in turn_marks]
    return replace(calls, begin=opening, end=end[: others[0]] if others else end)


def _bare(calls: CallFormat, source: str) -> CallFormat:
    """Return the format as one that needs no mark, if it has none."""
    if re.search(r"[<>[]", calls.opening.rstrip("[ \n")):
        return calls
    tag = re.search(r"<\|python_\w+\|>", source)  # Llama's, which no probe shows
    begin = tag[0] if tag else ""
    end = begin.replace("start", "end") if "start" in begin else ""
    return replace(calls, begin=begin + calls.begin, end=calls.end + end, bare=True)


@dataclass(frozen=True, slots=True)
class _Prober:
    """Renders probes, each after one message of the user."""

    render: Render

    def turn(self, *messages: dict[str, Any], **variables: object) -> str:
        """Return what the template writes after the user's turn; empty where it fails."""
        tools = TOOLS if any("tool_calls" in each for each in messages) else ()
        chat = [USER, *({"role": "assistant", **each} for each in messages)]
        variables = {"add_generation_prompt": False, **variables}
        whole = self.render(chat, tools, **variables) or self.render(chat, TOOLS, **variables)
        variables["add_generation_prompt"] = False
        alone = self.render([USER], tools, **variables) or self.render([USER], TOOLS, **variables)
        shared = len(_shared_start(alone, whole))
        return whole[shared:].removesuffix(alone[shared:])

    def user_end(self) -> str:
        """Return what stands between a user's text and the assistant's, of its turn or not."""
        alone = self.render([USER], (), add_generation_prompt=False)
        whole = self.render([USER, {"role": "assistant", "content": CONTENT}], ())
        return _shared_start(alone, whole).rpartition(USER["content"])[2]

    def calls(self, *calls: dict[str, Any]) -> str:
        """Return a turn of calls, whose arguments are objects or, if it must be, JSON texts."""
        as_text = [_with_text(call) for call in calls]
        for given in (list(calls), as_text):
            for content in ("", None):
                text = self.turn({"content": content, "tool_calls": given})
                if TEXT in text:
                    return text
        return ""


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"])}}


def _call(number: int, id_: str = PROBE_ID, last: object = TEXT) -> dict[str, Any]:
    given = {KEYS[0]: TEXT, KEYS[1]: last}
    return {"id": id_, "type": "function", "function": {"name": NAMES[number], "arguments": given}}


def _thoughts(probe: _Prober, turn: str, prompt: str, source: str) -> tuple[str, str, str]:
    """Return the marks around a thought, and the member under which messages have it."""
    parts = [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": CONTENT}]
    messages: list[tuple[dict[str, Any], str]] = [
        ({name: THOUGHT, **rest}, name)
        for rest in ({"content": CONTENT}, {"content": "", "tool_calls": [_call(0)]})
        for name in _THOUGHT_MEMBERS
    ]
    for message, member in [*messages, ({"content": parts}, "content")]:
        before, found, after = probe.turn(message, enable_thinking=True).partition(THOUGHT)
        closes = MARK.search(after)
        if not found or not closes or "{" in before:
            continue
        rest = before.removeprefix(turn).strip() or prompt.removeprefix(turn).strip() or turn
        if HEADER not in rest:
            opens = list(MARK.finditer(rest))
            rest = rest[opens[-1].start() :] if opens else rest
        return rest.strip(), closes[0], member
    tag = re.search(r"</((?:\w+:)?think\w*(?::\w+)?)>", source)
    name = tag[1] if tag else "think"  # models are tuned to think under a template of before
    return f"<{name}>", f"</{name}>", ""


def _without_thought(text: str, think: str, end_think: str) -> str:
    """Return the text without the empty thought that some templates put before it."""
    if not think:
        return text
    thought = rf"\s*({re.escape(think)})?\s*({re.escape(end_think)})?\s*"
    return text[re.match(thought, text).end() :]  # type: ignore[union-attr]  # it fits anything


def _calls(probe: _Prober, turn: str, tail: str) -> tuple[CallFormat | None, str]:
    """Return how calls are written, and what the template writes after the last one."""
    one, two = probe.calls(_call(0)), probe.calls(_call(0), _call(1))
    if not one:
        offered = probe.render([USER], TOOLS, add_generation_prompt=True)
        return next((form for text, form in _UNSHOWN.items() if text in offered), None), ""
    for read in (_json_call, _named_call, _keyed_call, _tagged_call):
        found = read(one, NAMES[0], probe)
        if found is None:
            continue
        form, start, stop = found
        if form.style is Style.PARAMETERS and HEADER in one[:start]:
            turn, two = one[: one.rindex(HEADER, 0, start) + len(HEADER)], ""
        before, after = one[:start].removeprefix(turn), one[stop:]
        first, other = read(two, NAMES[0], probe), read(two, NAMES[1], probe)
        if first is None or other is None:
            close = form.close + after.removesuffix(_shared_end(after, tail))
            return replace(form, open=before, close=close, several=False), after
        between = two[first[2] : other[1]]
        opening = _shared_end(one[:start], between).lstrip()
        close = _shared_start(after, between.removesuffix(opening)).rstrip()
        return replace(
            form,
            begin=before.removesuffix(opening),
            open=_numbered(opening),
            close=form.close + close,
            separator=between[len(close) : len(between) - len(opening)],
            end=after[len(close) :],
        ), after
    return None, ""


_Found = tuple[CallFormat, int, int] | None
"""A call's inside, and where it begins and ends in the text."""


def _objects_around(text: str, at: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the JSON objects that hold a place of the text, the innermost first."""
    for i in range(at, -1, -1):
        if text[i] == "{":
            try:
                value, stop = json.JSONDecoder().raw_decode(text, i)
            except (ValueError, RecursionError):
                continue
            if stop > at and isinstance(value, dict):
                yield i, stop, value


def _json_call(text: str, name: str, probe: _Prober) -> _Found:
    """Find {"name": "f", "arguments": {...}}, or {"f": {...}}."""
    for start, stop, value in _objects_around(text, text.find(name)):
        if isinstance(value.get(name), dict):
            return CallFormat(Style.JSON), start, stop
        named = next((key for key, each in value.items() if each == name), "")
        given = next((key for key, each in value.items() if KEYS[0] in str(each)), "")
        if named and given:
            return CallFormat(Style.JSON, name_key=named, arguments_key=given), start, stop
    return None


def _named_call(text: str, name: str, probe: _Prober) -> _Found:
    """Find a name and, after some mark, a JSON object."""
    start = text.find(name)
    for at, stop, value in _objects_around(text, text.find(KEYS[0], start)):
        if at > start and set(value) == set(KEYS):
            after_name = _numbered(text[start + len(name) : at])
            return CallFormat(Style.NAMED, after_name=after_name), start, stop
    return None


def _tagged_call(text: str, name: str, probe: _Prober) -> _Found:
    """Find a name, and arguments that each stand between marks."""
    key = text.find(KEYS[0], text.find(name))
    start, other = text.rfind(name, 0, key), text.find(KEYS[1], key)
    value, last = text.find(TEXT, key), text.find(TEXT, other)
    head = text[start + len(name) : key]
    if min(start, key, other) < 0 or not MARK.search(text, value, other):
        return None
    between = text[value + len(TEXT) : other].replace(f"/{KEYS[0]}", f"/{KEY}")
    rest = text[last + len(TEXT) :].replace(f"/{KEYS[1]}", f"/{KEY}")
    opening = _shared_end(head, between).lstrip()
    close = _shared_start(rest, between.removesuffix(opening)).rstrip()
    after_key = text[key + len(KEYS[0]) : value]
    number = probe.calls(_call(NAMES.index(name), last=7))
    of_number = re.search(rf"{KEYS[1]}([^7]*)7", number)
    after_key, string_type = _typed(after_key, of_number[1] if of_number else after_key)
    parameter = Parameter(opening, after_key, close, string_type)
    after_name = _numbered(head[: len(head) - len(opening)])
    form = CallFormat(Style.PARAMETERS, after_name=after_name, parameter=parameter)
    return form, start, last + len(TEXT) + len(close) - (len(KEY) - len(KEYS[1])) * close.count(KEY)


def _keyed_call(text: str, name: str, probe: _Prober) -> _Found:
    """Find f(key="value"), or f{key:"value"} with what stands around texts."""
    start = text.find(name)
    found = re.compile(
        rf"{name}([({{]){KEYS[0]}(\W)(.*?){TEXT}\3(\W*){KEYS[1]}\2\3{TEXT}\3([)}}])"
    ).match(text, start)
    if not found:
        return None
    opens, equals, quote, comma, close = found.groups()
    form = CallFormat(
        Style.KEYED,
        after_name=opens,
        close=close,
        quote=quote if MARK.fullmatch(quote) else '"',
        parameter=Parameter(after_key=equals, close=comma),
    )
    return form, start, found.end()


def _numbered(text: str) -> str:
    """Return what stands after a name, with ID for the id or the number that it holds."""
    return re.sub(rf"{PROBE_ID}|(?<=[\W])[01](?=\W)", ID, text)


def _typed(of_text: str, of_number: str) -> tuple[str, str]:
    """Return what is after an argument's name, with TYPE in it if it names the value's type."""
    if of_text == of_number:
        return of_text, ""
    ahead = re.sub(r"\w+$", "", of_text[: _shared_count(of_text, of_number)])
    end = len(of_text) - _shared_count(of_text[::-1], of_number[::-1])
    after = re.sub(r"^\w+", "", of_text[end:])
    return ahead + TYPE + after, of_text[len(ahead) : len(of_text) - len(after)]


def _shared_count(*texts: str) -> int:
    """Return how many characters the texts share at their start."""
    return next(
        (i for i, each in enumerate(zip(*texts, strict=False)) if len({*each}) > 1),
        min(map(len, texts)),
    )


def _shared_start(text: str, *others: str) -> str:
    """Return the longest start that the texts share, without a part of a mark."""
    count = _shared_count(text, *others)
    while any(m.start() < count < m.end() for t in (text, *others) for m in MARK.finditer(t)):
        count -= 1
    return text[:count]


def _shared_end(text: str, other: str) -> str:
    """Return the longest end that both texts share, without a part of a mark."""
    count = _shared_count(text[::-1], other[::-1])
    while any(
        m.start() < len(t) - count < m.end() for t in (text, other) for m in MARK.finditer(t)
    ):
        count -= 1
    return text[len(text) - count :]


def _ids(probe: _Prober, calls: CallFormat | None) -> Ids:
    """Return which ids of calls the template takes."""
    if calls is None or not probe.calls(_call(0)):
        return Ids.ANY
    if calls.after_name.startswith(f":{ID}"):
        return Ids.NAMED
    return Ids.ANY if probe.calls(_call(0, "call_0123456789abcdef")) else Ids.NINE
