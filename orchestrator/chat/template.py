"""Turns chat messages into a prompt with the model's own template. Pure.

Messages and tools are the JSON objects of OpenAI's chat API, since that is what
templates are written for. What a template takes is found out by rendering: does
a system message come out, the name of a tool, the arguments of a call?
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

from pydantic_core import from_json

from orchestrator.chat.format import ChatFormat, Ids
from orchestrator.chat.learn import learn
from orchestrator.chat.sandbox import Template
from outrider.errors import InvalidRequest

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""For a model without a template, as in llama.cpp; such a model may never have seen it."""

_ROLES = ("system", "developer", "user", "assistant", "tool")
_EFFORT = ("reasoning_effort", "reasoning_strength")
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
_FUNCTIONS = frozenset({"raise_exception", "strftime_now"})

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_END = "\ue00f"  # where a text ends that is continued

_PROBE = "outrider_probe"
_PROBED = {"role": "user", "content": _PROBE}
_ANSWER = {"role": "assistant", "content": "x"}
_SYSTEM = {"role": "system", "content": _PROBE}
_USER = {"role": "user", "content": "x"}
_THOUGHT = {"role": "assistant", "content": "x", "reasoning_content": _PROBE}
# Under each of these names some template takes whether it shows earlier thoughts.
_KEEPING_THOUGHTS: Mapping[str, Any] = {
    "enable_thinking": True,
    "preserve_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}
_TOOL = {
    "type": "function",
    "function": {
        "name": _PROBE,
        "description": "x",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "string", "description": "x"}},
            "required": ["x"],
        },
    },
}


class ChatTemplate:
    """A model's template; `source` is jinja2, None or empty where the model has none.

    Without one CHATML `stands_in`. `takes_tools`: tools may be given. `takes_system`: the template
    knows a system message; otherwise a first one is put before the user's message.
    `takes_late_system`: also after other messages. `takes_users_in_a_row`: roles need not
    alternate, else messages of the user that follow each other are joined. `takes_calls`,
    `takes_parallel_calls`: it shows the calls of earlier messages, one of a message or all.
    `takes_objects`: it wants their arguments as objects and not as JSON text. `takes_texts`:
    content may be text, else it is given as parts. `keeps_thoughts`: it can show the
    `reasoning_content` of earlier messages. `takes_effort`: `reasoning_effort` changes the prompt.

    Raises InvalidRequest for `chat_template` when it does not compile.
    """

    def __init__(self, source: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source or CHATML
        self.stands_in = not source
        self._template = Template(self.source)
        self.bos_token, self.eos_token = bos_token, eos_token
        self._constants = {"bos_token": bos_token, "eos_token": eos_token, "documents": None}
        self._in_form: Callable[[Sequence[Any]], list[Any]] = list
        # As in transformers, None and not undefined says that there are no tools.
        self._no_tools: list[object] | None = None
        if not self._try([_USER]):
            self._no_tools = []  # it goes through them without asking
        takes_parts = self._shows_probe(_in_parts([_PROBED]))
        self.takes_texts = self._shows_probe([_PROBED]) or not takes_parts
        self._in_form = self._in_form if self.takes_texts else _in_parts
        self.takes_system = self._shows_probe([_SYSTEM, _USER])
        late = self._try([_USER, _ANSWER, _SYSTEM, _USER], add_generation_prompt=False)
        self.takes_late_system = late.count(_PROBE) == 1
        in_a_row = self._try([_PROBED, _PROBED], add_generation_prompt=False)
        self.takes_users_in_a_row = in_a_row.count(_PROBE) == 2
        self.takes_tools = self._shows_probe([_USER], tools=[_TOOL])
        as_object, as_text = {_PROBE: "x"}, json.dumps({_PROBE: "x"})
        shows_object = self._shows_probe([_USER, _calls(_call("x", as_object))])
        shows_text = self._shows_probe([_USER, _calls(_call("x", as_text))])
        self.takes_objects = shows_object or not shows_text
        arguments: object = {"x": "x"} if self.takes_objects else json.dumps({"x": "x"})
        named, other = _call(_PROBE, arguments), _call("x", arguments)
        self.takes_calls = self._shows_probe([_USER, _calls(named)])
        self.takes_parallel_calls = self._shows_probe([_USER, _calls(other, named)])
        self.keeps_thoughts = self._shows_probe([_USER, _THOUGHT, _USER], **_KEEPING_THOUGHTS)
        self.takes_effort = self._differs_by_effort()

    @cached_property
    def form(self) -> ChatFormat:
        """How the model writes a turn, as the template shows it."""
        return learn(self._try, self.source)

    @cached_property
    def _divides_thoughts(self) -> bool:
        """Whether thoughts and text may stand in one message before a call."""
        both = {**_calls(_call("x", {"x": "x"})), "content": "x", self._thoughts_as: "x"}
        return bool(self._try([_USER, both]))

    @property
    def _thoughts_as(self) -> str:
        return self.form.thoughts_as or _THOUGHTS[0]

    def render(
        self,
        messages: object,
        *,
        strftime_now: Callable[[str], str],
        tools: object = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: object = None,
    ) -> str:
        """Return the prompt, with the text of special tokens in it.

        `messages`, `tools` and `chat_template_kwargs` (further variables of the
        template) are what came out of JSON. `strftime_now` formats the present time.
        With `add_generation_prompt`, a last assistant message is what the model goes on from: the
        prompt ends after its text, or after its thought where it has no text.

        Raises InvalidRequest for what is wrong with an argument, and for `messages`
        or `chat_template` when the template refuses or fails.
        """
        items = enumerate(_read_list("messages", messages))
        chat = [self._read_message(f"messages[{i}]", item) for i, item in items]
        if not chat:
            raise InvalidRequest("messages", "is empty")
        functions = [_read_tool(f"tools[{i}]", t) for i, t in enumerate(_read_list("tools", tools))]
        if functions and not self.takes_tools:
            raise InvalidRequest("tools", "the chat template of this model does not take any")
        variables = _read_variables(chat_template_kwargs)
        variables["strftime_now"] = lambda form: str(strftime_now(form))  # hides what it is
        variables["add_generation_prompt"] = add_generation_prompt
        if not self.takes_late_system:
            chat = _with_system_merged(chat)
        if not self.takes_system:
            chat = _without_system(chat)
        if not self.takes_users_in_a_row:
            chat = _with_users_joined(chat)
        if add_generation_prompt and chat[-1]["role"] == "assistant":
            prompt = self._continued(chat, functions, variables)
        else:
            prompt = self._run(self._as_taken(chat), functions, variables)
        _check_encodable(prompt)
        return prompt

    def _continued(
        self, chat: list[dict[str, Any]], tools: Sequence[object], variables: dict[str, object]
    ) -> str:
        """Return the prompt up to the end of the last message, as the template writes its turn."""
        *before, last = chat
        if "tool_calls" in last:
            raise InvalidRequest("messages", "end in tool calls, which cannot be continued")
        if before and before[-1]["role"] == "assistant":
            raise InvalidRequest("messages", "end in two assistant messages; one can be continued")
        text: str = last["content"]
        member = "thought" if last["thought"] and not text else "content"
        ended = {**last, member: last[member] + _END}
        closed = {**variables, "add_generation_prompt": False}
        whole = self._try(self._as_taken([*before, ended]), tools, **closed)
        if last[member].strip() and _END in whole:
            return whole[: whole.rindex(_END)]
        return self._run(self._as_taken(before), tools, variables) + text

    def _as_taken(self, chat: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages with thoughts and content in the form that the template takes."""
        taken = []
        for message in chat:
            rest = {name: each for name, each in message.items() if name != "thought"}
            taken.append(self._with_thought(rest, message.get("thought", "")))
        return taken

    def _with_thought(self, message: dict[str, Any], thought: str) -> dict[str, Any]:
        if not thought:
            return message
        member = self._thoughts_as
        if member == "content":
            thinking = {"type": "thinking", "thinking": thought}
            return {**message, "content": [thinking, *_in_parts([message])[0]["content"]]}
        if "tool_calls" in message and message["content"] and not self._divides_thoughts:
            thought, message = f"{thought}\n{message['content']}", {**message, "content": ""}
        return {**message, member: thought}

    def _run(
        self, messages: Sequence[object], tools: Sequence[object], variables: Mapping[str, object]
    ) -> str:
        given = {"messages": self._in_form(messages), "tools": tools or self._no_tools}
        return self._template.render({**self._constants, **variables, **given})

    def _shows_probe(
        self, messages: Sequence[object], tools: Sequence[object] = (), **variables: object
    ) -> bool:
        return _PROBE in self._try(messages, tools, add_generation_prompt=False, **variables)

    def _differs_by_effort(self) -> bool:
        efforts = ("low", "high")
        prompts = {
            self._try([_USER], add_generation_prompt=True, enable_thinking=True, **variables)
            for variables in (dict.fromkeys(_EFFORT, effort) for effort in efforts)
        }
        return len(prompts) > 1

    def _try(
        self, messages: Sequence[object], tools: Sequence[object] = (), **variables: object
    ) -> str:
        """Return the prompt, empty where the template fails."""
        try:
            return self._run(messages, tools, {"strftime_now": lambda form: "", **variables})
        except InvalidRequest:
            return ""

    def _read_message(self, field: str, value: object) -> dict[str, Any]:
        message = _read_object(field, value)
        if message.get("role") not in _ROLES:
            raise InvalidRequest(f"{field}.role", f"must be one of {', '.join(_ROLES)}")
        if message["role"] == "developer":  # a newer word for system, unknown to templates
            message["role"] = "system"
        for name in ("name", "tool_call_id", *_THOUGHTS):
            if not isinstance(message.get(name, ""), str):
                raise InvalidRequest(f"{field}.{name}", "must be a string")
        if "tool_call_id" in message:
            message["tool_call_id"] = self._id(message["tool_call_id"])
        message["thought"] = next(filter(None, [message.pop(n, "") for n in _THOUGHTS]), "")
        calls = _read_list(f"{field}.tool_calls", message.pop("tool_calls", None))
        if calls:
            message["tool_calls"] = [
                self._read_call(f"{field}.tool_calls[{i}]", call) for i, call in enumerate(calls)
            ]
            message.setdefault("content", "")  # templates trim it and add to it
        message["content"] = _read_content(f"{field}.content", message.get("content"))
        return message

    def _read_call(self, field: str, value: object) -> dict[str, Any]:
        """Return a call with its arguments in the form that the template takes.

        The API has them as JSON text, also in history. Most templates want the
        object, to write it with tojson or to go through it, and llama.cpp and vLLM
        give them that; a few, such as DeepSeek's, add the text to other text.
        """
        call = _read_tool(field, value)
        function = call["function"]
        given = function.get("arguments", "")
        try:
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            text = text or "{}"
            # A call that the token limit cut comes back as far as it was written.
            arguments = from_json(text, allow_partial="trailing-strings")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise InvalidRequest(f"{field}.function.arguments", "must be a JSON object")
        form = arguments if self.takes_objects else text
        id_ = {"id": self._id(call["id"])} if isinstance(call.get("id"), str) else {}
        return {**call, **id_, "function": {**function, "arguments": form}}

    def _id(self, given: str) -> str:
        """Return a call's id as the template takes it: the same for the same."""
        if self.form.ids is not Ids.NINE or re.fullmatch("[a-zA-Z0-9]{9}", given):
            return given
        return sha256(given.encode("utf-8", "replace")).hexdigest()[:9]


def _call(name: str, arguments: object) -> dict[str, Any]:
    """Return a call of a function; Mistral's templates want ids of nine characters."""
    function = {"name": name, "arguments": arguments}
    return {"id": "123456789", "type": "function", "function": function}


def _calls(*calls: object) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def _in_parts(messages: Sequence[Any]) -> list[Any]:
    """Return the messages with every text as a part."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message["content"], str)
        else message
        for message in messages
    ]


def _read_object(field: str, value: object) -> dict[str, Any]:
    """Return the members that are not null: templates ask whether one is defined."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(field, "must be an object")
    return {name: member for name, member in value.items() if member is not None}


def _read_list(field: str, value: object) -> Sequence[object]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(field, "must be a list")
    return value


def _read_content(field: str, value: object) -> str:
    """Return the text; parts are joined by line ends, as in llama.cpp and vLLM."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(field, "must be a string or a list of parts")
    return "\n".join(_read_part(f"{field}[{i}]", part) for i, part in enumerate(value))


def _read_part(field: str, value: object) -> str:
    part = _read_object(field, value)
    if part.get("type") != "text":
        raise InvalidRequest(f"{field}.type", f"must be 'text', not {part.get('type')!r:.40}")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}.text", "must be a string")
    return text


def _read_tool(field: str, value: object) -> dict[str, Any]:
    """Return a tool or a call, which both hold a function that has a name."""
    tool = {"type": "function", **_read_object(field, value)}
    if tool["type"] != "function":
        raise InvalidRequest(f"{field}.type", f"must be 'function', not {tool['type']!r:.40}")
    function = _read_object(f"{field}.function", tool.get("function"))
    if not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{field}.function.name", "must be a string")
    return {**tool, "function": function}


def _read_variables(value: object) -> dict[str, object]:
    variables = _read_object("chat_template_kwargs", {} if value is None else value)
    for name in sorted(variables.keys() & (_RESERVED | _FUNCTIONS)):
        raise InvalidRequest("chat_template_kwargs", f"must not hold {name}")
    return variables


def _with_system_merged(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with later system messages in the user's that are next to them."""
    merged: list[_Joined] = []
    texts: list[str] = []  # of system messages that go to the next one
    for i, message in enumerate(chat):
        texts.append(message["content"])
        follows = chat[i + 1]["role"] if i + 1 < len(chat) else ""
        if message["role"] == "system" and merged:
            last, texts_of_last = merged[-1]
            if follows in ("system", "user") and last["role"] != "system":
                texts = [] if texts == [""] else texts
                continue
            if last["role"] in ("system", "user"):
                texts_of_last += texts
            else:
                merged.append(({**message, "role": "user"}, texts))
        else:
            merged.append((message, texts))
        texts = []
    return _with_texts(merged)


def _without_system(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with a first system message put before the user's, as in llama.cpp."""
    if not chat or chat[0]["role"] != "system":
        return chat
    system, *rest = chat
    if not rest or rest[0]["role"] != "user":
        return [{**system, "role": "user"}, *rest]
    return [{**rest[0], "content": f"{system['content']}\n{rest[0]['content']}"}, *rest[1:]]


def _with_users_joined(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    joined: list[_Joined] = []
    for message in chat:
        texts: list[str] = []
        if joined and joined[-1][0]["role"] == message["role"] == "user":
            _, texts = joined.pop()
        texts.append(message["content"])
        joined.append((message, texts))
    return _with_texts(joined)


_Joined = tuple[dict[str, Any], list[str]]
"""A message, and the texts that become its own; joined once, as there may be 100,000."""


def _with_texts(joined: list[_Joined]) -> list[dict[str, Any]]:
    return [{**message, "content": "\n\n".join(texts)} for message, texts in joined]


def _check_encodable(prompt: str) -> None:
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("messages", "hold half of a surrogate pair") from None
