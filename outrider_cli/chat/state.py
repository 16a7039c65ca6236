"""A chat as values: what was said, what the commands change, and what is to be done for a line.

Nothing here reads, prints or asks: `ChatState.take` says what a line wants, and the session, which
carries that out, reports what came of it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from outrider.errors import InvalidRequest, OutriderError
from outrider.request import Request, check_text
from outrider.speculation import Policy

_ROLES = ("system", "user", "assistant")


class NotDone(OutriderError):
    """A line cannot be carried out; nothing has changed, and the chat continues."""

    reason = "NOT_DONE"
    status = "INVALID_ARGUMENT"


# --- what a line wants ---


@dataclass(frozen=True, slots=True)
class AskModel:
    """Answer this question."""

    question: str


@dataclass(frozen=True, slots=True)
class Reply:
    """Show these lines; what was to be changed is."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """Write the messages to a file, over an old one only if that is wanted."""

    path: str
    overwrites: bool


@dataclass(frozen=True, slots=True)
class Load:
    """Read the messages from a file."""

    path: str


@dataclass(frozen=True, slots=True)
class ShowStatistics:
    """Show the statistics of the last answer, in few lines or all of them."""

    all_of_them: bool


@dataclass(frozen=True, slots=True)
class Quit:
    """End the chat."""


Act = AskModel | Reply | Save | Load | ShowStatistics | Quit


# --- what was said ---


@dataclass(frozen=True, slots=True)
class Message:
    """What one side said; `is_cut` where it was not finished."""

    role: str
    text: str
    is_cut: bool = False


def write_messages(messages: list[Message]) -> str:
    """Return messages as JSON, in the shape of OpenAI's API; `cut` is our own."""
    return json.dumps([_object(one) for one in messages], indent=2, ensure_ascii=False) + "\n"


def _object(message: Message) -> dict[str, Any]:
    said = {"role": message.role, "content": message.text}
    return {**said, "cut": True} if message.is_cut else said


def read_messages(text: str) -> list[Message]:
    """Return the messages of a JSON text. Raises NotDone."""
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        raise NotDone("this is not JSON") from None
    if not isinstance(items, list):
        raise NotDone("this is not a JSON list of messages")
    return [_read_message(number, item) for number, item in enumerate(items, 1)]


def _read_message(number: int, item: Any) -> Message:
    known = item if isinstance(item, dict) else {}
    role, text = known.get("role"), known.get("content")
    if role not in _ROLES or not isinstance(text, str):
        raise NotDone(f"message {number} needs a role, one of {', '.join(_ROLES)}, and a text")
    if role == "system" and number > 1:
        raise NotDone(f"message {number} is a system message; only the first can be one")
    return Message(role, _checked(text), known.get("cut") is True)


def _checked(text: str) -> str:
    """Return text that can be sent and saved. Raises NotDone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotDone("this is not valid Unicode text") from None
    return text


class ChatState:
    """One chat: its messages, and how the next answer is generated.

    `unanswered` is a question without an answer, for /retry. The oldest
    `forgotten_count` messages are kept but no longer sent: the context is full.
    """

    def __init__(self, options: Request, system: str = "") -> None:
        self.options = replace(options, parse_special=True)
        self.system = check_text("system", system)
        self.messages: list[Message] = []
        self.unanswered = ""
        self.forgotten_count = 0
        self.is_coloured = True

    @property
    def is_drafting(self) -> bool:
        """Whether drafts are wanted."""
        return self.options.enabled is not False

    def take(self, line: str) -> Act | None:
        """Return what a line wants, None if nothing. Raises NotDone."""
        text = _checked(line).strip()
        if text.startswith("//"):
            return AskModel(text[1:])
        if text.startswith("/"):
            return self._obey(text)
        return AskModel(text) if text else None

    def _obey(self, text: str) -> Act:
        name, _, argument = text[1:].partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            close = difflib.get_close_matches(name, list(COMMANDS), 1)
            hint = f"did you mean /{close[0]}?" if close else "/help lists them"
            raise NotDone(f"there is no command /{name}; {hint}")
        argument = argument.strip()
        if argument and not command.argument:
            raise NotDone(f"/{name} takes nothing after it, not {argument!r}")
        return command.run(self, argument)

    # --- what is sent, and what came of it ---

    def chat(self, question: str) -> list[dict[str, str]]:
        """Return what to render for a question: the messages that still fit, and it."""
        said = [Message("system", self.system)] if self.system else []
        said += [*self.messages[self.forgotten_count :], Message("user", question)]
        return [{"role": one.role, "content": one.text} for one in said]

    def add_answer(self, question: str, text: str, is_cut: bool) -> None:
        """Keep a question and what came as its answer."""
        self.messages += [Message("user", question), Message("assistant", text, is_cut)]
        self.unanswered = ""

    def add_failure(self, question: str) -> None:
        """Nothing came: keep the question for /retry."""
        self.unanswered = question

    def forget(self) -> int:
        """Send the older half of the turns no more; return how many those are."""
        turns = self._turns()
        gone = turns[: (len(turns) + 1) // 2]
        if gone:
            self.forgotten_count = (turns[len(gone) :] or [len(self.messages)])[0]
        return len(gone)

    @property
    def turn_count(self) -> int:
        """How many turns are sent."""
        return len(self._turns())

    def _turns(self) -> list[int]:
        """Return where the turns that are sent begin."""
        said = range(self.forgotten_count, len(self.messages))
        return [i for i in said if self.messages[i].role == "user" or i == self.forgotten_count]

    def all_messages(self) -> list[Message]:
        """Return everything that was said, for a file."""
        first = [Message("system", self.system)] if self.system else []
        last = [Message("user", self.unanswered)] if self.unanswered else []
        return [*first, *self.messages, *last]

    def replace_messages(self, messages: list[Message]) -> None:
        """Continue from other messages; a question at the end is for /retry."""
        self.reset()
        rest = list(messages)
        self.system = rest.pop(0).text if rest and rest[0].role == "system" else ""
        if rest and rest[-1].role == "user":
            self.unanswered = rest.pop().text
        self.messages = rest

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = []
        self.unanswered = ""
        self.forgotten_count = 0

    def take_back(self) -> str:
        """Remove the last turn and return its question. Raises NotDone."""
        if self.unanswered:
            question, self.unanswered = self.unanswered, ""
            return question
        asked = [i for i, one in enumerate(self.messages) if one.role == "user"]
        if not asked:
            raise NotDone("nothing has been asked yet")
        question = self.messages[asked[-1]].text
        del self.messages[asked[-1] :]
        self.forgotten_count = min(self.forgotten_count, len(self.messages))
        return question

    def change(self, **values: Any) -> None:
        """Generate the next answers otherwise. Raises NotDone."""
        try:
            self.options = replace(self.options, **values)
        except InvalidRequest as error:
            name = "/k" if error.field == "n_max" else error.field
            raise NotDone(str(error.named(name))) from None


# --- the commands ---


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command; `argument` is empty where it takes none."""

    argument: str
    about: str
    run: Callable[[ChatState, str], Act]


def _help(talk: ChatState, argument: str) -> Act:
    usages = {f"/{name} {each.argument}".rstrip(): each.about for name, each in COMMANDS.items()}
    rows = {**usages, **_KEYS}
    width = max(map(len, rows)) + 2
    return Reply(tuple(f"{usage:<{width}}{about}" for usage, about in rows.items()))


_KEYS = {
    "\\ at the end": "continue in the next line; so does Alt-Enter",
    "// at the start": "a question that begins with /",
    "Ctrl-C": "stop the answer, or clear the line",
    "Ctrl-D": "end the chat; so does Ctrl-C twice",
}


def _stats(talk: ChatState, argument: str) -> Act:
    if argument not in ("", "all"):
        raise NotDone("/stats takes all or nothing after it")
    return ShowStatistics(argument == "all")


def _draft(talk: ChatState, argument: str) -> Act:
    if argument not in ("on", "off"):
        raise NotDone("/draft takes on or off")
    talk.change(enabled=argument == "on")
    return Reply((f"drafting is {argument}",))


def _k(talk: ChatState, argument: str) -> Act:
    if not argument:
        talk.change(n_max=None, policy=Policy.MEASURED)
        return Reply(("drafts are as long as it is measured to pay",))
    count = _read_integer("/k", argument)
    talk.change(n_max=count)
    fixed = talk.options.policy is Policy.FIXED
    tokens = "token" if count == 1 else "tokens"
    return Reply((f"drafts have {'exactly' if fixed else 'at most'} {count} {tokens}",))


def _temperature(talk: ChatState, argument: str) -> Act:
    try:
        value = float(argument)
    except ValueError:
        raise NotDone(f"/temperature takes a number, not {argument!r}") from None
    try:
        sampling = replace(talk.options.sampling, temperature=value)
    except InvalidRequest as error:
        raise NotDone(str(error)) from None
    talk.change(sampling=sampling)
    return Reply((f"the temperature is {value:g}",))


def _seed(talk: ChatState, argument: str) -> Act:
    seed = _read_integer("/seed", argument) if argument else -1
    talk.change(seed=None if seed == -1 else seed)
    return Reply(("every answer has a seed of its own" if seed == -1 else f"the seed is {seed}",))


def _system(talk: ChatState, argument: str) -> Act:
    talk.system = argument
    return Reply(("the system message is set" if argument else "there is no system message",))


def _reset(talk: ChatState, argument: str) -> Act:
    talk.reset()
    return Reply(("a new chat",))


def _undo(talk: ChatState, argument: str) -> Act:
    question = talk.take_back()
    return Reply((f"taken back: {_shortened(question)}",))


def _retry(talk: ChatState, argument: str) -> Act:
    return AskModel(talk.take_back())


def _save(talk: ChatState, argument: str) -> Act:
    return Save(_read_path("/save", argument), overwrites=False)


def _overwrite(talk: ChatState, argument: str) -> Act:
    return Save(_read_path("/save!", argument), overwrites=True)


def _load(talk: ChatState, argument: str) -> Act:
    return Load(_read_path("/load", argument))


def _colour(talk: ChatState, argument: str) -> Act:
    talk.is_coloured = not talk.is_coloured
    return Reply((f"colours are {'on' if talk.is_coloured else 'off'}",))


def _read_integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise NotDone(f"{name} takes a whole number, not {text!r}") from None


def _read_path(name: str, text: str) -> str:
    if not text:
        raise NotDone(f"{name} takes the name of a file")
    return text


def _shortened(text: str) -> str:
    first, *_ = text.splitlines() or [""]
    return first if first == text and len(text) <= 60 else f"{first[:60]} ..."


COMMANDS = {
    "help": SlashCommand("", "show this", _help),
    "stats": SlashCommand(
        "[all]", "show the statistics of the last answer, or all of them", _stats
    ),
    "draft": SlashCommand("on|off", "speculate, or let the target write alone", _draft),
    "k": SlashCommand("[N]", "draft at most N tokens a round; alone: what pays", _k),
    "temperature": SlashCommand("X", "sample at this temperature; 0: greedy", _temperature),
    "seed": SlashCommand("[N]", "use this seed; alone: a random one for every answer", _seed),
    "system": SlashCommand("[TEXT]", "set the system message; alone: none", _system),
    "reset": SlashCommand("", "forget what was said, but the system message", _reset),
    "undo": SlashCommand("", "take the last question and its answer back", _undo),
    "retry": SlashCommand("", "ask the last question again", _retry),
    "save": SlashCommand("FILE", "write the messages as JSON to a new file", _save),
    "save!": SlashCommand("FILE", "write them over an old one", _overwrite),
    "load": SlashCommand("FILE", "continue from saved messages", _load),
    "colour": SlashCommand("", "show the origins of tokens by colour, or no more", _colour),
    "quit": SlashCommand("", "end the chat", lambda *_: Quit()),
}
